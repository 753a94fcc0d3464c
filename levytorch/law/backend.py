"""Whether compiled kernels are there. Without numba the law runs on torch alone, slower and otherwise the same."""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

from levytorch.errors import LevytorchWarning


@cache
def kernels() -> ModuleType | None:
    """levytorch.law.kernels, or None when numba cannot be imported."""
    try:
        from levytorch.law import kernels as module
    except ImportError as error:
        warnings.warn(
            f"numba cannot be imported ({error}): the law is evaluated by torch operations, some ten times slower; "
            "install numba for the compiled kernels.",
            LevytorchWarning,
            stacklevel=2,
        )
        return None
    return module
