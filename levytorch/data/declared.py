"""What a .npy or .npz file says about itself, checked before memory is taken for it.

A header of a few bytes can ask for terabytes, and a few kilobytes of a .npz can unpack to them.
"""

from __future__ import annotations

import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np


def check_declared(file: Path) -> None:
    """Raise ValueError when the arrays are not plain, not as large as declared, or larger than the machine's memory."""
    if file.suffix.lower() == ".npy":
        with file.open("rb") as stream:
            _check_array(stream, file.stat().st_size)
        return
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        if total > memory():
            raise ValueError(f"{total / 2**30:.3g} GiB when unpacked, more than the {memory() / 2**30:.3g} of memory")
        for member in members:
            if member.filename.endswith(".npy"):
                with archive.open(member) as stream:
                    _check_array(stream, member.file_size)


def memory() -> int:
    """Bytes of physical memory; no limit where that cannot be asked."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 1 << 62


def _check_array(stream: IO[bytes], size: int) -> None:
    version = np.lib.format.read_magic(stream)
    read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("an array of Python objects")
    declared, held = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if declared != held:
        raise ValueError(f"a header that declares {declared} bytes in front of {held}")
