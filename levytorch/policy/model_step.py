"""One step of a model as matrices on Fourier coefficients: what it expects of a function of the state after dt.

With L the generator (collocated, as in `solver`), V = (beta - L)^-1 r and P = exp(dt L), the reward that is expected
over a step is R = int_0^dt e^{-beta s} P_s r ds = V - e^{-beta dt} P V. Where the data has lost its tails only steps
within a threshold, the core, are taken from it: C is what the model expects given that a step lies there, `lost` the
probability that it does not, and T = P - (1 - lost) C what it expects of the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import FourierBasis
from levytorch.likelihood.exact import ExactLaw, System
from levytorch.policy.blocked import solution
from levytorch.policy.checks import Reward, coefficients_at
from levytorch.policy.generator import (
    GeneratorChange,
    factorise,
    generator_change,
    linear_system,
    operators,
    resolvent_matrix,
    sensitivity,
)
from levytorch.policy.line_basis import LineBasis
from levytorch.policy.plane_basis import PlaneBasis

_TOLERANCE = 1e-4  # of log p in the core
_NODES = 12  # of Gauss and Legendre in a panel
_PANELS = 12  # on either side of the center
_STEPS = 4  # nodes along a step


@dataclass(frozen=True)
class Model:
    """generator: (n, n) on coefficients; V, r: (n,)."""

    basis: FourierBasis
    generator: Tensor
    V: Tensor
    r: Tensor
    beta: float
    system: Any

    @classmethod
    def of(cls, system: Any, basis: FourierBasis, r: Tensor, beta: float) -> Model:
        x = basis.points()
        at = coefficients_at(system, x)
        ops = operators(basis, x, at.alpha, float(at.tempering))
        L = -to_series(basis, resolvent_matrix(ops, at.b, at.D_o, at.D_f, 0.0))
        V = solution(beta * torch.eye(len(L), dtype=L.dtype) - L, r[:, None])[:, 0]
        return cls(basis, L, V, r, beta, system)

    def change(self, reward: Reward) -> ModelChange:
        """The derivatives of a Recovery's V and steps in its parameters."""
        system = linear_system(self.system, reward, self.beta, self.basis, None)
        dV = sensitivity(self.system, system, self.V, factorise(system))
        J_D_f = torch.as_tensor(self.system.jacobian(system.x)[2], dtype=torch.float64).detach()
        log_D_f = J_D_f / system.at.D_f.clamp(min=1e-300)[:, None]
        return ModelChange(self, generator_change(self.system, system), dV, log_D_f)

    def step(self, dt: float, core: tuple[float, float] | None = None) -> ModelStep:
        """core: the least and the largest dx that are taken from the data; None: all."""
        P = torch.matrix_exp(dt * self.generator)
        decay = math.exp(-self.beta * dt)
        if core is None:
            return ModelStep(decay, P, P, self.V - decay * P @ self.V, None)
        C, lost = within(self.system, self.basis, dt, *core)
        return ModelStep(decay, P, C, self.V - decay * P @ self.V, lost)


@dataclass(frozen=True)
class ModelChange:
    """V: (n, P), dV / dtheta; log_D_f: (n, P) at the points of the basis, the same of the logarithm of D_f."""

    model: Model
    generator: GeneratorChange
    V: Tensor
    log_D_f: Tensor

    def rule(self, dt: float, late: float, step: ModelStep) -> Tensor:
        """(n, P): d/dtheta of what the model adds to the equations of the data at its own V.

        That is R - w_1 P r, the reward over a step where r(x') is the data's, and the steps that the data has lost,
        which are proportional to D_f. dP u = int_0^dt P_s (dL) P_{dt - s} u ds, with u = e^{-beta dt} V + w_1 r.
        """
        model, basis = self.model, self.model.basis
        u = step.decay * model.V + late * model.r
        nodes, weights = np.polynomial.legendre.leggauss(_STEPS)
        dPu = torch.zeros_like(self.V)
        for node, weight in zip(nodes, weights):
            s = 0.5 * dt * (node + 1.0)
            before = torch.matrix_exp((dt - s) * model.generator) @ u
            dPu += 0.5 * dt * weight * torch.matrix_exp(s * model.generator) @ self._changed(before)
        out = self.V - step.decay * step.P @ self.V - dPu
        if step.lost is None:
            return out
        gained = basis.matrix(basis.points()) @ ((step.P - step.C) @ model.V) / (1.0 - step.lost)
        return out + step.decay * to_series(basis, gained[:, None] * self.log_D_f)

    def _changed(self, u: Tensor) -> Tensor:
        """(n, P): d(L u) / dtheta of a function with coefficients u (n,)."""
        return to_series(self.model.basis, self.generator.of(u))


@dataclass(frozen=True)
class ModelStep:
    """decay: e^{-beta dt}; P, C: (n, n); reward: (n,), R; lost: (n,) at the points of the basis, None where all steps
    are in the data.
    """

    decay: float
    P: Tensor
    C: Tensor
    reward: Tensor
    lost: Tensor | None

    def equation(self, basis: FourierBasis | LineBasis | PlaneBasis, n_basis: int) -> tuple[Tensor, Tensor]:
        """(n, K), (n,): F and R with F c = R + decay E[V(x') | x, core], what the data need not be asked for."""
        one = torch.eye(basis.n_modes, dtype=torch.float64)
        if self.lost is None:
            return one[:, :n_basis], self.reward
        Phi = basis.matrix(basis.points())
        kept = (1.0 - self.lost)[:, None]
        F = (Phi - self.decay * (Phi @ self.P - kept * (Phi @ self.C))) / kept
        return to_series(basis, F[:, :n_basis]), to_series(basis, Phi @ self.reward / kept[:, 0])


def to_series(basis: FourierBasis | LineBasis | PlaneBasis, values: Tensor) -> Tensor:
    """Values at the points of the basis, (m, ...), as coefficients (n, ...): of a circle by discrete orthogonality."""
    if isinstance(basis, LineBasis):
        return basis.series(values)
    Phi = basis.matrix(basis.points())
    return (Phi / (Phi**2).sum(0)).T @ values


def within(system: Any, basis: FourierBasis, dt: float, low: float, high: float) -> tuple[Tensor, Tensor]:
    """C (n, n), and the probability (n,) of a step outside of (low, high), under the exact law."""
    x = basis.points()
    head = System(system)
    step = ExactLaw(_TOLERANCE).step(head, dt)
    D_o = coefficients_at(system, x).D_o
    y, weight = core_rule(low, high, math.sqrt(2.0 * float(D_o.min()) * dt))
    states, steps = (v.reshape(-1) for v in torch.broadcast_tensors(x[:, None], y))
    with torch.no_grad():
        p = step.log_density(states, steps).exp().reshape(len(x), len(y)) * weight
    kept = p.sum(1)
    values = torch.stack([row @ basis.matrix(here + y) for row, here in zip(p, x)])
    return to_series(basis, values / kept[:, None]), 1.0 - kept


def core_rule(low: float, high: float, width: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights on (low, high) for densities with a peak of some width in the middle and smooth flanks."""
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    # even close to the middle, growing in proportion further out
    growth = math.asinh(half / max(width, 1e-6 * half))
    edges = half * np.sinh(growth * np.linspace(-1.0, 1.0, 2 * _PANELS + 1)) / math.sinh(growth)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    lengths = np.diff(edges)
    y = middle + edges[:-1, None] + lengths[:, None] * (nodes + 1) / 2
    return torch.from_numpy(y.ravel()), torch.from_numpy((lengths[:, None] * weights / 2).ravel())
