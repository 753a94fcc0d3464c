"""Values read off trajectories without a model: the discounted sums of section 4.3, their reference, CRL and the
trivial baseline.

    V~(x_i) = dt sum_{j=0}^{J} exp(-beta j dt) r(x_{i+j})

The full discounted sum F_i = w_i r_i + exp(-beta (t_{i+1} - t_i)) F_{i+1} costs O(n); the truncated one is
F_i - exp(-beta (t_e - t_i)) F_e, e the first index after the horizon: nothing is summed twice.

The sum takes the reward of a whole step from its beginning. With a reward that the motion forgets at the rate q it is
too large by about (beta + q) dt / 2, and by q dt / 2 with the exact discount; a reward that is linear between the
observations leaves an error of second order.

Least-squares Fourier fits (`FourierSeries`) make a curve of them, the reference and the model-free baseline of section
4.3; logged rewards become one in the same way.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import choice, positive_number, whole_number
from levytorch.data.pairing import is_gap
from levytorch.data.trajectories import Trajectories
from levytorch.errors import InputError, LevytorchWarning
from levytorch.policy.checks import check_beta, discounted_by_rate, reward_function
from levytorch.spaces.basis import FourierBasis

_CHUNK = 65536
_RCOND = 1e-10  # singular values below this, relative to the largest, are left out
TensorOrArray = Tensor | np.ndarray

GAPS = ("end", "hold", "skip")
_LONG_STEP = 0.1  # beta dt from which on the paper's sum of a constant reward is 5 % too large


@dataclass(frozen=True)
class FourierSeries:
    """sum_m c_m phi_m(x), fitted to the data in `support`.

    `condition` is that of the fit.
    """

    coefficients: Tensor
    basis: FourierBasis
    support: tuple[float, float]
    condition: float

    def __call__(self, x: Tensor | np.ndarray | float) -> Tensor:
        at = torch.as_tensor(x, dtype=torch.float64)
        if at.numel() <= _CHUNK:
            return self.basis.matrix(at) @ self.coefficients
        return torch.cat(
            [self.basis.matrix(part) @ self.coefficients for part in at.reshape(-1).split(_CHUNK)]
        ).reshape(at.shape)


def fit_fourier(x: Tensor | np.ndarray, y: Tensor | np.ndarray, basis: FourierBasis) -> FourierSeries:
    """The Fourier series that fits y at x best in the mean square; of several, the one with the smallest coefficients.

    One pass in chunks (a QR factorisation that is updated), so that a million points need no (n, n_modes) matrix.
    """
    x, y = (torch.as_tensor(a, dtype=torch.float64).detach().reshape(-1) for a in (x, y))
    if x.shape != y.shape or x.numel() == 0:
        raise InputError(
            f"x and y must have one value per point, found {x.numel()} and {y.numel()}; give them in pairs."
        )
    if not bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise InputError("x and y must be finite, found NaN or infinite values among them; remove those points.")
    n = basis.n_modes
    R = torch.zeros((0, n + 1), dtype=torch.float64)
    for part_x, part_y in zip(x.split(_CHUNK), y.split(_CHUNK)):
        block = torch.cat([basis.matrix(part_x), part_y[:, None]], dim=1)
        R = torch.linalg.qr(torch.cat([R, block]), mode="r").R
    A, z = R[:, :n], R[:, n]
    U, s, Vh = torch.linalg.svd(A, full_matrices=False)
    keep = s > _RCOND * s[0]
    condition = float(s[0] / s[-1]) if len(s) == n and float(s[-1]) > 0 else float("inf")
    if not bool(keep.all()) or len(s) < n:
        warnings.warn(
            f"{n} Fourier functions are not determined by these points (condition number {condition:.2g}), and the "
            "smallest of the best fits is used; use fewer functions.",
            LevytorchWarning,
            stacklevel=2,
        )
    c = Vh[keep].T @ ((U[:, keep].T @ z) / s[keep])
    return FourierSeries(c, basis, (float(x.min()), float(x.max())), condition)


class TooShort(InputError):
    """No trajectory lasts as long as the horizon."""


class EmpiricalValues(NamedTuple):
    """Start states and their discounted values, (n,) each.

    `number` counts the observations of all trajectories in order.
    """

    x: Tensor
    V: Tensor
    number: Tensor


def discounted_sum(
    r: np.ndarray, t: np.ndarray, beta: float, horizon: float, *, exact: bool, linear: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Truncated discounted sums of one trajectory: (values, complete), the latter where the horizon lies within the
    data.

    exact=False weights r_j by t_{j+1} - t_j (the paper's sum); exact=True holds r_j until t_{j+1} and integrates the
    discount exactly, which matters when a step is long against 1 / beta; linear=True lets the reward go straight from
    r_j to r_{j+1} instead, also with the exact discount. The last observation's step is taken as long as the one
    before it, and its reward held.
    """
    steps = np.diff(t)
    steps = np.append(steps, steps[-1])
    terms = (-np.expm1(-beta * steps) / beta if exact or linear else steps) * r
    if linear:
        terms[:-1] += slope_weight(beta, steps[:-1]) * np.diff(r)
    F = _suffix_sums(terms, beta * (t - t[0]))
    # A relative slack: t_i + horizon is computed in floating point and must not lose the last term of an evenly
    # sampled sum
    slack = 1e-6 * float(np.median(steps))
    end = np.searchsorted(t, t + (horizon + slack), side="right")
    later = np.minimum(end, len(t) - 1)
    cut = np.where(end < len(t), np.exp(-beta * (t[later] - t)) * F[later], 0.0)
    return F - cut, t + horizon <= t[-1] + slack


def slope_weight(beta: float, steps: np.ndarray) -> np.ndarray:
    """int_0^h exp(-beta s) s / h ds for every step h: the weight of r_{j+1} - r_j."""
    z = beta * steps
    # the closed form loses its digits where z is small; there two terms of the series are exact to 1e-9
    short = z < 1e-4
    safe = np.where(short, 1.0, z)
    closed = (-np.expm1(-safe) - safe * np.exp(-safe)) / safe**2
    return steps * np.where(short, 0.5 - z / 3, closed)


def _suffix_sums(terms: np.ndarray, s: np.ndarray) -> np.ndarray:
    """F_i = sum_{j >= i} exp(-(s_j - s_i)) terms_j, in blocks over which exp neither over- nor underflows."""
    out = np.empty_like(terms)
    carry, stop = 0.0, len(terms)
    while stop > 0:
        last = s[stop - 1]
        start = int(np.searchsorted(s, last - 300.0, side="left"))
        decay = np.exp(-(s[start:stop] - s[start]))
        tail = carry * (math.exp(-(s[stop] - s[start])) if stop < len(s) else 0.0)
        out[start:stop] = (np.cumsum((decay * terms[start:stop])[::-1])[::-1] + tail) / decay
        carry, stop = out[start], start
    return out


@discounted_by_rate
def empirical_values(
    trajectories: Any,
    reward: Callable[[Tensor], Any] | float,
    beta: float,
    *,
    dt: float | None = None,
    times: TensorOrArray | None = None,
    n_terms: int | None = None,
    horizon: float | None = None,
    max_gap: float | None = None,
    partial: bool = False,
    exact: bool | None = None,
    linear: bool = False,
    gaps: str = "end",
) -> EmpiricalValues:
    """Discounted values V~(x_i) of every observation whose horizon the data covers.

    trajectories: a Trajectories, or the positions of one trajectory with `dt` or `times`. n_terms: number of terms
    (the paper's sum has 3001), for even sampling; horizon: the same as a time; by default exp(-beta horizon) = 1e-12.
    max_gap: a longer step is a gap (by default that of the trajectories). partial: keep values whose horizon reaches
    beyond the data. exact: see `discounted_sum`; by default for uneven sampling only. linear: the reward is linear
    between observations, which is what steps need that are not short against 1 / beta; without it they are warned of.
    gaps: "end": a trajectory ends there; "hold": sums go on at the times as they are, the reward held over the gap;
    "skip": what follows counts as one step later, which is the paper's sum over the rows of a file.
    """
    beta = check_beta(beta)
    if n_terms is not None and horizon is not None:
        raise InputError(f"n_terms and horizon must not both be given, found {n_terms} and {horizon}; leave one out.")
    choice("gaps", gaps, GAPS)
    n_terms = None if n_terms is None else whole_number("n_terms", n_terms, 1)
    horizon = None if horizon is None else positive_number("horizon", horizon, "give a time")
    r = reward_function(reward)
    if isinstance(trajectories, Tensor | np.ndarray | list | tuple):
        trajectories = Trajectories.from_arrays(trajectories, dt, times=times)
    if getattr(trajectories, "dim", None) != 1 or not hasattr(trajectories, "offsets"):
        raise InputError(
            f"trajectories must be one-dimensional Trajectories, found a {type(trajectories).__name__} of dim "
            f"{getattr(trajectories, 'dim', None)}; choose one coordinate."
        )
    found: list[EmpiricalValues] = []
    longest, wanted, offset, exactly = 0.0, 0.0, 0, False
    typical: list[np.ndarray] = []
    limit = trajectories.max_dt if max_gap is None else max_gap
    for x, t, end in _segments(trajectories, limit, gaps):
        steps = np.diff(t)
        if len(steps) == 0:
            offset += len(x)
            continue
        plain = steps[~is_gap(steps, limit)] if gaps == "hold" else steps
        evenly = bool(len(plain)) and bool(np.ptp(plain) <= 1e-6 * abs(np.median(plain)))
        if n_terms is not None and not evenly:
            raise InputError(
                "observations must be evenly spaced for n_terms, found uneven steps; give horizon as a time instead, "
                "or max_dt where longer steps are gaps."
            )
        evenly = evenly and len(plain) == len(steps)
        wanted = horizon or ((n_terms - 1) * float(np.median(steps)) if n_terms is not None else math.log(1e12) / beta)
        exactly = (not evenly) if exact is None else exact
        values, complete = discounted_sum(r(torch.from_numpy(x)).numpy(), t, beta, wanted, exact=exactly, linear=linear)
        if not math.isnan(end):
            held = exactly or linear
            values, complete = _with_end(values, complete, float(r(torch.from_numpy(x[-1:]))), t, beta, end, held)
        typical.append(steps)
        keep = np.full_like(complete, True) if partial else complete
        where = torch.from_numpy(np.flatnonzero(keep))
        found.append(EmpiricalValues(torch.from_numpy(x)[where], torch.from_numpy(values)[where], where + offset))
        longest, offset = max(longest, float(t[-1] - t[0])), offset + len(x)
    if not found or sum(len(part.x) for part in found) == 0:
        raise TooShort(
            f"a trajectory{'' if limit is None or gaps != 'end' else ' without a gap'} must last longer than the "
            f"horizon {wanted:g}, found {longest:g} at most; give a shorter horizon (or n_terms), partial=True, or "
            "gaps hold or skip where gaps cut it short."
        )
    if not linear:
        _doubt_long_steps(beta * float(np.median(np.concatenate(typical))), held=exactly)
    return EmpiricalValues(*(torch.cat(columns) for columns in zip(*found)))


def _with_end(
    values: np.ndarray, complete: np.ndarray, r: float, t: np.ndarray, beta: float, end: float, exact: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Sums up to the end of an episode, where the value `end` of its last state takes the place of further rewards.

    Sums whose horizon lies within the data stay as they are; the last state, whose reward is r, is no start.
    """
    step = float(t[-1] - t[-2])
    held = (-math.expm1(-beta * step) / beta if exact else step) * r
    ended = values + np.exp(-beta * (t[-1] - t)) * (end - held)
    reaches = np.full_like(complete, True)
    reaches[-1] = False
    return np.where(complete, values, ended), reaches


def _doubt_long_steps(z: float, *, held: bool) -> None:
    """Warn when a typical step, beta dt = z, is too long for a sum that takes the reward from its beginning.

    The size is exact in two cases: a constant reward in the paper's sum, and, as the held sum has no error there, one
    whose expectation decays at the rate beta. Both begin with z / 2.
    """
    if z <= _LONG_STEP:
        return
    if held:
        size = f"a reward that decorrelates at the rate beta becomes {math.tanh(z / 2):.0%} too large"
    else:
        size = f"a constant reward becomes {z / -math.expm1(-z) - 1:.0%} too large, a changing one more"
    warnings.warn(
        f"steps must be short against 1 / beta for the discounted sums, found beta * dt = {z:.2g}: the reward of a "
        f"whole step is taken from its beginning, and {size} (about beta dt / 2); let the reward be linear between the "
        "observations (linear=True), or use a smaller beta or shorter steps.",
        LevytorchWarning,
        stacklevel=3,
    )


def _segments(
    trajectories: Trajectories, max_gap: float | None, gaps: str
) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    """(positions, times, terminal value) of every stretch that sums run along: up to the next gap, or of a whole
    trajectory. The terminal value is NaN where the stretch does not end with an episode.
    """
    dt, times = trajectories.dt or 0.0, trajectories.times
    for start, stop in zip(trajectories.offsets[:-1], trajectories.offsets[1:]):
        x = np.asarray(trajectories.x[start:stop])
        t = dt * np.arange(len(x)) if times is None else times[start:stop]
        across = is_gap(np.diff(t), max_gap)
        if gaps == "skip" and bool(across.any()) and not bool(across.all()):
            usual = float(np.median(np.diff(t)[~across]))
            t = t[0] + np.concatenate([[0.0], np.cumsum(np.where(across, usual, np.diff(t)))])
        cuts = np.flatnonzero(across) + 1 if gaps == "end" else np.empty(0, dtype=np.int64)
        last = np.nan if trajectories.terminal is None else float(trajectories.terminal[stop - 1])
        ends = [np.nan] * len(cuts) + [last]
        yield from zip(np.split(x, cuts), np.split(t, cuts), ends)


def reference_curve(values: EmpiricalValues, basis: FourierBasis) -> FourierSeries:
    """The paper's reference: least-squares Fourier approximation to all empirical values."""
    return fit_fourier(values.x, values.V, basis)


def crl_baseline(values: EmpiricalValues, basis: FourierBasis, observed: Tensor | None = None) -> FourierSeries:
    """ "CRL", the model-free baseline: the same fit to the values of the `observed` observations (their numbers in
    `values.number`) only.
    """
    if observed is not None:
        keep = torch.isin(values.number, torch.as_tensor(observed))
        if not bool(keep.any()):
            raise InputError(
                "some of the observed transitions must have an empirical value, found none; choose others or a "
                "shorter horizon."
            )
        values = EmpiricalValues(*(column[keep] for column in values))
    return fit_fourier(values.x, values.V, basis)


def trivial_baseline(reward: Callable[[Tensor], Any], beta: float) -> Callable[[Any], Tensor]:
    """r(x) / beta: the value of a state that never moves. A model that does worse has learned noise."""
    r = reward_function(reward)
    return lambda x: r(torch.as_tensor(x, dtype=torch.float64)) / beta
