"""Checks of what callers hand to policy evaluation, each with a sentence that says what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients.basis import MOST_MODES, FourierBasis
from levytorch.convert import real_array, real_number, real_tensor, shown, whole_number
from levytorch.errors import InputError, LevytorchError


def check_beta(beta: float) -> float:
    try:
        value = real_number("beta", beta)
    except InputError:
        value = math.nan
    if not value > 0:
        raise InputError(
            f"beta must be a positive number, but is {shown(beta)}; give the discount rate per unit of time."
        )
    return value


def check_tolerance(tolerance: float) -> float:
    value = real_number("tolerance", tolerance, "give the relative change of V to stop at, such as 1e-6")
    if not value > 0:
        raise InputError(f"tolerance must be a positive number, but is {value!r}; 1e-6 is the default.")
    return value


def check_modes(name: str, n_modes: int, least: int = 1) -> int:
    return whole_number(name, n_modes, least, MOST_MODES, "give the number of Fourier modes")


def reward_function(
    reward: Callable[[Tensor], Any] | float, shape: Callable[[Tensor], torch.Size] = lambda x: x.shape
) -> Callable[[Tensor], Tensor]:
    """The reward as a function float64 tensor -> float64 tensor of the points' shape that refuses values that are not
    finite.
    """
    number: float | None = None
    if not callable(reward):
        remedy = "give a function of x or a number (for samples use rewards.Tabulated)"
        array = real_array("reward", reward, remedy)
        if array.ndim or not np.isfinite(array):
            raise InputError(f"reward must be a function of x or a number, but is {shown(reward)}; {remedy}.")
        number = float(array)

    def r(x: Tensor) -> Tensor:
        given = _answer(reward, x) if callable(reward) else number
        value = real_tensor("reward(x)", given, "return one value per point").detach()
        if value.ndim > 0 and value.shape != shape(x):
            raise InputError(
                f"reward(x) must have the shape of x, {tuple(shape(x))}, but has {tuple(value.shape)}; return one "
                "value per point."
            )
        value = value.expand(shape(x))
        if not bool(torch.isfinite(value).all()):
            bad = x[~torch.isfinite(value)][0].tolist()
            raise InputError(f"The reward must be finite, but is not at x = {bad}; check the reward function.")
        return value

    return r


def _answer(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    """What the caller's function says; whatever goes wrong in it is told."""
    try:
        return function(x)
    except LevytorchError:
        raise
    except Exception as error:  # anything may happen in a function that someone else wrote
        raise InputError(
            f"reward(x) must be numbers for a tensor x, but raised {type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}; mend the function."
        ) from error


def check_window(window: Sequence[float], period: float, support: tuple[float, float] | None) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in real_array("window", window))
    except (TypeError, ValueError):
        raise InputError(
            f"window must be two numbers (low, high), but is {shown(window)}; give the ends of the interval."
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(
            f"window must be (low, high) with low < high, but is ({low:g}, {high:g}); give the ends in order."
        )
    if high - low > period * (1 + 1e-9):
        raise InputError(
            f"window must fit in one period of {period:g}, but ({low:g}, {high:g}) is {high - low:g} long; shorten "
            "it or leave it out."
        )
    if support is not None:
        check_within((low, high), support)
    return low, high


def check_within(window: Sequence[float], support: Sequence[float]) -> None:
    """Refuse a window that reaches beyond the data."""
    (low, high), (first, last) = window, support
    slack = 1e-9 * (last - first)
    if low < first - slack or high > last + slack:
        raise InputError(
            f"window must lie within the data, [{first:g}, {last:g}], but is ({low:g}, {high:g}); "
            "choose it inside that range."
        )


def check_periodic(r: Callable[[Tensor], Tensor], period: float, origin: float) -> None:
    x = FourierBasis(1, period, origin).grid(37)
    here, there = r(x), r(x + period)
    gap = float((here - there).abs().max())
    if gap > 1e-6 * max(float(here.abs().max()), 1e-300):
        raise InputError(
            f"The reward must have the cell's period {period:g}, but changes by {gap:.3g} over one; "
            "make it periodic, or solve on a window."
        )
