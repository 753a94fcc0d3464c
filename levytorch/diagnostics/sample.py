"""The pairs that are looked at, and where the law is asked for them.

Pairs: all, or blocks of neighbours drawn at random, so that the cost stays bounded. The region follows how the fit
treated the tails:

none                 the whole law
tcf                  |dx - mu| < CT: an unknown share of what lies beyond is lost
conditional, TRT     |dx - mu| < TRT
conditional, strata  |dx - mu| < CT, and CT < |dx - mu| < TRT, each on its own
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.data import Transitions
from levytorch.data.thresholds import Threshold, threshold_at, threshold_from
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.training.recovery import Recovery

BLOCK = 32  # neighbours drawn together: what follows what stays visible


@dataclass(frozen=True)
class Region:
    """`inner`: the core is |dx - mu| < inner (None: everything); `outer`: with it, a second stratum up to outer.

    `removed`: pairs at least that far away took no part in the fit.
    """

    inner: Threshold | None = None
    outer: Threshold | None = None
    removed: Threshold | None = None

    @classmethod
    def of(cls, recovery: Recovery) -> Region:
        """The region of a fit, from what its metrics say."""
        metrics = recovery.metrics
        method, TRT = metrics.get("tail_method", "none"), metrics.get("TRT")
        CT: Threshold | None = metrics.get("CT")
        if CT is None and metrics.get("CT_of_dt"):
            CT = threshold_from(metrics["CT_of_dt"])
        if method == "tcf" and CT is not None:
            return cls(inner=CT, removed=TRT)
        if method == "conditional":
            strata = CT is not None and TRT is not None and metrics.get("region") != "TRT"
            return cls(inner=CT, outer=TRT, removed=TRT) if strata else cls(inner=TRT or CT, removed=TRT)
        return cls(removed=TRT)

    @property
    def whole(self) -> bool:
        return self.inner is None

    def core(self) -> Region:
        """The core alone."""
        return replace(self, outer=None)

    def labels(self, deviation: Tensor, dt: Tensor) -> Tensor:
        """0: core, 1: second stratum, -1: outside; (n,) int64."""
        label = torch.zeros(deviation.shape[0], dtype=torch.int64)
        if self.removed is not None:
            label[deviation >= threshold_at(self.removed, dt)] = -1
        if self.inner is not None:
            beyond = deviation > threshold_at(self.inner, dt)
            label[beyond & (label == 0)] = -1 if self.outer is None else 1
        if self.outer is not None:
            label[deviation >= threshold_at(self.outer, dt)] = -1
        return label

    def thresholds(self, dt: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """inner and outer at these dt, of dt's shape."""
        inner, outer = (
            None if t is None else torch.as_tensor(threshold_at(t, dt), dtype=torch.float64).expand(dt.shape)
            for t in (self.inner, self.outer)
        )
        return inner, outer

    def log_kept(self, law: FrozenLaw, c: Coefficients, center: Tensor, dt: Tensor) -> list[Tensor]:
        """log of the mass of each stratum; differentiable in the coefficients."""
        inner, outer = self.thresholds(dt)
        if inner is None:
            return []
        beyond = law.exceedance(c, inner, center, dt)
        kept = [torch.log1p(-beyond.clamp(max=1 - 1e-15))]
        if outer is not None:
            kept.append(torch.log((beyond - law.exceedance(c, outer, center, dt)).clamp(min=1e-300)))
        return kept


@dataclass(frozen=True)
class Sample:
    """Pairs inside a region. `previous`: index here of the pair that ended where this one begins, -1 if there is none.

    `dt` is (n,); `share`: how much of the data was looked at; `total`: pairs of the data inside the region (an
    estimate when not all were looked at).
    """

    x: Tensor
    dx: Tensor
    dt: Tensor
    center: Tensor
    label: Tensor
    previous: Tensor
    uniform_dt: bool
    share: float
    total: int

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def dim(self) -> int:
        return 1 if self.x.dim() == 1 else self.x.shape[1]

    @property
    def deviation(self) -> Tensor:
        apart = self.dx - self.center
        return apart.abs() if self.dim == 1 else apart.norm(dim=1)

    @property
    def step_dt(self) -> Tensor:
        """0-d when all pairs share it: what laws and bins like best."""
        return self.dt[0] if self.uniform_dt else self.dt


def subsample(transitions: Transitions, most: int, seed: int, block: int = BLOCK) -> Transitions:
    """At most about `most` pairs, in blocks of neighbours, in the order of the data."""
    n = len(transitions)
    if n <= most:
        return transitions
    blocks = np.random.default_rng(seed).permutation(n // block)[: max(1, most // block)]
    rows = (np.sort(blocks)[:, None] * block + np.arange(block)).reshape(-1)
    return transitions[torch.from_numpy(rows)]


def follows(transitions: Transitions) -> Tensor:
    """(n,) bool: the pair begins where the one in the row before ended, in the same trajectory."""
    x, dx, ids = transitions.x, transitions.dx, transitions.trajectory
    end = (x + dx)[:-1]
    slack = 1e-9 * (x[:-1].abs() + x[1:].abs()) + 1e-12 * dx[:-1].abs()
    met = (end - x[1:]).abs() <= slack
    met = met if met.dim() == 1 else met.all(dim=1)
    return torch.cat([torch.zeros(1, dtype=torch.bool), met & (ids[1:] == ids[:-1])])


def make_sample(transitions: Transitions, region: Region, most: int, seed: int) -> Sample:
    """The chosen pairs that lie in the region."""
    chosen = subsample(transitions, most, seed)
    label = region.labels(chosen.deviation, chosen.dt)
    inside = label >= 0
    place = torch.where(inside, torch.cumsum(inside, 0) - 1, -1)
    previous = torch.full_like(place, -1)
    previous[1:] = torch.where(follows(chosen)[1:], place[:-1], -1)
    dt = chosen.dt[inside]
    scale = torch.ones_like(dt) if chosen.uniform_dt else dt
    center = chosen.mu * (scale if chosen.dim == 1 else scale.unsqueeze(-1))
    share = len(chosen) / len(transitions)
    return Sample(
        chosen.x[inside],
        chosen.dx[inside],
        dt,
        center,
        label[inside],
        previous[inside],
        chosen.uniform_dt,
        share,
        len(dt) if share == 1.0 else round(len(dt) / share),
    )
