"""log p by torch operations around the radial law: any dimension, any device, differentiable twice.

The radial law is a function of (y, A, B, alpha): y = |displacement - b dt|, A = D_o dt, B = D_f dt. Value and analytic
derivatives come from one pass of the method chosen; a second backward pass computes the analytic second derivatives.
The compiled passes (`autograd.py`, `isotropic.py`) come here for those, and where they do not apply.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from levytorch.errors import LevytorchWarning, NumericalError
from levytorch.law import contour, windowed
from levytorch.law.arguments import Step, batch_shape, check_range, choose_method
from levytorch.law.table import evaluate as evaluate_table
from levytorch.law.table import table

TINY = 1e-280  # keeps the radius differentiable at zero; far below any displacement that is not zero
# rows of the Hessian among the outputs of order 2: (y, A, B, alpha) x (y, A, B, alpha)
_HESSIAN = ((5, 6, 7, 8), (6, 9, 10, 11), (7, 10, 12, 13), (8, 11, 13, 14))


class _Radial(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, dim: int, method: str, grad: bool) -> Tensor:
        with_alpha = grad and ctx.needs_input_grad[3]
        out = radial_rows(y, A, B, alpha, dim=dim, order=int(grad), method=method, with_alpha=with_alpha)
        ctx.dim, ctx.shared = dim, [t.numel() == 1 for t in (y, A, B, alpha)]
        if grad:
            ctx.save_for_backward(y, A, B, alpha, out[1:])
        return out[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        y, A, B, alpha, slopes = ctx.saved_tensors
        if torch.is_grad_enabled():
            slopes = _RadialScore.apply(y, A, B, alpha, ctx.dim)
        return (
            *reduce_shared(ctx, [g * slopes[k] if ctx.needs_input_grad[k] else None for k in range(4)]),
            None,
            None,
            None,
        )


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
            columns.append(column if column is None else LastDerivative.apply(column, *inputs))
        return (*reduce_shared(ctx, columns), None)


class LastDerivative(Function):
    """Passes second derivatives on, and refuses to be differentiated: they depend on the inputs beyond their graph."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *inputs: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        raise NumericalError("log_density is differentiable twice, but a third derivative was asked for.")


def reduce_shared(ctx: Any, grads: list[Tensor | None]) -> list[Tensor | None]:
    """Sum over the samples for arguments that all of them shared."""
    return [g.sum().reshape(1) if g is not None and one and g.numel() > 1 else g for g, one in zip(grads, ctx.shared)]


def log_density_by_torch(step: Step, *, dim: int, method: str) -> Tensor:
    """log p of the broadcast shape."""
    x, b, D_o, D_f, alpha, dt = step
    shape = batch_shape(step, dim)
    if shape.numel() == 0:
        return x.new_zeros(shape)
    shift = x - b * (dt if dim == 1 or dt.dim() == 0 else dt.unsqueeze(-1))
    square = shift * shift if dim == 1 else (shift * shift).sum(-1)
    y = torch.sqrt(square + TINY)

    def flat(t: Tensor) -> Tensor:
        return t.reshape(1) if t.numel() == 1 else t.expand(shape).reshape(-1)

    radial = flat(y), flat(D_o * dt), flat(D_f * dt), flat(alpha)
    check_range(*radial[:3])
    # inside an autograd.Function grad mode is always off, so it is read here
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in radial)
    return _Radial.apply(*radial, dim, method, grad).expand(shape.numel()).reshape(shape)


def partial_derivatives(step: Step, needs: Sequence[bool], g: Tensor, dim: int) -> list[Tensor | None]:
    """g times the derivative of log p in each argument that needs it, itself differentiable."""
    # aliases: the arguments may depend on each other, and each derivative must be the partial one
    step = Step(*(t.view_as(t) for t in step))
    wanted = [t for t, need in zip(step, needs) if need]
    log_p = log_density_by_torch(step, dim=dim, method="contour")
    found = iter(torch.autograd.grad(log_p, wanted, g, create_graph=True))
    return [next(found) if need else None for need in needs]


def radial_rows(
    y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, *, dim: int, order: int, method: str, with_alpha: bool
) -> Tensor:
    """Rows log p and, with order = 1, d/dy, d/dA, d/dB and d/dalpha (zero where it was not asked for)."""
    n = max(t.numel() for t in (y, A, B, alpha))
    method = choose_method(method, alpha, n, dim, with_alpha)
    if method == "contour" or (method == "table" and with_alpha):
        return contour.evaluate(y, A, B, alpha, dim=dim, order=order)
    if method == "table":
        return evaluate_table(table(float(alpha), dim), y, A, B, order)
    y, A, B, alpha = torch.broadcast_tensors(y, A, B, alpha)
    log_p, d_y, d_A, d_B, converged = windowed.evaluate(y, A, B, alpha, order=order)
    if not bool(converged.all()):
        warnings.warn(
            f"the windowed quadrature did not reach its tolerance for {int((~converged).sum())} of {n} samples; "
            "windowed.evaluate returns the flags, and method='contour' is accurate there.",
            LevytorchWarning,
            stacklevel=2,
        )
    if d_y is None or d_A is None or d_B is None:
        return log_p[None]
    return torch.stack([log_p, d_y, d_A, d_B, torch.zeros_like(log_p)])
