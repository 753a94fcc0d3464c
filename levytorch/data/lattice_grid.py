"""The nodes of a lattice, and pairs onto them.

x is uniform, dx stretched, both from ladders on which lattices made elsewhere meet.

In dx the node of number j lies at center + scale sinh(t), where t solves

    j = t / FAR + density tanh(t),        that is    j = asinh(w) / FAR + density w / sqrt(1 + w^2),  w = sinh(t):

`density` nodes more per side in the center, where a Gaussian turns into a power law, and steps of FAR in log |dx| in
the tail, which is smooth on that scale: some 300 nodes reach from -1e10 to 1e10. scale(dt) is a power of two close to
width sqrt(dt), the center a multiple of the scale.

Added up are the weights with which Lagrange interpolation takes log p(x, dx) from the nodes around.
The tile of nodes has a row per node in dx and a column per node in x, with three spare ones at each
end: around a cell the stencil sticks out, and is folded back at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from levytorch.convert import Array, Integers, positive_number, whole_number
from levytorch.data.transitions import Membership, Transitions
from levytorch.errors import InputError
from levytorch.law.compiled import cached_njit
from levytorch.law.vector_math import fast_log, inlined

FAR = 0.25  # step in log |dx| of the far tail
FARTHEST = 44  # jumps up to 2^44 scales are put on nodes; beyond, pairs are kept as they are
NODES_PER_CELL = 128
ORDERS = (4, 6)
LOOK = 1 << 16  # pairs from which a grid is chosen
_SCALE_PER_WIDTH = 3.5  # of the widest law: its bend from Gaussian to power law lies well inside
_STEP_PER_WIDTH = 0.12  # of the narrowest law: distance of the central nodes
_DENSITIES = tuple(sorted([2**k for k in range(5, 11)] + [3 * 2**k for k in range(4, 9)]))  # 32, 48, 64, ... 1024
_GROUPS = 16  # groups of states whose widths are compared
_FEWEST = 64  # pairs of a group that say how wide it is
_FAR_AWAY = 8  # times the central range, beyond which states of a line are kept as they are
_GAUSS_IQR = 1.3489795003921634
SPARE = 3  # columns before and after the tile; rows too
_BLOCK = 256  # pairs whose nodes are computed together, in loops that LLVM can vectorise
_LOOSE = 1 << 14  # row numbers of loose pairs that are handed back at a time


class Sheet(NamedTuple):
    """The nodes in dx of one dt."""

    center: float
    scale: float


@dataclass(frozen=True)
class Grid:
    """Which nodes there are; lattices of equal grids add.

    Attributes:
        period: of the state; None: a line.
        origin: where the cell begins (0 on a line).
        spacing: of the nodes in x: period over a power of two, or a power of two whose multiples the nodes are.
        order: points of the interpolation, in x and in dx.
        width: scale(dt)^2 / dt as an exponent of two.
        drift: center(dt) / dt before it is rounded to a multiple of the scale.
        density: additional nodes in the center, per side.
    """

    period: float | None
    origin: float
    spacing: float
    order: int
    width: int
    drift: float
    density: int

    @property
    def n_x(self) -> int:
        """Nodes per cell; 0 on a line."""
        return 0 if self.period is None else round(self.period / self.spacing)

    @property
    def bins_per_node(self) -> int:
        """Bins in which states are counted, per node: 512 per cell or more."""
        return 2 if self.period is None else max(1, 512 // self.n_x)

    @property
    def last(self) -> int:
        """Number of the farthest node in dx, on either side."""
        return math.ceil((FARTHEST + 1) * math.log(2.0) / FAR) + self.density

    def sheet(self, dt: float) -> Sheet:
        """Center and scale of the nodes of one dt."""
        scale = 2.0 ** round(0.5 * (self.width + math.log2(dt)))
        return Sheet(scale * round(self.drift * dt / scale), scale)

    def x(self, number: Integers) -> Array:
        """States of numbered nodes."""
        return np.asarray(self.origin + self.spacing * number, dtype=np.float64)

    def dx(self, number: Integers, dt: float) -> Array:
        """Displacements of numbered nodes."""
        center, scale = self.sheet(dt)
        offsets = _offsets(self.density, self.last + 3)
        return np.asarray(center + scale * np.sign(number) * offsets[np.abs(number)])


@dataclass(frozen=True)
class GridInUnits(Grid):
    """The nodes of another grid with x measured in units of `length` and dt in units of `time`.

    dt: the time steps of the other grid that there are, each with nodes of its own.
    """

    own: Grid | None = None
    length: float = 1.0
    time: float = 1.0
    dt: tuple[float, ...] = ()

    @classmethod
    def of(cls, grid: Grid, length: float, time: float, dt: Sequence[float]) -> GridInUnits:
        """The grid in other units."""
        period = None if grid.period is None else grid.period / length
        same = grid.order, grid.width, grid.drift, grid.density
        return cls(period, grid.origin / length, grid.spacing / length, *same, grid, length, time, tuple(dt))

    def sheet(self, dt: float) -> Sheet:
        assert self.own is not None
        center, scale = self.own.sheet(min(self.dt, key=lambda own: abs(own - dt * self.time)))
        return Sheet(center / self.length, scale / self.length)


@lru_cache(maxsize=16)
def _offsets(density: int, last: int) -> Array:
    """sinh(t_j), j = 0 ... last: Newton's method from the left of a concave function, which never overshoots."""
    number = np.arange(last + 1, dtype=np.float64)
    t = np.maximum(number / (density + 1.0 / FAR), (number - density) * FAR)
    for _ in range(60):
        t += (number - t / FAR - density * np.tanh(t)) / (1.0 / FAR + density / np.cosh(t) ** 2)
    return np.sinh(t)


def look(transitions: Transitions) -> Transitions:
    """Some pairs, evenly spread over all; mu is their own."""
    some = slice(None, None, max(1, len(transitions) // LOOK))
    x, dx, dt = (v[some] for v in (transitions.x, transitions.dx, transitions.dt))
    step = float(dt[0]) if transitions.uniform_dt else dt
    return Transitions._build(x, dx, step, Membership(np.array([len(x)])))


def choose_grid(
    some: Transitions,
    *,
    period: float | None = 2 * math.pi,
    origin: float = 0.0,
    order: int = 6,
    n_x: int = NODES_PER_CELL,
) -> Grid:
    """A grid for data of which these are `some` pairs; the same pairs always give the same grid.

    The nodes in dx follow from the widths of dx in groups of states: the center of the narrowest is resolved, and the
    shoulders of the widest.

    Args:
        period: of the state; None: a line.
        order: 6 or 4 points of the interpolation.
        n_x: nodes per cell, a power of two; on a line about as many over the central 98 % of the states.
    """
    if order not in ORDERS:
        raise InputError(f"order must be one of {', '.join(map(str, ORDERS))}, found {order!r}; choose one of these.")
    n_x = whole_number("n_x", n_x, 8, 1 << 14)
    if n_x & (n_x - 1):
        raise InputError(f"n_x must be a power of two, found {n_x}; pass {1 << n_x.bit_length()}.")
    x, dt = some.x.numpy(), some.dt.numpy()
    dt_ref = some.median_dt
    rate = float(np.median(some.dx.numpy() / dt))
    deviation = (some.dx.numpy() - rate * dt) * np.sqrt(dt_ref / dt)
    if period is None:
        origin = 0.0
        low, high = _central(x)
        spacing = 2.0 ** round(math.log2((high - low) / n_x))
        group = np.searchsorted(np.quantile(x, np.linspace(0, 1, _GROUPS + 1)[1:-1]), x)
    else:
        period = positive_number("period", period, "pass the length of the cell, or None for a line")
        spacing = period / n_x
        group = np.minimum((np.remainder(x - origin, period) * (_GROUPS / period)).astype(np.int64), _GROUPS - 1)
    narrow, wide = _widths(deviation, group)
    exponent = round(math.log2(_SCALE_PER_WIDTH * wide))
    wanted = 2.0**exponent / (_STEP_PER_WIDTH * narrow) - 1.0 / FAR
    density = next((d for d in _DENSITIES if d >= wanted), _DENSITIES[-1])
    drift = 2.0**exponent * round(rate * dt_ref / 2.0**exponent) / dt_ref
    return Grid(period, origin, spacing, order, round(2 * exponent - math.log2(dt_ref)), drift, density)


def window(some: Transitions) -> tuple[float, float]:
    """On a line, the range of states that are put on nodes: all of these, but for those that jumped far away."""
    x = some.x.numpy()
    low, high = _central(x)
    reach = _FAR_AWAY * (high - low)
    return max(float(x.min()), low - reach), min(float(x.max()), high + reach)


def _central(x: Array) -> tuple[float, float]:
    """Where 98 % of the states lie; not of length zero."""
    low, high = map(float, np.quantile(x, [0.01, 0.99]))
    half = 0.5 * max(1.0, abs(high)) if low == high else 0.0
    return low - half, high + half


def _widths(deviation: Array, group: Integers) -> tuple[float, float]:
    """Standard deviations of Gaussians with the interquartile ranges of the groups: the smallest and the largest."""
    widths = []
    for k in range(_GROUPS):
        mine = deviation[group == k]
        if len(mine) >= _FEWEST:
            low, high = np.quantile(mine, [0.25, 0.75])
            widths.append(float(high - low) / _GAUSS_IQR)
    low, high = np.quantile(deviation, [0.25, 0.75])
    found = [w for w in widths or [float(high - low) / _GAUSS_IQR] if w > 0]
    if not found:  # most pairs do not move: the smallest of those that do sets the scale
        moved = np.abs(deviation[deviation != 0])
        found = [float(moved.min())] if len(moved) else [1.0]
    # the range of exponents in which scales, their squares and the farthest nodes stay finite numbers
    narrow, wide = (min(max(w, 2.0**-300), 2.0**300) for w in (min(found), max(found)))
    return narrow, wide


# ------------------------------------------------------------------------------------------------ pairs onto nodes


class NodeMap(NamedTuple):
    """On which nodes pairs of one dt fall; plain numbers, for compiled code."""

    origin: float  # of the cell; on a line: of the tile
    period: float  # 0 on a line
    n_x: int  # columns without the spare ones
    per_x: float  # nodes per unit of x
    bins: int  # bins of states per column
    center: float  # of the nodes in dx
    per_dx: float  # 1 / scale
    density: float
    last: int  # rows reach from -last to last
    order: int
    mu: float  # thresholds are distances from it
    CT: float
    TRT: float
    reach: float


def node_map(grid: Grid, dt: float, first: int, n_x: int, mu: float, CT: float, TRT: float, reach: float) -> NodeMap:
    """That of a tile whose n_x columns begin at node `first`."""
    center, scale = grid.sheet(dt)
    begin = grid.origin if grid.n_x else grid.spacing * first
    return NodeMap(
        *(begin, grid.period or 0.0, n_x, 1.0 / grid.spacing, grid.bins_per_node, center, 1.0 / scale),
        *(float(grid.density), grid.last, grid.order, mu, CT, TRT, reach),
    )


class Sums(NamedTuple):
    """What pairs are added to: two of each, for the core and the tail."""

    tile: Array  # (2, rows, columns)
    states: Integers  # (2, bins)
    removed: Integers  # (1,) pairs at or beyond TRT


def empty_sums(nodes: NodeMap, pools: int) -> Sums:
    """Zeros for the pairs of some pools."""
    tile = np.zeros((pools, 2 * (nodes.last + SPARE) + 1, nodes.n_x + 2 * SPARE))
    return Sums(tile, np.zeros((pools, nodes.n_x * nodes.bins), dtype=np.int64), np.zeros(1, dtype=np.int64))


def accumulate(
    starts: Integers,
    stops: Integers,
    x: Array,
    dx: Array,
    sheets: NDArray[np.uint8],
    sheet: int,
    nodes: NodeMap,
    sums: Sums,
) -> Integers:
    """Add the pairs of some runs of rows (of one sheet, where `sheets` is not empty); rows that fit on no node.

    These loose pairs are counted in `states` where their x has a bin, which on a line not all have.
    """
    found = [np.empty(0, dtype=np.int64)]
    loose = np.empty(_LOOSE + _BLOCK, dtype=np.int64)
    run, row = 0, int(starts[0]) if len(starts) else 0
    while run < len(starts):
        run, row, count = scatter(run, row, starts, stops, x, dx, sheets, sheet, tuple(nodes), *sums, loose)
        found.append(loose[:count].copy())
    return np.concatenate(found)


def fold(tile: Array) -> Array:
    """A tile around a cell without its spare columns, whose weights belong to the other end."""
    inner = tile[:, :, SPARE:-SPARE].copy()
    n = inner.shape[2]
    for k in range(SPARE):
        inner[:, :, (k - SPARE) % n] += tile[:, :, k]
        inner[:, :, k % n] += tile[:, :, n + SPARE + k]
    return inner


def lagrange(f, order, out):
    """Weights of the nodes -2 ... 3 at 0 <= f <= 1 into `out`; four points leave the outer two at zero."""
    a, c, d = f + 1.0, f - 1.0, f - 2.0
    if order == 4:
        out[0] = 0.0
        out[1] = -f * c * d * (1.0 / 6.0)
        out[2] = a * c * d * 0.5
        out[3] = -a * f * d * 0.5
        out[4] = a * f * c * (1.0 / 6.0)
        out[5] = 0.0
    else:
        e, g = f + 2.0, f - 3.0
        ef, ac, dg = e * f, a * c, d * g
        out[0] = -f * ac * dg * (1.0 / 120.0)
        out[1] = ef * c * dg * (1.0 / 24.0)
        out[2] = -e * ac * dg * (1.0 / 12.0)
        out[3] = ef * a * dg * (1.0 / 12.0)
        out[4] = -ef * ac * g * (1.0 / 24.0)
        out[5] = ef * ac * d * (1.0 / 120.0)


_compiled = cached_njit(nogil=True, error_model="numpy", fastmath={"contract", "nsz", "arcp"})

_lagrange = inlined(lagrange)


@_compiled
def scatter(run, row, starts, stops, x, dx, sheets, sheet, nodes, tile, states, removed, loose):
    """Add runs of pairs from `row` of `run` on; stops early when `loose` is full.

    Returns run and row to go on from, and the number of loose pairs.
    """
    origin, period, n_x, per_x, bins, center, per_dx, density, last, order, mu, CT, TRT, reach = nodes
    n_bins, shift = states.shape[1], last + SPARE - 2
    U, V, far = np.empty(_BLOCK), np.empty(_BLOCK), np.empty(_BLOCK)
    wx, wy = np.empty(6), np.empty(6)
    count = 0
    one_sheet = sheets.size == 0
    while run < starts.size:
        stop = stops[run]
        while row < stop:
            if count > loose.size - _BLOCK:
                return run, row, count
            n = min(_BLOCK, stop - row)
            if period > 0.0:
                for i in range(n):
                    r = x[row + i] - origin
                    r -= period * np.floor(r / period)
                    U[i] = r * per_x
            else:
                for i in range(n):
                    U[i] = (x[row + i] - origin) * per_x
            for i in range(n):
                far[i] = abs(dx[row + i] - mu)
                w = (dx[row + i] - center) * per_dx
                size = abs(w)
                root = np.sqrt(1.0 + w * w)
                v = fast_log(size + root) * (1.0 / FAR) + density * (size / root)
                V[i] = v if w >= 0.0 else -v
            for i in range(n):
                if not one_sheet and sheets[row + i] != sheet:
                    continue
                if not far[i] < TRT:
                    removed[0] += 1
                    continue
                pool = 1 if far[i] > CT else 0
                u, v = U[i], V[i]
                if not 0.0 <= u <= n_x:
                    loose[count] = row + i
                    count += 1
                    continue
                states[pool, min(int(u * bins), n_bins - 1)] += 1
                if not abs(v) < last or far[i] > reach:
                    loose[count] = row + i
                    count += 1
                    continue
                column, line = min(int(u), n_x - 1), int(np.floor(v))
                _lagrange(u - column, order, wx)
                _lagrange(v - line, order, wy)
                column += SPARE - 2
                line += shift
                for k in range(6):
                    for m in range(6):
                        tile[pool, line + k, column + m] += wy[k] * wx[m]
            row += n
        run += 1
        if run < starts.size:
            row = starts[run]
    return run, row, count
