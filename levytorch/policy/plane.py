"""solve_value in two dimensions: collocation on a torus, matrix-free, by preconditioned GMRES.

The equation is divided by s(x) = D_o + D_f k_c^(2 alpha - 2), which makes its leading part nearly a constant one; the
symbol of the averaged equation is then a preconditioner that is inverted with one pair of transforms, and the number of
iterations hardly depends on the resolution.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, gmres
from torch import Tensor

from levytorch.convert import whole_number
from levytorch.errors import InputError, LevytorchWarning, NumericalError
from levytorch.policy.checks import check_beta, reward_function
from levytorch.policy.plane_operator import Array, Fields, PlaneOperator, Torus, fields, torus
from levytorch.policy.plane_value import PlaneValue

_MOST_MODES = 4096  # per coordinate
_RESTART, _CYCLES = 60, 20
_RTOL = 1e-13
_FACTOR_MODES = 48  # V's standard deviation is smooth and needs two digits
Reward = Callable[[Tensor], Tensor]


class System(NamedTuple):
    """(beta - L) V = r on one grid, and its preconditioner."""

    operator: PlaneOperator
    at: Fields
    scale: Array
    symbol: Array
    beta: float


def solve_plane(
    source: Any, reward: Any, beta: float, *, n_modes: int | None, tolerance: float, max_modes: int
) -> PlaneValue:
    """V of a two-dimensional Dynamics or Recovery; called by `solve_value`."""
    cell = torus(source)
    beta = check_beta(beta)
    r = plane_reward(reward)
    _check_periodic(r, cell)
    if n_modes is not None:
        n_modes = whole_number("n_modes", n_modes, 4, _MOST_MODES, "give the modes per coordinate")
        system = build(source, cell, n_modes, beta)
        c, iterations = solve(system, r(cell.points(n_modes)).numpy())
        return _finish(source, r, system, c, iterations, None, True)
    return _refine(source, r, cell, beta, tolerance, max_modes)


def plane_reward(reward: Any) -> Reward:
    """The reward as a function [..., 2] -> [...] that refuses values that are not finite."""
    return reward_function(reward, lambda x: x.shape[:-1])


def build(source: Any, cell: Torus, n: int, beta: float) -> System:
    """The system on an n x n grid."""
    operator = PlaneOperator(cell, n)
    at = fields(source, cell.points(n))
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
    return System(operator, at, scale, symbol, beta)


def solve(system: System, right: Array, rtol: float = _RTOL) -> tuple[Array, int]:
    """Fourier coefficients of V with (beta - L) V = right on the grid, and the GMRES iterations it took."""
    operator, n = system.operator, system.operator.n
    count = 0

    def product(y: Array) -> Array:
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
            f"The system (beta - L) V = r must be solved to 1e-8, but GMRES stopped at a residual of {left:.2g} after "
            f"{count} iterations with n_modes = {n}; use a larger beta, or a D_o or D_f that is not so close to zero."
        )
    return operator.forward(y.reshape(n, n)) / system.symbol, count


def _refine(source: Any, r: Reward, cell: Torus, beta: float, tolerance: float, max_modes: int) -> PlaneValue:
    """Double the modes per coordinate until V stands still and satisfies the equation between the points."""
    n, change = 16, math.inf
    system = build(source, cell, n, beta)
    c, iterations = solve(system, r(cell.points(n)).numpy(), tolerance * 1e-3)
    limit = min(max_modes, 1024)
    while 2 * n <= limit:
        n *= 2
        finer = build(source, cell, n, beta)
        refined, iterations = solve(finer, r(cell.points(n)).numpy(), min(_RTOL * 10, tolerance * 1e-3))
        new, old = finer.operator.inverse(refined)[::2, ::2], system.operator.inverse(c)
        change = float(np.abs(new - old).max() / max(np.abs(new).max(), 1e-300))
        system, c = finer, refined
        if change < tolerance and _residual(source, r, system, c) < 1e-2:
            return _finish(source, r, system, c, iterations, change, True)
    warnings.warn(
        f"V still changes by {change:.2g} (tolerance {tolerance:.2g}) at {n} modes per coordinate, the most that "
        "max_modes allows; raise max_modes or beta, or smooth the reward.",
        LevytorchWarning,
        stacklevel=4,
    )
    return _finish(source, r, system, c, iterations, change, False)


def _residual(source: Any, r: Reward, system: System, c: Array) -> float:
    """max |(beta - L) V - r| / max |r| half a spacing away from the grid."""
    operator = system.operator
    x = operator.cell.points(operator.n, 0.5)
    moved = operator.shifted(c, 0.5)
    values = r(x).numpy()
    left = system.beta * operator.inverse(moved) - operator.apply(moved, fields(source, x)) - values
    return float(np.abs(left).max() / max(np.abs(values).max(), 1e-300))


def _finish(
    source: Any, r: Reward, system: System, c: Array, iterations: int, change: float | None, converged: bool
) -> PlaneValue:
    cell, n = system.operator.cell, system.operator.n
    return PlaneValue(
        coefficients=torch.from_numpy(c / n**2),
        period=cell.period,
        origin=cell.origin,
        beta=system.beta,
        residual=_residual(source, r, system, c),
        change=change,
        iterations=iterations,
        converged=converged,
        covariance_factor=_covariance_factor(source, r, cell, system.beta, min(n, _FACTOR_MODES)),
    )


def _covariance_factor(source: Any, r: Reward, cell: Torus, beta: float, n: int) -> Tensor | None:
    """S with cov(c) = S S^T: (beta - L) dV/dtheta = dL/dtheta V for each principal direction of the parameters."""
    covariance = getattr(source, "covariance", None)
    if covariance is None or not hasattr(source, "jacobian"):
        return None
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    directions = vectors * values.clamp_min(0).sqrt()
    system = build(source, cell, n, beta)
    operator, at = system.operator, system.at
    c, _ = solve(system, r(cell.points(n)).numpy())
    with torch.no_grad():
        J_b, J_D_o, J_D_f, J_alpha = source.jacobian(cell.points(n).reshape(-1, 2))
    flat = lambda f: torch.from_numpy(f).reshape(-1, 1)  # noqa: E731
    right = J_b[:, 0] * flat(operator.inverse(operator.gradient[0] * c))
    right += J_b[:, 1] * flat(operator.inverse(operator.gradient[1] * c))
    right -= J_D_o * flat(operator.inverse(operator.square * c))
    right -= J_D_f * flat(operator.fractional(c, at.alpha))
    right -= J_alpha * flat(at.D_f * operator.fractional(c, at.alpha, log_power=1))
    columns = (right @ directions).T.reshape(-1, n, n).numpy()
    return torch.stack([torch.from_numpy(solve(system, column, 1e-6)[0] / n**2) for column in columns], dim=-1)


def _check_periodic(r: Reward, cell: Torus) -> None:
    x = cell.points(12, 0.37)
    here = r(x)
    for axis, period in enumerate(cell.period):
        step = torch.zeros(2, dtype=torch.float64)
        step[axis] = period
        gap = float((here - r(x + step)).abs().max())
        if gap > 1e-6 * max(float(here.abs().max()), 1e-300):
            raise InputError(
                f"The reward must have the cell's period {period:g} in coordinate {axis}, but changes by {gap:.3g} "
                "over one; make it periodic."
            )
