"""Sums over weighted pairs that one pass leaves behind, and how they become vectors and matrices in theta."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from levytorch.coefficients import LinearHead
from levytorch.data.batches import Batch
from levytorch.ranks import Ranks

CHUNK = 1 << 17  # pairs at a time


@dataclass
class ScoreSums:
    """Weighted sums over pairs (not means): they add over chunks, pools and processes.

    first (C, M) and second (C, C, M): scores in the predictors and their products, per bin; `hessian` likewise holds
    second derivatives of log p in the predictors, when asked for.
    """

    n: float
    log_p: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor
    hessian: Tensor | None = None

    def __sub__(self, other: ScoreSums) -> ScoreSums:
        hessian = None if self.hessian is None or other.hessian is None else self.hessian - other.hessian
        return ScoreSums(
            self.n - other.n,
            self.log_p - other.log_p,
            self.gradient - other.gradient,
            self.first - other.first,
            self.second - other.second,
            hessian,
        )


def over_ranks(ranks: Ranks, sums: list[ScoreSums]) -> list[ScoreSums]:
    """Each of some sums over the pairs of all ranks."""
    if ranks.world == 1:
        return sums
    names = [f.name for f in fields(ScoreSums) if f.name != "n" and getattr(sums[0], f.name) is not None]
    parts = [torch.tensor([s.n for s in sums], dtype=torch.float64), *(getattr(s, k) for s in sums for k in names)]
    counts, *totals = ranks.sum(parts)
    width = len(names)
    return [
        ScoreSums(n, **dict(zip(names, totals[i * width : (i + 1) * width]))) for i, n in enumerate(counts.tolist())
    ]


def slices(batch: Batch, chunk: int = CHUNK) -> Iterable[Batch]:
    """Views of consecutive pairs; a dt that all share becomes 0-d, which the law takes faster, and so does a weight."""
    dt, weight = shared(batch.dt), shared(batch.weight)
    for low in range(0, batch.x.shape[0], chunk):
        rows = slice(low, low + chunk)
        yield Batch(
            batch.x[rows],
            batch.dx[rows],
            dt if not dt.dim() else dt[rows],
            weight if not weight.dim() else weight[rows].to(torch.float64),
        )


def shared(values: Tensor) -> Tensor:
    """0-d where one number was expanded to all pairs."""
    return values[0] if values.dim() and values.shape[0] and values.stride(0) == 0 else values


def assemble(head: LinearHead, per_bin: Tensor, design: list[Tensor]) -> Tensor:
    """(P, P) matrix Phi^T diag(.) Phi from per-bin (C, C, M) sums."""
    starts = head.starts
    out = torch.zeros((starts[-1], starts[-1]), dtype=torch.float64)
    for i in range(len(head.sizes)):
        for j in range(i, len(head.sizes)):
            block = (design[i] * per_bin[i, j]) @ design[j].T
            out[starts[i] : starts[i + 1], starts[j] : starts[j + 1]] = block
            out[starts[j] : starts[j + 1], starts[i] : starts[i + 1]] = block.T
    return out


def project(head: LinearHead, per_bin: Tensor, design: list[Tensor]) -> Tensor:
    """(..., P) vectors Phi^T v from per-bin (..., C, M) sums."""
    return torch.cat([per_bin[..., i, :] @ design[i].T for i in range(len(head.sizes))], dim=-1)


def where(log_p: Tensor, offset: int, x: Tensor, dx: Tensor) -> str:
    """The sentence about the first pair whose log p is not a number."""
    bad = int(torch.nonzero(~torch.isfinite(log_p))[0])
    return (
        f"log p must be finite, found {float(log_p[bad])} at pair {offset + bad} (x = {x[bad].tolist()}, "
        f"dx = {dx[bad].tolist()}); check that pair or remove it."
    )
