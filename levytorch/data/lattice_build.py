"""One pass over pairs: which sheet, block and pool each belongs to, and the sums that become a lattice."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from levytorch.convert import Array, Integers
from levytorch.data.batches import MOST_DT
from levytorch.data.lattice_grid import SPARE, Grid, NodeMap, accumulate, empty_sums, fold, node_map
from levytorch.data.lattice_tables import Loose, SparseRows, added, node_key
from levytorch.data.quantiles import cut
from levytorch.data.thresholds import Threshold, threshold_at
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError
from levytorch.law.threads import in_blocks

SAME_DT = 1e-6  # relative difference of steps that are one
_TASK = 1 << 19  # pairs of one task: what is computed does not depend on the number of threads
_HELD = 1 << 20  # pairs that wait for others before they are summed
_PENDING = 48 << 20  # bytes of sums that wait for being added up
_MOST_BINS = 2.0**61


class Settings(NamedTuple):
    """What pairs are sorted by; thresholds are distances from mu (from mu dt when dt varies)."""

    n_blocks: int
    mu: float
    mu_is_rate: bool
    CT: Threshold | None
    TRT: Threshold | None
    reach: float

    def center(self, dt: float) -> float:
        """Where thresholds are measured from."""
        return self.mu * dt if self.mu_is_rate else self.mu

    def at(self, threshold: Threshold | None, dt: float) -> float:
        """A threshold at one dt; infinite where there is none."""
        if threshold is None:
            return math.inf
        return float(threshold_at(threshold, torch.tensor([dt], dtype=torch.float64)))


def check_piece(piece: Any) -> None:
    """Refuse what a lattice cannot be made of."""
    if not isinstance(piece, Transitions):
        raise InputError(
            f"a lattice must be made of Transitions, found {type(piece).__name__}; call .transitions() on Trajectories."
        )
    if piece.dim != 1:
        raise InputError(
            f"a lattice must be made of one-dimensional data, found {piece.dim} coordinates; use the samples instead."
        )


class Piece(NamedTuple):
    """Pairs that wait for their turn."""

    x: Array
    dx: Array
    active: list[int]  # sheets that occur
    sheets: NDArray[np.uint8]  # that of each pair; empty where there is one


class Segment(NamedTuple):
    """Runs of rows of one piece."""

    piece: Piece
    starts: Integers
    stops: Integers
    size: int


Task = tuple[int, list[Segment]]  # of one block
KeyedSums = list[tuple[Integers, Array]]  # where, ascending, and how much


class TaskSums(NamedTuple):
    """What the pairs of one task add to a sheet: nodes and counts of states per pool, and pairs on no node."""

    sheet: int
    nodes: KeyedSums
    states: Integers
    removed: int
    x: Array
    dx: Array


class Builder:
    """Sums over pairs that come in any number of pieces."""

    def __init__(
        self, grid: Grid, settings: Settings, states: tuple[float, float], dt: Sequence[float] | None = None
    ) -> None:
        """states: on a line, the range of those that are put on nodes; dt: the only time steps there may be."""
        self.grid, self.settings = grid, settings
        self.dt, self.fixed_dt = list(dt or []), dt is not None
        self.pools = 1 if settings.CT is None else 2
        self.first, self.n_x = _columns(grid, states)
        self.removed = 0
        self.x_range = (math.inf, -math.inf)
        self.dropped: dict[str, int] = {}
        self._nodes: dict[tuple[int, int, int], KeyedSums] = defaultdict(list)
        self._states: dict[tuple[int, int, int], KeyedSums] = defaultdict(list)
        self._loose: list[tuple[int, int, Array, Array]] = []
        self._pending = 0
        self._waiting: list[list[Segment]] = [[] for _ in range(settings.n_blocks)]
        self._pairs = 0

    def add(self, transitions: Transitions) -> None:
        """Pairs of one piece."""
        check_piece(transitions)
        x, dx = transitions.x.contiguous().numpy(), transitions.dx.contiguous().numpy()
        piece = Piece(x, dx, *self._sheets(transitions))
        for waiting, runs in zip(self._waiting, transitions.membership.runs_by_block(self.settings.n_blocks)):
            waiting.extend(_segments(piece, *runs))
        self._pairs += len(x)
        self.x_range = (min(self.x_range[0], float(x.min())), max(self.x_range[1], float(x.max())))
        for reason, count in transitions.dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count
        if self._pairs >= _HELD:
            self._flush()

    def finish(self) -> dict[str, Any]:
        """The fields of the lattice; dt of the sheets ascend."""
        order = sorted(range(len(self.dt)), key=lambda k: self.dt[k])
        blocks = self.settings.n_blocks
        rows = [(pool, sheet, block) for pool in range(self.pools) for sheet in order for block in range(blocks)]
        number = {row: i for i, row in enumerate(rows)}
        self._flush()
        self._consolidate()
        nodes = SparseRows.of([self._keys(self._nodes.get(row, [])) for row in rows])
        states = SparseRows.of([added(self._states.get(row, [])) for row in rows])
        loose = [(np.empty(0), np.empty(0), np.empty(0, dtype=np.int64))]
        for block, sheet, x, dx in self._loose:
            rows_of_pools = np.array([number[pool, sheet, block] for pool in range(self.pools)])
            loose.append((x, dx, rows_of_pools[self._pool(dx, sheet)]))
        dropped = dict(self.dropped)
        if self.removed:
            dropped["beyond TRT"] = dropped.get("beyond TRT", 0) + self.removed
        dt, used = np.array([self.dt[k] for k in order]), self.settings
        CT, TRT = (np.array([used.at(limit, v) for v in dt.tolist()]) for limit in (used.CT, used.TRT))
        fields = {
            "grid": self.grid,
            "dt": dt,
            "weights": nodes,
            "states": states,
            "loose": Loose(*map(np.concatenate, zip(*loose))),
        }
        return fields | {**used._asdict(), "CT": CT, "TRT": TRT, "dropped": dropped, "x_range": self.x_range}

    # -- private ------------------------------------------------------------------------------------------------------
    def _flush(self) -> None:
        """Sum what waits; a tile per block costs as much as some thousand pairs, so that small pieces go together."""
        tasks = [task for block, waiting in enumerate(self._waiting) for task in _tasks(block, waiting)]
        maps = [self._node_map(dt) for dt in self.dt]

        def work(low: int, high: int) -> list[list[TaskSums]]:
            return [self._task(task, maps) for task in tasks[low:high]]

        results = [result for part in in_blocks(work, len(tasks), grain=1) for result in part] if tasks else []
        for (block, _), result in zip(tasks, results):
            for found in result:
                self._take(block, found)
        self._waiting, self._pairs = [[] for _ in self._waiting], 0

    def _sheets(self, transitions: Transitions) -> tuple[list[int], NDArray[np.uint8]]:
        """Sheets that occur, and that of each pair (empty where there is one)."""
        if transitions.uniform_dt:
            return [self._sheet(float(transitions.dt[0]))], np.empty(0, dtype=np.uint8)
        blocks = cut(transitions.dt.numpy())
        distinct = np.empty(0)
        for block in blocks():
            distinct = _thinned(np.unique(np.concatenate([distinct, block])))
            if len(distinct) > MOST_DT:
                break
        numbers = np.array([self._sheet(float(dt)) for dt in distinct], dtype=np.uint8)
        if len(set(numbers.tolist())) == 1:
            return [int(numbers[0])], np.empty(0, dtype=np.uint8)
        edges = 0.5 * (distinct[1:] + distinct[:-1])
        return sorted(set(numbers.tolist())), np.concatenate([numbers[np.searchsorted(edges, b)] for b in blocks()])

    def _sheet(self, dt: float) -> int:
        for number, held in enumerate(self.dt):
            if abs(dt - held) <= SAME_DT * held:
                return number
        if self.fixed_dt:
            raise InputError(
                f"dt must be that of the lattice of like=..., {', '.join(f'{v:g}' for v in self.dt)}, found {dt:g}; "
                "make a lattice of its own."
            )
        if len(self.dt) == MOST_DT:
            raise InputError(
                f"a lattice must have at most {MOST_DT} distinct dt, found a further one, {dt:g}; use the samples "
                "themselves, or resample them evenly."
            )
        self.dt.append(dt)
        return len(self.dt) - 1

    def _node_map(self, dt: float) -> NodeMap:
        settings = self.settings
        thresholds = settings.center(dt), settings.at(settings.CT, dt), settings.at(settings.TRT, dt), settings.reach
        return node_map(self.grid, dt, self.first, self.n_x, *thresholds)

    def _task(self, task: Task, maps: list[NodeMap]) -> list[TaskSums]:
        out: list[TaskSums] = []
        for sheet in sorted({sheet for segment in task[1] for sheet in segment.piece.active}):
            sums = empty_sums(maps[sheet], self.pools)
            loose = [(np.empty(0), np.empty(0))]
            for (x, dx, active, sheets), starts, stops, _ in task[1]:
                if sheet in active:
                    rows = accumulate(starts, stops, x, dx, sheets, sheet, maps[sheet], sums)
                    loose.append((x[rows], dx[rows]))
            tile = fold(sums.tile) if self.grid.n_x else sums.tile
            nodes = [(used, part[used]) for part in tile.reshape(self.pools, -1) for used in [np.flatnonzero(part)]]
            x, dx = (np.concatenate(part) for part in zip(*loose))
            out.append(TaskSums(sheet, nodes, sums.states, int(sums.removed[0]), x, dx))
        return out

    def _take(self, block: int, found: TaskSums) -> None:
        """What one task found."""
        sheet, self.removed = found.sheet, self.removed + found.removed
        for pool, (used, values) in enumerate(found.nodes):
            self._nodes[pool, sheet, block].append((used, values))
            self._pending += used.nbytes + values.nbytes
            bins = np.flatnonzero(found.states[pool])
            counts = found.states[pool, bins].astype(np.float64)
            self._states[pool, sheet, block].append((bins + self.first * self.grid.bins_per_node, counts))
        if len(found.x):
            self._loose.append((block, sheet, found.x, found.dx))
            if not self.grid.n_x:
                self._count_outside(block, sheet, found.x, found.dx)
        if self._pending > _PENDING:
            self._consolidate()

    def _count_outside(self, block: int, sheet: int, x: Array, dx: Array) -> None:
        """States of loose pairs that have no bin in the tile of a line."""
        u = x / self.grid.spacing - self.first
        outside = (u < 0) | (u > self.n_x)
        number = np.floor(np.clip(x / self.grid.spacing * self.grid.bins_per_node, -_MOST_BINS, _MOST_BINS))
        for pool in range(self.pools):
            bins, counts = np.unique(
                number[outside & (self._pool(dx, sheet) == pool)].astype(np.int64), return_counts=True
            )
            self._states[pool, sheet, block].append((bins, counts.astype(np.float64)))

    def _pool(self, dx: Array, sheet: int) -> Integers:
        dt = self.dt[sheet]
        far = np.abs(dx - self.settings.center(dt)) > self.settings.at(self.settings.CT, dt)
        return np.asarray(far, dtype=np.int64)

    def _consolidate(self) -> None:
        """Add up what waits, each group in the order in which it came."""
        rows = 2 * (self.grid.last + SPARE) + 1
        scratch = np.zeros(rows * (self.n_x if self.grid.n_x else self.n_x + 2 * SPARE))
        for parts in self._nodes.values():
            if len(parts) < 2:
                continue
            for used, values in parts:
                scratch[used] += values
            used = np.flatnonzero(scratch)
            parts[:] = [(used, scratch[used])]
            scratch[:] = 0.0
        for key, parts in self._states.items():
            self._states[key] = [added(parts)]
        self._pending = 0

    def _keys(self, parts: KeyedSums) -> tuple[Integers, Array]:
        """Numbers in the tile as keys of nodes."""
        if not parts:
            return np.empty(0, dtype=np.int64), np.empty(0)
        used, values = parts[0]
        on_line = not self.grid.n_x
        columns = self.n_x + 2 * SPARE * on_line
        row, column = np.divmod(used, columns)
        return node_key(column + self.first - SPARE * on_line, row - self.grid.last - SPARE), values


def _columns(grid: Grid, states: tuple[float, float]) -> tuple[int, int]:
    """First node and number of nodes of the tile; on a line it covers a range of states."""
    if grid.n_x:
        return 0, grid.n_x
    low, high = (math.floor(v / grid.spacing) for v in states)
    return low, high + 1 - low


def _thinned(ordered: Array) -> Array:
    """Ascending numbers without those that are the same as one before; no more than say that there are too many."""
    kept: list[float] = []
    at = 0
    while at < len(ordered) and len(kept) <= MOST_DT:
        kept.append(float(ordered[at]))
        at = int(np.searchsorted(ordered, ordered[at] * (1.0 + SAME_DT), side="right"))
    return np.array(kept)


def _segments(piece: Piece, starts: Integers, stops: Integers) -> Iterator[Segment]:
    """Runs of rows, cut into segments of at most about the size of a task."""
    lengths = stops - starts
    if len(lengths) and lengths.max() > _TASK:
        pieces = -(-lengths // _TASK)
        number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        starts = np.repeat(starts, pieces) + number * _TASK
        stops = np.minimum(starts + _TASK, np.repeat(stops, pieces))
        lengths = stops - starts
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    parts = max(1, -(-total // _TASK))
    edges = np.searchsorted(ends, [total * k // parts for k in range(1, parts)], side="left") + 1
    for low, high in pairwise([0, *edges.tolist(), len(starts)]):
        if high > low:
            yield Segment(piece, starts[low:high], stops[low:high], int(lengths[low:high].sum()))


def _tasks(block: int, waiting: list[Segment]) -> Iterator[Task]:
    """Segments of one block in their order, together about the size of a task."""
    together: list[Segment] = []
    for segment in waiting:
        if together and sum(s.size for s in together) + segment.size > _TASK:
            yield block, together
            together = []
        together.append(segment)
    if together:
        yield block, together
