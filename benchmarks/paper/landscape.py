"""Figure 2: the objective in (D_o, D_f) for several values of the TCF, Metropolis data, b held at its true value."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.paper.binned import BinnedPairs, binned_pairs
from benchmarks.paper.collect import Record, Runs
from benchmarks.paper.redo import transitions_of, true_dynamics
from benchmarks.paper.replicas import need
from levytorch.figures.base import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
MOST = 100_000  # trajectories: their data is simulated once more, which takes seconds up to here
MULTIPLES = (0.0, 0.5, 1.0, 1.5)  # of the TCF the run converged to
REACH = (0.2, 0.45)  # how far the axes go from the truth, as shares of D_o and of D_f


def landscape(runs: Runs) -> tuple[Figure, list[Axes]]:
    """Contours of the normalised negative log-likelihood; white x: truth, red dot: minimiser of that TCF."""
    record = metropolis_run(runs)
    pairs, truth = pairs_of(record)
    fixed = fixed_point(pairs, truth)
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
        ax.plot(
            *pairs.minimiser(TCF, truth), "o", color="red", markersize=6, markeredgecolor="white", label="minimiser"
        )
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


def metropolis_run(runs: Runs) -> Record:
    """The run with the TCF on Metropolis data that has the most trajectories, up to `MOST`; its lowest seed."""
    chosen = need(runs, "the TCF's landscape", censoring="metropolis", tail="tcf", dynamics="constant")
    plain = chosen.where(reach=None) if len(chosen.where(reach=None)) else chosen
    small = [record for record in plain if record.setting("data.n_trajectories") <= MOST] or list(plain)
    return max(small, key=lambda record: (record.setting("data.n_trajectories"), -record.setting("seed", 0)))


@functools.lru_cache(maxsize=1)  # Figures 2 and 3 are made of the same data
def pairs_of(record: Record) -> tuple[BinnedPairs, tuple[float, float]]:
    """The run's data, counted, and the true (D_o, D_f)."""
    dynamics = true_dynamics(record)
    x = torch.zeros(1, dtype=torch.float64)
    b, D_o, D_f = (float(f(x)) for f in (dynamics.b, dynamics.D_o, dynamics.D_f))
    CT = record.number("CT") if record.metrics.get("CT") is not None else 8.0
    TRT = record.metrics.get("TRT")
    alpha = float(record.setting("dynamics.alpha", 0.3))
    return binned_pairs(transitions_of(record), b=b, D_o=D_o, alpha=alpha, CT=CT, TRT=TRT), (D_o, D_f)


def fixed_point(pairs: BinnedPairs, start: tuple[float, float], most: int = 200) -> float:
    """The TCF that its own minimiser asks for."""
    TCF = 0.0
    for _ in range(most):
        start = pairs.minimiser(TCF, start)
        new = pairs.next_TCF(*start)
        if abs(new - TCF) < 1e-9:
            return new
        TCF = new
    return TCF


def surfaces(pairs: BinnedPairs, truth: tuple[float, float], n: int = 49) -> tuple[Array, Array, Array, Array]:
    """Axes D_o (n,), D_f (n,) around the truth and both pools' mean log p on their grid (n, n)."""
    D_o, D_f = (
        value * torch.linspace(1 - share, 1 + share, n, dtype=torch.float64) for value, share in zip(truth, REACH)
    )
    rows = [pairs.means(one.expand(n), D_f) for one in D_o]
    main, tail = (torch.stack([row[i] for row in rows]).numpy() for i in (0, 1))
    return D_o.numpy(), D_f.numpy(), main, tail
