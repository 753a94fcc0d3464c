"""The full-batch objective of a Fourier head under the exact law of a step.

Value and gradient are the exact law's. The curvature is that of the frozen law at the same parameters: it costs nothing
beside a propagator, and the secant pairs of Fisher scoring turn it into that of the exact law where the fit goes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from levytorch.data.batches import Batch
from levytorch.errors import NumericalError
from levytorch.likelihood.exact import ExactLaw, ScaledStep
from levytorch.likelihood.masses import TailMasses
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.sums import Sums, shared, where
from levytorch.likelihood.tail import tail_correction_factor


class AtOneHead(ExactLaw):
    """The exact law at one head: its tables are made once, with their graph, for all questions that are asked."""

    def __init__(self, law: ExactLaw) -> None:
        super().__init__(law.tolerance, law.rules)
        self.made: dict[float, ScaledStep] = {}

    def step(self, head: Any, dt: float) -> ScaledStep:
        if dt not in self.made:
            self.made[dt] = super().step(head, dt)
        return self.made[dt]


@dataclass
class ExactObjective(FullBatchObjective):
    """`law` is the frozen one, of the curvature; `exact` that of value and gradient; evaluations: how often."""

    exact: ExactLaw = field(default_factory=ExactLaw)
    evaluations: int = 0

    def evaluate(self) -> Evaluation:
        ev = super().evaluate()
        self.evaluations += 1
        head, law = self.head, AtOneHead(self.exact)
        masses = None if self.masses is None else replace(self.masses, law=law)
        with torch.enable_grad():
            total = self._log_p(law, self.batch.main)
            if self.method == "conditional":
                assert masses is not None
                total = total - self._log_kept(masses, ev)
            ev.main = _with(ev.main, total, self._slope(total))
            if self.method == "tcf":
                assert masses is not None
                if ev.tail is not None and self.batch.tail is not None:
                    beyond = self._log_p(law, self.batch.tail)
                    ev.tail = _with(ev.tail, beyond, self._slope(beyond))
                R = masses.R_theta_differentiable(head)
                ev.R_theta = float(R.detach())
                ev.tcf = tail_correction_factor(ev.R_theta, masses.R_sample)
                ev.tcf_gradient = self._slope(R) / (1 - masses.R_sample) * (ev.tcf > 0)
        return ev

    def value(self, ev: Evaluation, tcf: float | None = None, *, penalised: bool = True) -> float:
        tau = ev.tcf if tcf is None else tcf
        value = sum(float(w * s.log_p) for w, s in self._parts(ev, tau))
        if penalised and self.penalty is not None:
            value -= 0.5 * float((self.penalty.precision() * ev.theta**2).sum()) / self.n
        return value

    def gradient(self, ev: Evaluation, tcf: float | None = None) -> Tensor:
        tau = ev.tcf if tcf is None else tcf
        g = torch.zeros_like(ev.theta)
        for w, s in self._parts(ev, tau):
            g += w * s.gradient
        if self.penalty is not None:
            g -= self.penalty.precision() * ev.theta / self.n
        return g

    # -- private ------------------------------------------------------------------------------------------------------
    def _log_p(self, law: ExactLaw, batch: Batch) -> Tensor:
        log_p = law.log_prob(self.head, batch.x, batch.dx, shared(batch.dt))
        total = (batch.weight * log_p).sum()
        if not bool(torch.isfinite(total)):
            raise NumericalError(where(log_p.detach(), 0, batch.x, batch.dx))
        return total

    def _log_kept(self, masses: TailMasses, ev: Evaluation) -> Tensor:
        """What a conditional likelihood subtracts; `ev.kept` gets the exact masses, beside the frozen law's slopes."""
        core, middle = masses.log_kept(self.head)
        assert ev.kept is not None
        ev.kept = (core.detach(), middle.detach(), *ev.kept[2:])
        if self.region == "TRT" or ev.tail is None:
            return (masses.counts * core).sum()
        # a stratum without pairs has no say, whatever its mass
        beyond = masses.tail_counts
        return ((masses.counts - beyond) * core).sum() + torch.where(beyond > 0, beyond * middle, 0.0).sum()

    def _slope(self, value: Tensor) -> Tensor:
        return torch.autograd.grad(value, self.head.theta, retain_graph=True)[0]


def _with(sums: Sums, log_p: Tensor, gradient: Tensor) -> Sums:
    return replace(sums, log_p=log_p.detach(), gradient=gradient)
