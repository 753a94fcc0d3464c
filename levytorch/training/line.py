"""States on a line: the window over which a head is fitted, and the pairs that start in it.

Pairs that start outside of the window are left out. That loses nothing but those pairs: a law of dx given x holds for
any selection of x, and what lies far out (a jump of a double well, hurled back within the next step) says nothing about
the middle.
"""

from __future__ import annotations

import numpy as np
import torch

from levytorch.coefficients import Head
from levytorch.data import Transitions
from levytorch.data.batches import Batch, FullBatch
from levytorch.data.lattice import Lattice
from levytorch.data.quantiles import cut, quantiles
from levytorch.errors import InputError
from levytorch.training.settings import FitSettings

OUTSIDE = "outside the window"
_CENTRAL = (0.005, 0.995)  # quantiles of the states
_NEAR = 0.1  # of their distance: so far beyond the central ones states are kept, which the ends of a fit rest on
_MARGIN = 1 / 32  # of the range of the states: a lattice has nodes a little beyond the last pair


def on_the_line(data: Transitions | Lattice, settings: FitSettings) -> tuple[Transitions | Lattice, FitSettings]:
    """Fills in the window and the knots of a head on a line, and leaves out the pairs that start elsewhere."""
    if settings.plain is None:
        return inside(data, settings.head.bounds), settings
    plain = dict(settings.plain)
    given = plain.get("window")
    dim = 1 if isinstance(data, Lattice) else data.dim
    if given is None:
        ranges = [kept_range(data, axis) for axis in range(dim)]
        data = inside(data, ranges)
        windows = [_widened(low, high) for low, high in ranges]
        plain["window"] = list(windows[0]) if dim == 1 else [list(pair) for pair in windows]
    else:
        data = inside(data, [tuple(given)] if dim == 1 else [tuple(pair) for pair in given])
    if plain.get("knots") == "quantiles":
        plain["knots"] = _knots(data, int(plain["n_basis"]), plain["window"])
    return data, settings if plain == settings.plain else settings.with_head(plain)


def kept_range(data: Transitions | Lattice, axis: int = 0) -> tuple[float, float]:
    """All states, but for excursions: those far beyond 99 % of the others."""
    low, first, last, high = _levels(data, axis, (0.0, *_CENTRAL, 1.0))
    near = _NEAR * (last - first)
    return max(low, first - near), min(high, last + near)


def _levels(data: Transitions | Lattice, axis: int, levels: tuple[float, ...]) -> list[float]:
    """Quantiles of a coordinate of the states."""
    if isinstance(data, Lattice):
        counts = data.counts_of_states()
        order = np.argsort(counts.x.numpy(), kind="stable")
        x, total = counts.x.numpy()[order], np.cumsum(counts.pairs.numpy()[order])
        found = x[np.searchsorted(total, np.asarray(levels[1:-1]) * total[-1])].tolist()
        return [data.x_range[0], *found, data.x_range[1]]
    column = data.x if data.dim == 1 else data.x[:, axis]
    return quantiles(cut(column.numpy()), len(data), levels)


def _widened(low: float, high: float) -> tuple[float, float]:
    span = high - low
    if not span > 1e-8 * max(abs(low), abs(high)):
        raise InputError(
            f"x must vary for coefficients on a line, found states from {low:.9g} to {high:.9g}; subtract a constant "
            "near them, or give a window."
        )
    return low - _MARGIN * span, high + _MARGIN * span


def _knots(data: Transitions | Lattice, n_basis: int, window: list[float]) -> list[float] | str:
    """Where the cubics meet: at quantiles of the states, each with as many pairs on either side."""
    if n_basis < 5:
        return "even"
    levels = tuple(float(v) for v in np.linspace(0, 1, n_basis - 2))
    inner = _levels(data, 0, levels)[1:-1]
    if not (np.diff([window[0], *inner, window[1]]) > 1e-6 * (window[1] - window[0])).all():
        raise InputError(
            "knots at quantiles must differ from each other, found states that repeat too often; use knots even."
        )
    return inner


def inside(data: Transitions | Lattice, bounds: list[tuple[float, float]]) -> Transitions | Lattice:
    """The pairs that start in the window; of a lattice the batch is cut, in `cut_batch`."""
    if isinstance(data, Lattice):
        return data
    keep = np.ones(len(data), dtype=bool)
    for rows in data.blocks():
        columns = data.x[rows].reshape(rows.stop - rows.start, -1).T
        for column, (low, high) in zip(columns.numpy(), bounds):
            keep[rows] &= (column >= low) & (column <= high)
    lost = len(data) - int(np.count_nonzero(keep))
    if lost == len(data):
        raise InputError(f"the window must hold states of the data, found none in {bounds}; choose it within them.")
    return data if not lost else data._take(torch.from_numpy(keep), {OUTSIDE: lost})


def cut_batch(batch: FullBatch, head: Head) -> FullBatch:
    """A batch without the nodes outside of the window of a head on a line; the same object where there are none."""
    if head.period is not None or head.dim > 1:
        return batch
    low, high = head.window

    def part(pool: Batch) -> Batch:
        keep = (pool.x >= low) & (pool.x <= high)
        return pool if bool(keep.all()) else Batch(*(values[keep] for values in pool))

    main, tail = part(batch.main), None if batch.tail is None else part(batch.tail)
    if main is batch.main:
        return batch
    n_tail = 0.0 if tail is None else float(tail.weight.sum())
    return batch._replace(main=main, tail=tail, n_main=float(main.weight.sum()), n_tail=n_tail)
