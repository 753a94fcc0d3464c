"""Figure 8: value functions from the recovered coefficients beside the true one, and the error-bound study."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.paper.collect import Runs
from benchmarks.paper.rate_table import read_rates
from benchmarks.paper.replicas import alike, largest, need, shape_error, stack
from benchmarks.paper.statistics import outliers
from benchmarks.paper.style import arm_color, arm_label, arm_order, log_scale, replica_band, truth_line
from levytorch.figures.base import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = {"noise": "#0072B2", "gaussian": "#D55E00", "wedge": "#009E73"}
_MARKERS = {"noise": "o", "gaussian": "s", "wedge": "^"}


def policy_error(runs: Runs) -> tuple[Figure, list[Axes]]:
    """Left: V of all replicas per arm at the largest size; middle: errors; right: error over eps, when studied."""
    with_value = Runs(tuple(r for r in runs if (r.path / "value.csv").is_file()), runs.studies)
    chosen = need(with_value, "Figure 8", arm=["unbiased", "none", "tcf", "conditional"])
    chosen = alike(chosen, "dynamics", "dt", "alpha_true")
    fig, axes = panels(None, 3 if runs.studies else 2, width=3.9, height=3.4)
    mine = chosen.where(literal=False) if len(chosen.where(literal=False)) else chosen
    n = largest(mine)
    _values(axes[0], mine.where(n_trajectories=n), n)
    _errors(axes[1], chosen)
    if runs.studies:
        _rates(axes[2], runs)
    return fig, axes


def _values(ax: Axes, runs: Runs, n: int) -> None:
    for arm in arm_order(runs.unique("arm")):
        own = runs.where(arm=arm)
        x, curves, truth = stack(own, "V")
        far = outliers(np.array([record.number("error_V") for record in own]))
        replica_band(ax, x, curves, far, arm_color(arm), arm_label(arm))
    if truth is not None:
        truth_line(ax, x, truth)
    low, high = ax.get_ylim()
    reach = 2.5 * float(np.ptp(truth)) if truth is not None else high - low
    low, high = max(low, -reach), min(high, reach)
    ax.set_ylim(low, high + 0.35 * (high - low))  # room for the legend
    ax.set_title(f"V(x), {n:,} trajectories, mean ± sd", fontsize="medium")
    ax.set_xlabel("x")
    ax.margins(x=0)
    ax.legend(frameon=False, fontsize="small", ncols=2, columnspacing=0.8, handlelength=1.4, loc="upper center")


def _errors(ax: Axes, runs: Runs) -> None:
    """Two boxes per arm and way of fitting, each at its own largest size: V (deep) and V without its mean (light)."""
    names: list[str] = []
    generator = np.random.default_rng(0)  # the points' sideways shift, the same in every figure
    for literal in (False, True):
        way = runs.where(literal=literal)
        n = largest(way) if len(way) else 0
        for arm in arm_order(way.unique("arm")):
            own = way.where(arm=arm, n_trajectories=n)
            pairs = np.array([[record.number("error_V"), shape_error(record)] for record in own])
            pairs = 100 * pairs[np.isfinite(pairs).all(1)] if len(own) else pairs
            if not len(pairs):
                continue
            for k, strength in enumerate((0.65, 0.25)):
                position = len(names) + 0.4 * (k - 0.5)
                box = ax.boxplot(
                    pairs[:, k], positions=[position], widths=0.34, showfliers=False, patch_artist=True,
                    manage_ticks=False,
                )  # fmt: skip
                box["boxes"][0].set(facecolor=arm_color(arm), alpha=strength, linewidth=0.6)
                box["medians"][0].set(color="black")
                shift = generator.uniform(-0.1, 0.1, len(pairs))
                ax.plot(position + shift, pairs[:, k], ".", color=arm_color(arm), markersize=3, alpha=strength + 0.2)
            names.append(arm_label(arm) + ("\n(B.1)" if literal else ""))
    ax.set_xticks(range(len(names)), names, rotation=30, fontsize="small")
    ax.set_xlim(-0.6, len(names) - 0.4)
    log_scale(ax)
    for label, strength in (("V", 0.65), ("V without its mean", 0.25)):
        ax.fill([], [], color="black", alpha=strength, label=label)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * (high / low) ** 0.15)
    ax.legend(frameon=False, fontsize="small", ncols=2, loc="upper center")
    ax.set_title("relative $L^2$ error of V (%)", fontsize="medium")
    ax.grid(axis="y", alpha=0.3, linewidth=0.5)


def _rates(ax: Axes, runs: Runs) -> None:
    curves = [curve for curve in read_rates(runs.studies[-1]) if curve.norm == "C0"]
    for curve in curves:
        color = _COLORS.get(curve.perturbation, "#CC79A7")
        ax.fill_between(curve.eps, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
        marker = _MARKERS.get(curve.perturbation, "d")
        label = f"{curve.perturbation}: slope {curve.slope:.3f}"
        ax.plot(curve.eps, curve.mean, marker=marker, color=color, markersize=4, linewidth=1.2, label=label)
    ends = np.array([min(c.eps.min() for c in curves), max(c.eps.max() for c in curves)])
    level = 0.4 * min(c.mean[0] / c.eps[0] for c in curves)
    ax.plot(ends, level * ends, color="black", linestyle="--", linewidth=0.8, label="slope 1")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel(r"perturbation $\epsilon$ of the coefficients")
    ax.set_title(r"$\max |\hat V - V|$, mean and 5–95 %", fontsize="medium")
    ax.legend(frameon=False, fontsize="small")
