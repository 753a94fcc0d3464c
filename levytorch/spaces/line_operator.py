"""d/dx, d2/dx2 and (-Lap)^alpha on an interval, with what happens beyond its ends, as dense matrices on nodes.

The nodes resolve the ends: they are even in the middle, e-fold after e-fold closer towards either end. Functions with
V = 0 outside go to zero like (distance to the end)^alpha where nothing diffuses. With the variable u,

    s(u) = (log cosh(u + a) - log cosh(u - a)) / 2a,        s in (-1, 1),

such a power becomes an exponential, whatever its exponent, and even spacing in u resolves it. The last node is FIRST
(relative to half the interval) away from the end; within that strip V is taken to be what it is at the end, which is
the exact solution on an interval shorter by as much.

    (-Lap)^alpha V(x) = c int (V(x) - V(y)) |x - y|^(-1 - 2 alpha) dy,
    c = 4^alpha Gamma(1/2 + alpha) / (sqrt(pi) |Gamma(-alpha)|)

Inside of the interval the integral is a trapezoidal sum over nodes that are even in u, without the node at x itself.
What the singularity there takes from the sum is known: |t|^(-1 - 2 alpha) phi(t), phi(0) = 0, loses

    sum_m 2 zeta(1 + 2 alpha - 2m) h^(2m - 2 alpha) phi^(2m)(0) / (2m)!,    m = 1, 2, ...

(Sidi 2012; Wu and Martinsson 2021), which a few weights next to the diagonal put back. Outside, V is what the exterior
says, and its integral is closed, or a sum in the logarithm of the distance to the end.

Other jumps than stable ones have a factor beside |t|^(-1 - 2 alpha) in their density (`law.jumps.LineDensity`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import Array
from levytorch.errors import InputError

if TYPE_CHECKING:
    from levytorch.law.jumps import Jumps, LineDensity

# Half intervals: from here to the end nothing is resolved, and relative errors are of this size. Rounding of the second
# derivative, whose size is the inverse square of it, is a killing rate within the strip: less would not be better.
FIRST = 1e-7
HALF = 4  # neighbours on either side: derivatives of order 8, corrections of the quadrature to order 10 - 2 alpha
_A = 10.0  # the middle is even to within a tenth of the half interval from the ends
_U = _A + 0.5 * math.log(1 / (2 * _A * FIRST))
_STRIP = 1.5  # in u: nodes beyond the last one, where V is known, until little of the strip is left
_KEPT = 1100  # nodes up to which derivatives are kept for the next solve on the same window
_STEP = 0.02  # of the logarithm of the distance to an end, where V is g
_REACH = (math.log(1e-10), math.log(1e9))  # of that logarithm, in half intervals


@dataclass(frozen=True, eq=False)
class LineGrid:
    """n intervals; s, slope = ds/du and bend = s''/s' at the nodes and at `extra` more beyond either end."""

    n: int
    h: float
    extra: int
    s: Array
    slope: Array
    bend: Array
    to_low: Array  # distances of the nodes to the ends, to their own precision
    to_high: Array

    @property
    def inner(self) -> slice:
        """The unknowns, among all."""
        return slice(self.extra + 1, self.extra + self.n)

    def fold(self, rows: Array) -> Array:
        """(m, all nodes) -> (m, n + 1): what acts beyond the last node acts on it."""
        e, n = self.extra, self.n
        out = rows[:, e : e + n + 1].copy()
        out[:, 0] += rows[:, :e].sum(1)
        out[:, -1] += rows[:, e + n + 1 :].sum(1)
        return out


@functools.lru_cache(maxsize=8)
def line_grid(n: int) -> LineGrid:
    """The grid of n intervals."""
    h = 2 * _U / n
    extra = math.ceil(_STRIP / h) + HALF
    u: Array = -_U + h * np.arange(-extra, n + extra + 1, dtype=np.float64)
    to_low, to_high = _distance(-u), _distance(u)
    slope = np.exp(math.log(2 * math.sinh(2 * _A) / _A) - _log_two_cosh(u + _A) - _log_two_cosh(u - _A))
    s = np.where(u < 0, to_low - 1, 1 - to_high)
    return LineGrid(n, h, extra, s, slope, -(np.tanh(u + _A) + np.tanh(u - _A)), to_low, to_high)


def inner_nodes(n: int, window: tuple[float, float]) -> Tensor:
    """(n - 1,): the nodes between the ends of a window of n intervals."""
    grid = line_grid(n)
    return torch.from_numpy(0.5 * (window[0] + window[1]) + 0.5 * (window[1] - window[0]) * grid.s[grid.inner])


def _log_two_cosh(z: Array) -> Array:
    return np.asarray(np.abs(z) + np.log1p(np.exp(-2 * np.abs(z))))


def _distance(u: Array) -> Array:
    """1 - s(u), small numbers to full precision: (log1p(e^{-2(u - a)}) - log1p(e^{-2(u + a)})) / 2a."""
    return np.asarray((np.logaddexp(0, -2 * (u - _A)) - np.logaddexp(0, -2 * (u + _A))) / (2 * _A))


def positions(to_low: Tensor, to_high: Tensor, n: int) -> Tensor:
    """Where states are among the nodes 0 ... n, from their distances to the ends in half intervals."""
    near = torch.minimum(to_low, to_high).clamp(min=FIRST / 2)
    u = _A * (1 - near) - 0.5 * torch.log(-torch.expm1(-2 * _A * near))
    u = u + 0.5 * torch.log1p(-torch.exp(-2 * _A * (2 - near)))
    return (torch.where(to_low < to_high, -u, u) + _U) * (n / (2 * _U))


@functools.lru_cache(maxsize=1)
def differences() -> tuple[Array, Array]:
    """Weights (2 HALF + 1,) of the first and second derivative in u, unit spacing."""
    offsets = np.arange(-HALF, HALF + 1).astype(float)
    powers = np.vander(offsets, increasing=True).T
    wanted = np.zeros((len(offsets), 2))
    wanted[1, 0], wanted[2, 1] = 1.0, 2.0
    first, second = np.linalg.solve(powers, wanted).T
    return first, second


class Exterior(NamedTuple):
    """V beyond the ends: "constant" (its value at the end), or given: values at `distances()`, one row per side."""

    constant: bool
    outside: Tensor | None = None  # (2, m): below the low end, above the high end; None: zero

    @property
    def ends(self) -> tuple[float, float]:
        """V at the two ends where it is given."""
        return (0.0, 0.0) if self.outside is None else (float(self.outside[0, 0]), float(self.outside[1, 0]))


class LineOperators(NamedTuple):
    """V at the inner nodes v (m,) -> V' = first v + first_end, and so on; matrices (m, m), ends (m,).

    x: (m,) the inner nodes. `fractional` is (-Lap)^alpha V, jumps past the ends included.
    """

    x: Tensor
    first: Tensor
    second: Tensor
    fractional: Tensor
    first_end: Tensor
    second_end: Tensor
    fractional_end: Tensor


def distances() -> Tensor:
    """Distances from an end, in half intervals, at which g is looked at."""
    return torch.exp(torch.arange(*_REACH, _STEP, dtype=torch.float64))


def line_operators(
    n: int,
    window: tuple[float, float],
    alpha: Tensor,
    exterior: Exterior,
    free: tuple[bool, bool] = (False, False),
    *,
    jumps: Jumps,
) -> LineOperators:
    """On n - 1 inner nodes of the window. alpha: one number, or (n - 1,) for alpha(x) of stable jumps.

    free: at which ends V inside does not have to meet what is given outside (nothing reaches that end but by jumps).
    """
    grid, half = line_grid(n), 0.5 * (window[1] - window[0])
    density = jumps.density(alpha, half)
    tied = (exterior.constant or free[0], exterior.constant or free[1])
    matrix, below, above = _jumps(grid, density)
    given = np.zeros(n - 1)
    if exterior.constant:
        matrix[:, 0] -= below
        matrix[:, -1] -= above
    elif exterior.outside is not None:
        for distance, values, mass in zip((grid.to_low, grid.to_high), exterior.outside, (below, above)):
            given -= _integral(distance[grid.inner], density, values.numpy(), mass)
    scale = half ** (-2 * density.index[:, None])
    fractional, fractional_end = _eliminate(np.multiply(matrix, scale, out=matrix), exterior.ends, tied)
    fractional_end = fractional_end + torch.from_numpy(given * scale[:, 0])
    kept = _kept_derivatives if n <= _KEPT else _kept_derivatives.__wrapped__
    (first, first_end), (second, second_end) = kept(n, half, exterior.ends, tied)
    return LineOperators(inner_nodes(n, window), first, second, fractional, first_end, second_end, fractional_end)


@functools.lru_cache(maxsize=4)
def _kept_derivatives(
    n: int, half: float, ends: tuple[float, float], tied: tuple[bool, bool]
) -> list[tuple[Tensor, Tensor]]:
    """d/dx and d2/dx2 on a window of length 2 half, as `_eliminate` leaves them: not to be changed by who gets them."""
    first, second = _derivatives(line_grid(n))
    return [_eliminate(first / half, ends, tied), _eliminate(second / half**2, ends, tied)]


def _eliminate(rows: Array, ends: tuple[float, float], tied: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
    """(m, n + 1) -> (m, m): the ends are the nodes next to them, or are given and go into a vector."""
    matrix, vector = rows[:, 1:-1].copy(), np.zeros(len(rows))
    for side, (value, same) in enumerate(zip(ends, tied)):
        column = rows[:, -side]
        if same:
            matrix[:, -side] += column
        else:
            vector += column * value
    return torch.from_numpy(matrix), torch.from_numpy(vector)


def _derivatives(grid: LineGrid) -> tuple[Array, Array]:
    """d/ds and d2/ds2 at the inner nodes, (n - 1, n + 1)."""
    rows = np.arange(grid.n - 1)
    centers = rows + grid.extra + 1
    in_u = np.zeros((2, grid.n - 1, len(grid.s)))
    for order, weights in enumerate(differences()):
        for offset, weight in zip(range(-HALF, HALF + 1), weights):
            in_u[order, rows, centers + offset] = weight / grid.h ** (order + 1)
    slope, bend = grid.slope[grid.inner, None], grid.bend[grid.inner, None]
    first, second = (grid.fold(part) for part in in_u)
    out = first / slope, (second - bend * first) / slope**2
    for matrix in out:
        matrix[rows, rows + 1] -= matrix.sum(1)  # constants have no derivative
    return out


def _jumps(grid: LineGrid, density: LineDensity) -> tuple[Array, Array, Array]:
    """What D_f multiplies, on functions that are zero outside, (n - 1, n + 1), and the mass beyond either end."""
    power = -1 - 2 * density.index[:, None]
    rows, inner = np.arange(grid.n - 1), grid.inner
    centers = rows + grid.extra + 1
    distance = np.abs(_apart(grid))
    distance[rows, centers] = 1.0
    measure = torch.from_numpy(grid.h * grid.slope)
    singular = torch.from_numpy(distance).log().mul_(torch.from_numpy(power)).exp_().mul_(measure).numpy()
    singular[rows, centers] = 0.0
    columns = [(k, column) for k in range(1, HALF + 1) for column in (centers - k, centers + k)]
    near = [singular[rows, column] for _, column in columns]
    weights = density.damped(singular, distance)
    for share, index in density.nearby:
        factors = _corrections(np.atleast_1d(index))
        for (k, column), weight in zip(columns, near):
            back = share * (factors[k - 1] - 1) * k ** (2 * (density.index - index))
            weights[rows, column] += back * weight * density.even_powers(distance[rows, column], index)
    below, above = (density.beyond(d[inner]) for d in (grid.to_low, grid.to_high))
    out = grid.fold(weights)
    np.negative(out, out=out)
    out[rows, rows + 1] += weights.sum(1) + below + above
    out *= density.constant[:, None]
    return out, density.constant * below, density.constant * above


def _apart(grid: LineGrid) -> Array:
    """x_i - x_j of inner and all nodes; of two near one end from their distances to it, which have all their digits."""
    middle = len(grid.s) // 2
    left, right = np.arange(len(grid.s)) < middle, np.arange(len(grid.s)) >= middle
    out = grid.s[grid.inner, None] - grid.s
    for side, distance in ((left, grid.to_low), (right, -grid.to_high)):
        out[np.ix_(side[grid.inner], side)] = distance[grid.inner][side[grid.inner], None] - distance[side]
    return np.asarray(out)


def _corrections(alpha: Array) -> list[Array]:
    """Factors on the weights k = 1 ... HALF steps away from the diagonal, each (1,) or (n - 1,)."""
    from scipy.special import zetac

    k = np.arange(1, HALF + 1).astype(float)
    orders = np.arange(1, HALF + 1)
    lost = -2 * (zetac(1 + 2 * alpha[:, None] - 2 * orders) + 1)  # (n, HALF)
    share = np.linalg.solve(2 * k ** (2 * orders[:, None]), lost.T)  # of values at +-k, so that even powers are right
    return [1 + share[j] * k[j] ** (1 + 2 * alpha) for j in range(HALF)]


def _integral(distance: Array, density: LineDensity, g: Array, mass: Array) -> Array:
    """The integral of g and the density beyond one end, for x at these distances from it; mass: that of g = 1."""
    away, c = distances().numpy(), density.constant
    far = distance[:, None] + away
    power = torch.from_numpy(-1 - 2 * density.index[:, None])
    weights = torch.from_numpy(far).log().mul_(power).exp_().mul_(torch.from_numpy(_STEP * away)).numpy()
    weights = density.damped(weights, far)
    beyond = c * density.beyond(away[-1:] * math.exp(0.5 * _STEP))  # g stays what it is farther out
    total = c * (weights @ g)
    rest = mass - beyond - c * weights.sum(1)  # between the end and the first distance, and rounding
    return np.asarray(total + beyond * g[-1] + rest * g[0])


def given_outside(g: Callable[[Tensor], Tensor], window: tuple[float, float], most: float) -> Exterior:
    """V = g beyond the ends; most: the power of |x| that its growth must stay below."""
    half, away = 0.5 * (window[1] - window[0]), distances()
    away = torch.cat([torch.zeros(1, dtype=torch.float64), away[1:]])  # the first is the end itself
    outside = torch.stack([g(window[0] - half * away), g(window[1] + half * away)])
    far, less = outside[:, -1].abs(), outside[:, -1 - round(math.log(1e3) / _STEP)].abs()
    growth = torch.log((far + 1e-300) / (less + 1e-300)) / math.log(1e3)
    if bool(((growth > most - 1e-3) & (far > 0)).any()):
        raise InputError(
            f"exterior must grow more slowly than |x|^{most:.3g}, or jumps make V infinite, found "
            f"growth like |x|^{float(growth.max()):.3g}; bound it."
        )
    return Exterior(False, outside)
