"""LSTD: the value function straight from pairs of states, without a model of what lies between them.

V(x) = E[int_0^dt e^{-beta s} r(X_s) ds + e^{-beta dt} V(X_dt) | x] holds whatever the dynamics; with V = phi^T c,
tested with phi on the pairs of the data (Bradtke and Barto 1996), and the reward linear between two observations,

    sum phi(x) (phi(x) - e^{-beta dt} phi(x'))^T c = sum phi(x) (w_0 r(x) + w_1 r(x')).

The rule for the reward is of second order in dt. Pairs that were removed because they jump far bias it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from levytorch.policy.blocked import Equations
from levytorch.policy.empirical import slope_weight
from levytorch.policy.moments import Moments


def reward_weights(beta: float, dt: float) -> tuple[float, float]:
    """Integrals over a step of e^{-beta s} (1 - s / dt) and e^{-beta s} s / dt: what r(x) and r(x') count."""
    whole = -math.expm1(-beta * dt) / beta
    late = float(slope_weight(beta, torch.tensor([dt], dtype=torch.float64).numpy())[0])
    return whole - late, late


def lstd(found: Moments, r: Tensor, beta: float) -> Equations:
    """r: (n,) Fourier coefficients of the reward."""
    K = found.n_basis
    A, g = torch.zeros_like(found.start[0, :, :, :K]), torch.zeros_like(found.start[0, :, :, 0])
    for t, dt in enumerate(found.dt.tolist()):
        early, late = reward_weights(beta, dt)
        A += found.start[t, :, :, :K] - math.exp(-beta * dt) * found.land[t, :, :, :K]
        g += early * found.start[t] @ r + late * found.land[t] @ r
    return Equations(A, g, found.gram, found.basis.harmonic_numbers()[:K])
