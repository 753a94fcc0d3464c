"""A line, or a part of it: states that do not repeat, splines, and V by its values on nodes that resolve the ends."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import whole_number
from levytorch.spaces.line_operator import HALF, differences, distances, inner_nodes, line_grid, positions
from levytorch.spaces.nodes import IntervalNodes

_NODES = (16, 1 << 14)  # that a file may hold


@dataclass(frozen=True)
class Interval:
    """The states from low to high; without ends it is the whole line.

    >>> Interval(0.0, 2.0).grid(2)
    tensor([0.5000, 1.5000], dtype=torch.float64)
    """

    low: float = -math.inf
    high: float = math.inf
    dim: ClassVar[int] = 1
    repeats: ClassVar[bool] = False
    period: ClassVar[None] = None

    @property
    def origin(self) -> float:
        return self.low

    @property
    def ends(self) -> tuple[float, float]:
        """Both."""
        return self.low, self.high

    @property
    def length(self) -> float:
        return self.high - self.low

    def wrap(self, x: Tensor) -> Tensor:
        """States as they are."""
        return x

    def beyond(self, x: Tensor) -> Tensor:
        """Which states lie beyond the ends."""
        return (x < self.low) | (x > self.high)

    def inside(self, x: Tensor) -> Tensor:
        """The states between the ends that have the same coefficients: those beyond are moved to the ends."""
        return x.clamp(self.low, self.high)

    def from_low(self, x: Tensor) -> Tensor:
        """`inside(x)`, counted from the low end."""
        return self.inside(x) - self.low

    def grid(self, n: int, shift: float = 0.5) -> Tensor:
        """n even states, `shift` spacings from the low end."""
        return self.low + (torch.arange(n, dtype=torch.float64) + shift) * (self.length / n)

    def bins(self, x: Tensor, n: int) -> Tensor:
        """Which of `grid(n)` is nearest."""
        return ((x - self.low) * (n / self.length)).long().clamp(0, n - 1)

    def basis(self, n: int) -> Any:
        """n functions of coefficients."""
        from levytorch.spaces.splines import SplineBasis

        return SplineBasis(n, self.ends)

    def nodes(self, n: int) -> Tensor:
        """(n + 1,): the nodes of n intervals, both ends included."""
        low, high = torch.tensor(self.ends, dtype=torch.float64).split(1)
        return torch.cat([low, inner_nodes(n, self.ends), high])

    def functions(self, coefficients: Tensor) -> IntervalFunctions:
        """What V with these values (n + 1, ...) at the nodes is between them."""
        return IntervalFunctions(self, coefficients.shape[0] - 1)

    def on_nodes(self, n: int, exterior: str = "constant") -> IntervalNodes:
        """n + 1 nodes of this coordinate of a product, and what is beyond its ends."""
        return IntervalNodes(n, self.low, self.high, exterior)

    def config(self) -> dict[str, Any]:
        return {"kind": "interval", "low": self.low, "high": self.high}


@dataclass(frozen=True)
class IntervalFunctions:
    """Values at the nodes of n intervals, 8-point interpolation between them; beyond the ends they stay."""

    space: Interval
    n: int

    def at(self, x: Tensor, columns: Tensor, order: int = 0) -> Tensor:
        """Functions with values (n + 1, k) at the nodes, or their derivatives, at states (...): (..., k)."""
        order = whole_number("order", order, 0, 2, "give the order of the derivative")
        if order:
            columns = self._derivative(columns, order)
        low, high = self.space.ends
        half = 0.5 * (high - low)
        flat = x.reshape(-1).clamp(low, high)
        place = positions((flat - low) / half, (high - flat) / half, self.n)
        first = place.floor().long() - HALF + 1
        offsets = torch.arange(2 * HALF)
        index = (first[:, None] + offsets).clamp(0, self.n)  # beyond the last node V is what it is there
        weights = torch.ones((len(flat), 2 * HALF), dtype=torch.float64)
        t = place - first
        for i in range(2 * HALF):
            for j in range(2 * HALF):
                if i != j:
                    weights[:, i] *= (t - j) / (i - j)
        return torch.einsum("nk,nkp->np", weights, columns[index]).reshape(*x.shape, columns.shape[1])

    def gradient(self, x: Tensor, columns: Tensor) -> Tensor:
        """The first derivative, (..., k, 1)."""
        return self.at(x, columns, 1)[..., None]

    def _derivative(self, columns: Tensor, order: int) -> Tensor:
        """At the nodes, (n + 1, k); that of an end is that of the node next to it."""
        grid, values = line_grid(self.n), columns.numpy()
        padded = np.concatenate([values[:1].repeat(HALF, 0), values, values[-1:].repeat(HALF, 0)])
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * HALF + 1, axis=0)[1:-1]
        first, second = (windows @ w / grid.h ** (k + 1) for k, w in enumerate(differences()))
        slope, bend = grid.slope[grid.inner, None], grid.bend[grid.inner, None]
        found = first / slope if order == 1 else (second - bend * first) / slope**2
        return torch.from_numpy(np.concatenate([found[:1], found, found[-1:]]) / (0.5 * self.space.length) ** order)

    def is_sound(self, coefficients: Any, factor: Any) -> bool:
        """Whether what a file holds can be V and its errors."""
        good = (
            isinstance(coefficients, Tensor)
            and (coefficients.ndim, coefficients.dtype) == (1, torch.float64)
            and _NODES[0] <= len(coefficients) - 1 <= _NODES[1]
        )
        return good and (factor is None or (isinstance(factor, Tensor) and factor.shape[:1] == coefficients.shape))

    def beyond(self, x: Tensor, outside: Tensor) -> Tensor:
        """What is given beyond the ends, (2, m) at `distances()` from them, at states (...); zero inside."""
        low, high = self.space.ends
        half, known = 0.5 * (high - low), distances().log().numpy()
        out = np.zeros(x.shape)
        for values, away in zip(outside.numpy(), ((low - x) / half, (x - high) / half)):
            there = away.numpy() > 0
            out[there] = np.interp(np.log(away.numpy()[there]), known, values)
        return torch.from_numpy(out)
