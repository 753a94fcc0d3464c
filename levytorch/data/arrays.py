"""Arrays, tensors and lists as flat float64 arrays: what Trajectories.from_arrays accepts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levytorch.convert import real_array, real_number, shown
from levytorch.errors import InputError

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


def numeric(name: str, values: Any) -> Array:
    """values as a float64 array."""
    return real_array(name, values, "pass arrays of numbers (of dates: (times - times[0]) / np.timedelta64(1, 'h'))")


def positive(name: str, value: Any, remedy: str = "pass a length of time") -> float:
    """value as a positive float."""
    try:
        number = real_number(name, value)
    except InputError:
        number = math.nan
    if not number > 0:
        raise InputError(f"{name} must be a positive number, found {shown(value)}: {remedy}.")
    return number


def flatten(name: str, x: Any) -> tuple[Array, Counts]:
    """All points in one array, (N,) or (N, d), and the number of points of each trajectory."""
    if _is_list(x):
        parts = [numeric(f"{name}[{k}]", part) for k, part in enumerate(x)]
        if len({part.shape[1:] for part in parts}) > 1 or any(part.ndim not in (1, 2) for part in parts):
            found = sorted({str(part.shape) for part in parts})[:3]
            raise InputError(
                f"{name} must be a list of (n_time,) or of (n_time, d) arrays with one d, found shapes "
                f"{', '.join(found)} mixed: bring all trajectories to the same columns."
            )
        flat, lengths = np.concatenate(parts), np.array([len(part) for part in parts], dtype=np.int64)
    else:
        array = numeric(name, x)
        if array.ndim == 1:
            array = array[None]
        if array.ndim not in (2, 3):
            raise InputError(
                f"{name} must have shape (n_traj, n_time) or (n_traj, n_time, d), found {array.shape}: reshape it, or "
                "pass a list of trajectories."
            )
        lengths = np.full(array.shape[0], array.shape[1], dtype=np.int64)
        flat = np.ascontiguousarray(array).reshape(-1, *array.shape[2:])
    if len(flat) == 0:
        raise InputError(f"{name} must hold at least one trajectory, found an empty array: check what was loaded.")
    return (flat[:, 0] if flat.ndim == 2 and flat.shape[1] == 1 else flat), lengths


def match(name: str, values: Any, lengths: Counts, shared: bool = False) -> Array:
    """One number per point, flat; a single (n_time,) array serves all trajectories where `shared`."""
    if shared and not _is_list(values):
        array = numeric(name, values)
        if array.ndim == 1 and (lengths == len(array)).all():
            return np.tile(array, len(lengths))
    flat, found = flatten(name, values)
    if flat.ndim != 1 or len(found) != len(lengths) or (found != lengths).any():
        raise InputError(
            f"{name} must have one number per point of x ({len(lengths)} trajectories, {int(lengths.sum())} points), "
            f"found {len(found)} trajectories and {len(flat)} points: give it x's shape."
        )
    return flat


def _is_list(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and len(values) > 0 and all(hasattr(v, "__len__") for v in values)
