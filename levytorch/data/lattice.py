"""All of the data as one weighted batch, made in one pass: the lattice.

The log-likelihood is a sum of log p(x, dx) over pairs, and log p is smooth. Interpolated from nodes (x_i, y_j) by local
polynomials, log p(x, dx) = sum_ij w_ij(x, dx) log p(x_i, y_j), it becomes

    sum_n log p(x_n, dx_n) = sum_ij C_ij log p(x_i, y_j),    C_ij = sum_n w_ij(x_n, dx_n),

in which the data enters through C alone: C does not depend on the parameters and adds over blocks, files and processes,
and every later evaluation costs the number of nodes, not of pairs. Some weights are negative: sums of log p and of its
derivatives do not mind, but one cannot draw from a lattice, and products of scores weighted by it may be indefinite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import Array, shown, whole_number
from levytorch.data import lattice_files
from levytorch.data.batches import Batch, FullBatch
from levytorch.data.lattice_grid import NODES_PER_CELL, Grid
from levytorch.data.lattice_making import built, check_like
from levytorch.data.lattice_tables import Loose, SparseRows, StateCounts, Tables
from levytorch.data.pools import PoolFacts
from levytorch.data.thresholds import Threshold
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError


@dataclass(frozen=True, eq=False, repr=False)
class Lattice:
    """Weighted pseudo-transitions (x, dx, dt, weight) that stand for all pairs; `from_transitions` makes one.

    Attributes:
        grid: the nodes; lattices of equal grids, dt and pools add with +.
        dt: (n_dt,) distinct time steps, ascending.
        n_blocks: blocks of trajectories (of time for fewer trajectories than blocks) that are summed apart.
        mu: center from which the thresholds are measured: of dx, or of dx / dt (`mu_is_rate`) when dt varies.
        CT, TRT: (n_dt,) thresholds of the pools, infinite where there are none.
        reach: pairs farther from mu are kept as they are.
        dropped: how many pairs were left out, by reason.
        x_range: smallest and largest observed state.
    """

    grid: Grid
    dt: Array
    n_blocks: int
    mu: float
    mu_is_rate: bool
    CT: Array
    TRT: Array
    reach: float
    weights: SparseRows
    states: SparseRows
    loose: Loose
    dropped: dict[str, int]
    x_range: tuple[float, float]
    _cache: dict[Any, Any] = field(default_factory=dict)

    # ---------------------------------------------------------------------------------------------------------- making

    @classmethod
    def from_transitions(cls, transitions: Transitions, **options: Any) -> Lattice:
        """The lattice of pairs in memory.

        Args:
            transitions: one-dimensional, with at most a dozen distinct dt.
            options: see `from_blocks`; mu is that of all pairs unless it is given.

        >>> t = Transitions([0.5, 1.0, 6.0], [0.1, -0.2, 3e9], 0.1)
        >>> round(float(Lattice.from_transitions(t).batch().weight.sum()), 12)
        3.0
        """
        return cls.from_blocks([transitions], **options)

    @classmethod
    def from_blocks(
        cls,
        pieces: Iterable[Transitions],
        *,
        period: float | None = 2 * math.pi,
        origin: float = 0.0,
        CT: Threshold | None = None,
        TRT: Threshold | None = None,
        mu: float | None = None,
        n_blocks: int | None = None,
        reach: float | None = None,
        order: int = 6,
        n_x: int = NODES_PER_CELL,
        like: Lattice | None = None,
    ) -> Lattice:
        """The lattice of data that comes piece by piece and is never in memory at once.

        The first piece decides the grid, and mu where that is not given.

        Args:
            period: of the state; None: a line.
            origin: where the cell begins.
            CT: pairs farther than this from mu form the tail pool: a number, or a function of dt; None: no tail pool.
            TRT: pairs at least this far from mu are left out; None: none are.
            mu: center of dx (of dx / dt when dt varies).
            n_blocks: blocks of trajectories that are summed apart, for folds, bootstrap and robust errors; default 1.
            reach: pairs farther than this from mu stay as they are, with weight one.
            order: points of the interpolation in either direction, 6 or 4.
            n_x: nodes per cell, a power of two; on a line about as many over the central 98 % of the states.
            like: a lattice whose grid, dt, pools and blocks are taken, so that the two add; leave the rest out.
        """
        if like is not None and not isinstance(like, Lattice):
            raise InputError(f"like must be a Lattice, found {shown(like)}; pass one, or leave it out.")
        options = {"CT": CT, "TRT": TRT, "mu": mu, "n_blocks": n_blocks, "reach": reach}
        builder = built(pieces, like, options, period=period, origin=origin, order=order, n_x=n_x)
        dt, weights, states, loose, dropped = builder.finish()
        used = builder.settings
        cutting, removal = (np.array([used.at(limit, v) for v in dt.tolist()]) for limit in (used.CT, used.TRT))
        new = cls(
            *(builder.grid, dt, used.n_blocks, used.mu, used.mu_is_rate, cutting, removal, used.reach),
            *(weights, states, loose, dropped, builder.x_range),
        )
        if new.n_main == 0:
            raise InputError("TRT must leave some pairs, found none within it; choose a larger TRT.")
        return new

    # --------------------------------------------------------------------------------------------------------- reading

    dim = 1  # of the states

    @property
    def period(self) -> float | None:
        return self.grid.period

    @property
    def origin(self) -> float:
        return self.grid.origin

    @property
    def centers(self) -> Array:
        """(n_dt,) where the thresholds of each dt are measured from."""
        return self.mu * self.dt if self.mu_is_rate else np.full(len(self.dt), self.mu)

    @property
    def has_tail(self) -> bool:
        """Whether there is a tail pool."""
        return bool(np.isfinite(self.CT).any())

    @property
    def n_main(self) -> int:
        """Pairs within TRT."""
        return self.n_pairs("main")

    @property
    def n_tail(self) -> int:
        """Pairs within TRT and beyond CT."""
        return self.n_pairs("tail") if self.has_tail else 0

    @property
    def R_sample(self) -> float:
        """|P_tail| / |P_main|."""
        return self.n_tail / self.n_main

    @property
    def n_nodes(self) -> int:
        """Entries of the batch of all pairs."""
        return len(self.batch().x)

    def __len__(self) -> int:
        return self.n_main

    def n_pairs(self, pool: str = "main", blocks: Sequence[int] | None = None) -> int:
        """Pairs of a pool."""
        return int(sum(self.states.row(i)[1].sum() for i in self._tables.rows(pool, blocks)))

    def pairs_per_block(self, pool: str = "main") -> Array:
        """(n_blocks,) pairs of a pool in every block."""
        return np.array([float(self.n_pairs(pool, [k])) for k in range(self.n_blocks)])

    def batch(self, pool: str = "main", blocks: Sequence[int] | None = None) -> Batch:
        """Nodes and weights of a pool ("main", "tail", or "core", which is main without tail); weights sum to its size.

        blocks: numbers of blocks to sum, repeated as often as they count; None: all once.
        """
        key = (pool, None if blocks is None else tuple(blocks))
        if blocks is None and key in self._cache:
            return self._cache[key]
        batch = self._tables.batch(pool, self._checked(blocks), False)
        used = batch.weight != 0
        batch = batch if bool(used.all()) else Batch(*(t[used] for t in batch))
        if len(self.dt) == 1:
            batch = batch._replace(dt=batch.dt[:1].expand(len(batch.x)))
        if blocks is None:
            self._cache[key] = batch
        return batch

    def batch_of_blocks(self, pool: str = "main") -> Batch:
        """The batch with a row of weights per block, (n_blocks, n_nodes)."""
        return self._tables.batch(pool, list(range(self.n_blocks)), True)

    def counts_of_states(self, pool: str = "main", *, per_block: bool = False) -> StateCounts:
        """How many pairs of a pool start in each bin of states, exactly: all bins of the cell for every dt, one dt
        after the other; on a line the bins that hold a pair.
        """
        return self._tables.counts(pool, per_block)

    def full_batch(self) -> FullBatch:
        """Both pools as a full batch."""
        tail = self.batch("tail") if self.n_tail else None
        return FullBatch(self.batch(), tail, self.n_main, self.n_tail)

    def facts(self) -> PoolFacts:
        """What a fit reports of its data."""
        one = len(self.dt) == 1
        CT, TRT = (float(v[0]) if one and np.isfinite(v[0]) else None for v in (self.CT, self.TRT))
        return PoolFacts(self.n_main, self.n_tail, self.mu, CT, TRT, dict(self.dropped), self.x_range)

    def typical_steps(self, n: int = 20_000, n_groups: int = 1) -> tuple[Tensor, Tensor, Tensor]:
        """x, dx and dt of about n steps with the distribution of the data's, by inverting its cumulative weights.

        For scales and starts: a lattice cannot be drawn from. n_groups: of the states, apart from each other; x is
        the middle of a group.
        """
        batch = self._tables.batch("main", list(range(self.n_blocks)), False)
        x, dx, dt, weight = (values.numpy() for values in batch)
        _, state = np.unique(x, return_inverse=True)
        below = np.cumsum(np.bincount(state, weight)) / max(weight.sum(), 1.0)
        group = np.clip(below * n_groups, 0, n_groups - 1).astype(int)[state]
        found = []
        for own in (group == g for g in range(n_groups)):
            for part in (own & (dt == one) for one in self.dt):
                if not weight[part].sum() > 0:
                    continue
                at, inverse = np.unique(dx[part], return_inverse=True)
                total = np.maximum.accumulate(np.cumsum(np.bincount(inverse, weight[part])))
                share = max(1, round(n * float(total[-1]) / self.n_main))
                levels = (np.arange(share) + 0.5) / share * total[-1]
                columns = (x[own].mean(), np.interp(levels, total, at), dt[part][0])
                found.append([np.broadcast_to(column, share) for column in columns])
        middles, steps, times = (torch.from_numpy(np.concatenate(column)) for column in zip(*found))
        return middles, steps, times

    # ------------------------------------------------------------------------------------------------ sums and parts

    def __add__(self, other: Lattice) -> Lattice:
        """The lattice of both data; they need the same grid, dt, pools and blocks (`like=` makes such a one)."""
        if not isinstance(other, Lattice):
            return NotImplemented
        check_like(self, other)
        loose = Loose(*(np.concatenate(pair) for pair in zip(self.loose, other.loose)))
        reasons = [*self.dropped, *(reason for reason in other.dropped if reason not in self.dropped)]
        return replace(
            self,
            weights=self.weights.plus(other.weights),
            states=self.states.plus(other.states),
            loose=loose,
            dropped={reason: self.dropped.get(reason, 0) + other.dropped.get(reason, 0) for reason in reasons},
            x_range=(min(self.x_range[0], other.x_range[0]), max(self.x_range[1], other.x_range[1])),
            _cache={},
        )

    def select(self, blocks: Sequence[int]) -> Lattice:
        """The lattice of some blocks, which are its blocks in this order."""
        chosen = self._checked(blocks)
        if not chosen:
            raise InputError("blocks must name at least one block, found none; pass numbers of blocks.")
        groups = len(self.weights.starts[:-1]) // self.n_blocks
        rows = [group * self.n_blocks + k for group in range(groups) for k in chosen]
        where = [np.flatnonzero(self.loose.row == row) for row in rows]
        kept = np.concatenate([np.empty(0, dtype=np.int64), *where])
        numbers = np.repeat(np.arange(len(rows)), [len(w) for w in where])
        new = replace(
            self,
            n_blocks=len(chosen),
            weights=self.weights.take(rows),
            states=self.states.take(rows),
            loose=Loose(self.loose.x[kept], self.loose.dx[kept], numbers),
            _cache={},
        )
        if new.n_main == 0:
            raise InputError(
                f"blocks must hold at least one pair, found none in block {', '.join(map(str, chosen))}; use fewer "
                "blocks or folds."
            )
        return new

    def fold(self, k: int, n_folds: int) -> tuple[Lattice, Lattice]:
        """What to train on and what is held out in fold k: every n_folds-th block from the k-th on is held out."""
        n_folds = whole_number("n_folds", n_folds, 2)
        k = whole_number("k", k, 0, n_folds - 1)
        if n_folds > self.n_blocks:
            raise InputError(
                f"n_folds must be at most the {self.n_blocks} blocks of the lattice, found {n_folds}; make the lattice "
                f"with n_blocks={n_folds} or more."
            )
        held = range(k, self.n_blocks, n_folds)
        return self.select([b for b in range(self.n_blocks) if b not in held]), self.select(held)

    def save(self, path: str | Path) -> None:
        """Write a .npz file, whole or not at all."""
        lattice_files.save_lattice(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Lattice:
        """Read what `save` wrote; nothing in the file is executed."""
        return cls(*lattice_files.load_lattice(path))

    def __repr__(self) -> str:
        dt = f"dt={self.dt[0]:g}" if len(self.dt) == 1 else f"{len(self.dt)} dt"
        tail = f", {self.n_tail} in the tail" if self.has_tail else ""
        where = "on a line" if self.grid.period is None else f"on a cell of {self.grid.period:g}"
        return (
            f"Lattice({self.n_main} pairs{tail}, {self.n_nodes} nodes {where}, {dt}, "
            f"{self.n_blocks} block{'s' if self.n_blocks > 1 else ''})"
        )

    # -- private ------------------------------------------------------------------------------------------------------
    @property
    def _tables(self) -> Tables:
        if "tables" not in self._cache:
            parts = (self.weights, self.states, self.loose)
            self._cache["tables"] = Tables(self.grid, self.dt, self.n_blocks, self.has_tail, *parts)
        return self._cache["tables"]

    def _checked(self, blocks: Sequence[int] | None) -> list[int]:
        if blocks is None:
            return list(range(self.n_blocks))
        return [whole_number("a block", k, 0, self.n_blocks - 1) for k in blocks]
