"""solve_value: V from a Dynamics or a Recovery.

Collocation on the cell (section 3.3), or least squares on a window (section 4.3).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import FourierBasis
from levytorch.convert import positive_number, shown
from levytorch.errors import InputError, LevytorchWarning, NumericalError
from levytorch.policy.checks import (
    Reward,
    cell_of,
    check_beta,
    check_modes,
    check_periodic,
    check_window,
    coefficients_at,
    is_line,
    reward_function,
)
from levytorch.policy.generator import (
    Factor,
    LinearSystem,
    covariance_factor,
    factorise,
    linear_system,
    operators,
    resolvent_matrix,
)
from levytorch.policy.line_value import solve_line
from levytorch.policy.plane import solve_plane
from levytorch.policy.value import ValueFunction

# Beyond it fewer than about four digits of V are left in double precision.
_MAX_CONDITION = 1e12
_EXCESS = 1.05  # of |V| over its bound; less may be the error of V itself


def solve_value(
    dynamics_or_recovery: Any,
    reward: Callable[[Tensor], Any] | float,
    beta: float,
    *,
    n_modes: int | None = None,
    window: Sequence[float] | None = None,
    exterior: str | Callable[[Tensor], Any] | None = None,
    tolerance: float = 1e-6,
    max_modes: int = 2049,
    beyond_data: bool = False,
) -> Any:
    """Solve beta V = r + b V' + D_o V'' - D_f (-Lap)^alpha V for V.

    reward: a function of x (tensor in, tensor out) or a number. Without a window the equation is collocated at
    `n_modes` points of the cell and the reward must have its period. With `window=(low, high)` the residual is
    minimised in L2 over the window only (section 4.3): use it when data, and hence the coefficients, cover part of the
    cell; a window that reaches beyond the data is refused unless `beyond_data` says that the coefficients may be
    trusted there. `n_modes=None` doubles the resolution until V changes by less than `tolerance` relative to max |V|. A
    Recovery with a covariance gives V.std. In one dimension a ValueFunction comes back, in two a PlaneValue: the
    reward is then a function [..., 2] -> [...], `n_modes` counts per coordinate and there is no window.

    On a line (period None) V is solved on `window`, by default the range of the data of a Recovery, and a LineValue
    comes back; `n_modes` counts nodes. `exterior` says what is beyond: "constant" (None means this: V stays at its end
    value, so that jumps past an end land on it and diffusion is reflected there), "absorb" (V = 0 outside), or a
    function g of x (V = g outside: exit problems, episodes that end with a reward). Without a
    window and an exterior V.std of a Recovery includes how much the exterior matters: the difference to V on a window
    eight times as wide, over which the coefficients go on as the head continues them.

    >>> from levytorch import Dynamics
    >>> V = solve_value(Dynamics(b=0.0, D_o=1.0, D_f=1.0, alpha=0.5), torch.cos, beta=0.5)
    >>> round(float(V(0.0)), 12)  # cos is an eigenfunction: 1 / (0.5 + 1 + 1)
    0.4
    """
    tolerance = positive_number("tolerance", tolerance, "give the relative change of V to stop at, such as 1e-6")
    max_modes = check_modes("max_modes", max_modes)
    beta = check_beta(beta)
    accuracy: dict[str, Any] = {"n_modes": n_modes, "tolerance": tolerance, "max_modes": max_modes}
    policy = getattr(dynamics_or_recovery, "policy", None)
    if hasattr(dynamics_or_recovery, "with_boundary"):
        _warn_of_doubts(dynamics_or_recovery)
        dynamics_or_recovery = dynamics_or_recovery.with_boundary()
    if policy is not None:
        reward = policy.averaged(reward, dynamics_or_recovery.dim)
    if is_line(dynamics_or_recovery):
        return solve_line(
            dynamics_or_recovery, reward, beta, window=window, exterior=exterior, beyond_data=beyond_data, **accuracy
        )
    if exterior is not None:
        raise InputError(
            f"exterior must be left out beside a period, found {shown(exterior)}; remove it, or use period=None."
        )
    if getattr(dynamics_or_recovery, "dim", 1) == 2:
        if window is not None:
            raise InputError(
                f"window must be left out in two dimensions, found {window!r}; remove it to solve on the whole cell."
            )
        # 2049 modes are the one-dimensional default; in the plane they count per coordinate
        return solve_plane(dynamics_or_recovery, reward, beta, **accuracy | {"max_modes": min(max_modes, 512)})
    period, origin = cell_of(dynamics_or_recovery)
    r = reward_function(reward)
    support = None if beyond_data else getattr(dynamics_or_recovery, "support", None)
    limits = None if window is None else check_window(window, period, support)
    if hasattr(reward, "check_covers"):  # a table, which may end before the cell does
        low, high = limits or (origin, origin + period)
        reward.check_covers(low, high, "cell" if limits is None else "window")
    if limits is None:
        check_periodic(r, (period,), FourierBasis(1, period, origin).grid(37))

    def build(n: int) -> LinearSystem:
        return linear_system(dynamics_or_recovery, r, beta, FourierBasis(n, period, origin), limits)

    if n_modes is not None:
        system = build(n_modes)
        return _finish(dynamics_or_recovery, r, system, _solve(system), limits, None, True)
    return _refine(dynamics_or_recovery, r, build, limits, tolerance, max_modes)


def _warn_of_doubts(recovery: Any) -> None:
    """Warn where V.std cannot be what it seems, because of something that the fit says about itself."""
    doubts = [
        f"{name} has vanished and the data does not bound it"
        for name, found in recovery.metrics.get("at_zero", {}).items()
        if not math.isfinite(found["std"])
    ]
    bound = recovery.metrics.get("alpha_at_bound")
    if bound is not None:
        doubts.append(f"alpha is held at the end {bound:g} of its range")
    if not recovery.converged:
        doubts.append("the fit has not converged")
    if doubts:
        warnings.warn(
            f"V must come from a fit with standard errors that mean something, found that {' and '.join(doubts)}; "
            "V.std does not include that: mend the fit first, or compare with a bootstrap.",
            LevytorchWarning,
            stacklevel=3,
        )


class Solution(NamedTuple):
    factor: Factor
    c: Tensor


def _solve(system: LinearSystem) -> Solution:
    factor = factorise(system)
    y = factor.solve((system.weight * system.r)[:, None])[:, 0]
    return Solution(factor, y / system.scale)


def _finish(
    dynamics: Any,
    r: Reward,
    system: LinearSystem,
    solution: Solution,
    window: tuple[float, float] | None,
    change: float | None,
    converged: bool,
) -> ValueFunction:
    condition = solution.factor.condition()
    n = system.basis.n_modes
    if not condition < _MAX_CONDITION or not bool(torch.isfinite(solution.c).all()):
        remedy = "use a larger beta or fewer modes" if window is None else "use fewer modes or a wider window"
        raise NumericalError(
            f"(beta - L) V = r must have a condition number below {_MAX_CONDITION:.0e}, found condition number "
            f"{condition:.2g} with n_modes = {n}; {remedy}."
        )
    factor = covariance_factor(dynamics, system, solution.c, solution.factor)
    excess = 1.0 if window is None else _excess(r, system, solution.c)
    if excess > _EXCESS:
        warnings.warn(
            f"|V| must not exceed max |r| / beta, found {excess:.3g} times that with n_modes = {n}: on this window the "
            "equation does not determine V; use a wider window, or none.",
            LevytorchWarning,
            stacklevel=4,
        )
        converged = False
    return ValueFunction(
        coefficients=solution.c,
        period=system.basis.period,
        origin=system.basis.origin,
        beta=system.beta,
        window=window,
        residual=_residual(dynamics, r, system, solution.c, window),
        condition=condition,
        change=change,
        converged=converged,
        covariance_factor=factor,
    )


def _excess(r: Reward, system: LinearSystem, c: Tensor) -> float:
    """max |V| on the window over max |r| / beta on the cell, which no expected discounted reward exceeds."""
    try:
        largest = r(system.basis.grid(401)).abs().max()
    except InputError:  # a table that ends with the window
        largest = system.r.abs().max()
    return float((system.ops.phi @ c).abs().max() * system.beta / largest.clamp_min(1e-300))


def _residual(dynamics: Any, r: Reward, system: LinearSystem, c: Tensor, window: tuple[float, float] | None) -> float:
    """max |(beta - L) V - r| / max |r| off the collocation points."""
    basis, n = system.basis, 2 * system.basis.n_modes + 1
    x = basis.grid(n) if window is None else torch.linspace(*window, n + 2, dtype=torch.float64)[1:-1]
    at = coefficients_at(dynamics, x)
    A = resolvent_matrix(operators(basis, x, at.alpha, float(at.tempering)), at.b, at.D_o, at.D_f, system.beta)
    values = r(x)
    return float((A @ c - values).abs().max() / values.abs().max().clamp_min(1e-300))


def _refine(
    dynamics: Any,
    r: Reward,
    build: Callable[[int], LinearSystem],
    window: tuple[float, float] | None,
    tolerance: float,
    max_modes: int,
) -> ValueFunction:
    """Double the number of wavenumbers until V stands still.

    On a window go in smaller steps, stop before the system becomes ill-conditioned, and if V never stands still take
    the resolution at which it moved least: the equation on a window determines V less and less as modes are added.
    """
    half = 16 if window is None else 3
    system = build(2 * half + 1)
    solution, change = _solve(system), math.inf
    coarser, before = system, solution
    ended = f"max_modes = {max_modes} was reached"
    while 2 * (half := 2 * half if window is None else (3 * half + 1) // 2) + 1 <= max_modes:
        finer = build(2 * half + 1)
        refined = _solve(finer)
        if window is not None and not refined.factor.condition() < _MAX_CONDITION:
            ended = f"{finer.basis.n_modes} modes would be ill-conditioned on this window"
            break
        new, old = finer.ops.phi @ refined.c, coarser.basis.matrix(finer.x) @ before.c
        moved = float((new - old).abs().max() / new.abs().max().clamp_min(1e-300))
        coarser, before = finer, refined
        if window is None or moved <= change:
            system, solution, change = finer, refined, moved
        # Two coarse grids can agree on an aliased reward: the equation must hold between the points as well.
        if moved < tolerance and _residual(dynamics, r, finer, refined.c, window) < 1e-2:
            return _finish(dynamics, r, finer, refined, window, moved, True)
    n = system.basis.n_modes
    found = "cannot be compared with a finer one" if math.isinf(change) else f"still changes by {change:.2g}"
    remedy = "use a wider window, or none" if window is not None else "raise max_modes or beta, or smooth the reward"
    warnings.warn(
        f"V must stand still as modes are added, found that it {found} (tolerance {tolerance:.2g}) at {n} modes, and "
        f"{ended}; {remedy}.",
        LevytorchWarning,
        stacklevel=3,
    )
    return _finish(dynamics, r, system, solution, window, change, False)
