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
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import Array, positive_number, real_number, shown, whole_number
from levytorch.data.batches import FullBatch, PoolFacts, Pools
from levytorch.data.lattice_build import SAME_DT, Builder, Settings, check_piece
from levytorch.data.lattice_grid import NODES_PER_CELL, GridInUnits, choose_grid, look, window
from levytorch.data.lattice_tables import Loose, SparseRows, Tables, load_lattice, packed, save_lattice, unpacked
from levytorch.data.thresholds import Threshold, check_thresholds
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError

_MOST_STEPS, _MOST_GROUPS = 10**8, 4096


@dataclass(frozen=True, eq=False, repr=False)
class Lattice(Tables):
    """All pairs as one weighted batch on a grid. It has a few megabytes for any number of pairs. Lattices add with +.

    `transitions.lattice()`, `Lattice.from_transitions` and `Lattice.from_blocks` make one; `recover` fits it.

    Attributes:
        grid: the nodes; lattices of equal grids, dt and pools can be added.
        dt: (n_dt,) distinct time steps, ascending.
        n_blocks: blocks of trajectories (of time if there are fewer trajectories than blocks) that are summed
            separately.
        weights, states: the sparse tables of the weighted nodes.
        loose: pairs that are kept one by one.
        mu: center from which the thresholds are measured: of dx, or of dx / dt (`mu_is_rate`) if dt varies.
        CT, TRT: (n_dt,) thresholds of the pools; infinite if there are none.
        reach: pairs farther from mu are kept as they are.
        dropped: how many pairs were left out, by reason.
        x_range: smallest and largest observed state.

    Example:
        >>> from levytorch import Dynamics, simulate
        >>> days = [simulate(Dynamics.named("constant"), 50, 40, 1 / 40, seed=k).transitions() for k in (1, 2)]
        >>> first = days[0].lattice()
        >>> (first + days[1].lattice(like=first)).n_main
        4000
    """

    mu: float
    mu_is_rate: bool
    CT: Array
    TRT: Array
    reach: float
    dropped: dict[str, int]
    x_range: tuple[float, float]

    def quantiles_of_states(self, levels: Sequence[float], axis: int = 0) -> list[float]:
        """Quantiles of the states; the first and the last level are their ends."""
        counts = self.counts_of_states()
        order = np.argsort(counts.x.numpy(), kind="stable")
        x, total = counts.x.numpy()[order], np.cumsum(counts.pairs.numpy()[order])
        found = x[np.searchsorted(total, np.asarray(levels[1:-1]) * total[-1])].tolist()
        return [self.x_range[0], *found, self.x_range[1]]

    def starting_in(self, bounds: Sequence[tuple[float, float]]) -> Self:
        """The lattice itself: pairs that start elsewhere are cut from its batch."""
        return self

    def some_states(self, most: int) -> tuple[Tensor, Tensor]:
        """The states of all nodes, and how many pairs are there."""
        states = self.counts_of_states()
        return states.x, states.pairs

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

        The first piece decides the grid, and mu if it is not given.

        Args:
            period: of the state; None: a line.
            origin: where the cell begins.
            CT: pairs farther than this from mu form the tail pool: a number, or a function of dt; None: no tail pool.
            TRT: pairs at least this far from mu are left out; None: none are.
            mu: center of dx (of dx / dt when dt varies).
            n_blocks: blocks of trajectories that are summed separately, for folds, bootstrap and robust errors.
            reach: pairs farther than this from mu stay as they are, with weight one.
            order: points of the interpolation in either direction, 6 or 4.
            n_x: nodes per cell, a power of two; on a line about as many over the central 98 % of the states.
            like: a lattice whose grid, dt, pools and blocks are taken, so that the two add; leave the rest out.
        """
        if like is not None and not isinstance(like, Lattice):
            raise InputError(f"like must be a Lattice, found {shown(like)}; pass one, or leave it out.")
        if not isinstance(pieces, Iterable):
            raise InputError(f"pieces must be an iterable of Transitions, found {shown(pieces)}; pass a list of them.")
        given = iter(pieces)
        first = next(given, None)
        if first is None:
            raise InputError("a lattice must be made of at least one pair, found no data; pass transitions.")
        check_piece(first)
        some = look(first)
        options = {"CT": CT, "TRT": TRT, "mu": mu, "n_blocks": n_blocks, "reach": reach}
        if like is not None:
            builder = _like(like, options, period, window(some))
        else:
            period = None if period is None or period == math.inf else period
            grid = choose_grid(some, period=period, origin=real_number("origin", origin), order=order, n_x=n_x)
            builder = Builder(grid, _settings(first, some, **options), window(some))
        for piece in itertools.chain([first], given):
            builder.add(piece)
        new = cls(**builder.finish())
        if new.n_main == 0:
            raise InputError("TRT must leave some pairs, found none within it; choose a larger TRT.")
        return new

    # --------------------------------------------------------------------------------------------------------- reading

    dim = 1  # of the states

    @property
    def period(self) -> float | None:
        """The period of the states; None on a line."""
        return self.grid.period

    @property
    def origin(self) -> float:
        """Where the cell begins."""
        return self.grid.origin

    @property
    def centers(self) -> Array:
        """(n_dt,) where the thresholds of each dt are measured from."""
        return self.mu * self.dt if self.mu_is_rate else np.full(len(self.dt), self.mu)

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
        """x, dx and dt of about n steps that are distributed like the data, by inverting the cumulative weights.

        Used for scales and starts, because no samples can be drawn from a lattice. n_groups: groups of neighbouring
        states; x is the middle of a group.
        """
        n, n_groups = whole_number("n", n, 1, _MOST_STEPS), whole_number("n_groups", n_groups, 1, _MOST_GROUPS)
        batch = self._entries("main")
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
        _check_alike(self, other)
        return replace(
            _with_facts(self, other),
            weights=self.weights.plus(other.weights),
            states=self.states.plus(other.states),
            loose=Loose(*(np.concatenate(pair) for pair in zip(self.loose, other.loose))),
        )

    def in_units(self, length: float, time: float) -> Lattice:
        """The same lattice with x measured in units of `length` and dt in units of `time`."""
        if length == 1.0 and time == 1.0:
            return self
        return replace(
            self,
            grid=GridInUnits.of(self.grid, length, time, self.dt.tolist()),
            dt=self.dt / time,
            loose=self.loose._replace(x=self.loose.x / length, dx=self.loose.dx / length),
            mu=self.mu / (length / time if self.mu_is_rate else length),
            CT=self.CT / length,
            TRT=self.TRT / length,
            reach=self.reach / length,
            x_range=(self.x_range[0] / length, self.x_range[1] / length),
        )

    def __radd__(self, other: Any) -> Lattice:
        """For sum(lattices), which begins with 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def empty(self, n_blocks: int | None = None) -> Lattice:
        """The same grid, dt and pools without pairs, and with another number of blocks: for `like=`."""
        n_blocks = self.n_blocks if n_blocks is None else whole_number("n_blocks", n_blocks, 1, 4096)
        none = SparseRows.of([(np.empty(0, dtype=np.int64), np.empty(0))] * len(self.dt) * n_blocks * self.n_pools)
        nowhere = Loose(np.empty(0), np.empty(0), np.empty(0, dtype=np.int64))
        facts: dict[str, Any] = {"dropped": {}, "x_range": (math.inf, -math.inf)}
        return replace(self, n_blocks=n_blocks, weights=none, states=none, loose=nowhere, **facts)

    @classmethod
    def side_by_side(cls, lattices: Sequence[Lattice]) -> Lattice:
        """One lattice with the blocks of all lattices, one after the other: no blocks are added."""
        first, m = lattices[0], lattices[0].n_blocks
        for other in lattices[1:]:
            _check_alike(first, other)
        groups = [(pool, sheet) for pool in range(first.n_pools) for sheet in range(len(first.dt))]
        order = [
            (lattice, (pool * len(first.dt) + sheet) * m + k)
            for pool, sheet in groups
            for lattice in lattices
            for k in range(m)
        ]
        n_blocks, loose = m * len(lattices), []
        for place, lattice in enumerate(lattices):
            group, k = np.divmod(lattice.loose.row, m)
            loose.append(lattice.loose._replace(row=group * n_blocks + place * m + k))
        total = functools.reduce(_with_facts, lattices)
        return replace(
            total,
            n_blocks=n_blocks,
            weights=SparseRows.of([lattice.weights.row(i) for lattice, i in order]),
            states=SparseRows.of([lattice.states.row(i) for lattice, i in order]),
            loose=Loose(*(np.concatenate(column) for column in zip(*loose))),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled in its sparse form, packed: for other processes and machines."""
        content = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        tables = {name: packed(content[name]) for name in ("weights", "states")}
        return _unpickled, (content | tables,)

    def save(self, path: str | Path) -> None:
        """Write a .npz file, or a .safetensors file for exchange with other programs; complete or absent."""
        save_lattice(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Lattice:
        """Read what `save` wrote; nothing in the file is executed."""
        return cls(**load_lattice(path))

    def __repr__(self) -> str:
        dt = f"dt={self.dt[0]:g}" if len(self.dt) == 1 else f"{len(self.dt)} dt"
        tail = f", {self.n_tail} in the tail" if self.has_tail else ""
        where = "on a line" if self.grid.period is None else f"on a cell of {self.grid.period:g}"
        return (
            f"Lattice({self.n_main} pairs{tail}, {self.n_nodes} nodes {where}, {dt}, "
            f"{self.n_blocks} block{'s' if self.n_blocks > 1 else ''})"
        )


def _with_facts(one: Lattice, other: Lattice) -> Lattice:
    """The first lattice with what was dropped, and the range of states, of both."""
    reasons = {**one.dropped, **other.dropped}
    dropped = {reason: one.dropped.get(reason, 0) + other.dropped.get(reason, 0) for reason in reasons}
    x_range = min(one.x_range[0], other.x_range[0]), max(one.x_range[1], other.x_range[1])
    return replace(one, dropped=dropped, x_range=x_range)


def _unpickled(content: dict[str, Any]) -> Lattice:
    return Lattice(**(content | {name: unpacked(content[name]) for name in ("weights", "states")}))


def _settings(first: Transitions, some: Transitions, CT: Any, TRT: Any, mu: Any, n_blocks: Any, reach: Any) -> Settings:
    """What pairs are sorted by; mu is that of the first piece, or of a part of it where nothing hangs on it."""
    CT, TRT = check_thresholds(CT, TRT, first.dt)
    reach = math.inf if reach is None else positive_number("reach", reach, "pass a distance from mu")
    n_blocks = 1 if n_blocks is None else whole_number("n_blocks", n_blocks, 1, 4096)
    if mu is not None:
        center = real_number("mu", mu)
    else:
        exact = CT is not None or TRT is not None or reach < math.inf or first._mu is not None
        center = float((first if exact else some).mu)
    return Settings(n_blocks, center, not first.uniform_dt, CT, TRT, reach)


def _like(like: Lattice, options: dict[str, Any], period: float | None, states: tuple[float, float]) -> Builder:
    """A builder with the grid, dt and pools of another lattice."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} must be left out beside like=..., found {value!r}; the lattice determines it.")
    if period not in (2 * math.pi, like.grid.period):
        raise InputError(
            f"period must be that of the lattice, {like.grid.period}, found {period!r}; leave it out beside like=..."
        )

    def at_sheet(values: Array, dt: Tensor) -> Tensor:
        nearest = np.abs(np.log(dt.numpy())[:, None] - np.log(like.dt)).argmin(1)
        return torch.from_numpy(values[nearest])

    CT, TRT = (functools.partial(at_sheet, v) if np.isfinite(v).any() else None for v in (like.CT, like.TRT))
    settings = Settings(like.n_blocks, like.mu, like.mu_is_rate, CT, TRT, like.reach)
    return Builder(like.grid, settings, states, like.dt.tolist())


def _check_alike(one: Lattice, other: Lattice) -> None:
    """Refuse lattices of other grids, dt, pools or blocks."""

    def pools(a: Lattice) -> list[Any]:
        uses_mu = np.isfinite([*a.CT, *a.TRT, a.reach]).any()
        return [a.CT.tolist(), a.TRT.tolist(), a.reach, a.centers.tolist() if uses_mu else None]

    same_dt = len(one.dt) == len(other.dt) and bool(np.allclose(one.dt, other.dt, rtol=SAME_DT, atol=0))
    named = "CT {}, TRT {}, reach {}, mu {}"
    facts: list[tuple[str, bool, Callable[[Lattice], Any]]] = [
        ("grid", one.grid == other.grid, lambda a: a.grid),
        ("dt", same_dt, lambda a: _listed(a.dt)),
        ("pools", pools(one) == pools(other), lambda a: named.format(*map(_listed, pools(a)))),
        ("number of blocks", one.n_blocks == other.n_blocks, lambda a: a.n_blocks),
    ]
    for what, same, describe in facts:
        if not same:
            raise InputError(
                f"lattices must have the same {what} to be added, found {describe(one)} and {describe(other)}; make "
                "one of them with like=the other."
            )


def _listed(values: Any) -> str:
    if isinstance(values, (list, np.ndarray)):
        return ", ".join(f"{v:.9g}" for v in values)
    return "none" if values is None else f"{values:g}"


def lattice_of(pools: Pools, period: float, origin: float, n_blocks: int = 1, reach: float | None = None) -> Lattice:
    """The lattice of the pools."""
    data = pools.data  # the lattice leaves out what lies beyond TRT
    options: dict[str, Any] = {"period": period, "origin": origin, "mu": float(pools.mu)}
    options |= {"CT": pools.CT, "TRT": pools.TRT, "reach": reach}
    return data.lattice(n_blocks=n_blocks, **options)
