"""log_density and score: the public law of one step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from levytorch.errors import InputError
from levytorch.law import threads
from levytorch.law.arguments import Numeric, broadcast, check, check_dim, to_tensors
from levytorch.law.backend import kernels
from levytorch.law.evaluation import resolve
from levytorch.law.radial import log_density_radial

TINY = 1e-280  # keeps the radius differentiable at zero; far below any displacement that is not zero


class StepScore(NamedTuple):
    """log p of a step and its derivatives in the coefficients; alpha is None where it was not asked for."""

    log_p: Tensor
    b: Tensor
    D_o: Tensor
    D_f: Tensor
    alpha: Tensor | None


def log_density(
    displacement: Numeric,
    b: Numeric,
    D_o: Numeric,
    D_f: Numeric,
    alpha: Numeric,
    dt: Numeric,
    *,
    dim: int = 1,
    method: str = "auto",
) -> Tensor:
    r"""log p of one step of dX = b dt + Sigma dW + sigma dL^alpha with frozen coefficients.

    The displacement x_next - x has the characteristic function
    exp(i k b dt - (D_o |k|^2 + D_f |k|^(2 alpha)) dt), with D_o = Sigma^2 / 2 and D_f = |sigma|^(2 alpha).

    Args:
        displacement: x_next - x; `[...]`, or `[..., dim]` for dim > 1.
        b: drift; broadcasts with displacement (`[..., dim]` or `[dim]` for dim > 1).
        D_o: ordinary diffusion >= 0. D_f: fractional diffusion > 0. alpha: in (0, 1), half the stability index.
        dt: time between the two observations.
        dim: 1, 2 or 3 (isotropic noise).
        method: `contour` is accurate everywhere (log p to 1e-12); `table` needs one alpha for all samples and is an
            order of magnitude faster (1e-9); `windowed` is the paper's quadrature (absolute tolerance: not for
            tails); `auto` chooses between the first two.

    Returns:
        log p, of the broadcast shape and the dtype of the tensors given (float64 for numbers and NumPy arrays;
        computed in float64 always). Differentiable in every argument, and twice.

    Example:
        >>> log_density(0.5, b=5.0, D_o=4.0, D_f=3.0, alpha=0.3, dt=1 / 40)
        tensor(-0.5410, dtype=torch.float64)
    """
    check_dim(dim)
    names = dict(displacement=displacement, b=b, D_o=D_o, D_f=D_f, alpha=alpha, dt=dt)
    tensors, dtype, device = to_tensors(**names)
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if dim == 1 and method != "windowed" and device.type == "cpu" and kernels() is not None:
        log_p = _Step.apply(*tensors, method, grad)
    else:
        check(**dict(zip(names, tensors)))
        log_p = _composed(*tensors, dim=dim, method=method)
    return log_p if log_p.dtype == dtype else log_p.to(dtype)


def score(
    displacement: Numeric,
    b: Numeric,
    D_o: Numeric,
    D_f: Numeric,
    alpha: Numeric,
    dt: Numeric,
    *,
    dim: int = 1,
    method: str = "auto",
    wrt_alpha: bool = False,
) -> StepScore:
    """log p and its first derivatives in b, D_o, D_f (and alpha) in one pass, without autograd.

    Arguments as in `log_density`; float64 out. For dim > 1 the derivative in b has shape `[..., dim]`.
    """
    check_dim(dim)
    names = dict(displacement=displacement, b=b, D_o=D_o, D_f=D_f, alpha=alpha, dt=dt)
    tensors, _, device = to_tensors(**names)
    tensors = [t.detach() for t in tensors]
    if dim == 1 and method != "windowed" and device.type == "cpu" and kernels() is not None:
        shape, out = _evaluate(tensors, method, 1, wrt_alpha)
        rows = [row.reshape(shape) for row in out]
        return StepScore(rows[0], -rows[1] * tensors[5], rows[2], rows[3], rows[4] if wrt_alpha else None)
    check(**dict(zip(names, tensors)))
    leaves = [t.clone().requires_grad_(k in (1, 2, 3) or (k == 4 and wrt_alpha)) for k, t in enumerate(tensors)]
    shape = _composed_shape(*tensors, dim=dim)
    with torch.enable_grad():
        full = [
            t.expand(*shape, dim).contiguous() if dim > 1 and k < 2 else (t.expand(shape) if k in (1, 2, 3, 4) else t)
            for k, t in enumerate(leaves)
        ]
        if alpha_shared := (not wrt_alpha and leaves[4].numel() == 1):
            full[4] = leaves[4]
        log_p = _composed(*full, dim=dim, method=method)
        wanted = [full[1], full[2], full[3]] + ([full[4]] if wrt_alpha and not alpha_shared else [])
        grads = torch.autograd.grad(log_p.sum(), wanted)
    return StepScore(log_p.detach(), grads[0], grads[1], grads[2], grads[3] if wrt_alpha else None)


class _Step(Function):
    """d = 1 on the CPU: one compiled pass from the six arguments to log p and the derivatives that are needed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, b: Tensor, D_o: Tensor, D_f: Tensor, alpha: Tensor, dt: Tensor, method: str, grad: bool) -> Tensor:  # fmt: skip
        tensors = (x, b, D_o, D_f, alpha, dt)
        with_alpha = grad and ctx.needs_input_grad[4]
        shape, out = _evaluate(tensors, method, int(grad), with_alpha)
        ctx.shape = shape
        if grad:
            ctx.save_for_backward(*tensors, out[1:])
        return out[0].reshape(shape)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, slopes = ctx.saved_tensors
        x, b, D_o, D_f, alpha, dt = tensors
        needs = ctx.needs_input_grad
        if torch.is_grad_enabled():
            wanted = [t for t, need in zip(tensors, needs) if need]
            log_p = _composed(*tensors, dim=1, method="contour")
            found = iter(torch.autograd.grad(log_p, wanted, g, create_graph=True))
            return (*(next(found) if need else None for need in needs[:6]), None, None)
        slopes = slopes.reshape(-1, *ctx.shape)
        by_x = g * slopes[0]
        grads: list[Tensor | None] = [None] * 6
        if needs[0]:
            grads[0] = by_x
        if needs[1]:
            grads[1] = -by_x * dt
        if needs[2]:
            grads[2] = g * slopes[1]
        if needs[3]:
            grads[3] = g * slopes[2]
        if needs[4]:
            grads[4] = g * slopes[3]
        if needs[5]:
            grads[5] = (g * (slopes[1] * D_o + slopes[2] * D_f) / dt) - by_x * b
        return (*(_to_shape(v, t) for v, t in zip(grads, tensors)), None, None)


def _to_shape(value: Tensor | None, like: Tensor) -> Tensor | None:
    return value if value is None or value.shape == like.shape else value.sum_to_size(like.shape)


_NAMES = ("displacement", "b", "D_o", "D_f", "alpha", "dt")


def _evaluate(tensors: Any, method: str, order: int, with_alpha: bool) -> tuple[torch.Size, Tensor]:
    """The compiled pass: rows log p, d/d displacement, d/d D_o, d/d D_f[, d/d alpha] over the broadcast samples."""
    shapes = {t.shape for t in tensors if t.dim() > 0}
    shape = next(iter(shapes)) if len(shapes) == 1 else broadcast(**dict(zip(_NAMES, tensors)))
    n = shape.numel()
    out = torch.empty((1 if order == 0 else 4 + with_alpha, n), dtype=torch.float64)
    alpha = tensors[4]
    if n == 0:
        check(**dict(zip(_NAMES, tensors)))
        return shape, out
    if alpha.numel() == 1 and not (0.0 < float(alpha) < 1.0):
        check(alpha=alpha)
    method = resolve(method, alpha, n, 1, with_alpha)
    arrays = [
        (t if t.numel() == 1 or t.shape == shape else t.expand(shape)).detach().contiguous().reshape(-1).numpy()
        for t in tensors
    ]
    if method == "table" and not with_alpha:
        codes = _from_table(arrays, n, order, out)
    else:
        from levytorch.law.step_kernels import contour_step

        codes = threads.run(contour_step, n, *arrays, order, with_alpha, out.numpy(), grain=32)
    if any(code >= 0 for code in codes):
        check(**dict(zip(_NAMES, tensors)))
        index = min(code for code in codes if code >= 0)
        raise InputError(
            f"the step of sample {index} leaves the range of float64: displacement - b dt, D_o dt and D_f dt must be "
            "finite, and D_f dt > 0; rescale x or t."
        )
    return shape, out


def _from_table(arrays: list[np.ndarray], n: int, order: int, out: Tensor) -> list[int]:
    from levytorch.law.step_kernels import table_step
    from levytorch.law.table import table
    from levytorch.law.table_grid import N_S

    x, b, D_o, D_f, alpha, dt = arrays
    tab = table(float(alpha[0]), 1)
    while True:
        needed = np.zeros(N_S, dtype=np.bool_)
        codes = threads.run(table_step, n, x, b, D_o, D_f, tab.alpha, dt, order, *tab.arrays, needed, out.numpy(), grain=4096)  # fmt: skip
        if not needed.any() or any(code >= 0 for code in codes):
            return codes
        tab.build(np.flatnonzero(needed).tolist())


def _composed_shape(x: Tensor, b: Tensor, D_o: Tensor, D_f: Tensor, alpha: Tensor, dt: Tensor, *, dim: int) -> torch.Size:  # fmt: skip
    tensors = dict(zip(_NAMES, (x, b, D_o, D_f, alpha, dt)))
    if dim > 1:
        for name in ("displacement", "b"):
            t = tensors[name]
            if t.shape[-1:] != (dim,) and not (name == "b" and t.numel() == 1):
                raise InputError(
                    f"{name} must have {dim} components in its last axis (dim = {dim}), but has shape {tuple(t.shape)}."
                )
            tensors[name] = t[..., 0] if t.dim() else t
    return broadcast(**tensors)


def _composed(x: Tensor, b: Tensor, D_o: Tensor, D_f: Tensor, alpha: Tensor, dt: Tensor, *, dim: int, method: str) -> Tensor:  # fmt: skip
    """The same by torch operations around the radial law: any dimension, any device, differentiable twice."""
    shape = _composed_shape(x, b, D_o, D_f, alpha, dt, dim=dim)
    n = shape.numel()
    if n == 0:
        return x.new_zeros(shape)
    shift = x - b * (dt if dim == 1 or dt.dim() == 0 else dt.unsqueeze(-1))
    square = shift * shift if dim == 1 else (shift * shift).sum(-1)
    y = torch.sqrt(square + TINY)

    def flat(t: Tensor) -> Tensor:
        return t.reshape(1) if t.numel() == 1 else t.expand(shape).reshape(-1)

    log_p = log_density_radial(flat(y), flat(D_o * dt), flat(D_f * dt), flat(alpha), dim=dim, method=method)
    return log_p.expand(n).reshape(shape)
