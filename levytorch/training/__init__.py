"""Training: coefficients out of transitions. Lightning is imported when a fit starts, not before."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "recover": "levytorch.training.api",
    "Recovery": "levytorch.training.recovery",
    "FrozenLaw": "levytorch.likelihood.frozen",
    "LevyModule": "levytorch.training.module",
    "TailSettings": "levytorch.likelihood.tail",
}

__all__ = ["FrozenLaw", "LevyModule", "Recovery", "TailSettings", "recover"]

if TYPE_CHECKING:
    from levytorch.likelihood.frozen import FrozenLaw
    from levytorch.likelihood.tail import TailSettings
    from levytorch.training.api import recover
    from levytorch.training.module import LevyModule
    from levytorch.training.recovery import Recovery


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'levytorch.training' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}"
        )
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
