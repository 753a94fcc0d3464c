"""Figure 5: errors against the number of trajectories and recovered curves, unbiased data, variable (Example 4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.paper.collect import COEFFICIENTS, Runs
from benchmarks.paper.replicas import alike, need, own, stack
from benchmarks.paper.statistics import DEVIATIONS, FACTOR
from benchmarks.paper.style import Group, far_of, limits, replica_band, size_boxes, truth_line
from levytorch.figures.base import COLORS, SYMBOLS, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHOWN = 100_000  # the paper's right panel


def unbiased_variable(runs: Runs) -> tuple[Figure, list[Axes]]:
    """Boxes without the outliers, then b, D_o, D_f: mean +- sd of the replicas, outliers as lines, truth dashed."""
    chosen = alike(own(need(runs, "Figure 5", arm="unbiased")), "dynamics", "dt", "alpha_true")
    fig, grid = new_axes(2, 2, width=4.6, height=2.9)
    axes = list(grid.ravel())
    sizes = chosen.unique("n_trajectories")
    removed = {n: far_of(chosen.where(n_trajectories=n), COEFFICIENTS) for n in sizes}
    groups = []
    for name in COEFFICIENTS:
        errors = {
            n: np.array([record.number(f"error_{name}") for record in chosen.where(n_trajectories=n)])[~removed[n]]
            for n in sizes
        }
        groups.append(Group(SYMBOLS[name], COLORS[name], errors))
    size_boxes(axes[0], groups)
    total, of = sum(int(far.sum()) for far in removed.values()), len(chosen)
    axes[0].set_title(
        f"relative $L^2$ error (%), {total} of {of} removed as outliers\n(error > {FACTOR:g} × median and > median + "
        f"{DEVIATIONS:g} robust sd)",
        fontsize="small",
    )
    axes[0].legend(frameon=False, fontsize="small", ncols=3)
    n = SHOWN if SHOWN in sizes else sizes[-1]
    shown = chosen.where(n_trajectories=n)
    for ax, name in zip(axes[1:], COEFFICIENTS):
        x, curves, truth = stack(shown, name)
        replica_band(ax, x, curves, removed[n], COLORS[name], "recovered")
        if truth is not None:
            truth_line(ax, x, truth)
            limits(ax, truth, floor=None if name == "b" else 0.0)
        ax.set_title(f"{SYMBOLS[name]}, {n:,} trajectories, mean ± sd", fontsize="small")
        ax.set_xlabel("x")
        ax.margins(x=0)
        ax.legend(frameon=False, fontsize="small")
    return fig, axes
