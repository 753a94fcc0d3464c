"""Checks of what callers hand to policy evaluation, each with a sentence that says what to do."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.errors import InputError
from levytorch.policy.basis import FourierBasis


def check_beta(beta: float) -> float:
    try:
        value = float(beta)
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"beta must be a positive number, but is {beta!r}; give the discount rate per unit of time.")
    return value


def reward_function(reward: Callable[[Tensor], Any] | float) -> Callable[[Tensor], Tensor]:
    """The reward as a function float64 tensor -> float64 tensor of the same shape that refuses values that are not
    finite.
    """
    if not callable(reward) and not _is_number(reward):
        raise InputError(
            f"reward must be a function of x or a number, but is a {type(reward).__name__}; for samples use "
            "rewards.Tabulated."
        )

    def r(x: Tensor) -> Tensor:
        given = reward(x) if callable(reward) else float(reward)
        try:
            value = torch.as_tensor(given, dtype=torch.float64).detach()
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                f"reward(x) must be numbers, but is a {type(given).__name__}; return one value per point."
            ) from None
        if value.ndim > 0 and value.shape != x.shape:
            raise InputError(
                f"reward(x) must have the shape of x, {tuple(x.shape)}, but has {tuple(value.shape)}; return one "
                "value per point."
            )
        value = value.expand(x.shape)
        if not bool(torch.isfinite(value).all()):
            bad = float(x[~torch.isfinite(value)].reshape(-1)[0])
            raise InputError(f"The reward must be finite, but is not at x = {bad:.6g}; check the reward function.")
        return value

    return r


def _is_number(value: Any) -> bool:
    """A Python or NumPy number, or an array or tensor of no dimension."""
    return isinstance(value, (int, float, np.number)) or (isinstance(value, Tensor | np.ndarray) and value.ndim == 0)


def check_window(window: Sequence[float], period: float, support: tuple[float, float] | None) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in window)
    except (TypeError, ValueError):
        raise InputError(
            f"window must be two numbers (low, high), but is {window!r}; give the ends of the interval."
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
