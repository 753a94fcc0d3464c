"""value_from_data: V straight from transitions, by the method that one would use instead, or by all that is known."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from levytorch.convert import choice, positive_number, seed_of, shown, whole_number
from levytorch.data import Transitions
from levytorch.errors import InputError, LevytorchWarning
from levytorch.policy.bases import CircleBasis, Functions, LineBasis, PlaneBasis, ProductBasis
from levytorch.policy.checks import (
    check_beta,
    check_periodic,
    circle_of,
    discounted_by_rate,
    is_line,
    reward_function,
    space_to_solve_on,
)
from levytorch.policy.estimation import TAILS_LOST, DataValue, Estimation
from levytorch.spaces import Product
from levytorch.spaces.splines import check_n_basis
from levytorch.training.start import kept_range

# functions of V per coordinate, by the number of coordinates; their matrices are held for every block
MOST, DEFAULTS = {1: 401, 2: 21, 3: 9}, {1: 21, 2: 7, 3: 5}
METHODS = ("lstd", "hybrid", "phibe", "brownian", "model", "corrected")
DEFAULT = "corrected"


@discounted_by_rate
def value_from_data(
    transitions: Transitions,
    reward: Callable[[Tensor], Any] | float,
    beta: float,
    *,
    method: str = DEFAULT,
    recovery: Any = None,
    n_basis: int | None = None,
    period: float | Sequence[float] | None = 2 * math.pi,
    origin: float | Sequence[float] = 0.0,
    order: int = 1,
    CT: float | None = None,
    n_bootstrap: int = 200,
    seed: Any = 0,
    **options: Any,
) -> DataValue:
    """The value function of the dynamics behind the data, with or without a model.

    The state may be on a circle, on a line (`period=None`), or have two or three such coordinates (`period=` one entry
    per coordinate). On a line V is known on a window and constant beyond, as with `solve_value`: steps that end outside
    land on its ends. The smoothing is the one that best predicts left-out blocks of data.

    Args:
        transitions: the pairs.
        reward: a number, or a function of x.
        beta: the discount rate per unit of time.
        method: "lstd" (pairs alone), "phibe" (a differential equation from moments of displacements), "brownian" (a
            model without jumps), "model" (`solve_value` of the fitted law), "hybrid" (lstd, with the reward within a
            step and lost tails from the fitted law), or "corrected" (the model's V plus what the data say about its
            error).
        recovery: the model of the last three methods; None fits one.
        n_basis: functions of V, and of every coefficient of a model that is fitted; None takes 21, and 7 or 5 per
            coordinate in two or three dimensions.
        period, origin: of the circle, or one per coordinate; None for a line. Those of the recovery if there is one.
        order: of PhiBE, 1 or 2; the second takes three observations in a row.
        CT: larger displacements are left out of PhiBE's moments and of the Brownian fit; None takes half a period, or
            half the window.
        n_bootstrap: resamplings of blocks of trajectories for `V.std` (fewer for short data); 0 gives no errors.
            Methods with a model use a first-order equivalent.
        seed: of the resampling.
        options: those of `recover` for a model that is fitted, such as alpha, tail and law.

    Returns:
        A ValueFunction with `V.std(x)`, `V.name` (the method) and `V.describe()`.

    Example:
        >>> from levytorch import Dynamics, simulate
        >>> import torch
        >>> data = simulate(Dynamics.named("constant"), 2000, 40, 1 / 40, seed=0).transitions()
        >>> V = value_from_data(data, torch.cos, 1.0, method="lstd", n_basis=5)
        >>> V.name, bool(V.std(0.0) > 0)
        ('LSTD (no model)', True)
    """
    choice("method", method, METHODS)
    V = prepare(
        transitions, reward, beta, recovery, n_basis, period, origin, order, CT, n_bootstrap, seed, options
    ).value(method)
    if V.note == TAILS_LOST:
        warnings.warn(
            f"the data for {V.name} must be complete, found that large jumps were removed: V is biased; use "
            'method="corrected" with a recovery that corrects for them (tail=...).',
            LevytorchWarning,
            stacklevel=2,
        )
    return V


def prepare(
    transitions: Transitions,
    reward: Callable[[Tensor], Any] | float,
    beta: float,
    recovery: Any = None,
    n_basis: int | None = None,
    period: float | Sequence[float] | None = 2 * math.pi,
    origin: float | Sequence[float] = 0.0,
    order: int = 1,
    CT: float | None = None,
    n_bootstrap: int = 200,
    seed: Any = 0,
    options: Mapping[str, Any] | None = None,
) -> Estimation:
    """The arguments of `value_from_data`, checked once, for several methods on the same data."""
    if not isinstance(transitions, Transitions):
        raise InputError(
            f"transitions must be Transitions, found {type(transitions).__name__}; call .transitions() on Trajectories."
        )
    dim = transitions.dim
    if dim > 3:
        raise InputError(
            f"transitions must have at most three coordinates here, found {dim}; leave some out, or fit a model and "
            "use solve_value."
        )
    if getattr(recovery, "dim", transitions.dim) != transitions.dim:
        raise InputError(
            f"recovery must have as many coordinates as the transitions, {transitions.dim}, found {recovery.dim}; fit "
            "it to them."
        )
    if recovery is not None and options:
        raise InputError(f"options of a fit must be left out with a recovery, found {', '.join(options)}; remove them.")
    if getattr(recovery, "policy", None) is not None:
        raise InputError(
            "recovery must be of the dynamics behind the transitions, found one under a policy of its own; use "
            "solve_value."
        )
    n_basis = whole_number(
        "n_basis", DEFAULTS[dim] if n_basis is None else n_basis, 1, MOST[dim], "give the number of functions of V"
    )
    shared: dict[str, Any] = {
        "order": whole_number("order", order, 1, 2, "give the order of PhiBE"),
        "CT": None if CT is None else positive_number("CT", CT, "give the largest displacement that moments count"),
        "n_bootstrap": _replicas(n_bootstrap),
        "seed": seed_of(seed),
        "fit": dict(options or {}),
    }
    beta = check_beta(beta)
    r = reward_function(reward, (lambda x: x.shape[:-1]) if dim > 1 else (lambda x: x.shape))
    functions: Functions
    if dim > 1:
        space = _product_of(transitions, recovery, period, origin)
        check_periodic(r, [float(length or 0.0) for length in space.period], space.grid(12, 0.37))
        if space.repeats:
            functions = PlaneBasis(n_basis, space)
        else:
            check_n_basis(n_basis)
            functions = ProductBasis(n_basis, space)
            ends = [(-math.inf, math.inf) if part.repeats else part.ends for part in space.spaces]
            within = transitions.starting_in(ends)
            assert isinstance(within, Transitions)
            transitions = within
    elif period is None or (recovery is not None and is_line(recovery)):
        functions = _on_a_line(transitions, recovery, n_basis)
        kept = transitions.starting_in([functions.window])  # the pairs that start in it
        assert isinstance(kept, Transitions)
        transitions = kept
        if hasattr(reward, "check_covers"):
            reward.check_covers(*functions.window, "window")
    else:
        if recovery is not None:
            circle = circle_of(recovery)
            period, origin = circle.period, circle.origin
        functions = CircleBasis(n_basis, period, origin)  # type: ignore[arg-type]  # refuses what is no number
        if hasattr(reward, "check_covers"):  # a table, which may end before the cell does
            reward.check_covers(functions.origin, functions.origin + functions.period, "cell")
        check_periodic(r, (functions.period,), functions.grid(37))
    return Estimation(transitions, r, beta, functions, recovery, **shared)


def _product_of(transitions: Transitions, recovery: Any, period: Any, origin: Any) -> Product:
    """The space of the recovery; without one of the periods, and on a line of the range of the data."""
    if recovery is None:
        ends = [kept_range(transitions, axis) for axis in range(transitions.dim)]
        missing = dict.fromkeys(("b", "D_o", "D_f", "alpha"))
        at = SimpleNamespace(dim=transitions.dim, period=period, origin=origin, window=ends, **missing)
        recovery = at
    space = space_to_solve_on(recovery)
    assert isinstance(space, Product)
    return space


def _on_a_line(transitions: Transitions, recovery: Any, n_basis: int) -> LineBasis:
    """On the window of the recovery, or of the data."""
    if recovery is not None and not is_line(recovery):
        raise InputError(
            f"recovery must be of a state on a line where period is None, found one of period {recovery.period:g}; "
            "leave period out."
        )
    check_n_basis(n_basis)
    return LineBasis(n_basis, getattr(recovery, "support", None) or kept_range(transitions))


def _replicas(n_bootstrap: int) -> int:
    n = whole_number("n_bootstrap", n_bootstrap, 0, 1 << 20, "200 is the default")
    if n == 1:
        raise InputError(f"n_bootstrap must be 0 or at least 2, found {shown(n)}; a spread needs two.")
    return n
