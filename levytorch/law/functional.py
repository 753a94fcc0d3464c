"""log p by torch operations around the radial law, differentiable twice: by autograd, and by torch.func's grad, vmap,
jacrev, jacfwd and hessian in any order.

The radial law is a function of (y, A, B, alpha[, lam]) of each sample by itself: y = |displacement - b dt|, A = D_o dt,
B = D_f dt. Value and analytic derivatives come from one pass of the method chosen; what is differentiated again comes
from passes with one more order. The compiled pass (`autograd.py`) comes here for second derivatives, and where it does
not apply.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from levytorch.errors import LevytorchWarning
from levytorch.law import quadrature, windowed
from levytorch.law.arguments import Step, broadcast, check_range, choose_method, out_of_range, third_derivative

TINY = 1e-280  # keeps the radius differentiable at zero; far below any displacement that is not zero


def transformed(*tensors: Tensor | None) -> bool:
    """Whether a transform of torch.func looks at one of the tensors."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return any(t is not None and wrapped(t) for t in tensors)


def log_density_in_transforms(step: Step, dim: int) -> Tensor:
    """log p of the broadcast shape; values are not checked, which a transform would not allow."""
    inputs = torch.broadcast_tensors(*_radial(step, dim))
    log_p: Tensor = _LogP.apply(dim, "contour", 0, *inputs)[0]
    return log_p


def _radial(step: Step, dim: int) -> list[Tensor]:
    x, b, D_o, D_f, alpha, dt = step[:6]
    shift = x - b * (dt if dim == 1 or dt.dim() == 0 else dt.unsqueeze(-1))
    square = shift * shift if dim == 1 else (shift * shift).sum(-1)
    return [torch.sqrt(square + TINY), D_o * dt, D_f * dt, alpha, *step.rate]


def log_density_by_torch(step: Step, *, method: str) -> Tensor:
    """log p of the broadcast shape, on a line."""
    shape = broadcast(**step.by_name())
    if shape.numel() == 0:
        return step.displacement.new_zeros(shape)
    method = choose_method(method, step.alpha, shape.numel(), step.alpha.requires_grad)
    inputs = _radial(step, 1)
    check_range(*torch.broadcast_tensors(*inputs[:3]))
    # inside an autograd.Function grad mode is always off, so it is read here
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    log_p: Tensor = _LogP.apply(1, method, int(grad), *(t.expand(shape) for t in inputs))[0]
    good = torch.isfinite(log_p.detach()) | (step.tempering is None)
    if not bool(good.all()):
        raise out_of_range(int((~good).reshape(-1).nonzero()[0]))
    return log_p


def partial_derivatives(step: Step, needs: Sequence[bool], g: Tensor) -> list[Tensor | None]:
    """g times the derivative of log p in each argument that needs it, itself differentiable."""
    # aliases: the arguments may depend on each other, and each derivative must be the partial one
    step = step.each(lambda t: t.view_as(t))
    wanted = [t for t, need in zip(step[:6], needs) if need]
    inputs = [t.expand(g.shape) for t in _radial(step, 1)]
    check_range(*inputs[:3])
    moved = [(t, g * slope) for t, slope in zip(inputs, _Slopes.apply(1, (), *inputs)) if t.requires_grad]
    outputs, grads = zip(*moved)
    found = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=True))
    return [next(found) if need else None for need in needs]


def _rows(dim: int, method: str, inputs: tuple[Tensor, ...], order: int) -> Tensor:
    """Rows of log p and of its derivatives up to an order, each of the shape of the inputs."""
    flat = [t.reshape(-1).contiguous() for t in inputs]
    if not flat[0].numel():
        m = len(flat)
        return flat[0].new_zeros((1 + (order > 0) * m + (order > 1) * m * (m + 1) // 2, *inputs[0].shape))
    if dim > 1:
        from levytorch.law.several import radial_rows

        out = radial_rows(dim, flat, order)
    elif method == "windowed" and order < 2:
        out = _windowed(order, *flat)
    else:
        out = quadrature.density(*flat, order=order)
    return out.reshape(out.shape[0], *inputs[0].shape)


def _windowed(order: int, y: Tensor, A: Tensor, B: Tensor, alpha: Tensor) -> Tensor:
    """Rows log p and, with order = 1, d/dy, d/dA, d/dB and zero for d/dalpha."""
    log_p, d_y, d_A, d_B, converged = windowed.evaluate(y, A, B, alpha, order=order)
    if not bool(converged.all()):
        warnings.warn(
            f"the windowed quadrature did not reach its tolerance for {int((~converged).sum())} of {len(y)} samples; "
            "use method='contour', which is accurate there (windowed.evaluate returns the flags).",
            LevytorchWarning,
            stacklevel=2,
        )
    if d_y is None or d_A is None or d_B is None:
        return log_p[None]
    return torch.stack([log_p, d_y, d_A, d_B, torch.zeros_like(log_p)])


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
    """log p of (y, A, B, alpha[, lam]), all of one shape; order 1: with its first derivatives, kept for backward."""

    @staticmethod
    def forward(dim: int, method: str, order: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(row.clone() for row in _rows(dim, method, inputs, order)[: 1 + order * len(inputs)])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.dim, _, ctx.order, *tensors = inputs
        ctx.m = len(tensors)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output[1:])
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[3:]
        if g is None:
            return (None, None, None, *(None for _ in needs))
        tensors, slopes = ctx.saved_tensors[: ctx.m], ctx.saved_tensors[ctx.m :]
        if torch.is_grad_enabled() or not slopes:
            slopes = _Slopes.apply(ctx.dim, slopes, *tensors)
        return (None, None, None, *(g * slope if need else None for slope, need in zip(slopes, needs)))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor | None, ...]:
        slopes = _Slopes.apply(ctx.dim, (), *ctx.saved_tensors[: ctx.m])
        moved = sum((s * t for s, t in zip(slopes, tangents[3:]) if t is not None), torch.zeros_like(slopes[0]))
        return (moved, *[None] * (ctx.order * ctx.m))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], dim: int, method: str, order: int, *inputs: Tensor) -> Any:
        out = _LogP.apply(dim, method, order, *_batched(info, in_dims[3:], inputs))
        return out, (0,) * len(out)


class _Slopes(Function):
    """The first derivatives of log p in its inputs, differentiable once; known: their values, where they are kept."""

    @staticmethod
    def forward(dim: int, known: tuple[Tensor, ...], *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(row.clone() for row in known or _rows(dim, "contour", inputs, 1)[1 : len(inputs) + 1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.dim = inputs[0]
        ctx.save_for_backward(*inputs[2:])
        ctx.save_for_forward(*inputs[2:])

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[Tensor | None, ...]:
        m = len(ctx.saved_tensors)
        second = _Second.apply(ctx.dim, *ctx.saved_tensors)
        return (None, None, *(sum(g[j] * second[m * j + k] for j in range(m)) for k in range(m)))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor, ...]:
        m = len(ctx.saved_tensors)
        second = _Second.apply(ctx.dim, *ctx.saved_tensors)
        zero = torch.zeros_like(second[0])
        return tuple(
            sum((second[m * j + k] * t for k, t in enumerate(tangents[2:]) if t is not None), zero) for j in range(m)
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], dim: int, known: tuple[()], *inputs: Tensor) -> Any:
        out = _Slopes.apply(dim, known, *_batched(info, in_dims[2:], inputs))
        return out, (0,) * len(out)


class _Second(Function):
    """The second derivatives, row by row; there are no third ones."""

    @staticmethod
    def forward(dim: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        rows = _hessian(_rows(dim, "contour", inputs, 2), len(inputs))
        return tuple(entry.clone() for row in rows for entry in row)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> tuple[None, ...]:
        raise third_derivative()

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise third_derivative()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], dim: int, *inputs: Tensor) -> Any:
        out = _Second.apply(dim, *_batched(info, in_dims[1:], inputs))
        return out, (0,) * len(out)
