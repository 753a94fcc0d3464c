"""Where the law is asked for: all of it, or |dx - mu| below a threshold, or two strata, as the fit treated the tails.

none                 the whole law
tcf                  |dx - mu| < CT: an unknown share of what lies beyond is lost
conditional, TRT     |dx - mu| < TRT
conditional, strata  |dx - mu| < CT, and CT < |dx - mu| < TRT, each on its own
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.data.pools import threshold_from
from levytorch.data.thresholds import Threshold, threshold_at
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.training.recovery import Recovery


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
