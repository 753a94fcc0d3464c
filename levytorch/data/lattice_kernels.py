"""Pairs onto nodes: the weights with which Lagrange interpolation takes log p(x, dx) from the nodes around, added up.

Compiled when numba is there, NumPy otherwise. The tile of nodes has a row per node in dx and a column per node in x,
with three spare ones at each end: around a cell the stencil sticks out, and is folded back at the end.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from levytorch.data.lattice_grid import FAR, Grid

try:
    import numba  # noqa: F401 - whether it is there

    HAVE_NUMBA = True
except ImportError:  # pragma: no cover - exercised on machines without a compiler stack
    HAVE_NUMBA = False

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
SPARE = 3  # columns before and after the tile; rows too
_BLOCK = 256  # pairs whose places are computed together, in loops that LLVM can vectorise
_LOOSE = 1 << 14  # row numbers of loose pairs that are handed back at a time
_PLAIN = 1 << 15  # pairs at a time without numba


class Place(NamedTuple):
    """Where pairs of one dt fall; plain numbers, for compiled code."""

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


def place_of(
    grid: Grid,
    dt: float,
    first: int,
    n_x: int,
    mu: float = 0.0,
    CT: float = math.inf,
    TRT: float = math.inf,
    reach: float = math.inf,
) -> Place:
    """The place of a tile whose n_x columns begin at node `first`."""
    center, scale = grid.sheet(dt)
    begin = grid.origin if grid.n_x else grid.spacing * first
    return Place(
        *(begin, grid.period or 0.0, n_x, 1.0 / grid.spacing, grid.bins_per_node, center, 1.0 / scale),
        *(float(grid.density), grid.last, grid.order, mu, CT, TRT, reach),
    )


class Sums(NamedTuple):
    """What pairs are added to: two of each, for the core and the tail."""

    tile: Array  # (2, rows, columns)
    states: Rows  # (2, bins)
    removed: Rows  # (1,) pairs at or beyond TRT


def empty_sums(place: Place, pools: int) -> Sums:
    """Zeros of the sizes that a place asks for."""
    rows, columns = 2 * (place.last + SPARE) + 1, place.n_x + 2 * SPARE
    return Sums(
        np.zeros((pools, rows, columns)),
        np.zeros((pools, place.n_x * place.bins), dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )


def accumulate(
    starts: Rows, stops: Rows, x: Array, dx: Array, sheets: NDArray[np.uint8], sheet: int, place: Place, sums: Sums
) -> Rows:
    """Add the pairs of some runs of rows (of one sheet, where `sheets` is not empty); rows that fit on no node.

    These loose pairs are counted in `states` where their x has a bin, which on a line not all have.
    """
    found: list[Rows] = []
    if not HAVE_NUMBA:
        for start, stop in zip(starts.tolist(), stops.tolist()):
            for low in range(start, stop, _PLAIN):
                rows = np.arange(low, min(low + _PLAIN, stop))
                rows = rows[sheets[rows] == sheet] if len(sheets) else rows
                found.append(_plain(rows, x, dx, place, sums))
        return np.concatenate([np.empty(0, dtype=np.int64), *found])
    loose = np.empty(_LOOSE + _BLOCK, dtype=np.int64)
    run, row = 0, int(starts[0]) if len(starts) else 0
    while run < len(starts):
        run, row, count = scatter(run, row, starts, stops, x, dx, sheets, sheet, tuple(place), *sums, loose)
        found.append(loose[:count].copy())
    return np.concatenate([np.empty(0, dtype=np.int64), *found])


def fold(tile: Array) -> Array:
    """A tile around a cell without its spare columns, whose weights belong to the other end."""
    inner = tile[:, :, SPARE:-SPARE].copy()
    n = inner.shape[2]
    for k in range(SPARE):
        inner[:, :, (k - SPARE) % n] += tile[:, :, k]
        inner[:, :, k % n] += tile[:, :, n + SPARE + k]
    return inner


def stencil(x: Array, dx: Array, place: Place) -> tuple[Rows, Rows, Array, Array, NDArray[np.bool_]]:
    """Column and row of each pair's first node, its weights (6, n) in x and dx, and whether these nodes exist.

    Columns and rows count the spare ones.
    """
    u = (x - place.origin) * place.per_x
    if place.period:
        r = x - place.origin
        r -= place.period * np.floor(r / place.period)
        u = r * place.per_x
    w = (dx - place.center) * place.per_dx
    size = np.abs(w)
    root = np.hypot(1.0, w)
    v = np.sign(w) * (np.log(size + root) / FAR + place.density * size / root)
    inside = (u >= 0) & (u <= place.n_x) & (np.abs(v) < place.last)
    column = np.minimum(np.floor(np.where(inside, u, 0.0)), place.n_x - 1).astype(np.int64)
    row = np.floor(np.where(inside, v, 0.0)).astype(np.int64)
    in_x, in_dx = (lagrange(np.where(inside, f, 0.0), place.order) for f in (u - column, v - row))
    return column + SPARE - 2, row + place.last + SPARE - 2, in_x, in_dx, inside


def lagrange(f: Array, order: int) -> Array:
    """(6, n) weights of nodes -2 ... 3 at 0 <= f <= 1; four points leave the outer two at zero."""
    a, b, c, d = f + 1, f, f - 1, f - 2
    if order == 4:
        zero = np.zeros_like(f)
        return np.stack([zero, -b * c * d / 6, a * c * d / 2, -a * b * d / 2, a * b * c / 6, zero])
    e, g = f + 2, f - 3
    return np.stack(
        [
            -a * b * c * d * g / 120,
            e * b * c * d * g / 24,
            -e * a * c * d * g / 12,
            e * a * b * d * g / 12,
            -e * a * b * c * g / 24,
            e * a * b * c * d / 120,
        ]
    )


def _plain(rows: Rows, x: Array, dx: Array, place: Place, sums: Sums) -> Rows:
    """`scatter` for some rows, by NumPy."""
    x, dx = x[rows], dx[rows]
    deviation = np.abs(dx - place.mu)
    kept = deviation < place.TRT
    sums.removed[0] += len(kept) - int(kept.sum())
    rows, x, dx, deviation = rows[kept], x[kept], dx[kept], deviation[kept]
    pool = (deviation > place.CT).astype(np.int64)
    column, row, in_x, in_dx, inside = stencil(x, dx, place)
    near = inside & (deviation <= place.reach)
    u = (np.remainder(x - place.origin, place.period) if place.period else x - place.origin) * place.per_x
    seen = (u >= 0) & (u <= place.n_x)
    n_bins = place.n_x * place.bins
    bins = np.minimum((u[seen] * place.bins).astype(np.int64), n_bins - 1)
    np.add.at(sums.states, (pool[seen], bins), 1)
    n_rows, n_columns = sums.tile.shape[1:]
    first = (pool * n_rows + row) * n_columns + column
    flat = sums.tile.reshape(-1)
    for i in range(6):
        for k in range(6):
            weight = (in_dx[i] * in_x[k])[near]
            flat += np.bincount(first[near] + (i * n_columns + k), weight, minlength=flat.size)
    return rows[~near]


if HAVE_NUMBA:
    from levytorch.law.compiled import cached_njit
    from levytorch.law.vector_math import fast_log, inlined

    _compiled = cached_njit(nogil=True, error_model="numpy", fastmath={"contract", "nsz", "arcp"})

    @inlined
    def _weights(f, order, work, at):
        """lagrange(f) into work[at : at + 6]."""
        a, c, d = f + 1.0, f - 1.0, f - 2.0
        if order == 4:
            work[at] = 0.0
            work[at + 1] = -f * c * d * (1.0 / 6.0)
            work[at + 2] = a * c * d * 0.5
            work[at + 3] = -a * f * d * 0.5
            work[at + 4] = a * f * c * (1.0 / 6.0)
            work[at + 5] = 0.0
        else:
            e, g = f + 2.0, f - 3.0
            ef, ac, dg = e * f, a * c, d * g
            work[at] = -f * ac * dg * (1.0 / 120.0)
            work[at + 1] = ef * c * dg * (1.0 / 24.0)
            work[at + 2] = -e * ac * dg * (1.0 / 12.0)
            work[at + 3] = ef * a * dg * (1.0 / 12.0)
            work[at + 4] = -ef * ac * g * (1.0 / 24.0)
            work[at + 5] = ef * ac * d * (1.0 / 120.0)

    @_compiled
    def scatter(run, row, starts, stops, x, dx, sheets, sheet, place, tile, states, removed, loose):
        """Add runs of pairs from `row` of `run` on; stops early when `loose` is full.

        Returns run and row to go on from, and the number of loose pairs.
        """
        origin, period, n_x, per_x, bins, center, per_dx, density, last, order, mu, CT, TRT, reach = place
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
                    _weights(u - column, order, wx, 0)
                    _weights(v - line, order, wy, 0)
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
