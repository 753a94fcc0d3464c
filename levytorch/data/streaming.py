"""Transitions of a file, block by block and without a store: for whoever needs to see every pair only once."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from levytorch.convert import Array, Integers, known_keys, whole_number
from levytorch.data.files import OPTIONS, open_file
from levytorch.data.membership import Membership
from levytorch.data.pairing import (
    Pairs,
    check_max_dt,
    float_limit,
    looked_at,
    none_left,
    pairs_of,
    single_dt,
    within_resolution,
)
from levytorch.data.points import NeedsMemory, Points, judge_motion, numbers_of, overlapping
from levytorch.data.quantiles import median
from levytorch.data.trajectories import Trajectories
from levytorch.data.transitions import Transitions


def transition_blocks(path: str | Path, *, block: int = 1 << 17, **options: Any) -> TransitionBlocks:
    """The transitions of a file, in memory that does not grow with it; options are those of `Trajectories.from_file`.

    Iterating, as often as you like, gives Transitions of at most `block` pairs whose union, in order, is
    `Trajectories.from_file(path, **options).transitions()`, numbers of trajectories and refusals included (where
    rounding leaves the mean of uneven times undecided, dt may differ in the last bit). What was dropped is counted in
    the first one. The file is read twice before the first block, to know what concerns all of it, and once per
    iteration. Tables that are wide, of rows, to be sorted or not in order cannot be read in blocks: they are read as a
    whole and cut.
    """
    known_keys(f"{path}: options", options, OPTIONS - {"on_disk"})
    return TransitionBlocks(path, whole_number("block", block, 1), options)


class TransitionBlocks:
    """See transition_blocks.

    Attributes:
        dropped: how many pairs were left out, by reason.
        n_trajectories: how many trajectories the file has.
        dt: that of all pairs, or None where it varies.
    """

    def __init__(self, path: str | Path, block: int, options: dict[str, Any]) -> None:
        self.block = block
        self._all: Transitions | None = None  # what could not be read in blocks
        self._limit = math.inf
        file = self._file = open_file(path, **options)
        try:
            file.open(whole=False)
            self._max_dt = file.max_dt
            file.survey()
        except NeedsMemory:
            paths = Trajectories.from_file(path, **options)
            t = self._all = paths.transitions()
            self.n_trajectories, self.dropped, self._pairs = len(paths), t.dropped, len(t)
            self.dt = float(t.dt[0]) if t.uniform_dt else None
            return
        self._offsets, self.dt = file.offsets, file.dt
        self.n_trajectories, self.dropped = len(file.lengths), dict(file.dropped)
        check_max_dt(self.dt, self._max_dt)
        self._judge(int((file.lengths - 1).sum()))

    def __len__(self) -> int:
        """Number of pairs."""
        return self._pairs

    @functools.cached_property
    def mu(self) -> torch.Tensor:
        """That of all pairs (see Transitions.mu), which takes a few passes more."""
        if self._all is not None:
            return self._all.mu
        columns = [self._column(k) for k in range(len(self._file.coordinates))]
        return torch.tensor(columns[0] if len(columns) == 1 else columns, dtype=torch.float64)

    def __iter__(self) -> Iterator[Transitions]:
        dropped: dict[str, int] = self.dropped
        if self._all is not None:
            for low in range(0, len(self), self.block):
                part = self._all._take(slice(low, low + self.block), {}, keep_mu=False)
                part.dropped, dropped = dropped, {}
                yield part
            return
        for _, pairs in self._passes():
            for low in range(0, len(pairs.x), self.block):
                rows = slice(low, low + self.block)
                number = np.searchsorted(self._offsets, pairs.first[rows], side="right") - 1
                dt = pairs.dt[rows] if self.dt is None and pairs.dt is not None else None
                yield Transitions._build(
                    torch.from_numpy(pairs.x[rows]),
                    torch.from_numpy(pairs.dx[rows]),
                    float(self.dt or 0) if dt is None else torch.from_numpy(dt),
                    Membership.of_ids(number),
                    reward=None if pairs.reward is None else torch.from_numpy(pairs.reward[rows]),
                    dropped=dropped,
                )
                dropped = {}

    # ----------------------------------------------------------------------------------------------------------- passes

    def _passes(self) -> Iterator[tuple[Points, Pairs]]:
        """The points, and the pairs of them that are left."""
        for points in overlapping(self._file.points()):
            pairs = pairs_of(points, self._offsets, self._max_dt)
            if self._limit < math.inf:
                near = within_resolution(pairs.x, self._limit)
                kept = [None if part is None else part[near] for part in pairs[:-1]]
                pairs = Pairs._make([*kept, pairs.gaps])
            yield points, pairs

    def _judge(self, most: int) -> None:
        """What concerns all pairs: which x is too large for them, whether dt is one, and whether anything moves."""
        facts = self._facts(looked_at(most))
        judge_motion(facts.still, facts.start, self._file.coordinates, self._file.ids, stacklevel=5)
        if looked_at(facts.pairs) != looked_at(most):  # many gaps: other pairs are the ones to look at
            facts = self._facts(looked_at(facts.pairs))
        usable = facts.pairs
        self.dropped |= {"across a gap": facts.gaps} if facts.gaps else {}
        if usable == 0:
            raise none_left(most, self.dropped)
        limit = float_limit(np.concatenate(facts.sample), every=1)
        if facts.farthest >= limit:
            self._limit = limit
            facts = self._facts(most)
            self.dropped["beyond float resolution"] = usable - facts.pairs
        if facts.pairs == 0:
            raise none_left(most, self.dropped)
        self._pairs = facts.pairs
        if self.dt is None:
            self.dt = single_dt(facts.shortest, facts.longest, facts.time / facts.pairs, facts.latest)

    def _facts(self, every: int) -> _Facts:
        facts = _Facts(self.n_trajectories, len(self._file.coordinates), every)
        for points, pairs in self._passes():
            facts.see(points, pairs, self._offsets)
        return facts

    def _column(self, k: int) -> float:
        def rates() -> Iterator[Array]:
            for _, pairs in self._passes():
                column = pairs.dx if pairs.dx.ndim == 1 else pairs.dx[:, k]
                yield column if self.dt is not None or pairs.dt is None else column / pairs.dt

        return median(rates, len(self))


class _Facts:
    """What is gathered on the way over all pairs, of whose dx every so many-th is kept."""

    def __init__(self, n_trajectories: int, dim: int, every: int) -> None:
        self.pairs, self.gaps, self.every = 0, 0, every
        self.sample: list[Array] = []
        self.still = np.ones((n_trajectories, dim), dtype=bool)
        self.start: Array = np.empty(0)
        self.farthest = self.latest = self.longest = self.time = 0.0
        self.shortest = math.inf

    def see(self, points: Points, pairs: Pairs, offsets: Integers) -> None:
        if points.start == 0:
            self.start = points.x[0]
        self.sample.append(pairs.dx[-self.pairs % self.every :: self.every].copy())
        self.pairs, self.gaps = self.pairs + len(pairs.x), self.gaps + len(pairs.gaps)
        if points.times is not None:
            self.latest = max(self.latest, float(np.abs(points.times).max()))
        if len(pairs.x):
            self.farthest = max(self.farthest, float(np.abs(pairs.x).max()))
            if pairs.dt is not None:
                self.shortest = min(self.shortest, float(pairs.dt.min()))
                self.longest, self.time = max(self.longest, float(pairs.dt.max())), self.time + float(pairs.dt.sum())
        inside = numbers_of(offsets, points.start, points.start + len(points.x))
        moves = np.diff(points.x.reshape(len(points.x), -1), axis=0) != 0
        moves[inside[1:] != inside[:-1]] = False
        for k, column in enumerate(moves.T):
            self.still[inside[:-1][column], k] = False
