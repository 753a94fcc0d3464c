"""What a .npy or .npz file says about itself, checked before memory is taken for it.

A header of a few bytes can ask for terabytes, and a few kilobytes of a .npz can unpack to them.
"""

from __future__ import annotations

import io
import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

_HEADER = 16384  # bytes; numpy itself reads headers of at most 10000


class Header(NamedTuple):
    """What stands in front of an array, and where the array starts."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    start: int


def check_declared(file: Path) -> None:
    """Raise ValueError when the arrays are not plain, not as large as declared, or larger than the machine's memory."""
    if file.suffix.lower() == ".npy":
        with file.open("rb") as stream:
            read_header(stream, file.stat().st_size)
        return
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        if total > memory():
            raise ValueError(f"{total / 2**30:.3g} GiB when unpacked, more than the {memory() / 2**30:.3g} of memory")
        for member in members:
            if member.filename.endswith(".npy"):
                with archive.open(member) as stream:
                    read_header(stream, member.file_size)


def memory() -> int:
    """Bytes of physical memory; no limit where that cannot be asked."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


def read_header(stream: IO[bytes], size: int) -> Header:
    """The header at the start of a stream of `size` bytes; ValueError unless plain numbers or text of its size follow.

    The stream is read a little beyond the header.
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
    return Header(shape, fortran, dtype, head.tell())
