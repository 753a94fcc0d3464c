"""Value functions on a line: V on a window, and beyond it what the exterior says.

    exterior "constant": V stays at its end value; jumps past an end land on it, and diffusion is reflected there
    exterior "absorb":   V = 0 outside: the process stops when it leaves, by a jump or by diffusion
    exterior g:          V = g outside: it stops and is paid g where it lands

The matrices are `line_operator`'s; uncertainty follows by the exact linearisation, as on the cell (`generator`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.convert import choice, shown, whole_number
from levytorch.errors import InputError, LevytorchWarning, NumericalError
from levytorch.policy.checks import Reward, check_window, coefficients_at, reward_function
from levytorch.policy.generator import principal_directions
from levytorch.policy.line_operator import Exterior, LineOperators, given_outside, line_operators
from levytorch.policy.line_value import LineValue

EXTERIORS = ("constant", "absorb")
LEAST, MOST = 16, 1 << 13
_FIRST = 128  # intervals to start from
_AWAY = 1e-3  # of the window: where V must stand still; within the last nodes it is not resolved
_DIFFERENCE = 1e-4  # of alpha, for what V owes to it


class Accuracy(NamedTuple):
    """So many nodes, or from a few on until V moves by less than the tolerance, and at most so many."""

    n_modes: int | None
    tolerance: float
    max_modes: int


def solve_line(
    dynamics: Any,
    reward: Callable[[Tensor], Any] | float,
    beta: float,
    window: Sequence[float] | None,
    exterior: str | Callable[[Tensor], Any] | None,
    accuracy: Accuracy,
    beyond_data: bool,
) -> LineValue:
    """V on the window; `n_modes` counts the intervals between nodes, None doubles them until V stands still."""
    n_modes, tolerance, max_modes = accuracy
    dim = getattr(dynamics, "dim", 1)
    if dim != 1:
        raise InputError(f"value functions on a line are one-dimensional, found dim = {dim}; give the state a period.")
    limits = line_window(dynamics, window, beyond_data)
    r = reward_function(reward)
    if hasattr(reward, "check_covers"):
        reward.check_covers(*limits, "window")
    outside = _exterior(exterior, limits, dynamics)
    name = "constant" if outside.constant else "absorb" if outside.outside is None else "given"

    def value(n: int, change: float | None = None, converged: bool = True, std: bool = False) -> LineValue:
        values, factor = _solve(dynamics, r, beta, n, limits, outside, std=std)
        return LineValue(values, limits, beta, name, change, converged, outside.outside, factor)

    if n_modes is not None:
        n = whole_number("n_modes", n_modes, LEAST, MOST, "give the number of intervals between nodes")
        return value(n, std=True)
    n, change, found = _FIRST, math.inf, value(_FIRST)
    while change >= tolerance and 2 * n <= max(max_modes, _FIRST):
        n, before = 2 * n, found
        found = value(n)
        low, high = limits
        seen = torch.minimum(found.x - low, high - found.x) > _AWAY * (high - low)
        moved = (found.values - before(found.x)).abs()[seen]
        change = float(moved.max() / found.values.abs().max().clamp(min=1e-300))
    if change >= tolerance:
        warnings.warn(
            f"V must stand still as nodes are added, found that it still changes by {change:.2g} (tolerance "
            f"{tolerance:.2g}) at {n} nodes; raise max_modes, smooth the reward, or choose a narrower window.",
            LevytorchWarning,
            stacklevel=3,
        )
    return value(n, change, change < tolerance, std=True)


def line_window(dynamics: Any, window: Sequence[float] | None, beyond_data: bool) -> tuple[float, float]:
    """The window as two numbers: that of the data for a Recovery, unless it is given."""
    support = getattr(dynamics, "support", None)
    if window is not None:
        return check_window(window, math.inf, None if beyond_data else support)
    found = support or getattr(dynamics, "window", None)
    if found is None:
        raise InputError(
            "window must be given for a state on a line, found none; pass window=(low, high), beyond which the "
            "exterior holds."
        )
    return float(found[0]), float(found[1])


def _exterior(exterior: Any, window: tuple[float, float], dynamics: Any) -> Exterior:
    if exterior is None or exterior == "constant":
        return Exterior(True)
    if callable(exterior):
        g = reward_function(exterior)
        ends = torch.tensor(window, dtype=torch.float64)
        return given_outside(g, window, coefficients_at(dynamics, ends).alpha)
    if not isinstance(exterior, str):
        raise InputError(
            f"exterior must be constant, absorb or a function of x, found {shown(exterior)}; give one of these."
        )
    choice("exterior", exterior, EXTERIORS, "or pass a function of x")
    return Exterior(False)


def _free_ends(dynamics: Any, window: tuple[float, float]) -> tuple[bool, bool]:
    """Ends that a path leaves only by a jump, where V does not go over into what is outside.

    Nothing diffuses, the drift points inward, and jumps are too rare to undo it (2 alpha < 1).
    """
    at = coefficients_at(dynamics, torch.tensor(window, dtype=torch.float64))
    jumps = (2 * at.alpha < 1).expand(2)
    low, high = ((at.D_o == 0) & jumps & (at.b * torch.tensor([1.0, -1.0]) > 0)).tolist()
    return low, high


def _solve(
    dynamics: Any, r: Reward, beta: float, n: int, window: tuple[float, float], outside: Exterior, *, std: bool
) -> tuple[Tensor, Tensor | None]:
    """V at all nodes, and the factor of its covariance where the dynamics have one and it is asked for."""
    free = (False, False) if outside.constant else _free_ends(dynamics, window)
    x = operators_at(n, window)
    at = coefficients_at(dynamics, x)
    if float(at.tempering) > 0 and at.alpha.ndim:
        raise InputError(
            f"alpha must be one number for tempered jumps on a line, found a function of x beside tempering "
            f"{float(at.tempering):g}; give one alpha."
        )
    if bool((at.alpha >= 1).any()):
        raise InputError("alpha must lie in (0, 1) on a line, found 1; for Brownian motion set D_f = 0 and any alpha.")
    ops = line_operators(n, window, at.alpha, outside, free, float(at.tempering))
    matrix, right = _system(ops, at, r(x), beta)
    size = matrix.abs().amax(1)  # rows near the ends are larger by many orders of magnitude
    lu, pivots, _ = torch.linalg.lu_factor_ex(matrix / size[:, None])
    v = torch.linalg.lu_solve(lu, pivots, (right / size)[:, None])[:, 0]
    if not bool(torch.isfinite(v).all()):
        raise NumericalError(
            f"(beta - L) V = r must have one solution, found none on {n} nodes; check that D_o and D_f do not both "
            "vanish, or use a larger beta."
        )
    directions = principal_directions(dynamics) if std else None
    factor = None
    if directions is not None:
        change = _change(dynamics, ops, at, v, n, window, outside, free)
        inner = torch.linalg.lu_solve(lu, pivots, change / size[:, None]) @ directions
        factor = _with_ends(inner, (0.0, 0.0), outside, free)
    return _with_ends(v[:, None], outside.ends, outside, free)[:, 0], factor


def operators_at(n: int, window: tuple[float, float]) -> Tensor:
    """The inner nodes, (n - 1,)."""
    return LineValue(torch.zeros(n + 1, dtype=torch.float64), window, 1.0).x[1:-1]


def _system(ops: LineOperators, at: Coefficients, r: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """beta - L as a matrix on the inner nodes, and the right-hand side with what the ends and the exterior give."""
    matrix = at.D_f[:, None] * ops.fractional
    matrix -= at.b[:, None] * ops.first
    matrix -= at.D_o[:, None] * ops.second
    matrix.diagonal().add_(beta)
    return matrix, r + at.b * ops.first_end + at.D_o * ops.second_end - at.D_f * ops.fractional_end


def _with_ends(inner: Tensor, ends: tuple[float, float], outside: Exterior, free: tuple[bool, bool]) -> Tensor:
    """(n - 1, k) -> (n + 1, k)."""
    rows = []
    for row, value, same in zip((inner[:1], inner[-1:]), ends, free):
        rows.append(row if outside.constant or same else torch.full_like(row, value))
    return torch.cat([rows[0], inner, rows[1]])


def _change(
    dynamics: Any,
    ops: LineOperators,
    at: Coefficients,
    v: Tensor,
    n: int,
    window: tuple[float, float],
    outside: Exterior,
    free: tuple[bool, bool],
) -> Tensor:
    """(beta - L) dV / dtheta at the inner nodes, (n - 1, P)."""
    with torch.no_grad():
        J_b, J_D_o, J_D_f, J_alpha = (torch.as_tensor(J, dtype=torch.float64) for J in dynamics.jacobian(ops.x))
    out = J_b * (ops.first @ v + ops.first_end)[:, None] + J_D_o * (ops.second @ v + ops.second_end)[:, None]
    out = out - J_D_f * (ops.fractional @ v + ops.fractional_end)[:, None]
    if bool((J_alpha != 0).any()):
        moved = []
        for sign in (1.0, -1.0):
            other = line_operators(n, window, at.alpha + sign * _DIFFERENCE, outside, free, float(at.tempering))
            moved.append(other.fractional @ v + other.fractional_end)
        out = out - J_alpha * (at.D_f * (moved[0] - moved[1]) / (2 * _DIFFERENCE))[:, None]
    slope = getattr(getattr(dynamics, "head", None), "tempering_slope", None)
    if float(at.tempering) > 0 and slope is not None and bool((J_lam := slope()).any()):
        moved = []
        for sign in (1.0, -1.0):
            lam = float(at.tempering) * (1 + sign * _DIFFERENCE)
            other = line_operators(n, window, at.alpha, outside, free, lam)
            moved.append(other.fractional @ v + other.fractional_end)
        change = (moved[0] - moved[1]) / (2 * _DIFFERENCE * float(at.tempering))
        out = out - J_lam * (at.D_f * change)[:, None]
    return out


def generator_on_line(dynamics: Any, n: int, window: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """The inner nodes (n - 1,) and L on values there, (n - 1, n - 1), V constant beyond the window."""
    at = coefficients_at(dynamics, operators_at(n, window))
    ops = line_operators(n, window, at.alpha, Exterior(True), tempering=float(at.tempering))
    matrix, _ = _system(ops, at, torch.zeros_like(ops.x), 0.0)
    return ops.x, -matrix


def sensitivity_on_line(dynamics: Any, v: Tensor, n: int, window: tuple[float, float]) -> Tensor:
    """(n - 1, P): d(L v) / dtheta at the inner nodes, of values v (n - 1,) there, for a Recovery."""
    outside = Exterior(True)
    at = coefficients_at(dynamics, operators_at(n, window))
    ops = line_operators(n, window, at.alpha, outside, tempering=float(at.tempering))
    return _change(dynamics, ops, at, v, n, window, outside, (False, False))
