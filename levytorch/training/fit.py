"""The one driver of every fit: the phases of a plan in their order, step by step.

`recover` advances a Fit in a plain loop; under Lightning `LevyModule` holds the same object and one training step is
one `Fit.step`. Whatever decides the result happens here, so that both give the same numbers. `training.prepare` settles
what was left to the data, `training.phases.PLANS` is the order of phases, and the phase whose parameters stand at the
end makes the Recovery. If the counts beyond CT then ask for other thresholds, the phases are run once more.

Phases work in units in which a step of the data is of order one (`Problem.units`); their head and the one that is
reported, in the units of the data, share their parameters. What is logged is in the units of the data.

The state of a fit is the list of the states of its phases. Resuming restores them one after the other and repeats the
decisions in between, which depend on nothing else; no step is taken twice.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import Head, LinearHead
from levytorch.coefficients.head import Units
from levytorch.data import Pools, Transitions
from levytorch.data.batches import Batch, FullBatch
from levytorch.data.drawing import Drawer
from levytorch.data.lattice import Lattice
from levytorch.errors import InputError, LevytorchWarning
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.laws import Law
from levytorch.likelihood.likelihood import Likelihood, mean_coefficients
from levytorch.likelihood.tail import TailSettings
from levytorch.ranks import Ranks
from levytorch.training.blocks import MOST_PAIRS
from levytorch.training.boundary import held, told_in
from levytorch.training.engines.base import Clock, Engine, engine_facts
from levytorch.training.modulation import modulate
from levytorch.training.observed import hardly_separable, observed_states
from levytorch.training.phases import Course, Maximise, Phase, plan_of
from levytorch.training.phases.base import first_law
from levytorch.training.prepare import Problem, all_data, problem_of
from levytorch.training.progress import ProgressLine
from levytorch.training.recovery import Recovery
from levytorch.training.resampling import blocks_from
from levytorch.training.settings import FitSettings
from levytorch.training.start import inside, reconsidered

_CARRIED = ("missing_between_CT_and_TRT_z", "selection")  # metrics of a first fit that led to a second one


@dataclass(frozen=True)
class StepReport:
    """What one step did: its number over all phases, the phase, and the values that are logged of it."""

    step: int
    phase: str
    nll: float
    values: dict[str, float]


class Fit:
    """A fit in progress.

    Args:
        head, engine, tail: what is fitted, how, and how lost tails are treated.
        law: a name or a Law. Without data of its own a Fit has one phase, under the frozen law unless another is given.
        density: how log p is computed under the frozen law.
        seed: of the engine's own randomness and of mini-batches.
        log_every: steps of a mini-batch engine between two entries of the history.

    Without `attach` a Fit takes its batches from the caller.
    """

    def __init__(
        self,
        head: Head,
        engine: Engine,
        tail: TailSettings | None = None,
        law: str | Law = "auto",
        density: str = "auto",
        seed: int = 0,
        log_every: int = 50,
    ) -> None:
        engine.accepts(head)
        self.head, self.engine, self.tail, self.law = head, engine, tail or TailSettings(), law
        self.density, self.seed, self.log_every = density, seed, log_every
        self.problem: Problem | None = None
        self.course: Course | None = None
        self.ranks = Ranks()
        self.history: list[dict[str, float]] = []
        self.n_steps = 0
        self.done = False
        self._past: list[dict[str, Any]] = []  # states in which phases have ended
        self._last: dict[str, Any] | None = None  # the same of the last one, once the fit is done
        self._clock = Clock()
        self._result: tuple[Recovery, Likelihood] | None = None
        self._before: Recovery | None = None  # the first of two fits, where thresholds were reconsidered
        self._drawer: Drawer | None = None
        self._pairs: float = 0.0  # of the last step
        self._unlogged: float | None = None  # its likelihood, where it has no entry in the history
        self.units = Units()
        self.phase: Phase = self._alone()

    def _alone(self) -> Phase:
        """The only phase of a fit without data of its own."""
        law = first_law(ExactLaw() if self.law == "exact" else self.law, self.density, self.head)
        return Maximise("frozen" if law.name == "frozen" else "own", self.engine, Likelihood(self.head, law, self.tail))

    @classmethod
    def of(cls, problem: Problem) -> Fit:
        """The fit that a problem poses, at its start."""
        s = problem.settings
        fit = cls(problem.head, s.engine, s.tail, s.law, s.density, s.seed, s.log_every)
        fit.problem = problem
        return fit

    # -- data ---------------------------------------------------------------------------------------------------------
    def attach(self, ranks: Ranks | None = None) -> None:
        """Make batches of the data of the problem; with several ranks each of them calls this."""
        assert self.problem is not None
        self.ranks = ranks or Ranks()
        self._begin(self.problem)

    def _begin(self, problem: Problem) -> None:
        """The first phase of a problem."""
        settings = problem.settings
        self.problem, self.head, self.tail, self.law = problem, problem.head, settings.tail, settings.law
        alone = problem.batches if self.ranks.world == 1 else None
        self.batches = alone or all_data(problem, self.ranks)
        self.units = problem.units
        head = problem.head if self.units == Units() else problem.head.in_units(self.units)
        self.course = Course(problem, head, self.batches, self.engine, self.ranks, settings.law)
        first, *self._todo = plan_of(settings.law, self.engine)
        phase = first.begin(self.course)
        assert phase is not None
        self.phase, self._drawer = phase, None

    def batch(self) -> Batch | FullBatch:
        """The batch of the next step: a pure function of the phase, the step and the TCF."""
        phase, tcf = self.phase, float(self.phase.likelihood.correction.tcf)
        if phase.batch is not None and phase.engine.full_batch:
            return phase.batch._replace(tcf=tcf)
        if self._drawer is None:
            assert self.problem is not None
            assert isinstance(self.batches.observed, Pools)
            drawing = self.problem.drawing()
            self._drawer = Drawer(self.batches.observed, **drawing, rank=self.ranks.rank, world=self.ranks.world)
        return self._drawer.draw(phase.steps, tcf if self._drawer.pools.n_tail else 0.0)

    # -- steps --------------------------------------------------------------------------------------------------------
    @property
    def likelihood(self) -> Likelihood:
        """Of the present phase."""
        return self.phase.likelihood

    @property
    def most_steps(self) -> int:
        """No fit takes more steps than this."""
        if self.problem is None:
            return self.engine.max_steps
        return 2 * sum(phase.most_steps(self.engine) for phase in plan_of(self.problem.settings.law, self.engine))

    def step(self, batch: Batch | FullBatch) -> StepReport:
        """One step of the present phase."""
        phase = self.phase
        full = phase.engine.full_batch
        if full and isinstance(batch, Batch):
            batch = FullBatch(batch, None, float(batch.weight.sum()), 0)
        nll = phase.step(batch, self.seed)
        nll += self.log_unit * self._weight(batch)
        self.n_steps += 1
        self._pairs = batch.n_main if isinstance(batch, FullBatch) else batch[0].shape[0] * self.ranks.world
        logged = full or self.n_steps % self.log_every == 0
        self._unlogged = None if logged else nll
        return StepReport(self.n_steps, phase.name, nll, self._log(nll) if logged else {})

    def _weight(self, batch: Batch | FullBatch) -> float:
        """Of all pairs of a step, whose likelihood is the mean over ranks; each rank has drawn a batch of its own."""
        if isinstance(batch, FullBatch) or self.log_unit == 0.0:
            return 1.0
        (total,) = self.ranks.sum([batch.weight.sum()])
        return float(total) / self.ranks.world

    def _log(self, nll: float) -> dict[str, float]:
        """An entry of the history: the values of the step that was just taken."""
        phase = {"fit/phase": 1.0 + len(self._past)}
        values = self.phase.entry(nll) | mean_coefficients(self.head) | phase
        values |= self._clock.lap(self.n_steps, self._pairs)
        self.history.append({"step": float(self.n_steps), **values})
        return values

    @property
    def log_unit(self) -> float:
        """What a negative log-likelihood per pair gains where densities are per unit of the data again."""
        return self.head.dim * self.units.log_length

    def nll_of(self, x: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
        """-log p of pairs in the units of the data, under the present phase, (n,)."""
        s, t = self.units.length, self.units.time
        return self.log_unit - self.likelihood.log_prob(x / s, dx / s, dt / t)

    def update_tcf(self) -> None:
        """After a step: the TCF of the parameters as they now are; mini-batch engines wait for `tail.start` steps."""
        engine = self.phase.engine
        if engine.full_batch or self.phase.steps >= engine.first_correction(self.tail.start):
            self.phase.update_tcf()

    def advance(self) -> None:
        """After a step and its TCF: go on to the next phase if this one has finished, or end the fit."""
        self.phase.judge()
        if self.phase.finished and self._unlogged is not None:
            self._log(self._unlogged)  # the last step of a mini-batch engine
        if self.course is None:
            self.done = self.phase.finished
        elif self.phase.finished:
            self._next(self.course)

    def run(self, progress: bool = False) -> Recovery:
        """All steps that are left, and the recovery."""
        line = ProgressLine(self) if progress else None
        try:
            while not self.done:
                report = self.step(self.batch())
                self.update_tcf()
                self.advance()
                if line is not None:
                    line.update(self, report.nll)
        finally:
            if line is not None:
                line.close()
        return self.recovery()

    def recovery(self) -> Recovery:
        """Of the head as it now is; a fit that is done also says everything that it has found out about itself."""
        if self._result is not None:
            return self._result[0]
        phase, facts = self.phase, {"engine": self.engine.name, "law": self.likelihood.law.name, "steps": self.n_steps}
        if self.course is not None and (x_range := self.course.data.facts.x_range) is not None:
            facts |= {"x_min": x_range[0], "x_max": x_range[1]}
        tcf, history = float(self.likelihood.correction.tcf), [dict(one) for one in self.history]
        return Recovery(copy.deepcopy(self.head), tcf, math.nan, phase.converged, phase.covariance(), facts, history)

    def result(self) -> tuple[Recovery, Likelihood]:
        """The recovery, and the likelihood it was judged by."""
        assert self._result is not None, "the fit is not done"
        return self._result

    # -- state --------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and tensors."""
        return {
            "phases": [*self._past, self._last or self.phase.state_dict()],
            "history": [dict(one) for one in self.history],
            "n_steps": self.n_steps,
            "done": self.done,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another Fit of the same problem was."""
        first, *later = state["phases"]
        self.phase.load_state_dict(first)
        for following in later if self.course is not None else ():
            assert self.course is not None
            self._next(self.course)
            if self.done or self.phase.name != following["name"]:
                raise InputError(
                    f"a resumed fit must go through the phases of its checkpoint, found {self.phase.name} instead of "
                    f"{following['name']}; resume with the version and the settings the run was started with."
                )
            self.phase.load_state_dict(following)
        self.history, self.n_steps = [dict(one) for one in state["history"]], int(state["n_steps"])
        self._clock = Clock(self.n_steps)
        if self.course is None:
            self.done = self.phase.finished
        elif state["done"] and self.phase.finished:
            self._next(self.course)

    # -- from phase to phase ------------------------------------------------------------------------------------------
    def _next(self, course: Course) -> None:
        """From a finished phase to the next one that is needed, or to the end."""
        finished = self.phase.state_dict()
        self.phase.head.cpu()  # where mini-batches may have left it; all that follows is done by compiled kernels
        following = self.phase.end()
        self.head = reported(course.problem.head, course.end.likelihood.head)
        while following is None and self._todo:
            following = self._todo.pop(0).begin(course)
        if following is None and self._conclude(course):
            self._last = finished
            return
        self._past.append(finished)
        self.phase = following or self.phase  # `_conclude` has begun once more

    def _conclude(self, course: Course) -> bool:
        """End the fit; or begin once more (False), where the counts beyond CT ask for other thresholds."""
        problem, answer = course.problem, course.answer
        assert answer is not None
        recovery, likelihood = answer.result()
        told_in(recovery, course.vanished)
        self._add_facts(recovery, course)
        if (out := problem.held_out) is not None:
            out = out.in_units(self.units.length, self.units.time)
            with torch.no_grad():
                total = sum(float(likelihood.log_prob(out.x[r], out.dx[r], out.dt[r]).sum()) for r in out.blocks())
            recovery.metrics["val/nll"] = self.log_unit - total / len(out)
        tail = problem.settings.tail
        other = None if self._before is not None else reconsidered(tail, recovery, problem.guessed_CT)
        if self.ranks.agree(other is not None):
            assert other is not None
            self._before = recovery
            head = problem.head
            again = problem_of(problem.data, replace(problem.settings, tail=other), fitted, head.flat())
            kept: dict[str, Any] = {"selection": problem.selection, "began": problem.began}
            if problem.elsewhere is not None:  # the data is a sample of what is fitted
                kept |= {"train": problem.train, "elsewhere": problem.elsewhere}
            self._begin(replace(again, head=head, **kept))
            return False
        if self._before is not None:
            carried = {key: self._before.metrics[key] for key in _CARRIED if key in self._before.metrics}
            recovery.metrics |= carried
        recovery.history = self.history
        self._result, self.done = (recovery, likelihood), True
        return True

    def _add_facts(self, recovery: Recovery, course: Course) -> None:
        """What a recovery says beside the answer of its last phase."""
        problem, settings = course.problem, course.problem.settings
        if course.data.blocks is not None:
            recovery.blocks = replace(course.data.blocks, law=course.end.likelihood.law, treatment=settings.tail)
        recovery.metrics |= engine_facts(self.engine, settings.engine_reason)
        if problem.selection is not None:
            chosen = problem.selection.summary()
            recovery.metrics["selection"] = chosen | {"held_out": [v - self.log_unit for v in chosen["held_out"]]}
        pairs = problem.data
        if settings.modulation is not None:
            pairs = pairs if self.head.period is not None else inside(pairs, self.head.bounds)
            assert isinstance(pairs, Transitions)
            modulate(recovery, pairs.in_units(self.units.length, self.units.time), settings)
        recovery.head = self.head
        summed = course.data.samples or course.data.fitted  # nodes at the ends of a window stand for parts of pairs
        recovery.log_likelihood -= summed.n_main * self.log_unit
        recovery.metrics["log_likelihood"] = recovery.log_likelihood
        recovery.metrics |= {"seed": settings.seed, "states": observed_states(recovery, problem.data).tolist()}
        if doubt := hardly_separable(recovery, recovery.metrics.get("D_o_D_f_correlation", 0.0)):
            warnings.warn(doubt, LevytorchWarning, stacklevel=2)
        if settings.modulation is not None:
            recovery.blocks = blocks_from(recovery, pairs) if len(pairs) <= MOST_PAIRS else None
        recovery.metrics["steps"], recovery.metrics["steps_of"] = self.n_steps, self._steps_of()
        recovery.metrics["seconds"] = time.perf_counter() - problem.began

    def _steps_of(self) -> dict[str, int]:
        """Steps of every phase, in their order."""
        out: dict[str, int] = {}
        past = [(state["name"], int(state["steps"])) for state in self._past]
        for name, steps in (*past, (self.phase.name, self.phase.steps)):
            out[name] = out.get(name, 0) + steps
        return out


def reported(head: Head, fitted: Head) -> Head:
    """The head in the units of the data with the parameters of the one that was fitted.

    head: that of the problem, which has one more coefficient where one has vanished.
    """
    gone = set(fitted.known) - set(head.known)
    if fitted.scale == Units() or not gone:
        return fitted if fitted.scale == Units() else head
    assert isinstance(head, LinearHead)
    assert isinstance(fitted, LinearHead)
    out = held(head, gone.pop(), 0.0)
    out.theta = fitted.theta
    return out


def prepared(data: Transitions | Lattice, settings: FitSettings, start: Tensor | None = None) -> Fit:
    """A fit with everything settled that was left to the data, before its first step."""
    return posed(problem_of(data, settings, fitted, start))


def posed(problem: Problem) -> Fit:
    """The fit of a problem, once what it leaves open has been chosen."""
    if problem.settings.left_open:
        problem.batches = all_data(problem, Ranks())
    return Fit.of(problem.closed())


def fitted(
    data: Transitions | Lattice, settings: FitSettings, *, start: Tensor | None = None, ranks: Ranks | None = None
) -> Recovery:
    """The recovery of data under settings; with several ranks each of them calls this."""
    fit = prepared(data, settings, start)
    fit.attach(ranks)
    return fit.run(settings.progress)
