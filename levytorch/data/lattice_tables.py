"""The sums of a lattice, one row per pool, dt and block, each over a few of many keys: which rows make up a batch, and
that batch. They are kept as .npz files of plain arrays; one that comes from somebody else is checked before it is
believed.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch import exchange
from levytorch.archives import load_arrays
from levytorch.convert import Array, Integers, choice, path_of, switch
from levytorch.data.batches import MOST_DT, Batch
from levytorch.data.lattice_grid import ORDERS, Grid
from levytorch.errors import InputError, reason
from levytorch.files import replacing, save_tensors

if TYPE_CHECKING:
    from levytorch.data.lattice import Lattice

POOLS = ("main", "tail", "core")
VERSION = 1  # of files
_NUMBERS = ("period", "origin", "spacing", "order", "width", "drift", "density")
_PARTS = ("weights", "states")
_NAMES = (
    *("version", "grid", "dt", "n_blocks", "mu", "CT", "TRT", "reach", "x_range", "dropped", "dropped_reasons"),
    *(f"{part}_{field}" for part in _PARTS for field in ("keys", "values", "starts")),
    *("loose_x", "loose_dx", "loose_row"),
)
_MOST_PAIRS, _FARTHEST = 2.0**50, 1e100
_SUM, _LARGEST = 1e-6, 100.0  # of the weights of a pair: they add up to one, and some are negative
_X_BITS = 44
_X_ZERO, _DX_ZERO = 1 << (_X_BITS - 1), 1 << 15


class SparseRows(NamedTuple):
    """Rows of a sparse table that adds; row i has ascending keys[starts[i] : starts[i + 1]] and their values."""

    keys: Integers
    values: Array
    starts: Integers

    @staticmethod
    def of(rows: Sequence[tuple[Integers, Array]]) -> SparseRows:
        """From keys and values of every row."""
        starts = np.cumsum([0, *(len(keys) for keys, _ in rows)], dtype=np.int64)
        keys = np.concatenate([np.empty(0, dtype=np.int64), *(k for k, _ in rows)])
        return SparseRows(keys, np.concatenate([np.empty(0), *(v for _, v in rows)]), starts)

    def row(self, i: int) -> tuple[Integers, Array]:
        """Keys and values of one row."""
        here = slice(int(self.starts[i]), int(self.starts[i + 1]))
        return self.keys[here], self.values[here]

    def plus(self, other: SparseRows) -> SparseRows:
        """Sums, row by row."""
        return SparseRows.of([added([self.row(i), other.row(i)]) for i in range(len(self.starts) - 1)])


class Loose(NamedTuple):
    """Pairs that lie on no node, and the row of the table each belongs to."""

    x: Array
    dx: Array
    row: Integers


class StateCounts(NamedTuple):
    """How many pairs start in each bin of states: centers (M,), dt (M,), pairs (M,) or (n_blocks, M)."""

    x: Tensor
    dt: Tensor
    pairs: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Tables:
    """Sums over pairs: `weights` of nodes, `states`, how many pairs start in each bin, and `loose` pairs, on no node.

    Rows go through the blocks of the first dt of the core, of the next dt, ..., then through those of the tail.
    """

    grid: Grid
    dt: Array
    n_blocks: int
    weights: SparseRows
    states: SparseRows
    loose: Loose
    _batches: dict[str, Batch] = field(default_factory=dict, init=False)

    @property
    def n_pools(self) -> int:
        """One, or two with a tail."""
        return 2 if self.has_tail else 1

    @property
    def has_tail(self) -> bool:
        """Whether there is a tail pool."""
        return len(self.weights.starts) - 1 > len(self.dt) * self.n_blocks

    def n_pairs(self, pool: str = "main") -> int:
        """Pairs of a pool."""
        return int(self.pairs_per_block(pool).sum())

    def pairs_per_block(self, pool: str = "main") -> Array:
        """(n_blocks,) pairs of a pool in every block."""
        pairs = np.zeros(self.n_blocks)
        for i in self._rows(pool):
            pairs[i % self.n_blocks] += self.states.row(i)[1].sum()
        return pairs

    def counts_of_states(self, pool: str = "main", *, per_block: bool = False) -> StateCounts:
        """How many pairs of a pool start in each bin of states, exactly: all bins of the cell for every dt, one dt
        after the other; on a line the bins that hold a pair.
        """
        switch("per_block", per_block)
        per_node, found = self.grid.bins_per_node, []
        all_bins = np.arange(self.grid.n_x * per_node) if self.grid.n_x else None
        for sheet, dt in enumerate(self.dt.tolist()):
            bins, counts = self._by_block(self.states, self._rows(pool, sheet), all_bins)
            x = self.grid.origin + (bins + 0.5) * (self.grid.spacing / per_node)
            found.append((x, np.full(len(bins), dt), counts if per_block else counts.sum(0)))
        return StateCounts(*(torch.from_numpy(np.concatenate(column, axis=-1)) for column in zip(*found)))

    def batch(self, pool: str = "main") -> Batch:
        """Nodes and weights of a pool ("main", "tail", or "core", which is main without tail); weights sum to its
        size.
        """
        if choice("pool", pool, POOLS) not in self._batches:
            batch = self._entries(pool)
            used = batch.weight != 0
            batch = batch if bool(used.all()) else Batch(*(t[used] for t in batch))
            if len(self.dt) == 1:
                batch = batch._replace(dt=batch.dt[:1].expand(len(batch.x)))
            self._batches[pool] = batch
        return self._batches[pool]

    def batch_of_blocks(self, pool: str = "main") -> Batch:
        """The batch with a row of weights per block, (n_blocks, n_nodes)."""
        return self._entries(pool, per_block=True)

    def _entries(self, pool: str, per_block: bool = False) -> Batch:
        """Nodes, those without weight too, and loose pairs."""
        found = []
        for sheet, dt in enumerate(self.dt.tolist()):
            rows = self._rows(pool, sheet)
            mine = np.isin(self.loose.row, rows)
            if per_block:
                keys, weights = self._by_block(self.weights, rows)
                ones = (self.loose.row[mine] % self.n_blocks == np.arange(self.n_blocks)[:, None]).astype(np.float64)
            else:
                keys, weights = added([self.weights.row(i) for i in rows])
                ones = np.ones(int(mine.sum()))
            number, far = node_numbers(keys)
            x = np.concatenate([self.grid.x(number), self.loose.x[mine]])
            dx = np.concatenate([self.grid.dx(far, dt), self.loose.dx[mine]])
            found.append((x, dx, np.full(len(x), dt), np.concatenate([weights, ones], axis=-1)))
        return Batch(*(torch.from_numpy(np.concatenate(column, axis=-1)) for column in zip(*found)))

    def _rows(self, pool: str, sheet: int | None = None) -> list[int]:
        """Rows of the tables that make up a pool."""
        choice("pool", pool, POOLS)
        if pool == "tail" and not self.has_tail:
            raise InputError("the lattice must have a tail pool, found none; make it with CT=...")
        parts = {"core": [0], "tail": [1], "main": [0, 1] if self.has_tail else [0]}[pool]
        n, blocks = len(self.dt), range(self.n_blocks)
        sheets = range(n) if sheet is None else [sheet]
        return [(part * n + s) * self.n_blocks + k for part in parts for s in sheets for k in blocks]

    def _by_block(self, table: SparseRows, rows: list[int], keys: Integers | None = None) -> tuple[Integers, Array]:
        """The keys of some rows, and the sums of every block, (n_blocks, keys)."""
        if keys is None:
            keys = _all_keys([table.row(i)[0] for i in rows])
        sums = np.zeros((self.n_blocks, len(keys)))
        for i in rows:
            own, values = table.row(i)
            sums[i % self.n_blocks, np.searchsorted(keys, own)] += values
        return keys, sums


def added(rows: Sequence[tuple[Integers, Array]]) -> tuple[Integers, Array]:
    """The sum of some rows."""
    keys = _all_keys([k for k, _ in rows])
    values = np.zeros(len(keys))
    for k, v in rows:
        values[np.searchsorted(keys, k)] += v  # keys of one row are distinct
    return keys, values


def _all_keys(rows: Sequence[Integers]) -> Integers:
    """Ascending; a few rows at a time, since many of them hold much the same keys."""
    keys = np.empty(0, dtype=np.int64)
    for low in range(0, len(rows), 8):
        keys = np.unique(np.concatenate([keys, *rows[low : low + 8]]))
    return keys


def node_key(x: Integers, dx: Integers) -> Integers:
    """One key of the numbers of a node in x and dx; ascending in dx, then in x."""
    return ((dx + _DX_ZERO) << _X_BITS) + (x + _X_ZERO)


def node_numbers(key: Integers) -> tuple[Integers, Integers]:
    """The numbers of a node in x and dx."""
    return (key & ((1 << _X_BITS) - 1)) - _X_ZERO, (key >> _X_BITS) - _DX_ZERO


# ------------------------------------------------------------------------------------------------------------ files


def save_lattice(lattice: Lattice, path: str | Path) -> None:
    """Write a lattice, whole or not at all: .npz, or safetensors where the name ends so."""
    target, content = path_of(path), to_arrays(lattice)
    if exchange.is_exchange(target):
        reasons = content.pop("dropped_reasons").tolist()
        save_tensors({"dropped_reasons": reasons} | {k: torch.from_numpy(v) for k, v in content.items()}, target)
        return
    with replacing(target) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **content)


def to_arrays(lattice: Lattice) -> dict[str, Any]:
    """The fields of a lattice as arrays by name."""
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


def packed(table: SparseRows) -> list[tuple[str, bytes]]:
    """A table for travelling: keys as differences, bytes of equal weight together, compressed; no number changes."""
    out = []
    for array in (np.diff(table.keys, prepend=0), table.values, table.starts):
        by_byte = array.view(np.uint8).reshape(len(array), -1).T if len(array) else array
        out.append((array.dtype.str, zlib.compress(np.ascontiguousarray(by_byte).tobytes(), 1)))
    return out


def unpacked(arrays: list[tuple[str, bytes]]) -> SparseRows:
    """The inverse of `packed`."""
    found = []
    for kind, compressed in arrays:
        dtype = np.dtype(kind)
        by_byte = np.frombuffer(zlib.decompress(compressed), dtype=np.uint8).reshape(dtype.itemsize, -1)
        found.append(np.ascontiguousarray(by_byte.T).view(dtype).reshape(-1))
    differences, values, starts = found
    return SparseRows(np.cumsum(differences), values, starts)


def load_lattice(path: str | Path) -> dict[str, Any]:
    """Read the fields of a lattice."""
    file = path_of(path)
    if not file.is_file():
        raise InputError(f"{file} must be a lattice that Lattice.save wrote, found no file; check the path.")
    try:
        arrays = _exchanged(file) if exchange.is_exchange(file) else load_arrays(file, _NAMES)
        if "version" not in arrays:
            raise ValueError("no version")
        version = arrays["version"]
        if version.size != 1 or version.dtype.kind not in "iu" or int(version) != VERSION:
            raise ValueError(f"version {str(version)[:40]}, where {VERSION} is read")
        return from_arrays(arrays)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file is parsed as a zip directory or as Python, with any error of theirs
        found = f"no {error.args[0]}" if isinstance(error, KeyError) else reason(error).removeprefix("ValueError: ")
        raise InputError(f"{file} must be a lattice that Lattice.save wrote, found {found}; save it again.") from None


def _exchanged(file: Path) -> dict[str, Any]:
    """The arrays of a safetensors file."""
    content = exchange.unpack(file)
    unknown = sorted(set(content) - set(_NAMES)) if isinstance(content, dict) else [type(content).__name__]
    if unknown:
        raise ValueError(f"{unknown[0][:60]!r}, which is not expected")
    reasons = content.pop("dropped_reasons")
    if not isinstance(reasons, list) or not all(isinstance(one, str) for one in reasons):
        raise ValueError("dropped_reasons that are not text")
    if not all(isinstance(part, Tensor) for part in content.values()):
        raise ValueError("values that are no arrays")
    arrays = {name: part.numpy() for name, part in content.items()}
    return arrays | {"dropped_reasons": np.array(reasons, dtype=np.str_)}


def from_arrays(arrays: dict[str, Any]) -> dict[str, Any]:
    """The fields of a lattice; ValueError where the arrays do not make one."""
    grid = _grid(_floats(arrays, "grid", len(_NUMBERS), infinite=True))
    dt = _floats(arrays, "dt")
    if not 1 <= len(dt) <= MOST_DT or (dt <= 0).any() or (np.diff(dt) <= 0).any():
        raise ValueError("dt that do not rise from above zero")
    n_blocks = _integers(arrays, "n_blocks", ())
    if not 1 <= n_blocks <= 4096:
        raise ValueError(f"n_blocks = {n_blocks}")
    mu, rate = _floats(arrays, "mu", 2).tolist()
    if abs(mu) > _FARTHEST:
        raise ValueError(f"mu = {mu:g}")
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
    if states.values.sum() > _MOST_PAIRS:
        raise ValueError(f"{states.values.sum():.3g} pairs")
    x = _floats(arrays, "loose_x")
    loose = Loose(x, _floats(arrays, "loose_dx", len(x)), _integers(arrays, "loose_row", (len(x),)))
    if ((loose.row < 0) | (loose.row >= rows)).any():
        raise ValueError("loose pairs of no block")
    _check_sums(weights, states, loose)
    reasons = arrays["dropped_reasons"]
    if reasons.dtype.kind != "U" or reasons.ndim != 1:
        raise ValueError("dropped_reasons that are not text")
    counts = _integers(arrays, "dropped", (len(reasons),))
    dropped = dict(zip(map(str, reasons), counts.tolist()))
    if (counts < 0).any() or (counts > _MOST_PAIRS).any():
        raise ValueError("counts of dropped pairs that are none")
    low, high = _floats(arrays, "x_range", 2).tolist()
    if low > high:
        raise ValueError("an x_range in reverse")
    fields = {"grid": grid, "dt": dt, "n_blocks": int(n_blocks), "weights": weights, "states": states, "loose": loose}
    fields |= {"mu": mu, "mu_is_rate": bool(rate), "CT": CT, "TRT": TRT, "reach": float(reach)}
    return fields | {"dropped": dropped, "x_range": (low, high)}


def _check_sums(weights: SparseRows, states: SparseRows, loose: Loose) -> None:
    """ValueError unless the weights of every row add up to its pairs, as those of an interpolation do."""
    rows = len(states.starts) - 1
    pairs = _row_sums(states.values, states.starts)
    on_nodes = pairs - np.bincount(loose.row, minlength=rows)
    wrong = np.abs(_row_sums(weights.values, weights.starts) - on_nodes) > _SUM * np.maximum(pairs, 1.0)
    if wrong.any() or (_row_sums(np.abs(weights.values), weights.starts) > _LARGEST * np.maximum(pairs, 1.0)).any():
        raise ValueError("weights that do not add up to the pairs")


def _row_sums(values: Array, starts: Integers) -> Array:
    return np.array([values[low:high].sum() for low, high in itertools.pairwise(starts.tolist())])


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
