"""The law on a line by quadrature: density and tail mass, stable (`contour_kernels`) or tempered (`tempered_line`)."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from levytorch.law import threads
from levytorch.law.arguments import out_of_range

GRAIN = 32  # samples that are worth a thread


def density(*inputs: Tensor, order: int = 1) -> Tensor:
    """log p and its derivatives in (y, A, B, alpha[, lam]), the inputs: 1-D float64 of length n or one, y >= 0.

    Returns (m, n), rows: log p; order >= 1: the first derivatives; order 2: the upper triangle of the second ones by
    rows, for the stable law yy, yA, yB, ya, AA, AB, Aa, BB, Ba, aa.
    """
    try:
        return _run("density_many", inputs, order)
    except ZeroDivisionError:  # complex arithmetic, where a scale overflows
        raise out_of_range(0) from None


def tail(*inputs: Tensor, order: int = 1) -> Tensor:
    """P(|Y| > u) and, with order = 1, its derivatives in (u, A, B, alpha[, lam]), the inputs, u >= 0: (m, n)."""
    return _run("tail_many", inputs, order)


def _run(kernel: str, inputs: tuple[Tensor, ...], order: int) -> Tensor:
    m, n = len(inputs), max(t.numel() for t in inputs)
    kernels: ModuleType
    if m == 4:
        from levytorch.law import contour_kernels as kernels
    else:
        from levytorch.law import tempered_kernels as kernels
    out = torch.empty(((1, 1 + m, 1 + m + m * (m + 1) // 2)[order], n), dtype=torch.float64)
    arrays = [t.detach().contiguous().numpy() for t in inputs]
    threads.in_blocks(getattr(kernels, kernel), n, *arrays, order, out.numpy(), grain=GRAIN)
    return out
