"""The parts of a generator on a torus of several circles, applied with fast Fourier transforms.

On an n x ... x n grid every operator with constant coefficients is a product with its symbol. Where alpha depends on
the state, the symbol of the jumps is interpolated in alpha at Chebyshev nodes, so that each node costs one transform.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from scipy import fft
from torch import Tensor

from levytorch.spaces.nodes import Array

if TYPE_CHECKING:
    from levytorch.law.jumps import Jumps
    from levytorch.spaces.product import Product

_ALPHA_NODES = 16  # exp(2 alpha log|k|) over the whole of (0, 1) and |k| < 1e3: interpolated to 1e-10


class TorusOperator:
    """The parts of a generator on an n x ... x n grid, acting on Fourier coefficients (of `scipy.fft.rfftn`)."""

    tolerance = 1e-12  # of the equation's residual, to which it can be solved
    dense: ClassVar[dict[int, int]] = {2: 28, 3: 12}  # points per coordinate of the grid on which errors are computed

    def __init__(self, cell: Product, n: int, jumps: Jumps) -> None:
        self.cell, self.n, self.jumps = cell, n, jumps
        self._symbols: dict[tuple[float, int], Array] = {}
        self.axes = tuple(range(cell.dim))
        self.shape = (n,) * cell.dim
        self.waves = [self._along(axis, 2 * math.pi / space.length) for axis, space in enumerate(cell.spaces)]
        self.square: Array = sum((k**2 for k in self.waves), np.zeros(()))
        odd = [k.copy() for k in self.waves]
        if n % 2 == 0:  # the derivative of the highest cosine of an even grid vanishes at its points
            for axis, k in enumerate(odd):
                np.moveaxis(k, axis, 0)[n // 2] = 0.0
        self.slopes = tuple(1j * k for k in odd)
        self.cut = math.sqrt(float(self.square.max())) / 4

    @property
    def x(self) -> Tensor:
        """(n, ..., n, d): the grid."""
        return self.cell.grid(self.n, 0.0)

    def _along(self, axis: int, unit: float) -> Array:
        """Frequencies of one coordinate, in the shape that broadcasts."""
        frequencies = fft.rfftfreq if axis == self.axes[-1] else fft.fftfreq
        found: Array = frequencies(self.n, 1 / self.n) * unit
        return found.reshape([-1 if a == axis else 1 for a in self.axes])

    def bend(self, i: int, j: int) -> Array:
        """The symbol of the second derivative along coordinates i and j."""
        return -(self.waves[i] ** 2) if i == j else self.slopes[i] * self.slopes[j]

    def forward(self, field: Array) -> Array:
        """Coefficients of a real field on the grid."""
        found: Array = fft.rfftn(field, axes=[axis - len(self.axes) for axis in self.axes])
        return found

    def values(self, c: Array) -> Array:
        """The field of coefficients."""
        axes = [axis - len(self.axes) for axis in self.axes]
        found: Array = fft.irfftn(c, s=[self.n] * len(axes), axes=axes)
        return found

    def gradient(self, c: Array) -> list[Array]:
        """The first derivatives."""
        return [self.values(slope * c) for slope in self.slopes]

    def second(self, i: int, j: int, c: Array) -> Array:
        """The second derivative along coordinates i and j."""
        return self.values(self.bend(i, j) * c)

    def laplacian(self, c: Array) -> Array:
        return self.values(-self.square * c)

    def symbol(self, alpha: float, order: int = 0) -> Array:
        """That of the jumps, or its derivative of some order in alpha; kept, since every application needs it."""
        if (alpha, order) not in self._symbols:
            at = torch.from_numpy(self.square), torch.tensor(alpha, dtype=torch.float64)
            self._symbols[alpha, order] = self.jumps.symbol(*at, order).numpy()
        return self._symbols[alpha, order]

    def fractional(self, c: Array, alpha: float | Array, order: int = 0) -> Array:
        """(-Lap)^alpha of the field (or its derivative in alpha), alpha a number or one per point."""
        if not isinstance(alpha, np.ndarray):
            return self.values(c * self.symbol(alpha, order))
        low, high = float(alpha.min()), float(alpha.max())
        if high - low < 1e-12:
            return self.values(c * self.symbol(low, order))
        angle = math.pi * (np.arange(_ALPHA_NODES) + 0.5) / _ALPHA_NODES
        nodes = 0.5 * (low + high) + 0.5 * (high - low) * np.cos(angle)
        weights = (-1.0) ** np.arange(_ALPHA_NODES) * np.sin(angle)  # barycentric, Chebyshev points of the first kind
        top, bottom = np.zeros_like(alpha), np.zeros_like(alpha)
        for node, weight in zip(nodes, weights):
            gap = alpha - node
            share = weight / np.where(np.abs(gap) < 1e-14, 1e-14, gap)
            top += share * self.values(c * self.symbol(float(node), order))
            bottom += share
        return np.asarray(top / bottom)

    def by_parameters(self, c: Array, alpha: float | Array) -> list[Array]:
        """The derivatives of `fractional` in the parameters of the jumps."""
        if isinstance(alpha, np.ndarray):
            return [self.fractional(c, alpha, 1)]
        at = torch.from_numpy(self.square), torch.tensor(alpha, dtype=torch.float64)
        return [self.values(c * symbol.numpy()) for symbol in self.jumps.symbol_derivatives(*at)]

    def averaged(self, b: Array, D_o: Array, D_f: float, alpha: float) -> Array:
        """The symbol of minus a generator with constant coefficients; D_o (d, d)."""
        out = D_f * self.symbol(alpha) + 0j
        for i in self.axes:
            out = out - b[i] * self.slopes[i]
            for j in self.axes:
                out = out - D_o[i, j] * self.bend(i, j)
        return out

    def divided(self, field: Array, symbol: Array) -> Array:
        """Coefficients of what an operator with this symbol makes into the field."""
        return self.forward(field) / symbol

    def saved(self, c: Array) -> Array:
        """What V is made of in a file."""
        return np.asarray(c / self.n ** len(self.axes))

    def comparable(self, c: Array, n: int) -> Array:
        """Values at the states of a grid of n, which divides that of the operator."""
        return self.values(c)[(slice(None, None, self.n // n),) * len(self.axes)]

    def between(self, c: Array) -> tuple[Tensor, Array]:
        """States half a spacing from the grid, and coefficients of what the field is there."""
        for axis in self.axes:
            turn = np.exp(1j * math.pi / self.n * self._along(axis, 1.0))
            if self.n % 2 == 0:
                highest = np.moveaxis(turn, axis, 0)
                highest[self.n // 2] = highest[self.n // 2].real
            c = c * turn
        return self.cell.grid(self.n), c

    def check_diffusion(self, D_o: Array) -> None:
        """It may vanish."""
