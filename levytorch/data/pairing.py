"""Trajectories -> transitions: which neighbours make a usable pair."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from levytorch.data.transitions import Transitions
from levytorch.errors import InputError

if TYPE_CHECKING:
    from levytorch.data.trajectories import Trajectories

Array = NDArray[np.float64]
RESOLUTION = 1e-3  # largest spacing of x, in units of the central half-width of dx, that still resolves dx
_SAME_DT = 1e-6  # relative spread of dt below which sampling is called even
_LOOK_AT = 1_000_000  # pairs from which the width of dx is estimated


def pair_up(t: Trajectories, max_dt: float | None) -> Transitions:
    """All neighbours but those across a gap and those that float64 cannot resolve; both are counted."""
    counts = t.lengths - 1
    picked: NDArray[np.bool_] | None = None
    if (counts == counts[0]).all():
        grid = t.to_array()
        flat = (-1, *t.x.shape[1:])
        x, dx = _flat(grid[:, :-1], flat), (grid[:, 1:] - grid[:, :-1]).reshape(flat)
    else:
        picked = np.ones(len(t.x) - 1, dtype=bool)
        picked[t.offsets[1:-1] - 1] = False  # the last of one trajectory and the first of the next
        x, dx = t.x[:-1][picked], np.diff(t.x, axis=0)[picked]
    if not (np.isfinite(dx.min()) and np.isfinite(dx.max())):  # without a temporary of the size of the data
        row = int(np.argwhere(~np.isfinite(dx))[0, 0])
        raise InputError(
            f"the steps of x must stay within float64, found an infinite one from x = {x[row].tolist()}: rescale x."
        )
    dropped = dict(t.dropped)
    usable: NDArray[np.bool_] | None = None
    dt: float | Array
    if t.times is None:
        assert t.dt is not None
        dt = t.dt
        if max_dt is not None and dt > max_dt:
            raise InputError(f"max_dt must not be below dt, found max_dt = {max_dt:g} and dt = {dt:g}: raise it.")
    else:
        steps = np.diff(t.times) if picked is not None else np.diff(t.times.reshape(len(t), -1), axis=1)
        dt = steps[picked] if picked is not None else steps.reshape(-1)
        if max_dt is not None:
            usable = ~is_gap(dt, max_dt)
            dropped["across a gap"] = int((~usable).sum())
            _some(usable, dropped)
    limit = float_limit(dx if usable is None else dx[usable])
    if math.isfinite(limit) and max(-float(x.min()), float(x.max())) >= limit:
        near: NDArray[np.bool_] = np.abs(x.reshape(len(x), -1)).max(axis=1) < limit
        dropped["beyond float resolution"] = int((~near if usable is None else usable & ~near).sum())
        usable = near if usable is None else usable & near
        _some(usable, dropped)
    if t.times is not None:
        assert isinstance(dt, np.ndarray)
        single = single_dt(dt if usable is None else dt[usable], float(np.abs(t.times).max()))
        dt = dt if single is None else single
    reward = None
    if t.reward is not None:
        starts = t.reward[:-1][picked] if picked is not None else _flat(t.reward.reshape(len(t), -1)[:, :-1], (-1,))
        reward = torch.from_numpy(starts)
    pairs = Transitions._build(
        torch.from_numpy(x),
        torch.from_numpy(dx),
        dt if isinstance(dt, float) else torch.from_numpy(dt),
        isinstance(dt, float),
        counts=counts,
        reward=reward,
        dropped={reason: count for reason, count in dropped.items() if count},
    )
    # what is left out here was never a usable pair, so mu is that of the pairs that remain
    return pairs if usable is None else pairs._take(torch.from_numpy(usable), {}, keep_mu=False)


def is_gap(dt: Array, max_dt: float | None) -> NDArray[np.bool_]:
    """Which steps are longer than max_dt; differences of times carry rounding errors, which make no gap."""
    return ~(dt <= (math.inf if max_dt is None else max_dt * (1 + 1e-9)))


def first_points(t: Trajectories, pairs: Transitions) -> NDArray[np.int64]:
    """The number of the point, among all points of the trajectories, at which each of their pairs begins."""
    first = np.ones(len(t.x), dtype=bool)
    first[t.offsets[1:] - 1] = False
    numbers = np.flatnonzero(first)
    if t.times is not None:
        numbers = numbers[~is_gap(t.times[numbers + 1] - t.times[numbers], t.max_dt)]
    if len(numbers) != len(pairs):
        raise InputError(
            f"{len(numbers)} pairs were expected in these trajectories, found {len(pairs)}: some lie beyond float "
            "resolution; leave those trajectories out."
        )
    return numbers


def float_limit(dx: Array) -> float:
    """|x| from which neighbouring floats are further apart than RESOLUTION times half the interquartile range of dx.

    Where half of all moves are zero (prices), the median of the others stands in for the range. Infinite if nothing
    moves.
    """
    some = dx[:: max(1, len(dx) // _LOOK_AT)].reshape(-1, 1 if dx.ndim == 1 else dx.shape[1])
    widths = []
    for column in some.T:
        low, high = np.quantile(column, [0.25, 0.75])
        moves = np.abs(column[column != 0])
        widths.append(float((high - low) / 2 or (np.median(moves) if len(moves) else 0.0)))
    width = min(widths)
    if width == 0.0:
        return math.inf
    # spacing(x) = 2^(e - 52) for 2^e <= |x| < 2^(e + 1)
    return 2.0 ** min(1023, math.floor(math.log2(RESOLUTION * width)) + 1 + 52)


def single_dt(dt: Array, latest: float) -> float | None:
    """The dt that all pairs share within rounding of the times, or None.

    Times like 0.05 k carry rounding errors; their mean is rounded to 12 digits where that stays within these errors.
    """
    low, high = float(dt.min()), float(dt.max())
    rounding = 4 * float(np.spacing(latest))
    if high - low > max(_SAME_DT * low, rounding):
        return None
    mean = float(dt.mean())
    rounded = float(f"{mean:.12g}")
    return rounded if abs(rounded - mean) <= rounding else mean


def _some(usable: NDArray[np.bool_], dropped: dict[str, int]) -> None:
    if not usable.any():
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise InputError(
            f"at least one pair must remain, found none of {len(usable)} ({reasons}): raise max_dt, or check the data."
        )


def _flat(values: Array, shape: tuple[int, ...]) -> Array:
    return np.ascontiguousarray(values).reshape(shape)
