"""Trajectories: observed paths of one or many lengths, evenly or unevenly sampled, in d >= 1 dimensions.

All points lie in one flat array, trajectory after trajectory, so a single long price series and 400,000 short paths are
the same thing.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from levytorch.data.transitions import Transitions
from levytorch.errors import InputError, LevytorchWarning

Array = NDArray[np.float64]
RESOLUTION = 1e-3  # largest spacing of x, in units of the central half-width of dx, that still resolves dx
_SAME_DT = 1e-6  # relative spread of dt below which sampling is called even


class Trajectories:
    """Paths, made by `from_arrays`, `from_file` or `levytorch.simulate`.

    Attributes:
        x: all points, (N,) or (N, d).
        offsets: (n + 1,) where each trajectory begins in x, and N.
        dt: the time between any two neighbours, or None when `times` has it.
        times: (N,) or None.
        reward: (N,) reward logged at each point, or None.
        ids: the name of each trajectory, or None.
        max_dt: pairs further apart than this are gaps, not transitions; None: no limit.
        dropped: rows that were left out while reading, by reason.
    """

    def __init__(
        self,
        x: Array,
        offsets: NDArray[np.int64],
        *,
        dt: float | None = None,
        times: Array | None = None,
        reward: Array | None = None,
        ids: Sequence[Any] | None = None,
        max_dt: float | None = None,
        dropped: Mapping[str, int] | None = None,
    ) -> None:
        self.x, self.offsets, self.times, self.reward = x, offsets, times, reward
        self.dt, self.ids, self.max_dt = dt, None if ids is None else tuple(ids), max_dt
        self.dropped = dict(dropped or {})

    # ----------------------------------------------------------------------------------------------------------- making

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        dt: float | None = None,
        *,
        times: Any = None,
        reward: Any = None,
        ids: Sequence[Any] | None = None,
        max_dt: float | None = None,
    ) -> Trajectories:
        """From arrays or tensors.

        Args:
            x: (n_traj, n_time) or (n_traj, n_time, d); (n_time,) is one trajectory; a list of (n_time,) or (n_time, d)
                arrays holds trajectories of different lengths.
            dt: the time between any two neighbours; or
            times: (n_time,) for all trajectories, or (n_traj, n_time), or a list like x; strictly increasing.
            reward: one number per point, shaped like x without its d.
            ids: a name per trajectory.
            max_dt: pairs further apart are gaps: left out of transitions() and counted.

        >>> Trajectories.from_arrays([[0.0, 1.0, 4.0]], dt=0.5).transitions().dx
        tensor([1., 3.], dtype=torch.float64)
        """
        paths, lengths = _flatten("x", x)
        if dt is None and times is None:
            raise InputError(
                "dt or times must be given, found neither: pass the time between observations, or the times."
            )
        if dt is not None and times is not None:
            raise InputError("only one of dt and times may be given, found both: remove one.")
        if dt is not None:
            dt = _positive("dt", dt)
        clock = None if times is None else _match("times", times, lengths, shared=True)
        rewards = None if reward is None else _match("reward", reward, lengths)
        if ids is not None and len(ids) != len(lengths):
            raise InputError(f"ids must name {len(lengths)} trajectories, found {len(ids)}: pass one per trajectory.")
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        new = cls(paths, offsets, dt=dt, times=clock, reward=rewards, ids=ids, max_dt=_limit(max_dt))
        new.check()
        return new

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> Trajectories:
        """From a .npz, .npy, .csv, .tsv or .parquet file; `levytorch.data.files.read` documents every option."""
        from levytorch.data.files import read

        return read(path, **options)

    def to_file(self, path: str | Path) -> None:
        """To a .npz, .csv, .tsv or .parquet file that from_file reads back exactly (docs/data.md)."""
        from levytorch.data.files import write

        write(self, path)

    # ------------------------------------------------------------------------------------------------------------ facts

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return 1 if self.x.ndim == 1 else self.x.shape[1]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Points of each trajectory."""
        return np.diff(self.offsets)

    def to_array(self) -> Array:
        """(n_traj, n_time) or (n_traj, n_time, d); trajectories of different lengths are an error."""
        lengths = self.lengths
        if (lengths != lengths[0]).any():
            raise InputError(
                f"to_array needs trajectories of one length, found {lengths.min()} to {lengths.max()} points: use .x "
                "with .offsets instead."
            )
        return self.x.reshape(len(self), int(lengths[0]), *self.x.shape[1:])

    def name(self, k: int) -> str:
        """How to call trajectory k in a message."""
        return f"trajectory {k}" if self.ids is None else f"trajectory {self.ids[k]!r}"

    def __repr__(self) -> str:
        return f"Trajectories({len(self)} of {self.lengths.min()} to {self.lengths.max()} points, dim={self.dim})"

    def check(self, where: str = "x") -> None:
        """Refuse what cannot be used: non-finite values, one-point paths, times out of order, constant series."""
        if not np.isfinite(self.x).all():
            row = int(np.argwhere(~np.isfinite(self.x))[0, 0])
            path, point = self._locate(row)
            raise InputError(
                f"{where} must be finite, found {self.x[row].tolist()} at point {point} of {self.name(path)}: remove "
                "or interpolate it."
            )
        if self.lengths.min(initial=2) < 2:
            path = int(np.argmin(self.lengths))
            raise InputError(
                f"a trajectory needs at least two points, found {int(self.lengths[path])} in {self.name(path)}: remove "
                "it."
            )
        if self.times is not None:
            self._check_times()
        if self.reward is not None and not np.isfinite(self.reward).all():
            path, point = self._locate(int(np.argwhere(~np.isfinite(self.reward))[0, 0]))
            raise InputError(
                f"reward must be finite, found NaN or infinity at point {point} of {self.name(path)}: fill it."
            )
        self._check_moves(where)

    def _check_times(self) -> None:
        assert self.times is not None
        steps = np.diff(self.times)
        steps[self.offsets[1:-1] - 1] = 1.0  # between trajectories
        bad = ~(steps > 0)
        if bad.any() or not np.isfinite(self.times).all():
            row = int(np.argmax(bad)) if bad.any() else int(np.argmin(np.isfinite(self.times)))
            path, point = self._locate(row)
            raise InputError(
                f"times must be finite and strictly increasing within a trajectory, found {self.times[row]!r} before "
                f"{self.times[min(row + 1, len(self.times) - 1)]!r} at point {point} of {self.name(path)}: sort them "
                "and remove duplicates."
            )

    def _check_moves(self, where: str) -> None:
        columns = self.x.reshape(len(self.x), -1)
        still = np.ones(len(self), dtype=bool)
        for k in range(columns.shape[1]):
            column = columns[:, k]
            low, high = np.minimum.reduceat(column, self.offsets[:-1]), np.maximum.reduceat(column, self.offsets[:-1])
            if (low == high).all():
                raise InputError(
                    f"{where}{f' (coordinate {k})' if columns.shape[1] > 1 else ''} must vary, found a constant series "
                    f"({column[0]:g} in {self.name(0)}): there is nothing to recover from it, so choose another column."
                )
            still &= low == high
        if still.any():
            warnings.warn(
                f"{int(still.sum())} of {len(self)} trajectories never move ({self.name(int(np.argmax(still)))} is "
                "one): check that they are real.",
                LevytorchWarning,
                stacklevel=3,
            )

    def _locate(self, row: int) -> tuple[int, int]:
        path = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return path, row - int(self.offsets[path])

    # ------------------------------------------------------------------------------------------------------ transitions

    def transitions(self, max_dt: float | None = None) -> Transitions:
        """All pairs of neighbours.

        Left out, and counted in `.dropped`: pairs across a gap (dt > max_dt), and pairs whose x is so large that its
        float spacing exceeds RESOLUTION times half the interquartile range of dx (at |x| = 1e13 neighbouring floats are
        0.002 apart, and a difference of two of them says little about a step of width 0.4). The rule looks at x alone,
        never at dx, so it does not select among jumps.
        """
        limit = self.max_dt if max_dt is None else _limit(max_dt)
        x, dx, counts, keep = self._pairs()
        dt: float | NDArray[np.float64] | None = self.dt
        dropped = dict(self.dropped)
        mask: NDArray[np.bool_] | None = None
        if self.times is not None:
            dt = np.diff(self.times) if keep is None else np.diff(self.times)[keep]
            if limit is not None:
                mask = dt <= limit * (1 + 1e-9)
                dropped["across a gap"] = int((~mask).sum())
        elif limit is not None and self.dt is not None and self.dt > limit:
            raise InputError(f"max_dt must not be below dt, found max_dt = {limit:g} and dt = {self.dt:g}: raise it.")
        far = float_limit(dx if mask is None else dx[mask])
        beyond = np.abs(x) >= far if x.ndim == 1 else (np.abs(x) >= far).any(axis=1)
        if beyond.any():
            lost = beyond if mask is None else beyond & mask
            dropped["beyond float resolution"] = int(lost.sum())
            mask = ~beyond if mask is None else mask & ~beyond
        if mask is not None and not mask.any():
            raise InputError(
                f"at least one pair must remain, found none of {len(mask)} ({_reasons(dropped)}): raise max_dt or "
                "check the data."
            )
        even = isinstance(dt, float)
        if not even:
            assert isinstance(dt, np.ndarray)
            assert self.times is not None
            single = _single_dt(dt if mask is None else dt[mask], float(np.abs(self.times).max()))
            dt, even = (dt, False) if single is None else (single, True)
        built = Transitions._build(
            torch.from_numpy(x),
            torch.from_numpy(dx),
            dt if isinstance(dt, float) else torch.from_numpy(dt),
            even,
            counts=counts,
            reward=None if self.reward is None else torch.from_numpy(self._starts(self.reward, keep)),
            dropped={reason: count for reason, count in dropped.items() if count},
        )
        if mask is None:
            return built
        # what was dropped here was never a usable pair: mu is that of the usable ones
        chosen = torch.from_numpy(mask)
        built._mu = torch.zeros(())
        kept = built._take(chosen, {})
        kept._mu = None
        return kept

    def _pairs(self) -> tuple[Array, Array, NDArray[np.int64], NDArray[np.bool_] | None]:
        """x, dx, pairs per trajectory, and the mask that picks the pairs from x[:-1] (None: all of one length)."""
        counts = self.lengths - 1
        if (counts == counts[0]).all() and self.times is None:
            grid = self.to_array()
            flat = (-1, *self.x.shape[1:])
            now, after = grid[:, :-1], grid[:, 1:]
            return np.ascontiguousarray(now).reshape(flat), (after - now).reshape(flat), counts, None
        keep = np.ones(len(self.x) - 1, dtype=bool)
        keep[self.offsets[1:-1] - 1] = False
        return self.x[:-1][keep], np.diff(self.x, axis=0)[keep], counts, keep

    def _starts(self, values: Array, keep: NDArray[np.bool_] | None) -> Array:
        if keep is not None:
            return values[:-1][keep]
        return np.ascontiguousarray(values.reshape(len(self), -1)[:, :-1]).reshape(-1)


def float_limit(dx: Array) -> float:
    """|x| from which neighbouring floats are further apart than RESOLUTION times half the interquartile range of dx.

    At most a million evenly spaced pairs are looked at. Where more than half of all moves are zero (prices), the median
    of the moves that are not stands in for the range.
    """
    some = dx[:: max(1, len(dx) // 1_000_000)].reshape(-1, 1 if dx.ndim == 1 else dx.shape[1])
    widths = []
    for column in some.T:
        low, high = np.quantile(column, [0.25, 0.75])
        moves = np.abs(column[column != 0])
        width = (high - low) / 2 or (float(np.median(moves)) if len(moves) else 0.0)
        widths.append(float(width))
    width = min(widths)
    if width == 0.0:
        return math.inf
    # spacing(x) = 2^(e - 52) for 2^e <= |x| < 2^(e + 1)
    return 2.0 ** min(1023, math.floor(math.log2(RESOLUTION * width)) + 1 + 52)


def _single_dt(dt: Array, latest: float) -> float | None:
    """The dt that all pairs share within rounding of the times, or None.

    Times like 0.05 k carry rounding errors; the mean is then rounded to 12 digits where that stays within these errors.
    """
    low, high = float(dt.min()), float(dt.max())
    rounding = 4 * float(np.spacing(latest))
    if high - low > max(_SAME_DT * low, rounding):
        return None
    mean = float(dt.mean())
    rounded = float(f"{mean:.12g}")
    return rounded if abs(rounded - mean) <= rounding else mean


# -------------------------------------------------------------------------------------------------------------- checks


def _numeric(name: str, values: Any) -> Array:
    try:
        if isinstance(values, torch.Tensor):
            values = values.detach().cpu().numpy()
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numeric, found {type(values).__name__}: pass arrays of numbers.") from None
    return array


def _is_ragged(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and len(values) > 0 and all(hasattr(v, "__len__") for v in values)


def _flatten(name: str, x: Any) -> tuple[Array, NDArray[np.int64]]:
    """All points in one array, and the number of points of each trajectory."""
    if _is_ragged(x):
        parts = [_numeric(f"{name}[{k}]", part) for k, part in enumerate(x)]
        shapes = {part.shape[1:] for part in parts}
        if len(shapes) > 1 or any(part.ndim not in (1, 2) for part in parts):
            found = sorted({part.ndim if part.ndim != 2 else part.shape[1] for part in parts})
            raise InputError(
                f"{name} must be a list of (n_time,) or of (n_time, d) arrays with one d, found dimensions {found} "
                "mixed: bring all trajectories to the same columns."
            )
        flat, lengths = np.concatenate(parts), np.array([len(part) for part in parts], dtype=np.int64)
    else:
        array = _numeric(name, x)
        if array.ndim == 1:
            array = array[None]
        if array.ndim not in (2, 3):
            raise InputError(
                f"{name} must have shape (n_traj, n_time) or (n_traj, n_time, d), found {array.shape}: reshape it, or "
                "pass a list."
            )
        lengths = np.full(array.shape[0], array.shape[1], dtype=np.int64)
        flat = np.ascontiguousarray(array).reshape(-1, *array.shape[2:])
    if len(flat) == 0:
        raise InputError(f"{name} must hold at least one trajectory, found an empty array: check what was loaded.")
    if flat.ndim == 2 and flat.shape[1] == 1:
        flat = flat[:, 0]
    return flat, lengths


def _match(name: str, values: Any, lengths: NDArray[np.int64], shared: bool = False) -> Array:
    """values with one number per point, flat; a single (n_time,) array serves all trajectories when `shared`."""
    if shared and not _is_ragged(values):
        array = _numeric(name, values)
        if array.ndim == 1 and (lengths == len(array)).all():
            return np.tile(array, len(lengths))
    flat, found = _flatten(name, values)
    if flat.ndim != 1 or len(found) != len(lengths) or (found != lengths).any():
        raise InputError(
            f"{name} must have one number per point of x ({len(lengths)} trajectories, {int(lengths.sum())} points), "
            f"found {len(found)} trajectories and {len(flat)} points: give it x's shape."
        )
    return flat


def _positive(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (number > 0 and math.isfinite(number)):
        raise InputError(f"{name} must be a positive number, found {value!r}: pass the time between two observations.")
    return number


def _limit(max_dt: Any) -> float | None:
    return None if max_dt is None else _positive("max_dt", max_dt)


def _reasons(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in dropped.items()) or "no reason counted"
