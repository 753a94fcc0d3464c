"""The parts of a generator on a torus of several circles, applied with fast Fourier transforms.

On an n x ... x n grid every operator with constant coefficients is a product with its symbol. Where alpha depends on
the state, the symbol of the jumps is interpolated in alpha at Chebyshev nodes, so that each node costs one transform.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import fft

from levytorch.spaces.product import Product

_ALPHA_NODES = 16  # exp(2 alpha log|k|) over the whole of (0, 1) and |k| < 1e3: interpolated to 1e-10


class TorusOperator:
    """The parts of a generator on an n x ... x n grid, acting on Fourier coefficients (of `scipy.fft.rfftn`)."""

    def __init__(self, cell: Product, n: int, jumps: Any) -> None:
        self.cell, self.n, self.jumps = cell, n, jumps
        self._symbols: dict[tuple[float, int], NDArray[Any]] = {}
        self.axes = tuple(range(cell.dim))
        self.waves = [self._along(axis, 2 * math.pi / space.length) for axis, space in enumerate(cell.spaces)]
        self.square = sum((k**2 for k in self.waves), np.zeros(()))
        odd = [k.copy() for k in self.waves]
        if n % 2 == 0:  # the derivative of the highest cosine of an even grid vanishes at its points
            for axis, k in enumerate(odd):
                np.moveaxis(k, axis, 0)[n // 2] = 0.0
        self.gradient = tuple(1j * k for k in odd)

    def _along(self, axis: int, unit: float) -> NDArray[Any]:
        """Frequencies of one coordinate, in the shape that broadcasts."""
        frequencies = fft.rfftfreq if axis == self.axes[-1] else fft.fftfreq
        return (frequencies(self.n, 1 / self.n) * unit).reshape([-1 if a == axis else 1 for a in self.axes])

    def second(self, i: int, j: int) -> NDArray[Any]:
        """The symbol of the second derivative along coordinates i and j."""
        return -(self.waves[i] ** 2) if i == j else self.gradient[i] * self.gradient[j]

    def forward(self, field: NDArray[Any]) -> NDArray[Any]:
        """Coefficients of a real field on the grid."""
        return fft.rfftn(field, axes=[axis - len(self.axes) for axis in self.axes])

    def inverse(self, c: NDArray[Any]) -> NDArray[Any]:
        """The field of coefficients."""
        axes = [axis - len(self.axes) for axis in self.axes]
        return fft.irfftn(c, s=[self.n] * len(axes), axes=axes)

    def symbol(self, alpha: float, order: int = 0) -> NDArray[Any]:
        """That of the jumps, or its derivative of some order in alpha; kept, since every application needs it."""
        if (alpha, order) not in self._symbols:
            at = torch.from_numpy(self.square), torch.tensor(alpha, dtype=torch.float64)
            self._symbols[alpha, order] = self.jumps.symbol(*at, order).numpy()
        return self._symbols[alpha, order]

    def by_parameters(self, alpha: float) -> list[NDArray[Any]]:
        """The derivatives of the symbol in the parameters of the jumps."""
        at = torch.from_numpy(self.square), torch.tensor(alpha, dtype=torch.float64)
        return [symbol.numpy() for symbol in self.jumps.symbol_derivatives(*at)]

    def between(self, c: NDArray[Any]) -> NDArray[Any]:
        """Coefficients of what the field is between the points of the grid, half a spacing from them."""
        for axis in self.axes:
            turn = np.exp(1j * math.pi / self.n * self._along(axis, 1.0))
            if self.n % 2 == 0:
                highest = np.moveaxis(turn, axis, 0)
                highest[self.n // 2] = highest[self.n // 2].real
            c = c * turn
        return c

    def fractional(self, c: NDArray[Any], alpha: float | NDArray[Any], order: int = 0) -> NDArray[Any]:
        """(-Lap)^alpha of the field (or its derivative in alpha), alpha a number or one per point."""
        if not isinstance(alpha, np.ndarray):
            return self.inverse(c * self.symbol(alpha, order))
        low, high = float(alpha.min()), float(alpha.max())
        if high - low < 1e-12:
            return self.inverse(c * self.symbol(low, order))
        angle = math.pi * (np.arange(_ALPHA_NODES) + 0.5) / _ALPHA_NODES
        nodes = 0.5 * (low + high) + 0.5 * (high - low) * np.cos(angle)
        weights = (-1.0) ** np.arange(_ALPHA_NODES) * np.sin(angle)  # barycentric, Chebyshev points of the first kind
        top, bottom = np.zeros_like(alpha), np.zeros_like(alpha)
        for node, weight in zip(nodes, weights):
            gap = alpha - node
            share = weight / np.where(np.abs(gap) < 1e-14, 1e-14, gap)
            top += share * self.inverse(c * self.symbol(float(node), order))
            bottom += share
        return top / bottom
