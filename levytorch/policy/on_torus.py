"""solve_value on a torus of two or three circles: collocation, matrix-free, by preconditioned GMRES.

    L V = b . grad V + D_o : Hessian V - D_f (-Lap)^alpha V

is applied with fast Fourier transforms: on an even grid every constant-coefficient operator is a product with its
symbol. Where alpha depends on the state, |k|^(2 alpha) is interpolated in alpha at Chebyshev nodes, so that each node
costs one transform.

The equation is divided by s(x) = D_o + D_f k_c^(2 alpha - 2) (of a matrix D_o the mean of its diagonal), which makes
its leading part nearly a constant one; the symbol of the averaged equation is then a preconditioner that is inverted
with one pair of transforms, and the number of iterations hardly depends on the resolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor

from levytorch.convert import shown, whole_number
from levytorch.errors import InputError, NumericalError
from levytorch.law.jumps import jumps_of
from levytorch.policy.checks import check_periodic, coefficients_at, reward_function
from levytorch.policy.generator import delta_method, padded
from levytorch.policy.value import ValueFunction
from levytorch.spaces import Product
from levytorch.spaces.torus import TorusOperator

_MOST_MODES = 4096  # per coordinate
_RESTART, _CYCLES = 60, 20
_RTOL = 1e-13
_FACTOR_MODES = {2: 48, 3: 12}  # V's standard deviation is smooth and needs two digits
_MOST_REFINED = {2: 512, 3: 64}  # to which resolution V is refined, by the number of coordinates


class Fields(NamedTuple):
    """Coefficients on a grid (n, ..., n): b (d, ...), D_o (...) or (d, d, ...), D_f (...), alpha a number or (...)."""

    b: NDArray[Any]
    D_o: NDArray[Any]
    D_f: NDArray[Any]
    alpha: float | NDArray[Any]
    tempering: float = 0.0

    @property
    def matrix(self) -> bool:
        """Whether D_o is one."""
        return self.D_o.ndim > self.D_f.ndim


def fields_at(dynamics: Any, x: Tensor) -> Fields:
    """b, D_o, D_f and alpha at the points x (n, ..., n, d)."""
    d = x.shape[-1]
    at = coefficients_at(dynamics, x, dim=d, matrices=True)
    b, D_o, D_f, alpha = (t.numpy() for t in at)
    if D_o.ndim > d:
        D_o = np.moveaxis(D_o, (-2, -1), (0, 1))
    return Fields(np.moveaxis(b, -1, 0), D_o, D_f, alpha if alpha.ndim else float(alpha), float(at.tempering))


def diffusion(operator: TorusOperator, D_o: Any, matrix: bool, part: Callable[[NDArray[Any]], Any]) -> Any:
    """Sum of D_o times `part` of the symbols of the second derivatives; a matrix D_o is (d, d, ...)."""
    if not matrix:
        return D_o * part(-operator.square)
    places = ((i, j) for i in operator.axes for j in range(i + 1))
    return sum((1 + (i != j)) * D_o[i, j] * part(operator.second(i, j)) for i, j in places)


def apply(operator: TorusOperator, c: NDArray[Any], at: Fields) -> NDArray[Any]:
    """L V on the grid where `at` was taken."""
    out = sum(b * operator.inverse(gradient * c) for b, gradient in zip(at.b, operator.gradient))
    out = out + diffusion(operator, at.D_o, at.matrix, lambda symbol: operator.inverse(symbol * c))
    return out - at.D_f * operator.fractional(c, at.alpha)


class PlaneSystem(NamedTuple):
    """(beta - L) V = r on one grid, and its preconditioner."""

    operator: TorusOperator
    at: Fields
    scale: NDArray[Any]
    symbol: NDArray[Any]
    beta: float


def plane_system(dynamics: Any, cell: Product, n: int, beta: float) -> PlaneSystem:
    """The system on an n x ... x n grid."""
    at = fields_at(dynamics, cell.grid(n, 0.0))
    operator = TorusOperator(cell, n, jumps_of(at.tempering))
    cut = math.sqrt(float(operator.square.max())) / 4
    alpha = at.alpha
    d = cell.dim
    ordinary = np.trace(at.D_o) / d if at.matrix else at.D_o
    scale = ordinary + at.D_f * cut ** (2 * alpha - 2) + 1e-12 * beta
    grid = tuple(range(-d, 0))
    symbol = float(np.mean(beta / scale)) + float(np.mean(at.D_f / scale)) * operator.symbol(float(np.mean(alpha)))
    symbol = symbol - diffusion(operator, np.mean(at.D_o / scale, axis=grid), at.matrix, lambda part: part)
    for b, gradient in zip(at.b, operator.gradient):
        symbol = symbol - float(np.mean(b / scale)) * gradient
    return PlaneSystem(operator, at, scale, symbol, beta)


def solve_system(system: PlaneSystem, right: NDArray[Any], rtol: float = _RTOL) -> tuple[NDArray[Any], int]:
    """Fourier coefficients of V with (beta - L) V = right on the grid, and the GMRES iterations it took."""
    operator, n = system.operator, system.operator.n
    grid, count = right.shape, 0

    def product(y: NDArray[Any]) -> NDArray[Any]:
        c = operator.forward(y.reshape(grid)) / system.symbol
        return ((system.beta * operator.inverse(c) - apply(operator, c, system.at)) / system.scale).reshape(-1)

    def step(_: Any) -> None:
        nonlocal count
        count += 1

    # the preconditioner acts on the right, so that GMRES sees the residual of the equation itself
    A = LinearOperator((right.size, right.size), matvec=product, dtype=np.float64)
    target = (right / system.scale).reshape(-1)
    size = float(np.linalg.norm(target))
    if size == 0.0:
        return np.zeros_like(system.symbol, dtype=np.complex128), 0
    options: dict[str, Any] = {"restart": _RESTART, "maxiter": _CYCLES, "atol": 0.0}
    y, _ = gmres(A, target, rtol=rtol, callback=step, callback_type="pr_norm", **options)
    left = float(np.linalg.norm(product(y) - target)) / size
    if not left < max(1e-8, 10 * rtol):
        raise NumericalError(
            f"(beta - L) V = r must be solved to 1e-8, found that GMRES stopped at a residual of {left:.2g} after "
            f"{count} iterations with n_modes = {n}; use a larger beta, or a D_o or D_f that is not so close to zero."
        )
    return operator.forward(y.reshape(grid)) / system.symbol, count


class Found(NamedTuple):
    system: PlaneSystem
    c: NDArray[Any]
    iterations: int


class TorusProblem:
    """V as a multiple Fourier series; see `problem.Problem`. n: modes, and points of the grid, per coordinate."""

    first, keeps_best = 16, False
    remedy = "raise max_modes or beta, or smooth the reward"
    rtol = (1e-9, 10 * _RTOL)  # of GMRES while the grid is refined: on the first grid, and on others

    def __init__(
        self, dynamics: Any, space: Product, reward: Any, beta: float, *, window: Any, exterior: Any, beyond_data: bool
    ) -> None:
        if exterior is not None:
            raise InputError(
                f"exterior must be left out beside a period, found {shown(exterior)}; remove it, or use period=None."
            )
        if window is not None:
            raise InputError(
                f"window must be left out on a torus, found {window!r}; remove it to solve on the whole cell."
            )
        self.dynamics, self.space, self.beta = dynamics, space, beta
        self.most = _MOST_REFINED[space.dim]
        self.r = reward_function(reward, lambda x: x.shape[:-1])
        check_periodic(self.r, [float(part.period or 0.0) for part in space.spaces], space.grid(12, 0.37))

    def checked(self, n_modes: Any) -> int:
        self.rtol = (_RTOL, _RTOL)
        return whole_number("n_modes", n_modes, 4, _MOST_MODES, "give the modes per coordinate")

    def finer(self, n: int) -> int:
        return 2 * n

    def solved(self, n: int) -> Found:
        system = plane_system(self.dynamics, self.space, n, self.beta)
        rtol = self.rtol[n > self.first]
        return Found(system, *solve_system(system, self.r(self.space.grid(n, 0.0)).numpy(), rtol))

    def n_modes(self, found: Found) -> int:
        return found.system.operator.n

    def is_usable(self, found: Found) -> bool:
        return True

    def moved(self, before: Found, found: Found) -> float:
        every_second = (slice(None, None, 2),) * self.space.dim
        new, old = found.system.operator.inverse(found.c)[every_second], before.system.operator.inverse(before.c)
        return float(np.abs(new - old).max() / max(np.abs(new).max(), 1e-300))

    def residual(self, found: Found) -> float:
        operator = found.system.operator
        x = self.space.grid(operator.n)
        moved = operator.between(found.c)
        values = self.r(x).numpy()
        left = self.beta * operator.inverse(moved) - apply(operator, moved, fields_at(self.dynamics, x)) - values
        return float(np.abs(left).max() / max(np.abs(values).max(), 1e-300))

    def value(self, found: Found, change: float | None, converged: bool) -> ValueFunction:
        n = found.system.operator.n
        return ValueFunction(
            torch.from_numpy(found.c / n**self.space.dim),
            self.space,
            self.beta,
            residual=self.residual(found),
            change=change,
            iterations=found.iterations,
            converged=converged,
            covariance_factor=self._covariance_factor(min(n, _FACTOR_MODES[self.space.dim])),
        )

    def _covariance_factor(self, n: int) -> Tensor | None:
        """On a coarser grid, in the coefficients of V there."""
        if getattr(self.dynamics, "covariance", None) is None or not hasattr(self.dynamics, "jacobian"):
            return None
        system, c, _ = self.solved(n)

        def solve(right: Tensor) -> Tensor:
            d = self.space.dim
            columns = right.T.reshape(-1, *[n] * d).numpy()
            found = [torch.from_numpy(solve_system(system, column, 1e-6)[0] / n**d) for column in columns]
            return torch.stack(found, dim=-1)

        return delta_method(self.dynamics, lambda _: self._change(system, c), solve, torch.from_numpy(c))

    def _change(self, system: PlaneSystem, c: NDArray[Any]) -> Tensor:
        """(n^d, P): d(L V) / dtheta on the grid."""
        operator, at, d = system.operator, system.at, self.space.dim
        with torch.no_grad():
            J_b, J_D_o, J_D_f, J_alpha = self.dynamics.jacobian(self.space.grid(operator.n, 0.0).reshape(-1, d))

        def flat(field: NDArray[Any]) -> Tensor:
            return torch.from_numpy(field).reshape(-1, 1)

        right = sum(J * flat(operator.inverse(part * c)) for J, part in zip(J_b.unbind(1), operator.gradient))
        J_D_o = J_D_o.movedim(0, 2) if at.matrix else J_D_o
        right = right + diffusion(operator, J_D_o, at.matrix, lambda symbol: flat(operator.inverse(symbol * c)))
        right -= J_D_f * flat(operator.fractional(c, at.alpha))
        right -= J_alpha * flat(at.D_f * operator.fractional(c, at.alpha, order=1))
        if hasattr(self.dynamics, "head") and not isinstance(at.alpha, np.ndarray):
            for by_lam in operator.by_parameters(at.alpha)[1:]:
                slope = padded(self.dynamics.head.tempering_slope(), right.shape[1])
                right -= slope * flat(at.D_f * operator.inverse(c * by_lam))
        return right
