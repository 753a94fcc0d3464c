"""The one driver of every fit: the phases of a plan in their order, step by step.

`recover` advances a Fit in a plain loop; under Lightning `LevyModule` holds the same object and one training step is
one `Fit.step`. Whatever decides the result happens here, so that both give the same numbers. The first phase, Prepare,
settles what was left to the data; `training.phases.PLANS` is the order of the others, and the phase whose parameters
stand at the end makes the Recovery. If the counts beyond CT then ask for other thresholds, the others are run again.

Phases work in units in which a step of the data is of order one (`Problem.units`); their head and the one that is
reported, in the units of the data, share their parameters. What is logged is in the units of the data.

The state of a fit is the list of the states of its phases. Resuming restores them one after the other and repeats the
decisions in between, which depend on nothing else; no step is taken twice.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from levytorch.coefficients import Head
from levytorch.coefficients.head import Units
from levytorch.data import Pools, Transitions
from levytorch.data.batches import Batch, FullBatch
from levytorch.data.drawing import Drawer
from levytorch.data.lattice import Lattice
from levytorch.errors import InputError
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.laws import Law
from levytorch.likelihood.likelihood import Likelihood, mean_coefficients
from levytorch.likelihood.tail import TailSettings
from levytorch.ranks import Ranks
from levytorch.training.engines.base import Clock, Engine
from levytorch.training.outcome import outcome, reported_head
from levytorch.training.phases import Course, Maximise, Phase, Plan, plan_of
from levytorch.training.phases.base import first_law
from levytorch.training.phases.prepare import Prepare
from levytorch.training.problem import Problem, all_data, unwrapped
from levytorch.training.progress import ProgressLine
from levytorch.training.recovery import Recovery
from levytorch.training.selection import MOST_CANDIDATES
from levytorch.training.settings import FitSettings
from levytorch.training.start import reconsidered

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

    Such a Fit takes its batches from the caller. `Fit.of` makes one with data of its own.

    Attributes:
        data: of a fit that has data of its own.
        settings: likewise; None for a fit without.
        problem: what is fitted, once Prepare has posed it.
        n_steps: steps of all phases so far. The first step of Prepare, which maximises nothing, is not counted.
    """

    data: Transitions | Lattice

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
        self.settings: FitSettings | None = None
        self.problem: Problem | None = None
        self.course: Course | None = None
        self.ranks = Ranks()
        self.history: list[dict[str, float]] = []
        self.n_steps = 0
        self.done = False
        self._finished: list[dict[str, Any]] = []  # states in which phases have ended
        self._following: list[type[Phase]] = []  # phases of the plan that have not had their turn
        self._clock = Clock()
        self._result: tuple[Recovery, Likelihood] | None = None
        self._before: Recovery | None = None  # the first of two fits, where thresholds were reconsidered
        self._drawer: Drawer | None = None
        self._pairs: float = 0.0  # of the last step
        self._unlogged: float | None = None  # its likelihood, where it has no entry in the history
        self.phase: Phase = self._alone()

    def _alone(self) -> Phase:
        """The only phase of a fit without data of its own."""
        law = first_law(ExactLaw() if self.law == "exact" else self.law, self.density, self.head)
        return Maximise("frozen" if law.name == "frozen" else "own", self.engine, Likelihood(self.head, law, self.tail))

    @classmethod
    def of(
        cls,
        data: Transitions | Lattice,
        settings: FitSettings,
        start: Tensor | None = None,
        problem: Problem | None = None,
    ) -> Fit:
        """The fit of data under settings, before its first step.

        start: the first parameters; problem: one that is posed already, of which data is a sample.
        """
        if isinstance(data, Transitions):
            data = unwrapped(settings.head, data)
        prepare = Prepare(data, settings, fitted, start, problem)
        s = prepare.settings
        fit = cls(s.head, s.engine, s.tail, s.law, s.density, s.seed, s.log_every)
        fit.settings, fit.data, fit.phase = s, data, prepare
        return fit

    # -- batches ------------------------------------------------------------------------------------------------------
    def batch(self) -> Batch | FullBatch:
        """The batch of the next step: a pure function of the phase, the step and the TCF."""
        phase, tcf = self.phase, float(self.phase.likelihood.correction.tcf)
        if phase.batch is not None and phase.engine.full_batch:
            return phase.batch._replace(tcf=tcf)
        if self._drawer is None:
            assert self.problem is not None
            assert self.course is not None
            pools = self.course.data.observed
            assert isinstance(pools, Pools)
            self._drawer = Drawer(pools, **self.problem.drawing(), rank=self.ranks.rank, world=self.ranks.world)
        return self._drawer.draw(phase.steps, tcf if self._drawer.pools.n_tail else 0.0)

    # -- steps --------------------------------------------------------------------------------------------------------
    @property
    def likelihood(self) -> Likelihood:
        """Of the present phase."""
        return self.phase.likelihood

    @property
    def units(self) -> Units:
        """Those in which the phases work."""
        return Units() if self.problem is None else self.problem.units

    @property
    def most_steps(self) -> int:
        """No fit takes more steps than this."""
        if self.settings is None:
            return self.engine.max_steps
        later = sum(phase.most_steps(self.engine) for phase in self._plan(self.settings))
        return 1 + MOST_CANDIDATES + 2 * later

    def _plan(self, settings: FitSettings) -> Plan:
        return plan_of(settings.law, self.engine, noisy=settings.observation_noise is not None)

    def step(self, batch: Batch | FullBatch) -> StepReport:
        """One step of the present phase."""
        phase, counted = self.phase, self.phase.counted
        full = phase.engine.full_batch
        if full and isinstance(batch, Batch):
            batch = FullBatch(batch, None, float(batch.weight.sum()), 0)
        nll = phase.step(batch, self.seed)
        if isinstance(phase, Prepare):
            self.problem, self.head = phase.problem, phase.head
        if not counted:
            return StepReport(self.n_steps, phase.name, math.nan, {})
        nll += self.log_unit * self._weight(batch)
        self.n_steps += 1
        self._pairs = batch.n_main if isinstance(batch, FullBatch) else batch[0].shape[0] * self.ranks.world
        logged = full or self.n_steps % self.log_every == 0
        self._unlogged = None if logged else nll
        return StepReport(self.n_steps, phase.name, nll, self._log(nll) if logged else {})

    def _weight(self, batch: Batch | FullBatch) -> float:
        """Of all pairs of a step, whose likelihood is the mean over processes that each have drawn a batch."""
        if isinstance(batch, FullBatch) or self.log_unit == 0.0:
            return 1.0
        return float(self.ranks.mean(batch.weight.sum()))

    def _log(self, nll: float) -> dict[str, float]:
        """An entry of the history: the values of the step that was just taken."""
        number = len(self._finished) + (self.settings is None)  # Prepare has number 0
        values = self.phase.entry(nll) | mean_coefficients(self.head) | {"fit/phase": float(number)}
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
        """After a step and its TCF: continue with the next phase if this one has finished, or end the fit."""
        self.phase.judge()
        if not self.phase.finished:
            return
        if self._unlogged is not None:
            self._log(self._unlogged)  # the last step of a mini-batch engine
        if self.settings is None:
            self.done = True
        else:
            self._next()

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
        maximum = self.done and self.settings is not None  # then the last phase is among those that have finished
        return {
            "phases": list(self._finished) if maximum else [*self._finished, self.phase.state_dict()],
            "history": [dict(one) for one in self.history],
            "n_steps": self.n_steps,
            "done": self.done,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of another Fit of the same problem."""
        phases = state["phases"]
        if self.settings is None and (len(phases) > 1 or phases[0]["name"] == Prepare.name):
            # of a fit with data of its own, from which a module without data takes its head and its TCF
            if "correction" in phases[-1]:
                self.likelihood.correction.load_state_dict(phases[-1]["correction"])
        else:
            for number, saved in enumerate(phases):
                if number:
                    self._next()
                if self.done or self.phase.name != saved["name"]:
                    raise InputError(
                        f"a resumed fit must go through the phases of its checkpoint, found {self.phase.name} instead "
                        f"of {saved['name']}; resume with the version and the settings the run was started with."
                    )
                self.phase.load_state_dict(saved)
                if isinstance(self.phase, Prepare):
                    self.problem, self.head = self.phase.problem, self.phase.head
        self.history, self.n_steps = [dict(one) for one in state["history"]], int(state["n_steps"])
        self._clock = Clock(self.n_steps)
        if self.settings is None:
            self.done = self.phase.finished
        elif state["done"] and self.phase.finished:
            self._next()

    # -- from phase to phase ------------------------------------------------------------------------------------------
    def _next(self) -> None:
        """From a finished phase to the next one that is needed, or to the end."""
        following = self._after_prepare(self.phase) if isinstance(self.phase, Prepare) else self._after(self.phase)
        if following is None:
            self.done = True
        else:
            self.phase = following

    def _after_prepare(self, phase: Prepare) -> Phase:
        assert phase.problem is not None
        self._finished.append(phase.state_dict())
        return self._begin(phase.problem)

    def _begin(self, problem: Problem) -> Phase:
        """The first phase of a problem."""
        s = problem.settings
        self.problem, self.head, self.engine, self.tail, self.law = problem, problem.head, s.engine, s.tail, s.law
        data = problem.batches or all_data(problem)
        head = problem.head if self.units == Units() else problem.head.in_units(self.units)
        self.course, self._drawer = Course(problem, head, data, s.engine, self.ranks, s.law), None
        first, *self._following = self._plan(s)
        phase = first.begin(self.course)
        assert phase is not None
        return phase

    def _after(self, phase: Phase) -> Phase | None:
        """The phase that follows, also after the end of a first of two fits; None: the fit is done."""
        course = self.course
        assert course is not None
        self._finished.append(phase.state_dict())
        phase.head.cpu()  # where mini-batches may have left it; all that follows is done by compiled kernels
        following = phase.end()
        self.head = reported_head(course)
        while following is None and self._following:
            following = self._following.pop(0).begin(course)
        return following or self._conclude(course)

    def _conclude(self, course: Course) -> Phase | None:
        """End the fit; or begin once more, where the counts beyond CT ask for other thresholds."""
        recovery, likelihood = outcome(course, self.head)
        problem = course.problem
        other = None if self._before is not None else reconsidered(problem.settings.tail, recovery, problem.guessed_CT)
        if other is not None:
            self._before = recovery
            return self._begin(replace(problem, settings=replace(problem.settings, tail=other), batches=None))
        if self._before is not None:
            carried = {key: self._before.metrics[key] for key in _CARRIED if key in self._before.metrics}
            recovery.metrics |= carried
        recovery.metrics |= {"steps": self.n_steps, "steps_of": self._steps_of()}
        recovery.history = self.history
        self._result = (recovery, likelihood)
        return None

    def _steps_of(self) -> dict[str, int]:
        """Steps of every phase that has taken any, in their order."""
        out: dict[str, int] = {}
        for state in self._finished:
            if state["steps"]:
                out[state["name"]] = out.get(state["name"], 0) + int(state["steps"])
        return out


def fitted(data: Transitions | Lattice, settings: FitSettings, *, start: Tensor | None = None) -> Recovery:
    """The recovery of data under settings."""
    return Fit.of(data, settings, start).run(settings.progress)
