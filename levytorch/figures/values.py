"""Value functions against their reference and beside what one would use instead of the model, errors of many runs, and
the error-bound study.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from levytorch.convert import Array
from levytorch.figures.base import ARMS, DATA, OTHERS, RECOVERED, SMALL, ZERO, AxisNames, angles, new_axes, panels, tidy
from levytorch.figures.coefficients import limits_along, mark_data

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BASELINES = ({"color": "#7F7F00", "linestyle": ":"}, {"color": "#B15928", "linestyle": "-."})  # r / beta, CRL
# above the panel: no curve runs behind it whatever V looks like
_ABOVE = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
_LEGEND: dict[str, Any] = {"frameon": False, "fontsize": SMALL, "ncols": 3, "columnspacing": 1.0, **_ABOVE}

# The sd of two or three curves vanishes where they cross: a band of it would claim certainty there
FEWEST_FOR_A_BAND = 4
_FAR = 10.0  # sizes of one's own curves beyond which another one leaves the panel


class Band(NamedTuple):
    """One group of value functions on the grid: its mean and the half width of its band (None: a bare curve).

    curves: the replicas behind them, which are drawn themselves when they are too few for a band.
    """

    label: str
    center: Array
    half_width: Array | None = None
    band_label: str = "mean ± sd"
    curves: Sequence[Array] = ()

    @property
    def single(self) -> bool:
        """Whether the curves are drawn one by one."""
        return 1 < len(self.curves) < FEWEST_FOR_A_BAND


def value_bands(
    x: Array,
    bands: Sequence[Band],
    *,
    reference: Array | None = None,
    reference_label: str = "reference",
    baselines: Mapping[str, Array] | None = None,
    samples: tuple[Array, Array] | None = None,
    support: tuple[float, float] | None = None,
    observed: Sequence[tuple[float, float]] = (),
    period: float | None = None,
    axes: Sequence[Axes] | None = None,
    units: AxisNames | None = None,
) -> tuple[Figure, list[Axes]]:
    """V of every group (upper panel) and its difference to the reference (lower panel, when there is one).

    samples: empirical values (x, V) as dots; support: the range of the data; observed: the parts of the
    cell with data. Both are shaded: the rest is extrapolation.
    """
    entries = len(bands) + 1 + len(baselines or {}) + (samples is not None) + bool(observed or support)
    fig, axs = _stacked(axes, reference is not None, entries)
    upper, lower = axs[0], axs[1] if len(axs) > 1 and reference is not None else None
    shaded = [*observed, *([support] if support is not None and not observed else [])]
    for ax in axs:
        mark_data(ax, shaded, label=ax is upper)
    if samples is not None:
        upper.plot(*samples, ".", color=DATA, markersize=2, alpha=0.3, label="empirical values", rasterized=True)
    colors = group_colors([band.label for band in bands])
    filled: dict[str, Any] = {}
    for band, color in zip(bands, colors):
        filled |= draw_band(upper, x, band, color, 0.0)
        if lower is not None:
            draw_band(lower, x, band, color, reference)
    for number, (label, curve) in enumerate((baselines or {}).items()):
        style = _BASELINES[number % len(_BASELINES)]
        upper.plot(x, curve, linewidth=1.2, label=label, **style)
        if lower is not None and reference is not None:
            lower.plot(x, curve - reference, linewidth=1.2, **style)
    low, high = limits_along(x, observed)
    seen = (x >= low) & (x <= high)  # what lies outside the panel does not set its scale
    edges = [edge for band in bands for edge in _edges(band)]
    shown = [edge[seen] for edge in edges]
    if reference is not None:
        upper.plot(x, reference, color="black", linewidth=1.2, linestyle="--", label=reference_label)
        shown.append(reference[seen])
    if samples is not None:
        shown.append(np.quantile(samples[1], [0.005, 0.995]))
    limits(upper, np.concatenate(shown))
    upper.set_ylabel("V(x)")
    upper.legend(*_with_bands(upper, filled), handlelength=1.6, **_LEGEND)
    if lower is not None:
        assert reference is not None
        lower.axhline(0.0, **ZERO)
        limits(lower, np.concatenate([(edge - reference)[seen] for edge in edges]))
        lower.set_ylabel(f"V(x) - {reference_label}")
    for ax in axs:
        ax.margins(x=0)
        ax.set_xlim(low, high)
        tidy(ax)
        angles(ax, period)
    axs[-1].set_xlabel((units or AxisNames()).x)
    return fig, axs


def value(
    V: Any,
    *,
    reference: Any = None,
    band: float = 1.96,
    n: int = 401,
    axes: Any = None,
    units: AxisNames | None = None,
) -> tuple[Figure, Any]:
    """A value function with its band. In two dimensions these are contours.

    Args:
        V: the value function.
        reference: another value function, which is drawn together with the difference.
        band: half the width of the band, in standard errors.
        n: the number of states, from end to end.
        axes: axes to draw on; None makes a figure.
        units: names for the axes.

    Returns:
        (fig, axes).

    Example:
        >>> import torch
        >>> from levytorch import Dynamics, solve_value
        >>> fig, axes = value(solve_value(Dynamics.named("constant"), torch.cos, 1.0))
        >>> len(axes)
        1
    """
    if getattr(V, "dim", 1) == 2:
        from levytorch.figures import planes

        return planes.contours(V, reference, axes=axes, units=units)
    window = getattr(V, "window", None)
    low, high = window or V.space.ends
    x = np.linspace(low, high, n)
    half = band * np.asarray(V.std(x)) if V.covariance_factor is not None else None
    shown = Band("V", np.asarray(V(x)), half, "95 % band")
    compared = None if reference is None else np.asarray(reference(x))
    period = None if window is not None else V.period
    return value_bands(x, [shown], reference=compared, axes=axes, units=units, period=period)


def _stacked(axes: Sequence[Axes] | None, two: bool, entries: int) -> tuple[Figure, list[Axes]]:
    """Given axes, or a panel (two: above another) with room for a legend of so many entries above it."""
    if axes is not None:
        return panels(axes, 1)
    margins = {"top": 0.25 + 0.18 * -(-entries // 3), "left": 0.85, "gap_y": 0.4}
    fig, grid = new_axes(2 if two else 1, 1, width=6.4, height=3.0, margins=margins)
    return fig, list(grid[:, 0])


def group_colors(labels: Sequence[str]) -> list[str]:
    """A color per group, the same in every figure: known arms have theirs, a single other one is what was recovered."""
    unknown = sorted({label for label in labels if label not in ARMS and label != "recovered"})
    if len(set(labels)) == 1 and unknown:
        return [RECOVERED] * len(labels)
    own = {label: OTHERS[number % len(OTHERS)] for number, label in enumerate(unknown)}
    return [({"recovered": RECOVERED} | ARMS | own)[label] for label in labels]


def _edges(band: Band) -> list[Array]:
    """What must fit into the panel."""
    if band.single:
        return list(band.curves)
    return [band.center] if band.half_width is None else [band.center + s * band.half_width for s in (-1, 1)]


def _with_bands(ax: Axes, filled: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """Handles and labels for the legend, in which a band stands behind its line."""
    handles, labels = ax.get_legend_handles_labels()
    return [(filled[label], handle) if label in filled else handle for handle, label in zip(handles, labels)], labels


def draw_band(ax: Axes, x: Array, band: Band, color: str, shift: Any) -> dict[str, Any]:
    """Draws a group; returns its band by the label of its line, when it has one."""
    if band.single:
        for number, curve in enumerate(band.curves):
            label = f"{band.label} ({len(band.curves)} runs)" if number == 0 else None
            ax.plot(x, curve - shift, color=color, linewidth=1.0, alpha=0.8, label=label)
        return {}
    center = band.center - shift
    label = band.label if band.half_width is None else f"{band.label} ({band.band_label})"
    ax.plot(x, center, color=color, linewidth=1.5, label=label)
    if band.half_width is None:
        return {}
    low, high = center - band.half_width, center + band.half_width
    return {label: ax.fill_between(x, low, high, color=color, alpha=0.25, linewidth=0)}


def limits(ax: Axes, values: Array) -> None:
    """Room around what matters; a baseline that runs away does not set the scale."""
    low, high = float(values.min()), float(values.max())
    room = 0.1 * max(high - low, 1e-9 * max(abs(low), abs(high)), 1e-300)
    ax.set_ylim(low - room, high + room)


def error_boxes(
    errors: Mapping[str, Sequence[float]], *, baselines: Mapping[str, float] | None = None, axes: Axes | None = None
) -> tuple[Figure, list[Axes]]:
    """Box plots of the relative L2 errors of every group, all runs as points, baselines as lines."""
    fig, axs = panels(axes, 1, width=max(3.6, 1.6 * len(errors) + 2.0), height=3.4, margins={})
    ax = axs[0]
    groups = list(errors)
    percent = [100 * np.asarray(errors[name], dtype=float) for name in groups]
    boxes = ax.boxplot(percent, tick_labels=groups, widths=0.5, showfliers=False, patch_artist=True)
    generator = np.random.default_rng(0)  # the points' sideways shift, the same in every figure
    for number, (values, color) in enumerate(zip(percent, group_colors(groups))):
        boxes["boxes"][number].set(facecolor=color, alpha=0.3)
        boxes["medians"][number].set(color=color, linewidth=2)
        ax.plot(number + 1 + generator.uniform(-0.12, 0.12, len(values)), values, ".", color=color, markersize=5)
    for number, (label, value) in enumerate((baselines or {}).items()):
        ax.axhline(100 * value, linewidth=1.2, label=label, **_BASELINES[number % len(_BASELINES)])
    if baselines:
        ax.legend(frameon=False, fontsize="small")
    ax.set_ylabel("relative $L^2$ error of V (%)")
    ax.set_ylim(bottom=0)
    return fig, axs


def baselines(
    x: Array,
    bands: Sequence[Band],
    others: Mapping[str, tuple[Array, Array]],
    *,
    reference: Array | None = None,
    reference_label: str = "reference",
    axes: Sequence[Axes] | None = None,
    units: AxisNames | None = None,
) -> tuple[Figure, list[Axes]]:
    """V of every group and of every other estimate with its 95 % band (upper panel), and their differences to the
    reference (lower panel, when there is one).

    others: (V, half width of its band) by name.
    """
    fig, axs = _stacked(axes, reference is not None, len(bands) + len(others) + 1)
    own = group_colors([band.label for band in bands])
    left = [color for color in OTHERS if color not in own]
    for ax, shift in zip(axs, (0.0, reference)):
        assert shift is not None
        for number, (name, (center, width)) in enumerate(others.items()):
            color, low, high = left[number % len(left)], center - width - shift, center + width - shift
            ax.plot(x, center - shift, color=color, linewidth=1.2, label=name)
            ax.fill_between(x, low, high, color=color, alpha=0.12, linewidth=0)
        for band, color in zip(bands, own):
            draw_band(ax, x, band, color, shift)
        edges = [band.center - shift for band in bands]
        if reference is not None:
            edges.append(reference - shift)
            if ax is axs[0]:
                ax.plot(x, reference, color="black", linewidth=1.2, linestyle="--", label=reference_label)
        limits(ax, _shown(np.concatenate(edges), [center - shift for center, _ in others.values()]))
        ax.margins(x=0)
        tidy(ax)
    axs[0].set_ylabel("V(x)")
    if reference is not None and len(axs) > 1:
        axs[1].axhline(0.0, **ZERO)
        axs[1].set_ylabel(f"V(x) - {reference_label}")
    axs[0].legend(**_LEGEND)
    axs[-1].set_xlabel((units or AxisNames()).x)
    return fig, axs


def _shown(own: Array, others: Sequence[Array]) -> Array:
    """What fits into a panel: one's own curves, and the others as far as they stay within some sizes of these."""
    low, high = float(own.min()), float(own.max())
    room = _FAR * max(high - low, 1e-300)
    return np.concatenate([own, *(np.clip(curve, low - room, high + room) for curve in others)])
