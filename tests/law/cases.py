"""Reference values as tensors, and the scales against which derivatives are compared."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tests.law.oracle import FIRST, PAIRS, SECOND, read_table


def column(rows: list[dict[str, str]], name: str) -> Tensor:
    return torch.tensor([float(row[name]) if row[name] else math.nan for row in rows], dtype=torch.float64)


class Cases:
    """Columns of the oracle's table for one dimension, with y replaced by |y|."""

    def __init__(self, dim: int) -> None:
        rows = [row for row in read_table() if int(row["d"]) == dim]
        self.dim = dim
        self.y, self.A, self.B, self.alpha = (column(rows, name) for name in ("y", "A", "B", "alpha"))
        self.log_p, self.log_tail = column(rows, "log_p"), column(rows, "log_tail")
        sign = torch.where(self.y < 0, -1.0, 1.0).double()
        self.y = self.y.abs()
        self.first = torch.stack([column(rows, name) for name in FIRST])
        self.second = torch.stack([column(rows, name) for name in SECOND])
        self.first[0] *= sign
        for k, pair in enumerate(PAIRS):
            if pair.count(0) == 1:
                self.second[k] *= sign

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.y, self.A, self.B, self.alpha

    def scales(self) -> Tensor:
        """Natural scales of d/dy, d/dA, d/dB, d/dalpha: 1 / L, 1 / L^2, 1 / B, 1, or the value itself where larger."""
        L = torch.sqrt(self.y**2 + 4.0 * self.A)
        L = torch.where(L > 0, L, torch.exp(torch.log(self.B) / (2.0 * self.alpha)))
        natural = torch.stack([1.0 / L, 1.0 / L**2, 1.0 / self.B, torch.ones_like(L)])
        return torch.maximum(natural, self.first.abs())

    def second_scales(self) -> Tensor:
        one = self.scales()
        return torch.maximum(torch.stack([one[i] * one[j] for i, j in PAIRS]), self.second.abs())
