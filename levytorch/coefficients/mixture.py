"""A head that averages others: the closed loop of a policy over heads of single actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from levytorch.coefficients.head import AlphaSpec, Coefficients, Head


class MixtureHead(Head):
    """sum_a weight_a(x) c_a(x) for b, D_o and D_f; the heads share their cell and alpha.

    weights: a function of n states, (n, n_heads). The parameters are those of all heads, one head after the other.
    """

    def __init__(self, heads: Sequence[Head], weights: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.heads = tuple(heads)
        self.parts = nn.ModuleList(heads)  # whose parameters are this head's
        self.weights = weights
        first = heads[0]
        self.period, self.origin, self.dim, self.window = first.period, first.origin, first.dim, first.window

    @property
    def alpha_spec(self) -> AlphaSpec:
        return self.heads[0].alpha_spec

    def forward(self, x: Tensor) -> Coefficients:
        w = self.weights(x)
        parts = [head(x) for head in self.heads]
        b = torch.stack([part.b for part in parts], dim=-1)
        b = (b * (w if b.dim() == 2 else w.unsqueeze(1))).sum(-1)
        D_o, D_f = ((torch.stack(c, dim=-1) * w).sum(-1) for c in zip(*(part[1:3] for part in parts)))
        return Coefficients(b, D_o, D_f, parts[0].alpha)

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        w = self.weights(x)
        parts = [head.jacobian(x) for head in self.heads]
        shaped = [[w[:, i].reshape(-1, *[1] * (J.dim() - 1)) * J for i, J in enumerate(c)] for c in zip(*parts)]
        # all heads hold the same alpha, and a covariance that says so: the first speaks for all
        alpha = [parts[0][3], *(torch.zeros_like(part[3]) for part in parts[1:])]
        b, D_o, D_f = (torch.cat(rows, dim=-1) for rows in shaped[:3])
        return b, D_o, D_f, torch.cat(alpha, dim=-1)
