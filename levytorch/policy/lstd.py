"""LSTD: the value function straight from pairs of states, without a model of what lies between them.

V(x) = E[int_0^dt e^{-beta s} r(X_s) ds + e^{-beta dt} V(X_dt) | x] holds whatever the dynamics; with V = phi^T c,
tested with phi on the pairs of the data (Bradtke and Barto 1996), and the reward linear between two observations,

    sum phi(x) (phi(x) - e^{-beta dt} phi(x'))^T c = sum phi(x) (w_0 r(x) + w_1 r(x')).

The rule for the reward is of second order in dt. Pairs that were removed because they jump far bias it.

Data and model together have what each knows best. Hybrid: LSTD on the pairs of the data, but with what a model knows
that pairs do not: how the reward changes within a step, R - w_0 r - w_1 E[r(x') | x] beyond the rule for its integral,
and the steps that the data has lost.

Corrected: the V of the model, plus the solution of the same equations for what the data says about its error. With u =
e^{-beta dt} V + w_1 r the residual u(x') - E[u(x') | x] has mean zero on every state if the model is right; where it is
not, the residual is as small as the model's error, and so is the error of V that is left: a product of the model's and
of the data's. In full the correction leads to the hybrid; `blocked.shrink` keeps of it what blocks that were left out
confirm, and nothing where the data does not speak against the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from levytorch.policy.blocked import SLIGHT, Equations, solution
from levytorch.policy.empirical import slope_weight
from levytorch.policy.model_step import Model, ModelChange, ModelStep
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


def hybrid(core: Moments, model: Model, steps: Sequence[ModelStep]) -> Equations:
    """core: of the pairs that are taken from the data; steps: the model's, one per dt."""
    K = core.n_basis
    A, g = torch.zeros_like(core.start[0, :, :, :K]), torch.zeros_like(core.start[0, :, :, 0])
    for t, (step, dt) in enumerate(zip(steps, core.dt.tolist())):
        F, R = step.equation(core.basis, K)
        late = reward_weights(model.beta, dt)[1]
        A += core.start[t] @ F - step.decay * core.land[t, :, :, :K]
        g += core.start[t] @ (R - late * step.C @ model.r) + late * core.land[t] @ model.r
    return Equations(A, g, core.gram, core.basis.harmonic_numbers()[:K])


def residuals(core: Moments, model: Model, steps: Sequence[ModelStep]) -> Equations:
    """The equations of V minus the model's V: those of the hybrid, with residuals in the place of rewards."""
    equations = hybrid(core, model, steps)
    g = torch.zeros_like(equations.g)
    for t, (step, dt) in enumerate(zip(steps, core.dt.tolist())):
        u = step.decay * model.V + reward_weights(model.beta, dt)[1] * model.r
        g += core.land[t] @ u - core.start[t] @ (step.C @ u)
    return Equations(equations.A, g, equations.metric, equations.wave)


def rule_influence(
    core: Moments, change: ModelChange, steps: Sequence[ModelStep], influence: Tensor, equations: Equations
) -> Tensor:
    """(B, K): what a block moves the solution by through the model's part in the equations; influence: (B, P)."""
    moved = torch.zeros_like(equations.g)
    for t, (step, dt) in enumerate(zip(steps, core.dt.tolist())):
        rule = change.rule(dt, reward_weights(change.model.beta, dt)[1], step)
        moved += influence @ (core.start[t].sum(0) @ rule).T
    return solution(equations.A.sum(0) + SLIGHT * equations.ridge, moved.T).T
