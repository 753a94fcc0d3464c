"""A model in functions of the state: its generator, and what one step of it makes of a function after dt, as matrices.

With L the generator on coefficients (collocated on a circle and a torus, projected from the nodes of `solve_value` on a
line), V = (beta - L)^-1 r and P = exp(dt L), the reward that is expected over a step is R = int_0^dt e^{-beta s} P_s r
ds = V - e^{-beta dt} P V. Where the data has lost its tails only steps within a threshold, the core, are taken from it:
C is what the model expects given that a step lies there, `lost` the probability that it does not, and
T = P - (1 - lost) C what it expects of the others.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.law import log_density
from levytorch.law.jumps import jumps_in
from levytorch.likelihood.exact import ExactLaw, System
from levytorch.policy.bases import CircleBasis, Functions, LineBasis, PlaneBasis, ProductBasis
from levytorch.policy.blocked import solution
from levytorch.policy.checks import coefficients_at
from levytorch.policy.generator import GeneratorChange, generator_change, jump_symbol
from levytorch.policy.on_interval import LineSystem
from levytorch.policy.on_product import System as ProductSystem
from levytorch.spaces.line_operator import Exterior, line_grid
from levytorch.spaces.smoothing import SmoothingOperator

_TOLERANCE = 1e-4  # of log p in the core
_NODES = 12  # of Gauss and Legendre in a panel
_PANELS = 12  # on either side of the center
_STEPS = 4  # nodes along a step
_LINE_NODES = 256  # of a generator on a line
_PRODUCT_NODES = {2: 34, 3: 14}  # of one on a product, per coordinate


class FourierGenerator:
    """L of a system on coefficients, collocated at the points of a circle or a torus."""

    def __init__(self, system: Any, basis: CircleBasis | PlaneBasis) -> None:
        self.system, self.basis, self.x = system, basis, basis.points()
        self.at = coefficients_at(system, self.x, dim=basis.dim)
        k, self.phi = basis.wavenumbers, basis.matrix(self.x)
        orders = torch.eye(basis.dim, dtype=torch.int64).tolist()
        self.gradient = [basis.derivative(self.x, order) for order in orders]
        self.laplacian = -(k**2) * self.phi
        self.jump = jump_symbol(k, self.at.alpha, self.at.jumps) * self.phi

    def matrix(self) -> Tensor:
        """(n, n)."""
        L = self.at.D_o[:, None] * self.laplacian - self.at.D_f[:, None] * self.jump
        for b, first in zip(self.at.b.reshape(len(self.x), -1).T, self.gradient):
            L = L + b[:, None] * first
        return self.basis.project(L)

    @cached_property
    def _change(self) -> GeneratorChange:
        parts = (self.phi, self.gradient, self.laplacian, self.jump)
        return generator_change(self.system, self.x, self.at, self.basis.wavenumbers, *parts)

    def change(self, u: Tensor) -> Tensor:
        """(n, P): d(L u) / dtheta of a function with coefficients u (n,), for a Recovery."""
        return self.basis.project(self._change.of(u))

    def log_D_f(self) -> Tensor:
        """(m, P): d log D_f / dtheta at the points."""
        J_D_f = torch.as_tensor(self.system.jacobian(self.x)[2], dtype=torch.float64).detach()
        return J_D_f / self.at.D_f.clamp(min=1e-300)[:, None]


class LineGenerator:
    """The same on a line: that of `solve_value`, V constant beyond the window, projected from nodes on the functions
    (Galerkin's method).
    """

    def __init__(self, system: Any, basis: LineBasis) -> None:
        self.on_nodes = LineSystem.of(system, _LINE_NODES, basis.window, Exterior(True))
        self.values = basis.matrix(self.on_nodes.ops.x)  # (m, n)
        grid = line_grid(_LINE_NODES)
        share = torch.from_numpy(0.5 * grid.h * grid.slope[grid.inner, None].copy())  # of the mean over the window
        self.weighted = (share * self.values).T
        self.gram = self.weighted @ self.values

    def _project(self, at_nodes: Tensor) -> Tensor:
        return solution(self.gram, self.weighted @ at_nodes)

    def matrix(self) -> Tensor:
        return self._project(-self.on_nodes.matrix(0.0) @ self.values)

    def change(self, u: Tensor) -> Tensor:
        return self._project(self.on_nodes.change(self.values @ u))


class ProductGenerator:
    """The same on a product with a line: that of `solve_value` at nodes, projected on the functions."""

    def __init__(self, system: Any, basis: ProductBasis) -> None:
        operator = SmoothingOperator(basis.space, _PRODUCT_NODES[basis.dim], jumps_in(system))
        self.on_nodes, self.shape = ProductSystem(system, operator, 1.0), operator.shape
        self.values = basis.matrix(operator.x.flatten(0, -2))  # (m, n)
        share = functools.reduce(np.multiply.outer, (axis.measure for axis in operator.axes))
        self.weighted = self.values.T * torch.from_numpy(share.reshape(-1))
        self.gram = self.weighted @ self.values

    def _project(self, at_nodes: Tensor) -> Tensor:
        return solution(self.gram, self.weighted @ at_nodes)

    def matrix(self) -> Tensor:
        fields = self.values.T.reshape(-1, *self.shape).numpy()
        return self._project(torch.from_numpy(self.on_nodes.generator(fields).reshape(len(fields), -1).T.copy()))

    def change(self, u: Tensor) -> Tensor:
        return self._project(self.on_nodes.change((self.values @ u).reshape(self.shape).numpy()))


Generator = FourierGenerator | LineGenerator | ProductGenerator


def generator_of(system: Any, basis: Functions) -> Generator:
    if isinstance(basis, ProductBasis):
        return ProductGenerator(system, basis)
    return LineGenerator(system, basis) if isinstance(basis, LineBasis) else FourierGenerator(system, basis)


@dataclass(frozen=True)
class Model:
    """generator: (n, n) on coefficients; V, r: (n,)."""

    basis: Functions
    generator: Tensor
    V: Tensor
    r: Tensor
    beta: float
    system: Any

    @classmethod
    def of(cls, system: Any, basis: Functions, r: Tensor, beta: float) -> Model:
        L = generator_of(system, basis).matrix()
        return cls(basis, L, resolvent(L, r[:, None], beta)[:, 0], r, beta, system)

    def change(self) -> ModelChange:
        """The derivatives of a Recovery's V and steps in its parameters."""
        generator = generator_of(self.system, self.basis)
        return ModelChange(self, generator, resolvent(self.generator, generator.change(self.V), self.beta))

    def step(self, dt: float, core: tuple[float, float] | None = None) -> ModelStep:
        """core: the least and the largest dx that are taken from the data of a state on a circle, in a plane those up
        to core[1] away from the drift; None: all.
        """
        P = torch.matrix_exp(dt * self.generator)
        decay = math.exp(-self.beta * dt)
        C, lost = P, None
        if core is not None:
            assert isinstance(self.basis, CircleBasis | PlaneBasis)
            if isinstance(self.basis, PlaneBasis):
                x = self.basis.points()
                far, lost = beyond(self.system, self.basis, x, dt, core[1])
                C = self.basis.project((self.basis.matrix(x) @ P - far) / (1.0 - lost)[:, None])
            else:
                C, lost = within(self.system, self.basis, dt, *core)
        return ModelStep(decay, P, C, self.V - decay * P @ self.V, lost)


def resolvent(L: Tensor, right: Tensor, beta: float) -> Tensor:
    """(beta - L)^-1 right, (n, k)."""
    return solution(beta * torch.eye(len(L), dtype=L.dtype) - L, right)


@dataclass(frozen=True)
class ModelChange:
    """V: (n, P), dV / dtheta."""

    model: Model
    generator: Generator
    V: Tensor

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
            dPu += 0.5 * dt * weight * torch.matrix_exp(s * model.generator) @ self.generator.change(before)
        out = self.V - step.decay * step.P @ self.V - dPu
        if step.lost is None:
            return out
        assert isinstance(self.generator, FourierGenerator)
        gained = basis.matrix(basis.points()) @ ((step.P - step.C) @ model.V) / (1.0 - step.lost)
        return out + step.decay * basis.project(gained[:, None] * self.generator.log_D_f())


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

    def equation(self, basis: Functions, n_basis: int) -> tuple[Tensor, Tensor]:
        """(n, K), (n,): F and R with F c = R + decay E[V(x') | x, core], what the data need not be asked for."""
        one = torch.eye(basis.n_modes, dtype=torch.float64)
        if self.lost is None:
            return one[:, :n_basis], self.reward
        Phi = basis.matrix(basis.points())
        kept = (1.0 - self.lost)[:, None]
        F = (Phi - self.decay * (Phi @ self.P - kept * (Phi @ self.C))) / kept
        return basis.project(F[:, :n_basis]), basis.project(Phi @ self.reward / kept[:, 0])


def within(system: Any, basis: CircleBasis, dt: float, low: float, high: float) -> tuple[Tensor, Tensor]:
    """C (n, n), and the probability (n,) of a step outside of (low, high), under the exact law."""
    x = basis.points()
    step = ExactLaw(_TOLERANCE).step(System(system), dt)
    D_o = coefficients_at(system, x).D_o
    y, weight = core_rule(low, high, math.sqrt(2.0 * float(D_o.min()) * dt))
    states, steps = (v.reshape(-1) for v in torch.broadcast_tensors(x[:, None], y))
    with torch.no_grad():
        p = step.log_density(states, steps).exp().reshape(len(x), len(y)) * weight
    kept = p.sum(1)
    values = torch.stack([row @ basis.matrix(here + y) for row, here in zip(p, x)])
    return basis.project(values / kept[:, None]), 1.0 - kept


def beyond(system: Any, basis: PlaneBasis, x: Tensor, dt: float, radius: float) -> tuple[Tensor, Tensor]:
    """What the functions are after a step that ends farther than a radius from x + b dt, times its probability, (m, n);
    and that probability, (m,). The law is that of coefficients held over the step: isotropic, so that a function of
    wave number k is multiplied by its characteristic function without what Hankel's transform has of the disc.
    """
    at = coefficients_at(system, x, dim=2)
    k, which = torch.unique(basis.wavenumbers, return_inverse=True)
    panels = _PANELS + math.ceil(float(k[-1]) * radius / 8)
    r, weight = core_rule(-radius, radius, math.sqrt(2.0 * float(at.D_o.min()) * dt), panels)
    r, weight = r[r > 0], 2 * torch.pi * (r * weight)[r > 0]
    D_o, D_f = at.D_o[:, None], at.D_f[:, None]
    alpha = at.alpha[:, None] if at.alpha.ndim else at.alpha
    steps = torch.stack([r, torch.zeros_like(r)], dim=1)
    still = torch.zeros(2, dtype=torch.float64)
    p = log_density(steps, still, D_o, D_f, alpha, dt, dim=2, tempering=float(system.tempering)).exp()  # (m, nodes)
    symbol = D_o * k**2 + D_f * jump_symbol(k, at.alpha, at.jumps)
    kept = (-dt * symbol).exp() - (p * weight) @ torch.special.bessel_j0(r[:, None] * k)
    return basis.matrix(x + dt * at.b) * kept[:, which], kept[:, 0].clamp(min=0.0)


def core_rule(low: float, high: float, width: float, panels: int = _PANELS) -> tuple[Tensor, Tensor]:
    """Nodes and weights on (low, high) for densities with a peak of some width in the middle and smooth flanks."""
    middle, half = 0.5 * (low + high), 0.5 * (high - low)
    # even close to the middle, growing in proportion further out
    growth = math.asinh(half / max(width, 1e-6 * half))
    edges = half * np.sinh(growth * np.linspace(-1.0, 1.0, 2 * panels + 1)) / math.sinh(growth)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    lengths = np.diff(edges)
    y = middle + edges[:-1, None] + lengths[:, None] * (nodes + 1) / 2
    return torch.from_numpy(y.ravel()), torch.from_numpy((lengths[:, None] * weights / 2).ravel())
