"""What saves time when a process starts, by means that are not public in the libraries it starts.

Everything of this kind is in this file, with the time that it saved when it was measured (processor time of one process
on one core of a server), and tests/test_startup.py fails when a library changes so that a shortcut no longer works.
Without any of them levytorch does the same, later.

- `importing`, `import_lightning`: 1.6 s instead of 5.0 s to import Lightning. It imports torch's compiler for one class
  to compare with, and torchmetrics, which it imports, imports SciPy's signal processing to mend a name in it.
  Placeholders stand for both meanwhile and are gone afterwards: the real modules are imported as usual.
  Python does not search for garbage among objects that modules have just made and that stay.
- `uncompiled`: 1.5 s of the first step of an optimiser, whose methods import torch's compiler when they are called.
- `quick_cache`: 0.5 s of the first compiled kernel. numba gets ready to compile before it looks into its cache.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from levytorch.parent import follow
from levytorch.working_directory import MATPLOTLIB_SETTINGS, NUMBA_SETTINGS, ignoring, leave_import_path


def prepare_process() -> None:
    """To be called before anything else is imported."""
    leave_import_path()
    if int(os.environ.get("LOCAL_RANK") or 0) > 0:  # started by Lightning
        follow()
    # threads that spin while they wait for each other stand still together where a machine has other work to do
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@contextmanager
def importing() -> Iterator[None]:
    """Around imports: what they make stays, and is not looked through for garbage, then or later."""
    enabled, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        with ignoring(NUMBA_SETTINGS, MATPLOTLIB_SETTINGS):
            yield
    finally:
        if len(sys.modules) > modules:  # not in every run of a sweep
            gc.freeze()
        if enabled:
            gc.enable()


def import_lightning() -> None:
    """As `import lightning`, which imports matplotlib as well."""
    if "lightning" in sys.modules:
        return
    import scipy
    import torch

    held = {"torch._dynamo": (torch, _compiler()), "scipy.signal": (scipy, _signal())}
    held = {name: pair for name, pair in held.items() if name not in sys.modules}
    for name, (parent, placeholder) in held.items():
        sys.modules[name] = placeholder
        setattr(parent, name.rpartition(".")[2], placeholder)
    try:
        import lightning.pytorch
    except Exception:  # of a version that wants more of them
        for name in [n for n in sys.modules if n.partition(".")[0] in ("lightning", "torchmetrics")]:
            del sys.modules[name]
    finally:
        for name, (parent, placeholder) in held.items():
            if sys.modules.get(name) is placeholder:
                del sys.modules[name]
                delattr(parent, name.rpartition(".")[2])
    import lightning.pytorch  # noqa: F401


class _Compiled(type):
    """Of a class that has the instances which the compiler's own has, once there is a compiler."""

    def __instancecheck__(cls, instance: Any) -> bool:
        real = sys.modules.get("torch._dynamo.eval_frame")
        return real is not None and isinstance(instance, real.OptimizedModule)


def _compiler() -> ModuleType:
    module: Any = ModuleType("torch._dynamo")
    module.OptimizedModule = _Compiled("OptimizedModule", (), {})
    module.disable = lambda function, *arguments, **options: function
    return module


def _signal() -> ModuleType:
    module: Any = ModuleType("scipy.signal")
    module.hamming = None  # the name that torchmetrics looks for
    return module


def uncompiled(method: Any) -> Any:
    """A method of torch's optimisers without the wrapper that imports torch's compiler when it is first called."""
    return getattr(method, "__wrapped__", method)


def quick_cache(function_cache: type[Any]) -> type[Any]:
    """numba's cache of a compiled function, which gets ready to compile only when there is something to compile.

    On Windows another process may hold a file, which numba's own way of loading handles: there it stays as it is.
    """
    if os.name == "nt" or not hasattr(function_cache, "_load_overload"):
        return function_cache
    return type("QuickCache", (function_cache,), {"load_overload": function_cache._load_overload})
