"""Observed paths over time, with their largest steps marked: what data with jumps looks like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.convert import Array, whole_number
from levytorch.figures.base import DATA, OTHERS, RECOVERED, AxisNames, legend_above, panels, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_JUMP = 8.0  # a step of so many times the usual one is marked
_COLORS = (RECOVERED, *OTHERS)
_POINTS = 2000  # of a path that are drawn; a longer one is cut
_SHARE = 0.99  # of the states that set the scale of a panel


def paths(
    trajectories: Any,
    n: int = 4,
    *,
    axes: Sequence[Axes] | None = None,
    units: AxisNames | None = None,
) -> tuple[Figure, list[Axes]]:
    """The first n paths, one panel per coordinate; steps of more than eight times the median step are marked.

    A path of more than 2000 points is drawn up to its 2000th. The panel shows the central 99 % of the states and a
    margin, so that one far excursion does not set the scale.

    Args:
        trajectories: the paths.
        n: how many of them to draw.
        axes: axes to draw on, one per coordinate; None makes a figure.
        units: names for the axes.

    Returns:
        (fig, axes).

    Example:
        >>> from levytorch import Trajectories
        >>> fig, axes = paths(Trajectories.from_arrays([[0.0, 1.0, 3.0]], dt=0.1))
        >>> len(axes)
        1
    """
    count = min(whole_number("n", n, 1), len(trajectories))
    units = units or AxisNames()
    fig, axs = panels(axes, trajectories.dim, width=7.2 if trajectories.dim == 1 else 4.6, height=3.0, margins={})
    for coordinate, ax in enumerate(axs[: trajectories.dim]):
        _draw(ax, trajectories, count, coordinate)
        ax.set_xlabel(f"time ({units.time})" if units.time else "time")
        ax.set_ylabel(units.x if trajectories.dim == 1 else f"$x_{coordinate + 1}$")
        tidy(ax)
    legend_above(axs[0])
    return fig, axs


def _draw(ax: Axes, t: Any, count: int, coordinate: int) -> None:
    shown, large = [], []
    for k in range(count):
        start = int(t.offsets[k])
        stop = min(int(t.offsets[k + 1]), start + _POINTS)
        x = np.asarray(t.x[start:stop]).reshape(stop - start, -1)[:, coordinate]
        time = t.dt * np.arange(len(x)) if t.times is None else np.asarray(t.times[start:stop])
        time = time - time[0]
        ax.plot(time, x, color=_COLORS[k % len(_COLORS)], linewidth=0.9, label=_name(t, k) if count > 1 else None)
        shown.append(x)
        far = jumps(x)
        if len(far):
            ends = np.stack([far, far + 1], axis=1).reshape(-1)
            large.append(np.stack([time[ends], x[ends]]))
    if large:
        ax.plot(*np.concatenate(large, axis=1), "o", color="black", markersize=2.4, label="large steps")
    low, high = np.quantile(np.concatenate(shown), [(1 - _SHARE) / 2, (1 + _SHARE) / 2])
    room = 0.12 * max(high - low, 1e-12)
    ax.set_ylim(low - room, high + room)
    ax.axhline(0.0, color=DATA, linewidth=0.5, alpha=0.4)
    ax.margins(x=0.01)


def jumps(x: Array) -> Any:
    """Numbers of the points from which a step of more than _JUMP times the median step starts."""
    steps = np.abs(np.diff(x) - np.median(np.diff(x)))
    usual = float(np.median(steps))
    return np.flatnonzero(steps > _JUMP * usual) if usual > 0 else np.empty(0, dtype=np.int64)


def _name(t: Any, k: int) -> str:
    return f"path {k + 1}" if t.ids is None else str(t.ids[k])[:24]
