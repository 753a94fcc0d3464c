"""The sums of a lattice, one row per pool, dt and block: which rows make up a batch, and that batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.convert import choice
from levytorch.data.batches import Batch
from levytorch.data.lattice_build import Loose
from levytorch.data.lattice_grid import Grid
from levytorch.data.lattice_parts import Keys, Parts, added, matrix, node_numbers
from levytorch.errors import InputError

Array = NDArray[np.float64]
POOLS = ("main", "tail", "core")


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
    weights: Parts
    states: Parts
    loose: Loose
    _places: dict[tuple[str, int], tuple[Keys, NDArray[np.int64]]] = field(default_factory=dict)

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

    def counts(self, pool: str, chosen: list[int], per_block: bool) -> StateCounts:
        """Pairs of a pool that start in each bin of states."""
        per_node = self.grid.bins_per_node
        xs, dts, counts = [], [], []
        for sheet, dt in enumerate(self.dt.tolist()):
            rows = [added([self.states.row(i) for i in self.rows(pool, [k], sheet)]) for k in chosen]
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

    def _weights(self, pool: str, sheet: int, blocks: list[int], per_block: bool) -> tuple[Keys, Array]:
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
