"""Steps of states of different scale, brought to one scale: what a learned alpha starts from.

Steps pooled over states with a narrow and with a wide law look like steps of one law with heavier shoulders: of a large
alpha, and without a Brownian part. Divided by the median deviation of their neighbours in state they have one scale
again, and what still differs, the rate of far jumps, is a factor of the tail alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Cell = tuple[float, float | None]  # origin and period of a coordinate; no period: a line
_SIDES = {1: 12, 2: 4, 3: 2}  # groups per coordinate at most
_LEAST = 200  # pairs of a group, so that its median is right to a tenth


@dataclass(frozen=True)
class Groups:
    """Neighbours in state. index: (n,), -1 for the few that are in none; centers: (G,) or (G, d).

    places: (n,) states folded into the cell, in one dimension, and its period.
    """

    index: Tensor
    centers: Tensor
    places: Tensor | None = None
    period: float | None = None

    def __len__(self) -> int:
        return len(self.centers)

    def levels(self, deviation: Tensor) -> Tensor:
        """Median deviation of each group in that of all, (G,); 1 where half of a group does not move at all."""
        whole = float(deviation.median())
        own = torch.stack([deviation[self.index == g].median() for g in range(len(self))])
        return torch.where((own > 0) & (whole > 0), own / (whole or 1.0), 1.0)

    def spread(self, levels: Tensor) -> Tensor:
        """A level per pair, (n,): on a line exponentials from center to center, else that of its group, 1 in none."""
        if self.places is None:
            return torch.cat([levels, torch.ones(1, dtype=levels.dtype)])[self.index]
        x, y = self.centers, levels.log()
        if self.period is not None:
            x = torch.cat([x[-1:] - self.period, x, x[:1] + self.period])
            y = torch.cat([y[-1:], y, y[:1]])
        right = torch.searchsorted(x, self.places).clamp(1, len(x) - 1)
        share = (self.places - x[right - 1]) / (x[right] - x[right - 1])
        return torch.lerp(y[right - 1], y[right], share).exp()


def group_states(x: Tensor, cells: Sequence[Cell]) -> Groups | None:
    """States (n,) or (n, d) between quantiles of each coordinate, folded into its cell; None for too few of them."""
    dim = 1 if x.dim() == 1 else x.shape[1]
    side = min(_SIDES[dim], int((len(x) / _LEAST) ** (1 / dim)))
    if side < 2:
        return None
    folded = [
        column if period is None else origin + torch.remainder(column - origin, period)
        for column, (origin, period) in zip([x.contiguous()] if dim == 1 else x.T.contiguous(), cells)
    ]
    code = torch.zeros(len(x), dtype=torch.int64)
    levels = torch.linspace(0, 1, side + 1, dtype=torch.float64)[1:-1]
    for column in folded:
        code = code * side + torch.bucketize(column, torch.quantile(column, levels), right=True)
    counts = torch.bincount(code, minlength=side**dim)
    kept = torch.nonzero(counts >= _LEAST // 2).reshape(-1)
    if len(kept) < 2:
        return None
    number = torch.full((side**dim,), -1, dtype=torch.int64)
    number[kept] = torch.arange(len(kept))
    means = [torch.bincount(code, column, minlength=side**dim)[kept] / counts[kept] for column in folded]
    if dim > 1:
        return Groups(number[code], torch.stack(means, dim=1))
    return Groups(number[code], means[0], folded[0], cells[0][1])
