"""Figures 2 and 3: the objective in (D_o, D_f) under several TCFs, and how coefficients and TCF find each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from benchmarks.paper.binned import BinnedPairs, pairs_of
from benchmarks.paper.collect import Array, Record, Runs
from levytorch.figures.base import COLORS, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 100_000  # trajectories: their data is simulated once more, which takes seconds up to here
MULTIPLES = (0.0, 0.5, 1.0, 1.5)  # of the TCF the run converged to
REACH = (0.2, 0.45)  # how far the axes go from the truth, as shares of D_o and of D_f
_FLOW = r"TCF $\leftarrow$ 0; then, until nothing moves:" + "\n" + (
    r"$\theta \leftarrow$ minimiser at this TCF" + "\n"
    r"$R_\theta \leftarrow P_\theta(|\Delta x - \mu| > \mathrm{CT})$" + "\n"
    r"TCF $\leftarrow (R_\theta - R_{sample}) / (1 - R_{sample})$"
)  # fmt: skip


def metropolis_run(runs: Runs) -> Record:
    """The run with the TCF on Metropolis data that has the most trajectories, up to `MOST`; its lowest seed."""
    chosen = runs.need("the TCF's landscape", censoring="metropolis", tail="tcf", dynamics="constant")
    plain = chosen.where(reach=None) if len(chosen.where(reach=None)) else chosen
    small = [run for run in plain if run.setting("data.n_trajectories") <= MOST] or list(plain)
    return max(small, key=lambda run: (run.setting("data.n_trajectories"), -run.setting("seed", 0)))


def landscape(runs: Runs) -> tuple[Figure, list[Axes]]:
    """Contours of the normalised negative log-likelihood; white x: truth, red dot: minimiser of that TCF."""
    pairs, truth = pairs_of(metropolis_run(runs))
    fixed = pairs.fixed_point(truth)
    D_o, D_f, main, tail = surfaces(pairs, truth)
    values = [multiple * fixed for multiple in MULTIPLES]
    fig, axes = panels(None, len(values), width=2.8, height=3.1)
    for ax, TCF in zip(axes, values):
        height = -((1 - TCF) * main + TCF * tail)
        low, high = height.min(), height.max()
        share = (height - low) / (high - low)
        levels = np.linspace(0, 1, 21) ** 2  # denser near the minimum
        shown = ax.contourf(D_o, D_f, share.T, levels=levels, cmap="viridis_r")
        ax.contour(D_o, D_f, share.T, levels=levels[1::2], colors="white", linewidths=0.3, alpha=0.6)
        ax.plot(*truth, "x", color="white", markersize=9, markeredgewidth=2, label="truth")
        dot = {"color": "red", "markersize": 6, "markeredgecolor": "white", "label": "minimiser"}
        ax.plot(*pairs.minimiser(TCF, truth), "o", **dot)
        name = " (fixed point)" if TCF == fixed else ""
        ax.set_title(f"TCF = {TCF:.3g}{name}", fontsize="medium")
        ax.set_xlabel("$D_o$")
        ax.set_xlim(float(D_o[0]), float(D_o[-1]))
        ax.set_ylim(float(D_f[0]), float(D_f[-1]))
    axes[0].set_ylabel("$D_f$")
    axes[0].legend(fontsize="small", loc="upper right", facecolor="#333333", labelcolor="white", framealpha=0.7)
    bar = fig.colorbar(shown, ax=axes, ticks=[0, 0.25, 0.5, 0.75, 1.0], aspect=30, pad=0.01)
    bar.set_label("normalised negative log-likelihood", fontsize="small")
    return fig, axes


def surfaces(pairs: BinnedPairs, truth: tuple[float, float], n: int = 49) -> tuple[Array, Array, Array, Array]:
    """Axes D_o (n,), D_f (n,) around the truth and both pools' mean log p on their grid (n, n)."""
    D_o, D_f = (
        value * torch.linspace(1 - share, 1 + share, n, dtype=torch.float64) for value, share in zip(truth, REACH)
    )
    rows = [pairs.means(one.expand(n), D_f) for one in D_o]
    main, tail = (torch.stack([row[i] for row in rows]).numpy() for i in (0, 1))
    return D_o.numpy(), D_f.numpy(), main, tail


def adaptive(runs: Runs) -> tuple[Figure, list[Axes]]:
    """Left and right: staircases of (TCF, D_f) and (TCF, D_o) between theta(TCF) and TCF(theta); middle: the rounds."""
    pairs, truth = pairs_of(metropolis_run(runs))
    TCFs, thetas = pairs.iterate(truth)
    grid = np.linspace(0.0, 1.4 * max(TCFs[-1], 1e-6), 25)
    path = np.array([pairs.minimiser(float(TCF), truth) for TCF in grid])
    asked = np.array([pairs.next_TCF(*theta) for theta in path])
    fig, axes = panels(None, 3, width=3.7, height=3.3)
    for ax, column, name in ((axes[0], 1, "D_f"), (axes[2], 0, "D_o")):
        color = COLORS[name]
        ax.plot(grid, path[:, column], color=color, linewidth=1.8, label=rf"$\theta$(TCF): ${name}$ fitted at this TCF")
        ax.plot(asked, path[:, column], color="black", linewidth=1.2, label=r"TCF($\theta$): what the fit asks for")
        ax.axhline(truth[column], color="black", linewidth=0.8, linestyle="--", label="truth")
        # corners: up to the fit at this TCF, then across to the TCF that this fit asks for
        x, y = np.repeat(TCFs, 2)[1:], np.repeat(thetas[:, column], 2)[:-1]
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
