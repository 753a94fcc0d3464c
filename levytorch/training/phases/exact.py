"""The engine continues under the exact law of a step: Fisher scoring of linear heads, L-BFGS of any other.

Value and gradient of the objective are the exact law's. The curvature is its information at one point (`informations`),
or the frozen law's at the same parameters; secant pairs of Fisher scoring turn it into that of the exact law where the
fit is. An evaluation costs the tables of the law, whatever the number of pairs; they serve both pools and the masses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.data.batches import Batch, FullBatch
from levytorch.errors import NumericalError
from levytorch.law.threads import spread
from levytorch.likelihood.corrected import Information
from levytorch.likelihood.exact import AtOneHead, ExactLaw
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, symmetric_inverse
from levytorch.likelihood.sums import ScoreSums, shared, where
from levytorch.likelihood.tail import TailMasses, tail_correction_factor
from levytorch.training.engines.base import Engine, Maximised
from levytorch.training.engines.fisher import NEAR, FisherEngine, FisherScoring, scoring_of
from levytorch.training.engines.lbfgs import LBFGSEngine, losses
from levytorch.training.phases.base import Course, Phase
from levytorch.training.phases.choice import ExactSetting, exact_setting
from levytorch.training.phases.maximise import Maximise
from levytorch.training.recovery import Recovery
from levytorch.training.report import finish, vanishing

if TYPE_CHECKING:
    from levytorch.training.phases.corrected import Corrected

TURNS, STRAIGHT = 3, 0.1  # of the tangent of a network, at most; standard errors by which it may be off
ATTEMPTS = 2  # coefficients that have moved far ask for another grid
MOVED = 0.5  # standard errors, over all parameters together, within which an information matrix stays what it is
_STALE = 5.0  # the same, from where an information matrix was made


# -- the order of phases ----------------------------------------------------------------------------------------------
class Exact(Maximise):
    """The engine continues under the exact law, from the result of the corrected law."""

    def __init__(self, course: Course, setting: ExactSetting, engine: Engine, likelihood: Likelihood) -> None:
        self.course, self.setting = course, setting
        self.attempt, self.turns, self.error = 0, 0, float("inf")
        super().__init__("exact", engine, likelihood, setting.batch)

    @classmethod
    def begin(cls, course: Course) -> Phase | None:
        setting = exact_setting(course)
        if setting is None or course.law != "exact":
            return None
        return ExactFisher.of(course, setting) if course.corrected is not None else ExactClimb.of(course, setting)

    @classmethod
    def most_steps(cls, engine: Engine) -> int:
        return (ATTEMPTS + TURNS) * engine.max_steps

    @classmethod
    def of(cls, course: Course, setting: ExactSetting) -> Exact:
        """At the head as it is, on the grid that is chosen for it."""
        raise NotImplementedError

    def end(self) -> Phase | None:
        super().end()
        self.judge_grid()
        if not self.error < self.setting.accurate and self.attempt + 1 < ATTEMPTS:
            self.setting.settle()
            again = self.of(self.course, self.setting)
            again.attempt = self.attempt + 1
            return again
        if self.turns < TURNS and self.turned() > STRAIGHT:
            self.setting.turn()
            again = self.of(self.course, self.setting)
            again.attempt, again.turns = self.attempt, self.turns + 1
            return again
        self.setting.follow()
        self.course.answer = self
        return None

    def turned(self) -> float:
        """How far a network is from the tangent along which it was moved, in standard errors."""
        return 0.0

    def judge_grid(self) -> None:
        """How far log p is from that of a finer grid, at the head where the phase has ended."""
        self.error = self.setting.error()


class ExactFisher(Exact):
    """Fisher scoring of a linear head, whose objective has a state of its own."""

    engine: ExactEngine

    def __init__(self, course: Course, setting: ExactSetting, corrected: Corrected) -> None:
        super().__init__(course, setting, exact_engine(course, setting, corrected, moves=True), setting.likelihood)
        self.corrected, self.began = corrected, self.head.flat()
        self.objective = self.engine.objective(self.likelihood, self.optimizer, setting.batch)
        self.latest: Information | None = None

    @classmethod
    def of(cls, course: Course, setting: ExactSetting) -> Exact:
        assert course.corrected is not None
        return cls(course, setting, course.corrected)

    def judge_grid(self) -> None:
        moved, used = self.head.flat() - self.began, self.engine.own
        assert used is not None
        far = float(self.objective.n * moved @ used.curvature @ moved) > MOVED**2
        jobs: list[Callable[[], Any]] = [self.setting.error]
        if far and self.course.problem.settings.std != "frozen":
            jobs.append(partial(self.setting.informations, self.done.R_theta))
        self.error, *latest = spread(lambda job: job(), jobs)
        self.latest = latest[0].exact if latest else None

    def end(self) -> Phase | None:
        following, course = super().end(), self.course
        lost = vanishing(self.objective, self.objective.evaluate()) if following is None else []
        if lost and course.vanished is None and course.problem.settings.law == "auto":
            # a ridge of the likelihood (alpha against D_o) that ends in a lower maximum at the boundary
            self.corrected.go_back()
            self.setting.leave()
            course.answer = self.corrected.before
            course.stay_frozen(f"the exact law drove {' and '.join(lost)} to zero", judged=False)
        return following

    def turned(self) -> float:
        own = self.latest or self.objective.own
        return 0.0 if own is None else self.setting.turned(self.objective.n * own.curvature)

    def result(self) -> tuple[Recovery, Likelihood]:
        if self.latest is not None:
            self.objective.own = self.latest
        return of_linear(self.course, self.setting, self.corrected, self.engine, self.done, self.objective, self.error)

    def state_dict(self) -> dict[str, Any]:
        objective = self.objective
        assert objective.own is not None
        own = list(objective.own[:1] if objective.own.slope is objective.own.variance else objective.own)
        penalty = None if objective.penalty is None else objective.penalty.state()
        rest = {"own": own, "own_at": objective.own_at, "apart": objective.apart, "evaluations": objective.evaluations}
        return super().state_dict() | rest | {"penalty": penalty}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        objective = self.objective
        own = list(state["own"])
        objective.own = Information(*(own if len(own) == 3 else own * 3))
        objective.own_at = state["own_at"]
        objective.apart = None if state["apart"] is None else tuple(state["apart"])
        objective.evaluations = int(state["evaluations"])
        if objective.penalty is not None:
            objective.penalty.restore(state["penalty"])


class ExactClimb(Exact):
    """L-BFGS of a head that is not linear."""

    engine: ExactLBFGS

    @classmethod
    def of(cls, course: Course, setting: ExactSetting) -> Exact:
        asked = course.engine
        own = asked if isinstance(asked, LBFGSEngine) else LBFGSEngine(asked.max_steps)
        options = {name: getattr(own, name) for name in ("max_steps", "iterations", "history", "tolerance")}
        return cls(course, setting, ExactLBFGS(**options, law=setting.law), setting.exact_likelihood())

    def result(self) -> tuple[Recovery, Likelihood]:
        facts = {"law/evaluations": self.engine.evaluations}
        likelihood = self.setting.exact_likelihood()
        return _under_law(self.course, self.setting, likelihood, self.engine, self.done, self.error, facts)


# -- what is reported --------------------------------------------------------------------------------------------------
def of_linear(
    course: Course,
    setting: ExactSetting,
    corrected: Corrected,
    engine: Engine,
    done: Maximised,
    objective: ExactObjective,
    error: float,
) -> tuple[Recovery, Likelihood]:
    """The recovery of a linear head at the end of the corrected or the exact law's phase."""
    std = course.problem.settings.std
    if std == "frozen":
        objective.own = None
    facts = {
        "law/rounds": len(corrected.distances) - 1,
        "law/evaluations": objective.evaluations,
        "covariance": "frozen" if std == "frozen" else course.law,
    }
    return _under_law(course, setting, setting.likelihood, engine, done, error, facts)


def _under_law(
    course: Course,
    setting: ExactSetting,
    likelihood: Likelihood,
    engine: Engine,
    done: Maximised,
    error: float,
    facts: dict[str, Any],
) -> tuple[Recovery, Likelihood]:
    assert isinstance(course.law, str)
    own = course.end.likelihood.head
    maximum = replace(course.end, likelihood=likelihood, engine=engine, done=done, batch=setting.batch, samples=None)
    recovery = finish(maximum)
    recovery.metrics |= setting.metrics(course.law, error, engine) | facts
    recovery.metrics |= {"law_reason": course.reason, "law/seconds": time.perf_counter() - setting.began}
    recovery.head = own  # on a line the padded head has the same parameters
    return recovery, setting.exact_likelihood()


def exact_engine(course: Course, setting: ExactSetting, corrected: Corrected, *, moves: bool) -> ExactEngine:
    """Fisher scoring under the exact law, from the penalty and the information of the rounds before.

    moves: False where only what is reported of a head is wanted.
    """
    found = setting.informations(corrected.R_theta)
    engine = ExactEngine(
        max_steps=course.engine.max_steps,
        n_bins=course.engine.n_bins,
        law=setting.law,
        start=corrected.penalty if setting.network is None else setting.penalty,
        own=found.exact if moves else found.corrected,
        moves=moves,
        each=course.problem.settings.std == "frozen",  # whose covariance is made of the gradients of the pools
        renewed=lambda R_theta: setting.informations(R_theta).exact,
    )
    engine.name = course.engine.name
    return engine


# -- the objective and the engines -------------------------------------------------------------------------------------
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
        return super().information(ev) if self.own is None else self.own.curvature

    def covariance_of_law(self) -> Tensor | None:
        if self.own is None:
            return None
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

    settled = 0.1  # one evaluation is expensive

    def optimizer(self, likelihood: Likelihood) -> Optimizer:
        return FisherScoring(likelihood.head.parameters(), damping=1e-4, tolerance=self.tolerance, pairs=self.max_steps)

    def objective(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch) -> ExactObjective:
        scoring = scoring_of(optimizer)
        made = getattr(scoring, "objective", None)
        if not isinstance(made, ExactObjective):
            frozen = likelihood.objective(batch, n_bins=self.n_bins)
            own = {"penalty": self.start, "exact": self.law, "own": self.own, "slopes": self.moves, "each": self.each}
            scoring.objective = made = ExactObjective(**(vars(frozen) | own))
            made.own_at = likelihood.head.flat()
            if self.moves and not self.each:
                made.apart = _apart(frozen)
        return made

    def step(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch, step: int, seed: int = 0) -> float:
        nll = super().step(likelihood, optimizer, batch, step, seed)
        scoring = scoring_of(optimizer)
        objective, accepted = self.objective(likelihood, optimizer, batch), scoring.accepted
        if self.renewed is not None and (scoring.misled or scoring.memory["decrement"] < NEAR):
            assert accepted is not None
            assert objective.own is not None
            assert objective.own_at is not None
            moved = accepted.theta - objective.own_at
            if float(objective.n * moved @ objective.own.curvature @ moved) > _STALE**2:
                objective.own, objective.own_at = self.renewed(accepted.R_theta), accepted.theta
                scoring.forget_curvature()
        return nll

    def unfinished(self, optimizer: Optimizer) -> str:
        if not self.moves:
            return "the iteration of the corrected law did not converge"
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
                loss = loss + replace(likelihood.observed_masses(), law=law).mean_log_kept(likelihood.head)
            loss.backward()
        return loss.detach()
