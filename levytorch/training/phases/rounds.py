"""Rounds on the frozen law's score, centered by its expectation under a law that follows the coefficients.

The centered score U has the slope -A and the variance B per pair. It stands for the score of the true law as well as it
can: A^T B^-1 U with the information A^T B^-1 A, so that the roughness penalty and its evidence mean what they mean in
every other fit. A round is Newton's step for it. The expectation is computed (law "corrected") or simulated.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import linear
from levytorch.data.batches import Batch, FullBatch
from levytorch.likelihood.corrected import Information
from levytorch.likelihood.likelihood import Likelihood, mean_coefficients
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, guarded_solve, lead_to_evidence, symmetric_inverse
from levytorch.training.engines.base import Engine, Maximised
from levytorch.training.engines.fisher import largest_moves, within_scale
from levytorch.training.phases.base import Phase
from levytorch.training.phases.choice import ROUNDS
from levytorch.training.report import in_standard_errors

_DONE = 1e-2  # squared standard errors still to go, over all parameters together
_CONTRACTS = 0.5  # of the squared distance: a round that leaves more of it was the last
_FARTHEST = 2.0  # predictors of D_o and D_f move by so much in one round at most


class CenteredRounds(Phase):
    """Moves the head of a frozen law's objective to the root of the centered score, and updates its penalty.

    Where the rounds stop to contract (too few pairs, or steps so long that the frozen law says little) the head stays
    where it was nearest. distances: squared standard errors (over all parameters together) to go before each round.
    """

    max_steps = ROUNDS + 1

    @torch.no_grad()
    def __init__(
        self, engine: Engine, likelihood: Likelihood, objective: FullBatchObjective, penalty: RoughnessPenalty | None
    ) -> None:
        self.engine, self.likelihood, self.penalty = engine, likelihood, penalty
        head = linear(likelihood.head)
        self.linear, self.objective, self.batch = head, objective, objective.batch
        self.stopped = False
        self.distances: list[float] = []
        self.nearest = head.flat()
        self.logged: dict[str, float] = {}
        # where the frozen law has led to
        self.frozen = head.flat(), None if penalty is None else penalty.state()
        self._evaluate()
        self.information = self.information_at(self._evaluation)
        A, B = self.information.slope, self.information.variance
        self._turn = A.T @ symmetric_inverse(B)
        self._curvature = self._turn @ A

    # -- what a law says ----------------------------------------------------------------------------------------------
    def centered(self) -> tuple[Tensor, Evaluation]:
        """U (P,) at the head as it is, and the evaluation of the objective."""
        raise NotImplementedError

    def information_at(self, ev: Evaluation) -> Information:
        """Slope and variance of U per pair, at an evaluation of `centered`."""
        raise NotImplementedError

    # -- steps --------------------------------------------------------------------------------------------------------
    def _evaluate(self) -> None:
        self._U, self._evaluation = self.centered()
        self.R_theta = self._evaluation.R_theta

    @property
    def finished(self) -> bool:
        return self.stopped or self.steps >= self.max_steps

    @property
    def reached(self) -> bool:
        """Whether the root was reached, to a standard error over all parameters together."""
        return self.distances[-1] < 1.0

    @property
    def done(self) -> Maximised:
        return Maximised(cast(Optimizer, None), self.reached, len(self.distances))

    def update_tcf(self) -> None:
        """The strata carry the masses of the law; the correction is updated when the phase has ended."""

    def entry(self, nll: float) -> dict[str, float]:
        return {"train/nll": nll, **self.logged, **mean_coefficients(self.head)}

    @torch.no_grad()
    def step(self, batch: Batch | FullBatch, seed: int) -> float:
        head, objective, n = self.linear, self.objective, self.objective.n
        theta, G = self._evaluation.theta, self._curvature
        nll = -objective.value(self._evaluation)
        self.steps += 1
        if self.penalty is None:
            flat = torch.diag(1e-12 * G.diagonal().max().expand(len(G)))
            step, curvature = guarded_solve(G + flat, self._turn @ self._U, f"the {self.name} law"), G
        else:
            step, curvature = self._penalised(self.penalty, theta, self._turn @ self._U, G)
        distance = float(n * step @ curvature @ step)
        R_sample = 0.0 if self.likelihood.masses is None else self.likelihood.masses.R_sample
        self.logged = {"tail/TCF": self._evaluation.tcf, "tail/R_sample": R_sample}
        if self.R_theta is not None:
            self.logged["tail/R_theta"] = self.R_theta
        self.logged["optimizer/gradient_norm"] = float((self._turn @ self._U).norm())
        self.logged["fit/distance"] = max(distance, 0.0) ** 0.5
        if self.distances and not distance < _CONTRACTS * self.distances[-1]:
            self.stopped = True
            self.turn_back()
            return nll
        self.nearest = theta
        self.distances.append(distance)
        if self.steps < self.max_steps:
            moves = largest_moves(objective, step)
            step = step * min(1.0, _FARTHEST / max(float(moves.max()), 1e-300))
            if head.tempering_spec.learned:
                step = torch.cat([step[:-1], within_scale(theta[-1:], step[-1:])])
            head.set_flat(theta + step)
            self.stopped = distance < _DONE
            if not self.stopped:
                self._evaluate()
        return nll

    def _penalised(self, penalty: RoughnessPenalty, theta: Tensor, score: Tensor, G: Tensor) -> tuple[Tensor, Tensor]:
        """The step and the curvature with a penalty, whose strengths follow."""
        return lead_to_evidence(penalty, theta, score, G, self.objective.n * G, self.objective.n)

    def turn_back(self) -> None:
        """After a round that came no nearer: the head stays where it was nearest."""
        self.linear.set_flat(self.nearest)

    # -- the frozen law's answer --------------------------------------------------------------------------------------
    def covariance(self) -> Tensor:
        information = self.objective.n * self.information.godambe
        if self.penalty is not None and self.penalty.active:
            information = information + torch.diag(self.penalty.precision())
        return symmetric_inverse(information)

    def off_by(self) -> float:
        """How far the frozen law's answer is from this one, in its standard errors, where that is farthest."""
        return in_standard_errors(self.linear, self.linear.flat() - self.frozen[0], self.covariance())

    def go_back(self) -> None:
        """Return to the frozen law's answer."""
        before, strengths = self.frozen
        self.linear.set_flat(before)
        if self.penalty is not None and strengths is not None:
            self.penalty.restore(strengths)

    # -- state --------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        penalty = None if self.penalty is None else self.penalty.state()
        rounds: dict[str, Any] = {"distances": list(self.distances), "nearest": self.nearest, "stopped": self.stopped}
        return super().state_dict() | rounds | {"penalty": penalty, "R_theta": self.R_theta}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.distances, self.nearest = list(state["distances"]), state["nearest"]
        self.stopped = bool(state["stopped"])
        if self.penalty is not None:
            self.penalty.restore(state["penalty"])
        if not self.finished:
            with torch.no_grad():
                self._evaluate()
        self.R_theta = state["R_theta"]
