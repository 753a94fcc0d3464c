"""Rounds on the frozen law's score, centered by the exact law (law "corrected"), for linear heads.

The centered score U stands for the exact law's as well as it can, A^T B^-1 U with information A^T B^-1 A
(`likelihood.corrected.informations`), so that the roughness penalty and its evidence mean what they mean in every other
fit. A round takes one forward evaluation of the exact law and one pass over the lattice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import LinearHead
from levytorch.data.batches import Batch, FullBatch
from levytorch.likelihood.corrected import Informations, centered_score, informations
from levytorch.likelihood.exact_rule import TOLERANCE
from levytorch.likelihood.likelihood import Likelihood, mean_coefficients
from levytorch.likelihood.penalty import RoughnessPenalty, guarded_solve, lead_to_evidence, symmetric_inverse
from levytorch.training.engines.base import Engine, Maximised
from levytorch.training.engines.fisher import largest_moves, within_scale
from levytorch.training.phases.base import Course, Phase
from levytorch.training.phases.choice import ROUNDS, ExactSetting, exact_setting
from levytorch.training.phases.exact import ATTEMPTS, exact_engine, of_linear
from levytorch.training.phases.maximise import GOOD
from levytorch.training.recovery import Recovery
from levytorch.training.report import in_standard_errors

TIGHTER = 1e-3  # times the tolerance, where that was not enough
_DONE = 1e-2  # squared standard errors still to go, over all parameters together
_CONTRACTS = 0.5  # of the squared distance: a round that leaves more of it was the last
_FARTHEST = 2.0  # predictors of D_o and D_f move by so much in one round at most


@dataclass
class Rounds:
    """How the rounds went. distances: standard errors (over all parameters together) to go before each round.

    step: the first one, by which the frozen law's answer is off.
    """

    informations: Informations
    distances: list[float]
    converged: bool
    R_theta: float | None
    step: Tensor


class Corrected(Phase):
    """Moves the head of a frozen law's objective to the root of the centered score, and updates its penalty.

    Where the rounds stop to contract (too few pairs, or steps so long that the frozen law says little) the head stays
    where it was nearest. Under law "auto" the frozen law's answer stands if the rounds show that it was good enough.
    """

    name, max_steps = "corrected", ROUNDS + 1

    @torch.no_grad()
    def __init__(self, course: Course, setting: ExactSetting, penalty: RoughnessPenalty | None, attempt: int) -> None:
        self.course, self.setting, self.attempt = course, setting, attempt
        self.engine, self.likelihood, self.penalty = course.engine, setting.likelihood, penalty
        head = self.likelihood.head
        assert isinstance(head, LinearHead)
        self.linear = head
        self.objective = setting.around(penalty)
        self.batch = self.objective.batch
        self._evaluate()
        self.informations = informations(head, self.objective.law, setting.law, setting.strata, self.R_theta)
        A, B = self.informations.corrected.slope, self.informations.corrected.variance
        self._turn = A.T @ symmetric_inverse(B)
        self._curvature = self._turn @ A
        self.stopped = False
        self.distances: list[float] = []
        self.first: Tensor | None = None
        self.nearest = head.flat()
        self.logged: dict[str, float] = {}
        # where the frozen law has led to
        self.frozen = head.flat(), None if penalty is None else penalty.state()

    @classmethod
    def begin(cls, course: Course) -> Phase | None:
        setting = exact_setting(course)
        if setting is None or not isinstance(setting.likelihood.head, LinearHead):
            return None
        ended = course.end
        penalty = ended.engine.objective(ended.likelihood, ended.done.optimizer, ended.batch).penalty
        return cls(course, setting, penalty, 0)

    @classmethod
    def most_steps(cls, engine: Engine) -> int:
        return 2 * (ROUNDS + 1)

    def end(self) -> Phase | None:
        setting, course = self.setting, self.course
        setting.settle()
        if self.attempt == 0 and setting.tolerance > TOLERANCE and not setting.error() < setting.accurate:
            setting.tolerance = max(TIGHTER * setting.tolerance, TOLERANCE)
            setting.settle()
            again = Corrected(course, setting, self.penalty, 1)
            again.frozen = self.frozen
            return again
        course.corrected = self
        auto = course.problem.settings.law == "auto"
        far = self._off_by() if auto else math.inf
        if auto and course.ranks.agree(far < GOOD):
            before, strengths = self.frozen
            self.linear.set_flat(before)
            if self.penalty is not None and strengths is not None:
                self.penalty.restore(strengths)
            course.stay_frozen(f"it is off by less than {GOOD} standard errors everywhere")
            return None
        course.answer = self
        if auto:
            course.reason += f"; the estimates of the frozen law are off by up to {far:.2g} standard errors"
        return None

    def covariance(self) -> Tensor:
        information = self.setting.strata.n * self.informations.corrected.godambe
        if self.penalty is not None and self.penalty.active:
            information = information + torch.diag(self.penalty.precision())
        return symmetric_inverse(information)

    def _off_by(self) -> float:
        """How far the frozen law's answer is from this one, in its standard errors, where that is farthest."""
        return in_standard_errors(self.linear, self.linear.flat() - self.frozen[0], self.covariance())

    def result(self) -> tuple[Recovery, Likelihood]:
        setting, rounds = self.setting, self.rounds
        for _ in range(ATTEMPTS):
            engine = exact_engine(self.course, setting, self, moves=False)
            done = Maximised(engine.optimizer(setting.likelihood), rounds.converged, len(rounds.distances))
            objective = engine.objective(setting.likelihood, done.optimizer, setting.batch)
            error = setting.error()
            if error < setting.accurate:
                break
            setting.settle()
        return of_linear(self.course, setting, self, engine, done, objective, error)

    # -- steps --------------------------------------------------------------------------------------------------------
    def _evaluate(self) -> None:
        self._U, self._evaluation = centered_score(self.objective, self.setting.law, self.setting.strata)
        self.R_theta = self._evaluation.R_theta

    @property
    def finished(self) -> bool:
        return self.stopped or self.steps >= self.max_steps

    def update_tcf(self) -> None:
        """The strata carry the exact law's masses; the correction is updated when the phase has ended."""

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
            step, curvature = guarded_solve(G + flat, self._turn @ self._U, "the corrected law"), G
        else:
            step, curvature = lead_to_evidence(self.penalty, theta, self._turn @ self._U, G, n * G, n)
        distance = float(n * step @ curvature @ step)
        R_sample = 0.0 if self.likelihood.masses is None else self.likelihood.masses.R_sample
        self.logged = {"tail/TCF": self._evaluation.tcf, "tail/R_sample": R_sample}
        if self.R_theta is not None:
            self.logged["tail/R_theta"] = self.R_theta
        self.logged["optimizer/gradient_norm"] = float((self._turn @ self._U).norm())
        self.logged["fit/distance"] = max(distance, 0.0) ** 0.5
        if self.distances and not distance < _CONTRACTS * self.distances[-1]:
            head.set_flat(self.nearest)
            self.stopped = True
            return nll
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
        return nll

    @property
    def rounds(self) -> Rounds:
        """How it went, once it has finished."""
        assert self.first is not None
        distances = [value**0.5 for value in self.distances]
        return Rounds(self.informations, distances, self.distances[-1] < 1.0, self.R_theta, self.first)

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
