"""Memory of the size of past steps: exponentially weighted means m, which a clock of the coefficients may depend on.

    m after a step  =  w m + (1 - w) s,    w = 2^(-dt / h),    s = min(|dx - mu| / q, CAP)

h is the half-life. q is the mean size of a step without the largest ones, one number for all states: where D_o and D_f
vary with x, a size relative to that of other steps from x said far less about the next step. It is estimated once and
then fixed, so that m does not depend on the parameters of a fit. At the start of a trajectory, and after a gap, m
begins at its mean. The first pairs after that are left out, the same ones for every half-life longer than a few steps,
so that their likelihoods can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import positive_number, real_array, real_number
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError
from levytorch.law.compiled import cached_njit
from levytorch.spaces.states import columns_of, lengths_of

CAP = 16.0  # of a size, in mean ones: beyond it a larger step says nothing more about the next one
FILLED, _MOST_LEFT_OUT = 3.0, 40.0  # half-lives after which pairs are no longer left out, and usual steps at most
_LEAST = 1e-3  # of m, whose logarithm is taken
_LARGEST = 0.99  # quantile beyond which steps do not count for q
_LEVELS = 256  # rows of m that are kept


@dataclass(frozen=True)
class Memory:
    """The rule by which m is computed from pairs, in the units of the data.

    half_lives: one or several; dt: the usual time between observations; mu: the center of dx over it; size: q; start:
    the mean of s; wait: the time for which pairs are left out; period: of the state, or None; levels: some rows of m,
    one number per half-life, evenly spaced over the pairs that were fitted.
    """

    half_lives: tuple[float, ...]
    dt: float
    mu: tuple[float, ...]
    size: float
    start: float
    wait: float
    period: float | None = None
    levels: tuple[tuple[float, ...], ...] = ()

    @classmethod
    def of(cls, pairs: Transitions, half_lives: Sequence[float], period: Any = None) -> Memory:
        """The rule that pairs suggest."""
        dt = pairs.median_dt
        mu = (pairs.mu * (1.0 if pairs.uniform_dt else dt)).reshape(-1)
        cell = float(period) if pairs.dim == 1 and isinstance(period, int | float) else None
        wait = min(FILLED * max(half_lives), _MOST_LEFT_OUT * dt)
        plain = cls(tuple(half_lives), dt, tuple(mu.tolist()), 1.0, 1.0, wait, cell)
        length = plain._lengths(pairs).numpy()
        if not (length > 0).any():
            raise InputError("steps must vary for a memory of their sizes, found all of them zero; leave memory out.")
        size = float(np.minimum(length, np.quantile(length, _LARGEST)).mean())
        scaled = replace(plain, size=size if size > 0 else float(length.mean()))
        return replace(scaled, start=float(scaled.step_sizes(pairs).mean()))

    def with_half_lives(self, half_lives: Sequence[float]) -> Memory:
        """The same rule with other half-lives; pairs are left out as before."""
        return replace(self, half_lives=tuple(half_lives))

    def with_levels(self, log_m: Tensor) -> Memory:
        """The same rule with some of the rows of m, whose logarithms these are, (n, number of half-lives)."""
        rows = torch.linspace(0, len(log_m) - 1, min(_LEVELS, len(log_m))).round().long()
        return replace(self, levels=tuple(map(tuple, log_m[rows].exp().tolist())))

    # -- sizes of steps -----------------------------------------------------------------------------------------------
    def _lengths(self, pairs: Transitions) -> Tensor:
        scale = (pairs.dt / self.dt) if not pairs.uniform_dt else torch.ones(1, dtype=torch.float64)
        mu = torch.tensor(self.mu, dtype=torch.float64)
        center = mu[0] * scale if pairs.dim == 1 else mu * scale.unsqueeze(-1)
        return lengths_of(pairs.dx - center) / scale.sqrt()

    def step_sizes(self, pairs: Transitions) -> Tensor:
        """s of every pair, (n,)."""
        return (self._lengths(pairs) / self.size).clamp(max=CAP)

    # -- the means ----------------------------------------------------------------------------------------------------
    def means(self, pairs: Transitions) -> tuple[Tensor, Tensor]:
        """m before every pair, (n, number of half-lives), and whether the memory had filled by then, (n,) bool."""
        periods = None if self.period is None else torch.tensor([self.period], dtype=torch.float64)
        linked = follows(pairs.x, pairs.dx, pairs.trajectory, periods)
        gap = torch.cat([torch.zeros(1, dtype=torch.bool), pairs.dt[:-1] > max(self.wait, 1.5 * self.dt)])
        out = torch.empty((len(pairs), len(self.half_lives)), dtype=torch.float64)
        since = np.empty(len(pairs))
        arrays = ((linked & ~gap).numpy(), self.step_sizes(pairs).numpy(), pairs.dt.numpy())
        _means(*arrays, np.array(self.half_lives), self.start, out.numpy(), since)
        return out, torch.from_numpy(since >= self.wait * (1 - 1e-9))

    def inputs(self, pairs: Transitions) -> tuple[Tensor, Tensor]:
        """log m and whether the memory had filled, as `means`."""
        m, filled = self.means(pairs)
        return self.log(m), filled

    @staticmethod
    def log(m: Tensor) -> Tensor:
        """log m, which f is a function of."""
        return m.clamp(min=_LEAST).log()

    def after(self, m: Tensor, dx: Tensor, dt: Tensor | float) -> Tensor:
        """m after steps dx, (n, k)."""
        mu = torch.tensor(self.mu, dtype=torch.float64)
        length = lengths_of(dx - (mu if dx.dim() > 1 else mu[0]))
        s = (length / self.size).clamp(max=CAP).unsqueeze(1)
        h = torch.tensor(self.half_lives, dtype=torch.float64)
        w = torch.exp2(-torch.as_tensor(dt, dtype=torch.float64).reshape(-1, 1) / h)
        return w * m + (1 - w) * s

    # -- files --------------------------------------------------------------------------------------------------------
    def plain(self) -> dict[str, Any]:
        """As numbers and lists, for a file."""
        lists: dict[str, Any] = {name: list(getattr(self, name)) for name in ("half_lives", "mu")}
        numbers = {name: getattr(self, name) for name in ("dt", "size", "start", "wait", "period")}
        return {**lists, **numbers, "levels": [list(row) for row in self.levels]}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Memory:
        """The inverse of `plain`; refuses what does not go together."""
        lists = {name: real_array(name, plain[name]) for name in ("half_lives", "mu")}
        sound = all(v.ndim == 1 and len(v) and bool(np.isfinite(v).all()) for v in lists.values())
        k, levels = len(lists["half_lives"]), plain["levels"]
        rows = real_array("levels", levels) if len(levels) else np.ones((0, k))
        sound = sound and bool((lists["half_lives"] > 0).all()) and rows.shape == (len(levels), k)
        if not sound or not bool(((rows > 0) & np.isfinite(rows)).all()):
            raise InputError("the parts of a memory must belong together, found parts of different fits; fit again.")
        numbers = {name: positive_number(name, plain[name], "fit again") for name in ("dt", "size", "start")}
        wait, period = real_number("wait", plain["wait"]), plain["period"]
        own = None if period is None else positive_number("period", period, "fit again")
        parts: dict[str, Any] = {name: tuple(values.tolist()) for name, values in lists.items()}
        return cls(**parts | numbers, wait=wait, period=own, levels=tuple(map(tuple, rows.tolist())))


@cached_njit(nogil=True)
def _means(linked, sizes, dt, half_lives, start, out, since):
    k = half_lives.size
    m = np.full(k, start)
    waited = 0.0
    for i in range(sizes.size):
        if not linked[i]:
            m[:] = start
            waited = 0.0
        since[i] = waited
        for j in range(k):
            out[i, j] = m[j]
            w = 2.0 ** (-dt[i] / half_lives[j])
            m[j] = w * m[j] + (1.0 - w) * sizes[i]
        waited += dt[i]


# -- pairs that follow each other --------------------------------------------------------------------------------------
_CLOSE = 1e-6  # of a period: angles that are the same


def follows(x: Tensor, dx: Tensor, trajectory: Tensor, periods: Tensor | None = None) -> Tensor:
    """(n,) bool. periods: (d,) of the state; on a circle a pair may begin whole periods from where the last one ended,
    so that wrapped and unwrapped angles are the same data.
    """
    gap = (x + dx)[:-1] - x[1:]
    slack = 1e-9 * (x[:-1].abs() + x[1:].abs()) + 1e-12 * dx[:-1].abs()
    met = gap.abs() <= slack
    if periods is not None:
        around = gap - torch.where(periods.isinf(), 0.0, periods * torch.round(gap / periods))
        met |= around.abs() <= torch.minimum(_CLOSE * periods + 1e-15 * dx[:-1].abs(), 1e-2 * periods)
    met = columns_of(met).all(0)
    return torch.cat([torch.zeros(1, dtype=torch.bool), met & (trajectory[1:] == trajectory[:-1])])
