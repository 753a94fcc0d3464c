"""How fits under the exact law of a step move: Fisher scoring of linear heads, with its objective, rounds on the
centered score, L-BFGS of any head.

Value and gradient of the objective are the exact law's. The curvature is its information at one point (`informations`),
or the frozen law's at the same parameters; secant pairs of Fisher scoring turn it into that of the exact law where the
fit is.

An evaluation costs the tables of the law, whatever the number of pairs; they serve both pools and the masses. A round
on the frozen law's score, centered by the exact law (law "corrected"), takes one forward evaluation and one pass over
the lattice. The centered score U stands for the exact law's as well as it can, A^T B^-1 U with information A^T B^-1 A
(`corrected.informations`), so that the roughness penalty and its evidence mean what they mean in every other fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import LinearHead
from levytorch.data.batches import Batch, FullBatch
from levytorch.errors import NumericalError
from levytorch.likelihood.corrected import Information
from levytorch.likelihood.exact import AtOneHead, ExactLaw
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, symmetric_inverse
from levytorch.likelihood.sums import ScoreSums, shared, where
from levytorch.likelihood.tail import TailMasses, tail_correction_factor
from levytorch.training.engines.base import bare
from levytorch.training.engines.fisher import NEAR, FisherEngine, FisherScoring
from levytorch.training.engines.lbfgs import LBFGSEngine, losses

_STALE = 5.0  # standard errors, over all parameters together, from where an information matrix was made


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
    own_at: Tensor | None = None  # the parameters that `own` is of

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
        return symmetric_inverse(self.n * self.own.godambe + torch.diag(self.precision()))

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


@dataclass
class ExactEngine(FisherEngine):
    """Fisher scoring under the exact law. start: the penalty of the frozen solution; own: the law's information.

    moves: False where only what is reported of a head is wanted, which takes no gradient. each: see ExactObjective.
    renewed: the information at the head as it is, given R_theta; it costs a few evaluations, so that it is asked for
    where the fit has left the place that the old one was made for, and is either misled by it or nearly there.
    """

    tolerance: float = 1e-6
    law: ExactLaw = field(default_factory=ExactLaw)
    start: RoughnessPenalty | None = None
    own: Information | None = None
    moves: bool = True
    each: bool = False
    renewed: Callable[[float | None], Information] | None = None

    settled = 0.1  # an evaluation is dear

    def optimizer(self, likelihood: Likelihood) -> Optimizer:
        head = cast(LinearHead, likelihood.head)
        return FisherScoring([head.theta], damping=1e-4, tolerance=self.tolerance, pairs=self.max_steps)

    def objective(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch) -> FullBatchObjective:
        scoring = cast(FisherScoring, bare(optimizer))
        if getattr(scoring, "objective", None) is None:
            frozen = likelihood.objective(batch, n_bins=self.n_bins)
            own = {"penalty": self.start, "exact": self.law, "own": self.own, "slopes": self.moves, "each": self.each}
            scoring.objective = objective = ExactObjective(**(vars(frozen) | own))
            objective.own_at = likelihood.head.flat()
            if self.moves and not self.each:
                objective.apart = _apart(frozen)
        return scoring.objective

    def step(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch, step: int, seed: int = 0) -> float:
        nll = super().step(likelihood, optimizer, batch, step, seed)
        scoring = cast(FisherScoring, bare(optimizer))
        objective, accepted = cast(ExactObjective, scoring.objective), scoring.accepted
        if self.renewed is not None and (scoring.misled or scoring.memory["decrement"] < NEAR):
            assert accepted is not None
            assert objective.own is not None
            assert objective.own_at is not None
            moved = accepted.theta - objective.own_at
            if objective.ranks.any(float(objective.n * moved @ objective.own.products @ moved) > _STALE**2):
                objective.own, objective.own_at = self.renewed(accepted.R_theta), accepted.theta
                scoring.forget_curvature()
        return nll

    def unfinished(self, optimizer: Optimizer) -> str:
        if not self.moves:
            return "rounds on the centered score came no nearer to its root"
        return super().unfinished(optimizer)


def _apart(frozen: FullBatchObjective) -> tuple[Tensor, Tensor] | None:
    """How the gradients of the two pools differ under the frozen law, and that of the TCF: near enough for a step."""
    if frozen.method != "tcf":
        return None
    ev = frozen.evaluate()
    if ev.tail is None or ev.tcf_gradient is None or not ev.tcf > 0:
        return None
    return ev.tail.gradient / ev.tail.n - ev.main.gradient / ev.main.n, ev.tcf_gradient


@dataclass
class ExactLBFGS(LBFGSEngine):
    """L-BFGS of any head under the exact law."""

    law: ExactLaw = field(default_factory=ExactLaw)
    evaluations: int = 0

    def __post_init__(self) -> None:
        return  # made from an engine whose options were checked

    def nll(self, likelihood: Likelihood, batch: FullBatch) -> Tensor:
        """In one graph, whatever the size of the batch: a lattice is small."""
        self.evaluations += 1
        law = AtOneHead(self.law)
        whole = batch._replace(chunk=max(batch.main.x.shape[0], 1))
        with torch.enable_grad():
            loss = torch.stack(list(losses(replace(likelihood, law=law), whole.chunks()))).sum()
            if likelihood.tail.method == "conditional":
                loss = loss + replace(likelihood.seen(), law=law).mean_log_kept(likelihood.head)
            loss.backward()
        return loss.detach()
