"""What callers hand to policy evaluation, checked once: the dynamics, the reward, beta, modes, the window."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import answer_of, check_finite, positive_number, real_array, real_tensor, shown, whole_number
from levytorch.errors import InputError
from levytorch.law.jumps import Jumps, jumps_in
from levytorch.spaces import Circle, Interval, Product, StateSpace, coordinates, space_of
from levytorch.spaces.basis import MOST_MODES

Reward = Callable[[Tensor], Tensor]
P = ParamSpec("P")
T = TypeVar("T")


class Coefficients(NamedTuple):
    """b, D_o, D_f and alpha at some states, and the jumps that D_f and alpha belong to."""

    b: Tensor
    D_o: Tensor
    D_f: Tensor
    alpha: Tensor
    jumps: Jumps


def space_to_solve_on(dynamics: Any) -> StateSpace:
    """The space of a Dynamics or Recovery; refuses those on which there is no V."""
    missing = [name for name in ("b", "D_o", "D_f", "alpha") if not hasattr(dynamics, name)]
    if missing:
        raise InputError(
            f"the system must be a Dynamics or a Recovery, found a {type(dynamics).__name__} without "
            f"{', '.join(missing)}; build one with Dynamics(...) or recover(...)."
        )
    space, period = space_of(dynamics), getattr(dynamics, "period", 2 * math.pi)
    for circle in coordinates(space):
        if isinstance(circle, Circle) and not circle.period > 0:
            raise InputError(f"the dynamics must have a positive period, found {period!r}; set period= in it.")
    return space


def circle_of(dynamics: Any) -> Circle:
    """The circle of a one-dimensional Dynamics or Recovery; refuses other spaces."""
    space = space_to_solve_on(dynamics)
    if isinstance(space, Product):
        raise InputError(f"the dynamics must have dim = 1 here, found dim = {space.dim}; use solve_value.")
    if not isinstance(space, Circle):
        raise InputError("the dynamics must have a positive period, found None; set period= in it.")
    return space


def torus_of(dynamics: Any) -> Product:
    """The torus of a Dynamics or Recovery of several coordinates; refuses other spaces."""
    space = space_to_solve_on(dynamics)
    if not (isinstance(space, Product) and space.repeats):
        raise InputError(
            f"period must be positive and finite in both coordinates, found {getattr(dynamics, 'period', None)}; give "
            "one number, or one per coordinate."
        )
    return space


def is_line(dynamics: Any) -> bool:
    """Whether the state of a Dynamics or a Recovery lies on a line."""
    return isinstance(space_of(dynamics), Interval)


def coefficients_at(dynamics: Any, x: Tensor, dim: int = 1, *, matrices: bool = False) -> Coefficients:
    """b, D_o, D_f, alpha at x ([...], or [..., dim]) without gradient; alpha is 0-d when it is constant.

    matrices: whether D_o may be [..., dim, dim]; refused otherwise.
    """
    shape = x.shape if dim == 1 else x.shape[:-1]
    with torch.no_grad():
        D_o = torch.as_tensor(dynamics.D_o(x) if callable(dynamics.D_o) else dynamics.D_o, dtype=torch.float64)
        matrix = dim > 1 and D_o.shape[-2:] == (dim, dim) and D_o.dim() != len(shape)
        if matrix and not matrices:
            raise InputError(
                "D_o must be a number at every state here, found matrices; use solve_value, or fit with "
                'noise="isotropic".'
            )
        full = torch.Size((*shape, dim, dim)) if matrix else shape
        given = (("b", dynamics.b, x.shape), ("D_o", D_o, full), ("D_f", dynamics.D_f, shape))
        b, D_o, D_f = (_values(value, x, size, name) for name, value, size in given)
        if callable(dynamics.alpha):
            alpha = _values(getattr(dynamics, "alpha_at", dynamics.alpha), x, shape, "alpha")
        else:
            alpha = torch.as_tensor(float(dynamics.alpha), dtype=torch.float64)
    for name, value in (("D_o", D_o.diagonal(dim1=-2, dim2=-1) if matrix else D_o), ("D_f", D_f)):
        low = float(value.min())
        if low < 0:
            raise InputError(f"{name} must not be negative, found {low:.3g} on the cell; check the coefficients.")
    jumps = jumps_in(dynamics)
    if not bool(jumps.holds(alpha).all()):
        raise InputError(f"alpha must lie in (0, 1], found {float(alpha.min()):.3g}; check the dynamics.")
    return Coefficients(b, D_o, D_f, alpha, jumps)


def _values(f: Any, x: Tensor, shape: torch.Size, name: str) -> Tensor:
    value = torch.as_tensor(f(x) if callable(f) else f, dtype=torch.float64).detach()
    try:
        value = value.expand(shape)
    except RuntimeError:
        raise InputError(
            f"{name}(x) must have the shape {tuple(shape)}, found {tuple(value.shape)}; return one value per point."
        ) from None
    check_finite(f"{name}(x)", value, x, "check the coefficients")
    return value


def check_beta(beta: float) -> float:
    return positive_number("beta", beta, "give the discount rate per unit of time")


def check_modes(name: str, n_modes: int) -> int:
    return whole_number(name, n_modes, 1, MOST_MODES, "give the number of Fourier modes")


def reward_function(
    reward: Callable[[Tensor], Any] | float, shape: Callable[[Tensor], torch.Size] = lambda x: x.shape
) -> Reward:
    """The reward as a function float64 tensor -> float64 tensor of the points' shape that refuses values that are not
    finite.
    """
    number: float | None = None
    if not callable(reward):
        remedy = "give a function of x or a number (for samples use rewards.Tabulated)"
        array = real_array("reward", reward, remedy)
        if array.ndim or not np.isfinite(array):
            raise InputError(f"reward must be a function of x or a number, found {shown(reward)}; {remedy}.")
        number = float(array)

    def r(x: Tensor) -> Tensor:
        given = answer_of("reward", reward, x) if callable(reward) else number
        value = real_tensor("reward(x)", given, "return one value per point").detach()
        if value.ndim > 0 and value.shape != shape(x):
            raise InputError(
                f"reward(x) must have the shape of x, {tuple(shape(x))}, found {tuple(value.shape)}; return one value "
                "per point."
            )
        value = value.expand(shape(x))
        check_finite("reward(x)", value, x, "check the reward function")
        return value

    return r


def check_window(window: Sequence[float], period: float, support: tuple[float, float] | None) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in real_array("window", window))
    except (TypeError, ValueError):
        raise InputError(
            f"window must be two numbers (low, high), found {shown(window)}; give the ends of the interval."
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(
            f"window must be (low, high) with low < high, found ({low:g}, {high:g}); give the ends in order."
        )
    if high - low > period * (1 + 1e-9):
        raise InputError(
            f"window must fit in one period of {period:g}, found ({low:g}, {high:g}), {high - low:g} long; shorten "
            "it or leave it out."
        )
    if support is not None:
        (first, last), slack = support, 1e-9 * (support[1] - support[0])
        if low < first - slack or high > last + slack:
            raise InputError(
                f"window must lie within the data, [{first:g}, {last:g}], found ({low:g}, {high:g}); "
                "choose it inside that range."
            )
    return low, high


def check_periodic(r: Reward, period: Sequence[float], x: Tensor) -> None:
    """Refuse a reward that changes over one period of a coordinate; x: points in the cell, [...] or [..., d]."""
    here = r(x)
    for axis, length in enumerate(period):
        there = x + length if len(period) == 1 else x + length * torch.eye(len(period), dtype=x.dtype)[axis]
        gap = float((here - r(there)).abs().max())
        if gap > 1e-6 * max(float(here.abs().max()), 1e-300):
            where = "" if len(period) == 1 else f" in coordinate {axis}"
            remedy = ", or solve on a window" if len(period) == 1 else ""
            raise InputError(
                f"the reward must have the cell's period {length:g}{where}, found a change by {gap:.3g} over one; "
                f"make it periodic{remedy}."
            )


def discounted_by_rate(function: Callable[P, T]) -> Callable[P, T]:
    """For functions that take `beta`: refuse gamma, the discount factor of reinforcement learning, with a remedy."""

    @wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        if "gamma" in options:
            raise InputError(
                f"beta must be given, the discount rate per unit of time, found gamma = {shown(options['gamma'])}; "
                "for a discount factor gamma per step pass beta=-math.log(gamma) / dt."
            )
        return function(*args, **options)

    return checked
