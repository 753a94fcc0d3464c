"""The full-batch objective of a Fourier head under the exact law of a step.

Value and gradient are the exact law's. The curvature is its information at one point (`exact_information`), or the
frozen law's at the same parameters; secant pairs of Fisher scoring turn it into that of the exact law where the fit is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from levytorch.data.batches import Batch
from levytorch.errors import NumericalError
from levytorch.likelihood.exact import ExactLaw, ScaledStep
from levytorch.likelihood.exact_information import Information
from levytorch.likelihood.masses import TailMasses
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import symmetric_inverse
from levytorch.likelihood.sums import ScoreSums, shared, where
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
    """`law` is the frozen one; `exact` that of value and gradient; own: its information.

    slopes: False for values without gradients; evaluations: how often. apart: how the gradients of the two pools
    differ, and that of the TCF, at the first evaluation: what they make of the curvature hardly changes, so that
    later ones (unless `each` is set) take one gradient, of the mixture of the pools, instead of three.
    """

    exact: ExactLaw = field(default_factory=ExactLaw)
    own: Information | None = None
    slopes: bool = True
    each: bool = False
    evaluations: int = 0
    apart: tuple[Tensor, Tensor] | None = None

    def evaluate(self) -> Evaluation:
        ev = super().evaluate()
        self.evaluations += 1
        head, law = self.head, AtOneHead(self.exact)
        masses = None if self.masses is None else replace(self.masses, law=law)
        with torch.set_grad_enabled(self.slopes):
            total = self._log_p(law, self.batch.main)
            if self.method == "conditional":
                assert masses is not None
                total = total - self._log_kept(masses, ev)
            if self.method != "tcf":
                ev.main = _with(ev.main, total, self._slope(total))
                return ev
            assert masses is not None
            beyond = None
            if ev.tail is not None and self.batch.tail is not None:
                beyond = self._log_p(law, self.batch.tail)
            whole = beyond is None or self.apart is None or self.each
            with torch.set_grad_enabled(self.slopes and whole):
                R = masses.R_theta_differentiable(head)
            ev.R_theta = float(R.detach())
            ev.tcf = tail_correction_factor(ev.R_theta, masses.R_sample)
            self._gradients(ev, total, beyond, R, masses.R_sample)
        return ev

    def _gradients(self, ev: Evaluation, total: Tensor, beyond: Tensor | None, R: Tensor, R_sample: float) -> None:
        """Those of the pools and of the TCF, into the evaluation."""
        if beyond is None or ev.tail is None:
            ev.main = _with(ev.main, total, self._slope(total))
            ev.tcf_gradient = self._slope(R) / (1 - R_sample) * (ev.tcf > 0)
        elif self.apart is None or self.each:
            ev.main, ev.tail = _with(ev.main, total, self._slope(total)), _with(ev.tail, beyond, self._slope(beyond))
            slope = self._slope(R) / (1 - R_sample)
            ev.tcf_gradient = slope * (ev.tcf > 0)
            self.apart = ev.tail.gradient / ev.tail.n - ev.main.gradient / ev.main.n, slope
        else:
            difference, slope = self.apart
            mixed = self._slope((1 - ev.tcf) / ev.main.n * total + ev.tcf / ev.tail.n * beyond)
            mean = mixed - ev.tcf * difference
            ev.main = _with(ev.main, total, ev.main.n * mean)
            ev.tail = _with(ev.tail, beyond, ev.tail.n * (mean + difference))
            ev.tcf_gradient = slope * (ev.tcf > 0)

    def information(self, ev: Evaluation) -> Tensor:
        return super().information(ev) if self.own is None else self.own.products

    def covariance(self) -> Tensor:
        """Of theta, from the law's own information."""
        assert self.own is not None
        information = self.n * self.own.godambe
        if self.penalty is not None and self.penalty.active:
            information = information + torch.diag(self.penalty.precision())
        return symmetric_inverse(information)

    def subtracted(self, ev: Evaluation) -> list[tuple[Tensor, Tensor, Tensor]]:
        """None: log p of the main pool is that of a conditional likelihood already."""
        return []

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
        if not self.slopes:
            return torch.zeros_like(self.head.theta)
        return torch.autograd.grad(value, self.head.theta, retain_graph=True)[0]


def _with(sums: ScoreSums, log_p: Tensor, gradient: Tensor) -> ScoreSums:
    return replace(sums, log_p=log_p.detach(), gradient=gradient)
