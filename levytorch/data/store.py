"""Columns of numbers, grown block by block: in memory, of which there must be enough, or on disk, and mapped from then
on.

A store is a directory of entries. An entry is named after what it was made from (the source file with its size and time
of change, the options, the steps since), so that a resumed run or another process finds it instead of making it again.
It is built under a temporary name and renamed: an entry is there complete or absent. Mapped pages belong to the file,
not to the process: the operating system drops them when memory is short.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import math
import os
import platform
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.errors import InputError
from levytorch.untrusted import read_json

RECORD = "record.json"
_FORMAT = 2
_BYTES = 1 << 23  # written at a time
KINDS = ("<f8", "<i8")
_MOST = 1 << 48  # rows or numbers per row
_SMALL = 1 << 26  # bytes of memory that nobody needs to ask for


class Sink(Protocol):
    """Columns that grow: `MemoryColumns`, or `Writer` on disk."""

    def append(self, name: str, values: NDArray[Any]) -> None: ...


class MemoryColumns:
    """Columns in memory; room for `rows` is taken at once, and a block that has them all is not copied."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._columns: dict[str, NDArray[Any]] = {}
        self._filled: dict[str, int] = {}

    def append(self, name: str, values: NDArray[Any]) -> None:
        start = self._filled.get(name, 0)
        if start == 0 and len(values) == self.rows:
            self._columns[name] = values
        else:
            if name not in self._columns:
                self._columns[name] = np.empty((self.rows, *values.shape[1:]), dtype=values.dtype)
            self._columns[name][start : start + len(values)] = values
        self._filled[name] = start + len(values)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All columns; room that was not needed is given back."""
        for name, column in self._columns.items():
            if self._filled[name] < len(column):
                column.resize((self._filled[name], *column.shape[1:]), refcheck=False)
        return self._columns


def as_tensor(values: NDArray[Any]) -> Tensor:
    """A tensor that shares the memory of an array, read-only ones included."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(np.asarray(values))


class Writer:
    """Columns of one entry, each grown by `append`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[str, BinaryIO] = {}
        self.shapes: dict[str, list[Any]] = {}

    def append(self, name: str, values: NDArray[Any]) -> None:
        """More rows of a column; float64 or int64."""
        kind = "<i8" if values.dtype.kind == "i" else "<f8"
        if name not in self._files:
            self._files[name] = (self.directory / name).open("wb")
            self.shapes[name] = [kind, 0, *values.shape[1:]]
        rows = max(1, _BYTES // max(8, 8 * int(np.prod(values.shape[1:]))))
        for low in range(0, len(values), rows):
            self._files[name].write(np.ascontiguousarray(values[low : low + rows], dtype=kind).data)
        self.shapes[name][1] += len(values)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


class Entry:
    """A finished entry: `array(name)` maps a column, `record` holds what is not an array."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            content = read_json(directory / RECORD, largest=None)  # the names of all trajectories may be in it
        except InputError:
            raise self.spoiled(f"a {RECORD} that is no JSON") from None
        if not isinstance(content, dict) or not all(isinstance(content.get(k), dict) for k in ("record", "shapes")):
            raise self.spoiled(f"no record and shapes in {RECORD}")
        self.record: dict[str, Any] = content["record"]
        self._shapes: dict[str, list[Any]] = content["shapes"]
        for name, form in self._shapes.items():
            self._check(name, form)
        self._parts: tuple[str, ...] = ()

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def array(self, name: str) -> NDArray[Any]:
        """A column, mapped read-only."""
        if name not in self._shapes:
            raise self.spoiled(f"no column {name}")
        return _mapped(self.directory / name, self._shapes[name])

    def _check(self, name: str, form: Any) -> None:
        """Refuse what `Writer` does not write: bytes taken for objects would be followed as addresses."""
        sound = isinstance(form, list) and len(form) in (2, 3) and form[0] in KINDS
        if not sound or not all(type(n) is int and 0 <= n < _MOST for n in form[1:]):
            raise self.spoiled(f"{str(form)[:60]} as the form of {name}")
        file = self.directory / name
        if "/" in name or name in ("", ".", "..") or not file.is_file():
            raise self.spoiled(f"no file of the column {name[:60]!r}")
        told_bytes, held_bytes = 8 * math.prod(form[1:]), file.stat().st_size
        if told_bytes != held_bytes:
            raise self.spoiled(f"{held_bytes} bytes instead of {told_bytes} in {name}")

    def columns(self, names: Iterable[str], rows: int, dim: int) -> dict[str, NDArray[Any]]:
        """Columns of one number per row, x and dx of one state; refused where they do not go together."""
        found = {name: self.array(name) for name in names}
        for name, column in found.items():
            expected = (rows, dim) if dim > 1 and name in ("x", "dx") else (rows,)
            if column.shape != expected or column.dtype != "<f8":
                raise self.spoiled(f"{name} of shape {column.shape} instead of {expected}")
        return found

    def spoiled(self, found: str) -> InputError:
        """The refusal of an entry that levytorch did not leave so."""
        cache = self.directory.parent
        return InputError(
            f"{self.directory} must be as on_disk wrote it, found {found}; delete {cache}, and it is made again."
        )

    def part(self, name: str) -> Entry:
        """The same entry, remembered to be used in part: what is derived from the part is kept apart."""
        other = copy.copy(self)
        other._parts = (*self._parts, name)
        return other

    def derive(self, step: Mapping[str, Any], build: Callable[[Writer], Mapping[str, Any]]) -> Entry:
        """What `build` makes of this entry, in an entry of its own."""
        return make(self.directory.parent, {"from": [self.directory.name, *self._parts], **step}, build)


def make(directory: Path, recipe: Mapping[str, Any], build: Callable[[Writer], Mapping[str, Any]]) -> Entry:
    """The entry of a recipe; `build` writes its columns and returns its record, unless it is there already."""
    text = json.dumps({"format": _FORMAT, **recipe}, sort_keys=True, default=str)
    target = directory / hashlib.sha256(text.encode()).hexdigest()[:24]
    if (target / RECORD).is_file():
        return Entry(target)
    # several machines may share the directory, and containers may share process numbers
    here = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
    temporary = directory / f".{target.name}.{here}-{secrets.token_hex(4)}.{os.getpid()}.tmp"
    for leftover in directory.glob(f".{target.name}.{here}-*.tmp"):
        if not _alive(int(leftover.name.split(".")[-2])):  # what a killed process of this machine was making
            shutil.rmtree(leftover, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        writer = Writer(temporary)
        try:
            record = build(writer)
        finally:
            writer.close()
        content = {"record": dict(record), "shapes": writer.shapes, "recipe": json.loads(text)}
        (temporary / RECORD).write_text(json.dumps(content), encoding="utf-8")
        try:
            temporary.rename(target)
        except OSError:
            if not (target / RECORD).is_file():  # else another process was faster, and made the same
                raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f"on_disk must have room for the data, found the disk of {directory} full; free some, or name another "
                "directory."
            ) from None
        if error.errno in (errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise InputError(
                f"on_disk must be a directory that can be written to, found {directory} ({error.strerror}); name "
                "another."
            ) from None
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Entry(target)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def _mapped(file: Path, form: list[Any]) -> NDArray[Any]:
    kind, *shape = form
    if 0 in shape:  # an empty file cannot be mapped
        return np.empty(shape, dtype=kind)
    return np.memmap(file, dtype=kind, mode="r", shape=tuple(shape))


def digest(values: NDArray[Any]) -> str:
    """A name for the content of an array."""
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()[:24]


# ----------------------------------------------------------------------------------------------------------- memory


def available_memory() -> float:
    """Bytes left: of the machine, of the control group and of the process's own limits; infinite where unknown."""
    status = _fields(Path("/proc/self/status"))
    left = [_fields(Path("/proc/meminfo")).get("MemAvailable", float("inf"))]
    try:
        import resource

        for limit, used in ((resource.RLIMIT_DATA, "VmData"), (resource.RLIMIT_AS, "VmSize")):
            soft = resource.getrlimit(limit)[0]
            if soft != resource.RLIM_INFINITY and used in status:
                left.append(soft - status[used])
    except ImportError:  # not on Windows
        pass
    group = Path("/sys/fs/cgroup")
    try:
        most = (group / "memory.max").read_text().strip()
        if most != "max":
            left.append(int(most) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(0.0, min(left))


def require_memory(file: Any, rows: int, columns: int) -> None:
    """Refuse a table that cannot fit: x, dx and dt of every row, and the columns they are made of."""
    needed = 8 * rows * (columns + 2)
    if needed < _SMALL:
        return
    left = available_memory()
    if needed > left:
        raise too_large(file, f"about {_size(needed)} for {rows:,} rows", f"{_size(left)} left")


def physical_memory() -> int:
    """Bytes of the machine's memory; no limit where that cannot be asked."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


@contextmanager
def within_memory(file: Any, size: int = 0) -> Iterator[None]:
    """An allocation that fails while a file is read, as a sentence with a remedy. size: its bytes, if that is known."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        raise too_large(file, f"more for {_size(size)} on disk" if size else "all of it", "none left") from None


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that memory could not be had (torch has no type of its own for that)."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def too_large(file: Any, needed: str, found: str) -> InputError:
    return InputError(f"{file}: memory must hold the data, {needed}, found {found}; pass on_disk=<directory>.")


def _fields(file: Path) -> dict[str, float]:
    """Numbers of a /proc file, in bytes."""
    try:
        lines = [line.split() for line in file.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0].rstrip(":"): 1024.0 * int(line[1]) for line in lines if len(line) == 3 and line[2] == "kB"}


def _size(bytes: float) -> str:
    return f"{bytes / 2**30:.1f} GiB" if bytes >= 2**30 else f"{bytes / 2**20:.0f} MiB"
