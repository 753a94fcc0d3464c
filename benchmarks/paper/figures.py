"""The paper's figures out of runs, by name and number; 2 and 3 are made in `landscape`, 9 in `prices`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.paper import landscape, prices
from benchmarks.paper.collect import COEFFICIENTS, DEVIATIONS, FACTOR, Array, Runs
from benchmarks.paper.style import (
    DEEP,
    LIGHT,
    Group,
    arm_color,
    arm_label,
    arm_order,
    finish,
    log_scale,
    replica_band,
    size_boxes,
    truth_line,
)
from benchmarks.paper.tables import FIT_BELOW, read_rates
from levytorch.errors import ConfigError, InputError
from levytorch.figures.base import COLORS, SYMBOLS, new_axes, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Drawn = tuple[Figure, list[Axes]]

ONE_SYSTEM = ("dynamics", "dt", "alpha_true")  # curves of different problems do not belong into one figure


def comparison(runs: Runs) -> Drawn:
    """Figure 1: one row of three panels per way of fitting: levytorch's engine, and Algorithm B.1 if there are such."""
    titles = {"unbiased": "unbiased data", "tcf": "censored, with TCF", "none": "censored, without TCF"}
    chosen = runs.need("the comparison of D_f", *ONE_SYSTEM, arm=list(titles))
    ways = [literal for literal in (False, True) if len(chosen.where(literal=literal))]
    fig, axes = new_axes(len(ways), 3, width=3.6, height=2.7)
    for row, literal in zip(axes, ways):
        way = chosen.where(literal=literal)
        n = way.largest()
        for ax, arm in zip(row, titles):
            what = f"Algorithm B.1, {n:,}" if literal else f"{n:,}"
            ax.set_title(f"{titles[arm]}\n{what} trajectories", fontsize="medium")
            _every_replica(ax, way.where(arm=arm, n_trajectories=n), arm_color(arm))
        row[0].set_ylabel("$D_f(x)$")
    for ax in axes[-1]:
        ax.set_xlabel("x")
    return fig, list(axes.ravel())


def _every_replica(ax: Axes, runs: Runs, color: str) -> None:
    ax.margins(x=0)
    if not len(runs):
        ax.set_visible(False)
        return
    x, curves, truth = runs.stack("D_f")
    far = runs.outliers("D_f")
    for curve, is_far in zip(curves, far):
        ax.plot(x, curve, color=color, linewidth=0.8, alpha=0.9 if is_far else 0.55)
    ax.plot([], [], color=color, linewidth=0.8, label=f"{len(runs)} replica{'s' if len(runs) > 1 else ''}")
    truth_line(ax, x, truth, floor=0.0, room=0.75)
    note = f"median error {np.nanmedian(runs.errors('D_f')):.1%}, outliers {int(far.sum())}"
    ax.text(0.5, 0.03, note, transform=ax.transAxes, fontsize="small", ha="center")
    ax.legend(frameon=False, fontsize="small", loc="upper center", ncols=2, columnspacing=1.0, handlelength=1.4)


def unbiased_constant(runs: Runs) -> Drawn:
    """Figure 4: box plots, one panel per coefficient; the smallest alpha deep, larger ones light."""
    chosen = runs.need("Figure 4", arm="unbiased").own().need("Figure 4", "dynamics", "dt")
    fig, axes = panels(None, 3, width=3.5, height=3.0)
    for ax, name in zip(axes, COEFFICIENTS):
        groups = [
            Group(rf"$\alpha$ = {alpha:g}", COLORS[name], _errors(chosen.where(alpha_true=alpha), name), light=k > 0)
            for k, alpha in enumerate(chosen.unique("alpha_true"))
        ]
        size_boxes(ax, groups)
        sizes = sorted(groups[0].errors)
        if len(sizes) > 1:  # the slope that maximum likelihood promises, through the first size's root mean square
            first = 100 * float(np.sqrt(np.mean(groups[0].errors[sizes[0]] ** 2)))
            level = [first * (sizes[0] / n) ** 0.5 for n in sizes]
            ax.plot(range(len(sizes)), level, color="black", linewidth=0.8, linestyle="--", label=r"$\propto n^{-1/2}$")
        finish(ax, f"relative error of {SYMBOLS[name][:-4]}$ (%)")
    return fig, axes


def _errors(runs: Runs, name: str) -> dict[int, Array]:
    return runs.by_size(lambda run: run.number(f"error_{name}"))


def unbiased_variable(runs: Runs) -> Drawn:
    """Figure 5: boxes without the outliers, then b, D_o, D_f: mean +- sd of the replicas, outliers as lines."""
    chosen = runs.need("Figure 5", arm="unbiased").own().need("Figure 5", *ONE_SYSTEM)
    fig, grid = new_axes(2, 2, width=4.6, height=2.9)
    axes = list(grid.ravel())
    by_size = {n: chosen.where(n_trajectories=n) for n in chosen.unique("n_trajectories")}
    removed = {n: part.outliers(*COEFFICIENTS) for n, part in by_size.items()}
    groups = [
        Group(SYMBOLS[name], COLORS[name], {n: part.errors(name)[~removed[n]] for n, part in by_size.items()})
        for name in COEFFICIENTS
    ]
    size_boxes(axes[0], groups)
    total = sum(int(far.sum()) for far in removed.values())
    title = f"relative $L^2$ error (%), {total} of {len(chosen)} removed as outliers"
    rule = f"(error > {FACTOR:g} × median and > median + {DEVIATIONS:g} robust sd)"
    finish(axes[0], f"{title}\n{rule}", size="small", ncols=3)
    n = 100_000 if 100_000 in by_size else max(by_size)  # the size of the paper's right panel
    for ax, name in zip(axes[1:], COEFFICIENTS):
        x, curves, truth = by_size[n].stack(name)
        replica_band(ax, x, curves, removed[n], COLORS[name], "recovered")
        truth_line(ax, x, truth, floor=None if name == "b" else 0.0, room=0.3)
        finish(ax, f"{SYMBOLS[name]}, {n:,} trajectories, mean ± sd", "x", size="small")
    return fig, axes


def censored_variable(runs: Runs) -> Drawn:
    """Figure 6. Left: relative L2 errors of D_f per size and arm. Right: curves at the largest size, mean +- sd."""
    wanted = {"arm": ["unbiased", "none", "tcf", "conditional"]}
    chosen = runs.need("Figure 6", **wanted).own().need("Figure 6", *ONE_SYSTEM)
    fig, axes = panels(None, 2, width=4.8, height=3.4)
    arms = arm_order(chosen.unique("arm"))
    size_boxes(axes[0], [Group(arm_label(arm), arm_color(arm), _errors(chosen.where(arm=arm), "D_f")) for arm in arms])
    finish(axes[0], "relative $L^2$ error of $D_f$ (%)", ncols=2)
    n = chosen.largest()
    _bands(axes[1], chosen.where(n_trajectories=n), "D_f", floor=0.0, room=0.6)
    finish(axes[1], f"$D_f(x)$, {n:,} trajectories, mean ± sd", "x", ncols=2)
    return fig, axes


def _bands(ax: Axes, runs: Runs, name: str, **room: float) -> Array | None:
    """Mean +- sd of every arm, and the truth, which is returned."""
    truth = None
    for arm in arm_order(runs.unique("arm")):
        own = runs.where(arm=arm)
        x, curves, truth = own.stack(name)
        replica_band(ax, x, curves, own.outliers(name), arm_color(arm), arm_label(arm))
    truth_line(ax, x, truth, **room)
    return truth


def censored_constant(runs: Runs) -> Drawn:
    """Figure 7: errors of D_f with their sign, so that bias and spread can be told apart; a panel per censoring."""
    titles = {"filter": "filtered data (Example 4.4)", "metropolis": "Metropolis data (Example 4.5)"}
    chosen = runs.need("Figure 7", censoring=list(titles), reach=None).own().need("Figure 7", *ONE_SYSTEM)
    kinds = [kind for kind in titles if len(chosen.where(censoring=kind))]
    fig, axes = panels(None, len(kinds), width=4.8, height=3.2)
    for ax, kind in zip(axes, kinds):
        part = chosen.where(censoring=kind)
        groups = [
            Group(arm_label(arm), arm_color(arm), part.where(arm=arm).by_size(lambda run: run.signed_error("D_f")))
            for arm in arm_order(part.unique("arm"))
        ]
        size_boxes(ax, groups, log=False)
        ax.axhline(0.0, color="black", linewidth=0.8, linestyle="--")
        finish(ax, titles[kind], ncols=min(3, len(groups)), loc="best")
        values = 100 * np.concatenate([v for group in groups for v in group.errors.values()])
        top = max(2.0, float(np.abs(values).max()))
        ax.set_ylim(min(-0.15 * top, 1.15 * float(values.min())), max(0.35 * top, 1.15 * float(values.max())))
    axes[0].set_ylabel("relative error of $D_f$ with its sign (%)")
    return fig, axes


def policy_error(runs: Runs) -> Drawn:
    """Figure 8. Left: V per arm at the largest size; right: errors. The study of eps is `bound_figure`."""
    with_value = Runs(tuple(run for run in runs if run.has_values), runs.studies)
    chosen = with_value.need("Figure 8", *ONE_SYSTEM, arm=["unbiased", "none", "tcf", "conditional"])
    fig, axes = panels(None, 2, width=3.9, height=3.4)
    n = chosen.own().largest()
    truth = _bands(axes[0], chosen.own().where(n_trajectories=n), "V")
    low, high = axes[0].get_ylim()
    reach = 2.5 * float(np.ptp(truth)) if truth is not None else high - low
    low, high = max(low, -reach), min(high, reach)
    axes[0].set_ylim(low, high + 0.35 * (high - low))  # room for the legend
    title = f"V(x), {n:,} trajectories, mean ± sd"
    finish(axes[0], title, "x", ncols=2, columnspacing=0.8, handlelength=1.4, loc="upper center")
    _value_errors(axes[1], chosen)
    return fig, axes


def _value_errors(ax: Axes, runs: Runs) -> None:
    """Two boxes per arm and way of fitting, each at its own largest size: V (deep) and V without its mean (light)."""
    names: list[str] = []
    generator = np.random.default_rng(0)  # the points' sideways shift, the same in every figure
    for literal in (False, True):
        way = runs.where(literal=literal)
        n = way.largest() if len(way) else 0
        for arm in arm_order(way.unique("arm")):
            own = way.where(arm=arm, n_trajectories=n)
            pairs = 100 * np.array([[run.number("error_V"), run.shape_error()] for run in own]).reshape(-1, 2)
            pairs = pairs[np.isfinite(pairs).all(1)]
            if not len(pairs):
                continue
            for k, strength in enumerate((DEEP, LIGHT)):
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
    for label, strength in (("V", DEEP), ("V without its mean", LIGHT)):
        ax.fill([], [], color="black", alpha=strength, label=label)
    low, high = ax.get_ylim()
    ax.set_ylim(low, high * (high / low) ** 0.15)
    finish(ax, "relative $L^2$ error of V (%)", ncols=2, loc="upper center")
    ax.grid(axis="y", alpha=0.3, linewidth=0.5)


def bound_figure(runs: Runs) -> Drawn:
    """The error-bound study in both norms: C0, and C2, that of the theorem."""
    fig, axes = panels(None, 2, width=4.4, height=3.4)
    for ax, norm in zip(axes, ("C0", "C2")):
        _rates(ax, runs, norm)
    return fig, axes


def _rates(ax: Axes, runs: Runs, norm: str = "C0") -> None:
    styles = {"noise": ("#0072B2", "o"), "gaussian": ("#D55E00", "s"), "wedge": ("#009E73", "^")}
    curves = [curve for curve in read_rates(runs.studies[-1]) if curve.norm == norm]
    for curve in curves:
        color, marker = styles.get(curve.perturbation, ("#CC79A7", "d"))
        ax.fill_between(curve.eps, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
        label = f"{curve.perturbation}: slope {curve.slope:.3f}"
        ax.plot(curve.eps, curve.mean, marker=marker, color=color, markersize=4, linewidth=1.2, label=label)
    ends = np.array([min(c.eps.min() for c in curves), max(c.eps.max() for c in curves)])
    level = 0.4 * min(c.mean[0] / c.eps[0] for c in curves)
    ax.plot(ends, level * ends, color="black", linestyle="--", linewidth=0.8, label="slope 1")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel(r"perturbation $\epsilon$ of the coefficients")
    ax.axvspan(ends[0], FIT_BELOW, color="black", alpha=0.05, linewidth=0)
    title = {"C0": r"$\max |\hat V - V|$", "C2": r"$C^2$ norm of $\hat V - V$"}[norm]
    finish(ax, f"{title}, mean and 5–95 %\n(slopes: shaded, " + rf"$\epsilon \leq$ {FIT_BELOW:g})", size="small")


def learning_history(runs: Runs) -> Drawn:
    """Figure 10: the longest Adam run; histories light, moving averages bold; right: the framed part, D_f alone."""
    run = max(runs.need("Figure 10", engine="adam"), key=lambda r: r.number("steps"))
    history = run.table("history.csv", ("step", *(f"mean/{name}" for name in COEFFICIENTS)))
    if len(history["step"]) < 3:
        raise InputError(f"a history must have at least 3 entries, found less in {run.path}; log more often.")
    step, window = history["step"], int(run.setting("engine.window", 20_000))
    fig, (left, right) = panels(None, 2, width=5.0, height=3.4)
    for name in COEFFICIENTS:
        for ax in (left, right) if name == "D_f" else (left,):
            ax.plot(step, history[f"mean/{name}"], color=COLORS[name], linewidth=0.5, alpha=0.35)
            average = moving_average(step, history[f"mean/{name}"], window)
            label = f"{SYMBOLS[name][:-4]}$, average of {window:,} steps"
            ax.plot(step, average, color=COLORS[name], linewidth=2.0, label=label)
            if f"{name}_truth" in run.curves:
                level = float(np.mean(run.curves[f"{name}_truth"][:-1]))
                ax.axhline(level, color="black", linewidth=0.8, linestyle="--")
    _enlarge(left, right, step, history["mean/D_f"])
    n = run.setting("data.n_trajectories")
    title = f"{int(run.number('steps')):,} steps of Adam, {n:,} trajectories"
    finish(left, title, "step", loc="lower right")
    finish(right, "the framed part: $D_f$", "step", loc="lower right")
    low, high = left.get_ylim()
    left.set_ylim(low - 0.3 * (high - low), high)  # room for the legend
    return fig, [left, right]


def moving_average(step: Array, values: Array, window: int) -> Array:
    """Mean over the entries of the last `window` steps (of all of them, before there are so many)."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    first = np.searchsorted(step, step - window, side="right")
    last = np.arange(1, len(step) + 1)
    return (total[last] - total[first]) / (last - first)


def _enlarge(left: Axes, right: Axes, step: Array, D_f: Array) -> None:
    """The right panel shows D_f without its way from the start; a red frame on the left says where that is."""
    from matplotlib.patches import Rectangle

    settled = step >= 0.1 * step[-1]
    low, high = float(D_f[settled].min()), float(D_f[settled].max())
    room = 0.15 * max(high - low, 1e-9)
    first, last = float(step[settled][0]), float(step[-1])
    right.set_xlim(first, last)
    right.set_ylim(low - room, high + room)
    corner, height = (first, low - room), high - low + 2 * room
    left.add_patch(Rectangle(corner, last - first, height, fill=False, edgecolor="red", linewidth=1.2))


class PaperFigure(NamedTuple):
    """A figure of the paper: its number, the experiments whose runs it is made of, and what draws it."""

    number: int
    experiments: tuple[str, ...]
    draw: Callable[[Runs], Any]
    caption: str

    def of(self, runs: Runs) -> Any:
        """(figure, axes) from the runs of its experiments; from all of them when none says that it is of these."""
        named = runs.where(experiment=list(self.experiments))
        return self.draw(named if len(named) else runs)


FIGURES: dict[str, PaperFigure] = {
    "comparison": PaperFigure(
        1,
        ("censored_variable",),
        comparison,
        "D_f recovered from all data, from censored data with the TCF, and from censored data without it; every "
        "replica is a line, the truth is dashed.",
    ),
    "landscape": PaperFigure(
        2,
        ("censored_mcmc",),
        landscape.landscape,
        "The objective in (D_o, D_f) for several values of the TCF, Metropolis data, b at its true value; white x: "
        "truth, red dot: minimiser.",
    ),
    "adaptive": PaperFigure(
        3,
        ("censored_mcmc",),
        landscape.adaptive,
        "The fixed-point iteration of coefficients and TCF from TCF = 0, Metropolis data.",
    ),
    "unbiased_constant": PaperFigure(
        4,
        ("unbiased_constant",),
        unbiased_constant,
        "Relative errors against the number of trajectories, Example 4.1; deep: alpha = 0.3, light: alpha = 0.6.",
    ),
    "unbiased_variable": PaperFigure(
        5,
        ("unbiased_variable",),
        unbiased_variable,
        "Relative errors without outliers, and the recovered curves, Example 4.2.",
    ),
    "censored_variable": PaperFigure(
        6,
        ("censored_variable",),
        censored_variable,
        "Errors of D_f per arm, and the recovered curves at the largest size, Example 4.3.",
    ),
    "censored_constant": PaperFigure(
        7,
        ("censored_constant", "censored_mcmc"),
        censored_constant,
        "Errors of D_f with their sign, Example 4.4 (left) and Example 4.5 (right).",
    ),
    "policy_error": PaperFigure(
        8,
        ("censored_variable",),
        policy_error,
        "Value functions of Example 4.3 beside the true one, and their errors.",
    ),
    "btc": PaperFigure(9, tuple(prices.EXPERIMENTS), prices.full_batch, prices.CAPTIONS["btc"]),
    "btc_adam": PaperFigure(9, tuple(prices.EXPERIMENTS), prices.random_starts, prices.CAPTIONS["btc_adam"]),
    "learning_history": PaperFigure(
        10,
        ("learning_history",),
        learning_history,
        "The paths of Algorithm B.1 and their moving averages, Example 4.5.",
    ),
}


def figure(name: str) -> PaperFigure:
    """The entry of a figure, by name or by the paper's number."""
    by_number = {str(entry.number): entry for entry in reversed(FIGURES.values())}
    entry = FIGURES.get(name) or by_number.get(name)
    if entry is None:
        raise ConfigError(f"figure must be one of {', '.join(FIGURES)} or its number, found {name!r}; choose one.")
    return entry


def figures_of(experiments: list[str]) -> dict[str, PaperFigure]:
    """The figures that can be made from runs of these experiments."""
    return {name: entry for name, entry in FIGURES.items() if set(entry.experiments) & set(experiments)}
