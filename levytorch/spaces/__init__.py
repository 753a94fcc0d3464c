"""State spaces: where a state lives, which functions it has, and what V is a sum of there.

`Circle(period)`, `Interval(low, high)` and `Product((space, ...))` answer what depends on the space: reducing states,
even grids, bins, basis functions and discretisation. Nobody else asks whether there is a period.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from levytorch.spaces.circle import Circle
from levytorch.spaces.interval import Interval
from levytorch.spaces.product import Product

StateSpace = Circle | Interval | Product
LINE = (-math.inf, math.inf)
_MOST_COORDINATES = 64

__all__ = ["Circle", "Interval", "Product", "StateSpace", "coordinates", "space_from", "space_of"]


def space_of(system: Any) -> StateSpace:
    """The space of a Dynamics, a Recovery or a head, which say it by dim, period, origin and window.

    >>> from types import SimpleNamespace
    >>> space_of(SimpleNamespace(period=None, window=(0.0, 1.0)))
    Interval(low=0.0, high=1.0)
    """
    dim = getattr(system, "dim", 1)
    period, origin = getattr(system, "period", 2 * math.pi), getattr(system, "origin", 0.0)
    periods = [math.inf if p is None else float(p) for p in _per_coordinate(period, dim)]
    origins = [float(o) for o in _per_coordinate(origin, dim)]
    near = getattr(system, "support", None) or getattr(system, "window", None)
    windows = [LINE] * dim if near is None else np.asarray(near, dtype=np.float64).reshape(dim, 2).tolist()
    spaces = tuple(
        Interval(*window) if math.isinf(p) else Circle(p, o) for p, o, window in zip(periods, origins, windows)
    )
    return spaces[0] if dim == 1 else Product(spaces)


def _per_coordinate(value: Any, dim: int) -> list[Any]:
    return list(value) if isinstance(value, (tuple, list, np.ndarray)) and len(value) == dim else [value] * dim


def coordinates(space: StateSpace) -> tuple[Circle | Interval, ...]:
    """The spaces of the coordinates."""
    return space.spaces if isinstance(space, Product) else (space,)


def space_from(config: Any) -> StateSpace | None:
    """The space that `config()` of one has described; None if it describes none."""
    if not isinstance(config, Mapping):
        return None
    kind, numbers = config.get("kind"), {key: value for key, value in config.items() if key != "kind"}
    if kind == "product":
        parts = numbers.get("spaces")
        spaces = [space_from(part) for part in parts] if isinstance(parts, list) else []
        good = 1 < len(spaces) <= _MOST_COORDINATES and all(isinstance(space, (Circle, Interval)) for space in spaces)
        return Product(tuple(spaces)) if good else None  # type: ignore[arg-type]
    if not all(isinstance(value, float) and math.isfinite(value) for value in numbers.values()):
        return None
    if kind == "circle" and set(numbers) == {"period", "origin"} and numbers["period"] > 0:
        return Circle(**numbers)
    if kind == "interval" and set(numbers) == {"low", "high"} and numbers["low"] < numbers["high"]:
        return Interval(**numbers)
    return None
