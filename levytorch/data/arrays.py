"""Arrays, tensors and lists that callers hand over, as points of trajectories (NumPy) and as pairs (torch).

Actions of pairs are labels, kept as numbers in one column beside the labels themselves; or numbers and vectors as they
are.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.convert import Array, Integers, choice, real_array, real_tensor, shown
from levytorch.data.options import NANOSECONDS
from levytorch.errors import InputError, LevytorchWarning

_ROWS = 20  # fewer say nothing about which way an array lies
_NEAR = 5  # as many times as close are neighbours in time
_LOOK_AT, _SIDE = 100_000, 300  # differences from which that is judged, and along a row at least
_PAIRS = 1 << 14  # looked at together
MOST = 64  # different actions: more are numbers on a scale, not labels
_WIDEST = 2  # numbers of a vector


def numeric(name: str, values: Any) -> Array:
    """values as a float64 array."""
    return real_array(name, values, "pass arrays of numbers")


def lengths_of(name: str, shape: tuple[int, ...]) -> Integers:
    """Points of each trajectory in an array of this shape; (n_time,) is one of them."""
    n_traj_and_time = (1, *shape) if len(shape) == 1 else shape
    if len(n_traj_and_time) not in (2, 3) or 0 in shape:
        raise InputError(
            f"{name} must have shape (n_traj, n_time) or (n_traj, n_time, d) and hold numbers, found {shape}; reshape "
            "it, or pass a list of trajectories."
        )
    return np.full(n_traj_and_time[0], n_traj_and_time[1], dtype=np.int64)


def flatten(name: str, x: Any) -> tuple[Array, Integers]:
    """All points in one array, (N,) or (N, d), and the number of points of each trajectory."""
    if _is_list(x):
        parts = [numeric(f"{name}[{k}]", part) for k, part in enumerate(x)]
        if len({part.shape[1:] for part in parts}) > 1 or any(part.ndim not in (1, 2) for part in parts):
            found = sorted({str(part.shape) for part in parts})[:3]
            raise InputError(
                f"{name} must be a list of (n_time,) or of (n_time, d) arrays with one d, found shapes "
                f"{', '.join(found)} mixed; give all trajectories the same columns."
            )
        flat, lengths = np.concatenate(parts), np.array([len(part) for part in parts], dtype=np.int64)
    else:
        array = numeric(name, x)
        lengths = lengths_of(name, array.shape)
        flat = np.ascontiguousarray(array).reshape(-1, *array.shape[2:])
    return (flat[:, 0] if flat.ndim == 2 and flat.shape[1] == 1 else flat), lengths


def match(name: str, values: Any, lengths: Integers, shared: bool = False) -> Array:
    """One number per point, flat; a single (n_time,) array serves all trajectories where `shared`."""
    if shared and not _is_list(values):
        array = numeric(name, values)
        if array.ndim == 1 and (lengths == len(array)).all():
            return np.tile(array, len(lengths))
    flat, found = flatten(name, values)
    if flat.ndim != 1 or len(found) != len(lengths) or (found != lengths).any():
        raise InputError(
            f"{name} must have one number per point of x ({len(lengths)} trajectories, {int(lengths.sum())} points), "
            f"found {len(found)} trajectories and {len(flat)} points; give it x's shape."
        )
    return flat


def warn_of_columns(points: Array, lengths: Integers, stacklevel: int) -> None:
    """Warn where the columns of an (n, m) array look like the trajectories.

    Points of one trajectory follow each other closely; those of two at the same time are as far apart as their noise,
    at least. Medians of some of the differences are compared, because jumps have no mean. First points are left out:
    trajectories may all start at the same one. So is a steady trend: all may move further than they spread.
    """
    if points.ndim > 1 or len(lengths) < _ROWS or lengths[0] < 2 or (lengths != lengths[0]).any():
        return
    grid = points.reshape(len(lengths), -1)
    rows, columns = (n - 1 for n in grid.shape)
    width = min(columns, max(_SIDE, _LOOK_AT // rows))
    row = np.linspace(0, rows - 1, min(rows, _LOOK_AT // width)).astype(np.int64)[:, None]
    column = np.linspace(1, columns, width).astype(np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        here = grid[row, column]
        along = here - grid[row, column - 1]
        across = float(np.median(np.abs(along - np.median(along))))
        down = float(np.median(np.abs(grid[row + 1, column] - here)))
    if _NEAR * down < across:
        warnings.warn(
            f"x of shape {grid.shape} should have a row per trajectory and a column per time, found rows that follow "
            "each other far more closely than columns; transpose it (x.T), pass one path in d dimensions as x[None] "
            "of shape (1, n_time, d), or pass a column of times as times=.",
            LevytorchWarning,
            stacklevel=stacklevel,
        )


# --------------------------------------------------------------------------------------------------------------- pairs


def row_selection(which: Any, n: int) -> Tensor:
    """A mask or row numbers as a tensor."""
    try:
        index = torch.as_tensor(which)
        integral = not (index.is_floating_point() or index.is_complex() or index.is_sparse or index.is_meta)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        integral = False
    if not integral or (index.dtype != torch.bool and index.ndim != 1):
        raise InputError(
            f"pairs must be selected by a mask, a slice or integers, found {shown(which)}; pass one of them."
        )
    if index.dtype == torch.bool and index.shape != (n,):
        raise InputError(f"a mask must have shape ({n},), found {tuple(index.shape)}; one entry per pair.")
    if index.dtype != torch.bool:
        index = index.to(torch.int64)
        if index.numel() and not (-n <= int(index.min()) and int(index.max()) < n):
            raise InputError(f"row numbers must lie below {n}, found {int(index.max())}; pass rows that exist.")
    return index


def integers(name: str, values: Any) -> Tensor:
    """Trajectory numbers as int64; 1.5 is not one."""
    numbers = floats(name, values)
    whole = numbers.to(torch.int64)
    if not bool((whole == numbers).all()):
        raise InputError(f"{name} must hold integers, found {numbers[whole != numbers][0].item()}; pass one per pair.")
    return whole


def floats(name: str, values: Any) -> Tensor:
    return real_tensor(name, values, "pass a tensor or an array of numbers").detach().cpu()


def finite_pairs(name: str, values: Tensor) -> None:
    if math.isfinite(float(values.numpy().sum())):  # NaN and infinity survive a sum; one pass, nothing allocated
        return
    for first in range(0, len(values), _PAIRS):
        finite = torch.isfinite(values[first : first + _PAIRS])
        if bool(finite.all()):
            continue
        row = first + int(torch.nonzero(~finite.reshape(len(finite), -1).all(1))[0])
        raise InputError(f"{name} must be finite, found {values[row].tolist()} at pair {row}; remove that pair.")


def steps(dt: Any, n: int) -> tuple[Tensor, bool]:
    """dt as (n,), and whether it is one number."""
    if dt is None:
        raise InputError("dt must be given, found None; pass the time between two observations, or one per pair.")
    dt = floats("dt", dt)
    if dt.ndim > 1 or (dt.ndim == 1 and len(dt) not in (1, n)):
        raise InputError(f"dt must be a number or have shape ({n},), found {tuple(dt.shape)}; pass one per pair.")
    low, high = float(dt.min()), float(dt.max())
    if not (low > 0 and math.isfinite(high)):
        raise InputError(f"dt must be positive and finite, found {low:g} to {high:g}; check the order of the times.")
    if low == high:
        return torch.full((1,), low, dtype=torch.float64).expand(n), True
    return dt, False


def _is_list(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and len(values) > 0 and all(hasattr(v, "__len__") for v in values)


def label(action: Any) -> tuple[Array, tuple[Any, ...]]:
    """The place of each action among the sorted labels, as float64 (a column like all others), and the labels.

    More than MOST different numbers are a continuous action: they are returned as they are, without labels. So are
    vectors, (n, 2).

    >>> label(["up", "down", "up"])
    (array([1., 0., 1.]), ('down', 'up'))
    """
    given = _array(action)
    if given.dtype == object and all(isinstance(a, str) for a in given.ravel()):
        given = given.astype(str)
    if given.ndim == 2:
        return _vectors(given), ()
    if given.dtype.kind not in "biufU":
        raise InputError(f"actions must be numbers or strings, found {shown(action)}; fill gaps or leave pairs out.")
    if given.dtype.kind == "f":
        if not np.isfinite(given).all():
            where = int(np.argmax(~np.isfinite(given.ravel())))
            raise InputError(
                f"actions must have no gaps, found {given.ravel()[where]} at {where}; fill it, or leave that pair out."
            )
        if (given == np.round(given)).all() and (np.abs(given) < 2**53).all():
            given = given.astype(np.int64)  # labels of a numeric column: 1, not 1.0
    labels, codes = np.unique(given, return_inverse=True)
    if len(labels) > MOST:
        if given.dtype.kind == "U":
            raise InputError(f"actions must be at most {MOST} different names, found {len(labels)}; group them.")
        return given.astype(np.float64), ()
    return codes.reshape(given.shape).astype(np.float64), tuple(labels.tolist())


def _array(given: Any) -> NDArray[Any]:
    """What a user has as an array; tensors that have no numbers, and lists of different lengths, are refused."""
    try:
        if isinstance(given, Tensor):
            given = given.detach().cpu()
            return (given.double() if given.dtype in (torch.bfloat16, torch.float16) else given).numpy()
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"action must be an array or a list of numbers or names, found {shown(given)} ({type(error).__name__}); "
            "give one entry per pair."
        ) from None


def _vectors(given: NDArray[Any]) -> Array:
    """Actions of several numbers, (n, m)."""
    if given.shape[1] > _WIDEST or given.dtype.kind not in "biuf":
        raise InputError(
            f"vectors of actions must be {_WIDEST} numbers each, found {given.dtype} of shape {given.shape}; give "
            "such vectors, or labels."
        )
    vectors = given.astype(np.float64)
    if not np.isfinite(vectors).all():
        row = int(np.argmax(~np.isfinite(vectors).all(1)))
        raise InputError(
            f"actions must have no gaps, found {vectors[row].tolist()} at {row}; fill it, or leave it out."
        )
    return vectors[:, 0] if vectors.shape[1] == 1 else vectors


def labels_of(action: Array, actions: Sequence[Any]) -> NDArray[Any]:
    """The inverse of `label`."""
    return np.asarray(actions)[action.astype(np.int64)] if len(actions) else action


def per_point(action: Any, lengths: Integers) -> tuple[Array, tuple[Any, ...]]:
    """`label` of one action per point (that of the last point of a trajectory is not used), from one per point or pair.

    action: (n_traj, n_time) or (n_traj, n_time - 1), or a list of such rows; (n_time,) for one trajectory. Vectors
    have an axis of their own at the end, and one trajectory of them is action[None].
    """
    rows = action if isinstance(action, list | tuple) and len(action) and np.ndim(action[0]) else None
    if rows is None:
        whole = _array(action)
        rows = [whole] if whole.ndim < 2 else list(whole)
    parts = [_array(row) for row in rows]
    if len(parts) != len(lengths):
        raise InputError(f"action must have {len(lengths)} trajectories like x, found {len(parts)}; give one row each.")
    full = [_padded(part, int(n), k) for k, (part, n) in enumerate(zip(parts, lengths))]
    if len({part.shape[1:] for part in full}) > 1:
        raise InputError(
            "action must have one shape in all trajectories, found several; give every trajectory the same."
        )
    return label(np.concatenate(full))


def rewards_per_point(reward: Any, lengths: Integers) -> Any:
    """Rewards of pairs as rewards of points, the last of a trajectory repeated; those of points as they are.

    Of pairs: (n_traj, n_time - 1), (n_time - 1,) for one trajectory, or a list of (n_time - 1,) arrays.
    """
    if _is_list(reward):
        rows = [numeric(f"reward[{k}]", row) for k, row in enumerate(reward)]
    else:
        array = numeric("reward", reward)
        rows = list(array) if array.ndim == 2 else [array]
    if [len(row) for row in rows if row.ndim == 1] != (lengths - 1).tolist():
        return reward
    return [np.append(row, row[-1]) for row in rows]


def instants(times: Any, time_unit: str | None) -> Any:
    """Times that are dates as numbers in `time_unit`, from the first of all on; numbers as they are."""
    if times is None:
        if time_unit is not None:
            raise InputError(f"time_unit must come with times that are dates, found {time_unit!r} alone; remove it.")
        return None
    rows = [_dates(row) for row in times] if _is_list(times) else [_dates(times)]
    if all(row is None for row in rows):
        if time_unit is not None:
            raise InputError(f"times must be dates where time_unit is given, found numbers; leave {time_unit!r} out.")
        return times
    if any(row is None for row in rows):
        raise InputError("times must be dates of all trajectories or of none, found both; convert them.")
    found: list[NDArray[Any]] = [row for row in rows if row is not None]
    if any(bool(np.isnat(row).any()) for row in found):
        raise InputError("times must be dates without gaps, found an empty one (NaT); remove those points.")
    if time_unit is None:
        raise InputError(
            f"time_unit must be given for dates, found None; pass the unit of dt, one of {', '.join(NANOSECONDS)}."
        )
    choice("time_unit", time_unit, tuple(NANOSECONDS))
    first = min(row.min() for row in found)
    numbers = [(row - first).astype(np.int64) / NANOSECONDS[time_unit] for row in found]
    return numbers if _is_list(times) else numbers[0]


def _dates(values: Any) -> NDArray[Any] | None:
    """Dates as datetime64[ns] in UTC; None where these are not dates."""
    if hasattr(values, "tz_convert") and getattr(values, "tz", None) is not None:  # an index of pandas
        values = values.tz_convert("UTC").tz_localize(None)
    if isinstance(values, Tensor):
        return None
    first = values[0] if isinstance(values, list | tuple) and len(values) else None
    if isinstance(first, datetime):
        aware = [one.astimezone(UTC).replace(tzinfo=None) if one.tzinfo else one for one in values]
        return np.array(aware, dtype="datetime64[ns]")
    if isinstance(first, list | tuple):
        return None
    array = np.asarray(values)
    if array.dtype.kind == "O" and array.size and isinstance(array.reshape(-1)[0], datetime):
        return _dates(list(array)) if array.ndim == 1 else None
    return array.astype("datetime64[ns]") if array.dtype.kind == "M" else None


def _padded(part: NDArray[Any], n: int, k: int) -> NDArray[Any]:
    if part.ndim in (1, 2) and len(part) in (n, n - 1):
        return part if len(part) == n else np.concatenate([part, part[-1:]])
    raise InputError(
        f"action of trajectory {k} must have {n} entries (one per point) or {n - 1} (one per pair), found shape "
        f"{part.shape}; give one label each."
    )
