"""The full-batch objective of a Fourier head under the exact law of a step.

Value and gradient are the exact law's. The curvature is its information at one point (`informations`), or the
frozen law's at the same parameters; secant pairs of Fisher scoring turn it into that of the exact law where the fit is.

What a pair tells under the exact law is the information of its own score, or of the frozen law's centered one. An
estimating equation sum_k scale_k sum_pairs s / n = 0 over strata k (core and tail pool, or all pairs) has the slope
-A and the variance B / n, with covariances taken within each state and stratum,

    A = sum_k scale_k sum_x n_k(x) Cov(s, s_exact) / n,      B = sum_k scale_k^2 sum_x n_k(x) Cov(s, s) / n,

since d/d theta of an expectation under the law is a covariance with its score. The information is A^T B^-1 A; for the
likelihood itself s = s_exact, scale = 1 and all three are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.coefficients.padded import on_a_cell
from levytorch.data.batches import Batch
from levytorch.errors import NumericalError
from levytorch.likelihood.corrected import Strata, frozen_scores, learned_rates
from levytorch.likelihood.exact import ExactLaw, ScaledStep
from levytorch.likelihood.exact_scores import ExpectedScores, expected_scores
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import symmetric_inverse
from levytorch.likelihood.sums import ScoreSums, shared, where
from levytorch.likelihood.tail import TailMasses, tail_correction_factor


class Information(NamedTuple):
    """Per pair, (P, P) each: slope A, variance B, and the products of scores that scoring takes for curvature."""

    slope: Tensor
    variance: Tensor
    products: Tensor

    @property
    def godambe(self) -> Tensor:
        """A^T B^-1 A."""
        if self.slope is self.variance:
            return self.slope
        return self.slope.T @ symmetric_inverse(self.variance) @ self.slope


class Informations(NamedTuple):
    """Of the exact law's score, and of the frozen law's centered one."""

    exact: Information
    corrected: Information


@torch.no_grad()
def informations(
    head: Head, frozen: FrozenLaw, exact: ExactLaw, strata: Strata, R_theta: float | None = None
) -> Informations:
    """At the parameters of the head, from the states of the data. R_theta: for the TCF, the mass beyond CT."""
    head = on_a_cell(head)
    n, P = strata.n, head.flat().numel()
    own, other = ([torch.zeros((P, P), dtype=torch.float64) for _ in range(3)] for _ in range(2))
    for dt in torch.unique(strata.main.dt).tolist():
        rows = expected_scores(exact, head, dt, cuts=strata.cuts(dt), reach=strata.reach(dt))
        assert rows.scores is not None
        x = strata.main.x[strata.main.dt == dt]
        both = torch.cat([rows.scores, _frozen(head, frozen, rows, dt)], dim=1)
        for name, p, counts in strata.parts(rows, dt):
            scale = strata.scale(name, R_theta)
            weight = scale / n * _spread(counts, x, rows, head)
            used = torch.nonzero(p).reshape(-1)
            s, which, q = both[used], rows.which[used], p[used]
            q = q / q.new_zeros(len(rows.states)).index_add_(0, which, q)[which]
            products = s.T @ ((q * weight[which])[:, None] * s)
            mean = s.new_zeros((len(rows.states), 2 * P)).index_add_(0, which, q[:, None] * s)
            within = products - mean.T @ (weight[:, None] * mean)  # covariances within each state
            for total, part in ((own, slice(0, P)), (other, slice(P, 2 * P))):
                total[0] += within[part, :P]
                total[1] += scale * within[part, part]
            own[2] += products[:P, :P] if strata.method == "tcf" else within[:P, :P]
    if strata.method != "tcf":  # the likelihood itself
        own = [own[0], own[0], own[0]]
    return Informations(Information(*own), Information(other[0], other[1], other[0]))


def _frozen(head: Head, frozen: FrozenLaw, rows: ExpectedScores, dt: float) -> Tensor:
    """The frozen law's scores of the rows, (N, P)."""
    fields = frozen_scores(head, frozen, rows, dt)
    rates = learned_rates(head, rows.states)
    out = fields[0][:, None] * rates[0][rows.which]
    for one, J in zip(fields[1:], rates[1:]):
        out.addcmul_(one[:, None], J[rows.which])
    return out


def _spread(counts: Tensor, x: Tensor, rows: ExpectedScores, head: Head) -> Tensor:
    """Pairs of states x as pairs of the states of the rows, an even grid on which information is smooth."""
    S = len(rows.states)
    position = torch.remainder(x - float(head.origin), float(head.period)) * (S / float(head.period))
    left = position.floor()
    out = counts.new_zeros(S)
    for node, part in ((left, 1 - (position - left)), (left + 1, position - left)):
        out.index_add_(0, node.to(torch.int64) % S, part * counts)
    return out


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
