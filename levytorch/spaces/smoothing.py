"""The parts of a generator on a product of circles and intervals, on nodes; jumps by Gaussian smoothing.

(-Lap)^alpha in several coordinates is not a sum of operators of one coordinate, but an integral of such products:

    (lam^2 - Lap)^alpha V - lam^(2 alpha) V = alpha / Gamma(1 - alpha) int_0^inf (V - e^(t Lap) V) e^(-lam^2 t)
                                              t^(-1 - alpha) dt,

and e^(t Lap) smooths coordinate after coordinate. Beyond the ends of an interval V is zero, or stays what it is there,
which smoothing knows (`nodes`). The integral over log t is a Gauss-Legendre sum. Below its first node V - e^(t Lap) V
is -t Lap V; beyond its last one smoothing does not change any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gamma

from levytorch.spaces.nodes import Nodes

Array = NDArray[Any]
_TIMES = (1e-9, 1e2, 1e8)  # first, ordinary and last one, in squares of the shortest and of the longest half length
_PANELS, _ORDER = (2.0, 4.0), 6  # lengths of panels of log t before and after the ordinary one, and the nodes in each


class SmoothingOperator:
    """Acts on fields (..., m_1, ..., m_d) of values at the unknowns of every coordinate."""

    def __init__(self, axes: Sequence[Nodes]) -> None:
        self.axes = tuple(axes)
        halves = [axis.half for axis in self.axes]
        self.start, middle, self.end = (c * size**2 for c, size in zip(_TIMES, (min(halves), *[max(halves)] * 2)))
        parts = [(self.start, middle, _PANELS[0]), (middle, self.end, _PANELS[1])]
        cuts = [np.linspace(math.log(a), math.log(b), math.ceil(math.log(b / a) / h) + 1) for a, b, h in parts]
        edges = np.concatenate([cuts[0], cuts[1][1:]])
        nodes, weights = np.polynomial.legendre.leggauss(_ORDER)
        centers, half = 0.5 * (edges[1:] + edges[:-1]), 0.5 * np.diff(edges)
        self.t = np.exp((centers[:, None] + half[:, None] * nodes).reshape(-1))
        self.weights = (half[:, None] * weights).reshape(-1)
        self.t = np.append(self.t, self.end)
        self.heat = [[axis.heat(t) for axis in self.axes] for t in self.t]

    @property
    def shape(self) -> tuple[int, ...]:
        """Unknowns of every coordinate."""
        return tuple(len(axis.x) for axis in self.axes)

    def along(self, axis: int, matrix: Array, field: Array) -> Array:
        """A matrix applied along one coordinate."""
        place = axis - len(self.axes)
        if place == -1:
            return np.asarray(field @ matrix.T)
        return np.moveaxis(np.matmul(matrix, np.moveaxis(field, place, -2)), -2, place)

    def gradient(self, field: Array) -> list[Array]:
        """The first derivatives."""
        return [self.along(i, axis.first, field) for i, axis in enumerate(self.axes)]

    def second(self, i: int, j: int, field: Array) -> Array:
        """The second derivative along coordinates i and j."""
        if i == j:
            return self.along(i, self.axes[i].second, field)
        return self.along(i, self.axes[i].first, self.along(j, self.axes[j].first, field))

    def laplacian(self, field: Array) -> Array:
        return np.asarray(sum(self.second(i, i, field) for i in range(len(self.axes))))

    def _times(self, alpha: Any, lam: float) -> list[Any]:
        """Weights of V - e^(t Lap) V at every node of t, numbers or fields."""
        front = alpha / gamma(1 - alpha)
        inner = [w * front * t**-alpha * math.exp(-lam * lam * t) for w, t in zip(self.weights, self.t)]
        return [*inner, self.end**-alpha / gamma(1 - alpha) * math.exp(-lam * lam * self.end)]

    def fractional(self, field: Array, alpha: Any, lam: float = 0.0) -> Array:
        """What jumps do; alpha a number or one per node."""
        short = alpha / gamma(1 - alpha) * self.start ** (1 - alpha) / (1 - alpha)
        out = -short * self.laplacian(field)
        for weight, matrices in zip(self._times(alpha, lam), self.heat):
            if np.max(weight) < 1e-300:
                continue
            smooth = field
            for axis, matrix in enumerate(matrices):
                smooth = self.along(axis, matrix, smooth)
            out += weight * (field - smooth)
        return np.asarray(out)
