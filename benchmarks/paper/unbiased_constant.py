"""Figure 4: relative errors of b, D_o, D_f against the number of trajectories, unbiased data (Example 4.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.paper.collect import COEFFICIENTS, Runs
from benchmarks.paper.replicas import alike, errors_by_size, need, own
from benchmarks.paper.style import Group, size_boxes
from levytorch.figures.base import COLORS, SYMBOLS, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def unbiased_constant(runs: Runs) -> tuple[Figure, list[Axes]]:
    """Box plots, one panel per coefficient; the smallest alpha deep, larger ones light."""
    chosen = alike(own(need(runs, "Figure 4", arm="unbiased")), "dynamics", "dt")
    alphas = chosen.unique("alpha_true")
    fig, axes = panels(None, 3, width=3.5, height=3.0)
    for ax, name in zip(axes, COEFFICIENTS):
        groups = [
            Group(
                rf"$\alpha$ = {alpha:g}",
                COLORS[name],
                errors_by_size(chosen.where(alpha_true=alpha), name),
                light=k > 0,
            )
            for k, alpha in enumerate(alphas)
        ]
        size_boxes(ax, groups)
        _root_n(ax, groups[0])
        ax.set_title(f"relative error of {SYMBOLS[name][:-4]}$ (%)", fontsize="medium")
        ax.legend(frameon=False, fontsize="small")
    return fig, axes


def _root_n(ax: Axes, group: Group) -> None:
    """The slope that maximum likelihood promises, through the first size's root mean square error."""
    sizes = sorted(group.errors)
    if len(sizes) < 2:
        return
    first = 100 * float(np.sqrt(np.mean(group.errors[sizes[0]] ** 2)))
    level = [first * (sizes[0] / n) ** 0.5 for n in sizes]
    ax.plot(range(len(sizes)), level, color="black", linewidth=0.8, linestyle="--", label=r"$\propto n^{-1/2}$")
