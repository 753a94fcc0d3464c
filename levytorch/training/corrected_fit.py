"""The fit under law "corrected": a few rounds on the frozen law's score, centered by the exact law.

Each round takes one forward evaluation of the exact law and one pass over the lattice. The centered score U stands for
the exact law's as well as it can, A^T B^-1 U with information A^T B^-1 A (`likelihood.exact_information`), so that the
roughness penalty and its evidence mean what they mean in every other fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from levytorch.likelihood.corrected import Strata, centered_score
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_information import Informations, informations
from levytorch.likelihood.objective import FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, symmetric_inverse
from levytorch.training.engines.scoring import largest_moves, within_scale

ROUNDS = 5
_DONE = 1e-2  # squared standard errors still to go, over all parameters together
_CONTRACTS = 0.5  # of the squared distance: a round that leaves more of it was the last
_FARTHEST = 2.0  # predictors of D_o and D_f move by so much in one round at most
_EVIDENCE = 8  # updates of the penalty per round


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
        if penalty.update(theta + step, n * G) < 0.01:
            break
    return step, curvature
