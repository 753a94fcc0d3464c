"""Parts of the cell of a state, or of its window on a line: where pairs of every action are counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_COUNT = {1: 64, 2: 256, 3: 512}  # parts, by dimension


class Parts:
    """`count` equal parts, as many per coordinate; states beyond a window belong to the part at its end."""

    def __init__(self, head: Any, count: int | None = None) -> None:
        self.dim, self.periodic, self.bounds = head.dim, head.period is not None, head.bounds
        self.count = _COUNT[self.dim] if count is None else count
        self.side = round(self.count ** (1 / self.dim))

    def centers(self) -> Tensor:
        """The middle of every part, (count,) or (count, d)."""
        unit = (torch.arange(self.side, dtype=torch.float64) + 0.5) / self.side
        axes = [low + (high - low) * unit for low, high in self.bounds]
        if self.dim == 1:
            return axes[0]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, self.dim)

    def index(self, x: Tensor) -> Tensor:
        """The part that each state lies in, (n,) int64."""
        out = torch.zeros(len(x), dtype=torch.int64)
        for column, (low, high) in zip(x.reshape(len(x), -1).T, self.bounds):
            place = (column - low) * (self.side / (high - low))
            place = torch.remainder(place, self.side) if self.periodic else place.clamp(0, self.side - 1)
            out = out * self.side + place.to(torch.int64).clamp(0, self.side - 1)
        return out

    def counts(self, x: Tensor, codes: Tensor, n_actions: int) -> Tensor:
        """Pairs of every action in every part, (n_actions, count)."""
        index = codes * self.count + self.index(x)
        found = torch.bincount(index, minlength=n_actions * self.count)
        return found.reshape(n_actions, self.count).to(torch.float64)

    def between(self, values: Tensor) -> Callable[[Tensor], Tensor]:
        """Values (count, A) at the centers as a function of the state: linear between them in one dimension, else by
        part.
        """

        def function(x: Tensor) -> Tensor:
            if self.dim > 1:
                return values[self.index(x)]
            ((low, high),) = self.bounds
            at = (x - low) * (self.side / (high - low)) - 0.5
            at = torch.remainder(at, self.side) if self.periodic else at.clamp(0, self.side - 1)
            left = torch.floor(at)
            share = (at - left).unsqueeze(1)
            first = left.to(torch.int64).clamp(max=self.side - 1)
            second = (first + 1) % self.side if self.periodic else (first + 1).clamp(max=self.side - 1)
            return (1 - share) * values[first] + share * values[second]

        return function
