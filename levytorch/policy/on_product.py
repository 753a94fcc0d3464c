"""solve_value on products with an interval among them: nodes on every coordinate, matrix-free, by preconditioned GMRES.

    L V = b . grad V + D_o : Hessian V - D_f (-Lap)^alpha V

with the operators of `spaces.smoothing`. Beyond the ends of an interval V is zero or stays what it is there. D_o must
be positive: where nothing diffuses V need not be continuous at an end, and its polynomials would not resolve that.

The equation is divided by s(x) = D_o + D_f k_c^(2 alpha - 2). The preconditioner is the averaged equation without drift
in the eigenvectors of the second derivatives of every coordinate, on which e^(t Lap) acts nearly as on waves.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor

from levytorch.coefficients.layout import scalar_size
from levytorch.convert import choice, real_array, shown, whole_number
from levytorch.errors import InputError, NumericalError
from levytorch.law.jumps import jumps_of
from levytorch.policy.checks import check_periodic, coefficients_at, reward_function
from levytorch.policy.generator import delta_method, padded
from levytorch.policy.value import ValueFunction
from levytorch.spaces import Circle, Interval, Product
from levytorch.spaces.nodes import CONTINUATIONS, Array
from levytorch.spaces.smoothing import SmoothingOperator

_RTOL, _ENOUGH = 1e-11, 1e-7  # of GMRES, and the residual beyond which V is refused
_RESTART, _CYCLES = 60, 10
_DENSE = 1200  # unknowns of the system that errors are computed with
_DIFFERENCE = 1e-4  # of alpha and the tempering, for derivatives of the weights


class Fields(NamedTuple):
    """Coefficients at the nodes (m_1, ..., m_d): b (d, ...), D_o (d, d, ...), D_f (...), alpha a number or (...)."""

    b: Array
    D_o: Array
    D_f: Array
    alpha: Any
    tempering: float


class NodeSystem:
    """(beta - L) V = r at the nodes of a product."""

    def __init__(self, dynamics: Any, space: Product, n: int, beta: float, exterior: str) -> None:
        self.operator, self.beta = SmoothingOperator([part.on_nodes(n, exterior) for part in space.spaces]), beta
        axes = [torch.from_numpy(axis.x) for axis in self.operator.axes]
        self.x = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)
        at = coefficients_at(dynamics, self.x, dim=space.dim, matrices=True)
        ordinary = scalar_size(at.D_o, space.dim)
        if float(ordinary.min()) <= 1e-12 * float(ordinary.max()):
            raise InputError(
                f"D_o must be positive on a window in {space.dim} dimensions, found {float(ordinary.min()):.3g}; give "
                "it a small positive value."
            )
        self.matrix = at.D_o.dim() > space.dim
        D_o = at.D_o if self.matrix else at.D_o[..., None, None] * torch.eye(space.dim, dtype=torch.float64)
        self.at = Fields(
            np.moveaxis(at.b.numpy(), -1, 0),
            np.moveaxis(D_o.numpy(), (-2, -1), (0, 1)),
            at.D_f.numpy(),
            at.alpha.numpy() if at.alpha.dim() else float(at.alpha),
            float(at.tempering),
        )
        cut = min(len(axis.x) / axis.half for axis in self.operator.axes)
        self.scale = ordinary.numpy() + self.at.D_f * cut ** (2 * self.at.alpha - 2) + 1e-12 * beta
        self._average()

    def _average(self) -> None:
        """The averaged equation in the eigenvectors of the second derivatives."""
        at, scale, d = self.at, self.scale, len(self.operator.axes)
        self.vectors, self.inverses, rates = [], [], []
        for axis in self.operator.axes:
            even = np.allclose(axis.second, axis.second.T)
            values, vectors = (np.linalg.eigh if even else np.linalg.eig)(axis.second)
            order = np.argsort(values.real)
            vectors = vectors.real[:, order]
            self.vectors.append(vectors)
            self.inverses.append(np.linalg.inv(vectors))
            rates.append(np.maximum(-values.real[order], 0.0))
        grids = np.meshgrid(*rates, indexing="ij")
        symbol = np.full(self.operator.shape, float(np.mean(self.beta / scale)))
        for i in range(d):
            symbol += float(np.mean(at.D_o[i, i] / scale)) * grids[i]
        waves = torch.from_numpy(sum(grids))
        alpha = torch.tensor(float(np.mean(at.alpha)), dtype=torch.float64)
        symbol += float(np.mean(at.D_f / scale)) * jumps_of(at.tempering).symbol(waves, alpha).numpy()
        self.symbol = symbol

    def generator(self, field: Array) -> Array:
        """L V of fields (..., m_1, ..., m_d)."""
        at, d = self.at, len(self.operator.axes)
        out = -at.D_f * self.operator.fractional(field, at.alpha, at.tempering)
        for b, slope in zip(at.b, self.operator.gradient(field)):
            out += b * slope
        for i in range(d):
            for j in range(i + 1):
                if self.matrix or i == j:
                    out += (1 + (i != j)) * at.D_o[i, j] * self.operator.second(i, j, field)
        return out

    def preconditioned(self, field: Array) -> Array:
        for axis, inverse in enumerate(self.inverses):
            field = self.operator.along(axis, inverse, field)
        field = field / self.symbol
        for axis, vectors in enumerate(self.vectors):
            field = self.operator.along(axis, vectors, field)
        return field

    def solve(self, right: Array) -> tuple[Array, int, float]:
        """V at the nodes, the iterations it took, and the residual relative to the right-hand side."""
        count, grid = 0, right.shape

        def product(y: Array) -> Array:
            V = self.preconditioned(y.reshape(grid))
            return ((self.beta * V - self.generator(V)) / self.scale).reshape(-1)

        def step(_: Any) -> None:
            nonlocal count
            count += 1

        target = (right / self.scale).reshape(-1)
        size = float(np.linalg.norm(target))
        if size == 0.0:
            return np.zeros(grid), 0, 0.0
        A = LinearOperator((right.size, right.size), matvec=product, dtype=np.float64)
        options: dict[str, Any] = {"restart": _RESTART, "maxiter": _CYCLES, "atol": 0.0, "rtol": _RTOL}
        y, _ = gmres(A, target, callback=step, callback_type="pr_norm", **options)
        left = float(np.linalg.norm(product(y) - target)) / size
        if not left < _ENOUGH:
            raise NumericalError(
                f"(beta - L) V = r must be solved to {_ENOUGH:g}, found that GMRES stopped at a residual of {left:.2g} "
                f"after {count} iterations with n_modes = {self.operator.axes[0].n}; use a larger beta or n_modes."
            )
        return self.preconditioned(y.reshape(grid)), count, left

    def complete(self, field: Array) -> Array:
        """Values at all nodes, those at the ends of intervals included."""
        for axis, nodes in enumerate(self.operator.axes):
            field = self.operator.along(axis, nodes.complete, field)
        return field


class Found(NamedTuple):
    system: NodeSystem
    V: Array
    iterations: int
    residual: float


class ProductProblem:
    """V by its values at nodes of every coordinate; see `problem.Problem`. n: points of a circle, parts of a line."""

    first, keeps_best = 12, False
    remedy = "raise max_modes or beta, smooth the reward, or choose a narrower window"

    def __init__(
        self, dynamics: Any, space: Product, reward: Any, beta: float, *, window: Any, exterior: Any, beyond_data: bool
    ) -> None:
        self.space = Product(tuple(_bounded(part, w) for part, w in zip(space.spaces, _windows(window, space.dim))))
        self.exterior = "constant" if exterior is None else exterior
        if not isinstance(self.exterior, str):
            raise InputError(
                f"exterior must be constant or absorb in {space.dim} dimensions, found {shown(exterior)}; give one of "
                "these."
            )
        choice("exterior", self.exterior, CONTINUATIONS)
        self.dynamics, self.beta, self.most = dynamics, beta, {2: 96, 3: 28}[space.dim]
        self.r = reward_function(reward, lambda x: x.shape[:-1])
        check_periodic(self.r, [float(part.period or 0.0) for part in self.space.spaces], self.space.grid(7, 0.37))

    def checked(self, n_modes: Any) -> int:
        return whole_number("n_modes", n_modes, 6, 256, "give the nodes per coordinate")

    def finer(self, n: int) -> int:
        return n + n // 2

    def solved(self, n: int) -> Found:
        system = NodeSystem(self.dynamics, self.space, n, self.beta, self.exterior)
        return Found(system, *system.solve(self.r(system.x).numpy()))

    def n_modes(self, found: Found) -> int:
        return found.system.operator.axes[0].n

    def is_usable(self, found: Found) -> bool:
        return True

    def moved(self, before: Found, found: Found) -> float:
        x = self.space.grid(24).reshape(-1, self.space.dim)
        new, old = (
            self.space.functions(V).at(x, V[..., None])
            for V in (torch.from_numpy(one.system.complete(one.V)) for one in (found, before))
        )
        return float((new - old).abs().max() / new.abs().max().clamp(min=1e-300))

    def residual(self, found: Found) -> float:
        return found.residual

    def value(self, found: Found, change: float | None, converged: bool) -> ValueFunction:
        return ValueFunction(
            torch.from_numpy(found.system.complete(found.V)),
            self.space,
            self.beta,
            exterior=self.exterior,
            residual=found.residual,
            change=change,
            iterations=found.iterations,
            converged=converged,
            covariance_factor=self._covariance_factor(self.n_modes(found)),
        )

    def _covariance_factor(self, n: int) -> Tensor | None:
        """On few nodes, by a dense matrix: V's standard deviation is smooth and needs two digits."""
        if getattr(self.dynamics, "covariance", None) is None or not hasattr(self.dynamics, "jacobian"):
            return None
        d = self.space.dim
        n = min(n, int(_DENSE ** (1 / d)))
        system = NodeSystem(self.dynamics, self.space, n, self.beta, self.exterior)
        shape, size = system.operator.shape, math.prod(system.operator.shape)
        identity = np.eye(size).reshape(size, *shape)
        dense = torch.from_numpy((self.beta * identity - system.generator(identity)).reshape(size, size).T.copy())
        rows = torch.from_numpy(1 / system.scale).reshape(-1, 1)
        lu = torch.linalg.lu_factor(dense * rows)
        V = torch.linalg.lu_solve(*lu, self.r(system.x).reshape(-1, 1) * rows).reshape(shape).numpy()

        def solve(right: Tensor) -> Tensor:
            found = torch.linalg.lu_solve(*lu, right * rows).T.reshape(-1, *shape).numpy()
            return torch.from_numpy(np.moveaxis(system.complete(found), 0, -1).copy())

        return delta_method(self.dynamics, lambda _: self._change(system, V), solve, torch.from_numpy(V))

    def _change(self, system: NodeSystem, V: Array) -> Tensor:
        """(size, P): d(L V) / dtheta at the nodes."""
        operator, at, d, h = system.operator, system.at, self.space.dim, _DIFFERENCE
        with torch.no_grad():
            J_b, J_D_o, J_D_f, J_alpha = self.dynamics.jacobian(system.x.reshape(-1, d))

        def flat(field: Array) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(field)).reshape(-1, 1)

        right = sum(J * flat(slope) for J, slope in zip(J_b.unbind(1), operator.gradient(V)))
        if J_D_o.dim() == 2:
            right = right + J_D_o * flat(operator.laplacian(V))
        else:
            for i in range(d):
                for j in range(d):
                    right = right + J_D_o[:, i, j] * flat(operator.second(i, j, V))
        right = right - J_D_f * flat(operator.fractional(V, at.alpha, at.tempering))
        if bool((J_alpha != 0).any()):
            ends = [operator.fractional(V, at.alpha + s * h, at.tempering) for s in (1, -1)]
            right = right - J_alpha * flat(at.D_f * (ends[0] - ends[1]) / (2 * h))
        slope = getattr(getattr(self.dynamics, "head", None), "tempering_slope", None)
        if at.tempering > 0 and slope is not None and bool((J_lam := slope()).any()):
            step = h * at.tempering
            ends = [operator.fractional(V, at.alpha, at.tempering + s * step) for s in (1, -1)]
            right = right - padded(J_lam, right.shape[1]) * flat(at.D_f * (ends[0] - ends[1]) / (2 * step))
        return right


def _windows(given: Any, dim: int) -> list[Any]:
    """One per coordinate: (low, high), or None for that of the dynamics."""
    if given is None:
        return [None] * dim
    try:
        windows = list(given)
    except TypeError:
        windows = []
    if len(windows) != dim:
        raise InputError(
            f"window must have one entry per coordinate, (low, high) or None, found {shown(given)}; give {dim} of them."
        )
    return windows


def _bounded(part: Circle | Interval, window: Any) -> Circle | Interval:
    if isinstance(part, Circle):
        if window is not None:
            raise InputError(
                f"window must be None for a coordinate with a period, found {shown(window)}; put None in its place."
            )
        return part
    ends = part.ends if window is None else tuple(real_array("window", window, "pass (low, high)").tolist())
    if len(ends) != 2 or not (np.isfinite(ends).all() and ends[0] < ends[1]):
        raise InputError(
            f"window must be (low, high) for a coordinate without a period, found {shown(window)}; pass the range of "
            "states that matters."
        )
    return Interval(float(ends[0]), float(ends[1]))
