"""The phases of a fit: what one step does, when a phase has finished, and its state for exact resumption.

`Maximise` runs an engine on a likelihood: under the frozen law, or under the exact law of a step. `CenteredRounds`
moves a linear head to the root of the frozen law's score, centered by the exact law (law "corrected"). A phase knows
nothing of the phases before and after it; `Fit` in fit.py decides their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import Head, LinearHead
from levytorch.data.batches import Batch, FullBatch
from levytorch.likelihood.corrected import Information, Informations, Strata, centered_score, informations
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, guarded_solve, lead_to_evidence, symmetric_inverse
from levytorch.training.averaging import MovingAverage, has_settled
from levytorch.training.engines.base import Engine, Maximised, entry
from levytorch.training.engines.exact import ExactEngine, ExactObjective
from levytorch.training.engines.fisher import largest_moves, within_scale

ROUNDS = 5  # on the centered score, at most
_DONE = 1e-2  # squared standard errors still to go, over all parameters together
_CONTRACTS = 0.5  # of the squared distance: a round that leaves more of it was the last
_FARTHEST = 2.0  # predictors of D_o and D_f move by so much in one round at most


class Phase:
    """One stretch of a fit under one law.

    name: "frozen", "corrected" or "exact"; likelihood: its head is the one that moves; batch: what every step works on,
    or None where each step is given a batch of its own; steps: taken so far; converged: whether its own test is met.
    """

    name: str
    engine: Engine
    likelihood: Likelihood
    optimizer: Optimizer
    batch: FullBatch | None = None
    max_steps: int
    steps: int = 0
    converged: bool = False

    @property
    def head(self) -> Head:
        return self.likelihood.head

    @property
    def finished(self) -> bool:
        """Whether another step would change nothing, or is not allowed."""
        return self.converged or self.steps >= self.max_steps

    def step(self, batch: Batch | FullBatch, seed: int) -> dict[str, float]:
        """Advance by one step; returns what is logged of it."""
        raise NotImplementedError

    def update_tcf(self) -> None:
        """Algorithm E.6: the TCF of the parameters as they now are."""
        accepted = getattr(self.optimizer, "accepted", None)
        self.likelihood.correct(None if accepted is None else accepted.R_theta)

    def judge(self) -> None:
        """Decide whether the phase has converged, after a step and its TCF."""

    def close(self) -> None:
        """Leave the head where the phase has ended."""

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and tensors: with them an equal phase goes on to the same bits."""
        return {
            "name": self.name,
            "theta": self.head.flat(),
            "correction": self.likelihood.correction.state_dict(),
            "steps": self.steps,
            "converged": self.converged,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.head.set_flat(state["theta"])
        self.likelihood.correction.load_state_dict(state["correction"])
        self.steps, self.converged = int(state["steps"]), bool(state["converged"])


class Maximise(Phase):
    """An engine maximises a likelihood. Mini-batch engines end at the moving average of their steps."""

    def __init__(self, name: str, engine: Engine, likelihood: Likelihood, batch: FullBatch | None = None) -> None:
        self.name, self.engine, self.likelihood, self.batch = name, engine, likelihood, batch
        self.max_steps = engine.max_steps
        self.optimizer = engine.optimizer(likelihood)
        self.average = None if engine.full_batch else MovingAverage(engine.window)

    @property
    def finished(self) -> bool:
        return (self.converged and self.engine.stop_early) or self.steps >= self.max_steps

    @property
    def done(self) -> Maximised:
        """How it went."""
        return Maximised(self.optimizer, self.converged, self.steps)

    def step(self, batch: Batch | FullBatch, seed: int) -> dict[str, float]:
        nll = self.engine.step(self.likelihood, self.optimizer, batch, self.steps, seed)
        self.steps += 1
        return entry(self.likelihood, self.optimizer, float(nll)) if self.engine.full_batch else {"train/nll": nll}

    def judge(self) -> None:
        if self.average is None:
            self.converged = self.engine.converged(self.optimizer)
            return
        self.average.add(self.head.flat())
        if self.average.full and not self.average.filled:
            self.converged = has_settled(self.average.block_means(), self.engine.tolerance)

    def close(self) -> None:
        if self.average is not None and self.average.steps:
            self.head.set_flat(self.average.average())

    def state_dict(self) -> dict[str, Any]:
        own = {"optimizer": self.optimizer.state_dict()}
        if self.average is not None:
            own["average"] = self.average.state_dict()
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])


class MaximiseExactly(Maximise):
    """Fisher scoring under the exact law, whose objective has a state of its own."""

    def __init__(self, engine: ExactEngine, likelihood: Likelihood, batch: FullBatch) -> None:
        super().__init__("exact", engine, likelihood, batch)
        self.objective = cast(ExactObjective, engine.objective(likelihood, self.optimizer, batch))

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


@dataclass
class Corrected:
    """How the rounds went. distances: standard errors (over all parameters together) to go before each round.

    step: the first one, by which the frozen law's answer is off.
    """

    informations: Informations
    distances: list[float]
    converged: bool
    R_theta: float | None
    step: Tensor


class CenteredRounds(Phase):
    """Moves the head of a frozen law's objective to the root of the centered score, and updates its penalty.

    The centered score U stands for the exact law's as well as it can, A^T B^-1 U with information A^T B^-1 A
    (`corrected.informations`), so that the roughness penalty and its evidence mean what they mean in every other fit.
    A round takes one forward evaluation of the exact law and one pass over the lattice. Where the rounds stop to
    contract (too few pairs, or steps so long that the frozen law says little) the head stays where it was nearest.
    """

    name, max_steps = "corrected", ROUNDS + 1

    @torch.no_grad()
    def __init__(
        self, engine: Engine, likelihood: Likelihood, objective: FullBatchObjective, exact: ExactLaw, strata: Strata
    ) -> None:
        self.engine, self.likelihood, self.batch = engine, likelihood, objective.batch
        self.objective, self.exact, self.strata = objective, exact, strata
        self.optimizer = cast(Optimizer, None)  # a round is Newton's step
        self.penalty: RoughnessPenalty | None = objective.penalty
        self._evaluate()
        self.informations = informations(objective.head, objective.law, exact, strata, self.R_theta)
        A, B = self.informations.corrected.slope, self.informations.corrected.variance
        self._turn = A.T @ symmetric_inverse(B)
        self._curvature = self._turn @ A
        self.stopped = False
        self.distances: list[float] = []
        self.first: Tensor | None = None
        self.nearest = objective.head.flat()

    def _evaluate(self) -> None:
        self._U, self._evaluation = centered_score(self.objective, self.exact, self.strata)
        self.R_theta = self._evaluation.R_theta

    @property
    def finished(self) -> bool:
        return self.stopped or self.steps >= self.max_steps

    def update_tcf(self) -> None:
        """The strata carry the exact law's masses; the correction is updated when the phase has ended."""

    @torch.no_grad()
    def step(self, batch: Batch | FullBatch, seed: int) -> dict[str, float]:
        head, objective, n = cast(LinearHead, self.head), self.objective, self.objective.n
        theta, G = self._evaluation.theta, self._curvature
        logged = {"train/nll": -objective.value(self._evaluation), "tail/TCF": self._evaluation.tcf}
        self.steps += 1
        if self.penalty is None:
            flat = torch.diag(1e-12 * G.diagonal().max().expand(len(G)))
            step, curvature = guarded_solve(G + flat, self._turn @ self._U, "the corrected law"), G
        else:
            step, curvature = lead_to_evidence(self.penalty, theta, self._turn @ self._U, G, n * G, n)
        distance = float(n * step @ curvature @ step)
        logged["fit/distance"] = max(distance, 0.0) ** 0.5
        if self.distances and not distance < _CONTRACTS * self.distances[-1]:
            head.set_flat(self.nearest)
            self.stopped = True
            return logged | self.likelihood.mean_coefficients()
        self.nearest = theta
        self.distances.append(distance)
        self.first = step if self.first is None else self.first
        if self.steps <= ROUNDS:
            moves = largest_moves(objective, step)
            step = step * min(1.0, _FARTHEST / max(float(moves.max()), 1e-300))
            if head.tempering_spec.learned:
                step = torch.cat([step[:-1], within_scale(theta[-1:], step[-1:])])
            head.set_flat(theta + step)
            self.stopped = distance < _DONE
            if not self.stopped:
                self._evaluate()
        return logged | self.likelihood.mean_coefficients()

    @property
    def corrected(self) -> Corrected:
        """How it went, once it has finished."""
        assert self.first is not None
        distances = [value**0.5 for value in self.distances]
        return Corrected(self.informations, distances, self.distances[-1] < 1.0, self.R_theta, self.first)

    def state_dict(self) -> dict[str, Any]:
        penalty = None if self.penalty is None else self.penalty.state()
        rounds: dict[str, Any] = {"distances": list(self.distances), "first": self.first, "nearest": self.nearest}
        rounds["stopped"] = self.stopped
        return super().state_dict() | rounds | {"penalty": penalty, "R_theta": self.R_theta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.distances, self.first, self.nearest = list(state["distances"]), state["first"], state["nearest"]
        self.stopped = bool(state["stopped"])
        if self.penalty is not None:
            self.penalty.restore(state["penalty"])
        if not self.finished:
            with torch.no_grad():
                self._evaluate()
        self.R_theta = state["R_theta"]
