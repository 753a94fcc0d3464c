"""Points -> transitions, block by block: which neighbours make a usable pair. Of trajectories, or of a file of which no
more than a block is held.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from levytorch.convert import Array, Integers
from levytorch.data.points import (
    COLUMNS,
    NeedsMemory,
    PointFile,
    Points,
    judge_motion,
    numbers_of,
    overlapping,
    steps_across,
    trajectory_of,
)
from levytorch.data.quantiles import median
from levytorch.data.store import Entry, MemoryColumns, Sink, Writer, as_tensor
from levytorch.data.transitions import Membership, Transitions
from levytorch.errors import InputError

if TYPE_CHECKING:
    from levytorch.data.trajectories import Trajectories

RESOLUTION = 1e-3  # largest spacing of x, in units of the central half-width of dx, that still resolves dx
_SAME_DT = 1e-6  # relative spread of dt below which sampling is called even
_LOOK_AT = 1_000_000  # pairs from which the width of dx is estimated
_BLOCK = 1 << 17  # points at a time


class Pairs(NamedTuple):
    """The pairs of a block of points, without those across a gap."""

    x: Array
    dx: Array
    dt: Array | None  # None: that of all
    columns: dict[str, Array]  # reward and action of the first point, terminal of the second
    first: Integers  # the number, among all points, of the one at which each begins
    gaps: Integers  # and of those before a gap

    def take(self, rows: NDArray[np.bool_]) -> Pairs:
        """Some of the pairs."""
        columns = {name: values[rows] for name, values in self.columns.items()}
        dt = None if self.dt is None else self.dt[rows]
        return Pairs(self.x[rows], self.dx[rows], dt, columns, self.first[rows], self.gaps)


def pairs_of(block: Points, offsets: Integers, max_dt: float | None) -> Pairs:
    """The pairs of neighbours in a block of points."""
    n = len(block.x) - 1
    usable = np.ones(n, dtype=bool)
    usable[steps_across(offsets, block.start, block.start + n)] = False
    with np.errstate(over="ignore"):
        dx = np.diff(block.x, axis=0)
    if n and not (np.isfinite(dx.min()) and np.isfinite(dx.max())):
        infinite = usable & ~np.isfinite(dx.reshape(n, -1)).all(axis=1)
        if infinite.any():
            x = block.x[int(np.argmax(infinite))].tolist()
            raise InputError(f"the steps of x must stay within float64, found an infinite one from x = {x}; rescale x.")
    dt, gaps = None, np.empty(0, dtype=np.int64)
    if block.times is not None:
        dt = np.diff(block.times)
        if max_dt is not None:
            across = usable & is_gap(dt, max_dt)
            gaps = block.start + np.flatnonzero(across)
            usable &= ~across
    rows = np.flatnonzero(usable)
    if len(rows) < n:
        dx, dt = dx[rows], None if dt is None else dt[rows]
    at = {"terminal": rows + 1}
    columns = {name: np.asarray(values[at.get(name, rows)]) for name, values in block.columns.items()}
    return Pairs(np.asarray(block.x[rows]), dx, dt, columns, block.start + rows, gaps)


def pair_up(t: Trajectories, max_dt: float | None) -> Transitions:
    """All neighbours but those across a gap and those that float64 cannot resolve; both are counted.

    The pairs of points that are on disk are written to an entry of their own.
    """
    check_max_dt(t.dt, max_dt)
    entry = None
    if t.stored is None:
        columns = MemoryColumns(len(t.x) - len(t))
        counts = _write_pairs(t, max_dt, columns)
        parts = columns.arrays()
    else:
        entry = t.stored.derive({"pairs": max_dt}, lambda writer: _keep_pairs(t, max_dt, writer))
        counts, parts = _kept_pairs(t, entry)
    pairs_in_all = int((t.lengths - 1).sum())
    gaps = pairs_in_all - int(counts.sum())
    dropped = {**t.dropped, "across a gap": gaps} if gaps else t.dropped
    if not counts.any():
        raise none_left(pairs_in_all, dropped)
    x, dx = parts["x"], parts["dx"]
    given = float(t.dt) if t.dt is not None else as_tensor(parts["dt"])
    beside = {name: as_tensor(parts[name]) for name in COLUMNS if name in parts}
    facts: dict[str, Any] = {"actions": t.actions, "dropped": dropped, "stored": entry}
    pairs = Transitions._build(as_tensor(x), as_tensor(dx), given, Membership(counts), **beside, **facts)
    limit = float_limit(dx)
    if max(-float(x.min()), float(x.max())) >= limit:
        near = np.concatenate([within_resolution(x[low : low + _BLOCK], limit) for low in range(0, len(x), _BLOCK)])
        far = {"beyond float resolution": int((~near).sum())}
        if not near.any():
            raise none_left(pairs_in_all, {**dropped, **far})
        # what is left out here was never a usable pair, so mu is that of the pairs that remain
        pairs = pairs._take(torch.from_numpy(near), far, keep_mu=False)
    if t.times is not None:
        dt, latest = pairs.dt.numpy(), max(-float(t.times.min()), float(t.times.max()))
        single = single_dt(float(dt.min()), float(dt.max()), float(dt.mean()), latest)
        pairs = pairs if single is None else pairs._with_dt(single)
    return pairs


def _write_pairs(t: Trajectories, max_dt: float | None, sink: Sink) -> Integers:
    """All pairs into columns; how many each trajectory has."""
    counts = t.lengths - 1
    for block in t.blocks(_BLOCK):
        pairs = pairs_of(block, t.offsets, max_dt)
        for name, values in {"x": pairs.x, "dx": pairs.dx, "dt": pairs.dt, **pairs.columns}.items():
            if values is not None and len(values):
                sink.append(name, values)
        if len(pairs.gaps):
            np.subtract.at(counts, trajectory_of(pairs.gaps, t.offsets), 1)
    return counts


def _keep_pairs(t: Trajectories, max_dt: float | None, writer: Writer) -> dict[str, Any]:
    writer.append("counts", _write_pairs(t, max_dt, writer))
    return {}


def _kept_pairs(t: Trajectories, entry: Entry) -> tuple[Integers, dict[str, NDArray[Any]]]:
    """What _keep_pairs wrote; its numbers are those of the points, but their shapes must go together."""
    counts = np.array(entry.array("counts"))
    rows = len(entry.array("x")) if "x" in entry else 0
    sound = counts.shape == t.lengths.shape and counts.dtype == np.int64
    if not sound or (counts < 0).any() or (counts >= t.lengths).any() or counts.sum() != rows:
        raise entry.spoiled(f"counts that do not add up to the {rows} pairs")
    names = ["x", "dx", *(["dt"] if t.times is not None else []), *t.columns]
    return counts, entry.columns(names if rows else (), rows, t.dim)


def check_max_dt(dt: float | None, max_dt: float | None) -> None:
    if dt is not None and max_dt is not None and dt > max_dt:
        raise InputError(f"max_dt must not be below dt, found max_dt = {max_dt:g} and dt = {dt:g}; raise it.")


def none_left(n: int, dropped: dict[str, int]) -> InputError:
    reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
    return InputError(f"at least one pair must remain, found none of {n} ({reasons}); raise max_dt, or check the data.")


def is_gap(dt: Array, max_dt: float | None) -> NDArray[np.bool_]:
    """Which steps are longer than max_dt; differences of times carry rounding errors, which make no gap."""
    return ~(dt <= (math.inf if max_dt is None else max_dt * (1 + 1e-9)))


def first_points(t: Trajectories, pairs: Transitions) -> Integers:
    """The number of the point, among all points of the trajectories, at which each of their pairs begins."""
    found = [pairs_of(block, t.offsets, t.max_dt).first for block in t.blocks(_BLOCK)]
    numbers = np.concatenate(found)
    if len(numbers) != len(pairs):
        raise InputError(
            f"these trajectories must have {len(numbers)} pairs, found {len(pairs)}: some lie beyond float resolution; "
            "leave those trajectories out."
        )
    return numbers


def looked_at(n: int) -> int:
    """Every how many-th of n pairs the width of dx is estimated from."""
    return max(1, n // _LOOK_AT)


def float_limit(dx: Array, every: int | None = None) -> float:
    """|x| from which neighbouring floats are further apart than RESOLUTION times half the interquartile range of dx.

    Where half of all moves are zero (prices), the median of the others stands in for the range. Infinite if nothing
    moves.
    """
    some = dx[:: every or looked_at(len(dx))].reshape(-1, 1 if dx.ndim == 1 else dx.shape[1])
    widths = []
    for column in some.T:
        low, high = np.quantile(column, [0.25, 0.75])
        moves = np.abs(column[column != 0])
        widths.append(float((high - low) / 2 or (np.median(moves) if len(moves) else 0.0)))
    width = min(widths)
    if width == 0.0:
        return math.inf
    # spacing(x) = 2^(e - 52) for 2^e <= |x| < 2^(e + 1)
    return 2.0 ** min(1023, math.floor(math.log2(RESOLUTION * width)) + 1 + 52)


def within_resolution(x: Array, limit: float) -> NDArray[np.bool_]:
    """Which states lie below a limit in every coordinate."""
    return np.asarray(np.abs(x.reshape(len(x), -1)).max(axis=1) < limit)


def single_dt(low: float, high: float, mean: float, latest: float) -> float | None:
    """The dt of steps between low and high if they are one but for rounding of the times (up to `latest`), or None.

    Times like 0.05 k carry rounding errors; their mean is rounded to 12 digits where that stays within these errors.
    """
    rounding = 4 * float(np.spacing(latest))
    if high - low > max(_SAME_DT * low, rounding):
        return None
    rounded = float(f"{mean:.12g}")
    return rounded if abs(rounded - mean) <= rounding else mean


# --------------------------------------------------------------------------------------------- the pairs of a file


class TransitionBlocks:
    """The pairs of a file, for code that needs each only once; see `transition_blocks`.

    Attributes:
        dropped: how many pairs were left out, by reason.
        n_trajectories: how many trajectories the file has.
        dt: that of all pairs, or None where it varies.
        ids: the names of the trajectories, or None.
    """

    def __init__(self, file: PointFile, block: int, whole: Callable[[], Trajectories]) -> None:
        """whole: reads the file if that cannot be done in blocks."""
        self.block, self._file = block, file
        self._all: Transitions | None = None  # what could not be read in blocks
        self._limit = math.inf
        try:
            file.open(whole=False)
            self._max_dt = file.max_dt
            file.survey()
        except NeedsMemory:
            paths = whole()
            self.ids: Any = paths.ids
            t = self._all = paths.transitions()
            self.n_trajectories, self.dropped, self._pairs = len(paths), t.dropped, len(t)
            self.dt = float(t.dt[0]) if t.uniform_dt else None
            return
        self._offsets, self.dt, self.ids = file.offsets, file.dt, file.ids
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
        dropped = self.dropped
        for t in self._transitions() if self._all is None else [self._all]:
            for low in range(0, len(t), self.block):
                part = t._take(slice(low, low + self.block), {}, keep_mu=False)
                part.dropped, dropped = dropped, {}
                yield part

    # ----------------------------------------------------------------------------------------------------------- passes

    def _transitions(self) -> Iterator[Transitions]:
        """Those of each block of the file."""
        for _, pairs in self._passes():
            dt = self.dt if pairs.dt is None or self.dt is not None else torch.from_numpy(pairs.dt)
            assert dt is not None
            membership = Membership(ids=trajectory_of(pairs.first, self._offsets))
            columns = {name: torch.from_numpy(values) for name, values in pairs.columns.items()}
            yield Transitions._build(torch.from_numpy(pairs.x), torch.from_numpy(pairs.dx), dt, membership, **columns)

    def _passes(self) -> Iterator[tuple[Points, Pairs]]:
        """The points, and the pairs of them that are left."""
        for points in overlapping(self._file.points()):
            pairs = pairs_of(points, self._offsets, self._max_dt)
            if self._limit < math.inf:
                pairs = pairs.take(within_resolution(pairs.x, self._limit))
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
