"""Nodes on an interval that resolve its ends: even in the middle, e-fold after e-fold closer towards either end.

Functions with V = 0 outside go to zero like (distance to the end)^alpha where nothing diffuses. With the variable u,

    s(u) = (log cosh(u + a) - log cosh(u - a)) / 2a,        s in (-1, 1),

such a power becomes an exponential, whatever its exponent, and even spacing in u resolves it. The last node is FIRST
(relative to half the interval) away from the end; within that strip V is taken to be what it is at the end, which is
the exact solution on an interval shorter by as much.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import Array

# Half intervals: from here to the end nothing is resolved, and relative errors are of this size. Rounding of the second
# derivative, whose size is the inverse square of it, is a killing rate within the strip: less would not be better.
FIRST = 1e-7
HALF = 4  # neighbours on either side: derivatives of order 8, corrections of the quadrature to order 10 - 2 alpha
_A = 10.0  # the middle is even to within a tenth of the half interval from the ends
_U = _A + 0.5 * math.log(1 / (2 * _A * FIRST))
_STRIP = 1.5  # in u: nodes beyond the last one, where V is known, until little of the strip is left


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
