"""The data of a fit in blocks of trajectories, each of which counts any number of times: folds, replicas, sandwiches.

Blocks of trajectories (of time where there are few trajectories) are independent, or nearly so, whatever happens within
them. Where the data fits on a lattice its nodes carry one weight per block, and a replica costs passes over the nodes
alone; otherwise the pairs themselves know their block.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.coefficients.head import Units
from levytorch.data.batches import Batch, FullBatch, Pools, wanted
from levytorch.data.lattice import Lattice, lattice_of
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError
from levytorch.likelihood.laws import Law
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.sums import StateBins
from levytorch.likelihood.tail import TailSettings

N_BLOCKS = 60  # standard errors from so many have a relative error of a tenth
MOST_PAIRS = 2_000_000  # pairs that are kept for later as they are, where no lattice can stand for them
_FEWEST_TRAJECTORIES = 5  # whose scatter says anything
_WORTH = 50_000  # pairs from which on a lattice pays when they are gone over again and again


@dataclass
class Blocks(ABC):
    """The data of a fit, in the units of a fit; it is cut into blocks when these are first needed.

    law, treatment: how a fit has looked at them, and treated lost tails.
    """

    observed: Any
    law: Law | None = None
    treatment: TailSettings | None = None
    units: Units = field(default_factory=Units)

    # -- what kinds of data differ in ---------------------------------------------------------------------------------
    @property
    @abstractmethod
    def n_blocks(self) -> int:
        """Blocks, of which a few may be empty."""

    @property
    @abstractmethod
    def clusters(self) -> Tensor | None:
        """(n_blocks,): the trajectory that each block is a part of, where blocks are parts of a few trajectories."""

    @abstractmethod
    def entries(self, pool: str) -> Batch:
        """All entries of a pool; `weight` says which block they are of."""

    @property
    @abstractmethod
    def pairs(self) -> tuple[Tensor, Tensor]:
        """Pairs of every block in the main and in the tail pool, (n_blocks,) each."""

    @abstractmethod
    def weights(self, part: Batch, times: Tensor) -> Tensor:
        """Weight of every entry of a pool when block k counts times[k] times."""

    @abstractmethod
    def sums(self, part: Batch, values: Tensor) -> Tensor:
        """Per block, sums over the entries of a pool: (c, n) -> (n_blocks, c)."""

    @abstractmethod
    def counts(self, bins: StateBins, pool: str) -> Tensor:
        """Pairs of a pool that start in each bin of states, (n_blocks, M)."""

    def on_nodes(self, likelihood: Likelihood) -> Likelihood:
        """The same, with the nodes of a lattice as its bins, where these are all the states that it will meet."""
        return likelihood

    def on_a_lattice(self, head: Head, mode: str = "auto") -> Blocks:
        """The same blocks on a lattice, where that is possible and pays for going over them again and again."""
        return self

    # -- what they share ----------------------------------------------------------------------------------------------
    @property
    def once(self) -> Tensor:
        """(n_blocks,): every block once."""
        return torch.ones(self.n_blocks, dtype=torch.float64)

    @cached_property
    def main(self) -> Batch:
        return self.entries("main")

    @cached_property
    def tail(self) -> Batch | None:
        return self.entries("tail") if self.observed.n_tail else None

    def weighted(self, times: Tensor) -> FullBatch:
        """The data in which block k counts times[k] times."""

        def part(entries: Batch) -> Batch:
            weight = self.weights(entries, times)
            used = weight != 0
            if bool(used.all()):
                return entries._replace(weight=weight)
            one_dt = entries.dt.stride(0) == 0
            dt = entries.dt[:1].expand(int(used.sum())) if one_dt else entries.dt[used]
            return Batch(entries.x[used], entries.dx[used], dt, weight[used])

        n_main, n_tail = (float(times @ pairs) for pairs in self.pairs)
        if n_main <= 0:
            raise InputError("folds must hold data, found one without any pair; use fewer folds, or use more data.")
        tail = part(self.tail) if self.tail is not None and n_tail > 0 else None
        return FullBatch(part(self.main), tail, n_main, n_tail)

    @cached_property
    def whole(self) -> FullBatch:
        """Every block once."""
        return self.weighted(self.once)

    def likelihood(self, head: Head, law: Law, tail: TailSettings) -> Likelihood:
        """That of all data once."""
        likelihood = Likelihood(head, law, tail)
        likelihood.observe(self.observed)
        return likelihood

    def state_counts(self, likelihood: Likelihood) -> tuple[Tensor, Tensor] | None:
        """`counts` of the main and the tail pool, where the likelihood has tail masses to average over them."""
        if likelihood.masses is None or likelihood.bins is None:
            return None
        main = self.counts(likelihood.bins, "main")
        return main, self.counts(likelihood.bins, "tail") if self.tail is not None else 0.0 * main


@dataclass
class PairBlocks(Blocks):
    """Pairs themselves; `weight` of their entries is the block of each, (n,)."""

    observed: Pools

    @property
    def n_blocks(self) -> int:
        return min(N_BLOCKS, self.observed.n_main)

    @cached_property
    def clusters(self) -> Tensor | None:
        return trajectory_of_blocks(self.observed.data, self.n_blocks)

    def entries(self, pool: str) -> Batch:
        main = self.observed.main
        ids = block_of(main, self.n_blocks)
        if pool == "main":
            return Batch(main.states, main.dx, main.dt, ids)
        rows = self.observed.tail
        dt = main.dt[:1].expand(len(rows)) if main.uniform_dt else main.dt[rows]
        return Batch(main.states[rows], main.dx[rows], dt, ids[rows])

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor]:
        nothing = torch.empty(0, dtype=torch.int64)
        ids = (self.main.weight, nothing if self.tail is None else self.tail.weight)
        main, tail = (torch.bincount(i, minlength=self.n_blocks).to(torch.float64) for i in ids)
        return main, tail

    def weights(self, part: Batch, times: Tensor) -> Tensor:
        return times[part.weight]

    def sums(self, part: Batch, values: Tensor) -> Tensor:
        out = torch.zeros((self.n_blocks, values.shape[0]), dtype=torch.float64)
        return out.index_add_(0, part.weight, values.T.contiguous())

    def counts(self, bins: StateBins, pool: str) -> Tensor:
        M = len(bins)
        part = self.main if pool == "main" else self.tail
        assert part is not None
        index = part.weight * M + bins.index(part.x, part.dt)
        return torch.bincount(index, minlength=self.n_blocks * M).to(torch.float64).reshape(self.n_blocks, M)

    def on_a_lattice(self, head: Head, mode: str = "auto") -> Blocks:
        data = self.observed.data
        if mode == "never" or not wanted(data, "auto", _WORTH):
            return self
        lattice = lattice_of(self.observed, head.period, head.origin, n_blocks_for(data))
        trajectories = trajectory_of_blocks(data, lattice.n_blocks)
        return LatticeBlocks(lattice, self.law, self.treatment, self.units, trajectories)


@dataclass
class LatticeBlocks(Blocks):
    """Nodes of a lattice; `weight` of their entries is one per block, (n_blocks, n). trajectories: see `clusters`."""

    observed: Lattice
    trajectories: Tensor | None = None

    @property
    def n_blocks(self) -> int:
        return self.observed.n_blocks

    @property
    def clusters(self) -> Tensor | None:
        return self.trajectories

    def entries(self, pool: str) -> Batch:
        batch = self.observed.batch_of_blocks(pool)
        one_dt = len(self.observed.dt) == 1
        return batch._replace(dt=batch.dt[:1].expand(len(batch.x))) if one_dt else batch

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor]:
        main, tail = (
            torch.from_numpy(self.observed.pairs_per_block(pool)) if n else torch.zeros_like(self.once)
            for pool, n in (("main", self.observed.n_main), ("tail", self.observed.n_tail))
        )
        return main, tail

    def weights(self, part: Batch, times: Tensor) -> Tensor:
        return times @ part.weight

    def sums(self, part: Batch, values: Tensor) -> Tensor:
        return part.weight @ values.T

    def counts(self, bins: StateBins, pool: str) -> Tensor:
        states = self.observed.counts_of_states(pool, per_block=True)
        out = torch.zeros((self.n_blocks, len(bins)), dtype=torch.float64)
        return out.index_add_(1, bins.index(states.x, states.dt), states.pairs)

    def on_nodes(self, likelihood: Likelihood) -> Likelihood:
        if likelihood.masses is not None:
            return likelihood
        grid, head = self.observed.grid, likelihood.head
        apart = (grid.origin - head.origin) / grid.spacing if grid.period == head.period else 0.5
        if head.is_constant or head.period is None or abs(apart - round(apart)) > 1e-9:
            return likelihood
        bins = StateBins(head, torch.from_numpy(self.observed.dt), grid.n_x, centered=True)
        return replace(likelihood, bins=bins)


def blocks_of(data: Pools | Lattice, units: Units, treatment: TailSettings | None = None) -> Blocks:
    """Blocks of data in these units."""
    if isinstance(data, Lattice):
        return LatticeBlocks(data, units=units, treatment=treatment)
    return PairBlocks(data, units=units, treatment=treatment)


def block_of(pairs: Transitions, n_blocks: int) -> Tensor:
    """The block of every pair, (n,) int64."""
    ids = torch.zeros(len(pairs), dtype=torch.int64)
    for block, (starts, stops) in enumerate(pairs.membership.runs_by_block(n_blocks)):
        for start, stop in zip(starts.tolist(), stops.tolist()):
            ids[start:stop] = block
    return ids


def trajectory_of_blocks(pairs: Transitions, n_blocks: int) -> Tensor | None:
    """(n_blocks,): the number of the trajectory that the middle of each block belongs to.

    None where blocks are made of whole trajectories already, or where there are too few of these to tell a scatter.
    """
    ids = pairs.membership
    number = len(np.unique(ids.numbers())) if ids.counts is None else int(np.count_nonzero(ids.counts))
    if not _FEWEST_TRAJECTORIES <= number < n_blocks:
        return None
    middle = np.array([(starts[0] + stops[-1]) // 2 for starts, stops in ids.runs_by_block(n_blocks)])
    own = ids.numbers()[middle] if ids.counts is None else np.searchsorted(np.cumsum(ids.counts), middle, side="right")
    return torch.from_numpy(np.unique(own, return_inverse=True)[1])


def per_pair(sums: Tensor, pairs: Tensor) -> tuple[float, float]:
    """The mean per pair of sums over blocks (n_blocks,), and its standard error from their scatter."""
    n, used = float(pairs.sum()), int((pairs > 0).sum())
    mean = float(sums.sum()) / n
    if used < 2:
        return mean, math.nan
    return mean, float(((sums - mean * pairs).square().sum() * used / (used - 1)).sqrt()) / n


def kept_for_later(data: Pools | Lattice, units: Units, pairs: Transitions | None = None) -> Blocks | None:
    """Blocks of the data of a fit; None where it has none, or is too large to be kept.

    pairs: those that a lattice was made of.
    """
    if isinstance(data, Lattice):
        trajectories = None if pairs is None else trajectory_of_blocks(pairs, data.n_blocks)
        return LatticeBlocks(data, units=units, trajectories=trajectories) if data.n_blocks > 1 else None
    return PairBlocks(data, units=units) if data.n_main <= MOST_PAIRS else None


def n_blocks_for(transitions: Transitions) -> int:
    """Fewer blocks where every dt has nodes of its own, so that they stay small."""
    return N_BLOCKS if transitions.uniform_dt else N_BLOCKS // 3


def counted(likelihood: Likelihood, counts: tuple[Tensor, Tensor] | None, times: Tensor) -> Likelihood:
    """The likelihood whose tail masses are averaged over the states of the weighted blocks."""
    if likelihood.masses is None or counts is None:
        return likelihood
    masses = replace(likelihood.masses, counts=times @ counts[0], tail_counts=times @ counts[1])
    return replace(likelihood, masses=masses)
