"""The one driver of every fit: phases in their order, step by step.

`recover` advances a Fit in a plain loop; under Lightning `LevyModule` holds the same object and one training step is
one `Fit.step`. Whatever decides the result happens here, so that both give the same numbers:

    frozen      the engine maximises the likelihood with coefficients frozen over a step
    corrected   rounds on the frozen law's score, centered by the exact law (linear heads)
    exact       the engine goes on under the exact law of a step

Which of the last two follow is decided after the first, from the settings and the data (law_choice.py). At the end
`_conclude` makes the Recovery. If the counts beyond CT then ask for other thresholds, the phases are run once more.

The state of a fit is the list of the states of its phases. Resuming restores them one after the other and repeats the
decisions in between, which depend on nothing else; no step is taken twice.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from levytorch.coefficients import Head, LinearHead
from levytorch.coefficients.padded import on_a_cell
from levytorch.data import Pools, Transitions
from levytorch.data.batches import Batch, FullBatch
from levytorch.data.drawing import Drawer
from levytorch.data.lattice import Lattice
from levytorch.errors import InputError, LevytorchWarning
from levytorch.law.threads import spread
from levytorch.likelihood.exact_rule import TOLERANCE
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.likelihood import N_BINS, Likelihood
from levytorch.likelihood.tail import TailSettings
from levytorch.ranks import Ranks
from levytorch.training.blocks import MOST_PAIRS
from levytorch.training.boundary import told_in, without_vanished
from levytorch.training.engines.base import Clock, Engine, Maximised, engine_facts, entry
from levytorch.training.engines.exact import ExactEngine, ExactLBFGS, ExactObjective
from levytorch.training.engines.lbfgs import LBFGSEngine
from levytorch.training.finish import Ended, finish
from levytorch.training.law_choice import (
    GOOD,
    MOVED,
    TIGHTER,
    FitUnderLaw,
    affordable,
    off_by,
    unavailable,
    without_drift_bias,
)
from levytorch.training.modulation import modulate
from levytorch.training.phases import ROUNDS, CenteredRounds, Maximise, MaximiseExactly, Phase
from levytorch.training.problem import Problem, all_data, problem_of
from levytorch.training.progress import ProgressLine
from levytorch.training.recovery import Recovery
from levytorch.training.resampling import blocks_from
from levytorch.training.settings import FitSettings
from levytorch.training.start import inside, reconsidered

N_MIN = 100  # tail visits for a stable average: the paper's n_min
_ATTEMPTS = 2  # under the exact law: coefficients that have moved far ask for another grid
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
        density: how log p is computed.
        seed: of the engine's own randomness and of mini-batches.
        log_every: steps of a mini-batch engine between two entries of the history.

    Without `attach` a Fit has one phase under the frozen law and takes its batches from the caller.
    """

    def __init__(
        self,
        head: Head,
        engine: Engine,
        tail: TailSettings | None = None,
        density: str = "auto",
        seed: int = 0,
        log_every: int = 50,
    ) -> None:
        engine.accepts(head)
        self.head, self.engine, self.tail = head, engine, tail or TailSettings()
        self.density, self.seed, self.log_every = density, seed, log_every
        self.problem: Problem | None = None
        self.ranks = Ranks()
        self.history: list[dict[str, float]] = []
        self.n_steps = 0
        self.done = False
        self._past: list[dict[str, Any]] = []  # states in which phases have ended
        self._last: dict[str, Any] | None = None  # the same of the last one, once the fit is done
        self._clock = Clock()
        self._result: tuple[Recovery, Likelihood] | None = None
        self._before: Recovery | None = None  # the first of two fits, where thresholds were reconsidered
        self.phase: Phase = Maximise("frozen", engine, self._frozen_likelihood())

    @classmethod
    def of(cls, problem: Problem) -> Fit:
        """The fit that a problem poses, at its start."""
        s = problem.settings
        fit = cls(problem.head, s.engine, s.tail, s.density, s.seed, s.log_every)
        fit.problem = problem
        return fit

    def _frozen_likelihood(self) -> Likelihood:
        law = FrozenLaw(steady_method(self.density, self.head), self.head.dim)
        return Likelihood(self.head, law, self.tail)

    # -- data ---------------------------------------------------------------------------------------------------------
    def attach(self, ranks: Ranks | None = None) -> None:
        """Make batches of the data of the problem; with several ranks each of them calls this."""
        assert self.problem is not None
        self.ranks = ranks or Ranks()
        self._begin(self.problem)

    def _begin(self, problem: Problem) -> None:
        """The first phase of a problem."""
        settings = problem.settings
        self.problem, self.head, self.tail = problem, problem.head, settings.tail
        alone = problem.batches if self.ranks.world == 1 else None
        data = self.batches = alone or all_data(problem, self.ranks)
        likelihood = self._frozen_likelihood()
        likelihood.observe(data.observed, self.engine.n_bins)
        if not data.from_lattice:
            likelihood.ranks = self.ranks
        self.phase = Maximise("frozen", self.engine, likelihood, data.fitted)
        self._drawer: Drawer | None = None
        self._law, self._reason, self._attempt = settings.law, "asked for", 0
        self._setting: FitUnderLaw | None = None

    def batch(self) -> Batch | FullBatch:
        """The batch of the next step: a pure function of the phase, the step and the TCF."""
        phase, tcf = self.phase, float(self.phase.likelihood.correction.tcf)
        if phase.batch is not None and phase.engine.full_batch:
            return phase.batch._replace(tcf=tcf)
        if self._drawer is None:
            assert self.problem is not None
            pools = cast(Pools, self.batches.observed)
            self._drawer = Drawer(pools, **self.problem.drawing(), rank=self.ranks.rank, world=self.ranks.world)
        return self._drawer.draw(phase.steps, tcf if self._drawer.pools.n_tail else 0.0)

    # -- steps --------------------------------------------------------------------------------------------------------
    @property
    def likelihood(self) -> Likelihood:
        """Of the present phase."""
        return self.phase.likelihood

    @property
    def most_steps(self) -> int:
        """No fit takes more steps than this."""
        if self.problem is None or not self.engine.full_batch:
            return self.engine.max_steps * (1 if self.problem is None else 2)
        return 2 * ((1 + _ATTEMPTS) * self.engine.max_steps + 2 * (ROUNDS + 1))

    def step(self, batch: Batch | FullBatch) -> StepReport:
        """One step of the present phase."""
        phase = self.phase
        if phase.engine.full_batch and isinstance(batch, Batch):
            batch = FullBatch(batch, None, float(batch.weight.sum()), 0)
        values = phase.step(batch, self.seed)
        self.n_steps += 1
        nll = float(values["train/nll"])
        logged = phase.engine.full_batch or self.n_steps % self.log_every == 0
        if logged:
            if not phase.engine.full_batch:
                values = entry(phase.likelihood, phase.optimizer, nll)
            n = batch.n_main if isinstance(batch, FullBatch) else batch[0].shape[0] * self.ranks.world
            values = values | self._clock.lap(self.n_steps, n)
            self.history.append({"step": float(self.n_steps), **values})
        return StepReport(self.n_steps, phase.name, nll, values if logged else {})

    def update_tcf(self) -> None:
        """After a step: the TCF of the parameters as they now are; mini-batch engines wait for `tail.start` steps."""
        if self.phase.engine.full_batch or self.phase.steps >= self.tail.start:
            self.phase.update_tcf()

    def advance(self) -> None:
        """After a step and its TCF: go on to the next phase if this one has finished, or end the fit."""
        self.phase.judge()
        if self.problem is None:
            self.done = self.phase.finished
        elif self.phase.finished:
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
        """Of a fit that is done."""
        return self.result()[0]

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
        for following in later if self.problem is not None else ():
            self._next()
            if self.done or self.phase.name != following["name"]:
                raise InputError(
                    f"a resumed fit must go through the phases of its checkpoint, found {self.phase.name} instead of "
                    f"{following['name']}; resume with the version and the settings the run was started with."
                )
            self.phase.load_state_dict(following)
        self.history, self.n_steps = [dict(one) for one in state["history"]], int(state["n_steps"])
        self._clock = Clock(self.n_steps)
        if state["done"] and self.problem is not None and self.phase.finished:
            self._next()
        elif self.problem is None:
            self.done = self.phase.finished

    # -- the order of phases ------------------------------------------------------------------------------------------
    def _next(self) -> None:
        """From a finished phase to the next one, or to the end."""
        finished = self.phase.state_dict()
        self.phase.close()
        following = {"frozen": self._after_frozen, "corrected": self._after_corrected, "exact": self._after_exact}
        phase = following[self.phase.name]()
        if phase is None:
            self._last = finished
        else:
            self._past.append(finished)
            self.phase = phase

    def _after_frozen(self) -> Phase | None:
        problem = cast(Problem, self.problem)
        self._frozen = cast(Maximise, self.phase)
        self._ended, self._vanished = without_vanished(self._end_of_frozen())
        head = self.head = self._ended.likelihood.head  # another one where a coefficient has vanished
        if self._law == "frozen":
            return self._conclude(lambda: self._ended.frozen())
        if self._law == "auto" and head.is_constant:
            return self._conclude(lambda: self._ended.frozen("constant coefficients, for which it is exact"))
        lacking = unavailable(head, problem.data)
        if lacking is not None:
            why = f"the exact law must have {lacking[0]}, found {lacking[1]}"
            return self._conclude(lambda: without_drift_bias(self._ended, self._law, why))
        self._law_began = time.perf_counter()
        cell = on_a_cell(head)
        setting = self._setting = FitUnderLaw(
            replace(self._ended.likelihood, head=cell), self.engine, self._ended.observed, self.ranks
        )
        if self._law == "auto":
            law, self._reason = affordable(setting, cell)
            if law == "frozen":
                return self._conclude(lambda: without_drift_bias(self._ended, "auto", self._reason))
            self._law = law
        if not isinstance(cell, LinearHead):
            return self._exactly()
        self._penalty = self.engine.objective(
            self._ended.likelihood, self._ended.done.optimizer, self._ended.batch
        ).penalty
        self._frozen_end = cell.flat(), None if self._penalty is None else self._penalty.state()
        return self._rounds()

    def _end_of_frozen(self) -> Ended:
        phase, data = self._frozen, self.batches
        likelihood = phase.likelihood
        if not self.engine.full_batch:
            likelihood = replace(likelihood, head=self.head)
            likelihood.observe(data.observed, N_BINS)
        # a lattice without pairs is whole on every rank
        likelihood.ranks = Ranks() if isinstance(cast(Problem, self.problem).train, Lattice) else self.ranks
        return Ended(
            likelihood, self.engine, phase.done, data.fitted, data.observed, data.facts, data.samples, self.ranks
        )

    def _rounds(self) -> Phase:
        setting = cast(FitUnderLaw, self._setting)
        objective = setting.around(self._penalty)
        return CenteredRounds(self.engine, setting.likelihood, objective, setting.law, setting.strata)

    def _after_corrected(self) -> Phase | None:
        problem, setting = cast(Problem, self.problem), cast(FitUnderLaw, self._setting)
        rounds = cast(CenteredRounds, self.phase)
        setting.settle()
        if self._attempt == 0 and setting.tolerance > TOLERANCE and not setting.error() < setting.accurate:
            self._attempt = 1
            setting.tolerance = max(TIGHTER * setting.tolerance, TOLERANCE)
            setting.settle()
            return self._rounds()
        self._attempt = 0
        self._first = rounds.corrected
        head, (before, strengths) = setting.likelihood.head, self._frozen_end
        if problem.settings.law == "auto":
            far = off_by(self._first, head, before, self._penalty, setting.strata.n)
            if self.ranks.agree(far < GOOD):
                head.set_flat(before)
                if self._penalty is not None and strengths is not None:
                    self._penalty.restore(strengths)
                return self._conclude(
                    lambda: self._ended.frozen(f"it is off by less than {GOOD} standard errors everywhere")
                )
        if self._law == "exact":
            return self._exactly()
        return self._conclude(self._of_corrected)

    def _exactly(self) -> Phase:
        """The next attempt under the exact law."""
        setting, engine = cast(FitUnderLaw, self._setting), self.engine
        if not isinstance(setting.likelihood.head, LinearHead):
            own = engine if isinstance(engine, LBFGSEngine) else LBFGSEngine(engine.max_steps)
            options = {name: getattr(own, name) for name in ("max_steps", "iterations", "history", "tolerance")}
            return Maximise("exact", ExactLBFGS(**options, law=setting.law), setting.exact_likelihood(), setting.batch)
        self._exact_began = setting.likelihood.head.flat()
        return MaximiseExactly(self._exact_engine(), setting.likelihood, setting.batch)

    def _exact_engine(self) -> ExactEngine:
        setting, std = cast(FitUnderLaw, self._setting), cast(Problem, self.problem).settings.std
        found = setting.informations(self._first.R_theta)
        engine = ExactEngine(
            max_steps=self.engine.max_steps,
            n_bins=self.engine.n_bins,
            law=setting.law,
            start=self._penalty,
            own=found.exact if self._law == "exact" else found.corrected,
            moves=self._law == "exact",
            each=std == "frozen",  # whose covariance is made of the gradients of the pools
            renewed=lambda R_theta: setting.informations(R_theta).exact,
        )
        engine.name = self.engine.name
        return engine

    def _after_exact(self) -> Phase | None:
        setting, phase = cast(FitUnderLaw, self._setting), cast(Maximise, self.phase)
        latest: list[Any] = []
        if isinstance(phase, MaximiseExactly):
            objective, std = phase.objective, cast(Problem, self.problem).settings.std
            assert objective.own is not None
            moved = setting.likelihood.head.flat() - self._exact_began
            used = cast(ExactEngine, phase.engine).own
            assert used is not None
            again = std != "frozen" and float(objective.n * moved @ used.products @ moved) > MOVED**2
            jobs: list[Callable[[], Any]] = [setting.error]
            jobs += [partial(setting.informations, phase.done.R_theta)] if again else []
            error, *latest = spread(lambda job: job(), jobs)
        else:
            error = setting.error()
        self._attempt += 1
        if not error < setting.accurate and self._attempt < _ATTEMPTS:
            setting.settle()
            return self._exactly()
        if isinstance(phase, MaximiseExactly):
            return self._conclude(lambda: self._of_linear(phase.engine, phase.done, phase.objective, error, latest))
        return self._conclude(lambda: self._of_any(phase, error))

    # -- conclusions --------------------------------------------------------------------------------------------------
    def _of_corrected(self) -> tuple[Recovery, Likelihood]:
        """The recovery at the root of the centered score."""
        setting = cast(FitUnderLaw, self._setting)
        for _ in range(_ATTEMPTS):
            engine = self._exact_engine()
            done = Maximised(engine.optimizer(setting.likelihood), self._first.converged, len(self._first.distances))
            objective = cast(ExactObjective, engine.objective(setting.likelihood, done.optimizer, setting.batch))
            error = setting.error()
            if error < setting.accurate:
                break
            setting.settle()
        return self._of_linear(engine, done, objective, error, [])

    def _of_linear(
        self, engine: Engine, done: Maximised, objective: ExactObjective, error: float, latest: list[Any]
    ) -> tuple[Recovery, Likelihood]:
        setting, first, law = cast(FitUnderLaw, self._setting), self._first, self._law
        std = cast(Problem, self.problem).settings.std
        if std == "frozen":
            objective.own = None
        elif latest:
            objective.own = latest[0].exact
        metrics = {
            "law/rounds": len(first.distances) - 1,
            "law/evaluations": objective.evaluations,
            "covariance": "frozen" if std == "frozen" else law,
        }
        return self._under_law(setting.likelihood, engine, done, error, law, metrics)

    def _of_any(self, phase: Maximise, error: float) -> tuple[Recovery, Likelihood]:
        evaluations = cast(ExactLBFGS, phase.engine).evaluations
        likelihood = cast(FitUnderLaw, self._setting).exact_likelihood()
        return self._under_law(likelihood, phase.engine, phase.done, error, "exact", {"law/evaluations": evaluations})

    def _under_law(
        self, mine: Likelihood, engine: Engine, done: Maximised, error: float, law: str, metrics: dict[str, Any]
    ) -> tuple[Recovery, Likelihood]:
        """The recovery of a fit that has ended under the exact or the corrected law."""
        setting = cast(FitUnderLaw, self._setting)
        ended = replace(self._ended, likelihood=mine, engine=engine, done=done, batch=setting.batch, samples=None)
        recovery = finish(ended)
        recovery.metrics |= setting.metrics(law, error) | metrics
        head = setting.likelihood.head
        head.set_flat(self.ranks.same(head.flat()))
        recovery.metrics |= {"law_reason": self._reason, "law/seconds": time.perf_counter() - self._law_began}
        recovery.head = self.head  # on a line the padded head has the same parameters
        likelihood = setting.exact_likelihood()
        likelihood.ranks = self.ranks
        return recovery, likelihood

    def _conclude(self, make: Callable[[], tuple[Recovery, Likelihood]]) -> Phase | None:
        """End the fit; or begin once more, where the counts beyond CT ask for other thresholds."""
        problem = cast(Problem, self.problem)
        settings = problem.settings
        self._check_tcf()
        recovery, likelihood = make()
        told_in(recovery, self._vanished)
        if self.batches.blocks is not None:
            law = cast(FrozenLaw, self._ended.likelihood.law)
            recovery.blocks = replace(self.batches.blocks, law=law, treatment=settings.tail)
        recovery.metrics |= engine_facts(self.engine, settings.engine_reason)
        if problem.selection is not None:
            recovery.metrics["selection"] = problem.selection.summary()
        if settings.modulation is not None:
            pairs = problem.data if recovery.period is not None else inside(problem.data, recovery.head.bounds)
            assert isinstance(pairs, Transitions)
            modulate(recovery, pairs, settings)
            recovery.blocks = blocks_from(recovery, pairs) if len(pairs) <= MOST_PAIRS else None
        recovery.metrics["seconds"] = time.perf_counter() - problem.began
        if (out := problem.held_out) is not None:
            with torch.no_grad():
                total = sum(float(likelihood.log_prob(out.x[r], out.dx[r], out.dt[r]).sum()) for r in out.blocks())
            recovery.metrics["val/nll"] = -total / len(out)
        other = None if self._before is not None else reconsidered(settings.tail, recovery, problem.guessed_CT)
        if self.ranks.agree(other is not None):
            assert other is not None
            self._before = recovery
            head = problem.head
            again = problem_of(problem.data, replace(settings, tail=other), fitted, head.flat())
            self._begin(replace(again, head=head, selection=problem.selection, began=problem.began))
            return self.phase
        if self._before is not None:
            carried = {key: self._before.metrics[key] for key in _CARRIED if key in self._before.metrics}
            recovery.metrics |= carried
        recovery.history = self.history
        self._result, self.done = (recovery, likelihood), True
        return None

    def _check_tcf(self) -> None:
        """Warn of a TCF that was never used, or that an average over too few steps makes noisy."""
        tcf, start, steps = self._ended.likelihood.correction.tcf, self.tail.start, self._frozen.steps
        if self.engine.full_batch or self.tail.method != "tcf":
            return
        if steps < start:
            warnings.warn(
                f"the tail correction must start before the fit ends, found tail.start = {start} and only {steps} "
                "steps: the tail pool was never mixed in and D_f is too small; lower tail.start or raise "
                "engine.max_steps.",
                LevytorchWarning,
                stacklevel=2,
            )
        elif tcf > 0 and (window := min(self.engine.window, steps)) < N_MIN / tcf:
            warnings.warn(
                f"the moving average covers {window} steps, but a TCF of {tcf:.2g} calls for about {N_MIN / tcf:.0f} "
                f"(n_min / TCF): D_f is noisy; raise engine.max_steps and engine.window, or use a full-batch engine.",
                LevytorchWarning,
                stacklevel=2,
            )


def prepared(data: Transitions | Lattice, settings: FitSettings, start: Tensor | None = None) -> Fit:
    """A fit with everything settled that was left to the data, before its first step."""
    problem = problem_of(data, settings, fitted, start)
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
