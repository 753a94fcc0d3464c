"""Figure 1: D_f(x) recovered from all data, from censored data with the TCF, and from censored data without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.paper.collect import Runs
from benchmarks.paper.replicas import alike, largest, need, stack
from benchmarks.paper.style import arm_color, far_of, limits, truth_line
from levytorch.figures.base import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = ("unbiased", "tcf", "none")  # the paper's order: left, middle, right
TITLES = {
    "unbiased": "unbiased data",
    "tcf": "censored, with TCF",
    "none": "censored, without TCF",
}


def comparison(runs: Runs) -> tuple[Figure, np.ndarray[Any, Any]]:
    """One row of three panels per way of fitting: levytorch's engine, and Algorithm B.1 when there are such runs."""
    chosen = alike(need(runs, "the comparison of D_f", arm=list(PANELS)), "dynamics", "dt", "alpha_true")
    ways = [literal for literal in (False, True) if len(chosen.where(literal=literal))]
    fig, axes = new_axes(len(ways), 3, width=3.6, height=2.7)
    for row, literal in zip(axes, ways):
        way = chosen.where(literal=literal)
        n = largest(way)
        for ax, arm in zip(row, PANELS):
            _panel(ax, way.where(arm=arm, n_trajectories=n), arm, f"Algorithm B.1, {n:,}" if literal else f"{n:,}")
    for ax in axes[-1]:
        ax.set_xlabel("x")
    for row in axes:
        row[0].set_ylabel("$D_f(x)$")
    return fig, axes


def _panel(ax: Axes, runs: Runs, arm: str, what: str) -> None:
    ax.set_title(f"{TITLES[arm]}\n{what} trajectories", fontsize="medium")
    ax.margins(x=0)
    if not len(runs):
        ax.set_visible(False)
        return
    x, curves, truth = stack(runs, "D_f")
    far = far_of(runs, ("D_f",))
    for curve, is_far in zip(curves, far):
        ax.plot(x, curve, color=arm_color(arm), linewidth=0.8, alpha=0.9 if is_far else 0.55)
    ax.plot([], [], color=arm_color(arm), linewidth=0.8, label=f"{len(runs)} replica{'s' if len(runs) > 1 else ''}")
    if truth is not None:
        truth_line(ax, x, truth)
        limits(ax, truth, floor=0.0, room=0.75)
    errors = np.array([record.number("error_D_f") for record in runs])
    note = f"median error {np.nanmedian(errors):.1%}, outliers {int(far.sum())}"
    ax.text(0.5, 0.03, note, transform=ax.transAxes, fontsize="small", ha="center")
    ax.legend(frameon=False, fontsize="small", loc="upper center", ncols=2, columnspacing=1.0, handlelength=1.4)
