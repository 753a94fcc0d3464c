"""The figure of the README: paths with jumps, the coefficients recovered from them, and V.

python benchmarks/overview.py      writes docs/figures/overview.png (about half a minute)

A particle with two resting places and rare large jumps: b = x - x^3, D_o = 0.05 + 0.05 x^2, D_f = 0.3 / (1 + x^2 / 2),
alpha = 0.5; 200 paths of 500 steps of 1/50. alpha is learned as well. V has r = cos x and beta = 1.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from levytorch import Dynamics, recover, simulate, solve_value
from levytorch.figures.base import DATA, RECOVERED, SYMBOLS, TRUTH, tidy

OUT = Path(__file__).parents[1] / "docs" / "figures" / "overview.png"
DT = 1 / 50


def draw() -> Figure:
    """Simulate, fit, solve and draw."""
    truth = Dynamics(
        b=lambda x: x - x**3,
        D_o=lambda x: 0.05 + 0.05 * x**2,
        D_f=lambda x: 0.3 / (1 + x**2 / 2),
        alpha=0.5,
        period=None,
        window=(-2.0, 2.0),
    )
    paths = simulate(truth, 200, 500, DT, seed=3)
    found = recover(paths, alpha="learn", period=None, n_basis=11)
    low, high = found.head.window
    x = torch.linspace(low, high, 301, dtype=torch.float64)
    V = solve_value(found, torch.cos, beta=1.0)
    true_V = solve_value(truth, torch.cos, beta=1.0, window=(low, high))

    fig = Figure(figsize=(10.0, 3.7), dpi=130)
    FigureCanvasAgg(fig)
    grid = fig.add_gridspec(3, 3, width_ratios=[1.15, 1, 1], left=0.06, right=0.985, bottom=0.14, top=0.86, wspace=0.42)
    ax = fig.add_subplot(grid[:, 0])
    states, length = torch.as_tensor(paths.x), 501
    times = DT * torch.arange(length)
    for k, color in zip(jumping(states.reshape(-1, length), high), ("#404040", DATA, RECOVERED)):
        ax.plot(times, states[k * length : (k + 1) * length].reshape(-1), color=color, linewidth=0.9)
    ax.set_ylim(low - 1, high + 1)
    ax.set_xlabel("time")
    ax.set_ylabel("state x")
    ax.set_title("1. observed paths with jumps", fontsize=10)
    tidy(ax)
    for row, (name, std) in enumerate(zip(("b", "D_o", "D_f"), found.std(x))):
        ax = fig.add_subplot(grid[row, 1])
        curve = getattr(found, name)(x)
        ax.fill_between(x, curve - 1.96 * std, curve + 1.96 * std, color=RECOVERED, alpha=0.25, linewidth=0)
        ax.plot(x, curve, color=RECOVERED, linewidth=1.4)
        ax.plot(x, getattr(truth, name)(x), **{**TRUTH, "linestyle": "--"})
        ax.set_ylabel(SYMBOLS[name])
        if row == 0:
            ax.set_title("2. recovered coefficients", fontsize=10)
        ax.tick_params(labelbottom=row == 2)
        tidy(ax)
    ax.set_xlabel("state x")
    ax = fig.add_subplot(grid[:, 2])
    curve, std = V(x), V.std(x)
    ax.fill_between(
        x, curve - 1.96 * std, curve + 1.96 * std, color=RECOVERED, alpha=0.25, linewidth=0, label="95 % band"
    )
    ax.plot(x, curve, color=RECOVERED, linewidth=1.4, label="recovered")
    ax.plot(x, true_V(x), **{**TRUTH, "linestyle": "--"})
    ax.set_xlabel("state x")
    ax.set_ylabel("V(x)")
    ax.set_title("3. value function, r = cos x", fontsize=10)
    ax.legend(fontsize=8, frameon=False)
    tidy(ax)
    style = {"arrowstyle": "-|>", "mutation_scale": 14, "color": "black"}
    for start in (0.352, 0.672):
        arrow = FancyArrowPatch((start, 0.888), (start + 0.045, 0.888), transform=fig.transFigure, **style)
        fig.add_artist(arrow)
    return fig


def jumping(paths: torch.Tensor, most: float) -> list[int]:
    """The three paths with the most steps above 0.5 among those that stay within -most and most."""
    jumps = (paths.diff(dim=1).abs() > 0.5).sum(1)
    jumps[paths.abs().amax(1) > most] = 0
    return jumps.argsort(descending=True)[:3].tolist()


if __name__ == "__main__":
    draw().savefig(OUT)
    print(f"written: {OUT}")
