"""`fisher`: damped Fisher scoring of linear heads as a torch optimiser, one pass over the whole batch per step.

The curvature is the mean outer product of scores, which is positive and costs nothing beyond the pass. With the TCF the
root of  g(theta) = (1 - TCF) mean_main + TCF mean_tail  is sought instead of a maximum (the TCF moves with theta), and
the Newton matrix gets the rank-one term of d TCF / d theta: the paper's fixed point, without iterating to it.
The parameters are always the last accepted ones, so that a checkpoint or an interruption never holds a bad trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import Head, LinearHead
from levytorch.coefficients.links import tempering_eta
from levytorch.data.batches import FullBatch
from levytorch.errors import NumericalError
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.network import NetworkObjective, check_prior
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, check_strength, lead_to_evidence
from levytorch.likelihood.sums import ScoreSums
from levytorch.startup import uncompiled
from levytorch.training.engines.base import Engine, bare

_PAIRS = 6  # secant pairs kept, unless more are asked for
_FLOOR = 1e-4  # curvature of the total log-likelihood below which a direction counts as flat
_ZERO = 0.5  # standard errors of a learned tempering from zero, within which its value does not matter
_FLAT = 0.01  # twice the log-likelihood that may be left in it then
_SHRINK, _GROW, _LEAST = 0.8, 2.0, 1e-3  # of that parameter in one step
_MAX_ETA_STEP = 2.0  # a predictor of D_o or D_f moves by a factor of at most e^2 or so in one step
NEAR = 1.0  # twice the log-likelihood still to be gained, below which curves are good enough to judge their roughness
_FAR = 1e3  # the same, above which strengths that were found elsewhere say nothing
_SHORT = 0.05  # standard errors: Newton's step is then right to a small part of that
_UPDATES = 40  # of the strengths of a penalty, after which they stay as they are
_ROUNDING = 1e-12  # of the mean log-likelihood
# The strengths of the prior of a network: at most so many updates, the first one where this is left to be gained in
# twice the log-likelihood, or after so many passes
_NETWORK_UPDATES, _CLOSE, _LATE = 30, 20.0, 25
_PASSES = 30  # over the samples, after a lattice
_FINISHING = 30  # of the last layer of a network


class FisherScoring(Optimizer):
    """theta <- theta + (F + damping diag F - u v^T)^{-1} g, the damping adapted to how good the local model was.

    Converged when n g^T step < tolerance: twice the log-likelihood still to be gained, so that 1e-6 is a thousandth of
    a standard error. pairs: how many secant pairs are kept.
    """

    add_param_group = uncompiled(Optimizer.add_param_group)
    zero_grad = uncompiled(Optimizer.zero_grad)
    state_dict = uncompiled(Optimizer.state_dict)
    load_state_dict = uncompiled(Optimizer.load_state_dict)

    def __init__(
        self, params: Iterable[Tensor], *, damping: float = 1e-2, tolerance: float = 1e-6, pairs: int = _PAIRS
    ) -> None:
        super().__init__(list(params), {"damping": damping, "tolerance": tolerance})
        self.objective: FullBatchObjective  # what is maximised: given before a step, since a batch brings it
        self._restored: Evaluation | None
        self._proposed: tuple[FullBatchObjective | None, tuple[Tensor, float, float]]
        self.most_pairs = pairs
        self.restart()

    def restart(self) -> None:
        """From the parameters as they are, for another batch; how many passes there were, and a penalty, are kept."""
        before = self.state.get("scoring", {})  # type: ignore[call-overload]
        kept = {key: before[key] for key in ("penalty",) if key in before}
        fresh = {"damping": self.defaults["damping"], "converged": False, "decrement": float("inf")}
        self.state["scoring"] = {**fresh, "passes": before.get("passes", 0), **kept}  # type: ignore[index]
        self._restored, self._proposed = None, (None, (torch.empty(0), 0.0, 0.0))

    def forget_curvature(self) -> None:
        """Where the objective has another information: what was learned and judged with the old one."""
        fresh = {"pairs": [], "damping": self.defaults["damping"], "hold": False, "converged": False, "settled": False}
        self.memory.update(fresh)
        self._proposed = (None, (torch.empty(0), 0.0, 0.0))

    # -- what others read ---------------------------------------------------------------------------------------------
    @property
    def memory(self) -> dict[str, Any]:
        return self.state["scoring"]  # type: ignore[index]

    @property
    def converged(self) -> bool:
        return bool(self.memory["converged"])

    @property
    def misled(self) -> bool:
        """Whether the last step was refused."""
        return bool(self.memory.get("hold", False))

    @property
    def accepted(self) -> Evaluation | None:
        """The evaluation at the current parameters."""
        if self._restored is None and "evaluation" in self.memory:
            self._restored = _unpack(self.memory["evaluation"])
        return self._restored

    # -- the iteration ------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def step(self, closure: Callable[[], Evaluation] | None = None) -> Evaluation:  # type: ignore[override]
        assert closure is not None, "FisherScoring.step needs a closure that evaluates the objective"
        memory = self.memory
        current = self.accepted
        if current is None:
            current = closure()
            self.accept(current)
        else:
            before, proposed = self._proposed
            delta, predicted, merit = proposed if before is self.objective else self._propose(current)
            if memory["converged"]:
                return current
            self.objective.place(current, current.theta + delta)
            try:
                trial = closure()
            except ArithmeticError:
                self.objective.place(current, current.theta)
                raise
            gain = self.objective.value(trial, current.tcf) - self.objective.value(current, current.tcf)
            then = self._merit(trial, memory["factor"])
            # where the TCF moves too a root is sought, and the value alone does not judge; else it must not fall
            falls = gain < -_ROUNDING * (1.0 + abs(self.objective.value(current, current.tcf)))
            better = then < 0.81 * merit and (self.objective.method == "tcf" or not falls)
            ratio = gain / predicted if predicted > 0 else -1.0
            if better or ratio > 1e-4:
                self._remember(current, trial)
                self.accept(trial)
                current = trial
                memory["hold"] = False
                if better or ratio > 0.5:
                    memory["damping"] = max(memory["damping"] * 0.1, 1e-9)
                elif ratio < 0.25:
                    memory["damping"] = min(memory["damping"] * 4, 1e6)
            else:
                self.objective.place(current, current.theta)
                memory["hold"] = True  # next time as if the TCF were a constant: that step ascends
                memory["damping"] = min(max(memory["damping"], 1e-4) * 10, 1e8)
        memory["passes"] += 1
        proposed = self._propose(current)  # so that `converged` is known without a further pass
        self._proposed = (None if self.objective.penalty else self.objective), proposed  # a penalty may change
        return current

    def newton_step(self) -> Tensor:
        """The step from the accepted parameters that the local model calls for."""
        assert self.accepted is not None
        return self._propose(self.accepted)[0]

    def _propose(self, ev: Evaluation) -> tuple[Tensor, float, float]:
        """Step, gain that the local model promises, and merit (squared gradient in the metric of the curvature)."""
        memory = self.memory
        if not bool(torch.isfinite(ev.main.gradient).all() and torch.isfinite(ev.main.second).all()):
            raise NumericalError(
                "the scores of all pairs must be finite, found some that are not where the fit is; look for steps that "
                "are far too large, or give D_o or D_f where it is known."
            )
        model = self.objective.local_model(ev)
        pairs = [self.objective.seen_from(ev, pair) for pair in memory.get("pairs", [])]
        F, g = self.corrected(model.curvature, pairs), model.gradient
        scale = F.diagonal() + 1e-12 * F.diagonal().max()
        # a coefficient that vanishes takes its gradient and its curvature along: the floor lets such a fit converge
        floor = torch.eye(g.numel(), dtype=torch.float64) * (_FLOOR / self.objective.n)
        A = F + floor + memory["damping"] * torch.diag(scale)
        factor = F + floor + 1e-9 * torch.diag(scale)
        memory["factor"] = factor
        merit = float(g @ torch.linalg.solve(factor, g))
        delta = torch.linalg.solve(A, g)
        if model.coupling is not None and not memory.get("hold", False):
            u, v = model.coupling
            toward = torch.linalg.solve(A, u)
            # (A - u v^T)^{-1} g; far from the fixed point the TCF's feedback is not trusted beyond a factor of ten
            delta = delta + toward * (v @ delta) / (1.0 - v @ toward).clamp(min=0.1)
        delta = self.within_reach(delta, ev)
        predicted = float(g @ delta - 0.5 * delta @ F @ delta)
        memory["decrement"] = self.objective.n * merit
        tolerance = self.param_groups[0]["tolerance"]
        memory["converged"] = memory["decrement"] < tolerance
        if not memory["converged"] and memory["decrement"] < _FLAT and self._tempering_is_nothing(ev, factor):
            rest = float(g[:-1] @ torch.linalg.solve(factor[:-1, :-1], g[:-1]))
            memory["converged"] = self.objective.n * rest < tolerance
        return delta, predicted, merit

    def _tempering_is_nothing(self, ev: Evaluation, curvature: Tensor) -> bool:
        """Whether a learned tempering is far from being distinguishable from zero.

        Down to the inverse of the largest step the likelihood is then all but flat in it, with more structure than a
        parabola has, and the last digits of a number that means nothing would take most of the passes.
        """
        if not self.objective.head.tempering_spec.learned:
            return False
        eta, slope = tempering_eta(ev.theta[-1])
        return float(eta * (self.objective.n * curvature[-1, -1]).sqrt() / slope.abs()) < _ZERO

    def _remember(self, before: Evaluation, after: Evaluation) -> None:
        """A secant pair at one TCF: how the gradient really changed along an accepted step."""
        pairs = self.memory.setdefault("pairs", [])
        if self.objective.moving and not self.memory["decrement"] < NEAR:
            pairs.clear()  # far from a solution the tangent turns too fast
            return
        pairs.append(self.objective.secant(before, after))
        del pairs[: -self.most_pairs]

    def corrected(self, curvature: Tensor, pairs: list[tuple[Tensor, Tensor]] | None = None) -> Tensor:
        """BFGS updates of the outer-product curvature by the secant pairs.

        Where the model is wrong (tails cut and not corrected, long steps) score products and second derivatives differ,
        and scoring alone converges slowly or oscillates.
        """
        for step, change in self.memory.get("pairs", []) if pairs is None else pairs:
            along = curvature @ step
            old, new = float(step @ along), float(step @ change)
            if old > 0 and new > 0.05 * old:
                curvature = curvature - torch.outer(along, along) / old + torch.outer(change, change) / new
        return curvature

    def _merit(self, ev: Evaluation, factor: Tensor) -> float:
        g = self.objective.gradient(ev)
        if self.objective.moving:
            factor = self._factor(self.objective.local_model(ev).curvature)
        return float(g @ torch.linalg.solve(factor, g))

    def _factor(self, F: Tensor) -> Tensor:
        """The metric of the merit: the curvature, bounded from below."""
        scale = F.diagonal() + 1e-12 * F.diagonal().max()
        floor = torch.eye(len(F), dtype=torch.float64) * (_FLOOR / self.objective.n)
        return F + floor + 1e-9 * torch.diag(scale)

    def within_reach(self, delta: Tensor, ev: Evaluation) -> Tensor:
        """A step from an evaluation, cut where a positive coefficient's predictor would move far in a bin with data."""
        move = float((largest_moves(self.objective, delta) * (ev.main.second[0, 0] > 0)).max())
        delta = delta * min(1.0, _MAX_ETA_STEP / max(move, 1e-300))
        if self.objective.head.tempering_spec.learned:
            delta = torch.cat([delta[:-1], within_scale(ev.theta[-1:], delta[-1:])])
        return delta

    def accept(self, ev: Evaluation) -> None:
        """Take an evaluation at the present parameters for where the iteration is."""
        self._restored = ev
        self.memory["evaluation"] = _pack(ev)


def within_scale(raw: Tensor, step: Tensor) -> Tensor:
    """A step of a learned tempering that stays on its side of zero, within a factor of a few: see `tempering_link`."""
    side = torch.where(raw < 0, -1.0, 1.0)
    return side * (side * step).clamp(-_SHRINK * raw.abs(), _GROW * raw.abs() + _LEAST)


def largest_moves(objective: FullBatchObjective, step: Tensor) -> Tensor:
    """How far the predictors of D_o and D_f move with a step in theta, the farthest at every bin, (M,)."""
    head = objective.head
    rows = [row for row, name in enumerate(head.layout.names) if name in ("D_o", "D_f")]
    moves = [step[head.part(row)] @ objective.design[row] for row in rows]
    return torch.stack(moves).abs().amax(0)


def _pack(ev: Evaluation) -> dict[str, Any]:
    """Plain tensors and numbers: what a weights-only checkpoint can hold."""
    return {
        "theta": ev.theta,
        "base": ev.base,
        "main": vars(ev.main),
        "tail": None if ev.tail is None else vars(ev.tail),
        "tcf": ev.tcf,
        "R_theta": ev.R_theta,
        "tcf_gradient": ev.tcf_gradient,
        "kept": ev.kept,
    }


def _unpack(packed: dict[str, Any]) -> Evaluation:
    tail = None if packed["tail"] is None else ScoreSums(**packed["tail"])
    rest = {key: packed[key] for key in ("tcf", "R_theta", "tcf_gradient", "kept", "base") if key in packed}
    return Evaluation(packed["theta"], ScoreSums(**packed["main"]), tail, **rest)


@dataclass
class FisherEngine(Engine):
    """max_steps: passes; tolerance: see FisherScoring; penalty: "none", "evidence", "harmonics", a strength or
    several.
    """

    max_steps: int = 60
    tolerance: float = 1e-6
    damping: float = 1e-2
    n_bins: int = 512
    penalty: str | float | list[float] = "none"

    name = "fisher"
    full_batch = True
    settled = 0.01  # slope of the evidence (in numbers of well-determined coefficients) that no longer matters

    def __post_init__(self) -> None:
        super().__post_init__()
        self.penalty = check_strength(self.penalty)

    def accepts(self, head: Head) -> None:
        """Every head: one that is not linear is followed along its tangents, and has no waves to be smoothed."""
        if not isinstance(head, LinearHead):
            check_prior(head, self.penalty)

    def optimizer(self, likelihood: Likelihood) -> Optimizer:
        return FisherScoring(likelihood.head.parameters(), damping=self.damping, tolerance=self.tolerance)

    def step(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch, step: int, seed: int = 0) -> float:
        scoring = scoring_of(optimizer)
        objective = self.objective(likelihood, scoring, batch)
        if scoring.accepted is None and scoring.memory["passes"]:
            scoring.step(objective.evaluate)  # where another batch begins
        optimizer.step(closure=objective.evaluate)  # type: ignore[arg-type]
        accepted, penalty = scoring.accepted, objective.penalty
        assert accepted is not None
        if penalty is not None and penalty.adaptive:
            network = isinstance(objective, NetworkObjective)
            close = scoring.memory["decrement"] < _CLOSE or scoring.memory["passes"] >= _LATE
            near = scoring.memory["decrement"] < NEAR or (network and (close or updates_of(scoring) > 0))
            updates, most = updates_of(scoring), _NETWORK_UPDATES if network else _UPDATES
            # where the likelihood is flat strengths and coefficients can follow each other without end
            scoring.memory["settled"] = updates >= most or (near and self._smoothed(scoring, accepted, penalty))
            scoring.memory["updates"] = updates + (near and not (network and scoring.misled))
            if scoring.memory["decrement"] > _FAR:
                penalty.tighten()
            scoring.memory["penalty"] = penalty.state()
            if network and scoring.memory["settled"] and NEAR > scoring.memory["decrement"] > self.tolerance:
                self._finish(cast(NetworkObjective, objective), scoring)
                accepted = cast(Evaluation, scoring.accepted)
        return -objective.value(accepted)

    @staticmethod
    def _finish(objective: NetworkObjective, scoring: FisherScoring) -> None:
        """The last layer of a network to its maximum, while the others stay.

        Where less than half a unit of log-likelihood is left, the likelihood hardly curves with the layers before the
        last one, and its curvature there is not that of the tangents: steps are refused for a hundred passes, in which
        the coefficients move by small parts of a standard error. In the last layer predictors are linear.
        """
        if not objective.has_features:
            return
        objective.hold_features(True)
        try:
            scoring.forget_curvature()
            scoring.accept(objective.evaluate())
            for _ in range(_FINISHING):
                scoring.step(objective.evaluate)
                if scoring.converged:
                    break
        finally:
            objective.hold_features(False)
        converged = scoring.converged
        scoring.accept(objective.evaluate())  # its tangent has all layers again, for later laws and standard errors
        scoring.memory.update(pairs=[], converged=converged, settled=True)

    def _smoothed(self, scoring: FisherScoring, accepted: Evaluation, penalty: RoughnessPenalty) -> bool:
        """Moves the penalty to where the evidence wants it; returns whether it was there."""
        if isinstance(scoring.objective, NetworkObjective):
            return self._weighed(scoring.objective, accepted, scoring)
        objective, theta, n = scoring.objective, accepted.theta, scoring.objective.n
        information, before = n * objective.information(accepted), penalty.precision()
        score = objective.gradient(accepted) + before / n * theta
        own = [(moved, change - before / n * moved) for moved, change in scoring.memory.get("pairs", [])]
        strengths = penalty.strengths.clone()
        settled = penalty.update(theta, information) < self.settled
        if not settled:
            curvature = objective.local_model(accepted).curvature - torch.diag(penalty.precision() / n)
            G = scoring.corrected(curvature, own) + torch.eye(len(curvature)) * (_FLOOR / n)
            lead_to_evidence(penalty, theta, score, G, information, n, partial(scoring.within_reach, ev=accepted))
        penalty.held_back(strengths, theta)
        precision = penalty.precision() / n
        scoring.memory["pairs"] = [(moved, change + precision * moved) for moved, change in own]
        return settled

    def _weighed(self, objective: NetworkObjective, accepted: Evaluation, scoring: FisherScoring) -> bool:
        """The same for the prior of a network: one update of its strengths."""
        penalty = objective.prior
        if scoring.misled or penalty is None or (before := penalty.full_precision()) is None:
            return False
        change = penalty.update(accepted.theta, objective.n * objective.information(accepted))
        objective.renewed(accepted)
        stronger = (cast(Tensor, penalty.full_precision()) - before) / objective.n
        pairs = [(moved, fallen + stronger * moved) for moved, fallen in scoring.memory.get("pairs", [])]
        scoring.memory["pairs"] = pairs
        scoring.memory["evaluation"] = _pack(accepted)
        return change < self.settled

    def objective(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch) -> FullBatchObjective:
        """That of the batch; a batch that is the one before but for its TCF, which scoring finds itself, keeps it."""
        scoring = cast(FisherScoring, optimizer)
        known = getattr(scoring, "objective", None)
        other = known is not None and not batch.holds(known.batch)
        if known is None or other:
            scoring.objective = likelihood.objective(batch, self.penalty, self.n_bins)
        if other:
            scoring.restart()
        if scoring.objective.penalty is not None and "penalty" in scoring.memory:
            scoring.objective.penalty.restore(scoring.memory["penalty"])  # a resumed run goes on with its own
        return scoring.objective

    def unfinished(self, optimizer: Optimizer) -> str:
        if not isinstance(optimizer, FisherScoring) or not optimizer.memory["passes"]:
            return super().unfinished(optimizer)
        left = f"the log-likelihood can still be raised by about {0.5 * optimizer.memory['decrement']:.2g}"
        return left if not optimizer.converged else "the strengths of the penalty have not settled"

    def converged(self, optimizer: Optimizer) -> bool:
        return isinstance(optimizer, FisherScoring) and optimizer.converged and optimizer.memory.get("settled", True)


def scoring_of(optimizer: Optimizer) -> FisherScoring:
    """The scoring itself, without Lightning's wrapper."""
    return cast(FisherScoring, bare(optimizer))


def updates_of(scoring: FisherScoring) -> int:
    """How often the strengths of a penalty have been updated."""
    return int(scoring.memory.get("updates", 0))


@torch.no_grad()
def polish(
    likelihood: Likelihood, on_lattice: FullBatchObjective, samples: FullBatch
) -> tuple[FullBatchObjective, Evaluation, float]:
    """The last step is on the samples: what the interpolation of a lattice has left is removed by Newton's method.

    One pass over all pairs gives the exact log-likelihood and score where the fit on the lattice ended, and the step to
    the maximum of the samples' own likelihood. When that is short, as it is for all but the coarsest lattices, nothing
    more is needed; otherwise scoring goes on over the samples until it has converged.

    Moves the head; returns the samples' objective, its last evaluation (before a short last step, which changes nothing
    that is reported) and how far the lattice's maximum was from it, in standard errors.
    """
    objective = likelihood.objective(samples)
    objective.penalty = on_lattice.penalty
    scoring = FisherScoring(likelihood.head.parameters(), damping=1e-9)
    scoring.objective = objective
    distances = []
    for _ in range(_PASSES):
        scoring.step(objective.evaluate)
        distances.append(math.sqrt(max(0.0, scoring.memory["decrement"])))
        if scoring.converged or distances[-1] < _SHORT:
            break
    evaluation = scoring.accepted
    assert evaluation is not None
    if not scoring.converged and distances[-1] < _SHORT:
        objective.place(evaluation, evaluation.theta + scoring.newton_step())
    return objective, evaluation, distances[0]
