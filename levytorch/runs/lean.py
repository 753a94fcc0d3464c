"""What a command does before anything else: imports without a search for garbage, Lightning without what no run uses,
and threads that wait asleep.

Lightning imports torch's compiler for one class to compare with, and torchmetrics, which it imports, SciPy's signal
processing to mend a name in it: a third of what it takes to import. Placeholders stand for both meanwhile, and are
gone afterwards: whoever wants the real ones imports them as ever.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


def let_threads_sleep() -> None:
    """To be called before torch is imported."""
    # threads that spin while they wait for each other stand still together where a machine has other work to do
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@contextmanager
def importing() -> Iterator[None]:
    """Around imports: what they make stays, and is not looked through for garbage, then or later."""
    enabled, modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > modules:  # not in every run of a sweep
            gc.freeze()
        if enabled:
            gc.enable()


def import_lightning() -> None:
    """As `import lightning`."""
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
