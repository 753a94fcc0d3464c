"""Training: coefficients out of transitions. Lightning is imported when a fit starts, not before."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_HOME = {
    "Diagnosis": "levytorch.training.diagnostics",
    "diagnose": "levytorch.training.diagnostics",
    "recover": "levytorch.training.api",
    "Recovery": "levytorch.training.recovery",
    "FrozenLaw": "levytorch.training.law",
    "LevyModule": "levytorch.training.module",
    "TailSettings": "levytorch.training.tail",
}

__all__ = ["Diagnosis", "FrozenLaw", "LevyModule", "Recovery", "TailSettings", "diagnose", "recover"]

if TYPE_CHECKING:
    from levytorch.training.api import recover
    from levytorch.training.diagnostics import Diagnosis, diagnose
    from levytorch.training.law import FrozenLaw
    from levytorch.training.module import LevyModule
    from levytorch.training.recovery import Recovery
    from levytorch.training.tail import TailSettings


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'levytorch.training' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}"
        )
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
