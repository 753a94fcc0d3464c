"""Sums per pool, dt and block of trajectories, each over a few of many keys: rows of a sparse table that adds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Keys = NDArray[np.int64]
_X_BITS = 44
_X_ZERO, _DX_ZERO = 1 << (_X_BITS - 1), 1 << 15


class Parts(NamedTuple):
    """Row i has ascending keys[starts[i] : starts[i + 1]] and their values."""

    keys: Keys
    values: Array
    starts: Keys

    @staticmethod
    def of(rows: Sequence[tuple[Keys, Array]]) -> Parts:
        """From keys and values of every row."""
        starts = np.cumsum([0, *(len(keys) for keys, _ in rows)], dtype=np.int64)
        keys = np.concatenate([np.empty(0, dtype=np.int64), *(k for k, _ in rows)])
        return Parts(keys, np.concatenate([np.empty(0), *(v for _, v in rows)]), starts)

    def row(self, i: int) -> tuple[Keys, Array]:
        """Keys and values of one row."""
        here = slice(int(self.starts[i]), int(self.starts[i + 1]))
        return self.keys[here], self.values[here]

    def take(self, rows: Iterable[int]) -> Parts:
        """Some rows."""
        return Parts.of([self.row(i) for i in rows])

    def plus(self, other: Parts) -> Parts:
        """Sums, row by row."""
        return Parts.of([added([self.row(i), other.row(i)]) for i in range(len(self.starts) - 1)])


def added(rows: Sequence[tuple[Keys, Array]]) -> tuple[Keys, Array]:
    """The sum of some rows."""
    keys = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(k for k, _ in rows)]))
    values = np.zeros(len(keys))
    for k, v in rows:
        values[np.searchsorted(keys, k)] += v  # keys of one row are distinct
    return keys, values


def matrix(rows: Sequence[tuple[Keys, Array]]) -> tuple[Keys, Array]:
    """All keys of some rows, and the values of each row (rows, keys)."""
    keys = np.unique(np.concatenate([np.empty(0, dtype=np.int64), *(k for k, _ in rows)]))
    values = np.zeros((len(rows), len(keys)))
    for line, (k, v) in zip(values, rows):
        line[np.searchsorted(keys, k)] = v
    return keys, values


def node_key(x: Keys, dx: Keys) -> Keys:
    """One key of the numbers of a node in x and dx; ascending in dx, then in x."""
    return ((dx + _DX_ZERO) << _X_BITS) + (x + _X_ZERO)


def node_numbers(key: Keys) -> tuple[Keys, Keys]:
    """The numbers of a node in x and dx."""
    return (key & ((1 << _X_BITS) - 1)) - _X_ZERO, (key >> _X_BITS) - _DX_ZERO
