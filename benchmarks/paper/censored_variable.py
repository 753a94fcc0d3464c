"""Figure 6: D_f from filtered data, variable coefficients, with and without the TCF (Example 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.paper.collect import Runs
from benchmarks.paper.replicas import alike, errors_by_size, largest, need, own, stack
from benchmarks.paper.style import (
    Group,
    arm_color,
    arm_label,
    arm_order,
    far_of,
    limits,
    replica_band,
    size_boxes,
    truth_line,
)  # fmt: skip
from levytorch.figures.base import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ARMS = ("unbiased", "none", "tcf", "conditional")


def censored_variable(runs: Runs) -> tuple[Figure, list[Axes]]:
    """Left: relative L2 errors of D_f per size and arm. Right: curves at the largest size, mean +- sd."""
    chosen = alike(own(need(runs, "Figure 6", arm=list(ARMS))), "dynamics", "dt", "alpha_true")
    fig, axes = panels(None, 2, width=4.8, height=3.4)
    arms = arm_order(chosen.unique("arm"))
    groups = [Group(arm_label(arm), arm_color(arm), errors_by_size(chosen.where(arm=arm), "D_f")) for arm in arms]
    size_boxes(axes[0], groups)
    axes[0].set_title("relative $L^2$ error of $D_f$ (%)", fontsize="medium")
    axes[0].legend(frameon=False, fontsize="small", ncols=2)
    n = largest(chosen)
    for arm in arms:
        own_runs = chosen.where(arm=arm, n_trajectories=n)
        if not len(own_runs):
            continue
        x, curves, truth = stack(own_runs, "D_f")
        replica_band(axes[1], x, curves, far_of(own_runs, ("D_f",)), arm_color(arm), arm_label(arm))
    if truth is not None:
        truth_line(axes[1], x, truth)
        limits(axes[1], truth, floor=0.0, room=0.6)
    axes[1].set_title(f"$D_f(x)$, {n:,} trajectories, mean ± sd", fontsize="medium")
    axes[1].set_xlabel("x")
    axes[1].margins(x=0)
    axes[1].legend(frameon=False, fontsize="small", ncols=2)
    return fig, axes
