"""V on a window of a line, and beyond it what the exterior says.

    exterior "constant": V stays at its end value; jumps past an end land on it, and diffusion is reflected there
    exterior "absorb":   V = 0 outside: the process stops when it leaves, by a jump or by diffusion
    exterior g:          V = g outside: it stops and is paid g where it lands

The matrices are those of `spaces.line_operator`; uncertainty follows by the exact linearisation, as on the circle
(`generator`).

The data of a Recovery says nothing about what lies beyond it. Where neither a window nor an exterior is asked for, V is
that of "constant", from where a path returns at once; the other extreme is a window many times as wide, over which the
coefficients go on as the head continues them. The difference of the two is part of V.std.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.convert import choice, shown, whole_number
from levytorch.errors import InputError, NumericalError
from levytorch.law.jumps import Jumps
from levytorch.policy.checks import Coefficients, Reward, check_window, coefficients_at, reward_function
from levytorch.policy.generator import delta_method, tempering_jacobian
from levytorch.policy.value import ValueFunction
from levytorch.spaces import Interval
from levytorch.spaces.line_operator import Exterior, LineOperators, given_outside, inner_nodes, line_operators

EXTERIORS = ("constant", "absorb")
LEAST, MOST = 16, 1 << 13
_AWAY = 1e-3  # of the window: where V must stand still; within the last nodes it is not resolved
_DIFFERENCE = 1e-4  # of alpha, for what V owes to it
_WIDER = 8.0  # times the window, to see what the exterior matters: by twice that little changes any more
_WIDE_NODES = 1024  # of that, at most


class Found(NamedTuple):
    system: LineSystem
    solve: Callable[[Tensor], Tensor]  # of the columns of a right-hand side at the inner nodes
    values: Tensor  # at all nodes


class IntervalProblem:
    """V by its values at nodes; see `solver.Problem`. n: intervals between nodes."""

    first, most, keeps_best = 128, MOST, False
    remedy = "raise max_modes, smooth the reward, or choose a narrower window"

    def __init__(
        self, dynamics: Any, space: Interval, reward: Any, beta: float, *, window: Any, exterior: Any, beyond_data: bool
    ) -> None:
        self.dynamics, self.beta = dynamics, beta
        self.space = Interval(*line_window(dynamics, window, beyond_data))
        self.r = reward_function(reward)
        covers = hasattr(reward, "check_covers")
        if covers:
            reward.check_covers(*self.space.ends, "window")
        self.covered = self.space.ends if covers else (-math.inf, math.inf)
        self.outside = _exterior(exterior, self.space.ends, dynamics)
        self.is_free = window is None and exterior is None

    def checked(self, n_modes: Any) -> int:
        return whole_number("n_modes", n_modes, LEAST, MOST, "give the number of intervals between nodes")

    def finer(self, n: int) -> int:
        return 2 * n

    def solved(self, n: int) -> Found:
        system = LineSystem.of(self.dynamics, n, self.space.ends, self.outside)
        return Found(system, *_solve(system, self.r, self.beta))

    def n_modes(self, found: Found) -> int:
        return len(found.values) - 1

    def is_usable(self, found: Found) -> bool:
        return True

    def moved(self, before: Found, found: Found) -> float:
        low, high = self.space.ends
        x = self.space.nodes(self.n_modes(found))
        away = torch.minimum(x - low, high - x) > _AWAY * (high - low)
        old = self.space.functions(before.values).at(x, before.values[:, None])[:, 0]
        return float((found.values - old).abs()[away].max() / found.values.abs().max().clamp(min=1e-300))

    def residual(self, found: Found) -> float:
        return 0.0  # nodes that resolve the ends leave nothing between them that V could hide

    def value(self, found: Found, change: float | None, converged: bool) -> ValueFunction:
        name = "constant" if self.outside.constant else "absorb" if self.outside.outside is None else "given"
        inner = delta_method(self.dynamics, found.system.change, found.solve, found.values[1:-1])
        factor = None if inner is None else found.system.with_ends(inner, (0.0, 0.0))
        if factor is not None and self.is_free:
            factor = torch.cat([factor, self._of_exterior(found)], dim=1)
        options: dict[str, Any] = {"change": change, "converged": converged, "covariance_factor": factor}
        return ValueFunction(
            found.values, self.space, self.beta, exterior=name, outside=self.outside.outside, **options
        )

    def _of_exterior(self, found: Found) -> Tensor:
        """(n + 1, 1): how V changes when paths may go on beyond the window; a table of rewards keeps its last
        entries.
        """
        low, high = self.space.ends
        middle, half = 0.5 * (low + high), 0.5 * _WIDER * (high - low)
        wide, n = Interval(middle - half, middle + half), self.n_modes(found)
        system = LineSystem.of(self.dynamics, min(4 * n, _WIDE_NODES), wide.ends, Exterior(True))
        _, values = _solve(system, lambda x: self.r(x.clamp(*self.covered)), self.beta)
        return wide.functions(values).at(self.space.nodes(n), values[:, None]) - found.values[:, None]


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
        at = coefficients_at(dynamics, ends)
        return given_outside(g, window, at.jumps.growth(at.alpha))
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


@dataclass(frozen=True)
class LineSystem:
    """The generator of a Dynamics or a Recovery on the inner nodes of a window.

    operators: alpha and jumps -> the operators of the window; ops: those of the system's own.
    """

    dynamics: Any
    outside: Exterior
    free: tuple[bool, bool]
    at: Coefficients
    operators: Callable[[Tensor, Jumps], LineOperators]
    ops: LineOperators

    @staticmethod
    def of(dynamics: Any, n: int, window: tuple[float, float], outside: Exterior) -> LineSystem:
        free = (False, False) if outside.constant else _free_ends(dynamics, window)
        at = coefficients_at(dynamics, inner_nodes(n, window))
        if bool((at.alpha >= 1).any()):
            raise InputError(
                "alpha must lie in (0, 1) on a line, found 1; for Brownian motion set D_f = 0 and any alpha."
            )

        def operators(alpha: Tensor, jumps: Jumps) -> LineOperators:
            return line_operators(n, window, alpha, outside, free, jumps=jumps)

        return LineSystem(dynamics, outside, free, at, operators, operators(at.alpha, at.jumps))

    def matrix(self, beta: float) -> Tensor:
        """beta - L on values at the inner nodes, but for what the ends and the exterior give (`right`)."""
        out = self.at.D_f[:, None] * self.ops.fractional
        out -= self.at.b[:, None] * self.ops.first
        out -= self.at.D_o[:, None] * self.ops.second
        out.diagonal().add_(beta)
        return out

    def right(self, r: Reward) -> Tensor:
        """The right-hand side at the inner nodes, with what the ends and the exterior give."""
        at, ops = self.at, self.ops
        return r(ops.x) + at.b * ops.first_end + at.D_o * ops.second_end - at.D_f * ops.fractional_end

    def change(self, v: Tensor) -> Tensor:
        """(n - 1, P): d(L v) / dtheta of values v (n - 1,), for a Recovery."""
        at, ops, h = self.at, self.ops, _DIFFERENCE

        def jumped(alpha: Tensor, jumps: Jumps) -> Tensor:
            other = self.operators(alpha, jumps)
            return other.fractional @ v + other.fractional_end

        with torch.no_grad():
            J_b, J_D_o, J_D_f, J_alpha = (
                torch.as_tensor(J, dtype=torch.float64) for J in self.dynamics.jacobian(ops.x)
            )
        out = J_b * (ops.first @ v + ops.first_end)[:, None] + J_D_o * (ops.second @ v + ops.second_end)[:, None]
        out = out - J_D_f * (ops.fractional @ v + ops.fractional_end)[:, None]
        if bool((J_alpha != 0).any()):
            by_alpha = (jumped(at.alpha + h, at.jumps) - jumped(at.alpha - h, at.jumps)) / (2 * h)
            out = out - J_alpha * (at.D_f * by_alpha)[:, None]
        J_lam = tempering_jacobian(self.dynamics, out.shape[1])
        if J_lam is not None and bool(J_lam.any()):
            for more, less, apart in at.jumps.varied(h):
                by_lam = (jumped(at.alpha, more) - jumped(at.alpha, less)) / apart
                out = out - J_lam * (at.D_f * by_lam)[:, None]
        return out

    def with_ends(self, inner: Tensor, ends: tuple[float, float]) -> Tensor:
        """(n - 1, k) -> (n + 1, k)."""
        rows = []
        for row, value, same in zip((inner[:1], inner[-1:]), ends, self.free):
            rows.append(row if self.outside.constant or same else torch.full_like(row, value))
        return torch.cat([rows[0], inner, rows[1]])


def _solve(system: LineSystem, r: Reward, beta: float) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The solution of the system as a function of its right-hand side, and V at all nodes."""
    matrix = system.matrix(beta)
    size = matrix.abs().amax(1)  # rows near the ends are larger by many orders of magnitude
    lu, pivots, _ = torch.linalg.lu_factor_ex(matrix / size[:, None])

    def solve(right: Tensor) -> Tensor:
        return torch.linalg.lu_solve(lu, pivots, right / size[:, None])

    v = solve(system.right(r)[:, None])
    if not bool(torch.isfinite(v).all()):
        raise NumericalError(
            f"(beta - L) V = r must have one solution, found none on {len(v) + 1} nodes; check that D_o and D_f do not "
            "both vanish, or use a larger beta."
        )
    return solve, system.with_ends(v, system.outside.ends)[:, 0]
