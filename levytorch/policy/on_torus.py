"""solve_value in two dimensions: collocation on a torus, matrix-free, by preconditioned GMRES.

    L V = b . grad V + D_o Lap V - D_f (-Lap)^alpha V

is applied with fast Fourier transforms: on an n x n grid every constant-coefficient operator is a product with its
symbol. Where alpha depends on the state, |k|^(2 alpha) is interpolated in alpha at Chebyshev nodes, so that each node
costs one transform.

The equation is divided by s(x) = D_o + D_f k_c^(2 alpha - 2), which makes its leading part nearly a constant one; the
symbol of the averaged equation is then a preconditioner that is inverted with one pair of transforms, and the number of
iterations hardly depends on the resolution.
"""

from __future__ import annotations

import math
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
_FACTOR_MODES = 48  # V's standard deviation is smooth and needs two digits


class Fields(NamedTuple):
    """Coefficients on a grid: b (2, n, n), D_o, D_f (n, n), alpha a number or (n, n)."""

    b: NDArray[Any]
    D_o: NDArray[Any]
    D_f: NDArray[Any]
    alpha: float | NDArray[Any]
    tempering: float = 0.0


def fields_at(dynamics: Any, x: Tensor) -> Fields:
    """b, D_o, D_f and alpha at the points x (n, n, 2)."""
    at = coefficients_at(dynamics, x, dim=2)
    b, D_o, D_f, alpha = (t.numpy() for t in at)
    return Fields(np.moveaxis(b, -1, 0), D_o, D_f, alpha if alpha.ndim else float(alpha), float(at.tempering))


def apply(operator: TorusOperator, c: NDArray[Any], at: Fields) -> NDArray[Any]:
    """L V on the grid where `at` was taken."""
    out = at.b[0] * operator.inverse(operator.gradient[0] * c)
    out += at.b[1] * operator.inverse(operator.gradient[1] * c)
    out -= at.D_o * operator.inverse(operator.square * c)
    return out - at.D_f * operator.fractional(c, at.alpha)


class PlaneSystem(NamedTuple):
    """(beta - L) V = r on one grid, and its preconditioner."""

    operator: TorusOperator
    at: Fields
    scale: NDArray[Any]
    symbol: NDArray[Any]
    beta: float


def plane_system(dynamics: Any, cell: Product, n: int, beta: float) -> PlaneSystem:
    """The system on an n x n grid."""
    at = fields_at(dynamics, cell.grid(n, 0.0))
    operator = TorusOperator(cell, n, jumps_of(at.tempering))
    cut = math.sqrt(float(operator.square.max())) / 4
    alpha = at.alpha
    scale = at.D_o + at.D_f * cut ** (2 * alpha - 2) + 1e-12 * beta
    mean_alpha = float(np.mean(alpha))
    symbol = (
        float(np.mean(beta / scale))
        - float(np.mean(at.b[0] / scale)) * operator.gradient[0]
        - float(np.mean(at.b[1] / scale)) * operator.gradient[1]
        + float(np.mean(at.D_o / scale)) * operator.square
        + float(np.mean(at.D_f / scale)) * operator.symbol(mean_alpha)
    )
    return PlaneSystem(operator, at, scale, symbol, beta)


def solve_system(system: PlaneSystem, right: NDArray[Any], rtol: float = _RTOL) -> tuple[NDArray[Any], int]:
    """Fourier coefficients of V with (beta - L) V = right on the grid, and the GMRES iterations it took."""
    operator, n = system.operator, system.operator.n
    count = 0

    def product(y: NDArray[Any]) -> NDArray[Any]:
        c = operator.forward(y.reshape(n, n)) / system.symbol
        return ((system.beta * operator.inverse(c) - apply(operator, c, system.at)) / system.scale).reshape(-1)

    def step(_: Any) -> None:
        nonlocal count
        count += 1

    # the preconditioner acts on the right, so that GMRES sees the residual of the equation itself
    A = LinearOperator((n * n, n * n), matvec=product, dtype=np.float64)
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
    return operator.forward(y.reshape(n, n)) / system.symbol, count


class Found(NamedTuple):
    system: PlaneSystem
    c: NDArray[Any]
    iterations: int


class TorusProblem:
    """V as a double Fourier series; see `problem.Problem`. n: modes, and points of the grid, per coordinate."""

    first, most, keeps_best = 16, 512, False
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
                f"window must be left out in two dimensions, found {window!r}; remove it to solve on the whole cell."
            )
        self.dynamics, self.space, self.beta = dynamics, space, beta
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
        new, old = found.system.operator.inverse(found.c)[::2, ::2], before.system.operator.inverse(before.c)
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
            torch.from_numpy(found.c / n**2),
            self.space,
            self.beta,
            residual=self.residual(found),
            change=change,
            iterations=found.iterations,
            converged=converged,
            covariance_factor=self._covariance_factor(min(n, _FACTOR_MODES)),
        )

    def _covariance_factor(self, n: int) -> Tensor | None:
        """On a coarser grid, in the coefficients of V there."""
        if getattr(self.dynamics, "covariance", None) is None or not hasattr(self.dynamics, "jacobian"):
            return None
        system, c, _ = self.solved(n)

        def solve(right: Tensor) -> Tensor:
            columns = right.T.reshape(-1, n, n).numpy()
            found = [torch.from_numpy(solve_system(system, column, 1e-6)[0] / n**2) for column in columns]
            return torch.stack(found, dim=-1)

        return delta_method(self.dynamics, lambda _: self._change(system, c), solve, torch.from_numpy(c))

    def _change(self, system: PlaneSystem, c: NDArray[Any]) -> Tensor:
        """(n^2, P): d(L V) / dtheta on the grid."""
        operator, at = system.operator, system.at
        with torch.no_grad():
            J_b, J_D_o, J_D_f, J_alpha = self.dynamics.jacobian(self.space.grid(operator.n, 0.0).reshape(-1, 2))

        def flat(field: NDArray[Any]) -> Tensor:
            return torch.from_numpy(field).reshape(-1, 1)

        right = J_b[:, 0] * flat(operator.inverse(operator.gradient[0] * c))
        right += J_b[:, 1] * flat(operator.inverse(operator.gradient[1] * c))
        right -= J_D_o * flat(operator.inverse(operator.square * c))
        right -= J_D_f * flat(operator.fractional(c, at.alpha))
        right -= J_alpha * flat(at.D_f * operator.fractional(c, at.alpha, order=1))
        if hasattr(self.dynamics, "head") and not isinstance(at.alpha, np.ndarray):
            for by_lam in operator.by_parameters(at.alpha)[1:]:
                slope = padded(self.dynamics.head.tempering_slope(), right.shape[1])
                right -= slope * flat(at.D_f * operator.inverse(c * by_lam))
        return right
