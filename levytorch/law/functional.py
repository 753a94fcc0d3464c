"""log p under the transforms of torch.func: grad, vmap, jacrev, jacfwd, hessian in any order, at most two derivatives.

Everything around the radial law is torch operations; the law itself, a function of y, A, B, alpha (and lam) of each
sample by itself, is a pair of autograd functions with rules for vmap and for forward mode. They always use the contour,
or the mixture in several dimensions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from levytorch.law import quadrature
from levytorch.law.arguments import Step


def transformed(*tensors: Tensor | None) -> bool:
    """Whether a transform of torch.func looks at one of the tensors."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return any(t is not None and wrapped(t) for t in tensors)


def log_density_in_transforms(step: Step, lam: Tensor | None, dim: int) -> Tensor:
    """log p of the broadcast shape; values are not checked, which a transform would not allow."""
    x, b, D_o, D_f, alpha, dt = step
    shift = x - b * (dt if dim == 1 or dt.dim() == 0 else dt.unsqueeze(-1))
    y = shift.abs() if dim == 1 else torch.sqrt((shift * shift).sum(-1) + torch.finfo(torch.float64).tiny)
    inputs = torch.broadcast_tensors(y, D_o * dt, D_f * dt, alpha, *(() if lam is None else (lam,)))
    return _LogP.apply(dim, *inputs)


def _rows(dim: int, inputs: tuple[Tensor, ...], order: int) -> Tensor:
    """Rows of log p and of its derivatives up to an order, each of the shape of the inputs."""
    flat = [t.reshape(-1).contiguous() for t in inputs]
    if not flat[0].numel():
        m = len(flat)
        return flat[0].new_zeros((1 + (order > 0) * m + (order > 1) * m * (m + 1) // 2, *inputs[0].shape))
    if dim > 1:
        from levytorch.law.several import radial_rows

        out = radial_rows(dim, flat, order)
    else:
        out = quadrature.density(*flat, order=order)
    return out.reshape(out.shape[0], *inputs[0].shape)


def _hessian(rows: Tensor, m: int) -> list[list[Tensor]]:
    """(m, m) of second derivatives, which follow log p and the first ones, their upper triangle by rows."""
    pairs = [(i, j) for i in range(m) for j in range(i, m)]
    at = {pair: rows[k] for k, pair in enumerate(pairs, m + 1)}
    return [[at[min(i, j), max(i, j)] for j in range(m)] for i in range(m)]


def _batched(info: Any, in_dims: tuple[Any, ...], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """All inputs with the axis of vmap in front: samples do not see each other."""
    out = []
    for t, at in zip(inputs, in_dims):
        out.append(t.unsqueeze(0).expand(info.batch_size, *t.shape) if at is None else t.movedim(at, 0))
    return out


class _LogP(Function):
    """log p of (y, A, B, alpha[, lam]), all of one shape."""

    @staticmethod
    def forward(dim: int, *inputs: Tensor) -> Tensor:
        return _rows(dim, inputs, 0)[0].clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.dim = inputs[0]
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        slopes = _Slopes.apply(ctx.dim, *ctx.saved_tensors)
        return (None, *(g * slope if need else None for slope, need in zip(slopes, ctx.needs_input_grad[1:])))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Tensor:
        slopes = _Slopes.apply(ctx.dim, *ctx.saved_tensors)
        return sum((s * t for s, t in zip(slopes, tangents) if t is not None), torch.zeros_like(slopes[0]))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], dim: int, *inputs: Tensor) -> tuple[Tensor, int]:
        return _LogP.apply(dim, *_batched(info, in_dims[1:], inputs)), 0


class _Slopes(Function):
    """The first derivatives of log p in its inputs, differentiable once."""

    @staticmethod
    def forward(dim: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(row.clone() for row in _rows(dim, inputs, 1)[1 : len(inputs) + 1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.dim = inputs[0]
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        m = len(ctx.saved_tensors)
        second = _Second.apply(ctx.dim, *ctx.saved_tensors)
        columns = [sum(g[j] * second[m * j + k] for j in range(m)) for k in range(m)]
        return (None, *columns)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        m = len(ctx.saved_tensors)
        second = _Second.apply(ctx.dim, *ctx.saved_tensors)
        zero = torch.zeros_like(second[0])
        return tuple(
            sum((second[m * j + k] * t for k, t in enumerate(tangents) if t is not None), zero) for j in range(m)
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], dim: int, *inputs: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        out = _Slopes.apply(dim, *_batched(info, in_dims[1:], inputs))
        return out, (0,) * len(out)


class _Second(Function):
    """The second derivatives, row by row; there are no third ones."""

    @staticmethod
    def forward(dim: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        rows = _hessian(_rows(dim, inputs, 2), len(inputs))
        return tuple(entry.clone() for row in rows for entry in row)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[None, ...]:
        return (None,) * (1 + len(ctx.needs_input_grad[1:]))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], dim: int, *inputs: Tensor) -> tuple[tuple[Tensor, ...], Any]:
        out = _Second.apply(dim, *_batched(info, in_dims[1:], inputs))
        return out, (0,) * len(out)
