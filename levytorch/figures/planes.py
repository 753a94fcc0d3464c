"""Two dimensions: coefficient fields (truth beside estimate and error), and V as a contour map.

Maps of values are in viridis, maps of errors in a scale of their own that is white at zero, standard errors in greys;
dots are observed states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from levytorch.coefficients.layout import NOISES, in_one_form
from levytorch.convert import Array
from levytorch.figures.base import SMALL, SYMBOLS, AxisNames, new_axes, tidy
from levytorch.spaces import coordinates, space_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ARROWS = 14  # per side of a quiver
_DOTS = 1500  # observed states that are shown
_FLAT = 0.01  # a field that varies by less than this share of its size is shown as the constant that it is
_MARGINS = {"right": 0.55, "gap_x": 1.05, "gap_y": 0.85}  # room for colour bars


def cell_grid(system: Any, n: int) -> tuple[Array, Array, torch.Tensor]:
    """Coordinates (n,), (n,) of the cell's midpoints and the points (n, n, 2)."""
    space = getattr(system, "space", None) or space_of(getattr(system, "head", system))
    first, second = (part.grid(n).numpy() for part in coordinates(space))
    return first, second, space.grid(n)


def coefficient_fields(recovery: Any, truth: Any = None, n: int = 64) -> dict[str, Array]:
    """The numbers behind `fields`: coordinates u, v (n,), and every coefficient on the n x n grid of midpoints.

    b is (n, n, 2), the others (n, n); with `_truth` and, where there is a covariance, `_std` appended. Of a matrix D_o
    every number is a field of its own: D_o_11, D_o_12 and D_o_22.
    """
    u, v, x = cell_grid(recovery, n)
    out: dict[str, Array] = {"u": u, "v": v}
    names = ["b", "D_o", "D_f"] + (["alpha"] if callable(recovery.alpha) else [])
    has_errors = getattr(recovery, "covariance", None) is not None
    stds = dict(zip(("b", "D_o", "D_f"), recovery.std(x))) if has_errors else None
    for name in names:
        call = "alpha_at" if name == "alpha" else name
        found = {"": getattr(recovery, call)(x)}
        if truth is not None:
            found["_truth"] = torch.as_tensor(getattr(truth, call)(x))
            if name == "D_o":
                found[""], found["_truth"] = in_one_form(found[""], found["_truth"])
        if stds is not None and name in stds:
            found["_std"] = stds[name]
        parts = NOISES["matrix"].labels(2) if name == "D_o" and found[""].dim() == 4 else [(name, ())]
        for label, place in parts:
            for suffix, values in found.items():
                if len(place) <= values.dim() - 2:  # an isotropic fit has one error for a truth with matrices
                    out[f"{label}{suffix}"] = np.asarray(values[(..., *place)])
    return out


def field_columns(fields: Mapping[str, Array]) -> dict[str, Array]:
    """The fields as columns of equal length, one row per point: what a CSV file holds."""
    u, v = np.meshgrid(fields["u"], fields["v"], indexing="ij")
    columns = {"u": u.reshape(-1), "v": v.reshape(-1)}
    for name, value in fields.items():
        if name in ("u", "v"):
            continue
        if value.ndim == 3:
            head, _, rest = name.partition("_")
            for i in range(value.shape[-1]):
                columns[f"{head}_{i + 1}" + (f"_{rest}" if rest else "")] = value[..., i].reshape(-1)
        else:
            columns[name] = value.reshape(-1)
    return columns


def sample_states(states: Any, system: Any) -> Array:
    """Some of the observed states (n, 2), folded into the cell where there is one."""
    x = np.asarray(states, dtype=float)
    if len(x) > _DOTS:
        x = x[np.random.default_rng(0).choice(len(x), _DOTS, replace=False)]
    return space_of(getattr(system, "head", system)).wrap(torch.as_tensor(x)).numpy()


def fields(
    fields: Mapping[str, Array], *, axes: Any = None, dots: Array | None = None, units: AxisNames | None = None
) -> tuple[Figure, Array]:
    """Maps in two dimensions, one row per coefficient: truth, estimate and error, or estimate and standard error.

    Truth and estimate share their colours. b is drawn as arrows over its magnitude.

    Args:
        fields: the fields on a grid, from `coefficient_fields`.
        axes: axes to draw on; None makes a figure.
        dots: (n, 2) observed states.
        units: names for the axes.

    Returns:
        (fig, axes).

    Example:
        >>> from levytorch import Dynamics
        >>> fig, axes = fields(coefficient_fields(Dynamics.named("plane"), n=8))
        >>> axes.shape
        (3, 1)
    """
    names = [name for name in SYMBOLS if name in fields]
    known, errors = f"{names[0]}_truth" in fields, f"{names[0]}_std" in fields
    columns = 3 if known else 1 + errors
    if axes is None:
        fig, grid = new_axes(len(names), columns, width=4.0, height=3.2, margins=_MARGINS)
    else:
        grid = np.asarray(axes, dtype=object).reshape(len(names), columns)
        fig = grid[0, 0].figure
    u, v = fields["u"], fields["v"]
    for row, name in zip(grid, names):
        estimate, symbol = fields[name], SYMBOLS[name]
        shown = [fields[f"{name}_truth"], estimate] if known else [estimate]
        sizes = [_size(f) for f in shown]
        low, high = honest_range(sizes)
        for ax, field, size, title in zip(row, shown, sizes, ("truth", "recovered") if known else ("recovered",)):
            image = _heat(ax, u, v, size, low, high, "viridis")
            if field.ndim == 3:
                _arrows(ax, u, v, field)
            ax.set_title(f"{symbol}, {title}", fontsize="medium")
            _bar(fig, image, ax)
            if dots is not None and title == "recovered":
                ax.plot(dots[:, 0], dots[:, 1], ".", color="white", markersize=1.2, alpha=0.45, rasterized=True)
        if known:
            _error_map(fig, row[2], u, v, symbol, estimate - shown[0], shown[0])
        elif errors:
            std = fields.get(f"{name}_std")
            if std is None:
                row[1].set_visible(False)
            else:
                image = _heat(row[1], u, v, _size(std), 0.0, max(float(_size(std).max()), 1e-300), "Greys")
                row[1].set_title(f"{symbol}, standard error", fontsize="medium")
                _bar(fig, image, row[1])
    for ax in grid.ravel():
        ax.set_aspect("equal" if np.isclose(np.ptp(u), np.ptp(v), rtol=0.5) else "auto")
        _label(ax, units)
    return fig, grid


def honest_range(sizes: Sequence[Array]) -> tuple[float, float]:
    """Of the colours: what is constant, but for rounding and noise far below its size, gets no structure."""
    low, high = min(float(s.min()) for s in sizes), max(float(s.max()) for s in sizes)
    lacking = _FLAT * max(abs(low), abs(high)) - (high - low)
    if lacking > 0 or not high > low:
        room = max(0.5 * lacking, 1e-12)
        low, high = low - room, high + room
    return low, high


def _error_map(fig: Figure, ax: Axes, u: Array, v: Array, symbol: str, error: Array, truth: Array) -> None:
    size = _size(error)
    top = _reach(size, truth)
    vector = error.ndim == 3
    image = _heat(ax, u, v, size, 0.0 if vector else -top, top, "Reds" if vector else "RdBu_r")
    if vector:
        _arrows(ax, u, v, error, "black")
    share = float(np.sqrt(np.sum(error**2) / max(np.sum(truth**2), 1e-300)))
    ax.set_title(f"{symbol}, error ({share:.1%} in $L^2$)", fontsize="medium")
    _bar(fig, image, ax)


def _reach(error: Array, truth: Array) -> float:
    """Where the colours of an error end: not far below a thousandth of what it is an error of, or rounding has some."""
    return max(float(np.abs(error).max()), 1e-3 * float(np.abs(truth).max()), 1e-300)


def _bar(fig: Figure, image: Any, ax: Axes) -> None:
    """A colour bar that shows its numbers as they are: no offset to be added."""
    from matplotlib.ticker import MaxNLocator, ScalarFormatter

    formatter = ScalarFormatter(useOffset=False, useMathText=False)
    formatter.set_powerlimits((-3, 5))
    bar = fig.colorbar(image, ax=ax, fraction=0.046, pad=0.03, format=formatter, ticks=MaxNLocator(5))
    bar.ax.tick_params(labelsize=SMALL)
    bar.ax.yaxis.get_offset_text().set_fontsize(SMALL)


def _label(ax: Axes, units: AxisNames | None) -> None:
    tidy(ax)
    first, _, second = (units.x if units is not None else "x").partition(", ")
    ax.set_xlabel(first if second else "$x_1$")
    ax.set_ylabel(second or "$x_2$")


def contours(
    value: Any,
    reference: Any = None,
    *,
    n: int = 128,
    levels: int = 20,
    axes: Sequence[Axes] | None = None,
    units: AxisNames | None = None,
) -> tuple[Figure, Array]:
    """V in two dimensions as filled contours.

    Args:
        value: the value function.
        reference: another one, which is drawn beside it together with the difference.
        n: grid points per coordinate.
        levels: number of contours.
        axes: axes to draw on; None makes a figure.
        units: names for the axes.

    Returns:
        (fig, axes).

    Example:
        >>> from levytorch import Dynamics, solve_value
        >>> V = solve_value(Dynamics.named("plane"), lambda x: x[..., 0].cos(), 1.0, n_modes=8)
        >>> fig, axes = contours(V, n=16)
        >>> len(axes)
        1
    """
    maps = [("V(x)", value)] if reference is None else [("V(x), truth", reference), ("V(x), recovered", value)]
    columns = len(maps) + (reference is not None)
    if axes is None:
        fig, grid = new_axes(1, columns, width=4.2, height=3.5, margins=_MARGINS)
        row = grid[0]
    else:
        row = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
        fig = row[0].figure
    u, v, x = cell_grid(value, n)
    heights = [np.asarray(f(x)) for _, f in maps]
    low, high = honest_range(heights)
    edges = np.linspace(low, high, levels + 1)
    for ax, (title, _), height in zip(row, maps, heights):
        image = ax.contourf(u, v, height.T, levels=edges, cmap="viridis")
        ax.contour(u, v, height.T, levels=edges[::2], colors="white", linewidths=0.4)
        ax.set_title(title, fontsize="medium")
        _bar(fig, image, ax)
    if reference is not None:
        error = heights[1] - heights[0]
        top = _reach(error, heights[0])
        image = _heat(row[2], u, v, error, -top, top, "RdBu_r")
        row[2].set_title("difference", fontsize="medium")
        _bar(fig, image, row[2])
    for ax in row:
        _label(ax, units)
    return fig, row


def _size(field: Array) -> Array:
    return np.linalg.norm(field, axis=-1) if field.ndim == 3 else field


def _heat(ax: Axes, u: Array, v: Array, field: Array, low: float, high: float, colours: str) -> Any:
    return ax.pcolormesh(u, v, field.T, vmin=low, vmax=high, cmap=colours, shading="nearest", rasterized=True)


def _arrows(ax: Axes, u: Array, v: Array, field: Array, color: str = "white") -> None:
    if not np.any(field):
        return
    step = max(1, len(u) // _ARROWS)
    some = slice(step // 2, None, step)
    arrows = field[some, some]
    ax.quiver(u[some], v[some], arrows[..., 0].T, arrows[..., 1].T, color=color, width=0.004)
