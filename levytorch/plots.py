"""What a method called `plot` does: call the function of figures/ that draws its object.

figures/ builds on every other package, so that none of them can import it. It is therefore found by name, at the first
plot, which is also when matplotlib is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_DRAWN_BY = {
    "trajectories": ("levytorch.figures.trajectories", "paths"),
    "recovery": ("levytorch.figures.coefficients", "recovery"),
    "value": ("levytorch.figures.values", "value"),
    "diagnosis": ("levytorch.figures.diagnostics", "overview"),
    "card": ("levytorch.figures.card", "card"),
}


def plotted(kind: str, subject: Any, **options: Any) -> tuple[Any, Any]:
    """(fig, axes) of an object of this kind."""
    module, function = _DRAWN_BY[kind]
    return getattr(import_module(module), function)(subject, **options)
