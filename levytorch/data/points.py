"""A file as blocks of points: one block in memory, many on disk or in a stream, with the same checks and numbers.

A file is gone over twice. The survey looks at what concerns all of it (the first time, how long trajectories are, cells
that are none); then the points come in order, trajectory after trajectory, each block checked against the one before.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from levytorch.convert import Array, Integers
from levytorch.data.clock import FileClock
from levytorch.data.options import FileOptions
from levytorch.data.places import DataFile
from levytorch.errors import InputError, LevytorchWarning


class NeedsMemory(InputError):
    """A file that can be read, but not block by block."""


# (n,) each: the reward at a point, the place of its action among the labels (or the action itself), and for the last
# point of an episode that ended the value of its state, elsewhere NaN
COLUMNS = ("reward", "action", "terminal")


class Points(NamedTuple):
    """Some consecutive points of a file."""

    start: int  # the number of the first among all points
    x: Array  # (n,) or (n, d)
    times: Array | None = None  # (n,)
    columns: Mapping[str, Array] = MappingProxyType({})  # what is known beside the states: see `COLUMNS`
    row: Sequence[int] | Integers = ()  # where each stands in the file, where messages say so


class PointFile(ABC):
    """A file whose options are checked; `open` it, `survey` it, then take its `points` as often as you like.

    `recipe` holds all options that decide the points.

    Attributes (from the survey on):
        lengths, offsets: points of each trajectory, and where each begins.
        dt: the time between any two neighbours, or None when the points have times.
        ids: the name of each trajectory, or None.
        dropped: what was left out, by reason.
        coordinates: what messages call the columns of x.
    """

    coordinates: list[str]
    dt: float | None
    clock: FileClock | None = None
    ids: list[Any] | None = None
    actions: Sequence[Any] = ()  # labels of the column action, known after the points were read
    lengths: Integers

    def __init__(self, path: DataFile, options: FileOptions) -> None:
        self.path, self.options = path, options
        self.dt = options.dt if isinstance(options.dt, float) else None
        self.recipe = {name: value for name, value in asdict(options).items() if name not in ("max_dt", "on_disk")}
        self.dropped: dict[str, int] = {}

    @property
    def max_dt(self) -> float | None:
        """The step from which on there is a gap, as it is asked for, or else as the file says."""
        return self._own_max_dt() if self.options.max_dt is None else self.options.max_dt

    def open(self, whole: bool) -> None:
        """Find the columns, for one block of everything or for many; NeedsMemory where these cannot be had."""
        if not whole and self.options.action is not None:
            raise NeedsMemory(f"{self.path}: actions must be read in memory, found action with blocks; leave it out.")
        self.whole = whole
        self._find_columns()

    @abstractmethod
    def _find_columns(self) -> None:
        """What `open` does in this kind of file."""

    @abstractmethod
    def _own_max_dt(self) -> float | None:
        """What the file itself says about gaps."""

    @abstractmethod
    def survey(self) -> None:
        """The first pass."""

    @abstractmethod
    def _blocks(self) -> Iterator[Points]:
        """The second pass."""

    @abstractmethod
    def _disorder(self, point: int, times: Array, rows: list[int]) -> InputError:
        """The refusal of a point, and of the one after, whose times (and rows in the file) these are."""

    @property
    def offsets(self) -> Integers:
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    def points(self) -> Iterator[Points]:
        """All points in blocks; times that do not rise, or contradict a dt beside them, are refused."""
        offsets = self.offsets
        time: Array = np.empty(0)  # of the last point before
        row: list[int] = []
        for block in self._blocks():
            if block.times is None:
                yield block
                continue
            times, start = np.concatenate([time, block.times]), block.start - len(time)
            across = steps_across(offsets, start, start + len(times) - 1)
            k = out_of_order(times, across)
            if k is not None:
                rows = [*row, *block.row[: k + 2]] if row else list(block.row[: k + 2])
                raise self._disorder(start + k, times[k : k + 2], rows[k : k + 2])
            if self.dt is not None and self.clock is not None:
                self.clock.check_dt(self.dt, times, across)
            time, row = block.times[-1:], list(block.row[-1:])
            yield block if self.dt is None else block._replace(times=None)


def overlapping(blocks: Iterator[Points]) -> Iterator[Points]:
    """The same points, each block but the first begun by the last one of the block before."""
    last: Points | None = None
    for block in blocks:
        if last is None:
            yield block
        else:
            x = np.concatenate([last.x[-1:], block.x])
            times = None
            if last.times is not None and block.times is not None:
                times = np.concatenate([last.times[-1:], block.times])
            before = last.columns
            columns = {name: np.concatenate([before[name][-1:], own]) for name, own in block.columns.items()}
            yield Points(block.start - 1, x, times, columns)
        last = block


def steps_across(offsets: Integers, low: int, high: int) -> Integers:
    """Of the steps that begin at the points low, ..., high - 1, those from one trajectory to the next (from low on)."""
    inner = offsets[1:-1]
    first, last = np.searchsorted(inner, [low + 1, high + 1])
    return inner[first:last] - (low + 1)


def out_of_order(times: Array, across: Integers) -> int | None:
    """The first of these points whose successor is not later; steps `across` lead from one trajectory to the next."""
    steps = np.diff(times)
    steps[across] = 1.0
    wrong = ~(steps > 0)
    return int(np.argmax(wrong)) if wrong.any() else None


def numbers_of(offsets: Integers, low: int, high: int) -> Integers:
    """The trajectory of each of the points low, ..., high - 1."""
    first, last = int(trajectory_of(low, offsets)), int(np.searchsorted(offsets, high))
    edges: Integers = np.clip(offsets[first : last + 1], low, high)
    return np.repeat(np.arange(first, last), np.diff(edges))


def trajectory_of(points: Any, offsets: Integers) -> Any:
    """The trajectory of each of some points, by their numbers among all."""
    return np.searchsorted(offsets, points, side="right") - 1


# ----------------------------------------------------------------------------- refusals that arrays and files share


def bad_cell(where: str, expected: str, found: Any, remedy: str) -> InputError:
    """Of a table; `where` names the file, the column and the row."""
    return InputError(f"{where}: there must be {expected}, found {found}; {remedy}.")


def name_of(k: int, ids: Sequence[Any] | None) -> str:
    """How to call trajectory k in a message."""
    return f"trajectory {k}" if ids is None else f"trajectory {ids[k]!r}"


def point_name(point: int, offsets: Integers, ids: Sequence[Any] | None) -> str:
    path = int(trajectory_of(point, offsets))
    return f"point {point - int(offsets[path])} of {name_of(path, ids)}"


def refuse_nonfinite(block: Points, offsets: Integers, ids: Sequence[Any] | None) -> None:
    for label, values in (("x", block.x), ("times", block.times), ("reward", block.columns.get("reward"))):
        if values is None or np.isfinite(values).all():
            continue
        k = int(np.argwhere(~np.isfinite(values))[0, 0])
        where = point_name(block.start + k, offsets, ids)
        raise InputError(f"{label} must be finite, found {values[k].tolist()} at {where}; remove or fill it.")


def refuse_short(lengths: Integers, ids: Sequence[Any] | None) -> None:
    if lengths.min(initial=2) < 2:
        k = int(np.argmin(lengths))
        raise InputError(
            f"a trajectory must have at least two points, found {int(lengths[k])} in {name_of(k, ids)}; remove this "
            "trajectory."
        )


def refuse_twice(ids: Sequence[Any]) -> None:
    if len(set(ids)) < len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise InputError(f"ids must differ, found {twice!r} twice; rename one, or join the two trajectories.")


def disorder(point: int, times: Array, offsets: Integers, ids: Sequence[Any] | None) -> InputError:
    return InputError(
        f"times must increase strictly within a trajectory, found {times[0]:g} followed by {times[1]:g} at "
        f"{point_name(point, offsets, ids)}; sort them and remove duplicates."
    )


def judge_motion(
    still: NDArray[np.bool_], first: Array, coordinates: Sequence[str], ids: Sequence[Any] | None, stacklevel: int
) -> None:
    """Refuse a constant series; warn of trajectories that stand still.

    still is (n_traj, d): whether a coordinate is constant in a trajectory; first is the first point of all.
    """
    for name, constant, value in zip(coordinates, still.T, np.atleast_1d(first)):
        if constant.all():
            raise InputError(
                f"{name} must vary within trajectories, found a constant series ({value:g} in {name_of(0, ids)}); "
                "nothing can be recovered from it, so choose another one."
            )
    rests = np.asarray(still.all(axis=1))
    if rests.any():
        warnings.warn(
            f"{int(rests.sum())} of {len(rests)} trajectories never move, {name_of(int(np.argmax(rests)), ids)} first, "
            "and make D_o and D_f smaller; check that they are real, or leave them out.",
            LevytorchWarning,
            stacklevel=stacklevel,
        )
