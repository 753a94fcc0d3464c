"""Data with actions: coefficients of every action, what policies do and are worth, and where the data ends.

Where fewer than a few pairs of an action lie nearby, lines are dotted: there the coefficients are extrapolated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from levytorch.convert import Array
from levytorch.figures.base import OTHERS, SMALL, AxisNames, new_axes, plain, tidy
from levytorch.figures.coefficients import set_limits
from levytorch.training.controlled import FEW

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#0072B2", "#D55E00", "#009E73", *OTHERS)
_LEGEND = {"frameon": False, "fontsize": SMALL, "columnspacing": 1.0, "handlelength": 1.6}


class Curve(NamedTuple):
    """A function of x with its standard error (None: not known), the truth where it is known, and the pairs that speak
    for it around each x.
    """

    values: Array
    std: Array | None
    truth: Array | None
    pairs: Array


def action_coefficients(
    x: Array, curves: Mapping[str, Mapping[str, Curve]], *, units: AxisNames | None = None
) -> tuple[Figure, list[Axes]]:
    """b, D_o and D_f of every action, {label: {name: Curve}}, and below how many pairs each is made of."""
    units = units or AxisNames()
    fig, axes = new_axes(1, 4, width=3.3, height=3.0, margins={"top": 0.5})
    row = list(axes[0])
    for ax, name in zip(row, ("b", "D_o", "D_f")):
        shown, widths = [], [0.0]
        for number, (label, own) in enumerate(curves.items()):
            curve = own[name]
            _line(ax, x, curve, COLORS[number % len(COLORS)], plain(label, 20))
            shown += [curve.values, *([] if curve.truth is None else [curve.truth])]
            if curve.std is not None:
                widths.append(1.96 * float(np.median(curve.std)))
        set_limits(ax, shown, None)
        low, high = ax.get_ylim()
        ax.set_ylim(0.0 if name != "b" else low - max(widths), high + max(widths))
        ax.set_ylabel(units.of(name))
        ax.set_xlabel(units.x)
    _pairs(row[3], x, {label: own["b"].pairs for label, own in curves.items()}, units)
    for ax in row:
        ax.set_xlim(x[0], x[-1])
        tidy(ax)
    if any(curve.truth is not None for own in curves.values() for curve in own.values()):
        row[0].plot([], [], color="black", linestyle="--", linewidth=1.0, label="truth")
    row[0].plot([], [], color="black", linestyle=":", linewidth=1.0, label=f"fewer than {FEW} pairs nearby")
    fig.legend(*row[0].get_legend_handles_labels(), ncols=8, loc="upper center", **_LEGEND)
    return fig, row


def _line(ax: Axes, x: Array, curve: Curve, color: str, label: str) -> None:
    """Solid where there are pairs, dotted where there are few; a band, and the truth dashed."""
    known = curve.pairs >= FEW
    ax.plot(x, np.where(known, curve.values, np.nan), color=color, linewidth=1.5, label=label)
    ax.plot(x, np.where(known, np.nan, curve.values), color=color, linewidth=1.0, linestyle=":")
    if curve.std is not None:
        low, high = curve.values - 1.96 * curve.std, curve.values + 1.96 * curve.std
        ax.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    if curve.truth is not None:
        ax.plot(x, curve.truth, color="black", linewidth=0.9, linestyle="--")


def _pairs(ax: Axes, x: Array, pairs: Mapping[str, Array], units: AxisNames, label: str = "pairs nearby") -> None:
    for number, own in enumerate(pairs.values()):
        ax.plot(x, np.maximum(own, 0.5), color=COLORS[number % len(COLORS)], linewidth=1.2)
    top = max(float(own.max()) for own in pairs.values())
    ax.set_yscale("log")
    ax.set_ylim(0.5, 4 * max(top, FEW))
    ax.axhspan(0.5, FEW, color="#E69F00", alpha=0.2, linewidth=0)
    ax.set_ylabel(label)
    ax.set_xlabel(units.x)


def policy_values(
    x: Array, curves: Mapping[str, Curve], *, units: AxisNames | None = None
) -> tuple[Figure, list[Axes]]:
    """V of several policies with their 95 % bands; below, the effective number of pairs that support each."""
    units = units or AxisNames()
    top = 0.3 + 0.18 * -(-len(curves) // 3)
    fig, axes = new_axes(2, 1, width=6.4, height=2.6, margins={"top": top, "left": 0.85, "gap_y": 0.3})
    upper, lower = axes[:, 0]
    for number, (label, curve) in enumerate(curves.items()):
        _line(upper, x, curve, COLORS[number % len(COLORS)], plain(label, 28))
    if any(curve.truth is not None for curve in curves.values()):
        upper.plot([], [], color="black", linestyle="--", linewidth=1.0, label="truth")
    upper.set_ylabel("V(x) of policies")
    upper.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), **_LEGEND)
    _pairs(lower, x, {label: curve.pairs for label, curve in curves.items()}, units, "effective pairs")
    _shade(upper, x, curves)
    for ax in (upper, lower):
        ax.set_xlim(x[0], x[-1])
        tidy(ax)
    return fig, [upper, lower]


def _shade(ax: Axes, x: Array, curves: Mapping[str, Curve]) -> None:
    """Strips along the bottom, one per policy, where it leaves the data."""
    height = 0.025
    for number, curve in enumerate(curves.values()):
        thin = curve.pairs < FEW
        if thin.any():
            color, low = COLORS[number % len(COLORS)], number * height
            ax.fill_between(
                x,
                low,
                low + height,
                where=thin,
                color=color,
                alpha=0.7,
                linewidth=0,
                transform=ax.get_xaxis_transform(),
            )


def policy_over_state(
    x: Array, probabilities: Array, labels: Sequence[Any], pairs: Array, *, units: AxisNames | None = None
) -> tuple[Figure, list[Axes]]:
    """The probabilities of all actions over the state, as areas that add up to one.

    Args:
        x: (n,) states.
        probabilities: (n, A), one column per action.
        labels: the names of the A actions.
        pairs: (n,) the effective number of pairs that support the policy; few of them are hatched.
        units: names for the axes.

    Returns:
        (fig, axes).

    Example:
        >>> import numpy as np
        >>> x = np.linspace(0.0, 1.0, 5)
        >>> fig, axes = policy_over_state(x, np.stack([x, 1 - x], axis=1), ["left", "right"], np.full(5, 100.0))
        >>> len(axes)
        1
    """
    fig, axes = new_axes(1, 1, width=6.4, height=2.8, margins={"top": 0.45, "left": 0.85})
    ax = axes[0, 0]
    colors = [COLORS[number % len(COLORS)] for number in range(len(labels))]
    names = [plain(str(label), 20) for label in labels]
    ax.stackplot(x, probabilities.T, labels=names, colors=colors, alpha=0.75, linewidth=0)
    _hatch(ax, x, pairs)
    ax.set_xlim(x[0], x[-1])
    ax.set_ylim(0, 1)
    ax.set_xlabel((units or AxisNames()).x)
    ax.set_ylabel("probability of an action")
    tidy(ax)
    ax.legend(ncols=min(9, len(labels) + 1), loc="lower center", bbox_to_anchor=(0.5, 1.0), **_LEGEND)
    return fig, [ax]


def action_over_state(
    x: Array, actions: Array, pairs: Array, *, units: AxisNames | None = None
) -> tuple[Figure, list[Axes]]:
    """The action of a policy on a scale, (n, m): one line per number of it."""
    fig, axes = new_axes(1, 1, width=6.4, height=2.8, margins={"top": 0.45, "left": 0.85})
    ax = axes[0, 0]
    for number, column in enumerate(actions.T):
        label = "action" if actions.shape[1] == 1 else f"action[{number}]"
        ax.plot(x, column, color=COLORS[number], linewidth=1.5, label=label)
    _hatch(ax, x, pairs, "#BBBBBB")
    ax.set_xlim(x[0], x[-1])
    ax.set_xlabel((units or AxisNames()).x)
    ax.set_ylabel("action")
    tidy(ax)
    ax.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), **_LEGEND)
    return fig, [ax]


def _hatch(ax: Axes, x: Array, pairs: Array, color: str = "white") -> None:
    thin = pairs < FEW
    if thin.any():
        look: dict[str, Any] = {"facecolor": "none", "edgecolor": color, "hatch": "///", "linewidth": 0.0}
        ax.fill_between(x, 0, 1, where=thin, transform=ax.get_xaxis_transform(), **look)
        ax.fill_between(
            [],
            [],
            [],
            label=f"fewer than {FEW} pairs",
            **{**look, "facecolor": "#9A9A9A" if color == "white" else "white"},
        )


def policy_map(
    u: Array, v: Array, probabilities: Array, labels: Sequence[Any], pairs: Array, *, units: AxisNames | None = None
) -> tuple[Figure, list[Axes]]:
    """The most likely action over the plane, (n, n, A); paler the less certain, hatched where few pairs are."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    fig, axes = new_axes(1, 1, width=4.6, height=4.4, margins={"top": 0.45})
    ax = axes[0, 0]
    colors = np.array([to_rgb(COLORS[number % len(COLORS)]) for number in range(len(labels))])
    best, share = probabilities.argmax(-1), probabilities.max(-1)
    image = 1 - share[..., None] * 0.8 * (1 - colors[best])
    steps = [0.5 * float(side[1] - side[0]) for side in (u, v)]
    extent = (u[0] - steps[0], u[-1] + steps[0], v[0] - steps[1], v[-1] + steps[1])
    ax.imshow(image.transpose(1, 0, 2), origin="lower", extent=extent, aspect="auto", interpolation="nearest")
    if (pairs < FEW).any():
        ax.contourf(u, v, (pairs < FEW).T.astype(float), levels=[0.5, 1.5], colors="none", hatches=["///"])
    ax.set_xlabel("$x_1$")
    ax.set_ylabel("$x_2$")
    tidy(ax)
    patches = [Patch(color=colors[k], label=plain(str(label), 20)) for k, label in enumerate(labels)]
    ax.legend(handles=patches, ncols=len(labels), loc="lower center", bbox_to_anchor=(0.5, 1.0), **_LEGEND)
    return fig, [ax]
