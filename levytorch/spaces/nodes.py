"""One coordinate of a product on nodes: derivatives, Gaussian smoothing with what is beyond the ends, interpolation.

A circle has even nodes and trigonometric functions. An interval has the extrema of a Chebyshev polynomial as nodes, and
V between them is the polynomial through its values. The values at the two ends are no unknowns: beyond the ends V is
zero ("absorb"), and so it is at the ends, or stays what it is there ("constant"), where diffusion is reflected and the
derivative vanishes.

`heat(t)` is what turns V into E V(x + sqrt(2 t) G), G standard normal, V continued beyond the ends in that way. The
polynomial is integrated against the Gaussian by a rule of its own for every node and every t, so that nothing has to be
resolved by the nodes but V itself.
"""

from __future__ import annotations

import functools
import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[Any]
CONTINUATIONS = ("constant", "absorb")
_REACH = 8.0  # standard deviations of a Gaussian
_RULE = 40  # points of its rule at least
_WIDE = 0.2  # in half intervals: a Gaussian that the rule for the whole interval resolves


@functools.lru_cache(maxsize=256)
def legendre(n: int) -> tuple[Array, Array]:
    """Nodes and weights of the Gauss-Legendre rule on (-1, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return nodes, weights


def _gaussian(z: Array) -> Array:
    return np.asarray(np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi))


class CircleNodes:
    """n even nodes of a circle, all of them unknowns; `measure` (n,) is the length that each stands for."""

    def __init__(self, n: int, low: float, period: float) -> None:
        self.n, self.low, self.period, self.half = n, low, period, period / 2
        self.x = self.all_x = low + period / n * np.arange(n)
        self.measure = np.full(n, period / n)
        self.k = np.fft.fftfreq(n, 1 / n) * (2 * math.pi / period)
        self.complete = np.eye(n)
        odd = self.k.copy()
        if n % 2 == 0:
            odd[n // 2] = 0.0
        self.first, self.second = self._matrix(1j * odd), self._matrix(-(self.k**2))

    def _matrix(self, symbol: Array) -> Array:
        return np.ascontiguousarray(np.fft.ifft(symbol[:, None] * np.fft.fft(np.eye(self.n), axis=0), axis=0).real)

    def heat(self, t: float) -> Array:
        """(n, n): smoothing over a time t."""
        return self._matrix(np.exp(-(self.k**2) * t))

    def interpolation(self, x: Array, order: int = 0) -> Array:
        """(m, n): from values at the nodes to V, or a derivative, at other states."""
        at = np.mod(x - self.low, self.period)[:, None]
        waves = np.exp(1j * at * self.k) * (1j * self.k) ** order
        if self.n % 2 == 0:
            waves[:, self.n // 2] = (waves[:, self.n // 2]).real
        return np.ascontiguousarray((waves @ np.fft.fft(np.eye(self.n), axis=0)).real / self.n)


class IntervalNodes:
    """The n - 1 nodes within an interval; `complete` (n + 1, n - 1) adds the values at the ends."""

    def __init__(self, n: int, low: float, high: float, exterior: str = "constant") -> None:
        self.n, self.low, self.high, self.half, self.exterior = n, low, high, 0.5 * (high - low), exterior
        self.s = -np.cos(math.pi * np.arange(n + 1) / n)  # in (-1, 1)
        self.weights = np.where(np.arange(n + 1) % 2 == 0, 1.0, -1.0)
        self.weights[[0, -1]] *= 0.5
        self.whole = self._derivative()
        self.all_x = 0.5 * (low + high) + self.half * self.s
        self.x = self.all_x[1:-1]
        self.measure = math.pi / n * self.half * np.sqrt(1.0 - self.s[1:-1] ** 2)
        self.complete = np.zeros((n + 1, n - 1))
        self.complete[1:-1] = np.eye(n - 1)
        if exterior == "constant":
            ends = [0, n]
            self.complete[ends] = -np.linalg.solve(self.whole[np.ix_(ends, ends)], self.whole[ends, 1:-1])
        D = self.whole / self.half
        self.first, self.second = (D @ self.complete)[1:-1], (D @ D @ self.complete)[1:-1]

    def _derivative(self) -> Array:
        """(n + 1, n + 1): of the polynomial, in (-1, 1); its diagonal makes constants vanish."""
        gap = self.s[:, None] - self.s
        np.fill_diagonal(gap, 1.0)
        D: Array = (self.weights / self.weights[:, None]) / gap
        np.fill_diagonal(D, 0.0)
        np.fill_diagonal(D, -D.sum(1))
        return D

    def _at(self, s: Array) -> Array:
        """(m, n + 1): the polynomial at points of (-1, 1)."""
        gap = s[:, None] - self.s
        hit = np.abs(gap) < 1e-15
        terms = self.weights / np.where(hit, 1.0, gap)
        out: Array = terms / terms.sum(1, keepdims=True)
        rows = hit.any(1)
        out[rows] = hit[rows]
        return out

    @cached_property
    def _common(self) -> tuple[Array, Array, Array]:
        """A rule for the whole interval, and the polynomial at its points."""
        nodes, weights = legendre(2 * self.n + math.ceil(20 / _WIDE))
        return nodes, weights, self._at(nodes)

    def heat(self, t: float) -> Array:
        """(n - 1, n - 1): smoothing over a time t, with what is beyond the ends."""
        s, width = self.s[1:-1], math.sqrt(2 * t) / self.half
        if width > _WIDE:  # one rule for all nodes
            y, weights, at = self._common
            rows = _gaussian((y - s[:, None]) / width) * (weights / width) @ at
        else:
            low, high = np.maximum((-1 - s) / width, -_REACH), np.minimum((1 - s) / width, _REACH)
            nodes, weights = legendre(_RULE + math.ceil(self.n * min(1.0, width * _REACH)))
            z = 0.5 * (low + high)[:, None] + 0.5 * (high - low)[:, None] * nodes
            at = self._at(np.clip(s[:, None] + width * z, -1, 1).reshape(-1)).reshape(*z.shape, -1)
            rows = ((_gaussian(z) * weights * 0.5 * (high - low)[:, None])[:, None, :] @ at)[:, 0]
        if self.exterior == "constant":
            rows[:, 0] += ndtr((-1 - s) / width)
            rows[:, -1] += ndtr(-(1 - s) / width)
        return np.ascontiguousarray(rows @ self.complete)

    def interpolation(self, x: Array, order: int = 0) -> Array:
        """(m, n + 1): from values at all nodes to V, or a derivative, at states; those beyond are moved to the ends."""
        s = np.clip((x - 0.5 * (self.low + self.high)) / self.half, -1, 1)
        return np.asarray(self._at(s) @ np.linalg.matrix_power(self.whole / self.half, order))


Nodes = CircleNodes | IntervalNodes
