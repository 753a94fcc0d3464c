"""Figure 10: the paths of b, D_o, D_f over the steps of Algorithm B.1, and their moving averages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.paper.collect import COEFFICIENTS, Record, Runs
from benchmarks.paper.replicas import need
from levytorch.errors import InputError
from levytorch.figures.base import COLORS, SYMBOLS, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]


def learning_history(runs: Runs) -> tuple[Figure, list[Axes]]:
    """The longest Adam run: histories light, moving averages bold, truth dashed; right: the framed part, D_f alone."""
    record = max(need(runs, "Figure 10", engine="adam"), key=lambda r: r.number("steps"))
    history = record.history()
    if len(history["step"]) < 3 or any(f"mean/{name}" not in history for name in COEFFICIENTS):
        raise InputError(f"a history of at least 3 entries was expected, found less in {record.path}; log more often.")
    step, window = history["step"], int(record.setting("engine.window", 20_000))
    truth = record.curves()
    fig, (left, right) = panels(None, 2, width=5.0, height=3.4)
    for name in COEFFICIENTS:
        symbol = f"{SYMBOLS[name][:-4]}$"
        for ax in (left, right) if name == "D_f" else (left,):
            ax.plot(step, history[f"mean/{name}"], color=COLORS[name], linewidth=0.5, alpha=0.35)
            average = moving_average(step, history[f"mean/{name}"], window)
            label = f"{symbol}, average of {window:,} steps"
            ax.plot(step, average, color=COLORS[name], linewidth=2.0, label=label)
            if f"{name}_truth" in truth:
                level = float(np.mean(truth[f"{name}_truth"][:-1]))
                ax.axhline(level, color="black", linewidth=0.8, linestyle="--")
    _enlarge(left, right, record, step, history["mean/D_f"])
    for ax in (left, right):
        ax.set_xlabel("step")
        ax.margins(x=0)
        ax.legend(frameon=False, fontsize="small", loc="lower right")
    low, high = left.get_ylim()
    left.set_ylim(low - 0.3 * (high - low), high)  # room for the legend
    n = record.setting("data.n_trajectories")
    left.set_title(f"{int(record.number('steps')):,} steps of Adam, {n:,} trajectories", fontsize="medium")
    right.set_title("the framed part: $D_f$", fontsize="medium")
    return fig, [left, right]


def moving_average(step: Array, values: Array, window: int) -> Array:
    """Mean over the entries of the last `window` steps (of all of them, before there are so many)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    first = np.searchsorted(step, step - window, side="right")
    last = np.arange(1, len(step) + 1)
    return (total[last] - total[first]) / (last - first)


def _enlarge(left: Axes, right: Axes, record: Record, step: Array, D_f: Array) -> None:
    """The right panel shows D_f without its way from the start; a red frame on the left says where that is."""
    from matplotlib.patches import Rectangle

    settled = step >= 0.1 * step[-1]
    low, high = float(D_f[settled].min()), float(D_f[settled].max())
    room = 0.15 * max(high - low, 1e-9)
    first = float(step[settled][0])
    right.set_xlim(first, float(step[-1]))
    right.set_ylim(low - room, high + room)
    frame = Rectangle(
        (first, low - room), float(step[-1]) - first, high - low + 2 * room, fill=False, edgecolor="red", linewidth=1.2
    )
    left.add_patch(frame)
