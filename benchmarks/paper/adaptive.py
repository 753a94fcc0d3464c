"""Figure 3: how D_f, D_o and the TCF find each other: fit, tail mass of the fit, new TCF, fit again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.paper.binned import BinnedPairs
from benchmarks.paper.collect import Runs
from benchmarks.paper.landscape import metropolis_run, pairs_of
from levytorch.figures.base import COLORS, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
_FLOW = r"TCF $\leftarrow$ 0; then, until nothing moves:" + "\n" + (
    r"$\theta \leftarrow$ minimiser at this TCF" + "\n"
    r"$R_\theta \leftarrow P_\theta(|\Delta x - \mu| > \mathrm{CT})$" + "\n"
    r"TCF $\leftarrow (R_\theta - R_{sample}) / (1 - R_{sample})$"
)  # fmt: skip


def adaptive(runs: Runs) -> tuple[Figure, list[Axes]]:
    """Left and right: staircases of (TCF, D_f) and (TCF, D_o) between theta(TCF) and TCF(theta); middle: the rounds."""
    record = metropolis_run(runs)
    pairs, truth = pairs_of(record)
    TCFs, thetas = iterate(pairs, truth)
    fixed = TCFs[-1]
    grid = np.linspace(0.0, 1.4 * max(fixed, 1e-6), 25)
    path = np.array([pairs.minimiser(float(TCF), truth) for TCF in grid])
    asked = np.array([pairs.next_TCF(*theta) for theta in path])
    fig, axes = panels(None, 3, width=3.7, height=3.3)
    for ax, column, name in ((axes[0], 1, "D_f"), (axes[2], 0, "D_o")):
        color = COLORS[name]
        ax.plot(grid, path[:, column], color=color, linewidth=1.8, label=rf"$\theta$(TCF): ${name}$ fitted at this TCF")
        ax.plot(asked, path[:, column], color="black", linewidth=1.2, label=r"TCF($\theta$): what the fit asks for")
        ax.axhline(truth[column], color="black", linewidth=0.8, linestyle="--", label="truth")
        x, y = staircase(TCFs, thetas[:, column])
        ax.plot(x, y, color="#D55E00", linewidth=1.0, marker=".", markersize=4, label="rounds")
        ax.set_xlabel("TCF")
        ax.locator_params(axis="x", nbins=5)
        ax.set_title(f"${name}$", fontsize="medium")
        values = np.concatenate([path[:, column], [truth[column]]])
        room = 0.3 * float(np.ptp(values))
        ax.set_ylim(float(values.min()) - room / 3, float(values.max()) + 1.6 * room)
        ax.set_xlim(-0.03 * grid[-1], grid[-1])
        ax.legend(frameon=False, fontsize="x-small", loc="upper left")
    _rounds(axes[1], TCFs, thetas, truth)
    return fig, axes


def iterate(pairs: BinnedPairs, start: tuple[float, float], most: int = 12) -> tuple[Array, Array]:
    """TCF (rounds,) and (D_o, D_f) (rounds, 2) of every round, from TCF = 0 until it moves by less than 1e-6."""
    TCFs, thetas = [0.0], [pairs.minimiser(0.0, start)]
    for _ in range(most):
        TCFs.append(pairs.next_TCF(*thetas[-1]))
        thetas.append(pairs.minimiser(TCFs[-1], thetas[-1]))
        if abs(TCFs[-1] - TCFs[-2]) < 1e-6:
            break
    return np.array(TCFs), np.array(thetas)


def staircase(TCFs: Array, values: Array) -> tuple[Array, Array]:
    """Corners: up to the fit at this TCF, then across to the TCF that fit asks for."""
    x = np.repeat(TCFs, 2)[1:]
    y = np.repeat(values, 2)[:-1]
    return x, y


def _rounds(ax: Axes, TCFs: Array, thetas: Array, truth: tuple[float, float]) -> None:
    """The diagram's content: the loop in words, and what comes of it round by round."""
    rounds = np.arange(len(TCFs))
    for column, name in ((1, "D_f"), (0, "D_o")):
        error = 100 * (thetas[:, column] / truth[column] - 1)
        ax.plot(rounds, error, "o-", color=COLORS[name], markersize=3.5, label=f"${name}$")
    ax.axhline(0.0, color="black", linewidth=0.8, linestyle="--")
    ax.set_xlabel("round")
    ax.set_title("error after every round (%)", fontsize="medium")
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.25 * (high - low))
    ax.text(0.97, 0.30, _FLOW, transform=ax.transAxes, ha="right", va="center", fontsize="small", linespacing=1.6)
    ax.legend(frameon=False, fontsize="small", ncols=2)
