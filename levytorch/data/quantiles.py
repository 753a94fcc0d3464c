"""Exact order statistics of data that need not fit into memory.

Floats are mapped to integers of the same order. Each pass counts how many values share the leading 16 bits of the ones
that are sought; when few enough are left they are collected and sorted. Three passes are the rule, five the most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from levytorch.convert import Array, Integers

ValueBlocks = Callable[[], Iterator[Array]]  # called once per pass; gives all values, block by block
BLOCK = 1 << 17  # values per block, for callers that cut arrays
_MOST = 1 << 18  # values of one group that may be collected
_SIGN = np.uint64(1 << 63)


def cut(values: Array) -> ValueBlocks:
    """An array as blocks."""
    return lambda: (values[low : low + BLOCK] for low in range(0, len(values), BLOCK))


def order_statistics(blocks: ValueBlocks, ranks: Sequence[int]) -> list[float]:
    """The values that sorting would put at these positions (0 is the smallest)."""
    found: dict[int, float] = {}
    groups = [_Group(0, sorted(set(ranks)), 0, 1 << 62)]  # positions whose values share their leading bits
    for bits in (0, 16, 32, 48):
        counts = _count(blocks, groups, bits)
        groups = [longer for group, count in zip(groups, counts) for longer in group.split(count)]
        few = [group for group in groups if group.size <= _MOST]
        for group, values in zip(few, _matching(blocks, few, bits + 16)):
            ordered = np.sort(np.concatenate(values))
            found |= {k: _value(int(ordered[k - group.start])) for k in group.positions}
        groups = [group for group in groups if group.size > _MOST]
        if not groups:
            break
    # of values that occur more often than can be collected, all bits are known by now
    found |= {k: _value(group.prefix) for group in groups for k in group.positions}
    return [found[k] for k in ranks]


def quantiles(blocks: ValueBlocks, n: int, levels: Sequence[float]) -> list[float]:
    """np.quantile of n values, bit for bit."""
    positions = [level * (n - 1) for level in levels]
    lows = [min(n - 1, math.floor(p)) for p in positions]
    highs = [min(n - 1, low + 1) for low in lows]
    values = order_statistics(blocks, lows + highs)
    out = []
    for position, low, a, b in zip(positions, lows, values, values[len(lows) :]):
        t = position - low
        out.append(b - (b - a) * (1 - t) if t >= 0.5 else a + (b - a) * t)
    return out


def median(blocks: ValueBlocks, n: int) -> float:
    """np.median of n values, bit for bit."""
    low, high = order_statistics(blocks, [(n - 1) // 2, n // 2])
    return low if n % 2 else (low + high) / 2


class _Group(NamedTuple):
    prefix: int
    positions: list[int]
    start: int  # values below all that share the prefix
    size: int  # values that share it

    def split(self, counts: Integers) -> list[_Group]:
        """By 16 further bits, of which `counts` says how often each occurs."""
        ends = self.start + np.cumsum(counts)
        bins = np.searchsorted(ends, self.positions, side="right").tolist()
        return [
            _Group(
                (self.prefix << 16) | bin,
                [k for k, b in zip(self.positions, bins) if b == bin],
                int(ends[bin] - counts[bin]),
                int(counts[bin]),
            )
            for bin in sorted(set(bins))
        ]


def _count(blocks: ValueBlocks, groups: list[_Group], bits: int) -> list[Integers]:
    """How often each continuation of the groups' prefixes occurs."""
    counts = [np.zeros(1 << 16, dtype=np.int64) for _ in groups]
    for keys in _keys(blocks):
        heads = keys >> np.uint64(64 - bits) if bits else None
        for count, group in zip(counts, groups):
            mine = keys if heads is None else keys[heads == np.uint64(group.prefix)]
            count += np.bincount(
                ((mine >> np.uint64(48 - bits)) & np.uint64(0xFFFF)).astype(np.int64), minlength=1 << 16
            )
    return counts


def _matching(blocks: ValueBlocks, groups: list[_Group], bits: int) -> list[list[NDArray[np.uint64]]]:
    """All values of each group, which share so many leading bits."""
    parts: list[list[NDArray[np.uint64]]] = [[] for _ in groups]
    for keys in _keys(blocks) if groups else ():
        heads = keys >> np.uint64(64 - bits)
        for part, group in zip(parts, groups):
            part.append(keys[heads == np.uint64(group.prefix)])
    return parts


def _keys(blocks: ValueBlocks) -> Iterator[NDArray[np.uint64]]:
    for block in blocks():
        bits = (np.asarray(block, dtype=np.float64) + 0.0).view(np.uint64)  # + 0.0: -0.0 sorts with 0.0
        yield np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _value(key: int) -> float:
    bits = key & ~(1 << 63) if key >> 63 else ~key & ((1 << 64) - 1)
    return float(np.array([bits], dtype=np.uint64).view(np.float64)[0])
