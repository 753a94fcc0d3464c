"""Recovered coefficients against the truth, and the history of a fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from levytorch.figures.base import COLORS, SYMBOLS, TRUTH, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES = {"b_2": "--", "b_3": ":"}  # the components of a vector share their colour


class _Curves(Protocol):
    """Something with coefficient functions over a cell: a Recovery or a Dynamics."""

    period: float
    origin: float

    def b(self, x: Tensor) -> Tensor: ...
    def D_o(self, x: Tensor) -> Tensor: ...
    def D_f(self, x: Tensor) -> Tensor: ...


def coefficient_curves(recovery: Any, truth: Any = None, n: int = 401) -> dict[str, np.ndarray[Any, Any]]:
    """The numbers behind `coefficients`: x, every coefficient, its standard error and the truth, column by column."""
    x = torch.linspace(recovery.origin, recovery.origin + recovery.period, n, dtype=torch.float64)
    out = {"x": x.numpy()}
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


def coefficients(
    curves: Mapping[str, np.ndarray[Any, Any]], *, axes: Sequence[Axes] | None = None, band: float = 1.96
) -> tuple[Figure, list[Axes]]:
    """One panel per coefficient: estimate, pointwise band of `band` standard errors, truth when it is known."""
    names = [name for name in ("b", "D_o", "D_f", "alpha") if name in curves]
    fig, axs = panels(axes, len(names), width=4.2, height=3.2)
    x = curves["x"]
    for ax, name in zip(axs, names):
        y, color = curves[name], COLORS[name]
        if f"{name}_std" in curves:
            spread = band * curves[f"{name}_std"]
            ax.fill_between(x, y - spread, y + spread, color=color, alpha=0.25, linewidth=0, label="95 % band")
        ax.plot(x, y, color=color, linewidth=1.5, label="recovered")
        shown = [y]
        if f"{name}_truth" in curves:
            ax.plot(x, curves[f"{name}_truth"], **{**TRUTH, "linestyle": "--"})
            shown.append(curves[f"{name}_truth"])
        _limits(ax, np.concatenate(shown), floor=None if name == "b" else 0.0)
        ax.set_xlabel("x")
        ax.set_title(SYMBOLS[name])
        ax.margins(x=0)
        ax.legend(frameon=False, fontsize="small")
    return fig, axs


def _limits(ax: Axes, values: np.ndarray[Any, Any], floor: float | None) -> None:
    """Room around the curves; a positive coefficient's axis starts at zero; a wild band does not set the scale."""
    low, high = float(values.min()), float(values.max())
    room = 0.25 * max(high - low, 0.05 * max(abs(low), abs(high)), 1e-12)
    ax.set_ylim(low - room if floor is None else floor, high + room)


def history(
    entries: Sequence[Mapping[str, float]],
    *,
    axes: Sequence[Axes] | None = None,
    truth: Mapping[str, float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Mean coefficients, negative log-likelihood and TCF against steps."""
    fig, axs = panels(axes, 3, width=4.2, height=3.2)
    step = [e["step"] for e in entries]
    drift = ["b"] if "mean/b" in entries[0] else [f"b_{i}" for i in (1, 2, 3) if f"mean/b_{i}" in entries[0]]
    for name in (*drift, "D_o", "D_f"):
        symbol = SYMBOLS[name][:-4] if name in SYMBOLS else f"${name}"
        style = {"color": COLORS[name[:1] if name in drift else name], "linestyle": _DASHES.get(name, "-")}
        axs[0].plot(step, [e[f"mean/{name}"] for e in entries], label=f"{symbol}$ (mean)", **style)
        if truth and name in truth:
            axs[0].axhline(truth[name], color=style["color"], linestyle="--", linewidth=0.8)
    axs[0].legend(frameon=False, fontsize="small")
    axs[1].plot(step, [e["train/nll"] for e in entries], color="tab:gray")
    axs[2].plot(step, [e["tail/TCF"] for e in entries], color="tab:red")
    for ax, title in zip(axs, ("mean coefficients", "negative log-likelihood per pair", "TCF")):
        ax.set_title(title)
        ax.set_xlabel("step")
        ax.margins(x=0)
    return fig, axs
