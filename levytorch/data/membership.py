"""Which trajectory each pair comes from, and the blocks of trajectories that are summed apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from levytorch.convert import Integers


@dataclass(frozen=True, eq=False)
class Membership:
    """Of n pairs: counts, how many belong to trajectory 0, 1, 2, ..., where they come in that order; else ids, (n,) the
    trajectory of each. Numbers of 16 million pairs need not be stored.
    """

    n: int
    counts: Integers | None = None
    ids: Integers | None = None

    @staticmethod
    def of_counts(counts: Integers) -> Membership:
        """Of pairs that lie trajectory after trajectory."""
        return Membership(int(counts.sum()), counts)

    @staticmethod
    def of_ids(ids: Integers) -> Membership:
        """Of pairs in any order."""
        return Membership(len(ids), None, ids)

    def numbers(self) -> Integers:
        """(n,) the trajectory of each pair."""
        if self.counts is None:
            assert self.ids is not None
            return self.ids
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def occurring(self) -> Integers:
        """Ascending numbers of the trajectories that have at least one pair."""
        return np.unique(self.numbers()) if self.counts is None else np.flatnonzero(self.counts)

    def among(self, numbers: Integers) -> NDArray[np.bool_]:
        """(n,) whether each pair belongs to one of these trajectories."""
        if self.counts is None:
            return np.isin(self.numbers(), numbers)
        chosen = np.zeros(len(self.counts), dtype=bool)
        chosen[numbers] = True
        return np.repeat(chosen, self.counts)

    def take(self, which: slice | Integers) -> Membership:
        """That of a slice of the pairs, or of some rows."""
        if self.counts is None or (isinstance(which, slice) and which.step not in (None, 1)):
            return Membership.of_ids(self.numbers()[which])
        ends = np.cumsum(self.counts)
        if isinstance(which, slice):
            low, high, _ = which.indices(self.n)
            return Membership.of_counts(np.diff(np.clip(np.concatenate([[0], ends]), low, max(low, high))))
        rows = np.where(which < 0, which + self.n, which)
        return Membership.of_ids(np.searchsorted(ends, rows, side="right"))

    def keep(self, mask: NDArray[np.bool_], blocks: Iterable[slice]) -> Membership:
        """That of the pairs of a mask, which is gone over block by block."""
        if self.counts is None:
            return Membership.of_ids(self.numbers()[mask])
        counts, ends = self.counts.copy(), np.cumsum(self.counts)
        for rows in blocks:
            lost = np.searchsorted(ends, rows.start + np.flatnonzero(~mask[rows]), side="right")
            np.subtract.at(counts, lost, 1)
        return Membership.of_counts(counts)

    def runs_by_block(self, n_blocks: int) -> list[tuple[Integers, Integers]]:
        """First and last rows (exclusive) of the runs of every block.

        Trajectory number t belongs to block t modulo n_blocks. Fewer trajectories than blocks are cut into blocks of
        time instead, by their rows.
        """
        if n_blocks == 1:
            return [(np.array([0]), np.array([self.n]))]
        if self.counts is not None:
            stops = np.cumsum(self.counts)
            starts, number = stops - self.counts, np.arange(len(stops))
        else:
            ids = self.numbers()
            starts = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1])
            stops, number = np.append(starts[1:], self.n), ids[starts]
        held = stops > starts
        if _distinct(number[held]) < n_blocks:
            edges = np.array([self.n * k // n_blocks for k in range(n_blocks + 1)])
            return [(edges[k : k + 1], edges[k + 1 : k + 2]) for k in range(n_blocks)]
        block = number % n_blocks
        return [(starts[mine], stops[mine]) for mine in (held & (block == k) for k in range(n_blocks))]


def _distinct(numbers: Integers) -> int:
    """How many different ones; most often they ascend, and nothing need be sorted."""
    return len(numbers) if bool((np.diff(numbers) > 0).all()) else len(np.unique(numbers))
