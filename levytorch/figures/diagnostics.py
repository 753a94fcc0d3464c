"""Figures that show when a model does not fit: the probability integral transform, dt against 2 dt, several steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betaincinv, ndtri

from levytorch.diagnostics.components import p_text
from levytorch.errors import InputError
from levytorch.figures.base import CHANCE, RECOVERED, SMALL, ZERO, AxisNames, angles, legend_above, panels, tidy
from levytorch.figures.coefficients import set_limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from levytorch.diagnostics import Diagnosis

Arrays = Mapping[str, np.ndarray[Any, Any]]
_OBSERVED = {"color": "#404040", "linewidth": 1.3}  # what the data does: the darker grey
_CHANCE = "95 % by chance"
_QUANTILES = ("data", "paths", "paths_std")


def drawings(diagnosis: Diagnosis, units: AxisNames | None = None) -> dict[str, Callable[[], Figure]]:
    """What makes the figures of the checks that were made, by name."""
    made: dict[str, Any] = {
        "fit": goodness,
        "step_size": partial(step_size, units=units),
        "predictive": predictive,
    }
    return {f"diagnostics_{name}": partial(_draw, made[name], arrays) for name, arrays in diagnosis.arrays.items()}


def overview(diagnosis: Diagnosis, *, axes: Any = None, units: AxisNames | None = None) -> tuple[Figure, Any]:
    """How well the fitted law describes the steps: the figure of the check "fit", or else of the first one made.

    Args:
        diagnosis: what `diagnose` returned.
        axes: axes to draw on; None makes a figure.
        units: names for the axes.

    Returns:
        (fig, axes).

    Example:
        >>> from levytorch import Dynamics, diagnose, recover, simulate
        >>> data = simulate(Dynamics.named("constant"), 100, 40, 1 / 40).transitions()
        >>> found = recover(data, alpha=0.3, n_basis=1, law="frozen")
        >>> fig, axes = overview(diagnose(found, data, checks=["fit"]))
        >>> len(axes)
        3
    """
    made: dict[str, Any] = {"fit": goodness, "step_size": partial(step_size, units=units), "predictive": predictive}
    name = next((name for name in made if name in diagnosis.arrays), None)
    if name is None:
        raise InputError(
            "a diagnosis must have made a check with a figure (fit, step_size or predictive), found none of them; "
            "pass checks=['fit'] to diagnose."
        )
    return made[name](diagnosis.arrays[name], axes=axes)


def _draw(plot: Callable[[Arrays], tuple[Figure, Any]], arrays: Arrays) -> Figure:
    return plot(arrays)[0]


def goodness(arrays: Arrays, *, axes: Sequence[Axes] | None = None) -> tuple[Figure, list[Axes]]:
    """u should be uniform: its histogram, how often rare steps occur, and its quantiles along x; bands hold 95 %."""
    fig, axs = panels(axes, 3, width=3.9, height=3.2, margins={})
    _histogram(axs[0], arrays)
    _rare(axs[1], arrays)
    _along_x(axs[2], arrays)
    for ax in axs:
        tidy(ax)
    angles(axs[2], _period(arrays))
    return fig, axs


def _middle(n: Any, share: Any) -> tuple[Any, Any]:
    """What holds 95 % of the frequencies of an event of that probability among n: the normal law's, for large n."""
    half = ndtri(0.975) * np.sqrt(share * (1 - share) / n)
    return share - half, share + half


def _histogram(ax: Axes, arrays: Arrays) -> None:
    height, m = arrays["histogram"], int(arrays["pairs"])
    bins = len(height)
    low, high = (bins * edge for edge in _middle(m, 1 / bins))
    ax.axhspan(low, high, label=_CHANCE, **CHANCE)
    ax.stairs(height, np.linspace(0, 1, bins + 1), baseline=None, label="observed", **_OBSERVED)
    ax.axhline(1.0, **ZERO)
    room = 1.3 * max(float(np.abs(height - 1).max()), high - 1)
    ax.set_ylim(max(0.0, 1 - room), 1 + room)
    ax.set_xlim(0, 1)
    ax.set_xlabel("u = P(step ≤ observed)")
    ax.set_ylabel(f"density of u  ({p_text(float(arrays['p_value']))})")
    legend_above(ax)


def _rare(ax: Axes, arrays: Arrays) -> None:
    """Observed / expected number of steps that are at least so rare."""
    expected, rank, m = arrays["rarity"], arrays["rank"], int(arrays["pairs"])
    levels = np.geomspace(1 / m, 1, 200)
    # the k-th smallest of m uniform numbers is Beta(k, m + 1 - k)
    order = np.clip(np.round(levels * m), 1, m)
    low, high = (order / m / betaincinv(order, m + 1 - order, q) for q in (0.975, 0.025))
    shown = expected > 0.03 / m
    ratio = rank[shown] / m / expected[shown]
    ax.fill_between(levels, low, high, **CHANCE)
    ax.plot(np.clip(expected[shown], 0.1 / m, 1), ratio, **_OBSERVED)
    ax.axhline(1.0, **ZERO)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(1, 0.5 / m)
    ax.set_ylim(0.2, 5.0)
    ax.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
    ax.minorticks_off()
    ax.set_xlabel("probability of a step at least as large")
    ax.set_ylabel("rare steps, observed / expected")


def _period(arrays: Arrays) -> float | None:
    period = float(arrays.get("period", np.nan))
    return period if np.isfinite(period) else None


def _state_label(arrays: Arrays) -> str:
    return "x" if _period(arrays) is None else "x in one period"


def _along_x(ax: Axes, arrays: Arrays) -> None:
    """Quantiles of u minus their level: the band is that of the median, the widest."""
    edges, quantiles, number, levels = (arrays[k] for k in ("x_edges", "quantiles", "number", "levels"))
    low, high = (edge - 0.5 for edge in _middle(int(number.min()), 0.5))
    ax.axhspan(low, high, **CHANCE)
    ax.axhline(0.0, **ZERO)
    reach = float(high)
    for column, level in enumerate(levels):
        off = quantiles[:, column] - level
        reach = max(reach, float(np.abs(off).max()))
        shade = f"{0.15 + 0.65 * column / max(1, len(levels) - 1):.2f}"  # grey, lighter for higher levels
        ax.stairs(off, edges, baseline=None, color=shade, linewidth=1.3, label=f"{level:.0%}")
    ax.set_ylim(-1.2 * reach, 1.2 * reach)
    ax.set_xlim(edges[0], edges[-1])
    ax.set_xlabel(_state_label(arrays))
    ax.set_ylabel("quantile of u minus its level")
    legend_above(ax, handlelength=1.0)


def step_size(
    arrays: Arrays, *, axes: Sequence[Axes] | None = None, units: AxisNames | None = None
) -> tuple[Figure, list[Axes]]:
    """Coefficients from steps of dt and of 2 dt; the band is 95 % of what chance makes of their difference."""
    units = units or AxisNames()
    fig, axs = panels(axes, 3, width=3.6, height=3.1, margins={})
    x = arrays["x"]
    for ax, name in zip(axs, ("b", "D_o", "D_f")):
        short, long_, std = arrays[f"{name}_dt"], arrays[f"{name}_2dt"], arrays[f"{name}_std"]
        ax.plot(x, short, color=RECOVERED, linewidth=1.5, label="recovered from steps of dt")
        ax.plot(x, long_, color=RECOVERED, linewidth=1.5, linestyle="--", label="of 2 dt")
        ax.fill_between(x, short - 1.96 * std, short + 1.96 * std, label=f"{_CHANCE}", **CHANCE)
        set_limits(ax, [short, long_], 1.96 * std)
        if name != "b":
            ax.set_ylim(bottom=max(0.0, ax.get_ylim()[0]))  # a band below zero says nothing about these
        ax.set_xlabel(units.x)
        ax.set_ylabel(units.of(name))
        ax.margins(x=0)
        tidy(ax)
        angles(ax, _period(arrays))
    axs[0].plot([], [], " ", label=p_text(float(arrays["p_value"])))
    legend_above(axs[0])
    return fig, axs


def predictive(arrays: Arrays, *, axes: Sequence[Axes] | None = None) -> tuple[Figure, list[Axes]]:
    """Displacements over several steps: quantiles of the data (dots) and of the fit (bands: 95 % of replicas), and how
    the spread between the quartiles depends on the state."""
    horizons = arrays["horizons"]
    fig, axs = panels(axes, 2, width=5.0, height=3.5, margins={"left": 0.8, "gap_x": 1.1, "top": 0.5})
    left, right = axs[0], axs[1]
    for column, level in enumerate(arrays["levels"]):
        data, paths, std = (np.array([arrays[f"{n}_{k}"][column] for k in horizons]) for n in _QUANTILES)
        shown = {} if column else {"label": "paths of the fit, 95 %"}
        left.fill_between(
            horizons, paths - 1.96 * std, paths + 1.96 * std, color=RECOVERED, alpha=0.25, linewidth=0, **shown
        )
        left.plot(horizons, paths, color=RECOVERED, linewidth=1.0)
        left.plot(horizons, data, "o", color=_OBSERVED["color"], markersize=4, label=None if column else "data")
        place = {"xytext": (5, 0), "textcoords": "offset points", "va": "center"}
        left.annotate(f"{level:.0%}", (horizons[-1], data[-1]), fontsize=SMALL, **place)
    scale = float(np.median(np.abs(arrays[f"data_{horizons[0]}"]))) or 1.0
    left.set_yscale("symlog", linthresh=2 * scale)
    left.set_xscale("log")
    left.set_xticks(horizons, [str(k) for k in horizons])
    left.minorticks_off()
    left.set_xlabel("steps")
    left.set_ylabel(f"quantiles of displacements  ({p_text(float(arrays['p_value']))})")
    legend_above(left)
    for k, marker in zip(horizons, "os^Dv"):
        x, data, paths, std = (arrays[f"{n}_{k}"] for n in ("x", "spread_data", "spread_paths", "spread_std"))
        low = np.maximum(paths - 1.96 * std, 0.1 * paths)  # a band of a logarithmic axis
        right.fill_between(x, low, paths + 1.96 * std, color=RECOVERED, alpha=0.25, linewidth=0)
        right.plot(
            x,
            data,
            f"{marker}-",
            color=_OBSERVED["color"],
            markersize=4,
            linewidth=0.8,
            label=f"data, {k} step{'s' if k > 1 else ''}",
        )
    right.set_yscale("log")
    right.set_xlabel(_state_label(arrays))
    right.set_ylabel("spread between the quartiles")
    legend_above(right, columns=2)
    for ax in axs:
        tidy(ax)
    angles(right, _period(arrays))
    return fig, axs
