"""The arrays of a .npy or .npz file, not loaded: what they say about themselves, and their numbers block by block.

A header of a few bytes can ask for terabytes, and a few kilobytes of a .npz can unpack to them: what is declared is
checked before memory is taken for it. Pickled objects are never loaded.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from levytorch.data import memory
from levytorch.errors import InputError

_HEADER = 16384  # bytes; numpy itself reads headers of at most 10000


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


def members_of(file: Path, whole: bool) -> dict[str, Member]:
    """The arrays of a file by name; those that are read as a `whole` must fit into the machine's memory."""
    with _reading(file):
        if file.suffix.lower() == ".npy":
            with file.open("rb") as stream:
                shape, _, dtype, _ = _header(stream, file.stat().st_size)
            return {"x": Member(shape, dtype, lambda: _load(file), lambda size: _mapped(file, size))}
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            total = sum(member.file_size for member in members)
            most = memory.physical()
            if whole and total > most:
                raise ValueError(f"{total / 2**30:.3g} GiB when unpacked, more than the {most / 2**30:.3g} of memory")
            arrays = [member for member in members if member.filename.endswith(".npy")]
            return {member.filename.removesuffix(".npy"): _member(file, archive, member) for member in arrays}


def _member(file: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    with archive.open(info) as stream:
        shape, fortran, dtype, start = _header(stream, info.file_size)

    def blocks(size: int) -> Iterator[NDArray[Any]]:
        if fortran and len(shape) > 1:
            raise _fortran(file)
        with _reading(file), zipfile.ZipFile(file) as archive, archive.open(info.filename) as stream:
            stream.read(start)
            while part := stream.read(size * dtype.itemsize):
                yield np.frombuffer(part, dtype=dtype)

    return Member(shape, dtype, lambda: _load(file, info.filename), blocks)


def _load(file: Path, name: str | None = None) -> NDArray[Any]:
    with _reading(file):
        loaded = np.load(file, allow_pickle=False)
        if name is None:
            return loaded
        with loaded:
            return loaded[name]


def _mapped(file: Path, size: int) -> Iterator[NDArray[Any]]:
    array = np.load(file, mmap_mode="r", allow_pickle=False)
    if not array.flags.c_contiguous:
        raise _fortran(file)
    flat = array.reshape(-1)
    return (np.array(flat[low : low + size]) for low in range(0, len(flat), size))


def _header(stream: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, Fortran order, type and start of the array in a stream of `size` bytes, which is read a little beyond.

    ValueError unless plain numbers or text of that size follow.
    """
    head = io.BytesIO(stream.read(_HEADER))  # no more: a header may declare a length of gigabytes itself
    version = np.lib.format.read_magic(head)
    read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = read(head)
    except (MemoryError, RecursionError):  # of Python's parser: says nothing about memory
        raise ValueError("a header that is nested too deeply") from None
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    if dtype.itemsize == 0 or any(n < 0 for n in shape):  # would be of any number at no size
        raise ValueError(f"an array of shape {str(shape)[:60]} and type {dtype}")
    declared, held = math.prod(shape) * dtype.itemsize, size - head.tell()
    if declared != held:
        raise ValueError(f"a header that declares {str(declared)[:30]} bytes in front of {held}")
    return shape, fortran, dtype, head.tell()


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """A damaged file gives any error of the zip directory, of the compression or of Python's parser."""
    try:
        yield
    except (InputError, MemoryError):  # a shortage is said by the caller, with a remedy
        raise
    except Exception as error:
        told = " ".join(str(error).split())[:200]
        raise InputError(
            f"{file}: a {file.suffix} file of plain arrays was expected, found {told}; save it again."
        ) from None


def _fortran(file: Path) -> InputError:
    return InputError(f"{file}: arrays in C order were expected, found Fortran order; save np.ascontiguousarray of it.")
