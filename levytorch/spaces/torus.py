"""The parts of a generator on a torus of two circles, applied with fast Fourier transforms.

On an n x n grid every operator with constant coefficients is a product with its symbol. Where alpha depends on the
state, the symbol of the jumps is interpolated in alpha at Chebyshev nodes, so that each node costs one transform.
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
    """The parts of a generator on an n x n grid, acting on Fourier coefficients (of `scipy.fft.rfft2`)."""

    def __init__(self, cell: Product, n: int, jumps: Any) -> None:
        self.cell, self.n, self.jumps = cell, n, jumps
        self._symbols: dict[tuple[float, int], NDArray[Any]] = {}
        period = [float(space.period or math.inf) for space in cell.spaces]
        k_1 = fft.fftfreq(n, 1 / n) * (2 * math.pi / period[0])
        k_2 = fft.rfftfreq(n, 1 / n) * (2 * math.pi / period[1])
        self.square = k_1[:, None] ** 2 + k_2[None, :] ** 2
        # the derivative of the highest cosine of an even grid vanishes at its points
        d_1, d_2 = k_1.copy(), k_2.copy()
        if n % 2 == 0:
            d_1[n // 2] = d_2[n // 2] = 0.0
        self.gradient = (1j * d_1[:, None], 1j * d_2[None, :])

    def forward(self, field: NDArray[Any]) -> NDArray[Any]:
        """Coefficients of a real field on the grid."""
        return fft.rfft2(field)

    def inverse(self, c: NDArray[Any]) -> NDArray[Any]:
        """The field of coefficients."""
        return fft.irfft2(c, s=(self.n, self.n))

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
        turns = [np.exp(1j * math.pi * frequencies) for frequencies in (fft.fftfreq(self.n), fft.rfftfreq(self.n))]
        if self.n % 2 == 0:
            for turn in turns:
                turn[self.n // 2] = turn[self.n // 2].real
        return c * turns[0][:, None] * turns[1][None, :]

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
