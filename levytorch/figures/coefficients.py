"""Recovered coefficients against the truth, the history of a fit, and the curve by which cross-validation has chosen a
number of functions, or the strength of a penalty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from levytorch.convert import Array
from levytorch.figures.base import DATA, RECOVERED, SMALL, SYMBOLS, TRUTH, AxisNames, angles, legend_above, panels, tidy
from levytorch.spaces import space_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STYLES = {"b": "-", "b_1": "-", "b_2": (0, (4, 1)), "b_3": (0, (2, 1)), "D_o": "-.", "D_f": ":"}
_WHOLE = 0.99  # share of the cell from which on the data count as everywhere
_WILD = 5.0  # a band so many times wider than in the middle of the data is shown, but does not set the scale
_BEYOND = 0.15  # of the range of the data, shown on either side of it
_BINS = 80
_STRIP = 0.07  # height of the strip that shows where the data is, in panels
_NAMES = {"n_basis": "functions per coefficient", "penalty": "factor on the strengths of the evidence"}


class Curves(dict[str, Array]):
    """Columns by name, and in `observed` the parts of the cell that hold the data; empty: all of it, or unknown.

    period: of the states where they are on a circle, else None.
    density: (edges, heights) of the histogram of the observed states in the cell, None where it is not known.
    """

    observed: tuple[tuple[float, float], ...] = ()
    density: tuple[Array, Array] | None = None
    period: float | None = None


def coefficient_curves(recovery: Any, truth: Any = None, n: int = 401, states: Any = None) -> Curves:
    """The columns of a figure of coefficients: x, and b, D_o and D_f with their standard errors and the truth.

    Args:
        recovery: the Recovery, or a Dynamics.
        truth: a Dynamics with the true coefficients, if they are known.
        n: the number of states x, from end to end.
        states: the observed states, whose histogram the figure shows.

    Returns:
        A dict of arrays, such as x, b, b_std and b_truth.

    Example:
        >>> from levytorch import Dynamics
        >>> list(coefficient_curves(Dynamics.named("constant"), n=5))
        ['x', 'b', 'D_o', 'D_f']
    """
    low, high = x_range(recovery)
    x = torch.linspace(low, high, n, dtype=torch.float64)
    out = Curves(x=x.numpy())
    out.period = recovery.period
    out.observed = observed_parts(getattr(recovery, "support", None), low, high - low)
    if states is not None:
        folded = space_of(recovery).wrap(torch.as_tensor(np.asarray(states, dtype=float))).numpy()
        heights, edges = np.histogram(folded, bins=_BINS, range=(low, high))
        out.density = (edges, heights / max(1, heights.max()))
    errors = recovery.std(x) if getattr(recovery, "covariance", None) is not None else (None, None, None)
    for name, std in zip(("b", "D_o", "D_f"), errors):
        out[name] = np.asarray(getattr(recovery, name)(x))
        if std is not None:
            out[f"{name}_std"] = np.asarray(std)
        if truth is not None:
            out[f"{name}_truth"] = np.broadcast_to(np.asarray(getattr(truth, name)(x)), x.shape).copy()
    if callable(recovery.alpha):
        out["alpha"] = np.asarray(recovery.alpha_at(x))
        if truth is not None:
            out["alpha_truth"] = np.broadcast_to(np.asarray(truth.alpha_at(x)), x.shape).copy()
    return out


def x_range(recovery: Any) -> tuple[float, float]:
    """The period of the coefficients; on a line the range of the data and some of what lies beyond."""
    space = space_of(recovery)
    low, high = cast(tuple[float, float], space.ends)
    beyond = 0.0 if space.repeats else _BEYOND * (high - low)
    return low - beyond, high + beyond


def observed_parts(
    support: tuple[float, float] | None, origin: float, period: float | None
) -> tuple[tuple[float, float], ...]:
    """The range of the data folded into the cell: two parts when it crosses the end, none when it fills the cell."""
    if period is None:  # a line, which is drawn a little farther than the data
        return () if support is None else (support,)
    if support is None or not support[1] - support[0] < _WHOLE * period:
        return ()
    low = origin + (support[0] - origin) % period
    high, end = low + support[1] - support[0], origin + period
    return ((low, high),) if high <= end else ((origin, high - period), (low, end))


def coefficients(
    curves: Mapping[str, Array],
    *,
    axes: Sequence[Axes] | None = None,
    band: float = 1.96,
    units: AxisNames | None = None,
) -> tuple[Figure, list[Axes]]:
    """One panel per coefficient: estimate, pointwise band of `band` standard errors, truth when it is known.

    Where the data fill a part of the cell only, that part is shaded and sets the scale of both axes: the rest is
    extrapolation.
    """
    names = [name for name in ("b", "D_o", "D_f", "alpha") if name in curves]
    units = units or AxisNames()
    fig, axs = panels(axes, len(names), width=3.6, height=3.1, margins={})
    x, observed = curves["x"], getattr(curves, "observed", ())
    at = _states(x, observed)
    for ax, name in zip(axs, names):
        y = curves[name]
        spread = band * curves[f"{name}_std"] if f"{name}_std" in curves else None
        ax.plot(x, y, color=RECOVERED, linewidth=1.5, label="recovered", zorder=3)
        if spread is not None:
            ax.fill_between(x, y - spread, y + spread, color=RECOVERED, alpha=0.25, linewidth=0, label="95 % band")
        shown = [y]
        if f"{name}_truth" in curves:
            ax.plot(x, curves[f"{name}_truth"], **{**TRUTH, "linestyle": "--"}, zorder=4)
            shown.append(curves[f"{name}_truth"])
        inside = [np.interp(at, x, curve) for curve in shown]
        set_limits(ax, inside, None if spread is None else np.interp(at, x, spread))
        if name != "b":
            ax.set_ylim(bottom=0.0)  # how far from zero is what matters
        mark_data(ax, observed, getattr(curves, "density", None))
        ax.set_xlabel(units.x)
        ax.set_ylabel(units.of(name))
        ax.set_xlim(*limits_along(x, observed))
        tidy(ax)
        angles(ax, getattr(curves, "period", None))
    legend_above(axs[0])
    return fig, axs


def recovery(
    found: Any,
    *,
    truth: Any = None,
    states: Any = None,
    axes: Any = None,
    band: float = 1.96,
    units: AxisNames | None = None,
) -> tuple[Figure, Any]:
    """The coefficients of a Recovery with their bands. In two dimensions these are maps.

    Args:
        found: the Recovery.
        truth: a Dynamics whose coefficients are shown, too.
        states: the observed states, which are shown along the axis.
        axes: axes to draw on; None makes a figure.
        band: half the width of a band, in standard errors.
        units: names for the axes.

    Returns:
        (fig, axes).

    Example:
        >>> from levytorch import Dynamics, recover, simulate
        >>> data = simulate(Dynamics.named("constant"), 100, 40, 1 / 40).transitions()
        >>> fig, axes = recovery(recover(data, alpha=0.3, n_basis=1, law="frozen"), states=data.x)
        >>> len(axes)
        3
    """
    if found.dim == 1:
        curves = coefficient_curves(found, truth, states=states)
        return coefficients(curves, axes=axes, band=band, units=units)
    from levytorch.figures import planes

    dots = None if states is None else planes.sample_states(states, found)
    return planes.fields(planes.coefficient_fields(found, truth), axes=axes, dots=dots, units=units)


def mark_data(
    ax: Axes, observed: Sequence[tuple[float, float]], density: tuple[Array, Array] | None = None, *, label: bool = True
) -> None:
    """The range of the data shaded, and where in it the data is as a strip along the axis."""
    for number, part in enumerate(observed):
        name = None if number or not label else "range of the data"
        ax.axvspan(*part, color=DATA, alpha=0.15, linewidth=0, zorder=0, label=name)
    if density is not None:
        edges, heights = density
        ax.stairs(
            _STRIP * heights,
            edges,
            fill=True,
            color=DATA,
            alpha=0.55,
            zorder=1,
            transform=ax.get_xaxis_transform(),
            label="observed states" if label else None,
        )


def limits_along(x: Array, observed: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """What of the cell is worth showing: the data and a little beyond; all of it when the data crosses its end."""
    if len(observed) != 1:
        return float(x[0]), float(x[-1])
    low, high = observed[0]
    room = _BEYOND * (high - low)
    return max(float(x[0]), low - room), min(float(x[-1]), high + room)


def _states(x: Array, observed: Sequence[tuple[float, float]]) -> Array:
    """The points of x with data, and the ends of their range: there are some however narrow it is."""
    if not observed:
        return x
    return np.concatenate([[low, *x[(x > low) & (x < high)], high] for low, high in observed])


def set_limits(ax: Axes, curves: Sequence[Array], spread: Array | None) -> None:
    """Room around the curves and the band of half width `spread` around the first, but for where that band is wild."""
    shown = list(curves)
    if spread is not None:
        half = np.minimum(spread, _WILD * np.median(spread))
        shown += [curves[0] - half, curves[0] + half]
    values = np.concatenate(shown)
    values = values[np.isfinite(values)]
    if not len(values):
        return
    low, high = float(values.min()), float(values.max())
    room = 0.25 * max(high - low, 0.05 * max(abs(low), abs(high)), 1e-12)
    ax.set_ylim(low - room, high + room)


def history(
    entries: Sequence[Mapping[str, float]],
    *,
    axes: Sequence[Axes] | None = None,
    truth: Mapping[str, float] | None = None,
    changed: float | None = None,
) -> tuple[Figure, list[Axes]]:
    """Mean coefficients, negative log-likelihood and, where there is one, the TCF against steps.

    changed: the step after which the fit went on under another law, whose likelihood is another one.
    """
    titles = ["mean coefficients", "negative log-likelihood per pair"]
    if any("tail/R_theta" in e or e.get("tail/TCF") for e in entries):
        titles.append("TCF")
    fig, axs = panels(axes, len(titles), width=3.6, height=2.9, margins={})
    for ax in axs[len(titles) :]:
        ax.set_visible(False)  # given, but with nothing to show
    axs = axs[: len(titles)]
    step = [e["step"] for e in entries]
    _mean_coefficients(axs[0], step, entries, truth)
    axs[1].plot(step, [e["train/nll"] for e in entries], color=RECOVERED)
    if len(titles) > 2:
        axs[2].plot(step, [e["tail/TCF"] for e in entries], color=RECOVERED)
    for ax, title in zip(axs, titles):
        ax.set_title(title, fontsize="medium")
        ax.set_xlabel("step")
        ax.margins(x=0)
        if changed is not None:
            ax.axvline(changed + 0.5, color=DATA, linewidth=0.8)
        tidy(ax)
    if changed is not None:
        place = {"xytext": (3, -3), "textcoords": "offset points", "va": "top"}
        axs[1].annotate("exact law", (changed + 0.5, 1.0), xycoords=("data", "axes fraction"), fontsize=SMALL, **place)
    return fig, axs


def _mean_coefficients(
    ax: Axes, step: Sequence[float], entries: Sequence[Mapping[str, float]], truth: Mapping[str, float] | None
) -> None:
    drift = ["b"] if "mean/b" in entries[0] else [f"b_{i}" for i in (1, 2, 3) if f"mean/b_{i}" in entries[0]]
    for name in (*drift, "D_o", "D_f"):
        symbol = SYMBOLS[name][:-4] if name in SYMBOLS else f"${name}"
        means = [e[f"mean/{name}"] for e in entries]
        ax.plot(step, means, label=f"{symbol}$", color=RECOVERED, linestyle=_STYLES[name])
        if truth and name in truth:
            ax.axhline(truth[name], color="black", linestyle="--", linewidth=0.8)
    ax.legend(frameon=False, fontsize="small")


def selection(curve: Mapping[str, Any], *, axes: Axes | None = None) -> tuple[Figure, list[Axes]]:
    """Held-out log-likelihood of every candidate, as a difference to the best one, with its standard error over folds.

    curve: metrics["selection"] of a recovery. The scale is linear around zero and logarithmic below, because the first
    candidates may be thousands behind where a few units decide between the last ones.
    """
    fig, axs = panels(axes, 1, width=5.2, height=3.6, margins={"left": 0.85})
    ax = axs[0]
    x, n = np.asarray(curve["candidates"], dtype=np.float64), float(curve["n_pairs"])
    difference, error = (n * np.asarray(curve[key], dtype=np.float64) for key in ("difference", "difference_std"))
    chosen = list(curve["candidates"]).index(curve["chosen"])
    ax.axhline(0.0, color="black", linewidth=0.8)
    ax.errorbar(x, difference, yerr=error, color="#404040", marker="o", markersize=4, linewidth=1.2, capsize=2)
    ax.plot(x[chosen], difference[chosen], color=RECOVERED, marker="o", markersize=8, linestyle="none")
    linear = 10.0 ** math.ceil(math.log10(max(1.0, 2.0 * float(np.median(error)))))
    ax.set_yscale("symlog", linthresh=linear)
    ax.set_ylim(top=0.6 * linear)
    ticks = [0.0, *(-linear * 10.0**k for k in range(12) if linear * 10.0**k < 1.1 * float(-difference.min()))]
    ax.set_yticks(ticks, [f"{tick:.10g}" for tick in ticks])
    ax.minorticks_off()
    if curve["of"] == "penalty":
        ax.set_xscale("log")
    ax.set_xlabel(_NAMES.get(str(curve["of"]), str(curve["of"])))
    ax.set_ylabel("log-likelihood behind the best")
    ax.set_title(f"held-out data, {curve['n_folds']} folds: {curve['chosen']:.4g} chosen")
    tidy(ax)
    return fig, axs
