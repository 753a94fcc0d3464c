"""Two dimensions: coefficient fields (truth beside estimate and error), and V as a contour map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from levytorch.figures.base import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
_ARROWS = 14  # per side of a quiver
_TITLES = {"b": r"$b(x)$", "D_o": r"$D_o(x)$", "D_f": r"$D_f(x)$", "alpha": r"$\alpha(x)$"}


def cell_grid(source: Any, n: int) -> tuple[Array, Array, torch.Tensor]:
    """Coordinates (n,), (n,) of the cell's midpoints and the points (n, n, 2)."""
    if source.period is None:
        origin, end = np.asarray(source.head.window, dtype=float).T
        period = end - origin
    else:
        period, origin = (np.broadcast_to(np.asarray(v, dtype=float), (2,)) for v in (source.period, source.origin))
    first, second = (origin[i] + period[i] * (np.arange(n) + 0.5) / n for i in range(2))
    points = np.stack(np.meshgrid(first, second, indexing="ij"), axis=-1)
    return first, second, torch.from_numpy(points)


def coefficient_fields(recovery: Any, truth: Any = None, n: int = 64) -> dict[str, Array]:
    """The numbers behind `fields`: coordinates u, v (n,), and every coefficient on the n x n grid of midpoints.

    b is (n, n, 2), the others (n, n); with `_truth` and, where there is a covariance, `_std` appended.
    """
    u, v, x = cell_grid(recovery, n)
    out: dict[str, Array] = {"u": u, "v": v}
    names = ["b", "D_o", "D_f"] + (["alpha"] if callable(recovery.alpha) else [])
    for name in names:
        call = "alpha_at" if name == "alpha" else name
        out[name] = np.asarray(getattr(recovery, call)(x))
        if truth is not None:
            out[f"{name}_truth"] = np.asarray(getattr(truth, call)(x))
    if getattr(recovery, "covariance", None) is not None:
        for name, std in zip(("b", "D_o", "D_f"), recovery.std(x)):
            out[f"{name}_std"] = np.asarray(std)
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


def fields(fields: Mapping[str, Array], *, axes: Any = None) -> tuple[Figure, Array]:
    """One row per coefficient: estimate alone, or truth, estimate and error side by side.

    Truth and estimate share their colours. b is drawn as arrows over its magnitude.
    """
    names = [name for name in ("b", "D_o", "D_f", "alpha") if name in fields]
    known = f"{names[0]}_truth" in fields
    columns = 3 if known else 1
    if axes is None:
        fig, grid = new_axes(len(names), columns, width=4.0, height=3.3)
    else:
        grid = np.asarray(axes, dtype=object).reshape(len(names), columns)
        fig = grid[0, 0].figure
    u, v = fields["u"], fields["v"]
    for row, name in zip(grid, names):
        estimate = fields[name]
        shown = [fields[f"{name}_truth"], estimate] if known else [estimate]
        sizes = [_size(f) for f in shown]
        low, high = min(float(s.min()) for s in sizes), max(float(s.max()) for s in sizes)
        if high - low < 1e-12 * max(abs(high), 1e-300):  # a constant: leave room, or the colours mean nothing
            low, high = low - 0.05 * abs(low), high + 0.05 * abs(high)
        for ax, field, size, title in zip(row, shown, sizes, ("truth", "recovered") if known else ("recovered",)):
            image = _heat(ax, u, v, size, low, high, "viridis")
            if field.ndim == 3:
                _arrows(ax, u, v, field)
            ax.set_title(f"{_TITLES[name]}, {title}")
            fig.colorbar(image, ax=ax)
        if known:
            error = estimate - shown[0]
            size = _size(error)
            top = max(float(np.abs(size).max()), 1e-300)
            vector = error.ndim == 3
            image = _heat(row[2], u, v, size, 0.0 if vector else -top, top, "magma" if vector else "RdBu_r")
            if vector:
                _arrows(row[2], u, v, error)
            share = float(np.sqrt(np.sum(error**2) / max(np.sum(shown[0] ** 2), 1e-300)))
            row[2].set_title(f"{_TITLES[name]}, error ({share:.1%} in $L^2$)")
            fig.colorbar(image, ax=row[2])
    for ax in grid.ravel():
        ax.set_aspect("equal" if np.isclose(np.ptp(u), np.ptp(v), rtol=0.5) else "auto")
        ax.set_xlabel("$x_1$")
        ax.set_ylabel("$x_2$")
    return fig, grid


def contours(
    value: Any, reference: Any = None, *, n: int = 128, levels: int = 20, axes: Sequence[Axes] | None = None
) -> tuple[Figure, Array]:
    """V over the cell as filled contours; with a reference also that and the difference."""
    maps = [("V(x)", value)] if reference is None else [("V(x), truth", reference), ("V(x), recovered", value)]
    columns = len(maps) + (reference is not None)
    if axes is None:
        fig, grid = new_axes(1, columns, width=4.2, height=3.5)
        row = grid[0]
    else:
        row = np.atleast_1d(np.asarray(axes, dtype=object)).ravel()
        fig = row[0].figure
    u, v, x = cell_grid(value, n)
    heights = [np.asarray(f(x)) for _, f in maps]
    low, high = min(float(h.min()) for h in heights), max(float(h.max()) for h in heights)
    if not high > low:
        low, high = low - 1.0, high + 1.0
    edges = np.linspace(low, high, levels + 1)
    for ax, (title, _), height in zip(row, maps, heights):
        image = ax.contourf(u, v, height.T, levels=edges, cmap="viridis")
        ax.contour(u, v, height.T, levels=edges[::2], colors="white", linewidths=0.4)
        ax.set_title(title)
        fig.colorbar(image, ax=ax)
    if reference is not None:
        error = heights[1] - heights[0]
        top = max(float(np.abs(error).max()), 1e-300)
        image = _heat(row[2], u, v, error, -top, top, "RdBu_r")
        row[2].set_title("difference")
        fig.colorbar(image, ax=row[2])
    for ax in row:
        ax.set_xlabel("$x_1$")
        ax.set_ylabel("$x_2$")
    return fig, row


def _size(field: Array) -> Array:
    return np.linalg.norm(field, axis=-1) if field.ndim == 3 else field


def _heat(ax: Axes, u: Array, v: Array, field: Array, low: float, high: float, colours: str) -> Any:
    return ax.pcolormesh(u, v, field.T, vmin=low, vmax=high, cmap=colours, shading="nearest", rasterized=True)


def _arrows(ax: Axes, u: Array, v: Array, field: Array) -> None:
    if not np.any(field):
        return
    step = max(1, len(u) // _ARROWS)
    some = slice(step // 2, None, step)
    arrows = field[some, some]
    ax.quiver(u[some], v[some], arrows[..., 0].T, arrows[..., 1].T, color="white", width=0.004)
