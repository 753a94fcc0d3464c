"""The law of one step by quadrature on a rotated contour: any alpha, d = 1, 2, 3, value and derivatives.

With A = D_o dt, B = D_f dt, y = |displacement - b dt| (paper, Appendix D):

    p_d(y) = Re int r^(d-1) h_d(y r) exp(-A r^2 - B r^(2 alpha)) dr,
    h_1 = exp(i z) / pi,   h_2 = H_0^(1)(z) / (2 pi),   h_3 = -i exp(i z) / (2 pi^2 z).

The half line is rotated by theta, which turns oscillation into decay and keeps *relative* accuracy in the tail. Two
paths:

- split, when B L^(-2 alpha) < 1 with L = sqrt(y^2 + 4 A): the Gaussian is taken out in closed form and the rest carries
  expm1(-B r^(2 alpha)), so that a tail of 1e-300 keeps its digits;
- unsplit otherwise, in units of B^(1 / (2 alpha)).

All derivatives come from the same nodes: d/dy from h_{d+2} (d p_d / dy = -2 pi y p_{d+2}), d/dA from -r^2, d/dB from
-r^(2 alpha), d/dalpha from -2 B r^(2 alpha) log r, and their products for second derivatives.

Accuracy (measured against 50-digit values, alpha in [0.05, 0.97], y up to 1e12): log p within 1e-13, first derivatives
within 1e-11 of their natural scale.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from levytorch.errors import LevytorchWarning
from levytorch.law import threads

N_OUT = {0: 1, 1: 5, 2: 15}
GRAIN = 32  # samples that are worth a thread


@cache
def compiled_kernels() -> ModuleType | None:
    """levytorch.law.kernels, or None when numba cannot be imported: torch alone, slower and otherwise the same."""
    try:
        from levytorch.law import kernels as module
    except ImportError as error:
        warnings.warn(
            f"numba cannot be imported ({error}): the law is evaluated by torch operations, some ten times slower; "
            "install numba for the compiled kernels.",
            LevytorchWarning,
            stacklevel=2,
        )
        return None
    return module


def evaluate(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, *, dim: int = 1, order: int = 1) -> Tensor:
    """log p and its derivatives at radius y >= 0; 1-D float64 inputs of length n or one.

    Returns (m, n), rows: log p; order >= 1: d/dy, d/dA, d/dB, d/dalpha; order 2: the second derivatives
    yy, yA, yB, ya, AA, AB, Aa, BB, Ba, aa.
    """
    n = max(t.numel() for t in (y, A, B, alpha))
    compiled = compiled_kernels() if y.device.type == "cpu" else None
    if compiled is None:
        from levytorch.law import contour_torch

        return contour_torch.density(y, A, B, alpha, dim=dim, order=order)
    out = torch.empty((N_OUT[order], n), dtype=torch.float64)
    threads.run(compiled.density_many, n, *as_arrays(y, A, B, alpha), dim, order, out.numpy(), grain=GRAIN)
    return out


def tail(u: Tensor, A: Tensor, B: Tensor, alpha: Tensor, *, dim: int = 1, order: int = 1) -> Tensor:
    """P(|Y| > u) for u >= 0 and, with order = 1, its derivatives in (u, A, B, alpha): (m, n)."""
    n = max(t.numel() for t in (u, A, B, alpha))
    if u.device.type != "cpu" or compiled_kernels() is None:
        from levytorch.law import contour_torch

        return contour_torch.tail(u, A, B, alpha, dim=dim, order=order)
    from levytorch.law.tail_kernels import tail_many

    out = torch.empty((N_OUT[order], n), dtype=torch.float64)
    threads.run(tail_many, n, *as_arrays(u, A, B, alpha), dim, order, out.numpy(), grain=GRAIN)
    return out


def as_arrays(*tensors: Tensor) -> list:
    """What compiled kernels take."""
    return [t.detach().contiguous().numpy() for t in tensors]
