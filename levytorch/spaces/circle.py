"""A circle: states that repeat with a period, Fourier functions, and V as a Fourier series on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from levytorch.convert import whole_number
from levytorch.spaces.basis import FourierBasis
from levytorch.spaces.nodes import CircleNodes

_CHUNK = 1 << 22  # numbers at once: 800,000 states times 1000 modes would be 6 GB


@dataclass(frozen=True)
class Circle:
    """The cell [origin, origin + period), whose ends are one state.

    >>> Circle(2.0).wrap(torch.tensor([-0.5, 3.0]))
    tensor([1.5000, 1.0000])
    """

    period: float = 2 * math.pi
    origin: float = 0.0
    dim: ClassVar[int] = 1
    repeats: ClassVar[bool] = True

    @property
    def ends(self) -> tuple[float, float]:
        """The cell."""
        return self.origin, self.origin + self.period

    @property
    def length(self) -> float:
        return self.period

    def wrap(self, x: Tensor) -> Tensor:
        """States reduced to the cell."""
        reduced = self.from_low(x)
        return reduced + self.origin if self.origin else reduced

    def beyond(self, x: Tensor) -> Tensor:
        """Which states lie beyond an end: none."""
        return torch.zeros(x.shape, dtype=torch.bool)

    def inside(self, x: Tensor) -> Tensor:
        """The states of the cell that have the same coefficients."""
        return self.wrap(x)

    def from_low(self, x: Tensor) -> Tensor:
        """`inside(x)`, counted from the low end."""
        return torch.remainder(x - self.origin if self.origin else x, self.period)

    def grid(self, n: int, shift: float = 0.5) -> Tensor:
        """n even states, `shift` spacings from the origin."""
        return self.origin + (torch.arange(n, dtype=torch.float64) + shift) * (self.period / n)

    def bins(self, x: Tensor, n: int) -> Tensor:
        """Which of `grid(n)` is nearest."""
        return (self.from_low(x) * (n / self.period)).long().clamp(0, n - 1)

    def basis(self, n: int) -> FourierBasis:
        """n functions of coefficients."""
        return FourierBasis(n, self.period, self.origin)

    def functions(self, coefficients: Tensor) -> CircleFunctions:
        """The functions that V with these coefficients (n, ...) is a sum of."""
        return CircleFunctions(self, coefficients.shape[0])

    def on_nodes(self, n: int, exterior: str = "constant") -> CircleNodes:
        """n nodes of this coordinate of a product."""
        return CircleNodes(n, self.origin, self.period)

    def config(self) -> dict[str, Any]:
        return {"kind": "circle", "period": self.period, "origin": self.origin}


@dataclass(frozen=True)
class CircleFunctions:
    """A Fourier series of n functions."""

    space: Circle
    n: int

    def at(self, x: Tensor, columns: Tensor, order: int = 0) -> Tensor:
        """Series with coefficients (n, k), or their derivatives of an order, at states (...): (..., k)."""
        order = whole_number("order", order, 0, 32, "give the order of the derivative")
        basis, flat = self.space.basis(self.n), x.reshape(-1)
        parts = [basis.matrix(part, order) @ columns for part in flat.split(max(1, _CHUNK // self.n))]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).reshape(*x.shape, columns.shape[-1])

    def gradient(self, x: Tensor, columns: Tensor) -> Tensor:
        """The first derivative, (..., k, 1)."""
        return self.at(x, columns, 1)[..., None]

    def is_sound(self, coefficients: Any, factor: Any) -> bool:
        """Whether what a file holds can be V and its errors."""
        good = isinstance(coefficients, Tensor) and coefficients.ndim == 1
        return good and (factor is None or (isinstance(factor, Tensor) and factor.shape[:1] == coefficients.shape))
