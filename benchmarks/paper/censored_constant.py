"""Figure 7: D_f from censored data, constants: filtered (Example 4.4, left) and Metropolis (Example 4.5, right)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.paper.collect import Runs
from benchmarks.paper.replicas import alike, need, own, signed_by_size
from benchmarks.paper.style import Group, arm_color, arm_label, arm_order, size_boxes
from levytorch.figures.base import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {"filter": "filtered data (Example 4.4)", "metropolis": "Metropolis data (Example 4.5)"}


def censored_constant(runs: Runs) -> tuple[Figure, list[Axes]]:
    """Errors of D_f with their sign, so that bias and spread can be told apart; one panel per kind of censoring."""
    chosen = alike(own(need(runs, "Figure 7", censoring=list(TITLES), reach=None)), "dynamics", "dt", "alpha_true")
    kinds = [censoring for censoring in TITLES if len(chosen.where(censoring=censoring))]
    fig, axes = panels(None, len(kinds), width=4.8, height=3.2)
    for ax, censoring in zip(axes, kinds):
        part = chosen.where(censoring=censoring)
        ax.set_title(TITLES[censoring], fontsize="medium")
        groups = [
            Group(arm_label(arm), arm_color(arm), signed_by_size(part.where(arm=arm), "D_f"))
            for arm in arm_order(part.unique("arm"))
        ]
        size_boxes(ax, groups, log=False)
        ax.axhline(0.0, color="black", linewidth=0.8, linestyle="--")
        ax.legend(frameon=False, fontsize="small", ncols=min(3, len(groups)), loc="best")
        values = np.concatenate([v for group in groups for v in group.errors.values()])
        top = 100 * max(0.02, float(np.nanmax(np.abs(values))))
        ax.set_ylim(min(-0.15 * top, 115 * float(np.nanmin(values))), max(0.35 * top, 115 * float(np.nanmax(values))))
    axes[0].set_ylabel("relative error of $D_f$ with its sign (%)")
    return fig, axes
