"""Recovered coefficients against the truth, and the history of a fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from levytorch.figures.base import COLORS, SYMBOLS, TRUTH, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
_DASHES = {"b_2": "--", "b_3": ":"}  # the components of a vector share their colour
_WHOLE = 0.99  # share of the cell from which on the data count as everywhere
_WILD = 5.0  # a band so many times wider than in the middle of the data is shown, but does not set the scale


class Curves(dict[str, Array]):
    """Columns by name, and in `observed` the parts of the cell that hold the data; empty: all of it, or unknown."""

    observed: tuple[tuple[float, float], ...] = ()


def coefficient_curves(recovery: Any, truth: Any = None, n: int = 401) -> Curves:
    """The numbers behind `coefficients`: x, every coefficient, its standard error and the truth, column by column."""
    x = torch.linspace(*ends(recovery), n, dtype=torch.float64)
    out = Curves(x=x.numpy())
    out.observed = observed_parts(getattr(recovery, "support", None), recovery.origin, recovery.period)
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


def ends(source: Any) -> tuple[float, float]:
    """The ends of the cell, or on a line of the window."""
    if source.period is not None:
        return source.origin, source.origin + source.period
    low, high = source.head.window
    return low, high


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
    curves: Mapping[str, Array], *, axes: Sequence[Axes] | None = None, band: float = 1.96
) -> tuple[Figure, list[Axes]]:
    """One panel per coefficient: estimate, pointwise band of `band` standard errors, truth when it is known.

    Where the data fill a part of the cell only, that part is shaded and sets the scale: the rest is extrapolation.
    """
    names = [name for name in ("b", "D_o", "D_f", "alpha") if name in curves]
    fig, axs = panels(axes, len(names), width=4.2, height=3.2)
    x, observed = curves["x"], getattr(curves, "observed", ())
    at = _states(x, observed)
    for ax, name in zip(axs, names):
        y, color = curves[name], COLORS[name]
        spread = band * curves[f"{name}_std"] if f"{name}_std" in curves else None
        for number, part in enumerate(observed):
            label = None if number else "range of the data"
            ax.axvspan(*part, color="tab:gray", alpha=0.15, linewidth=0, zorder=0, label=label)
        if spread is not None:
            ax.fill_between(x, y - spread, y + spread, color=color, alpha=0.25, linewidth=0, label="95 % band")
        ax.plot(x, y, color=color, linewidth=1.5, label="recovered")
        shown = [y]
        if f"{name}_truth" in curves:
            ax.plot(x, curves[f"{name}_truth"], **{**TRUTH, "linestyle": "--"})
            shown.append(curves[f"{name}_truth"])
        inside = [np.interp(at, x, curve) for curve in shown]
        set_limits(ax, inside, None if spread is None else np.interp(at, x, spread))
        if name != "b":
            ax.set_ylim(bottom=0.0)  # how far from zero is what matters
        ax.set_xlabel("x")
        ax.set_title(SYMBOLS[name])
        ax.set_xlim(x[0], x[-1])
        if np.abs(x).max() >= 1e4:
            ax.locator_params(axis="x", nbins=4)  # long numbers would run into each other
        ax.legend(framealpha=0.8, edgecolor="none", fontsize="small")  # readable over a curve that runs away
    return fig, axs


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
) -> tuple[Figure, list[Axes]]:
    """Mean coefficients, negative log-likelihood and, where there is one, the TCF against steps."""
    titles = ["mean coefficients", "negative log-likelihood per pair"]
    if any("tail/R_theta" in e or e.get("tail/TCF") for e in entries):
        titles.append("TCF")
    fig, axs = panels(axes, len(titles), width=4.2, height=3.2)
    for ax in axs[len(titles) :]:
        ax.set_visible(False)  # given, but with nothing to show
    axs = axs[: len(titles)]
    step = [e["step"] for e in entries]
    _mean_coefficients(axs[0], step, entries, truth)
    axs[1].plot(step, [e["train/nll"] for e in entries], color="tab:gray")
    if len(titles) > 2:
        axs[2].plot(step, [e["tail/TCF"] for e in entries], color="tab:red")
    for ax, title in zip(axs, titles):
        ax.set_title(title)
        ax.set_xlabel("step")
        ax.margins(x=0)
        if ax.get_yscale() == "linear":  # an offset would run into the title, and be overlooked
            ax.ticklabel_format(axis="y", useOffset=False)
    return fig, axs


def _mean_coefficients(
    ax: Axes, step: Sequence[float], entries: Sequence[Mapping[str, float]], truth: Mapping[str, float] | None
) -> None:
    drift = ["b"] if "mean/b" in entries[0] else [f"b_{i}" for i in (1, 2, 3) if f"mean/b_{i}" in entries[0]]
    for name in (*drift, "D_o", "D_f"):
        symbol = SYMBOLS[name][:-4] if name in SYMBOLS else f"${name}"
        style = {"color": COLORS[name[:1] if name in drift else name], "linestyle": _DASHES.get(name, "-")}
        ax.plot(step, [e[f"mean/{name}"] for e in entries], label=f"{symbol}$ (mean)", **style)
        if truth and name in truth:
            ax.axhline(truth[name], color=style["color"], linestyle="--", linewidth=0.8)
    ax.legend(frameon=False, fontsize="small")
