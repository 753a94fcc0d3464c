"""solve_value: V from a Dynamics or a Recovery, on any space.

What depends on the space is a Problem: collocation on a circle (section 3.3) or least squares on a window of it
(section 4.3), `on_circle`; nodes on an interval, `on_interval`; transforms or nodes in several coordinates,
`on_product`. Refinement, errors and what is said about them are the same for all.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from levytorch.convert import positive_number
from levytorch.errors import LevytorchWarning
from levytorch.policy.by_simulation import FEW_COORDINATES, simulated_value
from levytorch.policy.checks import check_beta, check_modes, discounted_by_rate, space_to_solve_on
from levytorch.policy.on_circle import CircleProblem
from levytorch.policy.on_interval import IntervalProblem
from levytorch.policy.on_product import ProductProblem, TorusProblem
from levytorch.policy.value import ValueFunction
from levytorch.policy.with_memory import memory_to_solve_with, value_with_memory
from levytorch.spaces import Circle, Interval, Product

_RESIDUAL = 1e-2  # between the points, relative to max |r|: two coarse grids can agree on an aliased reward


class Problem(Protocol):
    """A discretisation of the equation at any resolution n; `Found` is what it knows of V at one of them."""

    first: int  # the resolution to begin with
    most: int
    keeps_best: bool  # whether V may be determined less well with more modes
    remedy: str

    def __init__(
        self, dynamics: Any, space: Any, reward: Any, beta: float, *, window: Any, exterior: Any, beyond_data: bool
    ) -> None: ...

    def checked(self, n_modes: Any) -> int:
        """A resolution that the caller has chosen."""
        ...

    def finer(self, n: int) -> int:
        """The resolution after n."""
        ...

    def solved(self, n: int) -> Any:
        """V at a resolution."""
        ...

    def n_modes(self, found: Any) -> int:
        """The resolution of what was found."""
        ...

    def is_usable(self, found: Any) -> bool:
        """Whether the system was conditioned well enough."""
        ...

    def moved(self, before: Any, found: Any) -> float:
        """max |V - V before| relative to max |V|."""
        ...

    def residual(self, found: Any) -> float:
        """max |(beta - L) V - r| between the points, relative to max |r|."""
        ...

    def value(self, found: Any, change: float | None, converged: bool) -> ValueFunction:
        """V with its errors."""
        ...


PROBLEMS: dict[tuple[type, bool], Any] = {  # of a space, and whether it repeats
    (Circle, True): CircleProblem,
    (Interval, False): IntervalProblem,
    (Product, True): TorusProblem,
    (Product, False): ProductProblem,
}


@discounted_by_rate
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
) -> ValueFunction:
    """Solve beta V = r + b V' + D_o V'' - D_f (-Lap)^alpha V for V.

    On a circle V is a Fourier series, on a line it is known at nodes of a window, and on a torus it is a product of
    series. With more than three coordinates V is fitted to simulated steps of the system (n_modes: an odd number of
    functions per coordinate), and `V.std` is the error of that, without that of the coefficients.

    Args:
        dynamics_or_recovery: a Dynamics, a Recovery, or the closed loop of a policy (`found.under(policy)`). A Recovery
            with a covariance gives `V.std`.
        reward: a number, or a function of x (tensor in, tensor out). Without a window it must have the period of the
            coefficients. In several dimensions it maps [..., d] to [...].
        beta: the discount rate per unit of time, positive.
        n_modes: the resolution: Fourier functions on a circle (per coordinate on a torus), nodes on a line. None
            refines it until V changes by less than `tolerance`.
        window: (low, high). On a circle, the part that the data cover: the equation is then solved by least squares
            there (section 4.3). On a line, where V is solved; None takes the range of the data.
        exterior: on a line, what lies beyond the window: "constant" (None means this: V stays at its value at the end,
            so that jumps past an end land on it and diffusion is reflected), "absorb" (V = 0), or a function of x (V is
            that function: exit problems, episodes that end with a reward). If you give neither a window nor an
            exterior, `V.std` includes how much the exterior matters.
        tolerance: the change of V, relative to its largest value, at which the resolution is fine enough.
        max_modes: the finest resolution that is tried.
        beyond_data: True allows a window that reaches beyond the data, which is refused otherwise.

    Returns:
        A ValueFunction: `V(x)`, `V.std(x)`, `V.gradient(x)`, `V.plot()`. Of a fit with memory V(x) is the mean over the
        sizes m of past steps, and `V.given(m)` is V at one of them.

    Example:
        >>> import torch
        >>> from levytorch import Dynamics
        >>> V = solve_value(Dynamics(b=0.0, D_o=1.0, D_f=1.0, alpha=0.5), torch.cos, beta=0.5)
        >>> round(float(V(0.0)), 12)  # cos is an eigenfunction: 1 / (0.5 + 1 + 1)
        0.4
    """
    tolerance = positive_number("tolerance", tolerance, "give the relative change of V to stop at, such as 1e-6")
    max_modes = check_modes("max_modes", max_modes)
    beta = check_beta(beta)
    policy, given = getattr(dynamics_or_recovery, "policy", None), dynamics_or_recovery
    with_memory = memory_to_solve_with(given, window, exterior)
    if hasattr(dynamics_or_recovery, "with_boundary"):
        _warn_of_doubts(dynamics_or_recovery, with_memory)
        dynamics_or_recovery = dynamics_or_recovery.with_boundary()
    if policy is not None:
        reward = policy.averaged(reward, dynamics_or_recovery.dim)
    space = space_to_solve_on(dynamics_or_recovery)
    if isinstance(space, Product) and space.dim > FEW_COORDINATES:
        return simulated_value(
            dynamics_or_recovery, space, reward, beta, n_modes=n_modes, window=window, exterior=exterior
        )
    problem = PROBLEMS[type(space), space.repeats](
        dynamics_or_recovery, space, reward, beta, window=window, exterior=exterior, beyond_data=beyond_data
    )
    if n_modes is not None:
        V = problem.value(problem.solved(problem.checked(n_modes)), None, True)
    else:
        V = _refine(problem, tolerance, max_modes)
    return value_with_memory(given, V, reward) if with_memory else V


def _warn_of_doubts(recovery: Any, with_memory: bool) -> None:
    """Warn where V.std cannot be what it seems, because of something that the fit says about itself."""
    metrics = recovery.metrics
    at_zero = metrics.get("at_zero", {})
    doubts = [
        f"{name} has vanished and the data does not bound it"
        for name, found in (at_zero | metrics.get("near_zero", {})).items()
        if not math.isfinite(found["std"])
    ]
    vanished = [name for name in metrics.get("vanishing", ()) if name not in at_zero]
    doubts += [f"{name} has vanished and counts as known to be zero" for name in vanished]
    doubts += [f"the standard error of {name} is {value:g}" for name, value in _bad_errors(recovery, vanished)]
    bound = metrics.get("alpha_at_bound")
    if bound is not None:
        doubts.append(f"alpha is held at the end {bound:g} of its range")
    if not metrics.get("law_judged", True):
        doubts.append(
            f"the frozen law was used although its bias is not known ({metrics.get('law_reason', 'no reason given')})"
        )
    if recovery.memory is not None and not with_memory:
        doubts.append("D_o and D_f depend on past steps, while V takes them at f = 1, as functions of x alone")
    if not recovery.converged:
        doubts.append("the fit has not converged")
    if doubts:
        warnings.warn(
            f"V must come from a fit with valid standard errors, found that {' and '.join(doubts)}; "
            "V.std does not include that: repair the fit first, or compare with a bootstrap.",
            LevytorchWarning,
            stacklevel=3,
        )


def _bad_errors(recovery: Any, vanished: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Coefficients that were estimated and whose standard error is zero, infinite or not a number, at some state."""
    if recovery.covariance is None or not len(recovery.states):
        return
    known = {*recovery.head.known, *recovery.metrics.get("at_zero", ()), *vanished}
    for name, every in zip(("b", "D_o", "D_f"), recovery.std(recovery.states)):
        std = torch.stack([every[(slice(None), *place)] for _, place in recovery.head.layout.numbers(name)])
        bad = std[~((std > 0) & std.isfinite())]
        if name not in known and len(bad):
            yield name, float(bad[0])


def _refine(problem: Problem, tolerance: float, max_modes: int) -> ValueFunction:
    """Refine until V stands still and satisfies the equation between the points.

    Where more modes determine V less (a window of a circle), a system that becomes ill-conditioned ends it, and if V
    never stands still the resolution at which it moved least is taken.
    """
    best = before = problem.solved(problem.first)
    change, ended, n = math.inf, f"max_modes = {max_modes} was reached", problem.first
    while (n := problem.finer(n)) <= max(min(max_modes, problem.most), problem.first):
        found = problem.solved(n)
        if not problem.is_usable(found):
            ended = f"{n} modes would be ill-conditioned on this window"
            break
        moved = problem.moved(before, found)
        before = found
        if not problem.keeps_best or moved <= change:
            best, change = found, moved
        if moved < tolerance and problem.residual(found) < _RESIDUAL:
            return problem.value(found, moved, True)
    text = "cannot be compared with a finer one" if math.isinf(change) else f"still changes by {change:.2g}"
    warnings.warn(
        f"V must stop changing as modes are added, found that it {text} (tolerance {tolerance:.2g}) at "
        f"{problem.n_modes(best)} modes, and {ended}; {problem.remedy}.",
        LevytorchWarning,
        stacklevel=3,
    )
    return problem.value(best, change, False)
