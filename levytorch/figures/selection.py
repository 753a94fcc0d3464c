"""The curve by which cross-validation has chosen a number of functions, or the strength of a penalty."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.figures.base import RECOVERED, panels, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAMES = {"n_basis": "functions per coefficient", "penalty": "factor on the strengths of the evidence"}


def selection(curve: Mapping[str, Any], *, axes: Axes | None = None) -> tuple[Figure, list[Axes]]:
    """Held-out log-likelihood of every candidate, as a difference to the best one, with its standard error over folds.

    curve: metrics["selection"] of a recovery. The scale is linear around zero and logarithmic below, because the first
    candidates may be thousands behind where a few units decide between the last ones.
    """
    fig, axs = panels(axes, 1, width=5.2, height=3.6, margins={"left": 0.85})
    ax = axs[0]
    x, n = np.asarray(curve["candidates"], dtype=np.float64), float(curve["n_pairs"])
    behind, error = (n * np.asarray(curve[key], dtype=np.float64) for key in ("difference", "difference_std"))
    chosen = list(curve["candidates"]).index(curve["chosen"])
    ax.axhline(0.0, color="black", linewidth=0.8)
    ax.errorbar(x, behind, yerr=error, color="#404040", marker="o", markersize=4, linewidth=1.2, capsize=2)
    ax.plot(x[chosen], behind[chosen], color=RECOVERED, marker="o", markersize=8, linestyle="none")
    linear = 10.0 ** math.ceil(math.log10(max(1.0, 2.0 * float(np.median(error)))))
    ax.set_yscale("symlog", linthresh=linear)
    ax.set_ylim(top=0.6 * linear)
    ticks = [0.0, *(-linear * 10.0**k for k in range(12) if linear * 10.0**k < 1.1 * float(-behind.min()))]
    ax.set_yticks(ticks, [f"{tick:.10g}" for tick in ticks])
    ax.minorticks_off()
    if curve["of"] == "penalty":
        ax.set_xscale("log")
    ax.set_xlabel(_NAMES.get(str(curve["of"]), str(curve["of"])))
    ax.set_ylabel("log-likelihood behind the best")
    ax.set_title(f"held-out data, {curve['n_folds']} folds: {curve['chosen']:.4g} chosen")
    tidy(ax)
    return fig, axs
