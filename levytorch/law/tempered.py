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

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from levytorch.convert import common_shape
from levytorch.law import threads
from levytorch.law.arguments import Step, batch_shape, check, check_range, out_of_range
from levytorch.law.contour import GRAIN, kernels
from levytorch.law.radial import TINY, LastDerivative, reduce_shared

N_OUT = {0: 1, 1: 6, 2: 21}
NAMES = ("y", "A", "B", "alpha", "lam")
# rows of the Hessian among the outputs of order 2
_HESSIAN = ((6, 7, 8, 9, 10), (7, 11, 12, 13, 14), (8, 12, 15, 16, 17), (9, 13, 16, 18, 19), (10, 14, 17, 19, 20))


def evaluate(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor, *, dim: int = 1, order: int = 1) -> Tensor:
    """log p and its derivatives at radius y >= 0; 1-D float64 inputs of length n or one.

    Returns (m, n), rows: log p; order >= 1: d/dy, d/dA, d/dB, d/dalpha, d/dlam; order 2: the upper triangle of the
    second derivatives by rows.
    """
    n = max(t.numel() for t in (y, A, B, alpha, lam))
    if y.device.type != "cpu" or kernels() is None:
        from levytorch.law import tempered_torch

        return tempered_torch.density(y, A, B, alpha, lam, dim=dim, order=order)
    from levytorch.law.tempered_kernels import tempered_many

    out = torch.empty((N_OUT[order], n), dtype=torch.float64)
    try:
        threads.run(tempered_many, n, *_arrays(y, A, B, alpha, lam), dim, order, out.numpy(), grain=GRAIN)
    except ZeroDivisionError:  # complex arithmetic, where a scale overflows
        raise out_of_range(0) from None
    return out


def tail(u: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor, *, dim: int = 1, order: int = 1) -> Tensor:
    """P(|Y| > u) for u >= 0 and, with order = 1, its derivatives in (u, A, B, alpha, lam): (m, n)."""
    n = max(t.numel() for t in (u, A, B, alpha, lam))
    if u.device.type != "cpu" or kernels() is None:
        from levytorch.law import tempered_torch

        return tempered_torch.tail(u, A, B, alpha, lam, dim=dim, order=order)
    from levytorch.law.tempered_tail_kernels import tempered_tail_many

    out = torch.empty((N_OUT[order], n), dtype=torch.float64)
    threads.run(tempered_tail_many, n, *_arrays(u, A, B, alpha, lam), dim, order, out.numpy(), grain=GRAIN)
    return out


def _arrays(*tensors: Tensor) -> list:
    return [t.detach().contiguous().numpy() for t in tensors]


class _Radial(Function):
    """log p of the radial law, differentiable twice in (y, A, B, alpha, lam)."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *inputs, dim, grad = arguments
        out = evaluate(*inputs, dim=dim, order=int(grad))
        ctx.dim, ctx.shared = dim, [t.numel() == 1 for t in inputs]
        if grad:
            ctx.save_for_backward(*inputs, out[1:])
        return out[0].clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, slopes = ctx.saved_tensors
        if torch.is_grad_enabled():
            slopes = _RadialScore.apply(*inputs, ctx.dim)
        grads = [g * slopes[k] if ctx.needs_input_grad[k] else None for k in range(5)]
        return (*reduce_shared(ctx, grads), None, None)


class _RadialScore(Function):
    """First derivatives of log p, rows of a (5, n) tensor, differentiable once."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *inputs, dim = arguments
        out = evaluate(*inputs, dim=dim, order=2)
        ctx.shared = [t.numel() == 1 for t in inputs]
        ctx.save_for_backward(*inputs, out)
        return out[1:6].clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out = ctx.saved_tensors
        columns: list[Tensor | None] = []
        for k in range(5):
            column = (g * torch.stack([out[row[k]] for row in _HESSIAN])).sum(0) if ctx.needs_input_grad[k] else None
            columns.append(column if column is None else LastDerivative.apply(column, *inputs))
        return (*reduce_shared(ctx, columns), None)


class _Tail(Function):
    """P(|Y| > u), Y centered; 1-D tensors of one length. Differentiable once in u, A, B, alpha, lam."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *inputs, dim, grad = arguments
        out = tail(*inputs, dim=dim, order=int(grad))
        if grad:
            ctx.save_for_backward(out[1:])
        return out[0].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        return (*(g * slopes[k] if ctx.needs_input_grad[k] else None for k in range(5)), None, None)


def radial_tail(u: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor, *, dim: int = 1) -> Tensor:
    """P(|Y| > u) of the centered step, 1-D tensors of one length."""
    inputs = u, A, B, alpha, lam
    return _Tail.apply(*inputs, dim, torch.is_grad_enabled() and any(t.requires_grad for t in inputs))


def log_density(step: Step, lam: Tensor, *, dim: int) -> Tensor:
    """log p of the broadcast shape, differentiable twice in every argument."""
    check(**step._asdict(), tempering=lam)
    x, b, D_o, D_f, alpha, dt = step
    shape = common_shape(batch_shape(step, dim), lam.shape)
    if shape.numel() == 0:
        return x.new_zeros(shape)
    shift = x - b * (dt if dim == 1 or dt.dim() == 0 else dt.unsqueeze(-1))
    square = shift * shift if dim == 1 else (shift * shift).sum(-1)

    def flat(t: Tensor) -> Tensor:
        return t.reshape(1) if t.numel() == 1 else t.expand(shape).reshape(-1)

    radial = flat(torch.sqrt(square + TINY)), flat(D_o * dt), flat(D_f * dt), flat(alpha), flat(lam)
    check_range(*radial[:3])
    # inside an autograd.Function grad mode is always off, so it is read here
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in radial)
    log_p = _Radial.apply(*radial, dim, grad)
    good = torch.isfinite(log_p.detach())
    if not bool(good.all()):
        raise out_of_range(int((~good).nonzero()[0]))
    return log_p.expand(shape.numel()).reshape(shape)


def score(step: Step, lam: Tensor) -> tuple[torch.Size, list[Tensor]]:
    """d = 1 on the CPU, one compiled pass: log p, d/db, d/dD_o, d/dD_f, d/dalpha, d/dlam of the broadcast shape."""
    from levytorch.law.tempered_line import tempered_step

    tensors = [*step, lam]
    shape = common_shape(*(t.shape for t in tensors))
    out = [torch.empty(shape.numel(), dtype=torch.float64) for _ in range(6)]
    if shape.numel():
        arrays = _arrays(*((t if t.numel() == 1 else t.expand(shape)).reshape(-1) for t in tensors))
        codes = threads.run(tempered_step, shape.numel(), *arrays, tuple(r.numpy() for r in out), grain=GRAIN)
        bad = [code for code in codes if code >= 0]
        if bad:
            check(**step._asdict(), tempering=lam)
            raise out_of_range(min(bad))
    return shape, out
