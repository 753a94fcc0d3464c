"""log_density and score: the public law of one step, and the autograd function behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from levytorch.convert import common_shape, switch
from levytorch.law import isotropic, tempered, threads
from levytorch.law.arguments import (
    Numeric,
    Step,
    batch_shape,
    broadcast,
    check_dim,
    check_method,
    check_tempered_method,
    check_values,
    choose_method,
    out_of_range,
    to_tensors,
)
from levytorch.law.contour import compiled_kernels
from levytorch.law.radial import log_density_by_torch, partial_derivatives
from levytorch.law.table import table
from levytorch.law.table_grid import N_S


class StepScore(NamedTuple):
    """log p of a step and its derivatives in the coefficients; None where one was not asked for."""

    log_p: Tensor
    b: Tensor
    D_o: Tensor
    D_f: Tensor
    alpha: Tensor | None
    tempering: Tensor | None = None


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
    tempering: Numeric = 0.0,
) -> Tensor:
    r"""log p of one step of dX = b dt + Sigma dW + sigma dL^alpha with frozen coefficients.

    The displacement x_next - x has the characteristic function
    exp(i k b dt - (D_o |k|^2 + D_f |k|^(2 alpha)) dt), with D_o = Sigma^2 / 2 and D_f = |sigma|^(2 alpha). Tempering
    lam > 0 makes jumps beyond 1 / lam exponentially rare: (|k|^2 + lam^2)^alpha - lam^(2 alpha) instead of
    |k|^(2 alpha).

    Args:
        displacement: x_next - x; `[...]`, or `[..., dim]` for dim > 1.
        b: drift; broadcasts with displacement (`[..., dim]` or `[dim]` for dim > 1).
        D_o: ordinary diffusion >= 0.
        D_f: fractional diffusion > 0.
        alpha: in (0, 1), half the stability index; one for all, or one per sample.
        dt: time between the two observations.
        dim: 1, 2 or 3 (isotropic noise).
        method: `contour` is accurate everywhere (log p to 1e-12); `table` needs one alpha for all samples and is an
            order of magnitude faster (1e-9); `windowed` is the paper's quadrature (absolute tolerance: not for
            tails); `auto` is the table where one alpha is shared by 20,000 samples or more and needs no derivative,
            else the contour (in a loop over small batches of one alpha say `table`: it is made once per process).
        tempering: lam >= 0, per unit of length; one for all, or one per sample. There is no table for lam > 0: the
            contour always.

    Returns:
        log p, of the broadcast shape and the dtype of the tensors given (float64 for numbers and NumPy arrays;
        computed in float64 always). Differentiable in every argument, and twice.

    Example:
        >>> log_density(0.5, b=5.0, D_o=4.0, D_f=3.0, alpha=0.3, dt=1 / 40)
        tensor(-0.5410, dtype=torch.float64)
    """
    check_dim(dim)
    check_method(method)
    tensors, dtype, device = to_tensors(displacement=displacement, b=b, D_o=D_o, D_f=D_f, alpha=alpha, dt=dt)
    step = Step(*tensors)
    lam = _tempering(tempering, device)
    if lam is not None:
        check_tempered_method(method)
        log_p = tempered.log_density(step, lam, dim=dim)
        return log_p if log_p.dtype == dtype else log_p.to(dtype)
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in step)
    if _fused(dim, method, device):
        log_p = _FusedStep.apply(*step, method, grad)
    elif isotropic.applies(step, dim, method := _chosen(step, method, dim), device):
        log_p = isotropic.IsotropicStep.apply(*step, batch_shape(step, dim), dim, grad)
    else:
        check_values(**step._asdict())
        log_p = log_density_by_torch(step, dim=dim, method=method)
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
    tempering: Numeric = 0.0,
) -> StepScore:
    """log p and its first derivatives in b, D_o, D_f (and alpha, and tempering) in one pass, without autograd.

    Arguments as in `log_density`; float64 out, of the broadcast shape (b: `[..., dim]` for dim > 1). The derivative in
    tempering is there whenever tempering is a tensor or not zero.
    """
    check_dim(dim)
    check_method(method)
    wrt_alpha = switch("wrt_alpha", wrt_alpha)
    tensors, _, device = to_tensors(displacement=displacement, b=b, D_o=D_o, D_f=D_f, alpha=alpha, dt=dt)
    step = Step(*(t.detach() for t in tensors))
    lam = _tempering(tempering, device)
    if lam is not None:
        check_tempered_method(method)
        return _tempered_score(step, lam.detach(), dim, wrt_alpha)
    if _fused(dim, method, device):
        shape, flat = _evaluate(step, method, 1, wrt_alpha)
        _refuse_nonfinite(flat)
        rows = [row.reshape(shape) for row in flat]
        return StepScore(rows[0], rows[1], rows[2], rows[3], rows[4] if wrt_alpha else None)
    shape = batch_shape(step, dim)
    if isotropic.applies(step, dim, method := _chosen(step, method, dim, wrt_alpha), device) and not wrt_alpha:
        out, by_b = isotropic.evaluate(step, shape, dim, True)
        _refuse_nonfinite([*out, by_b.reshape(-1)])
        return StepScore(
            out[0].reshape(shape), by_b.reshape(*shape, dim), out[1].reshape(shape), out[2].reshape(shape), None
        )
    check_values(**step._asdict())
    if shape.numel() == 0:
        empty = step.D_o.new_zeros(shape)
        return StepScore(empty, step.D_o.new_zeros((*shape, dim)), empty, empty, empty if wrt_alpha else None)
    # leaves of the full shape, so that each sample has its own derivative
    vector = torch.Size((*shape, dim)) if dim > 1 else shape
    leaves = {"b": step.b.expand(vector), "D_o": step.D_o.expand(shape), "D_f": step.D_f.expand(shape)}
    if wrt_alpha:
        leaves["alpha"] = step.alpha.expand(shape)
    leaves = {name: t.clone().requires_grad_() for name, t in leaves.items()}
    with torch.enable_grad():
        log_p = log_density_by_torch(step._replace(**leaves), dim=dim, method=method)
        grads = dict(zip(leaves, torch.autograd.grad(log_p.sum(), list(leaves.values()))))
    _refuse_nonfinite([log_p.detach().reshape(-1), *(g.reshape(-1) for g in grads.values())])
    return StepScore(log_p.detach(), grads["b"], grads["D_o"], grads["D_f"], grads.get("alpha"))


def _tempering(given: Numeric, device: torch.device) -> Tensor | None:
    """None for the number zero: the stable law."""
    if isinstance(given, (int, float)) and not isinstance(given, bool) and given == 0:
        return None
    (lam,), _, _ = to_tensors(tempering=given)
    lam = lam.to(device=device)
    if not lam.requires_grad and lam.dim() == 0 and not isinstance(given, Tensor) and float(lam) == 0.0:
        return None
    return lam


def _tempered_score(step: Step, lam: Tensor, dim: int, wrt_alpha: bool) -> StepScore:
    if _fused(dim, "contour", step.D_o.device):
        shape, flat = tempered.score(step, lam)
        _refuse_nonfinite(flat)
        rows = [row.reshape(shape) for row in flat]
        return StepScore(rows[0], rows[1], rows[2], rows[3], rows[4] if wrt_alpha else None, rows[5])
    check_values(**step._asdict(), tempering=lam)
    shape = common_shape(batch_shape(step, dim), lam.shape)
    vector = torch.Size((*shape, dim)) if dim > 1 else shape
    names = ["b", "D_o", "D_f", *(["alpha"] if wrt_alpha else [])]
    whole = {name: getattr(step, name).expand(vector if name == "b" else shape) for name in names}
    leaves = {name: t.clone().requires_grad_() for name, t in whole.items()}
    rate = lam.expand(shape).clone().requires_grad_()
    with torch.enable_grad():
        log_p = tempered.log_density(step._replace(**leaves), rate, dim=dim)
        found = torch.autograd.grad(log_p.sum(), [*leaves.values(), rate])
    grads = dict(zip(leaves, found))
    _refuse_nonfinite([log_p.detach().reshape(-1), *(g.reshape(-1) for g in found)])
    return StepScore(log_p.detach(), grads["b"], grads["D_o"], grads["D_f"], grads.get("alpha"), found[-1])


def _refuse_nonfinite(rows: Sequence[Tensor]) -> None:
    """The law's derivatives divide by A^2 and by B, which leaves float64 when D_o dt or D_f dt is all but zero."""
    for row in rows:
        if not math.isfinite(float(row.sum())):  # one pass without a temporary; a sum may overflow, an entry may not
            good = torch.isfinite(row)
            if not bool(good.all()):
                raise out_of_range(int((~good).nonzero()[0]))


def _fused(dim: int, method: str, device: torch.device) -> bool:
    """Whether the compiled one-pass evaluation applies."""
    return dim == 1 and method != "windowed" and device.type == "cpu" and compiled_kernels() is not None


def _chosen(step: Step, method: str, dim: int, wrt_alpha: bool = False) -> str:
    """What `auto` stands for in d > 1."""
    if method != "auto" or dim == 1:
        return method
    with_alpha = wrt_alpha or (step.alpha.requires_grad and torch.is_grad_enabled())
    return choose_method(method, step.alpha, batch_shape(step, dim).numel(), dim, with_alpha)


class _FusedStep(Function):
    """d = 1 on the CPU: one compiled pass from the six arguments to log p and the derivatives that are needed."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, method, grad = arguments
        ctx.shape, out = _evaluate(Step(*tensors), method, int(grad), grad and ctx.needs_input_grad[4])
        if grad:
            ctx.save_for_backward(*tensors, *out[1:])
        return out[0].reshape(ctx.shape)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        tensors, slopes = ctx.saved_tensors[:6], ctx.saved_tensors[6:]
        needs, step = ctx.needs_input_grad[:6], Step(*tensors)
        if torch.is_grad_enabled():  # create_graph
            return (*partial_derivatives(step, needs, g, 1), None, None)
        slopes = [s.reshape(ctx.shape) for s in slopes]
        grads: list[Tensor | None] = [None] * 6
        for k in range(1, 5):
            if needs[k]:
                grads[k] = g * slopes[k - 1]
        if needs[0]:
            grads[0] = -g * slopes[0] / step.dt
        if needs[5]:
            grads[5] = g * (slopes[0] * step.b + slopes[1] * step.D_o + slopes[2] * step.D_f) / step.dt
        shaped = (v if v is None or v.shape == t.shape else v.sum_to_size(t.shape) for v, t in zip(grads, step))
        return (*shaped, None, None)


def _evaluate(step: Step, method: str, order: int, with_alpha: bool) -> tuple[torch.Size, list[Tensor]]:
    """The compiled pass: rows log p, d/db, d/dD_o, d/dD_f[, d/dalpha] over the broadcast samples."""
    shapes = {t.shape for t in step if t.dim() > 0}
    shape = next(iter(shapes)) if len(shapes) == 1 else broadcast(**step._asdict())
    n = shape.numel()
    # rows of their own: the allocator reuses them, where one large block would be new pages every time
    out = [torch.empty(n, dtype=torch.float64) for _ in range(1 if order == 0 else 4 + with_alpha)]
    if n == 0:
        check_values(**step._asdict())
        return shape, out
    if step.alpha.numel() == 1:
        check_values(alpha=step.alpha)  # before a table is made for it
    method = choose_method(method, step.alpha, n, 1, with_alpha)
    arrays = [
        (t if t.numel() == 1 or t.shape == shape else t.expand(shape)).detach().contiguous().reshape(-1).numpy()
        for t in step
    ]
    rows = tuple(row.numpy() for row in out)
    if method == "table" and not with_alpha:
        codes = _from_table(arrays, n, rows)
    else:
        from levytorch.law.step_kernels import contour_step

        codes = threads.run(contour_step, n, *arrays, rows, grain=32)
    bad = [code for code in codes if code >= 0]
    if bad:
        check_values(**step._asdict())
        raise out_of_range(min(bad))
    return shape, out


def _from_table(arrays: list[np.ndarray], n: int, rows: tuple[np.ndarray, ...]) -> list[int]:
    from levytorch.law.step_kernels import table_step

    x, b, D_o, D_f, alpha, dt = arrays
    tab = table(float(alpha[0]), 1)
    while True:
        needed = np.zeros(N_S, dtype=np.bool_)
        rest = (dt, *tab.packed, needed, rows)
        codes = threads.run(table_step, n, x, b, D_o, D_f, tab.alpha, *rest, grain=4096)
        if not needed.any() or any(code >= 0 for code in codes):
            return codes
        tab.build(np.flatnonzero(needed).tolist())
