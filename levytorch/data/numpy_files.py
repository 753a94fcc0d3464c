"""Arrays of .npz and .npy files, not loaded: what they say about themselves, and their numbers as blocks of points.

A header of a few bytes can ask for terabytes, and a few kilobytes of a .npz can unpack to them: what is declared is
checked before memory is taken for it. Pickled objects are never loaded.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levytorch.archives import MOST_MEMBERS, array_header
from levytorch.convert import Array, Integers
from levytorch.data.arrays import label, lengths_of
from levytorch.data.clock import FileClock
from levytorch.data.options import MAX_DT, FileOptions
from levytorch.data.places import DataFile
from levytorch.data.points import COLUMNS, PointFile, Points, disorder, refuse_nonfinite, refuse_short, refuse_twice
from levytorch.data.store import physical_memory
from levytorch.errors import InputError

_BLOCK = 1 << 17  # points at a time
_BESIDE = "save where each trajectory begins, and the number of points"


class ArrayFile(PointFile):
    """Points of arrays."""

    def __init__(self, path: DataFile, options: FileOptions) -> None:
        super().__init__(path, options)
        if isinstance(options.dt, str):
            raise InputError(
                f"{path}: dt must be a number for {path.suffix} files, found {options.dt!r}; pass the time between two "
                "points."
            )
        for name in ("layout", "missing", "sort", "short", "separator", "decimal", "time_format"):
            given = getattr(options, name)
            if given != getattr(FileOptions, name):
                raise InputError(
                    f"{path}: {name} must be left out for {path.suffix} files, found {given!r}; prepare the arrays "
                    "instead."
                )
        self._row: NDArray[Any] | None = None  # times of all, in memory or shared

    def _find_columns(self) -> None:
        self._arrays = members_of(self.path, self.whole)
        x = self._array("value", "x")
        if x is None and len(self._arrays) == 1:
            x = next(iter(self._arrays.values()))
        if x is None:
            raise InputError(
                f"{self.path}: value must name the array of x, found {', '.join(self._arrays)}; pass value='...'."
            )
        clock = self.options.time or "times"
        free = self.dt is not None or "dt" not in self._arrays
        if clock not in self._arrays and free and _fits(self._arrays.get("time"), x):
            clock = "time"
        self._x, self._times = x, self._array("time", clock)
        # actions are numbered over all points
        wanted = [name for name in COLUMNS if name == "reward" or self.whole]
        beside = {name: self._array(name, name) for name in wanted}
        self._beside = {name: member for name, member in beside.items() if member is not None}
        beside_dt = self.dt is not None
        if self.dt is None and self._times is None and "dt" in self._arrays:
            self.dt = self._length("dt", "save times instead of it")
        if self.dt is None and self._times is None:
            raise InputError(f"{self.path}: dt must be given, found neither dt nor times in the file; pass dt=...")
        self.lengths = self._layout()
        self._width = x.size // int(self.lengths.sum())
        self._shared = False
        numbers = [(name, member, "fiu") for name, member in self._beside.items() if name != "action"]
        for name, member, kinds in (("x", x, "fiu"), (clock, self._times, "fiumM"), *numbers):
            if member is not None and member.dtype.kind not in kinds:
                raise InputError(
                    f"{self.path}: {name} must be numeric, found {member.dtype}; pass arrays of real numbers."
                )
        if self._times is not None:
            days = "save them as datetime64[D] and pass a time_unit"
            self.clock = FileClock(f"{self.path}, array {clock!r}", self.options.units, beside_dt, days)
            fits = bool((self.lengths == self._times.size).all())
            self._shared = self._times.ndim == 1 and len(self.lengths) > 1 and fits
            if not self._shared:
                self._check_shape(clock, self._times)
        for name, member in self._beside.items():
            self._check_shape(name, member, vectors=name == "action")
        ids = self._array("id", "ids")
        self.ids = None if ids is None else self._names(ids)
        dim = self._width
        self.coordinates = [f"{self.path}: coordinate {k} of x" for k in range(dim)] if dim > 1 else [f"{self.path}: x"]

    def _own_max_dt(self) -> float | None:
        if MAX_DT not in self._arrays or MAX_DT in (name for _, name in self.options.named()):
            return None
        return self._length(MAX_DT, "save one, or pass max_dt")

    # ----------------------------------------------------------------------------------------------------------- passes

    def survey(self) -> None:
        self._sure(refuse_short, self.lengths, self.ids)
        if self.clock is None:
            return
        for ticks in self._ticks():
            self.clock.see(ticks)
        self.clock.refuse_days()

    def _blocks(self) -> Iterator[Points]:
        offsets, start, times = self.offsets, 0, self._clocked()
        beside = {name: self._parts(member, 1) for name, member in self._beside.items()}
        for part in self._parts(self._x, self._width):
            x = np.asarray(part, dtype=np.float64)
            if self.options.log:
                x = self._logarithm(x, start)
            x = x if self._width == 1 else x.reshape(-1, self._width)
            columns = {name: next(parts) for name, parts in beside.items()}
            if "action" in columns:  # the whole file is one block
                held = columns["action"]
                columns["action"], self.actions = label(held if len(held) == len(x) else held.reshape(len(x), -1))
            numbers = {name: np.asarray(values, dtype=np.float64) for name, values in columns.items()}
            rows = range(start, start + len(x))
            block = Points(start, x, None if times is None else next(times), numbers, rows)
            self._sure(refuse_nonfinite, block, offsets, self.ids)
            yield block
            start += len(x)

    def _ticks(self) -> Iterator[NDArray[Any]]:
        """The times as they stand in the file; read once where they are kept in memory."""
        assert self._times is not None
        assert self.clock is not None
        if self._row is not None:
            return iter([self._row])
        parts = (self.clock.ticks(_native(part)) for part in self._parts(self._times, 1))
        if not (self.whole or self._shared):
            return parts
        self._row = np.concatenate(list(parts))
        return iter([self._row])

    def _clocked(self) -> Iterator[Array] | None:
        """The times of every point; one row of them may serve all trajectories."""
        if self.clock is None:
            return None
        times = (self.clock.times(ticks) for ticks in self._ticks())
        if not self._shared:
            return times
        (row,), n = times, int(self.lengths.sum())
        step = n if self.whole else _BLOCK
        return (row[np.arange(low, min(low + step, n)) % len(row)] for low in range(0, n, step))

    def _parts(self, member: Member, width: int) -> Iterator[NDArray[Any]]:
        """The numbers of an array that has so many per point."""
        if self.whole:
            return iter([member.load().reshape(-1)])
        return member.blocks(_BLOCK * width)

    # --------------------------------------------------------------------------------------------------------- refusals

    def _array(self, option: str, default: str) -> Member | None:
        given = getattr(self.options, option)
        name = given or default
        if not isinstance(name, str):
            raise InputError(
                f"{self.path}: {option} must name one array, found {name!r}; stack the coordinates in one array."
            )
        if given and name not in self._arrays:
            raise InputError(
                f"{self.path}: {option} must name one of {', '.join(self._arrays)}, found {name!r}; pass one of these."
            )
        return self._arrays.get(name)

    def _length(self, name: str, remedy: str) -> float:
        """A length of time that the file holds."""
        given = self._arrays[name]
        if given.size != 1:
            raise InputError(f"{self.path}: {name} must be one number, found shape {given.shape}; {remedy}.")
        return self.options.units.length(f"{self.path}: {name}", given.load().item())

    def _layout(self) -> Integers:
        """Points of each trajectory."""
        shape, offsets = self._x.shape, self._arrays.get("offsets")
        if offsets is not None:
            if len(shape) not in (1, 2) or 0 in shape:
                raise InputError(
                    f"{self.path}: x with offsets must have shape (n,) or (n, d), found {shape}; reshape it."
                )
            return self._sound(offsets, shape[0])
        return lengths_of(f"{self.path}: x", shape)

    def _sound(self, offsets: Member, n: int) -> Integers:
        """The lengths behind offsets, which are loaded once it is known that they are few."""
        found = f"shape {offsets.shape}"
        if offsets.ndim == 1 and 1 < offsets.size <= n + 1 and offsets.dtype.kind in "iu":
            ends = offsets.load().astype(np.int64)
            if ends[0] == 0 and ends[-1] == n and (np.diff(ends) >= 0).all():
                return np.diff(ends)
            found = f"{ends.tolist()!s:.60}"
        raise InputError(
            f"{self.path}: offsets must be integers that rise from 0 to the {n} points of x, found {found}; {_BESIDE}."
        )

    def _check_shape(self, name: str, member: Member, vectors: bool = False) -> None:
        """One number per point; where there may be `vectors`, also two."""
        shape, like = member.shape, self._x.shape
        n = int(self.lengths.sum())
        if "offsets" in self._arrays:
            right = shape in ((n,), (n, 1)) or (vectors and shape == (n, 2))
        else:
            grid = (len(self.lengths), n // len(self.lengths))
            right = shape in (grid, (*grid, 1)) or (grid[0] == 1 and shape == (n,))
            right |= vectors and shape == (*grid, 2)
        if not right:
            raise InputError(
                f"{self.path}: {name} must have one number per point of x (shape {like}, {n} points), found shape "
                f"{shape}; give it x's shape."
            )

    def _names(self, ids: Member) -> list[Any]:
        """The ids, loaded once it is known that there are as few as trajectories."""
        n = len(self.lengths)
        if ids.shape != (n,):
            raise InputError(
                f"{self.path}: ids must name {n} trajectories, each once, found shape {ids.shape}; save one per "
                "trajectory."
            )
        if self.options.on_disk is not None and ids.dtype.kind not in "biufU":
            raise InputError(f"{self.path}: ids must be numbers or text on disk, found {ids.dtype}; save them as text.")
        names = ids.load().tolist()
        self._sure(refuse_twice, names)
        return names

    def _logarithm(self, x: Array, start: int) -> Array:
        if not (x > 0).all():
            k = int(np.argmax(~(x > 0)))
            where = tuple(int(i) for i in np.unravel_index(start * self._width + k, self._x.shape))
            raise InputError(
                f"{self.path}: x must be positive for log=True, found {x[k]} at index {where}; use log=False."
            )
        return np.asarray(np.log(x))

    def _disorder(self, point: int, times: Array, rows: list[int]) -> InputError:
        return InputError(f"{self.path}: {disorder(point, times, self.offsets, self.ids)}")

    def _sure(self, check: Any, *arguments: Any) -> None:
        """A check that arrays share, with the name of the file."""
        try:
            check(*arguments)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None


def _fits(times: Member | None, x: Member) -> bool:
    """Whether an array that is called time can be that of the points; it may be how long a run took."""
    return times is not None and times.ndim > 0 and times.shape in (x.shape, x.shape[:1], x.shape[:2], x.shape[1:2])


def _native(block: NDArray[Any]) -> NDArray[Any]:
    """In the byte order of this machine, which polars needs."""
    return block.astype(block.dtype.newbyteorder("="), copy=False)


# ----------------------------------------------------------------------------------------------------------- arrays


@dataclass(frozen=True)
class Member:
    """An array of a file: `load()` gives it, `blocks(size)` its numbers in order, so many at a time."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    load: Callable[[], NDArray[Any]]
    blocks: Callable[[int], Iterator[NDArray[Any]]]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


def members_of(file: DataFile, whole: bool) -> dict[str, Member]:
    """The arrays of a file by name; those that are read as a `whole` must fit into the machine's memory."""
    with _reading(file):
        if file.suffix == ".npy":
            with file.local.open("rb") as stream:
                shape, _, dtype, _ = array_header(stream, file.local.stat().st_size)
            return {"x": Member(shape, dtype, lambda: _load(file), lambda size: _mapped(file, size))}
        with zipfile.ZipFile(file.local) as archive:
            members = archive.infolist()
            if len(members) > MOST_MEMBERS:
                raise ValueError(f"{len(members)} arrays, more than {MOST_MEMBERS}")
            total = sum(member.file_size for member in members)
            most = physical_memory()
            if whole and total > most:
                raise ValueError(f"{total / 2**30:.3g} GiB when unpacked, more than the {most / 2**30:.3g} of memory")
            arrays = [member for member in members if member.filename.endswith(".npy")]
            return {member.filename.removesuffix(".npy"): _member(file, archive, member) for member in arrays}


def _member(file: DataFile, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    with archive.open(info) as stream:
        shape, fortran, dtype, start = array_header(stream, info.file_size)

    def blocks(size: int) -> Iterator[NDArray[Any]]:
        if fortran and len(shape) > 1:
            raise _fortran(file)
        with _reading(file), zipfile.ZipFile(file.local) as archive, archive.open(info.filename) as stream:
            stream.read(start)
            while part := stream.read(size * dtype.itemsize):
                yield np.frombuffer(part, dtype=dtype)

    return Member(shape, dtype, lambda: _load(file, info.filename), blocks)


def _load(file: DataFile, name: str | None = None) -> NDArray[Any]:
    with _reading(file):
        loaded = np.load(file.local, allow_pickle=False)
        if name is None:
            return loaded
        with loaded:
            return loaded[name]


def _mapped(file: DataFile, size: int) -> Iterator[NDArray[Any]]:
    array = np.load(file.local, mmap_mode="r", allow_pickle=False)
    if not array.flags.c_contiguous:
        raise _fortran(file)
    flat = array.reshape(-1)
    return (np.array(flat[low : low + size]) for low in range(0, len(flat), size))


@contextmanager
def _reading(file: DataFile) -> Iterator[None]:
    """A damaged file gives any error of the zip directory, of the compression or of Python's parser."""
    try:
        yield
    except (InputError, MemoryError):  # a shortage is said by the caller, with a remedy
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise InputError(f"{file} must be a {file.suffix} file of plain arrays, found {text}; save it again.") from None


def _fortran(file: DataFile) -> InputError:
    return InputError(f"{file}: arrays must be in C order, found Fortran order; save np.ascontiguousarray of it.")
