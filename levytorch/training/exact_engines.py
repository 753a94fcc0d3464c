"""How fits under the exact law of a step move: rounds on the centered score, Fisher scoring of linear heads, L-BFGS of
any head.

An evaluation costs the tables of the law, whatever the number of pairs; they serve both pools and the masses. A round
on the frozen law's score, centered by the exact law (law "corrected"), takes one forward evaluation and one pass over
the lattice. The centered score U stands for the exact law's as well as it can, A^T B^-1 U with information A^T B^-1 A
(`exact_objective.informations`), so that the roughness penalty and its evidence mean what they mean in every other fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from levytorch.coefficients import LinearHead
from levytorch.data.batches import FullBatch
from levytorch.likelihood.corrected import Strata, centered_score
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_objective import AtOneHead, ExactObjective, Information, Informations, informations
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, symmetric_inverse
from levytorch.training.engines.base import bare
from levytorch.training.engines.fisher import FisherEngine, FisherScoring, largest_moves, within_scale
from levytorch.training.engines.lbfgs import LBFGSEngine, losses

_NEAR = 1.0  # twice the log-likelihood still to be gained, below which curves are judged by their roughness
_SETTLED = 0.1  # slope of the evidence, in numbers of well-determined coefficients
_STEADY = 0.01  # the same, where the data is not looked at again meanwhile
# of the rounds on the centered score
ROUNDS = 5
_DONE = 1e-2  # squared standard errors still to go, over all parameters together
_CONTRACTS = 0.5  # of the squared distance: a round that leaves more of it was the last
_FARTHEST = 2.0  # predictors of D_o and D_f move by so much in one round at most
_EVIDENCE = 8  # updates of the penalty per round, or per evaluation


@dataclass
class ExactEngine(FisherEngine):
    """Fisher scoring under the exact law. start: the penalty of the frozen solution; own: the law's information.

    moves: False where only what is reported of a head is wanted, which takes no gradient. each: see ExactObjective.
    """

    tolerance: float = 1e-6
    law: ExactLaw = field(default_factory=ExactLaw)
    start: RoughnessPenalty | None = None
    own: Information | None = None
    moves: bool = True
    each: bool = False

    def optimizer(self, likelihood: Likelihood) -> Optimizer:
        head = cast(LinearHead, likelihood.head)
        return FisherScoring([head.theta], damping=1e-4, tolerance=self.tolerance, pairs=self.max_steps)

    def objective(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch) -> FullBatchObjective:
        scoring = cast(FisherScoring, bare(optimizer))
        if getattr(scoring, "objective", None) is None:
            frozen = likelihood.objective(batch, n_bins=self.n_bins)
            parts: dict[str, Any] = {f.name: getattr(frozen, f.name) for f in fields(frozen)} | {"penalty": self.start}
            scoring.objective = objective = ExactObjective(
                **parts, exact=self.law, own=self.own, slopes=self.moves, each=self.each
            )
            if self.moves and not self.each:
                objective.apart = _apart(frozen)
        return scoring.objective

    def unfinished(self, optimizer: Optimizer) -> str:
        if not self.moves:
            return "rounds on the centered score came no nearer to its root"
        return super().unfinished(optimizer)

    def step(self, likelihood: Likelihood, optimizer: Optimizer, batch: FullBatch, step: int, seed: int = 0) -> float:
        scoring = cast(FisherScoring, bare(optimizer))
        objective = self.objective(likelihood, scoring, batch)
        scoring.step(objective.evaluate)
        accepted, penalty = scoring.accepted, objective.penalty
        assert accepted is not None
        if penalty is not None and penalty.adaptive:
            settled = scoring.memory["decrement"] < _NEAR and _weighed(scoring, objective, penalty)
            scoring.memory["settled"] = settled
        return -objective.value(accepted)


def _weighed(scoring: FisherScoring, objective: FullBatchObjective, penalty: RoughnessPenalty) -> bool:
    """Moves the penalty to where the evidence wants it; returns whether it was there.

    An evaluation is dear, so that the two are led to each other on the local model: strengths for where the step ends
    that they call for, until these no longer change.
    """
    accepted = scoring.accepted
    assert accepted is not None
    theta, information = accepted.theta, objective.n * objective.information(accepted)

    def update(theta: Tensor) -> float:
        before = penalty.precision()
        slope = penalty.update(theta, information)
        more = (penalty.precision() - before) / objective.n
        pairs = scoring.memory.get("pairs", [])
        scoring.memory["pairs"] = [(moved, change + more * moved) for moved, change in pairs]
        return slope

    if update(theta) < _SETTLED:
        return True
    for _ in range(_EVIDENCE - 1):
        if update(theta + scoring.newton_step()) < _STEADY:
            break
    return False


def _apart(frozen: FullBatchObjective) -> tuple[Tensor, Tensor] | None:
    """How the gradients of the two pools differ under the frozen law, and that of the TCF: near enough for a step."""
    if frozen.method != "tcf":
        return None
    ev = frozen.evaluate()
    if ev.tail is None or ev.tcf_gradient is None or not ev.tcf > 0:
        return None
    return ev.tail.gradient / ev.tail.n - ev.main.gradient / ev.main.n, ev.tcf_gradient


@dataclass
class ExactLBFGS(LBFGSEngine):
    """L-BFGS of any head under the exact law."""

    law: ExactLaw = field(default_factory=ExactLaw)
    evaluations: int = 0

    def __post_init__(self) -> None:
        return  # made from an engine whose options were checked

    def nll(self, likelihood: Likelihood, batch: FullBatch) -> Tensor:
        """In one graph, whatever the size of the batch: a lattice is small."""
        self.evaluations += 1
        law = AtOneHead(self.law)
        whole = batch._replace(chunk=max(batch.main.x.shape[0], 1))
        with torch.enable_grad():
            loss = torch.stack(list(losses(replace(likelihood, law=law), whole.chunks()))).sum()
            if likelihood.tail.method == "conditional":
                loss = loss + replace(likelihood.seen(), law=law).mean_log_kept(likelihood.head)
            loss.backward()
        return loss.detach()


@dataclass
class Corrected:
    """How it went. distances: standard errors (over all parameters together) to go before each round."""

    informations: Informations
    distances: list[float]
    converged: bool
    R_theta: float | None
    step: Tensor  # the first one, by which the frozen law's answer is off


@torch.no_grad()
def correct(objective: FullBatchObjective, exact: ExactLaw, strata: Strata) -> Corrected:
    """Moves the head of a frozen law's objective to the root of the centered score; updates its penalty.

    Where the rounds stop to contract (too few pairs, or steps so long that the frozen law says little) the head stays
    where it was nearest.
    """
    head, penalty, n = objective.head, objective.penalty, objective.n
    U, ev = centered_score(objective, exact, strata)
    found = informations(head, objective.law, exact, strata, ev.R_theta)
    A, B = found.corrected.slope, found.corrected.variance
    turn = A.T @ symmetric_inverse(B)
    G = turn @ A
    distances: list[float] = []
    steps: list[Tensor] = []
    nearest = ev.theta
    for done in range(ROUNDS + 1):
        step, curvature = _step(turn @ U, G, ev.theta, penalty, n)
        distance = float(n * step @ curvature @ step)
        if distances and not distance < _CONTRACTS * distances[-1]:
            head.set_flat(nearest)
            break
        nearest = ev.theta
        distances.append(distance)
        steps.append(step)
        if done == ROUNDS:
            break
        moves = largest_moves(objective, step)
        step = step * min(1.0, _FARTHEST / max(float(moves.max()), 1e-300))
        if head.tempering_spec.learned:
            step = torch.cat([step[:-1], within_scale(ev.theta[-1:], step[-1:])])
        head.set_flat(ev.theta + step)
        if distance < _DONE:
            break
        U, ev = centered_score(objective, exact, strata)
    return Corrected(found, [value**0.5 for value in distances], distances[-1] < 1.0, ev.R_theta, steps[0])


def _step(score: Tensor, G: Tensor, theta: Tensor, penalty: RoughnessPenalty | None, n: float) -> tuple[Tensor, Tensor]:
    """The step of the local model, under a penalty that its own end asks for; and the curvature."""
    if penalty is None:
        floor = torch.diag(1e-12 * G.diagonal().max().expand(len(G)))
        return torch.linalg.solve(G + floor, score), G
    for _ in range(_EVIDENCE if penalty.adaptive else 1):
        precision = penalty.precision() / n
        curvature = G + torch.diag(precision)
        step = torch.linalg.solve(curvature, score - precision * theta)
        if penalty.update(theta + step, n * G) < _STEADY:
            break
    return step, curvature
