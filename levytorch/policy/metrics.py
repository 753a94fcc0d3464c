"""How V is judged: relative L2 error and coverage (section 4.3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from levytorch.errors import InputError

Function = Callable[[Tensor], Tensor]


def relative_error(values: Any, reference: Any) -> float:
    """||values - reference|| / ||reference|| of arrays or tensors of one shape, on evenly spaced points.

    Infinite beside a reference that vanishes.
    """
    a, b = (torch.as_tensor(v, dtype=torch.float64) for v in (values, reference))
    size = float(b.norm())
    return math.inf if size == 0 else float((a - b).norm()) / size


def relative_l2(V: Function, reference: Function, low: float, high: float, n: int = 2000) -> float:
    """||V - reference|| / ||reference|| in L2(low, high), midpoint rule."""
    if not low < high:
        raise InputError(f"low must be below high, found {low!r} and {high!r}; give the ends of the interval in order.")
    x = low + (torch.arange(n, dtype=torch.float64) + 0.5) * ((high - low) / n)
    error = relative_error(V(x), reference(x))
    if math.isinf(error):
        raise InputError(
            "A relative error needs a reference that is not zero, found one that vanishes; compare absolute values."
        )
    return error


def coverage(values: Tensor, center: Tensor, half_width: Tensor) -> float:
    """Fraction of values within center +- half_width (section 4.3: empirical values within mean +- one standard
    deviation).
    """
    return float(((values - center).abs() <= half_width).to(torch.float64).mean())
