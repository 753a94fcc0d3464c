"""Arrays of .npy and .npz files larger than memory -> a store entry of points, block by block."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levytorch.data.clock import calendar_days, elapsed, no_count, ticks_of, units_beside_dt
from levytorch.data.declared import check_declared, read_header
from levytorch.data.even import check_dt
from levytorch.data.numpy_files import SAVE_DAYS, check_ids, choose, cuts_of, unreadable
from levytorch.data.store import Writer
from levytorch.errors import InputError

_BLOCK = 1 << 17  # numbers at a time


@dataclass(frozen=True)
class Member:
    """An array of a file, not loaded: `blocks(width)` gives its numbers in order, a multiple of width at a time."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Callable[[int], Iterator[NDArray[Any]]]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def load(self) -> NDArray[Any]:
        """All of it, for the small ones (offsets, ids, dt)."""
        parts = list(self.blocks(1))
        return np.concatenate(parts).reshape(self.shape) if parts else np.empty(self.shape, self.dtype)


def write_arrays(
    file: Path,
    names: dict[str, Any],
    dt: float | None,
    units: tuple[str | None, str | None],
    log: bool,
    writer: Writer,
) -> dict[str, Any]:
    """All points into a store entry; its record."""
    members = members_of(file)
    x, clock, times, reward, ids, offsets, dt = choose(file, names, members, dt, units)
    if offsets is not None and offsets.size > x.size + 1:
        raise InputError(
            f"{file}: offsets must name trajectories of the {x.size} numbers of x, found {offsets.size} of them: save "
            "where each trajectory begins, and the number of points."
        )
    lengths, width = _layout(file, x, None if offsets is None else offsets.load())
    shape = (-1,) if width == 1 else (-1, width)
    seen = 0
    for block in _numeric(file, "x", x, width):
        if log and not (block > 0).all():
            k = int(np.argmax(~(block > 0)))
            where = tuple(int(i) for i in np.unravel_index(seen + k, x.shape))
            raise InputError(
                f"{file}: x must be positive for log=True, found {block[k]} at index {where}: use log=False."
            )
        writer.append("x", (np.log(block) if log else block).reshape(shape))
        seen += len(block)
    writer.append("lengths", lengths)
    n = int(lengths.sum())
    if times is not None:
        unit_known = True
        if dt is not None:
            read_in, unit_known = units_beside_dt(times.dtype.kind == "M", *units, None)
            units = read_in[:2]
        _write_times(file, clock, times, units, lengths, writer)
        if dt is not None:
            ends = np.concatenate([[0], np.cumsum(lengths)])
            check_dt(f"{file}, array {clock!r}", writer.array("times"), ends, dt, unit_known)
            writer.drop("times")
    if reward is not None:
        _of_points(file, "reward", reward, n)
        for block in _numeric(file, "reward", reward, 1):
            writer.append("reward", block)
    record: dict[str, Any] = {"dt": dt, "dropped": {}}
    if ids is not None:
        record["ids"] = _names(file, ids, len(lengths))
    return record


def members_of(file: Path) -> dict[str, Member]:
    """The arrays of a file by name, none of them loaded."""
    return _npz(file) if file.suffix.lower() == ".npz" else {"x": _npy(file)}


def _names(file: Path, ids: Member, n: int) -> list[Any]:
    """The ids as they are kept in a record: numbers or text, loaded once it is known that there are few."""
    check_ids(ids, n, f"{file}: ")
    if ids.dtype.kind not in "biufU":
        raise InputError(f"{file}: ids must be numbers or text on disk, found {ids.dtype}: save them as text.")
    names = ids.load().tolist()
    if len(set(names)) < n:
        raise InputError(f"{file}: ids must name {n} trajectories, each once, found some twice: correct them.")
    return names


def _layout(file: Path, x: Member, offsets: NDArray[Any] | None) -> tuple[NDArray[np.int64], int]:
    """Points of each trajectory, and numbers per point."""
    shape = x.shape
    if offsets is not None:
        if x.ndim not in (1, 2) or 0 in shape:
            raise InputError(f"{file}: x with offsets must have shape (n,) or (n, d), found {shape}: reshape it.")
        cuts = cuts_of(offsets, shape[0])
        lengths = np.diff(np.concatenate([[0], cuts, [shape[0]]])).astype(np.int64)
        return lengths, 1 if x.ndim == 1 else shape[1]
    if x.ndim == 1:
        shape = (1, *shape)
    if len(shape) not in (2, 3) or 0 in shape:
        raise InputError(
            f"{file}: x must have shape (n_traj, n_time) or (n_traj, n_time, d), found {x.shape}: reshape it."
        )
    return np.full(shape[0], shape[1], dtype=np.int64), shape[2] if len(shape) == 3 else 1


def _write_times(
    file: Path,
    name: str,
    times: Member,
    units: tuple[str | None, str | None],
    lengths: NDArray[np.int64],
    writer: Writer,
) -> None:
    """Times of every point; one row of them serves all trajectories."""
    n, (time_unit, _) = int(lengths.sum()), units
    shared = times.ndim == 1 and times.size < n and bool((lengths == times.size).all())
    if not shared:
        _of_points(file, name, times, n)
    if times.dtype.kind in "fiu" and all(calendar_days(block) for block in times.blocks(1)):
        raise no_count(f"{file}, array {name!r}", next(times.blocks(1))[0], SAVE_DAYS)
    if times.dtype.kind not in "mM" and time_unit is None:
        blocks: Iterator[NDArray[Any]] = _numeric(file, name, times, 1)
    else:
        import polars as pl

        tick: int | None = None
        least = most = None
        for block in times.blocks(1):
            column = pl.Series(block.astype("datetime64[ns]") if block.dtype.kind == "M" else block)
            ticks, tick = ticks_of(column, f"{file}, array {name!r}", *units, None)
            writer.append("ticks", ticks)
            known = ticks[np.isfinite(ticks)]
            least = known.min() if least is None else min(least, known.min())
            most = known.max() if most is None else max(most, known.max())
        ticks = writer.array("ticks")
        cut = range(0, len(ticks), _BLOCK)
        blocks = (elapsed(ticks[low : low + _BLOCK], tick, time_unit, least, most) for low in cut)
    if shared:
        row = np.concatenate(list(blocks))
        blocks = (row for _ in range(len(lengths)))
    for block in blocks:
        writer.append("times", block)
    writer.drop("ticks")


def _of_points(file: Path, name: str, member: Member, n: int) -> None:
    if member.size != n:
        raise InputError(
            f"{file}: {name} must have one number per point of x ({n} points), found {member.size}: give it x's shape."
        )


def _numeric(file: Path, name: str, member: Member, width: int) -> Iterator[NDArray[np.float64]]:
    if member.dtype.kind not in "fiub":
        raise InputError(f"{file}: {name} must be numeric, found {member.dtype}: pass arrays of real numbers.")
    return (np.asarray(block, dtype=np.float64) for block in member.blocks(width))


def _npy(file: Path) -> Member:
    try:
        check_declared(file)
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except Exception as error:
        raise _refusal(file, error) from None
    if not array.flags.c_contiguous:
        raise InputError(
            f"{file}: an array in C order was expected, found Fortran order: save np.ascontiguousarray of it."
        )
    flat = array.reshape(-1)

    def blocks(width: int) -> Iterator[NDArray[Any]]:
        step = max(1, _BLOCK // width) * width
        return (np.array(flat[low : low + step]) for low in range(0, len(flat), step))

    return Member(array.shape, array.dtype, blocks)


def _npz(file: Path) -> dict[str, Member]:
    try:
        with zipfile.ZipFile(file) as archive:
            return {
                name.removesuffix(".npy"): _zipped(file, name) for name in archive.namelist() if name.endswith(".npy")
            }
    except Exception as error:
        raise _refusal(file, error) from None


def _zipped(file: Path, name: str) -> Member:
    with zipfile.ZipFile(file) as archive, archive.open(name) as stream:
        shape, fortran, dtype, start = read_header(stream, archive.getinfo(name).file_size)
    if fortran and len(shape) > 1:
        raise InputError(f"{file}: arrays in C order were expected, found {name} in Fortran order: save it again.")

    def blocks(width: int) -> Iterator[NDArray[Any]]:
        size = max(1, _BLOCK // width) * width * dtype.itemsize
        try:
            with zipfile.ZipFile(file) as archive, archive.open(name) as stream:
                stream.read(start)
                while part := stream.read(size):
                    yield np.frombuffer(part, dtype=dtype)
        except Exception as error:
            raise _refusal(file, error) from None

    return Member(shape, dtype, blocks)


def _refusal(file: Path, error: Exception) -> Exception:
    """A damaged file gives any error of the zip directory, of the compression or of Python's parser."""
    return error if isinstance(error, InputError | MemoryError) else unreadable(file, error)
