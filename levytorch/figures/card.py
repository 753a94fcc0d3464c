"""The card of `levytorch.check`: the answer, how often large steps occur under each law, and how the laws compare."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from levytorch.figures.base import OTHERS, RECOVERED, SMALL, new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = {"yes": "#00694D", "no": "#A11212", "unclear": "#8A5A00"}
_POINTS = 400


def card(check: Any, *, axes: Sequence[Axes] | None = None) -> tuple[Figure, Any]:
    """Left: the share of steps larger than a size, in the data and under the fitted laws. Right: log-likelihood per
    pair of every law, as a difference to the best, with its standard error.
    """
    if axes is None:
        fig, grid = new_axes(1, 2, width=4.4, height=4.2, margins={"top": 1.35, "bottom": 0.75, "gap_x": 1.2})
        left, right = grid[0]
        fig.text(0.03, 0.955, "Are my jumps real?", fontsize=15, fontweight="bold", va="top")
        said = "\n".join(textwrap.wrap(check.sentence, 115))
        fig.text(0.03, 0.87, said, fontsize=9.5, va="top", color=_COLORS[check.answer])
        foot = f"{check.n_pairs:,} pairs, dt = {check.dt:g}, seed {check.seed}; levytorch"
        fig.text(0.97, 0.015, foot, fontsize=SMALL - 1, ha="right", color="#666666")
    else:
        left, right = list(np.asarray(axes, dtype=object).ravel())[:2]
        fig = left.figure
    _tails(left, check)
    _bars(right, check)
    return fig, [left, right]


def _tails(ax: Axes, check: Any) -> None:
    from levytorch.law import tail_probability

    sizes = check.steps[check.steps > 0]
    n = len(check.steps)
    share = (n - np.searchsorted(check.steps, sizes)) / n
    some = np.unique(np.geomspace(1, len(sizes), _POINTS).astype(int) - 1)
    some = np.unique(np.concatenate([some, len(sizes) - some - 1]))
    ax.plot(sizes[some], share[some], "o", color="#404040", markersize=2.6, label="data")
    at = np.geomspace(max(sizes[0], sizes[-1] * 1e-6), 2 * sizes[-1], 160)
    c = check.found.coefficients(float(check.found.states[0]))
    law = tail_probability(torch.from_numpy(at), 0.0, 0.0, c.D_o, c.D_f, c.alpha, check.dt)
    ax.plot(at, law.numpy(), color=RECOVERED, linewidth=1.5, label="stable law")
    width = float(np.sqrt(np.mean(check.steps**2)))
    from scipy.special import erfc

    ax.plot(at, erfc(at / width / np.sqrt(2)), color=OTHERS[1], linewidth=1.3, linestyle="--", label="Gaussian")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(0.3 / n, 1.5)
    ax.set_xlim(np.quantile(sizes, 0.05), 2 * sizes[-1])
    ax.set_xlabel("size of a step")
    ax.set_ylabel("share of larger steps")
    ax.legend(frameon=False, fontsize=SMALL, loc="lower left")
    tidy(ax)


def _bars(ax: Axes, check: Any) -> None:
    rows = check.laws.rows[::-1]
    behind = np.array([-row.difference for row in rows])
    error = np.array([0.0 if row.difference_std != row.difference_std else row.difference_std for row in rows])
    colors = [RECOVERED if row.model in ("stable", "tempered") else "#8C8C8C" for row in rows]
    ax.barh(range(len(rows)), behind, xerr=error, color=colors, height=0.6, error_kw={"linewidth": 1.0, "capsize": 2})
    positive = behind[behind > 0]
    ax.set_xscale("symlog", linthresh=float(max(positive.min() if len(positive) else 1.0, 1e-4)))
    ax.set_xlim(left=0.0)
    ax.set_xlabel("log-likelihood per held-out pair\nbehind the best law (0 is best)")
    tidy(ax)
    ax.set_yticks(range(len(rows)), [row.model for row in rows])
    ax.tick_params(axis="y", labelsize=SMALL + 1, length=0)
