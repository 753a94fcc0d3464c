"""Memory of the size of past steps: exponentially weighted means m, which a clock of the coefficients may depend on.

    m after a step  =  w m + (1 - w) s,    w = 2^(-dt / h),    s = min(|dx - mu| / q(x), CAP)

h is the half-life. q(x) is the mean size of a step from x, without its largest ones; it is estimated once and then
fixed, so that m does not depend on the parameters of a fit. At the start of a trajectory, and after a gap, m begins at
its mean, and pairs are left out until the memory has filled.
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

CAP = 8.0  # of a size, in mean ones: beyond it a larger step says nothing more about the next one
FILLED = 3.0  # half-lives after which a memory has filled
_LEAST = 1e-3  # of m, whose logarithm is taken
_PARTS, _IN_A_PART = 24, 300  # of the states, for q(x), and pairs in each at least
_LARGEST = 0.99  # quantile beyond which steps do not count for q(x)


@dataclass(frozen=True)
class Memory:
    """The rule by which m is computed from pairs, in the units of the data.

    half_lives: one or several; dt: the usual time between observations; mu: the center of dx over it; knots, sizes:
    q(x) at some states, a straight line between them (one number in several dimensions); start: the mean of s; wait:
    the time for which pairs are left out; period: of the state, or None.
    """

    half_lives: tuple[float, ...]
    dt: float
    mu: tuple[float, ...]
    knots: tuple[float, ...]
    sizes: tuple[float, ...]
    start: float
    wait: float
    period: float | None = None

    @classmethod
    def of(
        cls, pairs: Transitions, half_lives: Sequence[float], wait: float, period: Any = None, constant: bool = False
    ) -> Memory:
        """The rule that pairs suggest; constant: whether q is one number, as for coefficients that are constants."""
        dt = pairs.median_dt
        mu = (pairs.mu * (1.0 if pairs.uniform_dt else dt)).reshape(-1)
        cell = float(period) if pairs.dim == 1 and isinstance(period, int | float) else None
        plain = cls(tuple(half_lives), dt, tuple(mu.tolist()), (0.0,), (1.0,), 1.0, wait, cell)
        length = plain._lengths(pairs).numpy()
        if not (length > 0).any():
            raise InputError("steps must vary for a memory of their sizes, found none that moves; leave memory out.")
        x = plain._place(pairs.x).numpy() if pairs.dim == 1 else np.zeros(len(pairs))
        parts = 1 if constant or pairs.dim > 1 else max(1, min(_PARTS, len(pairs) // _IN_A_PART))
        edges = np.unique(np.quantile(x, np.linspace(0, 1, parts + 1)[1:-1])) if parts > 1 else np.empty(0)
        which = np.searchsorted(edges, x)
        overall = float(np.minimum(length, np.quantile(length, _LARGEST)).mean())
        knots, sizes = [], []
        for part in np.unique(which):
            own = length[which == part]
            knots.append(float(np.median(x[which == part])))
            sizes.append(max(float(np.minimum(own, np.quantile(own, _LARGEST)).mean()), 0.01 * overall))
        scaled = replace(plain, knots=tuple(knots), sizes=tuple(sizes))
        return replace(scaled, start=float(scaled.step_sizes(pairs).mean()))

    def with_half_lives(self, half_lives: Sequence[float]) -> Memory:
        """The same rule with other half-lives; pairs are left out as before."""
        return replace(self, half_lives=tuple(half_lives))

    # -- sizes of steps -----------------------------------------------------------------------------------------------
    def _place(self, x: Tensor) -> Tensor:
        return x if self.period is None else torch.remainder(x, self.period)

    def _lengths(self, pairs: Transitions) -> Tensor:
        scale = (pairs.dt / self.dt) if not pairs.uniform_dt else torch.ones(1, dtype=torch.float64)
        mu = torch.tensor(self.mu, dtype=torch.float64)
        center = mu[0] * scale if pairs.dim == 1 else mu * scale.unsqueeze(-1)
        return lengths_of(pairs.dx - center) / scale.sqrt()

    def scale(self, x: Tensor) -> Tensor:
        """q at states (n,) or (n, d)."""
        if x.dim() > 1:
            return torch.full((len(x),), self.sizes[0], dtype=torch.float64)
        found = np.interp(self._place(x).numpy(), self.knots, self.sizes, period=self.period)
        return torch.from_numpy(found)

    def step_sizes(self, pairs: Transitions) -> Tensor:
        """s of every pair, (n,)."""
        return (self._lengths(pairs) / self.scale(pairs.x)).clamp(max=CAP)

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
        return m.clamp(min=_LEAST).log(), filled

    def after(self, m: Tensor, x: Tensor, dx: Tensor, dt: Tensor | float) -> Tensor:
        """m after steps dx from states x, (n, k)."""
        mu = torch.tensor(self.mu, dtype=torch.float64)
        length = lengths_of(dx - (mu if dx.dim() > 1 else mu[0]))
        s = (length / self.scale(x)).clamp(max=CAP).unsqueeze(1)
        h = torch.tensor(self.half_lives, dtype=torch.float64)
        w = torch.exp2(-torch.as_tensor(dt, dtype=torch.float64).reshape(-1, 1) / h)
        return w * m + (1 - w) * s

    # -- files --------------------------------------------------------------------------------------------------------
    def plain(self) -> dict[str, Any]:
        """As numbers and lists, for a file."""
        lists = {name: list(getattr(self, name)) for name in ("half_lives", "mu", "knots", "sizes")}
        return {**lists, "dt": self.dt, "start": self.start, "wait": self.wait, "period": self.period}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Memory:
        """The inverse of `plain`; refuses what does not go together."""
        lists = {name: real_array(name, plain[name]) for name in ("half_lives", "mu", "knots", "sizes")}
        sound = all(v.ndim == 1 and len(v) and bool(np.isfinite(v).all()) for v in lists.values())
        sound = sound and bool((lists["half_lives"] > 0).all()) and bool((lists["sizes"] > 0).all())
        sound = sound and len(lists["knots"]) == len(lists["sizes"]) and bool((np.diff(lists["knots"]) >= 0).all())
        if not sound:
            raise InputError("the parts of a memory must belong together, found parts of different fits; fit again.")
        numbers = {name: positive_number(name, plain[name], "fit again") for name in ("dt", "start")}
        wait, period = real_number("wait", plain["wait"]), plain["period"]
        own = None if period is None else positive_number("period", period, "fit again")
        parts: dict[str, Any] = {name: tuple(values.tolist()) for name, values in lists.items()}
        return cls(**parts | numbers, wait=wait, period=own)


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
        around = gap - periods * torch.round(gap / periods)
        met |= around.abs() <= torch.minimum(_CLOSE * periods + 1e-15 * dx[:-1].abs(), 1e-2 * periods)
    met = columns_of(met).all(0)
    return torch.cat([torch.zeros(1, dtype=torch.bool), met & (trajectory[1:] == trajectory[:-1])])
