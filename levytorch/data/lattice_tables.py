"""The sums of a lattice, one row per pool, dt and block, each over a few of many keys: which rows make up a batch, and
that batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import Array, Integers, choice
from levytorch.data.batches import Batch
from levytorch.data.lattice_grid import Grid
from levytorch.errors import InputError

POOLS = ("main", "tail", "core")
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

    def take(self, rows: Iterable[int]) -> SparseRows:
        """Some rows."""
        return SparseRows.of([self.row(i) for i in rows])

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


@dataclass(frozen=True, eq=False)
class Tables:
    """weights: of nodes; states: how many pairs start in each bin; loose: pairs on no node. Rows go through the blocks
    of the first dt of the core, of the next dt, ..., then through those of the tail.
    """

    grid: Grid
    dt: Array
    n_blocks: int
    has_tail: bool
    weights: SparseRows
    states: SparseRows
    loose: Loose
    _places: dict[tuple[str, int], tuple[Integers, Integers]] = field(default_factory=dict)

    def rows(self, pool: str, blocks: Sequence[int] | None = None, sheet: int | None = None) -> list[int]:
        """Rows of the tables that make up a pool."""
        choice("pool", pool, POOLS)
        if pool == "tail" and not self.has_tail:
            raise InputError("the lattice must have a tail pool, found none; make it with CT=...")
        parts = {"core": [0], "tail": [1], "main": [0, 1] if self.has_tail else [0]}[pool]
        n = len(self.dt)
        sheets = range(n) if sheet is None else [sheet]
        chosen = range(self.n_blocks) if blocks is None else blocks
        return [(part * n + s) * self.n_blocks + k for part in parts for s in sheets for k in chosen]

    def counts(self, pool: str, per_block: bool) -> StateCounts:
        """Pairs of a pool that start in each bin of states."""
        per_node = self.grid.bins_per_node
        xs, dts, counts = [], [], []
        for sheet, dt in enumerate(self.dt.tolist()):
            rows = [added([self.states.row(i) for i in self.rows(pool, [k], sheet)]) for k in range(self.n_blocks)]
            if self.grid.n_x:
                rows = [(np.arange(self.grid.n_x * per_node), np.zeros(self.grid.n_x * per_node)), *rows]
            bins, values = matrix(rows)
            values = values[1:] if self.grid.n_x else values
            xs.append(self.grid.origin + (bins + 0.5) * (self.grid.spacing / per_node))
            dts.append(np.full(len(bins), dt))
            counts.append(values if per_block else values.sum(0))
        x, times, count = np.concatenate(xs), np.concatenate(dts), np.concatenate(counts, axis=-1)
        return StateCounts(torch.from_numpy(x), torch.from_numpy(times), torch.from_numpy(count))

    def batch(self, pool: str, blocks: list[int], per_block: bool) -> Batch:
        """Nodes and loose pairs with the weights of blocks, each in a row, or their sum."""
        xs, dxs, dts, weights = [], [], [], []
        for sheet, dt in enumerate(self.dt.tolist()):
            keys, values = self._weights(pool, sheet, blocks, per_block)
            number, far = node_numbers(keys)
            xs.append(self.grid.x(number))
            dxs.append(self.grid.dx(far, dt))
            dts.append(np.full(len(keys), dt))
            weights.append(values)
            for at, block in enumerate(blocks):
                mine = np.isin(self.loose.row, self.rows(pool, [block], sheet))
                count = int(mine.sum())
                if count:
                    xs.append(self.loose.x[mine])
                    dxs.append(self.loose.dx[mine])
                    dts.append(np.full(count, dt))
                    one = np.ones(count)
                    if per_block:
                        one = np.zeros((len(blocks), count))
                        one[at] = 1.0
                    weights.append(one)
        columns = (np.concatenate(xs), np.concatenate(dxs), np.concatenate(dts), np.concatenate(weights, axis=-1))
        return Batch(*(torch.from_numpy(column) for column in columns))

    def _weights(self, pool: str, sheet: int, blocks: list[int], per_block: bool) -> tuple[Integers, Array]:
        """Keys of the nodes of a sheet, and the weights of blocks or their sum."""
        rows = self.rows(pool, None, sheet)
        if (pool, sheet) not in self._places:  # where every entry goes, once for all choices of blocks
            entries = np.concatenate([self.weights.row(i)[0] for i in rows])
            keys = np.unique(entries)
            self._places[pool, sheet] = keys, np.searchsorted(keys, entries)
        keys, places = self._places[pool, sheet]
        if per_block:
            every, start = np.zeros((self.n_blocks, len(keys))), 0
            for i in rows:
                values = self.weights.row(i)[1]
                every[i % self.n_blocks, places[start : start + len(values)]] += values
                start += len(values)
            return keys, every if blocks == list(range(self.n_blocks)) else every[blocks]
        times = np.bincount(blocks, minlength=self.n_blocks).astype(np.float64)
        sums, start = np.zeros(len(keys)), 0
        for i in rows:
            values = self.weights.row(i)[1]
            if times[i % self.n_blocks]:
                sums[places[start : start + len(values)]] += times[i % self.n_blocks] * values
            start += len(values)
        return keys, sums


def added(rows: Sequence[tuple[Integers, Array]]) -> tuple[Integers, Array]:
    """The sum of some rows."""
    keys = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(k for k, _ in rows)]))
    values = np.zeros(len(keys))
    for k, v in rows:
        values[np.searchsorted(keys, k)] += v  # keys of one row are distinct
    return keys, values


def matrix(rows: Sequence[tuple[Integers, Array]]) -> tuple[Integers, Array]:
    """All keys of some rows, and the values of each row (rows, keys)."""
    keys = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(k for k, _ in rows)]))
    values = np.zeros((len(rows), len(keys)))
    for line, (k, v) in zip(values, rows):
        line[np.searchsorted(keys, k)] = v
    return keys, values


def node_key(x: Integers, dx: Integers) -> Integers:
    """One key of the numbers of a node in x and dx; ascending in dx, then in x."""
    return ((dx + _DX_ZERO) << _X_BITS) + (x + _X_ZERO)


def node_numbers(key: Integers) -> tuple[Integers, Integers]:
    """The numbers of a node in x and dx."""
    return (key & ((1 << _X_BITS) - 1)) - _X_ZERO, (key >> _X_BITS) - _DX_ZERO
