"""log p as a differentiable function of (y, A, B, alpha), y >= 0 the distance from the drifted position.

Value and analytic derivatives come from one pass of the quadrature; a second backward pass computes the analytic
second derivatives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from levytorch.errors import NumericalError
from levytorch.law import contour
from levytorch.law.evaluation import evaluate

# rows of the Hessian among the outputs of order 2: (y, A, B, alpha) x (y, A, B, alpha)
_HESSIAN = ((5, 6, 7, 8), (6, 9, 10, 11), (7, 10, 12, 13), (8, 11, 13, 14))


class _Radial(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, dim: int, method: str, grad: bool) -> Tensor:
        with_alpha = grad and ctx.needs_input_grad[3]
        out = evaluate(y, A, B, alpha, dim=dim, order=int(grad), method=method, with_alpha=with_alpha)
        ctx.dim, ctx.shared = dim, [t.numel() == 1 for t in (y, A, B, alpha)]
        if grad:
            ctx.save_for_backward(y, A, B, alpha, out[1:])
        return out[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        y, A, B, alpha, slopes = ctx.saved_tensors
        if torch.is_grad_enabled():
            slopes = _RadialScore.apply(y, A, B, alpha, ctx.dim)
        return (*_reduce(ctx, [g * slopes[k] if ctx.needs_input_grad[k] else None for k in range(4)]), None, None, None)


class _RadialScore(Function):
    """First derivatives of log p in (y, A, B, alpha), rows of a (4, n) tensor, differentiable once."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, dim: int) -> Tensor:
        out = contour.evaluate(y, A, B, alpha, dim=dim, order=2)
        ctx.shared = [t.numel() == 1 for t in (y, A, B, alpha)]
        ctx.save_for_backward(y, A, B, alpha, out)
        return out[1:5].clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out = ctx.saved_tensors
        columns: list[Tensor | None] = []
        for k in range(4):
            column = (g * torch.stack([out[row[k]] for row in _HESSIAN])).sum(0) if ctx.needs_input_grad[k] else None
            columns.append(column if column is None else _LastDerivative.apply(column, *inputs))
        return (*_reduce(ctx, columns), None)


class _LastDerivative(Function):
    """Passes second derivatives on, and refuses to be differentiated: they depend on the inputs beyond their graph."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *inputs: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        raise NumericalError("log_density is differentiable twice, but a third derivative was asked for.")


def _reduce(ctx: Any, grads: list[Tensor | None]) -> list[Tensor | None]:
    """Sum over the samples for arguments that all of them shared."""
    return [g.sum().reshape(1) if g is not None and one and g.numel() > 1 else g for g, one in zip(grads, ctx.shared)]


def log_density_radial(
    y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, *, dim: int, method: str, grad: bool | None = None
) -> Tensor:
    """log p for 1-D float64 tensors of length n or one."""
    if grad is None:
        # inside an autograd.Function grad mode is always off, so it is read here
        grad = torch.is_grad_enabled() and any(t.requires_grad for t in (y, A, B, alpha))
    return _Radial.apply(y, A, B, alpha, dim, method, grad)
