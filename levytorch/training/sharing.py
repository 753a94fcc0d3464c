"""Parameters that several fits share, by minimum distance.

Fits of the single actions are independent. What they share is estimated by the vector that is nearest to all of them in
the metric of their covariances: asymptotically that is the maximum of the joint likelihood under any law, treatment of
tails or penalty, and the distance that is left is the Wald test of the sharing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_RELATIVE = 1e-12  # of the largest variance: what rounding has left of a parameter that is fixed


@dataclass(frozen=True)
class Shared:
    """Parameters (A, P) of all fits, their joint covariance (A P, A P), and the test of what is shared."""

    theta: Tensor
    covariance: Tensor
    distance: float  # chi squared with `freedom` degrees where the sharing is right
    freedom: int


def independent(covariances: Sequence[Tensor]) -> Tensor:
    """The joint covariance of fits that share nothing."""
    return torch.block_diag(*covariances)


def share(thetas: Sequence[Tensor], covariances: Sequence[Tensor], shared: Tensor) -> Shared:
    """The nearest parameters whose entries at `shared` (P,) bool are the same in every fit."""
    A, P = len(thetas), thetas[0].numel()
    own = int((~shared).sum())
    # column of the joint vector that each entry of each fit reads: first what is each fit's own, then what is shared
    S = torch.zeros((A * P, A * own + P - own), dtype=torch.float64)
    for a in range(A):
        S[a * P + torch.nonzero(~shared).flatten(), a * own + torch.arange(own)] = 1.0
        S[a * P + torch.nonzero(shared).flatten(), A * own + torch.arange(P - own)] = 1.0
    precision = torch.block_diag(*(_inverse(C) for C in covariances))
    theta = torch.cat(list(thetas))
    weighed = precision @ S
    cov = _inverse(S.T @ weighed)
    joint = S @ (cov @ (weighed.T @ theta))
    off = theta - joint
    distance = float(off @ precision @ off)
    return Shared(joint.reshape(A, P), S @ cov @ S.T, distance, (A - 1) * (P - own))


def _inverse(matrix: Tensor) -> Tensor:
    """Of a symmetric positive matrix, through its scaled eigenvectors: parameters differ by orders of magnitude."""
    scale = matrix.diagonal().clamp(min=0).sqrt()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    values, vectors = torch.linalg.eigh(matrix / torch.outer(scale, scale))
    values = values.clamp(min=_RELATIVE * float(values.max()))
    return (vectors / values) @ vectors.T / torch.outer(scale, scale)
