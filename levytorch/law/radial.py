"""log p by torch operations around the radial law: any dimension, differentiable twice.

The radial law is a function of (y, A, B, alpha): y = |displacement - b dt|, A = D_o dt, B = D_f dt. Value and analytic
derivatives come from one pass of the method chosen; a second backward pass computes the analytic second derivatives.
The compiled pass (`autograd.py`) comes here for those, and where it does not apply.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from levytorch.errors import LevytorchWarning, NumericalError
from levytorch.law import quadrature, windowed
from levytorch.law.arguments import Step, broadcast, by_name, check_range, choose_method, out_of_range

Rows = Callable[..., Tensor]
TINY = 1e-280  # keeps the radius differentiable at zero; far below any displacement that is not zero


class Radial(Function):
    """log p of a radial law, differentiable twice in its inputs: y, A, B, alpha and what else there is, 1-D of length n
    or one.

    Arguments: first(*inputs, order=, with_alpha=), which gives rows of log p and, with order = 1, of its derivatives;
    second(*inputs, order=2), which adds second ones, their upper triangle by rows; whether any are wanted; the inputs.
    """

    @staticmethod
    def forward(ctx: Any, first: Rows, second: Rows, grad: bool, *inputs: Tensor) -> Tensor:
        out = first(*inputs, order=int(grad), with_alpha=grad and ctx.needs_input_grad[6])
        ctx.second, ctx.shared = second, [t.numel() == 1 for t in inputs]
        if grad:
            ctx.save_for_backward(*inputs, out[1:])
        return out[0].clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, slopes = ctx.saved_tensors
        if torch.is_grad_enabled():
            slopes = _RadialScore.apply(ctx.second, *inputs)
        needs = ctx.needs_input_grad[3:]
        return (
            None,
            None,
            None,
            *reduce_shared(ctx, [g * slopes[k] if need else None for k, need in enumerate(needs)]),
        )


class _RadialScore(Function):
    """First derivatives of log p in the inputs, rows of a tensor, differentiable once."""

    @staticmethod
    def forward(ctx: Any, second: Rows, *inputs: Tensor) -> Tensor:
        out = second(*inputs, order=2)
        ctx.shared = [t.numel() == 1 for t in inputs]
        ctx.save_for_backward(*inputs, out)
        return out[1 : len(inputs) + 1].clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out = ctx.saved_tensors
        hessian, needs = _hessian(len(inputs)), ctx.needs_input_grad[1:]
        columns: list[Tensor | None] = []
        for k, need in enumerate(needs):
            column = (g * torch.stack([out[row[k]] for row in hessian])).sum(0) if need else None
            columns.append(column if column is None else LastDerivative.apply(column, *inputs))
        return (None, *reduce_shared(ctx, columns))


@cache
def _hessian(m: int) -> list[list[int]]:
    """Rows of the second derivatives in m inputs among the outputs of order 2, (m, m)."""
    pairs = [(i, j) for i in range(m) for j in range(i, m)]
    row = {pair: k for k, pair in enumerate(pairs, m + 1)}
    return [[row[min(i, j), max(i, j)] for j in range(m)] for i in range(m)]


class LastDerivative(Function):
    """Passes second derivatives on, and refuses to be differentiated: they depend on the inputs beyond their graph."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *inputs: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        raise NumericalError(
            "log_density must be differentiated at most twice, found a third derivative asked for; take differences "
            "of second ones."
        )


def reduce_shared(ctx: Any, grads: list[Tensor | None]) -> list[Tensor | None]:
    """Sum over the samples for arguments that all of them shared."""
    return [g.sum().reshape(1) if g is not None and one and g.numel() > 1 else g for g, one in zip(grads, ctx.shared)]


def log_density_by_torch(step: Step, lam: Tensor | None, *, method: str) -> Tensor:
    """log p of the broadcast shape; lam: the tempering, None for the stable law."""
    x, b, D_o, D_f, alpha, dt = step
    more = () if lam is None else (lam,)
    shape = broadcast(**by_name(step, lam))
    if shape.numel() == 0:
        return x.new_zeros(shape)
    shift = x - b * dt

    def flat(t: Tensor) -> Tensor:
        return t.reshape(1) if t.numel() == 1 else t.expand(shape).reshape(-1)

    inputs = [flat(t) for t in (torch.sqrt(shift * shift + TINY), D_o * dt, D_f * dt, alpha, *more)]
    check_range(*inputs[:3])
    # inside an autograd.Function grad mode is always off, so it is read here
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    first, second = partial(radial_rows, method=method), quadrature.density
    log_p = Radial.apply(first, second, grad, *inputs).expand(shape.numel()).reshape(shape)
    good = torch.isfinite(log_p.detach()) | (lam is None)
    if not bool(good.all()):
        raise out_of_range(int((~good).reshape(-1).nonzero()[0]))
    return log_p


def partial_derivatives(step: Step, needs: Sequence[bool], g: Tensor) -> list[Tensor | None]:
    """g times the derivative of log p in each argument that needs it, itself differentiable."""
    # aliases: the arguments may depend on each other, and each derivative must be the partial one
    step = Step(*(t.view_as(t) for t in step))
    wanted = [t for t, need in zip(step, needs) if need]
    log_p = log_density_by_torch(step, None, method="contour")
    found = iter(torch.autograd.grad(log_p, wanted, g, create_graph=True))
    return [next(found) if need else None for need in needs]


def radial_rows(*inputs: Tensor, order: int, method: str, with_alpha: bool) -> Tensor:
    """Rows log p and, with order = 1, d/dy, d/dA, d/dB and d/dalpha (zero where it was not asked for)[, d/dlam]."""
    if len(inputs) > 4:  # tempered: there is one method
        return quadrature.density(*inputs, order=order)
    y, A, B, alpha = inputs
    n = max(t.numel() for t in inputs)
    method = choose_method(method, alpha, n, with_alpha)
    if method != "windowed":
        return quadrature.density(*inputs, order=order)
    y, A, B, alpha = torch.broadcast_tensors(y, A, B, alpha)
    log_p, d_y, d_A, d_B, converged = windowed.evaluate(y, A, B, alpha, order=order)
    if not bool(converged.all()):
        warnings.warn(
            f"the windowed quadrature did not reach its tolerance for {int((~converged).sum())} of {n} samples; use "
            "method='contour', which is accurate there (windowed.evaluate returns the flags).",
            LevytorchWarning,
            stacklevel=2,
        )
    if d_y is None or d_A is None or d_B is None:
        return log_p[None]
    return torch.stack([log_p, d_y, d_A, d_B, torch.zeros_like(log_p)])
