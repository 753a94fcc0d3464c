"""Functions of a state on a torus of two coordinates, for V from data: products of Fourier functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from levytorch.coefficients import FourierBasis, TensorBasis
from levytorch.policy.checks import Reward

if TYPE_CHECKING:
    from levytorch.policy.plane import Torus


class PlaneBasis:
    """Products of Fourier functions whose harmonics add up to at most (n_basis - 1) / 2; see `TensorBasis`.

    Those of a smaller n_basis are the first of them.
    """

    def __init__(self, n_basis: int, cell: Torus) -> None:
        self.cell, self.period, self.origin = cell, cell.period, cell.origin
        self.functions = TensorBasis(2, n_basis, cell.period, cell.origin)
        self.lines = [FourierBasis(n_basis, *ends) for ends in zip(cell.period, cell.origin)]
        self.n_basis, self.n_modes = n_basis, self.functions.size
        lengths = torch.tensor(cell.period, dtype=torch.float64)
        self.wavenumbers = (2 * torch.pi * self.functions.harmonics / lengths).norm(dim=1)

    def harmonic_numbers(self) -> Tensor:
        return self.functions.harmonic_numbers()

    def rows(self, x: Tensor) -> Tensor:
        """Functions at states: (m, 2) -> (n, m)."""
        return self.functions.rows(x)

    def matrix(self, x: Tensor, order: Sequence[int] = (0, 0)) -> Tensor:
        """Functions at states, or a derivative of them: (..., 2) -> (..., n)."""
        one, two = (line.matrix(x[..., i], order[i])[..., self.functions.index[i]] for i, line in enumerate(self.lines))
        return one * two

    def points(self) -> Tensor:
        """(m, 2): a grid on which products of two functions are orthogonal or not as they are on the cell."""
        return self.grid_points(2 * self.n_basis - 1)

    def grid_points(self, n: int) -> Tensor:
        return self.cell.points(n).reshape(-1, 2)

    def grid(self, n: int) -> Tensor:
        """n states (a square number), half a spacing from the origin."""
        return self.cell.points(round(n**0.5), 0.5).reshape(-1, 2)

    def bins(self, x: Tensor, n: int) -> Tensor:
        """Which of `grid(n)` is nearest."""
        side, (one, two) = round(n**0.5), (torch.tensor(v, dtype=torch.float64) for v in self.cell)
        place = (torch.remainder(x - two, one) * (side / one)).long().clamp(0, side - 1)
        return place[:, 0] * side + place[:, 1]

    def series(self, f: Reward) -> Tensor:
        """(n,) coefficients of a function of the state, from a grid four times as fine as its functions."""
        x = self.grid_points(4 * self.n_basis + 1)
        Phi = self.matrix(x)
        return (Phi.T @ f(x)) / (Phi**2).sum(0)
