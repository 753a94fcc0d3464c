"""The fit continues with observation noise: Fisher scoring on the likelihood of the filter (`likelihood.filter`).

It begins at the maximum of the frozen law without noise, with s from a scan, and goes on under the exact law where that
is available. The curvature is the outer product of the filter's scores, turned by secant pairs into that of the
likelihood. Noise that the data do not tell from zero is dropped, and the fit goes on as if it had not been asked for.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import Head, LinearHead, linear
from levytorch.coefficients.tangent import TangentHead
from levytorch.data import Pools
from levytorch.data.batches import Batch, FullBatch
from levytorch.errors import LevytorchWarning
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_rule import TOLERANCE
from levytorch.likelihood.filter import Chains, Filtered, NoisyLikelihood, scan, with_less_D_o
from levytorch.likelihood.likelihood import Likelihood, mean_coefficients
from levytorch.likelihood.network import TangentPenalty
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import guarded_solve, lead_to_evidence, symmetric_inverse
from levytorch.training.engines.base import Engine, Maximised
from levytorch.training.engines.fisher import FisherEngine, within_scale
from levytorch.training.phases.base import Course, Phase
from levytorch.training.phases.choice import SECONDS
from levytorch.training.problem import unavailable
from levytorch.training.recovery import Recovery
from levytorch.training.report import AS_WELL, finish

_MOST_STEPS = 40
_DONE = 1e-3  # twice the log-likelihood still to gain
_FAR = 100.0  # the same, from where an information matrix is made anew
_PAIRS = 8
_FARTHEST, _FACTOR = 2.0, 0.7  # of the predictors of D_o and D_f, and of log s, in one step
_HALVINGS = 8
_TURNS = 4  # of the tangent of a network, and changes of the table
_LINE_TOLERANCE = 1e-3  # of log p, where the padding limits what far jumps are worth
_TURNED = 0.1  # standard errors by which it may be off
_SMALLEST = 0.03  # of the width of a step: less noise is none
_DOUBTFUL = 5.0  # standard errors of s from zero, below which zero is tried
_UPDATES = 25  # of the strengths of a penalty
_COST = (0.03, 2.5, 25)  # seconds of an evaluation of the exact law on 65 points, its power, and evaluations


@dataclass
class NoisyObjective(FullBatchObjective):
    """The frozen law's objective, with the information and the slope of the filter."""

    own: Tensor | None = None  # information of all observations, s profiled out
    slope: Tensor | None = None

    def information(self, ev: Evaluation) -> Tensor:
        return super().information(ev) if self.own is None else self.own / self.n

    def gradient(self, ev: Evaluation, tcf: float | None = None) -> Tensor:
        return super().gradient(ev, tcf) if self.slope is None else self.slope / self.n

    def covariance_of_law(self) -> Tensor | None:
        return None if self.own is None else symmetric_inverse(self.own + torch.diag(self.precision()))


class _Reported(FisherEngine):
    """Stands for the engine of a fit where its end is reported."""

    def __init__(self, asked: Engine, objective: FullBatchObjective) -> None:
        super().__init__()
        self.name, self._objective = asked.name, objective

    def objective(self, likelihood: Likelihood, optimizer: Optimizer | None, batch: FullBatch) -> FullBatchObjective:
        return self._objective

    def unfinished(self, optimizer: Optimizer | None) -> str:
        return "the filter of the observation noise did not converge"


@dataclass
class _Scoring:
    """Where the iteration is: parameters and log s, what the filter said there, and what is known of the curvature."""

    theta: Tensor
    log_s: float
    found: Filtered
    outer: Tensor
    pairs: list[tuple[Tensor, Tensor]]


class FilteredPhase(Phase):
    """Scoring in theta and log s; s stays where it is if it was given."""

    name = "filtered"
    law: str
    reason: str
    began: float
    turns: int
    chains: Chains
    log_s: float
    frozen_at: Tensor
    strengths: dict[str, Tensor] | None

    @torch.no_grad()
    def __init__(self, course: Course, before: FilteredPhase | None = None) -> None:
        self.course, self.engine, maximum = course, course.engine, course.end
        self.began = time.perf_counter() if before is None else before.began
        self.turns = 0 if before is None else before.turns + 1
        head = maximum.likelihood.head
        penalty: Any = maximum.engine.objective(maximum.likelihood, maximum.done.optimizer, maximum.batch).penalty
        self.network = None if isinstance(head, LinearHead) else head
        if self.network is not None:
            assert maximum.likelihood.bins is not None
            precision, center = (None, None) if penalty is None else (penalty.full_precision(), penalty.center)
            tangent = TangentHead(head, head.clamped(maximum.likelihood.bins.x), precision, center)
            penalty = None if penalty is None else TangentPenalty(tangent, penalty.strengths)
            self.linear: LinearHead = tangent
        else:
            self.linear = linear(head)
        self.penalty = penalty
        if before is not None and penalty is not None and self.network is None:
            penalty.restore(before.penalty.state())
        self.likelihood = replace(maximum.likelihood, head=self.linear)
        self.units = course.problem.units
        asked = course.problem.settings.observation_noise
        self.learned = asked == "learn"
        pairs = course.data.observed
        assert isinstance(pairs, Pools)
        self.chains = Chains.of(pairs.main, self.linear.period) if before is None else before.chains
        self.max_steps, self.updates, self.failures = _MOST_STEPS, 0, 0
        self.logged: dict[str, float] = {}
        self.frozen_at = head.flat() if before is None else before.frozen_at
        self.strengths = (None if penalty is None else penalty.state()) if before is None else before.strengths
        if before is not None:
            self.log_s = before.log_s
        elif self.learned:
            self.log_s = math.log(scan(self.linear, self.likelihood.frozen_law, self.chains))
        else:
            self.log_s = math.log(float(asked) / self.units.length)  # type: ignore[arg-type]
            self.linear.set_flat(with_less_D_o(self.linear, self.s, float(self.chains.dt.median())))
        self.law, self.reason = self._choose_law() if before is None else (before.law, before.reason)
        self._settle()
        self.at: _Scoring | None = None

    @classmethod
    def begin(cls, course: Course) -> Phase | None:
        return None if course.problem.settings.observation_noise is None else cls(course)

    @classmethod
    def most_steps(cls, engine: Engine) -> int:
        return _MOST_STEPS * (1 + _TURNS)

    # -- the start ----------------------------------------------------------------------------------------------------
    def _choose_law(self) -> tuple[str, str]:
        """Frozen or exact, and why."""
        asked, head = self.course.problem.settings.law, self.linear
        if asked == "frozen":
            return "frozen", "as requested"
        if asked == "auto" and head.is_constant:
            return "frozen", "constant coefficients, for which it is exact"
        observed = self.course.data.observed
        assert isinstance(observed, Pools)
        lacking = unavailable(head, observed.data)
        if lacking is not None:
            return "frozen", f"the exact law must have {lacking.needed}, found {lacking.found}"
        if asked == "exact":
            return "exact", "as requested"
        first, power, number = _COST
        law, times = self._exact_law(), torch.unique(self.chains.dt).tolist()
        seconds = number * sum(first * (law.rule(head, dt).n / 65) ** power for dt in times)
        if seconds > SECONDS:
            return "frozen", f"the exact law would take about {seconds:.0f} s, more than {SECONDS:g} s"
        return "exact", "available"

    def _exact_law(self) -> ExactLaw:
        law = ExactLaw(TOLERANCE if self.linear.window is None else _LINE_TOLERANCE)
        return law.fixed(self.linear, torch.unique(self.chains.dt))

    def _settle(self) -> None:
        """The table for the head as it is."""
        law = self.likelihood.frozen_law if self.law == "frozen" else self._exact_law()
        reach = 4.0 * max(math.exp(self.log_s), self.chains.noise_of_steps())
        self.filter = NoisyLikelihood(self.linear, law, self.chains, reach)

    # -- steps --------------------------------------------------------------------------------------------------------
    @property
    def n(self) -> float:
        return float(len(self.chains))

    @property
    def s(self) -> float:
        """The standard deviation of the noise, in the units of the fit."""
        return math.exp(self.log_s)

    def _value(self, theta: Tensor, found: Filtered) -> float:
        """Penalised."""
        rough = 0.0 if self.penalty is None else float((self.penalty.precision() * theta**2).sum())
        return found.log_p - 0.5 * rough

    def _curvature(self) -> Tensor:
        """The outer product of the scores, and what secant pairs have shown of the likelihood's own curvature."""
        assert self.at is not None
        out = self.at.outer
        for step, change in self.at.pairs:
            along = out @ step
            old, new = float(step @ along), float(step @ change)
            if old > 0 and new > 0.05 * old:
                out = out - torch.outer(along, along) / old + torch.outer(change, change) / new
        return out

    def _propose(self) -> tuple[Tensor, float, float]:
        """A step in theta and in log s, and twice the log-likelihood that it promises."""
        at, n, P = self.at, self.n, len(self.linear.theta)
        assert at is not None
        G = self._curvature()
        g, g_s = at.found.gradient, at.found.by_log_s
        own, cross, corner = G[:P, :P], G[:P, P], float(G[P, P])
        free = self.learned and corner > 0
        if free:
            own, g = own - torch.outer(cross, cross) / corner, g - cross * (g_s / corner)
        if self.penalty is None:
            flat = torch.diag(1e-12 * own.diagonal().max().expand(P))
            step = guarded_solve(own + flat, g, "the filter")
            gradient = g
        else:
            adaptive = self.updates < _UPDATES
            if adaptive:
                step, _ = lead_to_evidence(self.penalty, at.theta, g / n, own / n, own, n)
                self.updates += 1
            else:
                curvature = own + torch.diag(self.penalty.precision())
                step = guarded_solve(curvature, g - self.penalty.precision() * at.theta, "the filter")
            gradient = g - self.penalty.precision() * at.theta
        move, decrement = 0.0, float(gradient @ step)
        if free:
            move, decrement = (g_s - float(cross @ step)) / corner, decrement + g_s * g_s / corner
        return step, move, decrement

    def _within_reach(self, step: Tensor, move: float) -> float:
        """The part of a step that a local model is trusted with."""
        head, farthest = self.linear, abs(move) / _FACTOR
        for row, name in enumerate(head.layout.names):
            part = head.part(row)
            if name in ("D_o", "D_f") and part.stop > part.start:
                farthest = max(farthest, float((step[part] @ self.filter.design[row]).abs().max()) / _FARTHEST)
        return 1.0 / max(1.0, farthest)

    def _information(self) -> Tensor:
        """The frozen law's where the exact one's is dear and few digits will do: before the end."""
        return self._frozen_filter().information(self.s)[0]

    def _frozen_filter(self) -> NoisyLikelihood:
        if self.law == "frozen":
            return self.filter
        return NoisyLikelihood(self.linear, self.likelihood.frozen_law, self.chains, self.filter.reach)

    def _start(self) -> None:
        found = self.filter.evaluate(self.s)
        with torch.no_grad():
            self.at = _Scoring(self.linear.flat(), self.log_s, found, self._information(), [])

    def step(self, batch: Batch | FullBatch, seed: int) -> float:
        if self.at is None:
            self._start()
        at = self.at
        assert at is not None
        self.steps += 1
        step, move, decrement = self._propose()
        self.logged = {"optimizer/decrement": decrement, "fit/observation_noise": at_data(self.s, self.units)}
        vanishes = self.learned and self.s < _SMALLEST * self.filter.narrow and move < 0
        self.converged = decrement < _DONE or vanishes
        if self.converged:
            return -at.found.log_p / self.n
        share, before = self._within_reach(step, move), self._value(at.theta, at.found)
        for _ in range(_HALVINGS):
            moved = share * step
            if self.linear.tempering_spec.learned:
                moved = torch.cat([moved[:-1], within_scale(at.theta[-1:], moved[-1:])])
            self.linear.set_flat(at.theta + moved)
            self.log_s = at.log_s + share * move
            try:
                found = self.filter.evaluate(self.s)
                better = self._value(at.theta + moved, found) > before - 1e-7 * abs(before) * 1e-3
            except ArithmeticError:
                better = False
                if self.law == "exact" and self.course.problem.settings.law == "auto":
                    self._fall_back(at)
                    return -at.found.log_p / self.n
            if better:
                break
            share *= 0.3
        else:
            self.linear.set_flat(at.theta)
            self.log_s = at.log_s
            self.converged = decrement < 100 * _DONE
            self.max_steps = self.steps if self.converged else self.max_steps
            with torch.no_grad():
                at.outer, at.pairs = self._information(), []
            self.failures += 1
            if self.failures > 1:
                self.max_steps = self.steps
            return -at.found.log_p / self.n
        whole = torch.cat([moved, torch.tensor([share * move], dtype=torch.float64)])
        fallen = at.found.slopes - found.slopes
        pairs = [*at.pairs, (whole, fallen)][-_PAIRS:]
        self.at = _Scoring(at.theta + moved, self.log_s, found, at.outer, pairs)
        if self.steps == 2 and decrement > _FAR:  # the start was far away
            with torch.no_grad():
                self.at.outer = self._information()
        return -found.log_p / self.n

    def _fall_back(self, at: _Scoring) -> None:
        """Go on under the frozen law: at the ends of a wide window the exact one cannot follow the coefficients."""
        self.law, self.reason = "frozen", "the exact law does not resolve the coefficients at the ends of the window"
        self.linear.set_flat(at.theta)
        self.log_s, self.at, self.updates = at.log_s, None, 0
        self._settle()

    def entry(self, nll: float) -> dict[str, float]:
        return {"train/nll": nll, **self.logged, **mean_coefficients(self.linear)}

    def update_tcf(self) -> None:
        """There are no lost tails beside observation noise."""

    # -- the end ------------------------------------------------------------------------------------------------------
    @property
    def head(self) -> Head:
        return self.linear

    def follow(self) -> None:
        """Give the head of the fit the parameters that were found."""
        if self.network is not None:
            assert isinstance(self.linear, TangentHead)
            self.network.set_flat(self.linear.parameters_of_head())

    def end(self) -> Phase | None:
        if self.at is None:
            self._start()
        if self.turns < _TURNS and (self.filter.outgrown or self._turned() > _TURNED):
            self.follow()
            return FilteredPhase(self.course, self)
        with torch.no_grad():
            self.outer = self.filter.information(self.s)[0]
        self.std = self._std()
        course = self.course
        if self.learned and self.s < _DOUBTFUL * self.std:
            self.loss = self._loss_without()
            if self.loss < AS_WELL:
                self._drop()
                return None
        self.follow()
        course.answer = self
        if course.vanished is not None and not course.vanished.gone:
            course.vanished = None
        course.stay_frozen(self.reason)
        if self.s > self.filter.unresolved:
            warnings.warn(
                f"observation_noise must be below about {at_data(self.filter.unresolved, self.units):.3g}, because the "
                "filter cannot resolve steps that are much narrower than the noise, found "
                f"{at_data(self.s, self.units):.3g}; use observations at longer steps.",
                LevytorchWarning,
                stacklevel=2,
            )
        return None

    def _turned(self) -> float:
        """How far a network is from its tangent, in standard errors, where that is farthest."""
        if self.network is None:
            return 0.0
        assert self.at is not None
        now = self.network.flat()
        self.follow()
        P = len(self.linear.theta)
        x, own = self.network.grid(128), self.at.outer[:P, :P]
        precision = cast(TangentHead, self.linear).prior_precision
        covariance, farthest = symmetric_inverse(own + torch.diag(precision)), 0.0
        with torch.no_grad():
            for one, other, J in zip(self.network(x)[:3], self.linear(x)[:3], self.linear.jacobian(x)[:3]):
                std = ((J @ covariance) * J).sum(-1).clamp(min=1e-300).sqrt()
                farthest = max(farthest, float(((one - other).abs() / std).max()))
        self.network.set_flat(now)
        return farthest

    def _prior(self) -> Tensor:
        return torch.zeros_like(self.linear.theta) if self.penalty is None else self.penalty.precision()

    def _std(self) -> float:
        """Of s, in the units of the fit; 0 where it was given."""
        if not self.learned:
            return 0.0
        P = len(self.linear.theta)
        own = symmetric_inverse(self.outer[:P, :P] + torch.diag(self._prior()))
        left = float(self.outer[P, P] - self.outer[P, :P] @ own @ self.outer[:P, P])
        return self.s / math.sqrt(max(left, 1e-12))

    def _loss_without(self) -> float:
        """How much less the log-likelihood is without noise, all else at its best under the same penalty."""
        assert self.at is not None
        theta, best = self.linear.flat(), self._value(self.at.theta, self.at.found)
        P, start = len(theta), theta
        if self.network is None:
            start = self.frozen_at
        self.linear.set_flat(start)
        prior, without = self._prior(), -math.inf
        found = self.filter.evaluate(0.0)
        for _ in range(_MOST_STEPS):
            with torch.no_grad():
                outer = self._frozen_filter().information(0.0)[0][:P, :P] + torch.diag(prior)
            at, without = self.linear.flat(), self._value(self.linear.flat(), found)
            gradient = found.gradient - prior * at
            step = guarded_solve(outer, gradient, "the filter")
            if float(gradient @ step) < 10 * _DONE or best - without < AS_WELL:
                break
            share = self._within_reach(step, 0.0)
            for _ in range(_HALVINGS):
                self.linear.set_flat(at + share * step)
                found = self.filter.evaluate(0.0)
                if self._value(at + share * step, found) > without:
                    break
                share *= 0.3
            else:
                break
        self.linear.set_flat(theta)
        return best - without

    def _drop(self) -> None:
        """The fit goes on without noise, from where it was; what noise there may be is kept for the report."""
        upper = math.sqrt(self.s**2 + 2.0 * 1.6449 * self.s * self.std)
        self.course.noise_at_zero = {"std": at_data(math.sqrt(self.s * self.std * 2.0), self.units)}
        self.course.noise_at_zero["upper"] = at_data(upper, self.units)
        self.course.end.likelihood.head.set_flat(self.frozen_at)
        if self.penalty is not None and self.strengths is not None and self.network is None:
            self.penalty.restore(self.strengths)

    def result(self) -> tuple[Recovery, Likelihood]:
        course, P = self.course, len(self.linear.theta)
        weights, outer, at = self.filter.batch(self.s), self.outer, self.at
        assert at is not None
        own = outer[:P, :P]
        if self.learned:
            own = own - torch.outer(outer[:P, P], outer[P, :P]) / outer[P, P].clamp(min=1e-300)
        batch = FullBatch(weights, None, self.n, 0)
        objective = NoisyObjective(**vars(self.likelihood.objective(batch)))
        objective.penalty = self.penalty
        objective.own, objective.slope = own, at.found.gradient - self._prior() * at.theta
        likelihood = self.likelihood
        engine = _Reported(self.engine, objective)
        done = Maximised(cast(Optimizer, None), self.converged, self.steps)
        recovery = finish(
            replace(course.end, likelihood=likelihood, engine=engine, done=done, batch=batch, samples=None)
        )
        recovery.log_likelihood = at.found.log_p
        if isinstance(self.linear, TangentHead):
            likelihood = replace(likelihood, head=course.end.likelihood.head)
        recovery.metrics |= {
            "law": self.law,
            "law_reason": self.reason,
            "law/seconds": time.perf_counter() - self.began,
            "covariance": self.law,
            "parameters": recovery.metrics.get("parameters", P) + self.learned,
            "observation_noise": {
                "value": at_data(self.s, self.units),
                "std": at_data(self.std, self.units),
                "learned": self.learned,
                "nodes": len(self.filter.nodes(self.s)[0]),
            },
        }
        return recovery, likelihood

    # -- state --------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        at = self.at
        scoring = None
        if at is not None:
            scoring = {"theta": at.theta, "log_s": at.log_s, "found": vars(at.found), "outer": at.outer}
            scoring["pairs"] = [list(pair) for pair in at.pairs]
        penalty = None if self.penalty is None else self.penalty.state()
        rest = {"log_s": self.log_s, "scoring": scoring, "penalty": penalty, "updates": self.updates}
        rest |= {"law": self.law, "reason": self.reason}
        rest["failures"] = self.failures
        return super().state_dict() | rest

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.log_s, self.updates = float(state["log_s"]), int(state["updates"])
        self.failures = int(state["failures"])
        if state["law"] != self.law:
            self.law, self.reason = state["law"], state["reason"]
            self._settle()
        if self.penalty is not None:
            self.penalty.restore(state["penalty"])
        if (at := state["scoring"]) is not None:
            pairs = [(one, two) for one, two in at["pairs"]]
            self.at = _Scoring(at["theta"], float(at["log_s"]), Filtered(**at["found"]), at["outer"], pairs)


def at_data(value: float, units: Any) -> float:
    """A length of the fit in the units of the data."""
    return value * float(units.length)
