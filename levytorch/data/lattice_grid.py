"""The nodes of a lattice: x uniform, dx stretched, both from ladders on which lattices made elsewhere meet.

In dx the node of number j lies at center + scale sinh(t), where t solves

    j = t / FAR + density tanh(t),        that is    j = asinh(w) / FAR + density w / sqrt(1 + w^2),  w = sinh(t):

`density` nodes more per side in the center, where a Gaussian turns into a power law, and steps of FAR in log |dx| in
the tail, which is smooth on that scale: some 300 nodes reach from -1e10 to 1e10. scale(dt) is a power of two close to
width sqrt(dt), the center a multiple of the scale.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from levytorch.convert import Array, Integers, positive_number, whole_number
from levytorch.data.membership import Membership
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError

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
    return Transitions._build(x, dx, step, Membership.of_counts(np.array([len(x)])))


def choose_grid(
    first_look: Transitions,
    *,
    period: float | None = 2 * math.pi,
    origin: float = 0.0,
    order: int = 6,
    n_x: int = NODES_PER_CELL,
) -> Grid:
    """A grid for data of which these are some pairs; the same pairs always give the same grid.

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
    some = look(first_look)
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


def window(first_look: Transitions) -> tuple[float, float]:
    """On a line, the range of states that are put on nodes: all of these, but for those that jumped far away."""
    x = look(first_look).x.numpy()
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
