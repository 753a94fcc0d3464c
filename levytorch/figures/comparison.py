"""Coefficients of several fits in one figure, one color per fit, beside the truth where it is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.convert import Array
from levytorch.figures.base import TRUTH, angles, legend_above, panels, plain, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", ":", "-.")  # when there are more fits than colors


def overlaid(
    curves: Mapping[str, Mapping[str, Array]], *, axes: Any = None, period: float | None = None, band: float = 1.96
) -> tuple[Figure, list[Axes]]:
    """One panel per coefficient, one line per fit with its pointwise band.

    Args:
        curves: the columns of every fit by its label, from `coefficient_curves` or from curves.csv of a run.
        axes: axes to draw on; None makes a figure.
        period: the period of the states, for ticks at angles.
        band: half the width of a band, in standard errors.

    Returns:
        (fig, axes).

    Example:
        >>> from levytorch import Dynamics
        >>> from levytorch.figures.coefficients import coefficient_curves
        >>> fig, axes = overlaid({name: coefficient_curves(Dynamics.named(name)) for name in ("constant", "variable")})
        >>> len(axes)
        3
    """
    names = [name for name in ("b", "D_o", "D_f", "alpha") if any(name in one for one in curves.values())]
    fig, axs = panels(axes, len(names), width=3.8, height=3.4, margins={"top": 0.6})
    for ax, name in zip(axs, names):
        for number, (label, one) in enumerate(curves.items()):
            if name not in one:
                continue
            color, style = COLORS[number % len(COLORS)], STYLES[number // len(COLORS) % len(STYLES)]
            ax.plot(one["x"], one[name], color=color, linestyle=style, linewidth=1.5, label=plain(label), zorder=3)
            if f"{name}_std" in one:
                spread = band * one[f"{name}_std"]
                ax.fill_between(one["x"], one[name] - spread, one[name] + spread, color=color, alpha=0.12, linewidth=0)
        truth = next((one for one in curves.values() if f"{name}_truth" in one), None)
        if truth is not None:
            ax.plot(truth["x"], truth[f"{name}_truth"], **{**TRUTH, "linestyle": "--"}, zorder=4)
        low, high = max(one["x"][0] for one in curves.values()), min(one["x"][-1] for one in curves.values())
        shared = [one[name][(one["x"] >= low) & (one["x"] <= high)] for one in curves.values() if name in one]
        if low < high and all(len(values) for values in shared):
            ax.set_xlim(low, high)
            _limit(ax, shared)
        if name != "b":
            ax.set_ylim(bottom=0.0)
        ax.set_xlabel("x")
        ax.set_ylabel(name)
        tidy(ax)
        angles(ax, period)
    legend_above(axs[0])
    return fig, axs


def _limit(ax: Axes, curves: list[Array]) -> None:
    """What the fits themselves span, and half as much again: a band may be far wider where there is no data."""
    low, high = min(float(np.min(c)) for c in curves), max(float(np.max(c)) for c in curves)
    margin = 0.25 * max(high - low, 1e-12 + 0.1 * max(abs(low), abs(high)))
    ax.set_ylim(low - margin, high + margin)
