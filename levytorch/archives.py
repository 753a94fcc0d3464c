"""Archives from someone else, counted before anything is allocated: one budget for lattices, recoveries, checkpoints.

levytorch writes its archives uncompressed, with names it knows. So whatever a file unpacks to, and every tensor that it
describes, must fit into the bytes that the file has on disk.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MOST_MEMBERS = 4096
MOST_LEVELS = 50  # of nesting
MOST_BITS = 64  # of a whole number
SHARED = 4  # times the size of the file: tensors may share their numbers
_TORCH_NAMES = re.compile(r"[^/]+/(data\.pkl|data/\d+|byteorder|version|\.data/serialization_id|\.\w+)")
_SIZES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2}
_SIZES |= {"Char": 1, "Byte": 1, "Bool": 1, "ComplexDouble": 16, "ComplexFloat": 8}


@contextmanager
def opened(file: Path, names: Collection[str] | re.Pattern[str]) -> Iterator[zipfile.ZipFile]:
    """An archive of some of these names, none twice, that unpacks to no more than its own size; else ValueError."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if len(members) > MOST_MEMBERS:
            raise ValueError(f"{len(members)} members, more than {MOST_MEMBERS}")
        for name, times in Counter(member.filename for member in members).items():
            expected = names.fullmatch(name) if isinstance(names, re.Pattern) else name in names
            if not expected or times > 1:
                raise ValueError(f"the member {name[:60]!r}, which is {'there twice' if expected else 'not expected'}")
        total, size = sum(member.file_size for member in members), file.stat().st_size
        if total > size:
            raise ValueError(f"{total} bytes when unpacked, in {size} on disk")
        yield archive


def check_tensors(file: Path) -> None:
    """ValueError unless a file of torch.save describes tensors whose numbers are all in it, and plain values."""
    with opened(file, _TORCH_NAMES) as archive:
        sizes = {info.filename.partition("/")[2]: info.file_size for info in archive.infolist()}
        (pickled,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        content = archive.read(pickled)
    _check_values(_Reader(content, sizes, SHARED * file.stat().st_size).load(), len(content))


def load_arrays(file: Path, names: Collection[str]) -> dict[str, Any]:
    """The arrays of a file of np.savez by name; ValueError unless it has these names and all that it declares."""
    arrays = {}
    with opened(file, [f"{name}.npy" for name in names]) as archive:
        for info in archive.infolist():
            content = archive.read(info)
            shape, fortran, dtype, start = array_header(io.BytesIO(content), info.file_size)
            flat = np.frombuffer(content, dtype=dtype, offset=start)
            arrays[info.filename.removesuffix(".npy")] = flat.reshape(shape, order="F" if fortran else "C").copy()
    return arrays


_HEADER = 16384  # bytes; numpy itself reads headers of at most 10000


def array_header(stream: Any, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
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
    declared, available = math.prod(shape) * dtype.itemsize, size - head.tell()
    if declared != available:
        raise ValueError(f"a header that declares {str(declared)[:30]} bytes in front of {available}")
    return shape, fortran, dtype, head.tell()


@dataclass(frozen=True)
class _Storage:
    """The numbers of some tensors, not read: how many there are, and the bytes of each."""

    n: int
    itemsize: int


class _Reader(pickle._Unpickler):  # in Python: the one in C allocates by indices
    """Goes through a pickle as torch.load would, and builds nothing: tensors are counted, other names are refused."""

    def __init__(self, content: bytes, sizes: dict[str, int], most: int) -> None:
        super().__init__(io.BytesIO(content))
        self.sizes, self.most, self.total = sizes, most, 0

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name.removesuffix("Storage") in _SIZES:
            return _SIZES[name.removesuffix("Storage")]
        known = {"_rebuild_tensor_v2": self._tensor, "_rebuild_parameter": self._parameter}
        if module != "torch._utils" or name not in known:
            raise pickle.UnpicklingError(f"the name {module[:60]}.{name[:60]}")
        return known[name]

    def persistent_load(self, pid: Any) -> _Storage:
        _, itemsize, key, _, n = pid
        if n * itemsize != self.sizes.get(f"data/{key}"):
            raise ValueError(f"a storage of {str(n)[:30]} numbers, which the file does not hold")
        return _Storage(n, itemsize)

    def _tensor(self, storage: _Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> None:
        n = math.prod(size)
        last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        if min((offset, *size, *stride)) < 0 or n > storage.n or (n and last >= storage.n):
            raise ValueError(f"a tensor of shape {str(size)[:60]} in a storage of {storage.n} numbers")
        self.total += n * storage.itemsize
        if self.total > self.most:
            raise ValueError(f"tensors of more than {self.most} bytes")

    def _parameter(self, data: None, *_: Any) -> None:
        return None


def _check_values(content: Any, most: int) -> None:
    """Refuse deep nesting, and values that refer to each other until they are more than the bytes they came from."""
    todo, count = [(content, 0)], 0
    while todo:
        value, level = todo.pop()
        count += 1
        if count > most or level > MOST_LEVELS:
            raise ValueError(f"more than {most} values" if count > most else f"more than {MOST_LEVELS} levels")
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise ValueError(f"a number of {value.bit_length()} bits")
        if isinstance(value, dict):
            todo += [(part, level + 1) for item in value.items() for part in item]
        elif isinstance(value, (list, tuple)):
            todo += [(part, level + 1) for part in value]
