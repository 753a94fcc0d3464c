"""The radial law by quadrature: density and tail mass, stable (`contour.py`) or tempered (`tempered.py`).

Compiled on the CPU, by torch operations on other devices and where numba is missing: the same contours and sums.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from levytorch.errors import LevytorchWarning
from levytorch.law import threads
from levytorch.law.arguments import out_of_range

GRAIN = 32  # samples that are worth a thread


@cache
def is_compiled() -> bool:
    """Whether numba can be imported; if not, torch alone: slower and otherwise the same."""
    try:
        from levytorch.law import contour_kernels  # noqa: F401
    except ImportError as error:
        warnings.warn(
            f"numba cannot be imported ({error}): the law is evaluated by torch operations, some ten times slower; "
            "install numba for the compiled kernels.",
            LevytorchWarning,
            stacklevel=2,
        )
        return False
    return True


def density(*inputs: Tensor, dim: int = 1, order: int = 1) -> Tensor:
    """log p and its derivatives in (y, A, B, alpha[, lam]), the inputs: 1-D float64 of length n or one, y >= 0.

    Returns (m, n), rows: log p; order >= 1: the first derivatives; order 2: the upper triangle of the second ones by
    rows, for the stable law yy, yA, yB, ya, AA, AB, Aa, BB, Ba, aa.
    """
    try:
        return _run("density", inputs, dim, order)
    except ZeroDivisionError:  # complex arithmetic, where a scale overflows
        raise out_of_range(0) from None


def tail(*inputs: Tensor, dim: int = 1, order: int = 1) -> Tensor:
    """P(|Y| > u) and, with order = 1, its derivatives in (u, A, B, alpha[, lam]), the inputs, u >= 0: (m, n)."""
    return _run("tail", inputs, dim, order)


def _run(what: str, inputs: tuple[Tensor, ...], dim: int, order: int) -> Tensor:
    m, n = len(inputs), max(t.numel() for t in inputs)
    kernels: ModuleType
    if inputs[0].device.type != "cpu" or not is_compiled():
        from levytorch.law import contour_torch, tempered_torch

        return getattr(contour_torch if m == 4 else tempered_torch, what)(*inputs, dim=dim, order=order)
    if m == 4:
        from levytorch.law import contour_kernels as kernels
    else:
        from levytorch.law import tempered_kernels as kernels
    out = torch.empty(((1, 1 + m, 1 + m + m * (m + 1) // 2)[order], n), dtype=torch.float64)
    arrays = [t.detach().contiguous().numpy() for t in inputs]
    threads.in_blocks(getattr(kernels, f"{what}_many"), n, *arrays, dim, order, out.numpy(), grain=GRAIN)
    return out
