"""What a phase of a fit is, and what phases hand on to each other.

A phase says what one step does, when it has finished, and its state for exact resumption. The order of phases is the
list of `training.phases.PLANS`; `Fit` goes through it. A new phase is one class in one file of this package with the
methods of `Phase`, and its place in that list.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import Head
from levytorch.data.batches import Batch, FullBatch
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.laws import Law
from levytorch.likelihood.likelihood import Likelihood
from levytorch.ranks import Ranks
from levytorch.training.engines.base import Engine, entry
from levytorch.training.problem import AllData, Problem
from levytorch.training.recovery import Recovery
from levytorch.training.report import Maximum

if TYPE_CHECKING:
    from levytorch.training.boundary import Vanished
    from levytorch.training.phases.choice import ExactSetting
    from levytorch.training.phases.corrected import Corrected


@dataclass
class Course:
    """The state that the phases of a fit share, with what each phase hands to the next.

    Attributes:
        head: the head that is fitted, in the units of the data it is fitted to (`Problem.units`).
        law: the law that was asked for, by name or as an object; "auto" becomes another name when it is decided.
        reason: why the fit ends under its law, for metrics["law_reason"].
        judged: False if the result of the frozen law is used although its bias is not known.
        answer: the phase with the current parameters. It makes the recovery at the end.
        maximum: the result of the first maximisation, under the frozen law or one of the user's own.
        vanished: a coefficient that it estimates as zero.
        exact: the data, the frozen and the exact law, once it is decided that the fit goes on under the exact law.
        noise_at_zero: of observation noise that was dropped, its error and a bound.
        corrected: the phase of that name, once it has finished.
    """

    problem: Problem
    head: Head
    data: AllData
    engine: Engine
    ranks: Ranks
    law: str | Law
    reason: str = "as requested"
    judged: bool = True
    answer: Phase | None = None
    maximum: Maximum | None = None
    vanished: Vanished | None = None
    exact: ExactSetting | None = None
    noise_at_zero: dict[str, float] | None = None
    corrected: Corrected | None = None

    @property
    def end(self) -> Maximum:
        """The result of the first maximisation."""
        assert self.maximum is not None
        return self.maximum

    def stay_frozen(self, reason: str, *, judged: bool = True) -> None:
        """Decide that the answer under the frozen law stands."""
        self.law, self.reason, self.judged = "frozen", reason, judged


class Phase:
    """One stretch of a fit under one law.

    Attributes:
        name: in logs and checkpoints.
        likelihood: its head is the one that moves.
        batch: what every step works on, or None where each step is given a batch of its own.
        optimizer: None where a step is not that of an optimiser.
        steps: taken so far.
        converged: whether its own test is met.
    """

    name: str
    engine: Engine
    likelihood: Likelihood
    max_steps: int
    optimizer: Optimizer | None = None
    batch: FullBatch | None = None
    steps: int = 0
    converged: bool = False

    # -- in the order of phases ---------------------------------------------------------------------------------------
    @classmethod
    def begin(cls, course: Course) -> Phase | None:
        """The phase at its start. None: it is not needed, and then the course says why."""
        raise NotImplementedError

    @classmethod
    def most_steps(cls, engine: Engine) -> int:
        """No fit takes more steps than this in the phase."""
        return engine.max_steps

    def end(self) -> Phase | None:
        """Leave the head at the result of the phase, and write the result into the course.

        Returns the same phase at a new start where it must be repeated (with a finer grid), otherwise None.
        """
        return None

    def result(self) -> tuple[Recovery, Likelihood]:
        """The recovery of the fit as this phase has left it, and the likelihood it is judged by."""
        raise NotImplementedError

    # -- steps --------------------------------------------------------------------------------------------------------
    @property
    def head(self) -> Head:
        return self.likelihood.head

    @property
    def counted(self) -> bool:
        """Whether the next step is one of those that a fit counts and logs."""
        return True

    @property
    def label(self) -> str:
        """In the progress line."""
        return f"{self.engine.name}, {self.name} law"

    @property
    def finished(self) -> bool:
        """Whether another step would change nothing, or is not allowed."""
        return self.converged or self.steps >= self.max_steps

    def step(self, batch: Batch | FullBatch, seed: int) -> float:
        """Advance by one step; returns the mean negative log-likelihood."""
        raise NotImplementedError

    def entry(self, nll: float) -> dict[str, float]:
        """What is logged of a step."""
        return entry(self.likelihood, self.optimizer, nll) | optimizer_facts(self.optimizer)

    def covariance(self) -> Tensor | None:
        """Of the parameters as they now are, as far as the phase knows it: for bands while a fit runs."""
        return None

    def update_tcf(self) -> None:
        """Algorithm E.6: the TCF of the parameters as they now are."""
        accepted = getattr(self.optimizer, "accepted", None)
        self.likelihood.correct(None if accepted is None else accepted.R_theta)

    def stop(self) -> None:
        """Take one more step in this phase at most."""
        self.max_steps = min(self.max_steps, self.steps + 1)

    def judge(self) -> None:
        """Decide whether the phase has converged, after a step and its TCF."""

    # -- state --------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and tensors, from which an equal phase continues to the same bits."""
        return {
            "name": self.name,
            "theta": self.head.flat(),
            "correction": self.likelihood.correction.state_dict(),
            "steps": self.steps,
            "converged": self.converged,
            "max_steps": self.max_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.head.set_flat(state["theta"])
        self.likelihood.correction.load_state_dict(state["correction"])
        self.steps, self.converged = int(state["steps"]), bool(state["converged"])
        self.max_steps = int(state.get("max_steps", self.max_steps))


def optimizer_facts(optimizer: Optimizer | None) -> dict[str, float]:
    """Learning rate, norm of the gradient, and for Fisher scoring its damping and twice the log-likelihood to gain."""
    if optimizer is None:
        return {}
    (group, *_), out = optimizer.param_groups, {}
    if "lr" in group:
        out["optimizer/learning_rate"] = float(group["lr"])
    memory, accepted = optimizer.state.get("scoring"), getattr(optimizer, "accepted", None)  # type: ignore[call-overload]
    if memory is not None:
        out |= {f"optimizer/{name}": float(memory[name]) for name in ("damping", "decrement")}
    if accepted is not None:
        gradient = optimizer.objective.gradient(accepted)  # type: ignore[attr-defined]
        out["optimizer/gradient_norm"] = float(gradient.norm())
    elif all(p.grad is not None for p in group["params"]):
        out["optimizer/gradient_norm"] = float(sum(p.grad.square().sum() for p in group["params"])) ** 0.5
    return {name: value for name, value in out.items() if math.isfinite(value)}


def first_law(law: str | Law, density: str, head: Head) -> Law:
    """The law of the first phase: one's own, or the frozen one, where every other fit begins."""
    return FrozenLaw(steady_method(density, head), head.dim) if isinstance(law, str) else law
