"""Rounds on the frozen law's score, centered by the exact law (law "corrected"), for linear heads.

A round takes one forward evaluation of the exact law and one pass over the lattice.
"""

from __future__ import annotations

import math

from torch import Tensor

from levytorch.coefficients import LinearHead
from levytorch.coefficients.tangent import TangentHead
from levytorch.likelihood.corrected import Information, centered_score
from levytorch.likelihood.exact_rule import TOLERANCE
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import Evaluation
from levytorch.likelihood.penalty import RoughnessPenalty
from levytorch.training.engines.base import Engine, Maximised
from levytorch.training.phases.base import Course, Phase
from levytorch.training.phases.choice import ROUNDS, ExactSetting, exact_setting
from levytorch.training.phases.exact import ATTEMPTS, STRAIGHT, TURNS, exact_engine, of_linear
from levytorch.training.phases.maximise import GOOD
from levytorch.training.phases.rounds import CenteredRounds
from levytorch.training.recovery import Recovery
from levytorch.training.report import in_standard_errors

TIGHTER = 1e-3  # times the tolerance, where that was not enough


class Corrected(CenteredRounds):
    """Rounds whose expectation is computed. Under law "auto" the frozen law's answer stands if they show that it was
    good enough.
    """

    name = "corrected"

    def __init__(self, course: Course, setting: ExactSetting, penalty: RoughnessPenalty | None, attempt: int) -> None:
        self.course, self.setting, self.attempt, self.turns = course, setting, attempt, 0
        self.before: Phase | None = None  # whose answer it replaces
        super().__init__(course.engine, setting.likelihood, setting.around(penalty), penalty)

    @classmethod
    def begin(cls, course: Course) -> Phase | None:
        setting = exact_setting(course)
        if setting is None or not isinstance(setting.likelihood.head, LinearHead):
            return None
        maximum = course.end
        penalty = setting.penalty
        if setting.network is None:
            penalty = maximum.engine.objective(maximum.likelihood, maximum.done.optimizer, maximum.batch).penalty
        return cls(course, setting, penalty, 0)

    @classmethod
    def most_steps(cls, engine: Engine) -> int:
        return (2 + TURNS) * (ROUNDS + 1)

    def centered(self) -> tuple[Tensor, Evaluation]:
        return centered_score(self.objective, self.setting.law, self.setting.strata)

    def information_at(self, ev: Evaluation) -> Information:
        return self.setting.informations(ev.R_theta).corrected

    def end(self) -> Phase | None:
        setting, course = self.setting, self.course
        setting.settle()
        if self.attempt == 0 and setting.tolerance > TOLERANCE and not setting.error() < setting.accurate:
            setting.tolerance = max(TIGHTER * setting.tolerance, TOLERANCE)
            setting.settle()
            again = Corrected(course, setting, self.penalty, 1)
            again.frozen = self.frozen
            return again
        information = self.objective.n * self.information.godambe
        if self.turns < TURNS and setting.turned(information) > STRAIGHT:
            setting.turn()
            again = Corrected(course, setting, setting.penalty, self.attempt)
            again.turns = self.turns + 1
            return again
        course.corrected = self
        auto = course.problem.settings.law == "auto"
        far = self.off_by() if auto else math.inf
        if auto and self.reached and far < GOOD:
            self.go_back()
            setting.leave()
            course.stay_frozen(f"its bias is below {GOOD} standard errors everywhere")
            return None
        setting.follow()
        self.before, course.answer = course.answer, self
        if auto and not self.reached:
            course.reason += "; the bias of the frozen law could not be determined"
        elif auto:
            course.reason += f"; the frozen law would change the estimates by up to {far:.2g} standard errors"
        return None

    def off_by(self) -> float:
        if not isinstance(self.linear, TangentHead):
            return super().off_by()
        moved = self.linear.coordinates_of(self.linear.parameters_of_head() - self.setting.began_at)
        return in_standard_errors(self.linear, moved, self.covariance())

    def result(self) -> tuple[Recovery, Likelihood]:
        setting = self.setting
        for _ in range(ATTEMPTS):
            engine = exact_engine(self.course, setting, self, moves=False)
            done = Maximised(engine.optimizer(setting.likelihood), self.reached, len(self.distances))
            objective = engine.objective(setting.likelihood, done.optimizer, setting.batch)
            error = setting.error()
            if error < setting.accurate:
                break
            setting.settle()
        return of_linear(self.course, setting, self, engine, done, objective, error)
