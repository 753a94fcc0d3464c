"""Lattices as .npz files of plain arrays; one that comes from somebody else is checked before it is believed."""

from __future__ import annotations

import math
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.convert import path_of
from levytorch.data.lattice_build import MOST_DT
from levytorch.data.lattice_grid import ORDERS, Grid
from levytorch.data.lattice_tables import Loose, SparseRows, node_numbers
from levytorch.data.npy_members import members_of
from levytorch.errors import InputError
from levytorch.files import replacing

if TYPE_CHECKING:
    from levytorch.data.lattice import Lattice

VERSION = 1
_NUMBERS = ("period", "origin", "spacing", "order", "width", "drift", "density")
_PARTS = ("weights", "states")


def save_lattice(lattice: Lattice, path: str | Path) -> None:
    """Write a lattice, whole or not at all."""
    target = path_of(path)
    content = to_arrays(lattice)
    with replacing(target) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **content)


def to_arrays(lattice: Lattice) -> dict[str, Any]:
    """A lattice as plain arrays, for files and for other processes."""
    period, *others = astuple(lattice.grid)
    content: dict[str, Any] = {
        "version": np.array(VERSION),
        "grid": np.array([math.inf if period is None else period, *others], dtype=np.float64),
        "dt": lattice.dt,
        "n_blocks": np.array(lattice.n_blocks),
        "mu": np.array([lattice.mu, float(lattice.mu_is_rate)]),
        "CT": lattice.CT,
        "TRT": lattice.TRT,
        "reach": np.array(lattice.reach),
        "x_range": np.array(lattice.x_range),
        "dropped": np.array(list(lattice.dropped.values()), dtype=np.int64),
        "dropped_reasons": np.array(list(lattice.dropped), dtype=np.str_),
    }
    for name, part in zip(_PARTS, (lattice.weights, lattice.states)):
        content |= {f"{name}_{field}": array for field, array in part._asdict().items()}
    return content | {f"loose_{field}": array for field, array in lattice.loose._asdict().items()}


def load_lattice(path: str | Path) -> tuple[Any, ...]:
    """Read the fields of a lattice, in their order."""
    file = path_of(path)
    if not file.is_file():
        raise InputError(f"{file} must be a lattice that Lattice.save wrote, found no file; check the path.")
    try:
        arrays = {name: member.load() for name, member in members_of(file, whole=True).items()}
        if "version" not in arrays:
            raise ValueError("no version")
        version = arrays["version"]
        if version.size != 1 or version.dtype.kind not in "iu" or int(version) != VERSION:
            raise ValueError(f"version {str(version)[:40]}, where {VERSION} is read")
        return from_arrays(arrays)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file is parsed as a zip directory or as Python, with any error of theirs
        told = " ".join(str(error).split())[:200] or type(error).__name__
        told = f"no {told.strip(chr(39))}" if isinstance(error, KeyError) else told
        told = told.rpartition("found ")[2].removesuffix(": save it again.")
        raise InputError(f"{file} must be a lattice that Lattice.save wrote, found {told}; save it again.") from None


def from_arrays(arrays: dict[str, Any]) -> tuple[Any, ...]:
    """What a lattice is made of; ValueError where the arrays do not make one."""
    grid = _grid(_floats(arrays, "grid", len(_NUMBERS), infinite=True))
    dt = _floats(arrays, "dt")
    if not 1 <= len(dt) <= MOST_DT or (dt <= 0).any() or (np.diff(dt) <= 0).any():
        raise ValueError("dt that do not rise from above zero")
    n_blocks = _integers(arrays, "n_blocks", ())
    if not 1 <= n_blocks <= 4096:
        raise ValueError(f"n_blocks = {n_blocks}")
    mu, rate = _floats(arrays, "mu", 2).tolist()
    CT, TRT = (_floats(arrays, name, len(dt), infinite=True) for name in ("CT", "TRT"))
    reach = _floats(arrays, "reach", (), infinite=True)
    if not ((CT > 0).all() and (TRT > 0).all() and reach > 0 and np.isfinite(CT).all() >= np.isfinite(CT).any()):
        raise ValueError("thresholds that are not positive")
    rows = len(dt) * int(n_blocks) * (2 if np.isfinite(CT).all() else 1)
    weights, states = (_parts(arrays, name, rows) for name in _PARTS)
    number, far = node_numbers(weights.keys)
    if (np.abs(far) > grid.last + 3).any() or (grid.n_x and ((number < 0) | (number >= grid.n_x)).any()):
        raise ValueError("nodes outside of the grid")
    bins = grid.n_x * grid.bins_per_node
    if bins and ((states.keys < 0) | (states.keys >= bins)).any():
        raise ValueError("states outside of the cell")
    if (states.values < 0).any() or (states.values != np.floor(states.values)).any() or not states.values.sum() > 0:
        raise ValueError("counts of states that are none")
    x = _floats(arrays, "loose_x")
    loose = Loose(x, _floats(arrays, "loose_dx", len(x)), _integers(arrays, "loose_row", (len(x),)))
    if ((loose.row < 0) | (loose.row >= rows)).any():
        raise ValueError("loose pairs of no block")
    reasons = arrays["dropped_reasons"]
    if reasons.dtype.kind != "U" or reasons.ndim != 1:
        raise ValueError("dropped_reasons that are not text")
    counts = _integers(arrays, "dropped", (len(reasons),))
    dropped = dict(zip(map(str, reasons), counts.tolist()))
    low, high = _floats(arrays, "x_range", 2).tolist()
    return (
        *(grid, dt, int(n_blocks), mu, bool(rate), CT, TRT, float(reach)),
        *(weights, states, loose, dropped, (low, high)),
    )


def _grid(numbers: Any) -> Grid:
    period, origin, spacing, order, width, drift, density = numbers.tolist()
    if not (math.isfinite(origin) and math.isfinite(drift) and 0 < spacing < math.inf and period > 0):
        raise ValueError("a grid without finite numbers")
    if order not in ORDERS or not 1 <= density <= 4096 or not abs(width) <= 2000 or width % 1 or density % 1:
        raise ValueError("a grid that is none")
    grid = Grid(None if period == math.inf else period, origin, spacing, int(order), int(width), drift, int(density))
    n_x = grid.n_x
    if n_x and (n_x & (n_x - 1) or n_x > 1 << 14 or spacing != period / n_x):
        raise ValueError("a spacing that does not divide the cell")
    if not n_x and math.frexp(spacing)[0] != 0.5:
        raise ValueError("a spacing that is no power of two")
    return grid


def _parts(arrays: dict[str, Any], name: str, rows: int) -> SparseRows:
    keys = _integers(arrays, f"{name}_keys", None)
    parts = SparseRows(
        keys, _floats(arrays, f"{name}_values", len(keys)), _integers(arrays, f"{name}_starts", (rows + 1,))
    )
    if parts.starts[0] != 0 or parts.starts[-1] != len(keys) or (np.diff(parts.starts) < 0).any():
        raise ValueError(f"{name}_starts that do not rise from 0 to the number of keys")
    rising = np.diff(keys) > 0
    firsts = parts.starts[1:-1]
    rising[firsts[(firsts > 0) & (firsts < len(keys))] - 1] = True
    if not rising.all():
        raise ValueError(f"{name}_keys that do not rise")
    return parts


def _floats(arrays: dict[str, Any], name: str, size: int | tuple[()] | None = None, infinite: bool = False) -> Any:
    """A one-dimensional (or 0-d) array of float64 numbers."""
    array = arrays[name]
    shape = array.shape if size is None else (size,) if isinstance(size, int) else size
    if array.dtype != np.float64 or array.shape != shape or (size is None and array.ndim != 1):
        raise ValueError(f"{name} of {array.dtype} and shape {array.shape}")
    if np.isnan(array).any() or not (infinite or np.isfinite(array).all()):
        raise ValueError(f"{name} with numbers that are not finite")
    return array


def _integers(arrays: dict[str, Any], name: str, shape: tuple[int, ...] | None) -> Any:
    array = arrays[name]
    if array.dtype != np.int64 or (array.ndim != 1 if shape is None else array.shape != shape):
        raise ValueError(f"{name} of {array.dtype} and shape {array.shape}")
    return array
