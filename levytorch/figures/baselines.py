"""V of the model beside what one would use instead of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.figures.base import OTHERS, SMALL, ZERO, AxisNames, new_axes, panels, tidy
from levytorch.figures.values import Band, draw_band, group_colors, limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
_FAR = 10.0  # sizes of one's own curves beyond which another one leaves the panel


def baselines(
    x: Array,
    bands: Sequence[Band],
    others: Mapping[str, tuple[Array, Array]],
    *,
    reference: Array | None = None,
    reference_label: str = "reference",
    axes: Sequence[Axes] | None = None,
    units: AxisNames | None = None,
) -> tuple[Figure, list[Axes]]:
    """V of every group and of every other estimate with its 95 % band (upper panel), and their differences to the
    reference (lower panel, when there is one).

    others: (V, half width of its band) by name.
    """
    rows = 1 if reference is None else 2
    if axes is None:
        lines = -(-(len(bands) + len(others) + 1) // 3)
        margins = {"top": 0.25 + 0.18 * lines, "left": 0.85, "gap_y": 0.4}
        fig, grid = new_axes(rows, 1, width=6.4, height=3.0, margins=margins)
        axs = list(grid[:, 0])
    else:
        fig, axs = panels(axes, rows)
    own = group_colors([band.label for band in bands])
    left = [color for color in OTHERS if color not in own]
    for ax, shift in zip(axs, (0.0, reference)):
        assert shift is not None
        for number, (name, (center, width)) in enumerate(others.items()):
            color, low, high = left[number % len(left)], center - width - shift, center + width - shift
            ax.plot(x, center - shift, color=color, linewidth=1.2, label=name)
            ax.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)
        for band, color in zip(bands, own):
            draw_band(ax, x, band, color, shift)
        edges = [band.center - shift for band in bands]
        if reference is not None:
            edges.append(reference - shift)
            if ax is axs[0]:
                ax.plot(x, reference, color="black", linewidth=1.2, linestyle="--", label=reference_label)
        limits(ax, _shown(np.concatenate(edges), [center - shift for center, _ in others.values()]))
        ax.margins(x=0)
        tidy(ax)
    axs[0].set_ylabel("V(x)")
    if reference is not None and len(axs) > 1:
        axs[1].axhline(0.0, **ZERO)
        axs[1].set_ylabel(f"V(x) - {reference_label}")
    axs[0].legend(
        frameon=False, fontsize=SMALL, ncols=3, columnspacing=1.0, loc="lower center", bbox_to_anchor=(0.5, 1.0)
    )
    axs[-1].set_xlabel((units or AxisNames()).x)
    return fig, axs


def _shown(own: Array, others: Sequence[Array]) -> Array:
    """What fits into a panel: one's own curves, and the others as far as they stay within some sizes of these."""
    low, high = float(own.min()), float(own.max())
    room = _FAR * max(high - low, 1e-300)
    return np.concatenate([own, *(np.clip(curve, low - room, high + room) for curve in others)])
