"""Shared by all figures: panels without pyplot, and saving as PNG and PDF at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRUTH = {"color": "black", "linewidth": 1.2, "label": "truth"}
COLORS = {"b": "tab:blue", "D_o": "tab:orange", "D_f": "tab:green", "alpha": "tab:purple"}
SYMBOLS = {"b": r"$b(x)$", "D_o": r"$D_o(x)$", "D_f": r"$D_f(x)$", "alpha": r"$\alpha(x)$"}


def new_axes(
    rows: int, columns: int, *, width: float = 4.0, height: float = 3.0
) -> tuple[Figure, np.ndarray[Any, Any]]:
    """A figure of rows x columns panels that belongs to nobody's global state; axes is always a 2-d array."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(fig)
    return fig, fig.subplots(rows, columns, squeeze=False)


def panels(axes: Any, count: int, **size: float) -> tuple[Figure, list[Axes]]:
    """Given axes (one or many), or a new row of `count` panels."""
    if axes is None:
        fig, grid = new_axes(1, count, **size)
        return fig, list(grid[0])
    flat = [axes] if not np.iterable(axes) else list(np.asarray(axes, dtype=object).ravel())
    return flat[0].figure, flat


def save(
    fig: Figure, path: str | os.PathLike[str], *, dpi: int = 130, formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """Write <path>.png and <path>.pdf (path without suffix); each file appears whole or not at all."""
    stem = Path(path)
    written = []
    for suffix in formats:
        target = stem.with_name(f"{stem.name}.{suffix}")
        with replacing(target) as temporary:
            fig.savefig(temporary, dpi=dpi, format=suffix)
        written.append(target)
    return written
