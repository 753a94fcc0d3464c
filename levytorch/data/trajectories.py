"""Trajectories: observed paths of one or many lengths, evenly or unevenly sampled, in d >= 1 dimensions.

All points lie in one flat array, trajectory after trajectory, so a single long price series and 400,000 short paths are
the same thing.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.convert import known_keys, shown
from levytorch.data.arrays import Array, Counts, flatten, match, positive, warn_of_columns
from levytorch.data.pairing import pair_up
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError, LevytorchWarning

if TYPE_CHECKING:
    from levytorch.data.store import Entry

_BLOCK = 1 << 17  # points looked at together


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
        dropped: what was left out while reading, by reason.
        stored: where the points lie when they are on disk (`from_file(..., on_disk=directory)`), else None.
    """

    def __init__(
        self,
        x: Array,
        offsets: Counts,
        *,
        dt: float | None = None,
        times: Array | None = None,
        reward: Array | None = None,
        ids: Sequence[Any] | None = None,
        max_dt: float | None = None,
        dropped: Mapping[str, int] | None = None,
        stored: Entry | None = None,
    ) -> None:
        self.x, self.offsets, self.times, self.reward = x, offsets, times, reward
        self.dt, self.ids = dt, None if ids is None else tuple(ids)
        self.max_dt = None if max_dt is None else positive("max_dt", max_dt)
        self.dropped = dict(dropped or {})
        self.stored = stored

    # ----------------------------------------------------------------------------------------------------- in and out

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
            x: (n_traj, n_time) or (n_traj, n_time, d); (n_time,) is one trajectory, and one in d dimensions is x[None];
                a list of (n_time,) or (n_time, d) arrays holds trajectories of different lengths.
            dt: the time between any two neighbours; or
            times: (n_time,) for all trajectories, or (n_traj, n_time), or a list like x; strictly increasing.
            reward: one number per point, shaped like x without its d.
            ids: a name per trajectory.
            max_dt: pairs further apart are gaps: left out of transitions() and counted.

        >>> Trajectories.from_arrays([[0.0, 1.0, 4.0]], dt=0.5).transitions().dx
        tensor([1., 3.], dtype=torch.float64)
        """
        points, lengths = flatten("x", x)
        if dt is None and times is None:
            raise InputError("dt or times must be given, found neither: pass the time between observations, or times.")
        if dt is not None and times is not None:
            raise InputError("only one of dt and times may be given, found both: remove one.")
        ids = None if ids is None else _names(ids)
        if ids is not None and len(ids) != len(lengths):
            raise InputError(f"ids must name {len(lengths)} trajectories, found {len(ids)}: pass one per trajectory.")
        if ids is not None and len(set(ids)) < len(ids):
            twice = Counter(ids).most_common(1)[0][0]
            raise InputError(f"ids must differ, found {twice!r} twice: rename one, or join the two trajectories.")
        new = cls(
            points,
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            dt=None if dt is None else positive("dt", dt),
            times=None if times is None else match("times", times, lengths, shared=True),
            reward=None if reward is None else match("reward", reward, lengths),
            ids=ids,
            max_dt=max_dt,
        )
        new.check()
        warn_of_columns(points, lengths, stacklevel=3)
        return new

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> Trajectories:
        """From a .npz, .npy, .csv, .tsv or .parquet file; `levytorch.data.files.read` documents every option.

        With on_disk=<directory> a .npz, .npy or .parquet file may be larger than memory (docs/scaling.md).
        """
        from levytorch.data.files import OPTIONS, read

        known_keys(f"{path}: options", options, OPTIONS)
        return read(path, **options)

    def to_file(self, path: str | Path) -> None:
        """To a .npz, .csv, .tsv or .parquet file that `from_file(path)` reads back exactly."""
        from levytorch.data.files import write

        write(self, path)

    def to_array(self) -> Array:
        """(n_traj, n_time) or (n_traj, n_time, d); trajectories of different lengths are an error."""
        lengths = self.lengths
        if (lengths != lengths[0]).any():
            raise InputError(
                f"to_array needs trajectories of one length, found {lengths.min()} to {lengths.max()} points: use .x "
                "with .offsets instead."
            )
        return self.x.reshape(len(self), int(lengths[0]), *self.x.shape[1:])

    def transitions(self, max_dt: float | None = None) -> Transitions:
        """All pairs of neighbours, as Transitions.

        Left out, and counted in `.dropped`: pairs across a gap (dt > max_dt), and pairs whose x is so large that its
        float spacing exceeds 1e-3 of half the interquartile range of dx: at |x| = 1e13 neighbouring floats are 0.002
        apart, and a difference of two of them says little about a step of width 0.4. The rule looks at x alone, never
        at dx, so it does not select among jumps.
        """
        max_dt = self.max_dt if max_dt is None else positive("max_dt", max_dt)
        if self.stored is None:
            return pair_up(self, max_dt)
        from levytorch.data.on_disk import pair_up_on_disk

        return pair_up_on_disk(self, max_dt)

    # ---------------------------------------------------------------------------------------------------------- facts

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return 1 if self.x.ndim == 1 else self.x.shape[1]

    @property
    def lengths(self) -> Counts:
        """Points of each trajectory."""
        return np.diff(self.offsets)

    def name(self, k: int) -> str:
        """How to call trajectory k in a message."""
        return f"trajectory {k}" if self.ids is None else f"trajectory {self.ids[k]!r}"

    def __repr__(self) -> str:
        return f"Trajectories({len(self)} of {self.lengths.min()} to {self.lengths.max()} points, dim={self.dim})"

    # --------------------------------------------------------------------------------------------------------- checks

    def check(self) -> None:
        """Refuse what cannot be used: non-finite values, one-point paths, times out of order, constant series."""
        for label, values in (("x", self.x), ("times", self.times), ("reward", self.reward)):
            for low in range(0, 0 if values is None else len(values), _BLOCK):
                assert values is not None
                finite = np.isfinite(values[low : low + _BLOCK])
                if finite.all():
                    continue
                row = low + int(np.argwhere(~finite)[0, 0])
                raise InputError(
                    f"{label} must be finite, found {values[row].tolist()} at {self._place(row)}: remove or fill it."
                )
        if self.lengths.min(initial=2) < 2:
            path = int(np.argmin(self.lengths))
            raise InputError(
                f"a trajectory needs at least two points, found {int(self.lengths[path])} in {self.name(path)}: remove "
                "this trajectory."
            )
        if self.times is not None:
            self._check_times(self.times)
        self.check_motion([f"coordinate {k} of x" for k in range(self.dim)] if self.dim > 1 else ["x"])

    def _check_times(self, times: Array) -> None:
        ends = self.offsets[1:-1] - 1
        for low in range(0, len(times) - 1, _BLOCK):
            steps = np.diff(times[low : low + _BLOCK + 1])
            first, last = np.searchsorted(ends, [low, low + len(steps)])
            steps[ends[first:last] - low] = 1.0  # between trajectories
            if (steps <= 0).any():
                row = low + int(np.argmax(steps <= 0))
                raise InputError(
                    f"times must increase strictly within a trajectory, found {times[row]:g} followed by "
                    f"{times[row + 1]:g} at {self._place(row)}: sort them and remove duplicates."
                )

    def check_motion(self, names: Sequence[str]) -> None:
        """Refuse a constant series; warn of trajectories that stand still."""
        columns = self.x.reshape(len(self.x), -1)
        still = np.ones(len(self), dtype=bool)
        for name, column in zip(names, columns.T):
            low = np.minimum.reduceat(column, self.offsets[:-1])
            constant = low == np.maximum.reduceat(column, self.offsets[:-1])
            if constant.all():
                raise InputError(
                    f"{name} must vary within trajectories, found a constant series ({column[0]:g} in {self.name(0)}): "
                    "nothing can be recovered from it, so choose another one."
                )
            still &= constant
        if still.any():
            warnings.warn(
                f"{int(still.sum())} of {len(self)} trajectories never move, {self.name(int(np.argmax(still)))} first: "
                "check that they are real.",
                LevytorchWarning,
                stacklevel=3,
            )

    def _place(self, row: int) -> str:
        path = int(np.searchsorted(self.offsets, row, side="right")) - 1
        return f"point {row - int(self.offsets[path])} of {self.name(path)}"


def _names(ids: Any) -> list[Any]:
    """A list of names: anything that can be told apart and printed."""
    try:
        names = list(ids.tolist() if hasattr(ids, "tolist") else ids)
        hash(tuple(names))
    except (TypeError, RuntimeError):
        raise InputError(f"ids must be a list of names, found {shown(ids)}: pass one per trajectory.") from None
    return names
