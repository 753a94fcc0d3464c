"""Where to start, from the data's scale: drift from the median, D_o from the center, D_f from the tail mass.

A constant start far from the data's scale gets stuck: every score is then nearly flat. The start also fixes the
internal units: the length is the width of one step, the time one sampling interval. An alpha that is learned is judged
by steps that have been brought to one scale (`Groups`), and linear heads then start as smooth curves through what
each group of states says about D_o and D_f.

Steps pooled over states with a narrow and with a wide law look like steps of one law with heavier shoulders: of a large
alpha, and without a Brownian part. Divided by the median deviation of their neighbours in state they have one scale
again, and what still differs, the rate of far jumps, is a factor of the tail alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.special import chdtri
from torch import Tensor

from levytorch.coefficients.fourier import LinearHead
from levytorch.coefficients.head import Head, Units
from levytorch.coefficients.links import AlphaSpec, TemperingSpec
from levytorch.errors import InputError
from levytorch.law import log_density
from levytorch.law.tails import radial_tail
from levytorch.spaces.states import beside, columns_of, dim_of, lengths_of

Cell = tuple[float, float | None]  # origin and period of a coordinate; no period: a line
_SIDES = {1: 12, 2: 4, 3: 2}  # groups per coordinate at most
_LEAST = 200  # pairs of a group, so that its median is right to a tenth
_SAMPLE = 200_000  # quantiles of that many pairs are far more precise than a start needs to be
_ALPHAS = (0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.93)
_RATES = (0.03, 0.1, 0.3, 1.0, 3.0)  # candidates of a learned tempering, per distance at which a step counts as a jump
_RATES_OF_LARGEST = (0.5, 3.0)  # and per largest step: without tempering it has hardly a say beyond that
_LARGEST = 200  # steps that candidates of a learned tempering are tried on beside others
_LEAST_D_O = 0.1  # of what the width of a step would be by itself
_FAR = 6.0  # multiples of the median deviation (about four standard deviations) beyond which a step counts as a jump
_SHAPED, _ROUNDS, _ROUND = 20_000, 30, 1e-3  # steps and iterations of their shape; what is added of a round one
_NO_JUMPS = 1e-12  # in a step, of the usual width: a start has none
_PRIOR = 20.0  # pairs of all states that count as a group's own, in its share of far steps
_RIDGE = 0.1  # times harmonic^4: curves through a dozen groups have a few waves at most


@dataclass(frozen=True)
class Groups:
    """Neighbours in state. index: (n,), -1 for the few that are in none; centers: (G,) or (G, d).

    places: (n,) states folded into the cell, in one dimension, and its period.
    """

    index: Tensor
    centers: Tensor
    places: Tensor | None = None
    period: float | None = None

    def __len__(self) -> int:
        return len(self.centers)

    def levels(self, deviation: Tensor) -> Tensor:
        """Median deviation of each group in that of all, (G,); 1 where half of a group does not move at all."""
        whole = float(deviation.median())
        own = torch.stack([deviation[self.index == g].median() for g in range(len(self))])
        return torch.where((own > 0) & (whole > 0), own / (whole or 1.0), 1.0)

    def spread(self, levels: Tensor) -> Tensor:
        """A level per pair, (n,): on a line exponentials from center to center, else that of its group, 1 in none."""
        if self.places is None:
            return torch.cat([levels, torch.ones(1, dtype=levels.dtype)])[self.index]
        x, y = self.centers, levels.log()
        if self.period is not None:
            x = torch.cat([x[-1:] - self.period, x, x[:1] + self.period])
            y = torch.cat([y[-1:], y, y[:1]])
        right = torch.searchsorted(x, self.places).clamp(1, len(x) - 1)
        share = (self.places - x[right - 1]) / (x[right] - x[right - 1])
        return torch.lerp(y[right - 1], y[right], share).exp()


def group_states(x: Tensor, cells: Sequence[Cell]) -> Groups | None:
    """States (n,) or (n, d) between quantiles of each coordinate, folded into its cell; None for too few of them."""
    dim = dim_of(x)
    side = min(_SIDES[dim], int((len(x) / _LEAST) ** (1 / dim)))
    if side < 2:
        return None
    folded = [
        column if period is None else origin + torch.remainder(column - origin, period)
        for column, (origin, period) in zip(columns_of(x), cells)
    ]
    code = torch.zeros(len(x), dtype=torch.int64)
    levels = torch.linspace(0, 1, side + 1, dtype=torch.float64)[1:-1]
    for column in folded:
        code = code * side + torch.bucketize(column, torch.quantile(column, levels), right=True)
    counts = torch.bincount(code, minlength=side**dim)
    kept = torch.nonzero(counts >= _LEAST // 2).reshape(-1)
    if len(kept) < 2:
        return None
    number = torch.full((side**dim,), -1, dtype=torch.int64)
    number[kept] = torch.arange(len(kept))
    means = [torch.bincount(code, column, minlength=side**dim)[kept] / counts[kept] for column in folded]
    if dim > 1:
        return Groups(number[code], torch.stack(means, dim=1))
    return Groups(number[code], means[0], folded[0], cells[0][1])


@dataclass(frozen=True)
class Profile:
    """D_o and D_f of groups of states, (G,) each, in physical units; x: their centers."""

    x: Tensor
    D_o: Tensor
    D_f: Tensor


@dataclass(frozen=True)
class Guess:
    """Constant coefficients in physical units, and the units in which they are of order one."""

    b: float | list[float]
    D_o: float
    D_f: float
    alpha: float
    units: Units
    tempering: float = 0.0
    profile: Profile | None = None
    shape: Tensor | None = None  # (d, d) of trace d: D_o is this times the number, where it is a matrix

    def ordinary(self, D_o: float | Tensor) -> Any:
        """D_o as numbers (...), or as matrices (..., d, d) where there is a shape."""
        return D_o if self.shape is None else torch.as_tensor(D_o, dtype=torch.float64)[..., None, None] * self.shape

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Guess:
        """From `dataclasses.asdict` of a guess."""
        profile = None if values["profile"] is None else Profile(**values["profile"])
        return cls(**{**values, "units": Units(**values["units"]), "profile": profile})

    def apply(self, head: Head) -> None:
        """Set a head to these constants, a linear one to curves through the profile."""
        alpha = self.alpha if head.learns_alpha else None
        constants = (self.b, self.ordinary(self.D_o), self.D_f, alpha)
        if head.tempering_spec.learned:
            head.set_constants(*constants, self.tempering)
        else:
            head.set_constants(*constants)
        if self.profile is not None and isinstance(head, LinearHead) and not head.is_constant:
            self._bend(head, self.profile)

    @torch.no_grad()
    def _bend(self, head: LinearHead, profile: Profile) -> None:
        alpha, layout = torch.tensor(self.alpha, dtype=torch.float64), head.layout
        ordinary = head.noise.start(self.ordinary(profile.D_o), head.dim) / head.unit("D_o", alpha)
        values = [*enumerate(ordinary, layout.row("D_o")), (layout.row("D_f"), profile.D_f / head.unit("D_f", alpha))]
        for row, value in values:
            basis = head.bases[row]
            if basis.size == 0:
                continue
            functions = basis.rows(profile.x)
            stiff = torch.diag(_RIDGE * basis.harmonic_numbers() ** 4 + 1e-6)
            theta = torch.linalg.solve(functions @ functions.T + stiff, functions @ head.links[row].inverse(value))
            head.theta[head.starts[row] : head.starts[row + 1]] = theta


def thinned(values: Tensor) -> Tensor:
    """About as many pairs as a start needs, evenly over the data."""
    return values[:: max(1, values.shape[0] // _SAMPLE)]


def initial_guess(
    dx: Tensor,
    dt: Tensor,
    mu: float | Tensor,
    alpha: AlphaSpec,
    tempering: TemperingSpec | None = None,
    *,
    uniform_dt: bool = True,
    known: Mapping[str, float] | None = None,
    groups: Groups | None = None,
    anisotropic: bool = False,
) -> Guess:
    """Constants that match the median deviation and the mass far out; learned alpha and tempering by likelihood.

    known: D_o or D_f where it is a given constant; the other one then matches the median deviation. groups: of the
    states of `thinned` pairs, for a learned alpha and coefficients that depend on the state. anisotropic: D_o will be a
    matrix, whose shape is that of the steps; all else is judged by steps that have been brought to the same width in
    all directions, because an ellipse that is taken for a circle looks like a law with heavy shoulders.
    """
    tempering, known = tempering or TemperingSpec(), known or {}
    dx, dt = thinned(dx).to(torch.float64), thinned(dt.expand(dx.shape[0])).to(torch.float64)
    dt_ref = float(dt.median())
    dim = dim_of(dx)
    drift = mu / dt_ref if uniform_dt else mu
    centered = dx - drift * beside(dt, dx)
    shape = None
    if anisotropic:
        shape = shape_of(centered)
        values, vectors = torch.linalg.eigh(shape)
        centered = centered @ (vectors * values.rsqrt()) @ vectors.T
    # steps over other intervals are brought to the reference one by the Gaussian's scaling; good enough for a start
    deviation = lengths_of(centered) * (dt_ref / dt).sqrt()
    width = _central_width(deviation)
    levels = None
    if groups is not None:
        levels = groups.levels(deviation)
        level = groups.spread(levels)
        centered, deviation = centered / beside(level, centered), deviation / level
    far = _FAR * width
    mass = max(float((deviation > far).double().mean()), 0.5 / deviation.shape[0])
    rates = [tempering.value]
    if tempering.learned:
        rates = [r / far for r in _RATES] + [r / float(deviation.max()) for r in _RATES_OF_LARGEST]
    candidates = [(a, lam) for a in (_ALPHAS if alpha.learned else [alpha.value]) for lam in rates]
    probe, weight = centered[:: max(1, dx.shape[0] // 4000)], None
    if tempering.learned:  # which the largest steps have most to say about
        most = torch.topk(deviation, min(_LARGEST, len(deviation))).indices
        weight = torch.cat([torch.full((len(probe),), len(dx) / len(probe)), torch.ones(len(most))])
        probe = torch.cat([probe, centered[most]])
    start = drift.tolist() if isinstance(drift, Tensor) else drift
    found, highest = None, -math.inf
    for a, lam in candidates:
        D_o, D_f = _match(width, far, mass, a, dt_ref, dim, lam, known)
        if tempering.learned or groups is not None:
            D_o = _at_least(D_o, width, dt_ref, dim, known)
        guess = Guess(start, D_o, D_f, a, Units(width / _median(dim), dt_ref), lam, shape=shape)
        if len(candidates) == 1:
            return guess
        log_p = log_density(probe, 0.0, D_o, D_f, a, dt_ref, dim=dim, tempering=lam)
        fit = float(log_p.mean() if weight is None else weight.to(log_p.dtype) @ log_p)
        if found is None or fit > highest:
            found, highest = guess, fit
    assert found is not None
    if groups is None or levels is None:
        return found
    profile = _profile(found, groups, levels * width, deviation > far, mass, dt_ref, dim, known)
    return replace(found, profile=profile)


def shape_of(centered: Tensor) -> Tensor:
    """(d, d) of trace d: Tyler's estimate of the shape of steps (n, d), which their lengths have no part in."""
    y = centered[:: max(1, len(centered) // _SHAPED)]
    y = y[(y * y).sum(1) > 0]
    d = y.shape[1]
    shape = torch.eye(d, dtype=torch.float64)
    for _ in range(_ROUNDS if len(y) > 4 * d else 0):
        square = (y * torch.linalg.solve(shape, y.T).T).sum(1)
        shape = (y.T / square) @ y
        shape = shape * (d / shape.trace()) + _ROUND * torch.eye(d, dtype=torch.float64)
    return shape * (d / shape.trace())


def _median(dim: int) -> float:
    """That of the norm of d standard normal variables, as precisely as a start has to be."""
    return round(float(chdtri(dim, 0.5)) ** 0.5, 4)


def _profile(
    found: Guess,
    groups: Groups,
    widths: Tensor,
    jumped: Tensor,
    mass: float,
    dt: float,
    dim: int,
    known: Mapping[str, float],
) -> Profile:
    """D_o and D_f of every group, at one alpha; where a group has few far steps, all of them have a say."""
    rows = []
    for g, width in enumerate(widths.tolist()):
        own = jumped[groups.index == g]
        beyond = (float(own.sum()) + _PRIOR * mass) / (len(own) + _PRIOR)
        D_o, D_f = _match(width, _FAR * width, beyond, found.alpha, dt, dim, found.tempering, known)
        rows.append((_at_least(D_o, width, dt, dim, known), D_f))
    return Profile(groups.centers, *torch.tensor(rows, dtype=torch.float64).T)


def _at_least(D_o: float, width: float, dt: float, dim: int, known: Mapping[str, float]) -> float:
    """A D_o that is not next to nothing, from where it would take many passes to return."""
    return D_o if "D_o" in known else max(D_o, _LEAST_D_O * (width / _median(dim)) ** 2 / (2 * dt))


def _central_width(deviation: Tensor) -> float:
    """Median of |dx - mu|, or the first higher quantile that is not zero (prices that often do not move)."""
    for q in (0.5, 0.75, 0.9, 0.99, 1.0):
        width = float(torch.quantile(deviation, q))
        if width > 0:
            return width
    raise InputError("the displacements must vary, found all dx equal; check that the right column was read.")


def _match(
    width: float,
    far: float,
    mass: float,
    alpha: float,
    dt: float,
    dim: int,
    lam: float,
    known: Mapping[str, float],
) -> tuple[float, float]:
    """Solve P(|y| > width) = 1/2, P(|y| > far) = mass for (D_o, D_f), each in turn on a logarithmic grid."""
    grid = torch.logspace(-7, 2, 73, dtype=torch.float64)
    D_o = known.get("D_o", (width / _median(dim)) ** 2 / (2 * dt))
    D_f = known.get("D_f", 0.0)
    jumps, spreads = grid * far ** (2 * alpha) / dt, grid[:61] * 10 * width**2 / dt
    # a known D_o leaves the center to the jumps
    place, target = (width, 0.5) if "D_o" in known else (far, mass)
    for _ in range(1 if known else 4):
        if "D_f" not in known:
            beyond = _beyond(place, D_o * dt, jumps * dt, alpha, dim, lam)
            D_f = _solve(jumps, beyond, target)
        if "D_o" not in known:
            # without jumps: so few that no step shows one
            beyond = _beyond(width, spreads * dt, max(D_f * dt, _NO_JUMPS * width ** (2 * alpha)), alpha, dim, lam)
            D_o = _solve(spreads, beyond, 0.5)
    return D_o, D_f


def _beyond(u: float, A: float | Tensor, B: float | Tensor, alpha: float, dim: int, lam: float) -> Tensor:
    """P(|y| > u) of a step without drift."""
    given = [torch.as_tensor(v, dtype=torch.float64) for v in (u, A, B, alpha, lam)]
    return radial_tail(*given[:4], dim=dim, lam=given[4] if lam else None)


def _solve(values: Tensor, masses: Tensor, target: float) -> float:
    """The value at which an increasing tail mass reaches the target (the nearest end when it never does)."""
    above = torch.nonzero(masses >= target)
    if above.numel() == 0:
        return float(values[-1])
    i = int(above[0])
    if i == 0:
        return float(values[0])
    m0, m1 = float(masses[i - 1].clamp(min=1e-300)), float(masses[i])
    share = (math.log(target) - math.log(m0)) / (math.log(m1) - math.log(m0))
    return math.exp(math.log(values[i - 1]) * (1 - share) + math.log(values[i]) * share)


@torch.no_grad()
def randomise(head: Head, generator: torch.Generator) -> None:
    """The paper's random start: constants of order one with D_o, D_f > 0, harmonics too small to change a sign.

    Of order one in the units the head works in, which are the paper's with units=none.
    """
    *drift, o, f = torch.rand(head.dim + 2, generator=generator, dtype=torch.float64).tolist()
    units = head.units
    unit_f = float(units.D_f(torch.tensor(head.alpha_spec.value, dtype=torch.float64)))
    b = [(4 * v - 2) * units.b for v in drift]
    D_o, D_f = (1 + 4 * o) * units.D_o, (1 + 4 * f) * unit_f
    head.set_constants(b[0] if head.dim == 1 else b, D_o, D_f)
    for p in head.parameters():
        if p.numel() > 1:
            p.add_(0.1 * (2 * torch.rand(p.shape, generator=generator, dtype=torch.float64) - 1) / p.numel() ** 0.5)
