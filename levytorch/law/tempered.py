"""The law of one step with tempered jumps: quadrature on a hyperbola, d = 1, 2, 3, value and derivatives.

Jumps beyond 1 / lam are exponentially rare. With A = D_o dt, B = D_f dt, y = |displacement - b dt|,

    p(y) = 1/pi Re int exp(i y k - A k^2 - B ((k^2 + lam^2)^alpha - lam^(2 alpha))) dk

in one dimension, with the waves of `contour.py` in more. lam = 0 is the stable law. For lam > 0 the integrand is
analytic but for the cuts from +-i lam outwards, so that the line may be lifted to pass the imaginary axis at any
0 <= s < lam, and its ends may be turned upwards:

    k = i s + sigma (sinh(tau + i theta) - i sin(theta)),

a hyperbola, on which the trapezoid rule in tau converges exponentially: there is no end point and nothing is singular.

- s is the saddle, y = 2 A s + 2 alpha B s (lam^2 - s^2)^(alpha - 1), but keeps 2 / sqrt(y^2 + 4 A) from the branch
  point (y counted beyond 2 A lam), which costs a factor e^2 at most. exp(-y s + ...) is taken out, hence the relative
  accuracy far into the exponential tail.
- split, when B (k^2 + lam^2)^alpha < 0.1 where it matters: the Gaussian is taken out in closed form and the rest
  carries expm1(-B (k^2 + lam^2)^alpha); s is then y / 2A, as near to the branch point. Unsplit otherwise, relative to
  the value at i s: B lam^(2 alpha) may be a million.
- theta opens where waves outlive the decay of the integrand, sigma is the width of the saddle or the distance to the
  branch point. Small lam costs nodes (26 per decade), not digits; when lam times the width of the law is below 1e-14,
  the law is the stable one times exp(B lam^(2 alpha)).

The same nodes give all derivatives. Where lam -> 0, d log p / d lam ~ lam^(2 alpha - 1) diverges for alpha < 1/2: learn
lam^(2 alpha). Accuracy (300 points by mpmath, alpha in [0.05, 0.97], log p down to -165): log p within 1e-13
on the line; 1e-12 in space and 1e-9 in the plane (40 points each).
"""

from __future__ import annotations

import torch
from torch import Tensor

from levytorch.convert import common_shape
from levytorch.law import threads
from levytorch.law.arguments import Step, check_values, out_of_range
from levytorch.law.contour import GRAIN, as_arrays, compiled_kernels
from levytorch.law.radial import log_density_of

N_OUT = {0: 1, 1: 6, 2: 21}


def evaluate(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor, *, dim: int = 1, order: int = 1) -> Tensor:
    """log p and its derivatives at radius y >= 0; 1-D float64 inputs of length n or one.

    Returns (m, n), rows: log p; order >= 1: d/dy, d/dA, d/dB, d/dalpha, d/dlam; order 2: the upper triangle of the
    second derivatives by rows.
    """
    n = max(t.numel() for t in (y, A, B, alpha, lam))
    if y.device.type != "cpu" or compiled_kernels() is None:
        from levytorch.law import tempered_torch

        return tempered_torch.density(y, A, B, alpha, lam, dim=dim, order=order)
    from levytorch.law.tempered_kernels import tempered_many

    out = torch.empty((N_OUT[order], n), dtype=torch.float64)
    try:
        threads.run(tempered_many, n, *as_arrays(y, A, B, alpha, lam), dim, order, out.numpy(), grain=GRAIN)
    except ZeroDivisionError:  # complex arithmetic, where a scale overflows
        raise out_of_range(0) from None
    return out


def tail(u: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor, *, dim: int = 1, order: int = 1) -> Tensor:
    """P(|Y| > u) for u >= 0 and, with order = 1, its derivatives in (u, A, B, alpha, lam): (m, n)."""
    n = max(t.numel() for t in (u, A, B, alpha, lam))
    if u.device.type != "cpu" or compiled_kernels() is None:
        from levytorch.law import tempered_torch

        return tempered_torch.tail(u, A, B, alpha, lam, dim=dim, order=order)
    from levytorch.law.tempered_tail_kernels import tempered_tail_many

    out = torch.empty((N_OUT[order], n), dtype=torch.float64)
    threads.run(tempered_tail_many, n, *as_arrays(u, A, B, alpha, lam), dim, order, out.numpy(), grain=GRAIN)
    return out


def log_density(step: Step, lam: Tensor, *, dim: int) -> Tensor:
    """log p of the broadcast shape, differentiable twice in every argument."""
    check_values(**step._asdict(), tempering=lam)

    def rows(*inputs: Tensor, order: int, with_alpha: bool = True) -> Tensor:
        return evaluate(*inputs, dim=dim, order=order)

    log_p = log_density_of(rows, rows, step, dim, lam)
    good = torch.isfinite(log_p.detach())
    if not bool(good.all()):
        raise out_of_range(int((~good).reshape(-1).nonzero()[0]))
    return log_p


def score(step: Step, lam: Tensor) -> tuple[torch.Size, list[Tensor]]:
    """d = 1 on the CPU, one compiled pass: log p, d/db, d/dD_o, d/dD_f, d/dalpha, d/dlam of the broadcast shape."""
    from levytorch.law.tempered_line import tempered_step

    tensors = [*step, lam]
    shape = common_shape(*(t.shape for t in tensors))
    out = [torch.empty(shape.numel(), dtype=torch.float64) for _ in range(6)]
    if shape.numel():
        arrays = as_arrays(*((t if t.numel() == 1 else t.expand(shape)).reshape(-1) for t in tensors))
        codes = threads.run(tempered_step, shape.numel(), *arrays, tuple(r.numpy() for r in out), grain=GRAIN)
        bad = [code for code in codes if code >= 0]
        if bad:
            check_values(**step._asdict(), tempering=lam)
            raise out_of_range(min(bad))
    return shape, out
