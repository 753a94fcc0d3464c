"""Law "simulated": the frozen law's score, centered by simulated steps of the same head, for any space, head and dt.

Linear heads go to the root of the centered score by Newton's rounds, each with the same random numbers. Any other head
climbs by L-BFGS on all pairs together with simulated ones, which are drawn again a few times. Mini-batch engines append
simulated pairs to every batch.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import Head, LinearHead
from levytorch.coefficients.tangent import TangentHead
from levytorch.data.batches import Batch, FullBatch
from levytorch.data.lattice import Lattice
from levytorch.likelihood.corrected import Information
from levytorch.likelihood.held_steps import shown_by_steps
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.network import TangentPenalty
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, guarded_solve, symmetric_inverse
from levytorch.likelihood.simulated import FEWEST, MOST, PILOT, SHARE, SimulatedPairs, SimulatedScore, windows_of
from levytorch.training.engines.base import Engine
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.engines.lbfgs import LBFGSEngine
from levytorch.training.phases.base import Course, Phase
from levytorch.training.phases.maximise import GOOD, Frozen, Maximise
from levytorch.training.phases.rounds import ROUNDS, CenteredRounds
from levytorch.training.problem import unavailable
from levytorch.training.recovery import Recovery
from levytorch.training.report import Maximum, finish, in_standard_errors

_ATTEMPTS = 3  # with more simulations than before, or with more statistics
_REST, _SMALL = 0.5, 0.2  # m substeps leave this part over m^2 of the frozen law's bias; standard errors that it may be
_MOST_SUBSTEPS = 64
SUBSTEPS_OF_ALPHA = 16  # at least where alpha depends on the state, for which the substeps are of first order
_MARGIN = 1.3  # on the number of simulations that few of them have shown to be enough
_LOOKS = 5  # until that number is found
_LARGEST = 0.039  # of the variance: simulations then add 2 % to a standard error
_ODDS = 3.0  # log odds for steps along which coefficients are held, beyond which they are taken for such
_NOISE = 2.0  # standard deviations of the simulation, within which the frozen law cannot be distinguished from this one
MOST_OF_CLIMB = 1 << 21  # simulated steps, which a climb passes over again and again
_CLIMBS = 6  # of a head that is not linear, at most
_LED, _FOLLOWED = 1, 10.0  # the round in which strengths of the penalty move, and their largest change (a factor)
_NEAR = 1e-3  # of the change of coefficients in the first climb: simulated pairs need not be made again


def simulates(course: Course) -> bool:
    """Whether the fit continues by simulation; otherwise the course has the reason."""
    if course.law != "simulated":
        return False
    head = course.end.likelihood.head
    if head.is_constant:
        course.stay_frozen("constant coefficients, for which it is exact")
    elif course.problem.settings.law == "auto" and (sentence := held_along_steps(course.end, head)):
        course.stay_frozen(f"{course.reason}; {sentence}")
    return course.law == "simulated"


def held_along_steps(maximum: Maximum, head: Head) -> str:
    """A sentence where the data shows that coefficients are held along a step, as by Euler's rule; or nothing."""
    if head.dim > 1 or not isinstance(head, LinearHead) or head.columns > 1 or head.alpha_spec.mode == "function":
        return ""
    S, J = map(float, shown_by_steps(head, maximum.batch.main))
    if not S - 0.5 * J < -_ODDS:
        return ""
    return (
        f"steps show {S / J:.2f} +- {J**-0.5:.2f} of the change of D_o within a step that a differential equation has"
    )


@dataclass
class SimulatedObjective(FullBatchObjective):
    """The frozen law's objective, with the information of the simulated law.

    pairs: those that a lattice stands for, where they are in this process; offset: what their gradients differ by from
    those of the lattice.
    """

    own: Information | None = None
    pairs: FullBatch | None = None
    offset: tuple[Tensor, Tensor | None] | None = None

    def evaluate(self) -> Evaluation:
        ev = super().evaluate()
        if self.offset is not None:
            ev.main = replace(ev.main, gradient=ev.main.gradient + self.offset[0])
            if ev.tail is not None and self.offset[1] is not None:
                ev.tail = replace(ev.tail, gradient=ev.tail.gradient + self.offset[1])
        return ev

    def measure_offset(self, samples: FullBatch) -> None:
        """One pass over the pairs and one over the lattice, at the head as it is."""
        pairs = FullBatchObjective.evaluate(replace(self, batch=samples))
        nodes = super().evaluate()
        tail = None
        if pairs.tail is not None and nodes.tail is not None:
            tail = pairs.tail.gradient - nodes.tail.gradient
        self.offset = pairs.main.gradient - nodes.main.gradient, tail

    def information(self, ev: Evaluation) -> Tensor:
        return super().information(ev) if self.own is None else self.own.curvature

    def covariance_of_law(self) -> Tensor | None:
        if self.own is None:
            return None
        return symmetric_inverse(self.n * self.own.godambe + torch.diag(self.precision()))


class _Reported(FisherEngine):
    """Stands for the engine of a fit where its end is reported."""

    def __init__(self, asked: Engine, objective: FullBatchObjective) -> None:
        super().__init__()
        self.name, self.full_batch, self._asked, self._objective = asked.name, asked.full_batch, asked, objective

    def objective(self, likelihood: Likelihood, optimizer: Optimizer | None, batch: FullBatch) -> FullBatchObjective:
        return self._objective

    def unfinished(self, optimizer: Optimizer | None) -> str:
        if self.full_batch or optimizer is None:
            return "the iteration of the simulated law did not converge"
        return self._asked.unfinished(optimizer)


def simulated_objective(likelihood: Likelihood, batch: FullBatch, samples: FullBatch | None) -> SimulatedObjective:
    """The frozen law's objective of a batch, or of a lattice beside the pairs it was made of."""
    objective = SimulatedObjective(**vars(likelihood.objective(batch)))
    if samples is not None:
        objective.measure_offset(samples)
        objective.pairs = samples if type(samples.main) is Batch else None
    return objective


class Simulated(Phase):
    """The fit continues by simulation from the maximum of the frozen law."""

    name = "simulated"

    @classmethod
    def begin(cls, course: Course) -> Phase | None:
        if isinstance(course.answer, SimulatedDraws) or not simulates(course):
            return None
        if isinstance(course.end.likelihood.head, LinearHead) or isinstance(course.end.engine, FisherEngine):
            return SimulatedRounds.of(course)
        return SimulatedClimb.of(course)

    @classmethod
    def most_steps(cls, engine: Engine) -> int:
        return max((1 + _ATTEMPTS) * (ROUNDS + 1), _CLIMBS * engine.max_steps)


class SimulatedRounds(CenteredRounds):
    """Rounds whose expectation is simulated, with the same random numbers in every round.

    The first rounds take few simulations and the score alone. They show how many steps and substeps are needed, and the
    rounds are repeated with as many, and with further statistics where there are any, from where they have led. Weights
    of the statistics are those of the place where a set of rounds begins.
    """

    name = "simulated"
    objective: SimulatedObjective
    _known: tuple[Tensor, Tensor] | None

    def __init__(
        self,
        course: Course,
        objective: SimulatedObjective,
        penalty: RoughnessPenalty | None,
        before: SimulatedRounds | None = None,
    ) -> None:
        self.course, self.began, self.attempt, self.share = course, time.perf_counter(), 0, 1.0
        self.score = SimulatedScore(objective, course.problem.settings.seed)
        if before is not None:
            self.began, self.attempt = before.began, before.attempt + 1
            self.score.n_simulated, self.score.substeps = before.wanted()
            if before.reached or self.attempt < _ATTEMPTS:
                self.score.windows, self.score.pairs = windows_of(objective), objective.pairs
        objective.penalty, objective.own = penalty, None
        self.objective, self._known = objective, None
        if self.score.windows is not None:
            assert before is not None
            self._look_ahead(before)
        likelihood = replace(course.end.likelihood, head=objective.head)  # the tangent of a network
        super().__init__(course.engine, likelihood, objective, penalty)
        if before is not None:
            self.frozen = before.frozen

    @torch.no_grad()
    def _look_ahead(self, before: SimulatedRounds) -> None:
        """Find how many simulations all statistics together need, by means of few."""
        score, wanted = self.score, self.score.n_simulated
        score.n_simulated = few = min(wanted, PILOT)
        _, ev = score.centered()
        assert score.noise is not None
        self._known, noise = score.slope_and_variance(ev), score.noise
        self.linear, self.frozen = before.linear, before.frozen
        score.n_simulated = wanted
        for _ in range(_LOOKS):  # the weights of the statistics depend on the noise
            score.noise = noise * few / score.n_simulated
            self.objective.own = own = score.with_noise(*self._known)
            self.share = score.share(own, self.objective.precision())
            score.n_simulated = min(max(wanted, int(_MARGIN * score.enough(self.share))), MOST)
        score.substeps = self._substeps()
        self.objective.own = None

    def _penalised(self, penalty: RoughnessPenalty, theta: Tensor, score: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
        """Strengths that followed every round would follow its error, and the rounds would not end: they move once."""
        before = penalty.strengths.clone()
        if self.steps == _LED:
            super()._penalised(penalty, theta, score, G)
            penalty.strengths = torch.minimum(torch.maximum(penalty.strengths, before / _FOLLOWED), before * _FOLLOWED)
        precision = penalty.precision() / self.objective.n
        curvature = G + torch.diag(precision)
        return guarded_solve(curvature, score - precision * theta, "the simulated law"), curvature

    def centered(self) -> tuple[Tensor, Evaluation]:
        return self.score.centered()

    def information_at(self, ev: Evaluation) -> Information:
        if self._known is not None:  # of the same place
            return self.score.with_noise(*self._known)
        return self.score.information(ev)

    def settle(self) -> bool:
        """At the end of the rounds: what they have found. Returns whether they were enough.

        The information is that of the last evaluation, less than a tenth of a standard error from the end.
        """
        self.objective.own = own = self.score.information(self._evaluation)
        self.share = self.score.share(own, self.objective.precision())
        n_simulated, substeps = self.wanted()
        short = self.share > _LARGEST and n_simulated > self.score.n_simulated
        alone = self.score.windows is None and windows_of(self.objective) is not None
        again = short or alone or not self.reached or substeps > self.score.substeps
        return self.attempt >= _ATTEMPTS or not again

    def wanted(self) -> tuple[int, int]:
        """Simulated steps and substeps, after `settle`."""
        return max(self.score.enough(self.share), self.score.n_simulated), self._substeps()

    def facts(self) -> dict[str, Any]:
        """For metrics."""
        return {
            "law/rounds": len(self.distances) - 1,
            "law/simulations": self.score.n_simulated,
            "law/substeps": self.score.substeps,
            "law/simulation_share": added_to_error(self.share),
            "law/seconds": time.perf_counter() - self.began,
        }

    def turn_back(self) -> None:
        super().turn_back()
        self._evaluate()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.finished:  # its end asks for the last evaluation
            with torch.no_grad():
                self.linear.set_flat(self.nearest)
                self._evaluate()
                self.linear.set_flat(state["theta"])

    def _far(self) -> float:
        """How far the frozen law's answer is off, in standard errors, where that is farthest."""
        covariance = self.objective.covariance_of_law()
        assert covariance is not None
        return in_standard_errors(self.linear, self.linear.flat() - self.frozen[0], covariance)

    def _off_by(self) -> float:
        """The same beyond what the simulation itself may be off."""
        return max(0.0, self._far() ** 2 - _NOISE**2 * self.share) ** 0.5

    def _substeps(self) -> int:
        """So many that what they leave of the frozen law's bias is small beside a standard error."""
        wanted = max(self.score.substeps, SUBSTEPS_OF_ALPHA if self.linear.alpha_spec.mode == "function" else 0)
        while _REST / wanted**2 * self._far() > _SMALL and wanted < _MOST_SUBSTEPS:
            wanted *= 2
        return wanted

    @classmethod
    def of(cls, course: Course) -> Phase:
        maximum = course.end
        likelihood = maximum.likelihood
        penalty: Any = maximum.engine.objective(likelihood, maximum.done.optimizer, maximum.batch).penalty
        if not isinstance(likelihood.head, LinearHead):  # a network moves along its tangent
            assert likelihood.bins is not None
            at = likelihood.head.clamped(likelihood.bins.x)
            precision, center = (None, None) if penalty is None else (penalty.full_precision(), penalty.center)
            tangent = TangentHead(likelihood.head, at, precision, center)
            likelihood = replace(likelihood, head=tangent)
            penalty = None if penalty is None else TangentPenalty(tangent, penalty.strengths)
        return cls(course, simulated_objective(likelihood, maximum.batch, maximum.samples), penalty)

    def end(self) -> Phase | None:
        course = self.course
        if not self.settle():
            return SimulatedRounds(course, self.objective, self.penalty, self)
        auto = course.problem.settings.law == "auto"
        if auto and not self.reached:
            self.go_back()
            reason = "the iteration of the simulated law did not converge, so its result is not used"
            course.stay_frozen(reason, judged=False)
            return None
        far = self._off_by() if auto else math.inf
        if auto and far < GOOD:
            self.go_back()
            course.stay_frozen(f"its bias is below {GOOD} standard errors everywhere, as simulations show")
            return None
        if isinstance(self.linear, TangentHead):
            course.end.likelihood.head.set_flat(self.linear.parameters_of_head())
        course.answer = self
        if auto:
            course.reason += f"; the frozen law would change the estimates by up to {far:.2g} standard errors"
        return None

    def result(self) -> tuple[Recovery, Likelihood]:
        course, likelihood = self.course, self.likelihood
        if course.problem.settings.std == "frozen":
            self.objective.own = None
        engine = _Reported(self.engine, self.objective)
        recovery = finish(replace(course.end, engine=engine, done=self.done, samples=None))
        recovery.shift = self.linear.flat() - self.frozen[0]
        if isinstance(self.linear, TangentHead):
            recovery.shift = self.linear.spread(recovery.shift)
            likelihood = replace(likelihood, head=course.end.likelihood.head)
        recovery.metrics |= {
            "law": "simulated",
            "law_reason": course.reason,
            "law/judged_by": judged_by(course),
            "covariance": "frozen" if self.objective.own is None else "simulated",
        } | self.facts()
        if self.R_theta is not None:
            assert likelihood.masses is not None
            likelihood.correction.update(self.R_theta, likelihood.masses.R_sample)
            recovery.tcf = likelihood.correction.tcf
            recovery.metrics |= {"R_theta": self.R_theta, "tcf": recovery.tcf}
        return recovery, likelihood


def judged_by(course: Course) -> str:
    """The law whose density stands for the simulated one, which has none: exact where that is available."""
    observed = course.data.observed
    data = observed if isinstance(observed, Lattice) else observed.data
    return "exact" if unavailable(course.end.likelihood.head, data) is None else "frozen"


def added_to_error(share: float) -> float:
    """What simulations add to a standard error, as a part of it, where they make up a share of its square."""
    return (1.0 - min(share, 0.99)) ** -0.5 - 1.0


class SimulatedClimb(Maximise):
    """L-BFGS of a head that is not linear, on all pairs and simulated ones, which every climb draws again."""

    def __init__(self, course: Course, climb: int, n_simulated: int) -> None:
        maximum, asked = course.end, course.engine
        engine = asked if isinstance(asked, LBFGSEngine) else LBFGSEngine(max_steps=asked.max_steps)
        self.course, self.climb, self.began = course, climb, time.perf_counter()
        self.simulated = SimulatedPairs(maximum.likelihood, course.problem.settings.seed)
        self.n_simulated = n_simulated
        batch = self.simulated.full_batch(maximum.batch, n_simulated)
        super().__init__("simulated", engine, maximum.likelihood, batch)
        self.before = self._curves()

    @classmethod
    def of(cls, course: Course) -> Phase:
        pairs = SimulatedPairs(course.end.likelihood, course.problem.settings.seed)
        batch = course.end.batch
        wanted = batch.n_main * pairs.noise(batch) / SHARE
        return cls(course, 0, int(min(max(wanted, FEWEST), MOST_OF_CLIMB)))

    def _curves(self) -> list[Tensor]:
        with torch.no_grad():
            return list(self.head(self.head.grid(256)))[:3]

    def update_tcf(self) -> None:
        """The mass beyond CT is that of the simulated steps."""
        if self.simulated.R_theta is None or self.likelihood.tail.method != "tcf":
            super().update_tcf()
        else:
            self.likelihood.correct(self.simulated.R_theta)

    def end(self) -> Phase | None:
        super().end()
        moved = max(float((now - then).norm() / now.norm()) for now, then in zip(self._curves(), self.before))
        if self.climb + 1 < _CLIMBS and moved > _NEAR:
            again = SimulatedClimb(self.course, self.climb + 1, self.n_simulated)
            again.began = self.began
            return again
        self.course.answer = self
        return None

    def result(self) -> tuple[Recovery, Likelihood]:
        recovery = finish(replace(self.course.end, engine=self.engine, done=self.done, samples=None))
        noise = self.simulated.noise(self.course.end.batch) * self.course.end.batch.n_main / self.n_simulated
        recovery.metrics |= {
            "law": "simulated",
            "law_reason": self.course.reason,
            "law/judged_by": judged_by(self.course),
            "law/rounds": self.climb + 1,
            "law/simulations": self.n_simulated,
            "law/substeps": self.simulated.substeps,
            "law/simulation_share": added_to_error(noise / (1.0 + noise)),
            "law/seconds": time.perf_counter() - self.began,
        }
        return recovery, self.likelihood


class SimulatedDraws(Frozen):
    """Mini-batches with simulated pairs, from the first step on."""

    name = "simulated"

    def __init__(self, course: Course) -> None:
        super().__init__(course)
        self.simulated = SimulatedPairs(self.likelihood, course.problem.settings.seed)

    @classmethod
    def begin(cls, course: Course) -> Phase:
        return cls(course)

    def step(self, batch: Batch | FullBatch, seed: int) -> float:
        assert isinstance(batch, Batch)
        return super().step(self.simulated.append(batch, self.steps), seed)

    def result(self) -> tuple[Recovery, Likelihood]:
        maximum, head = self.course.end, self.likelihood.head
        own: Information | None = None
        # each step of the moving average has simulations of its own, beside pairs that are drawn again and again
        made = self.course.problem.drawing()["batch_size"] * max(1, min(self.steps, self.engine.window))
        if isinstance(head, LinearHead):
            objective = simulated_objective(maximum.likelihood, maximum.batch, None)
            if self.course.problem.settings.std != "frozen":
                own, share = self._information(objective, made)
            objective.own = own
            maximum = replace(maximum, engine=_Reported(self.engine, objective))
        recovery = finish(maximum)
        if own is None:
            pairs = SimulatedPairs(maximum.likelihood, self.simulated.seed)
            noise = pairs.noise(maximum.batch) * maximum.batch.n_main / made
            share = noise / (1.0 + noise)
        recovery.metrics |= {
            "law": "simulated",
            "law_reason": self.course.reason,
            "law/judged_by": judged_by(self.course),
            "law/simulations": self.steps * self.course.problem.drawing()["batch_size"],
            "law/substeps": self.simulated.substeps,
            "law/simulation_share": added_to_error(share),
        }
        if isinstance(head, LinearHead):
            recovery.metrics["covariance"] = "frozen" if own is None else "simulated"
        return recovery, maximum.likelihood

    def _information(self, objective: SimulatedObjective, made: int) -> tuple[Information, float]:
        """That of the equation whose root the steps approach, and the largest share of the simulated steps in it."""
        score = SimulatedScore(objective, self.simulated.seed)
        _, ev = score.centered()
        assert score.noise is not None
        score.noise = score.noise * (score.n_simulated / made)
        own = score.information(ev)
        return own, score.share(own, objective.precision())
