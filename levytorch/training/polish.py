"""The last step is on the samples: what the interpolation of a lattice has left is removed by Newton's method.

One pass over all pairs gives the exact log-likelihood and score where the fit on the lattice ended, and the step to the
maximum of the samples' own likelihood. When that is short, as it is for all but the coarsest lattices, nothing more is
needed; otherwise scoring goes on over the samples until it has converged.
"""

from __future__ import annotations

import math
from typing import cast

import torch

from levytorch.coefficients import LinearHead
from levytorch.data.batches import FullBatch
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.training.engines.scoring import FisherScoring

_SHORT = 0.05  # standard errors: Newton's step is then right to a small part of that
_PASSES = 30


@torch.no_grad()
def polish(
    likelihood: Likelihood, on_lattice: FullBatchObjective, samples: FullBatch
) -> tuple[FullBatchObjective, Evaluation, float]:
    """Moves the head to the maximum over the samples; returns their objective, its last evaluation (before a short last
    step, which changes nothing that is reported) and how far the lattice's maximum was from it, in standard errors.
    """
    head = cast(LinearHead, likelihood.head)
    objective = likelihood.objective(samples)
    objective.penalty = on_lattice.penalty
    scoring = FisherScoring([head.theta], damping=1e-9)
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
        head.theta.copy_(evaluation.theta + scoring.newton_step())
    return objective, evaluation, distances[0]
