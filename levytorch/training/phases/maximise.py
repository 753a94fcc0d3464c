"""An engine maximises a likelihood, under the frozen law (before other phases) or under a law of the user's own."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from levytorch.data.batches import Batch, FullBatch
from levytorch.errors import LevytorchWarning
from levytorch.likelihood.likelihood import N_BINS, Likelihood
from levytorch.likelihood.penalty import symmetric_inverse
from levytorch.training.averaging import HeldOutWatch, MovingAverage, has_settled
from levytorch.training.boundary import without_vanished
from levytorch.training.engines.base import Engine, Maximised
from levytorch.training.phases.base import Course, Phase, first_law
from levytorch.training.recovery import Recovery
from levytorch.training.report import Maximum, finish

N_MIN = 100  # tail visits for a stable average: the paper's n_min
GOOD = 0.1  # standard errors that the frozen law may be off


class Maximise(Phase):
    """Steps of an engine. Mini-batch engines end at the moving average of their steps."""

    optimizer: Optimizer

    def __init__(self, name: str, engine: Engine, likelihood: Likelihood, batch: FullBatch | None = None) -> None:
        self.name, self.engine, self.likelihood, self.batch = name, engine, likelihood, batch
        self.max_steps = engine.max_steps
        self.optimizer = engine.optimizer(likelihood)
        self.average = None if engine.full_batch else MovingAverage(engine.window)
        self.watch: HeldOutWatch | None = None

    @property
    def finished(self) -> bool:
        stopped = self.watch is not None and self.watch.stopped
        return stopped or (self.converged and self.engine.stop_early) or self.steps >= self.max_steps

    @property
    def done(self) -> Maximised:
        """How it went."""
        return Maximised(self.optimizer, self.converged, self.steps)

    def step(self, batch: Batch | FullBatch, seed: int) -> float:
        nll = self.engine.step(self.likelihood, self.optimizer, batch, self.steps, seed)
        self.steps += 1
        return float(nll)

    def judge(self) -> None:
        if self.average is None:
            self.converged = self.engine.converged(self.optimizer)
            return
        theta = self.head.flat()
        self.average.add(theta)
        if self.watch is not None:
            self.watch.add(theta)
        if self.average.full and not self.average.filled and self.engine.may_settle(self.steps):
            self.converged = has_settled(self.average.block_means(), self.engine.tolerance)

    def end(self) -> Phase | None:
        if self.watch is not None and self.watch.stopped:
            self.head.set_flat(self.watch.best)
        elif self.average is not None and self.average.steps:
            self.head.set_flat(self.average.average())
        return None

    def covariance(self) -> Tensor | None:
        objective, accepted = (getattr(self.optimizer, name, None) for name in ("objective", "accepted"))
        if objective is None or accepted is None:
            return None
        own = objective.covariance_of_law()
        if own is None:
            own = symmetric_inverse(objective.penalised_information(accepted))
        return own if accepted.frame is None else accepted.frame.covariance_of_head(own)

    def state_dict(self) -> dict[str, Any]:
        own = {"optimizer": self.optimizer.state_dict()}
        if self.average is not None:
            own["average"] = self.average.state_dict()
        if self.watch is not None:
            own["watch"] = self.watch.state_dict()
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self.watch is not None:
            self.watch.load_state_dict(state["watch"])


class OwnLaw(Maximise):
    """The first phase, and the only one under a law of the user's own: all data, or draws from it."""

    name = "own"

    def __init__(self, course: Course) -> None:
        self.course, data, settings = course, course.data, course.problem.settings
        head = course.head
        likelihood = Likelihood(head, first_law(course.law, settings.density, head), settings.tail)
        likelihood.observe(data.observed, course.engine.n_bins)
        likelihood.ranks = course.ranks
        super().__init__(self.name, course.engine, likelihood, data.fitted)
        out, units = course.problem.held_out, course.problem.units
        if not self.engine.full_batch and self.engine.patience and out is not None:
            pairs = out.in_units(units.length, units.time)
            self.watch = HeldOutWatch(likelihood, pairs, self.engine.look_every, self.engine.patience)

    @classmethod
    def begin(cls, course: Course) -> Phase | None:
        return cls(course)

    def end(self) -> Phase | None:
        super().end()
        course, data, likelihood = self.course, self.course.data, self.likelihood
        if not self.engine.full_batch:
            likelihood = replace(likelihood, head=self.head)
            likelihood.observe(data.observed, N_BINS)
        batches = (data.fitted, data.observed, data.facts, data.samples)
        course.maximum = Maximum(likelihood, self.engine, self.done, *batches)
        course.answer = self
        return None

    def result(self) -> tuple[Recovery, Likelihood]:
        self._check_tcf()
        recovery = finish(self.course.end)
        recovery.metrics |= {"law": self.likelihood.law.name, "law_reason": self.course.reason}
        recovery.own_law = self.likelihood.law
        return recovery, self.course.end.likelihood

    def _check_tcf(self) -> None:
        """Warn of a TCF that was never used, or that an average over too few steps makes noisy.

        A later phase, whose answer then stands instead of this one, may have used it.
        """
        tail, steps = self.likelihood.tail, self.steps
        tcf = self.likelihood.correction.tcf
        if self.engine.full_batch or tail.method != "tcf":
            return
        start = self.engine.first_correction(tail.start)
        if steps < start:
            warnings.warn(
                f"the tail correction must start before the fit ends, found tail.start = {start} and only {steps} "
                "steps: the tail pool was never mixed in and D_f is too small; lower tail.start or raise "
                "max_steps.",
                LevytorchWarning,
                stacklevel=2,
            )
        elif tcf > 0 and (window := min(self.engine.window, steps)) < N_MIN / tcf:
            warnings.warn(
                f"the moving average covers {window} steps, but a TCF of {tcf:.2g} calls for about {N_MIN / tcf:.0f} "
                f"(n_min / TCF): D_f is noisy; raise max_steps and window, or use a full-batch engine.",
                LevytorchWarning,
                stacklevel=2,
            )


class Frozen(OwnLaw):
    """The first phase under the frozen law. A coefficient that it drives to zero leaves the parameters at its end."""

    name = "frozen"

    def end(self) -> Phase | None:
        super().end()
        self.course.maximum, self.course.vanished = without_vanished(self.course.end)
        return None

    def result(self) -> tuple[Recovery, Likelihood]:
        self._check_tcf()
        maximum, reason = self.course.end, self.course.reason
        recovery = finish(maximum)
        recovery.metrics |= {"law": "frozen", "law_reason": reason, "law_judged": self.course.judged}
        return recovery, maximum.likelihood
