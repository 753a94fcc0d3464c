"""numba's njit with a cache on disk that several kinds of processors can share.

The index of numba's cache knows the processor and its features, so a kernel is loaded only where it was compiled. But
an index is read, extended and written, and its code written after it: two machines that compile one kernel into the
same directory at the same moment (a sweep over a cluster, with one home directory) can leave an index that hands one
of them the code of the other. So every kind of processor has files of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from numba import njit
from numba.core.registry import cpu_target


@cache
def processor() -> str:
    """What numba compiles for, as it stands in the names of files: the processor and a checksum of its features."""
    triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    return f"{name}-{zlib.crc32(f'{triple} {features}'.encode()):08x}"


def cached_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: njit(cache=True, **options), with the processor in the name of the cache's files."""

    def decorate(function: Callable[..., Any]) -> Any:
        function.__qualname__ += f".{processor()}"  # of which numba makes the name
        return njit(cache=True, **options)(function)

    return decorate
