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
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import fft
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor

from levytorch.convert import whole_number
from levytorch.errors import InputError, LevytorchWarning, NumericalError
from levytorch.law.jumps import jumps_of
from levytorch.policy.checks import Reward, check_periodic, coefficients_at, reward_function
from levytorch.policy.generator import padded, principal_directions
from levytorch.policy.value import PlaneValue

_ALPHA_NODES = 16  # exp(2 alpha log|k|) over the whole of (0, 1) and |k| < 1e3: interpolated to 1e-10
_MOST_MODES = 4096  # per coordinate
_RESTART, _CYCLES = 60, 20
_RTOL = 1e-13
_FACTOR_MODES = 48  # V's standard deviation is smooth and needs two digits


class Torus(NamedTuple):
    """A cell [origin, origin + period) in each coordinate."""

    period: tuple[float, float]
    origin: tuple[float, float]

    def points(self, n: int, shift: float = 0.0) -> Tensor:
        """(n, n, 2) points of the grid; `shift` in spacings."""
        axes = [o + (np.arange(n) + shift) * (p / n) for o, p in zip(self.origin, self.period)]
        return torch.from_numpy(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1))


def torus(dynamics: Any) -> Torus:
    """The cell of a two-dimensional Dynamics or Recovery; refuses what has no finite period."""
    period, origin = (_pair(getattr(dynamics, name)) for name in ("period", "origin"))
    if not all(math.isfinite(p) and p > 0 for p in period):
        raise InputError(
            f"period must be positive and finite in both coordinates, found {period}; set period= in the dynamics."
        )
    return Torus(period, origin)


def _pair(value: Any) -> tuple[float, float]:
    first, second = np.broadcast_to(np.asarray(value, dtype=np.float64), (2,)).tolist()
    return first, second


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


class PlaneOperator:
    """L and its parts on an n x n grid, acting on Fourier coefficients (of `scipy.fft.rfft2`)."""

    def __init__(self, cell: Torus, n: int, tempering: float = 0.0) -> None:
        self.cell, self.n, self.jumps = cell, n, jumps_of(tempering)
        k_1 = fft.fftfreq(n, 1 / n) * (2 * math.pi / cell.period[0])
        k_2 = fft.rfftfreq(n, 1 / n) * (2 * math.pi / cell.period[1])
        self.square = k_1[:, None] ** 2 + k_2[None, :] ** 2
        # the derivative of the highest cosine of an even grid vanishes at its points
        d_1, d_2 = k_1.copy(), k_2.copy()
        if n % 2 == 0:
            d_1[n // 2] = d_2[n // 2] = 0.0
        self.gradient = (1j * d_1[:, None], 1j * d_2[None, :])

    def forward(self, field: NDArray[Any]) -> NDArray[Any]:
        """Coefficients of a real field on the grid."""
        return fft.rfft2(field)

    def inverse(self, c: NDArray[Any]) -> NDArray[Any]:
        """The field of coefficients."""
        return fft.irfft2(c, s=(self.n, self.n))

    def symbol(self, alpha: float, order: int = 0) -> NDArray[Any]:
        """That of the jumps, or its derivative of some order in alpha."""
        return self.jumps.symbol(torch.from_numpy(self.square), torch.tensor(alpha, dtype=torch.float64), order).numpy()

    def between(self, c: NDArray[Any]) -> NDArray[Any]:
        """Coefficients of what the field is between the points of the grid, half a spacing from them."""
        turns = [np.exp(1j * math.pi * frequencies) for frequencies in (fft.fftfreq(self.n), fft.rfftfreq(self.n))]
        if self.n % 2 == 0:
            for turn in turns:
                turn[self.n // 2] = turn[self.n // 2].real
        return c * turns[0][:, None] * turns[1][None, :]

    def fractional(self, c: NDArray[Any], alpha: float | NDArray[Any], order: int = 0) -> NDArray[Any]:
        """(-Lap)^alpha of the field (or its derivative in alpha), alpha a number or one per point."""
        if not isinstance(alpha, np.ndarray):
            return self.inverse(c * self.symbol(alpha, order))
        low, high = float(alpha.min()), float(alpha.max())
        if high - low < 1e-12:
            return self.inverse(c * self.symbol(low, order))
        angle = math.pi * (np.arange(_ALPHA_NODES) + 0.5) / _ALPHA_NODES
        nodes = 0.5 * (low + high) + 0.5 * (high - low) * np.cos(angle)
        weights = (-1.0) ** np.arange(_ALPHA_NODES) * np.sin(angle)  # barycentric, Chebyshev points of the first kind
        top, bottom = np.zeros_like(alpha), np.zeros_like(alpha)
        for node, weight in zip(nodes, weights):
            gap = alpha - node
            share = weight / np.where(np.abs(gap) < 1e-14, 1e-14, gap)
            top += share * self.inverse(c * self.symbol(float(node), order))
            bottom += share
        return top / bottom

    def apply(self, c: NDArray[Any], at: Fields) -> NDArray[Any]:
        """L V on the grid where `at` was taken."""
        out = at.b[0] * self.inverse(self.gradient[0] * c)
        out += at.b[1] * self.inverse(self.gradient[1] * c)
        out -= at.D_o * self.inverse(self.square * c)
        return out - at.D_f * self.fractional(c, at.alpha)


class PlaneSystem(NamedTuple):
    """(beta - L) V = r on one grid, and its preconditioner."""

    operator: PlaneOperator
    at: Fields
    scale: NDArray[Any]
    symbol: NDArray[Any]
    beta: float


def solve_plane(
    dynamics: Any, reward: Any, beta: float, *, n_modes: int | None, tolerance: float, max_modes: int
) -> PlaneValue:
    """V of a two-dimensional Dynamics or Recovery; called by `solve_value`."""
    cell = torus(dynamics)
    r = reward_function(reward, lambda x: x.shape[:-1])
    check_periodic(r, cell.period, cell.points(12, 0.37))
    if n_modes is not None:
        n_modes = whole_number("n_modes", n_modes, 4, _MOST_MODES, "give the modes per coordinate")
        system = plane_system(dynamics, cell, n_modes, beta)
        c, iterations = solve_system(system, r(cell.points(n_modes)).numpy())
        return _finish(dynamics, r, system, c, iterations, None, True)
    return _refine(dynamics, r, cell, beta, tolerance, max_modes)


def plane_system(dynamics: Any, cell: Torus, n: int, beta: float) -> PlaneSystem:
    """The system on an n x n grid."""
    at = fields_at(dynamics, cell.points(n))
    operator = PlaneOperator(cell, n, at.tempering)
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
        return ((system.beta * operator.inverse(c) - operator.apply(c, system.at)) / system.scale).reshape(-1)

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


def _refine(dynamics: Any, r: Reward, cell: Torus, beta: float, tolerance: float, max_modes: int) -> PlaneValue:
    """Double the modes per coordinate until V stands still and satisfies the equation between the points."""
    n, change = 16, math.inf
    system = plane_system(dynamics, cell, n, beta)
    c, iterations = solve_system(system, r(cell.points(n)).numpy(), tolerance * 1e-3)
    limit = min(max_modes, 1024)
    while 2 * n <= limit:
        n *= 2
        finer = plane_system(dynamics, cell, n, beta)
        refined, iterations = solve_system(finer, r(cell.points(n)).numpy(), min(_RTOL * 10, tolerance * 1e-3))
        new, old = finer.operator.inverse(refined)[::2, ::2], system.operator.inverse(c)
        change = float(np.abs(new - old).max() / max(np.abs(new).max(), 1e-300))
        system, c = finer, refined
        if change < tolerance and _residual(dynamics, r, system, c) < 1e-2:
            return _finish(dynamics, r, system, c, iterations, change, True)
    warnings.warn(
        f"V still changes by {change:.2g} (tolerance {tolerance:.2g}) at {n} modes per coordinate, the most that "
        "max_modes allows; raise max_modes or beta, or smooth the reward.",
        LevytorchWarning,
        stacklevel=4,
    )
    return _finish(dynamics, r, system, c, iterations, change, False)


def _residual(dynamics: Any, r: Reward, system: PlaneSystem, c: NDArray[Any]) -> float:
    """max |(beta - L) V - r| / max |r| half a spacing away from the grid."""
    operator = system.operator
    x = operator.cell.points(operator.n, 0.5)
    moved = operator.between(c)
    values = r(x).numpy()
    left = system.beta * operator.inverse(moved) - operator.apply(moved, fields_at(dynamics, x)) - values
    return float(np.abs(left).max() / max(np.abs(values).max(), 1e-300))


def _finish(
    dynamics: Any,
    r: Reward,
    system: PlaneSystem,
    c: NDArray[Any],
    iterations: int,
    change: float | None,
    converged: bool,
) -> PlaneValue:
    cell, n = system.operator.cell, system.operator.n
    return PlaneValue(
        coefficients=torch.from_numpy(c / n**2),
        period=cell.period,
        origin=cell.origin,
        beta=system.beta,
        residual=_residual(dynamics, r, system, c),
        change=change,
        iterations=iterations,
        converged=converged,
        covariance_factor=_covariance_factor(dynamics, r, cell, system.beta, min(n, _FACTOR_MODES)),
    )


def _covariance_factor(dynamics: Any, r: Reward, cell: Torus, beta: float, n: int) -> Tensor | None:
    """S with cov(c) = S S^T: (beta - L) dV/dtheta = dL/dtheta V for each principal direction of the parameters."""
    directions = principal_directions(dynamics)
    if directions is None:
        return None
    system = plane_system(dynamics, cell, n, beta)
    operator, at = system.operator, system.at
    c, _ = solve_system(system, r(cell.points(n)).numpy())
    with torch.no_grad():
        J_b, J_D_o, J_D_f, J_alpha = dynamics.jacobian(cell.points(n).reshape(-1, 2))
    flat = lambda f: torch.from_numpy(f).reshape(-1, 1)  # noqa: E731
    right = J_b[:, 0] * flat(operator.inverse(operator.gradient[0] * c))
    right += J_b[:, 1] * flat(operator.inverse(operator.gradient[1] * c))
    right -= J_D_o * flat(operator.inverse(operator.square * c))
    right -= J_D_f * flat(operator.fractional(c, at.alpha))
    right -= J_alpha * flat(at.D_f * operator.fractional(c, at.alpha, order=1))
    if at.tempering > 0 and hasattr(dynamics, "head") and not isinstance(at.alpha, np.ndarray):
        alpha = torch.tensor(at.alpha, dtype=torch.float64)
        _, by_lam = operator.jumps.symbol_derivatives(torch.from_numpy(operator.square), alpha)
        slope = padded(dynamics.head.tempering_slope(), right.shape[1])
        right -= slope * flat(at.D_f * operator.inverse(c * by_lam.numpy()))
    columns = (right @ directions).T.reshape(-1, n, n).numpy()
    return torch.stack([torch.from_numpy(solve_system(system, column, 1e-6)[0] / n**2) for column in columns], dim=-1)
