"""Transitions: the pairs (x, dx, dt) from which everything is estimated.

mu is the paper's center: the median of dx (Algorithm B.1), or the median of dx / dt when dt varies (appendix E,
nonuniform temporal sampling). It belongs to the data as they came: it is computed before anything is removed, and kept
by every selection and by censoring.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.convert import Integers, shown
from levytorch.data.arrays import finite_pairs, floats, integers, label, row_selection, steps
from levytorch.data.describe import describe, seams
from levytorch.data.points import COLUMNS
from levytorch.data.quantiles import cut, median, quantiles
from levytorch.data.store import Entry, MemoryColumns, Sink, as_tensor, digest
from levytorch.data.thresholds import Threshold, check_censoring, threshold_at
from levytorch.errors import InputError

if TYPE_CHECKING:
    from levytorch.data.lattice import Lattice

OUTSIDE = "outside the window"
BLOCK = 1 << 14  # pairs per block of a pass over all: temporaries stay in the cache, and torch on one thread


class NoSuchPair(InputError, IndexError):
    """A number beyond the last pair; an IndexError, which is what ends a loop over the pairs."""


@dataclass(frozen=True, eq=False)
class Membership:
    """Which trajectory each of n pairs comes from: `counts`, how many belong to trajectory 0, 1, 2, ..., where they
    come in that order (numbers of 16 million pairs need not be stored); else `ids`, (n,) the trajectory of each.
    """

    counts: Integers | None = None
    ids: Integers | None = None

    def __len__(self) -> int:
        return len(self.numbers()) if self.counts is None else int(self.counts.sum())

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

    def take(self, rows: slice | NDArray[Any]) -> Membership:
        """That of a slice of the pairs, of a mask, or of some rows."""
        if self.counts is None or (isinstance(rows, slice) and rows.step not in (None, 1)):
            return Membership(ids=self.numbers()[rows])
        ends, n = np.cumsum(self.counts), len(self)
        if isinstance(rows, slice):
            low, high, _ = rows.indices(n)
            return Membership(np.diff(np.clip(np.concatenate([[0], ends]), low, max(low, high))))
        if rows.dtype != bool:
            return Membership(ids=np.searchsorted(ends, np.where(rows < 0, rows + n, rows), side="right"))
        counts = self.counts.copy()
        for low in range(0, n, BLOCK):
            lost = low + np.flatnonzero(~rows[low : low + BLOCK])
            np.subtract.at(counts, np.searchsorted(ends, lost, side="right"), 1)
        return Membership(counts)

    def runs_by_block(self, n_blocks: int) -> list[tuple[Integers, Integers]]:
        """First and last rows (exclusive) of the runs of every block.

        Trajectory number t belongs to block t modulo n_blocks. Fewer trajectories than blocks are cut into blocks of
        time instead, by their rows.
        """
        if n_blocks == 1:
            return [(np.array([0]), np.array([len(self)]))]
        if self.counts is not None:
            stops = np.cumsum(self.counts)
            starts, number = stops - self.counts, np.arange(len(stops))
        else:
            ids = self.numbers()
            starts = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1])
            stops, number = np.append(starts[1:], len(self)), ids[starts]
        held = stops > starts
        if len(np.unique(number[held])) < n_blocks:
            edges = np.array([len(self) * k // n_blocks for k in range(n_blocks + 1)])
            return [(edges[k : k + 1], edges[k + 1 : k + 2]) for k in range(n_blocks)]
        block = number % n_blocks
        return [(starts[mine], stops[mine]) for mine in (held & (block == k) for k in range(n_blocks))]


class Transitions:
    """Pairs of consecutive observations: a state x, a displacement dx and the time dt between them.

    They are never changed in place. `t[mask]`, `t[:1000]` and `t[index]` select pairs and keep mu; `uniform_dt` says
    whether all pairs have the same dt.

    Args:
        x: current states, (n,) or (n, d).
        dx: x_next - x, of x's shape.
        dt: the time between the two, a number or (n,).
        trajectory: (n,) integer, the trajectory each pair comes from; None: all from one.
        reward: (n,) reward logged at x, or None.
        action: (n,) label of the action held over the pair, numbers or strings, or (n, 2) vectors, or None.
        terminal: (n,) if an episode ended with the pair, the value of the state it ended in, elsewhere NaN; or None.
        mu: the center of dx (of dx / dt if dt varies); None: computed from these pairs when first asked for.
        dropped: how many pairs were left out before, by reason.

    Example:
        >>> t = Transitions([0.0, 1.0, 3.0], [1.0, 2.0, -1.0], 0.5)
        >>> len(t), float(t.mu), t.uniform_dt
        (3, 1.0, True)
    """

    inputs: Tensor | None = None  # (n, m) covariates of each pair, which the coefficients of a fit may depend on
    repeats = False  # whether the system is known to repeat itself from cell to cell: that of a simulation on a cell

    def __init__(
        self,
        x: Any,
        dx: Any,
        dt: Any,
        *,
        trajectory: Any = None,
        reward: Any = None,
        action: Any = None,
        terminal: Any = None,
        mu: Any = None,
        dropped: Mapping[str, int] | None = None,
    ) -> None:
        self.x, self.dx = floats("x", x), floats("dx", dx)
        if self.x.shape != self.dx.shape or self.x.ndim not in (1, 2):
            raise InputError(
                f"x and dx must both have shape (n,) or (n, d), found {tuple(self.x.shape)} and "
                f"{tuple(self.dx.shape)}; pass one entry per pair in each."
            )
        n = len(self.x)
        if n == 0:
            raise InputError("transitions must hold at least one pair, found none; check the selection that made them.")
        self.dt, self.uniform_dt = steps(dt, n)
        finite_pairs("x", self.x)
        finite_pairs("dx", self.dx)
        ids = None if trajectory is None else integers("trajectory", trajectory)
        self.reward = None if reward is None else floats("reward", reward)
        self.terminal = None if terminal is None else floats("terminal", terminal)
        self._codes: Tensor | None = None
        self.actions: tuple[Any, ...] = ()  # the labels, sorted
        if action is not None:
            codes, self.actions = label(action)
            self._codes = torch.from_numpy(codes)
        given = {"trajectory": ids, "reward": self.reward, "action": self._codes, "terminal": self.terminal}
        for name, column in given.items():
            if column is not None and (column.shape[:1] if name == "action" else column.shape) != (n,):
                raise InputError(f"{name} must have shape ({n},), found {tuple(column.shape)}; pass one per pair.")
        self.membership = Membership(np.array([n])) if ids is None else Membership(ids=ids.numpy())
        if self.reward is not None:
            finite_pairs("reward", self.reward)
        self._mu = None if mu is None else floats("mu", mu)
        self.stored: Entry | None = None  # where the pairs lie when they are on disk
        if self._mu is not None:
            if self._mu.shape != self.x.shape[1:]:
                raise InputError(
                    f"mu must have shape {tuple(self.x.shape[1:])}, found {tuple(self._mu.shape)}; pass one number per "
                    "coordinate."
                )
            finite_pairs("mu", self._mu.reshape(1, -1))
        self.dropped = {reason: int(count) for reason, count in (dropped or {}).items() if count}

    # ------------------------------------------------------------------------------------------------------ selections

    @classmethod
    def _build(cls, x: Tensor, dx: Tensor, dt: Tensor | float, membership: Membership, **fields: Any) -> Transitions:
        """From checked parts, without another pass over them; a float is the dt of all pairs."""
        new = cls.__new__(cls)
        new.x, new.dx, new.uniform_dt = x, dx, not isinstance(dt, Tensor)
        new.dt = dt if isinstance(dt, Tensor) else torch.full((1,), dt, dtype=torch.float64).expand(len(x))
        new.membership = membership
        new._mu, new.stored, new.actions = fields.get("mu"), fields.get("stored"), fields.get("actions") or ()
        new.reward, new._codes, new.terminal = (fields.get(name) for name in COLUMNS)
        new.dropped = {reason: count for reason, count in (fields.get("dropped") or {}).items() if count}
        new.repeats = bool(fields.get("repeats"))
        return new

    def at(self, x: Tensor, dx: Tensor) -> Transitions:
        """Pairs with other states and displacements, each of the same trajectory and over the same dt."""
        dt = float(self.dt[0]) if self.uniform_dt else self.dt
        return Transitions._build(x, dx, dt, self.membership, dropped=self.dropped, repeats=self.repeats)

    def _with_dt(self, dt: float) -> Transitions:
        """The same pairs with one dt for all."""
        new = copy.copy(self)
        new.dt, new.uniform_dt = torch.full((1,), dt, dtype=torch.float64).expand(len(self)), True
        new.stored = None if self.stored is None else self.stored.part(f"dt {dt!r}")
        return new

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, which: Any) -> Self:
        """The pairs of a mask, a slice or an index; mu stays that of the data they came from."""
        return self._take(which, {})

    def _take(self, which: Any, reasons: Mapping[str, int], keep_mu: bool = True) -> Self:
        if isinstance(which, (int, np.integer)) and not isinstance(which, np.timedelta64):
            if isinstance(which, bool) or not -len(self) <= which < len(self):
                raise NoSuchPair(
                    f"the number of a pair must lie from {-len(self)} to {len(self) - 1}, found {shown(int(which))}; "
                    "pass one of these."
                )
            which = slice(int(which), int(which) + 1 or None)
        rows: Any = which if isinstance(which, slice) else row_selection(which, len(self)).numpy()
        sliced = isinstance(rows, slice)
        masked = not sliced and rows.dtype == bool
        n = len(range(*rows.indices(len(self)))) if sliced else int(rows.sum()) if masked else len(rows)
        if n == 0:
            raise InputError(f"the selection must keep at least one of {len(self)} pairs, found none; widen it.")
        mu, new = self.mu if keep_mu else None, copy.copy(self)  # mu: of the pairs before the choice
        if masked:
            columns, new.stored = self._copied(rows, n)
        else:
            columns = {name: values[rows] for name, values in self._columns().items()}
            new.stored = self.stored.part(f"pairs {rows}") if self.stored is not None and sliced else None
        new.x, new.dx = columns["x"], columns["dx"]
        new.reward, new._codes, new.terminal = (columns.get(name) for name in COLUMNS)
        new.inputs = columns.get("inputs")
        new.dt = self.dt[:1].expand(n) if self.uniform_dt else columns["dt"]
        new.membership, new._mu = self.membership.take(rows), mu
        new.dropped = {r: self.dropped.get(r, 0) + reasons.get(r, 0) for r in {**self.dropped, **reasons}}
        new.dropped = {reason: count for reason, count in new.dropped.items() if count}
        return new

    def _copied(self, keep: NDArray[np.bool_], n: int) -> tuple[dict[str, Tensor], Entry | None]:
        """The n pairs of a mask, copied block by block: in memory, or to an entry on disk like that of these."""

        def write(sink: Sink) -> dict[str, Any]:
            for rows in self.blocks():
                for name, values in self._columns().items():
                    sink.append(name, values[rows].numpy()[keep[rows]])
            return {}

        entry = None
        if self.stored is None:
            columns = MemoryColumns(n)
            write(columns)
            parts = columns.arrays()
        else:
            entry = self.stored.derive({"kept": digest(keep)}, write)
            parts = entry.columns(self._columns(), n, self.dim)
        return {name: as_tensor(values) for name, values in parts.items()}, entry

    def in_units(self, length: float, time: float) -> Transitions:
        """The same pairs with x measured in units of `length` and dt in units of `time`; on disk if these are."""
        if length == 1.0 and time == 1.0:
            return self
        units = {"x": length, "dx": length, "dt": time}
        changes = {
            name: partial(torch.div, other=torch.tensor(unit, dtype=torch.float64)) for name, unit in units.items()
        }
        new, columns = self._changed(changes, {"length": length, "time": time})
        new.x, new.dx = columns["x"], columns["dx"]
        new.dt = (self.dt[:1] / time).expand(len(self)) if self.uniform_dt else columns["dt"]
        new._mu = None if self._mu is None else self._mu / (length if self.uniform_dt else length / time)
        return new

    def unwrapped(self, period: float | Sequence[float | None] | None) -> Transitions:
        """The same pairs, in coordinates that are angles wrapped into one period (`describe.seams`) with displacements
        taken the short way round; the same object if there are none.

        Example:
            >>> t = Transitions([6.2, 0.05, 6.25, 3.0], [-6.15, 6.2, -6.2, 0.1], 1.0)
            >>> [round(float(dx), 3) for dx in t.unwrapped(6.283).dx]
            [0.133, -0.083, 0.083, 0.1]
        """
        periods = [period] * self.dim if period is None or isinstance(period, (int, float)) else list(period)
        pairs = zip(self.x.reshape(len(self), -1).T, self.dx.reshape(len(self), -1).T, periods)
        wrapped = {k: p for k, (x, dx, p) in enumerate(pairs) if p is not None and seams(x.numpy(), dx.numpy(), p)}
        if not wrapped:
            return self

        def short_way(dx: Tensor) -> Tensor:
            rows = dx.reshape(len(dx), -1).clone()
            for axis, turn in wrapped.items():
                rows[:, axis] -= turn * (rows[:, axis] / turn).round()
            return rows.reshape(dx.shape)

        new, columns = self._changed({"dx": short_way}, {"unwrapped": {str(k): p for k, p in wrapped.items()}})
        new.dx, new._mu = columns["dx"], None
        return new

    def _changed(
        self, changes: Mapping[str, Callable[[Tensor], Tensor]], key: Mapping[str, Any]
    ) -> tuple[Self, dict[str, Tensor]]:
        """A copy, and its columns after the changes: in memory, or in an entry of that key on disk where these are."""
        new = copy.copy(self)
        if self.stored is None:
            own = self._columns()
            return new, {name: change(own[name]) for name, change in changes.items() if name in own}

        def write(sink: Sink) -> dict[str, Any]:
            for rows in self.blocks():
                for name, values in self._columns().items():
                    sink.append(name, changes.get(name, torch.Tensor.clone)(values[rows]).numpy())
            return {}

        new.stored = self.stored.derive(dict(key), write)
        found = new.stored.columns(self._columns(), len(self), self.dim)
        return new, {name: as_tensor(values) for name, values in found.items()}

    def with_inputs(self, inputs: Tensor) -> Transitions:
        """The same pairs, in memory, with covariates (n, m)."""
        new = copy.copy(self)
        new.inputs, new.stored = inputs, None
        return new

    @property
    def states(self) -> Tensor:
        """The arguments of the coefficients: x, or rows (x, covariates) if the pairs have covariates."""
        return self.x if self.inputs is None else torch.cat([self.x.reshape(len(self), -1), self.inputs], dim=1)

    def _columns(self) -> dict[str, Tensor]:
        """What there is one number (or state) of per pair."""
        columns = {"x": self.x, "dx": self.dx, "dt": None if self.uniform_dt else self.dt}
        columns |= {"reward": self.reward, "action": self._codes, "terminal": self.terminal, "inputs": self.inputs}
        return {name: values for name, values in columns.items() if values is not None}

    # --------------------------------------------------------------------------------------------------------- numbers

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return 1 if self.x.ndim == 1 else self.x.shape[1]

    @property
    def action(self) -> Tensor | NDArray[Any] | None:
        """(n,) the action held over each pair: a tensor of numbers, or an array of strings; None without actions."""
        if self._codes is None:
            return None
        if not self.actions:
            return self._codes  # continuous
        found = np.asarray(self.actions)[self.action_codes.numpy()]
        return found if found.dtype.kind == "U" else torch.from_numpy(found)

    @property
    def action_codes(self) -> Tensor:
        """(n,) int64, the place of each pair's action among `actions`."""
        if self._codes is None or not self.actions:
            raise InputError("the pairs must have labelled actions, found none; give action= where they are made.")
        return self._codes.to(torch.int64)

    @property
    def trajectory(self) -> Tensor:
        """(n,) int64, the trajectory of each pair."""
        return torch.from_numpy(self.membership.numbers())

    @property
    def n_trajectories(self) -> int:
        """Number of trajectories that have at least one pair here."""
        return len(self.membership.occurring())

    @property
    def mu(self) -> Tensor:
        """Median of dx (of dx / dt when dt varies), coordinate by coordinate, of the data before any removal."""
        if self._mu is None:
            medians = [self._center(column) for column in self.dx.reshape(len(self), -1).unbind(1)]
            self._mu = torch.tensor(medians[0] if self.dx.ndim == 1 else medians, dtype=torch.float64)
        return self._mu

    def _center(self, column: Tensor) -> float:
        if self.stored is None:
            values = column.numpy().copy() if self.uniform_dt else (column / self.dt).numpy()
            return float(np.median(values, overwrite_input=True))
        if self.uniform_dt:
            return median(cut(column.numpy()), len(self))
        return median(lambda: ((column[rows] / self.dt[rows]).numpy() for rows in self.blocks()), len(self))

    @property
    def median_dt(self) -> float:
        """Median of dt."""
        if self.uniform_dt:
            return float(self.dt[0])
        return median(cut(self.dt.numpy()), len(self))

    @property
    def deviation(self) -> Tensor:
        """|dx - mu| of every pair (|dx - mu dt| when dt varies); the Euclidean norm for d > 1."""
        return self.deviation_of(slice(0, len(self)))

    def beyond(self, threshold: Threshold, *, included: bool = False) -> Integers:
        """Ascending rows of the pairs with deviation > threshold (>= where `included`)."""
        compare = torch.ge if included else torch.gt
        space = torch.empty(min(BLOCK, len(self)), dtype=torch.float64)
        found = []  # per block, as 16-bit offsets: small enough not to matter beside the data
        for rows in self.blocks():
            deviation = self.deviation_of(rows, space[: rows.stop - rows.start])
            far = compare(deviation, threshold_at(threshold, self.dt[rows]))
            found.append(np.flatnonzero(far.numpy()).astype(np.uint16))
        starts = np.repeat(np.arange(len(found), dtype=np.int64) * BLOCK, [len(offsets) for offsets in found])
        return np.add(starts, np.concatenate(found), out=starts)

    def deviation_of(self, rows: slice, out: Tensor | None = None) -> Tensor:
        """The deviation of some rows; `out` (d = 1) saves an allocation per block."""
        if self.dim > 1:
            drift = self.mu if self.uniform_dt else self.mu * self.dt[rows, None]
            return torch.linalg.vector_norm(self.dx[rows] - drift, dim=1)
        drift = self.mu if self.uniform_dt else self.mu * self.dt[rows]
        return torch.sub(self.dx[rows], drift, out=out).abs_()

    def blocks(self) -> list[slice]:
        """Slices that cover all pairs, small enough for temporaries."""
        return [slice(i, min(i + BLOCK, len(self))) for i in range(0, len(self), BLOCK)]

    # ------------------------------------------------------------------------------------------------------- censoring

    def censor(
        self,
        TRT: Threshold | None = 20.0,
        CT: Threshold | None = 8.0,
        drop_tail: float = 0.5,
        seed: Any = 0,
    ) -> Transitions:
        """The paper's filtered data (section 4.1.2): pairs with |dx - mu| >= TRT are removed, then a random fraction
        `drop_tail` of those beyond CT. The paper drops half, with the number of trajectories as the seed.

        TRT = None removes nothing; TRT and CT may be functions of dt. What was removed is counted in `dropped`.
        """
        TRT, CT, drop_tail, seed = check_censoring(TRT, CT, drop_tail, seed, dt=self.dt)
        removed = dropped = np.empty(0, dtype=np.int64)
        if TRT is not None:
            removed = self.beyond(TRT, included=True)
        if drop_tail > 0:
            assert CT is not None
            tail = np.setdiff1d(self.beyond(CT), removed, assume_unique=True)
            dropped = tail[np.random.default_rng(seed).permutation(len(tail))[: round(drop_tail * len(tail))]]
        reasons = {"beyond TRT": len(removed), "tail dropped by censoring": len(dropped)}
        return self._without(np.concatenate([removed, dropped]), reasons)

    def _without(self, rows: Integers, reasons: Mapping[str, int]) -> Transitions:
        """All pairs but these."""
        if len(rows) == len(self):
            middle = median(lambda: (self.deviation_of(rows).numpy() for rows in self.blocks()), len(self))
            raise InputError(
                f"TRT must leave some of {len(self)} pairs, found none within it; the median deviation is "
                f"{middle:.6g}, so choose a TRT well above that."
            )
        keep = np.ones(len(self), dtype=bool)
        keep[rows] = False
        return self._take(keep, reasons)

    def lattice(self, **options: Any) -> Lattice:
        """All pairs as one weighted batch, made in one pass: see `Lattice.from_blocks` for the options."""
        from levytorch.data.lattice import Lattice

        return Lattice.from_transitions(self, **options)

    def quantiles_of_states(self, levels: Sequence[float], axis: int = 0) -> list[float]:
        """Quantiles of a coordinate of the states."""
        column = self.x if self.dim == 1 else self.x[:, axis]
        return quantiles(cut(column.numpy()), len(self), levels)

    def starting_in(self, bounds: Sequence[tuple[float, float]]) -> Self:
        """The pairs that start within these bounds, one (low, high) per coordinate."""
        keep = np.ones(len(self), dtype=bool)
        for rows in self.blocks():
            columns = self.x[rows].reshape(rows.stop - rows.start, -1).T
            for column, (low, high) in zip(columns.numpy(), bounds):
                keep[rows] &= (column >= low) & (column <= high)
        lost = len(self) - int(np.count_nonzero(keep))
        if lost == len(self):
            raise InputError(f"the window must hold states of the data, found none in {bounds}; choose it within them.")
        return self if not lost else self._take(torch.from_numpy(keep), {OUTSIDE: lost})

    def some_states(self, most: int) -> tuple[Tensor, Tensor]:
        """States spread evenly over the data, at most about `most`, and the weight of each."""
        x = self.x[:: max(1, len(self) // most)]
        return x, torch.ones(len(x))

    def describe(self) -> str:
        """A summary as text: counts, dt, quantiles of dx, and the numbers of dropped pairs by reason."""
        return describe(self)

    def __repr__(self) -> str:
        return f"Transitions({len(self)} pairs, {self.n_trajectories} trajectories, dim={self.dim})"
