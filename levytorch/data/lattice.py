"""All of the data as one weighted batch, made in one pass: the lattice.

The log-likelihood is a sum of log p(x, dx) over pairs, and log p is smooth. Interpolated from nodes (x_i, y_j) by local
polynomials, log p(x, dx) = sum_ij w_ij(x, dx) log p(x_i, y_j), it becomes

    sum_n log p(x_n, dx_n) = sum_ij C_ij log p(x_i, y_j),    C_ij = sum_n w_ij(x_n, dx_n),

in which the data enters through C alone: C does not depend on the parameters and adds over blocks, files and processes,
and every later evaluation costs the number of nodes, not of pairs. Some weights are negative: sums of log p and of its
derivatives do not mind, but one cannot draw from a lattice, and products of scores weighted by it may be indefinite.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.convert import choice, positive_number, real_number, shown, whole_number
from levytorch.data import lattice_files
from levytorch.data.batches import LATTICES, Batch, FullBatch
from levytorch.data.lattice_build import MOST_DT, SAME_DT, Builder, Loose, Settings
from levytorch.data.lattice_grid import NODES_PER_CELL, Grid, choose_grid, look, window
from levytorch.data.lattice_parts import Keys, Parts, added, matrix, node_numbers
from levytorch.data.pools import PoolFacts, Pools
from levytorch.data.thresholds import Threshold, check_thresholds
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError
from levytorch.ranks import Ranks

Array = NDArray[np.float64]
POOLS = ("main", "tail", "core")
ENOUGH = 300_000  # pairs from which on a lattice has markedly fewer nodes


class StateCounts(NamedTuple):
    """How many pairs start in each bin of states: centers (M,), dt (M,), pairs (M,) or (n_blocks, M)."""

    x: Tensor
    dt: Tensor
    pairs: Tensor


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
    weights: Parts
    states: Parts
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
        if not isinstance(pieces, Iterable):
            raise InputError(f"pieces must be an iterable of Transitions, found {shown(pieces)}; pass a list of them.")
        given: Iterator[Transitions] = iter(pieces)
        first = next(given, None)
        if first is None:
            raise InputError("a lattice must be made of at least one pair, found no data; pass transitions.")
        _check(first)
        some = look(first)
        if like is not None:
            options = {"CT": CT, "TRT": TRT, "mu": mu, "n_blocks": n_blocks, "reach": reach}
            builder = _like(like, options, period, window(some))
        else:
            CT, TRT = check_thresholds(CT, TRT, first.dt)
            reach = math.inf if reach is None else positive_number("reach", reach, "pass a distance from mu")
            n_blocks = 1 if n_blocks is None else whole_number("n_blocks", n_blocks, 1, 4096)
            origin = real_number("origin", origin)
            period = None if period is None or period == math.inf else period
            grid = choose_grid(some, period=period, origin=origin, order=order, n_x=n_x)
            if mu is not None:
                center = real_number("mu", mu)
            else:
                exact = CT is not None or TRT is not None or reach < math.inf or first._mu is not None
                center = float((first if exact else some).mu)
            settings = Settings(n_blocks, center, not first.uniform_dt, CT, TRT, reach)
            builder = Builder(grid, settings, window(some))
        builder.add(first)
        for piece in given:
            _check(piece)
            builder.add(piece)
        dt, weights, states, loose, dropped = builder.finish()
        s = builder.settings
        cutting, removal = (np.array([s.at(threshold, v) for v in dt.tolist()]) for threshold in (s.CT, s.TRT))
        new = cls(
            *(builder.grid, dt, s.n_blocks, s.mu, s.mu_is_rate, cutting, removal, s.reach),
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
        return int(sum(self.states.row(i)[1].sum() for i in self._rows(pool, blocks)))

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
        batch = self._batch(pool, self._checked(blocks), False)
        used = batch.weight != 0
        batch = batch if bool(used.all()) else Batch(*(t[used] for t in batch))
        if len(self.dt) == 1:
            batch = batch._replace(dt=batch.dt[:1].expand(len(batch.x)))
        if blocks is None:
            self._cache[key] = batch
        return batch

    def batch_of_blocks(self, pool: str = "main") -> Batch:
        """The batch with a row of weights per block, (n_blocks, n_nodes)."""
        return self._batch(pool, list(range(self.n_blocks)), True)

    def counts_of_states(
        self, pool: str = "main", blocks: Sequence[int] | None = None, *, per_block: bool = False
    ) -> StateCounts:
        """How many pairs of a pool start in each bin of states, exactly: all bins of the cell for every dt, one dt
        after the other; on a line the bins that hold a pair.
        """
        chosen = self._checked(blocks)
        per_node = self.grid.bins_per_node
        xs, dts, counts = [], [], []
        for sheet, dt in enumerate(self.dt.tolist()):
            rows = [added([self.states.row(i) for i in self._rows(pool, [k], sheet)]) for k in chosen]
            if self.grid.n_x:
                rows = [(np.arange(self.grid.n_x * per_node), np.zeros(self.grid.n_x * per_node)), *rows]
            bins, values = matrix(rows)
            values = values[1:] if self.grid.n_x else values
            xs.append(self.grid.origin + (bins + 0.5) * (self.grid.spacing / per_node))
            dts.append(np.full(len(bins), dt))
            counts.append(values if per_block else values.sum(0))
        x, times, count = np.concatenate(xs), np.concatenate(dts), np.concatenate(counts, axis=-1)
        return StateCounts(torch.from_numpy(x), torch.from_numpy(times), torch.from_numpy(count))

    def full_batch(self) -> FullBatch:
        """Both pools as a full batch."""
        tail = self.batch("tail") if self.n_tail else None
        return FullBatch(self.batch(), tail, self.n_main, self.n_tail)

    def facts(self) -> PoolFacts:
        """What a fit reports of its data."""
        one = len(self.dt) == 1
        CT, TRT = (float(v[0]) if one and np.isfinite(v[0]) else None for v in (self.CT, self.TRT))
        return PoolFacts(self.n_main, self.n_tail, self.mu, CT, TRT, dict(self.dropped), self.x_range)

    def typical_steps(self, n: int = 20_000) -> tuple[Tensor, Tensor]:
        """dx and dt of about n steps with the distribution of the data's, by inverting its cumulative weights.

        For scales and starts: a lattice cannot be drawn from.
        """
        steps, times = [], []
        for sheet, dt in enumerate(self.dt.tolist()):
            batch = self._batch("main", list(range(self.n_blocks)), False)
            here = batch.dt == dt
            dx, weight = batch.dx[here].numpy(), batch.weight[here].numpy()
            at, inverse = np.unique(dx, return_inverse=True)
            total = np.maximum.accumulate(np.cumsum(np.bincount(inverse, weight)))
            if total[-1] <= 0:
                continue
            share = max(1, round(n * float(total[-1]) / self.n_main))
            levels = (np.arange(share) + 0.5) / share * total[-1]
            steps.append(np.interp(levels, total, at))
            times.append(np.full(share, self.dt[sheet]))
        return torch.from_numpy(np.concatenate(steps)), torch.from_numpy(np.concatenate(times))

    # ------------------------------------------------------------------------------------------------ sums and parts

    def __add__(self, other: Lattice) -> Lattice:
        """The lattice of both data; they need the same grid, dt, pools and blocks (`like=` makes such a one)."""
        if not isinstance(other, Lattice):
            return NotImplemented
        self._check_like(other)
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
        lattice_files.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Lattice:
        """Read what `save` wrote; nothing in the file is executed."""
        return cls(*lattice_files.load(path))

    def __repr__(self) -> str:
        dt = f"dt={self.dt[0]:g}" if len(self.dt) == 1 else f"{len(self.dt)} dt"
        tail = f", {self.n_tail} in the tail" if self.has_tail else ""
        where = "on a line" if self.grid.period is None else f"on a cell of {self.grid.period:g}"
        return (
            f"Lattice({self.n_main} pairs{tail}, {self.n_nodes} nodes {where}, {dt}, "
            f"{self.n_blocks} block{'s' if self.n_blocks > 1 else ''})"
        )

    # -- private ------------------------------------------------------------------------------------------------------
    def _rows(self, pool: str, blocks: Sequence[int] | None = None, sheet: int | None = None) -> list[int]:
        """Rows of the tables that make up a pool."""
        choice("pool", pool, POOLS)
        if pool == "tail" and not self.has_tail:
            raise InputError("the lattice must have a tail pool, found none; make it with CT=...")
        parts = {"core": [0], "tail": [1], "main": [0, 1] if self.has_tail else [0]}[pool]
        n = len(self.dt)
        sheets = range(n) if sheet is None else [sheet]
        chosen = range(self.n_blocks) if blocks is None else blocks
        return [(part * n + s) * self.n_blocks + k for part in parts for s in sheets for k in chosen]

    def _checked(self, blocks: Sequence[int] | None) -> list[int]:
        if blocks is None:
            return list(range(self.n_blocks))
        return [whole_number("a block", k, 0, self.n_blocks - 1) for k in blocks]

    def _batch(self, pool: str, blocks: list[int], per_block: bool) -> Batch:
        xs, dxs, dts, weights = [], [], [], []
        for sheet, dt in enumerate(self.dt.tolist()):
            keys, values = self._weights(pool, sheet, blocks, per_block)
            number, far = node_numbers(keys)
            xs.append(self.grid.x(number))
            dxs.append(self.grid.dx(far, dt))
            dts.append(np.full(len(keys), dt))
            weights.append(values)
            for at, block in enumerate(blocks):
                mine = np.isin(self.loose.row, self._rows(pool, [block], sheet))
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
        rows = self._rows(pool, None, sheet)
        if (pool, sheet) not in self._cache:  # where every entry goes, once for all choices of blocks
            entries = np.concatenate([self.weights.row(i)[0] for i in rows])
            keys = np.unique(entries)
            self._cache[pool, sheet] = keys, np.searchsorted(keys, entries)
        keys, places = self._cache[pool, sheet]
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

    def _check_like(self, other: Lattice) -> None:
        remedy = "make one of them with like=the other"
        if self.grid != other.grid:
            raise InputError(
                f"lattices must have the same grid to be added, found {self.grid} and {other.grid}; {remedy}."
            )
        if len(self.dt) != len(other.dt) or not np.allclose(self.dt, other.dt, rtol=SAME_DT, atol=0):
            raise InputError(
                f"lattices must have the same dt to be added, found {_listed(self.dt)} and {_listed(other.dt)}; "
                f"{remedy}."
            )
        pools = [
            (a.CT.tolist(), a.TRT.tolist(), a.reach, a.centers.tolist() if a._uses_mu else None) for a in (self, other)
        ]
        if pools[0] != pools[1]:
            names = "CT {}, TRT {}, reach {}, mu {}"
            raise InputError(
                "lattices must have the same pools to be added, found "
                f"{names.format(*map(_listed, pools[0]))} and {names.format(*map(_listed, pools[1]))}; {remedy}."
            )
        if self.n_blocks != other.n_blocks:
            raise InputError(
                f"lattices must have the same number of blocks to be added, found {self.n_blocks} and "
                f"{other.n_blocks}; {remedy}."
            )

    @property
    def _uses_mu(self) -> bool:
        return bool(np.isfinite([*self.CT, *self.TRT, self.reach]).any())


def wanted(transitions: Transitions, mode: str, enough: int = ENOUGH) -> bool:
    """Whether a fit takes the lattice of its data: "always", "never", or "auto", where that is faster and possible.

    enough: pairs from which on it is faster.
    """
    if choice("lattice", mode, LATTICES) != "auto":
        return mode == "always"
    if transitions.dim > 1 or len(transitions) < enough:
        return False
    distinct = transitions.dt[:1]
    if not transitions.uniform_dt:
        for rows in transitions.blocks():
            distinct = torch.unique(torch.cat([distinct, transitions.dt[rows]]))
            if len(distinct) > MOST_DT:
                return False
    return True


def lattice_of(
    pools: Pools, period: float, origin: float, ranks: Ranks, n_blocks: int = 1, reach: float | None = None
) -> Lattice:
    """The lattice of the pools; with several ranks each reads its share, and all get the sum, in one block."""
    main = pools.main
    options: dict[str, Any] = {"period": period, "origin": origin, "mu": float(pools.mu)}
    options |= {"CT": pools.CT, "TRT": pools.TRT, "reach": reach}
    if ranks.world == 1:
        return Lattice.from_transitions(main, n_blocks=n_blocks, **options)
    like = Lattice.from_transitions(main[: min(len(main), 1000)], **options)  # says the grid, which all ranks share
    parts = ranks.gather(Lattice.from_transitions(main[ranks.shard(len(main))], like=like, period=period))
    return functools.reduce(operator.add, parts)


def _listed(values: Any) -> str:
    if isinstance(values, (list, np.ndarray)):
        return ", ".join(f"{v:.9g}" for v in values)
    return "none" if values is None else f"{values:g}"


def _check(piece: Any) -> None:
    if not isinstance(piece, Transitions):
        raise InputError(
            f"a lattice must be made of Transitions, found {type(piece).__name__}; call .transitions() on Trajectories."
        )
    if piece.dim != 1:
        raise InputError(
            f"a lattice must be made of one-dimensional data, found {piece.dim} coordinates; use the samples instead."
        )


class _AtSheet:
    """A threshold of a lattice as a function of its dt."""

    def __init__(self, dt: Array, values: Array) -> None:
        self.dt, self.values = np.log(dt), values

    def __call__(self, dt: Tensor) -> Tensor:
        nearest = np.abs(np.log(dt.numpy())[:, None] - self.dt).argmin(1)
        return torch.from_numpy(self.values[nearest])


def _like(like: Lattice, options: dict[str, Any], period: float | None, states: tuple[float, float]) -> Builder:
    """A builder with the grid, dt and pools of another lattice."""
    if not isinstance(like, Lattice):
        raise InputError(f"like must be a Lattice, found {shown(like)}; pass one, or leave it out.")
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} must be left out beside like=..., found {value!r}; the lattice says it already.")
    if period not in (2 * math.pi, like.grid.period):
        raise InputError(
            f"period must be that of the lattice, {like.grid.period}, found {period!r}; leave it out beside like=..."
        )
    CT, TRT = (_AtSheet(like.dt, v) if np.isfinite(v).any() else None for v in (like.CT, like.TRT))
    settings = Settings(like.n_blocks, like.mu, like.mu_is_rate, CT, TRT, like.reach)
    return Builder(like.grid, settings, states, like.dt.tolist())
