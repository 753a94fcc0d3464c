"""numba's njit with a cache on disk that several kinds of processors can share.

The index of numba's cache knows the processor and its features, so a kernel is loaded only where it was compiled. But
an index is read, extended and written, and its code written after it: two machines that compile one kernel into the
same directory at the same moment (a sweep over a cluster, with one home directory) can leave an index that hands one
of them the code of the other. So every kind of processor has files of its own.

Code from the cache needs numba's runtime alone, not its compiler (`levytorch.startup.quick_cache`).

All of levytorch imports numba from here, so that numba reads no settings from the current directory.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from levytorch.startup import quick_cache
from levytorch.working_directory import NUMBA_SETTINGS, ignoring

_first = "numba" not in sys.modules
with ignoring(NUMBA_SETTINGS):
    from numba import njit, types
    from numba.core import cgutils, config
    from numba.core.caching import FunctionCache
    from numba.core.registry import cpu_target
    from numba.core.runtime import rtsys
    from numba.extending import intrinsic
if _first:  # if numba was imported before, its settings are chosen already
    config._config_fname = os.devnull  # numba looks for its settings again whenever it compiles

__all__ = ["cached_njit", "cgutils", "intrinsic", "njit", "processor", "types"]


@cache
def processor() -> str:
    """What numba compiles for, as it stands in the names of files: the processor and a checksum of its features."""
    triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    return f"{name}-{zlib.crc32(f'{triple} {features}'.encode()):08x}"


Cache = quick_cache(FunctionCache)
rtsys.initialize(cpu_target.target_context)  # compiled code calls functions of the runtime by their address


def cached_njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: njit(cache=True, **options), with the processor in the name of the cache's files."""

    def decorate(function: Callable[..., Any]) -> Any:
        function.__qualname__ += f".{processor()}"  # of which numba makes the name
        dispatcher = njit(**options)(function)
        dispatcher._cache = Cache(function)  # as cache=True does with numba's own
        return dispatcher

    return decorate
