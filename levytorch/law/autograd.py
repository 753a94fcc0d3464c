"""log_density and score: the public law of one step, and the autograd function behind them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from levytorch.convert import Array, real_tensor, switch
from levytorch.law import threads
from levytorch.law.arguments import (
    Numeric,
    Step,
    broadcast,
    check_dim,
    check_method,
    check_tempered_method,
    check_values,
    choose_method,
    is_zero,
    on_one_device,
    out_of_range,
)
from levytorch.law.functional import (
    log_density_by_torch,
    log_density_in_transforms,
    partial_derivatives,
    transformed,
)
from levytorch.law.jumps import TimedJumps
from levytorch.law.quadrature import GRAIN
from levytorch.law.table import N_S, table


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
        D_o: ordinary diffusion >= 0: a number, or for dim > 1 a symmetric positive matrix `[..., dim, dim]`.
        D_f: fractional diffusion > 0.
        alpha: in (0, 1), half the stability index; one for all, or one per sample. Or jumps of another kind, such as
            `VarianceGamma(decay=1.0)`: then D_o is a number, and there are no options.
        dt: time between the two observations.
        dim: number of coordinates. For dim > 1 the law is a positive mixture of Gaussians, accurate everywhere (log p
            to 1e-12), whatever `method` says, and alpha lies in [0.01, 0.99].
        method: `contour` is accurate everywhere (log p to 1e-12); `table` needs one alpha for all samples and is an
            order of magnitude faster (1e-9); `windowed` is the paper's quadrature (absolute tolerance: not for
            tails); `auto` is the table if 20,000 samples or more share one alpha that needs no derivative, and
            otherwise the contour. In a loop over small batches with one alpha use `table`, which is made once per
            process. Tensors that are not on the CPU use the mixture of Gaussians on their device, whatever `method`
            says, and their values are not checked.
        tempering: lam >= 0, per unit of length; one for all, or one per sample. There is no table for lam > 0.

    Returns:
        log p, of the broadcast shape and the dtype of the tensors given (float64 for numbers and NumPy arrays;
        computed in float64 always). Differentiable in every argument, and twice; `torch.func.grad`, `vmap`, `jacrev`
        and `hessian` work on it, without the checks of values.

    Example:
        >>> log_density(0.5, b=5.0, D_o=4.0, D_f=3.0, alpha=0.3, dt=1 / 40)
        tensor(-0.5410, dtype=torch.float64)
    """
    if isinstance(alpha, TimedJumps):
        from levytorch.law import subordinated

        return subordinated.log_density(alpha, displacement, b, D_o, D_f, dt, dim)
    given = dict(displacement=displacement, b=b, D_o=D_o, D_f=D_f, alpha=alpha, dt=dt)
    step, dtype, device = _arguments(dim, method, tempering, **given)
    if device.type != "cpu":
        from levytorch.law import mixture_device, several

        matrix = dim > 1 and several.is_matrix(step.D_o, dim, step.displacement.shape[:-1])
        return mixture_device.log_density(step, dim, matrix).to(dtype)
    if transformed(*step) and not (dim > 1 and step.D_o.dim() > 1):
        return log_density_in_transforms(step, dim).to(device, dtype)
    if dim > 1:
        from levytorch.law import several

        return several.log_density(step, dim).to(device, dtype)
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in step[:6])
    log_p: Tensor
    if not step.rate and method != "windowed":
        log_p = _CompiledStep.apply(*step[:6], method, grad)
    else:
        check_values(**step.by_name())
        log_p = log_density_by_torch(step, method=method)
    return log_p.to(device, dtype)


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
    """log p and its first derivatives in the coefficients, in one pass and without autograd.

    Use it to write a fit of your own; `log_density` with autograd gives the same numbers and costs more.

    Args:
        displacement, b, D_o, D_f, alpha, dt: as in `log_density`.
        dim: number of coordinates.
        method: as in `log_density`.
        wrt_alpha: whether the derivative in alpha is computed too.
        tempering: as in `log_density`. Its derivative is computed if it is a tensor or not zero.

    Returns:
        A named tuple (log_p, b, D_o, D_f, alpha, tempering) of float64 tensors of the broadcast shape; None for a
        derivative that was not asked for. For dim > 1 the one in b is `[..., dim]`, and the one in a matrix D_o is
        `[..., dim, dim]`.

    Example:
        >>> found = score(0.5, b=5.0, D_o=4.0, D_f=3.0, alpha=0.3, dt=1 / 40)
        >>> found.log_p
        tensor(-0.5410, dtype=torch.float64)
        >>> found.alpha is None
        True
    """
    wrt_alpha = switch("wrt_alpha", wrt_alpha)
    given = dict(displacement=displacement, b=b, D_o=D_o, D_f=D_f, alpha=alpha, dt=dt)
    step, _, device = _arguments(dim, method, tempering, **given)
    step = step.each(lambda t: t.detach().cpu())
    if dim > 1:
        from levytorch.law import several

        rows = several.score_rows(step, dim, wrt_alpha)
    elif method != "windowed":
        rows = _compiled_pass(step, method, 1, wrt_alpha)
    else:
        rows = _rows_by_autograd(step, method, wrt_alpha)
    # the law's derivatives divide by A^2 and by B, which leaves float64 when D_o dt or D_f dt is all but zero
    for row in rows:
        if not math.isfinite(float(row.sum())):  # one pass without a temporary; a sum may overflow, an entry may not
            good = torch.isfinite(row).reshape(-1)
            if not bool(good.all()):
                raise out_of_range(int((~good).nonzero()[0]))
    rows = [row.to(device) for row in rows]
    by_alpha, by_lam = rows[4] if wrt_alpha else None, rows[-1] if step.rate else None
    return StepScore(rows[0], rows[1], rows[2], rows[3], by_alpha, by_lam)


def _arguments(dim: int, method: str, tempering: Numeric, **given: Numeric) -> tuple[Step, torch.dtype, torch.device]:
    """The arguments as tensors (the number zero as tempering: the stable law), dtype and device to answer on."""
    check_dim(dim)
    check_method(method, dim)
    tensors, dtype, device = on_one_device(**given)
    if is_zero(tempering):
        return Step(**tensors), dtype, device
    check_tempered_method(method)
    return Step(**tensors, tempering=real_tensor("tempering", tempering).to(device)), dtype, device


def _rows_by_autograd(step: Step, method: str, wrt_alpha: bool) -> list[Tensor]:
    """log p and its derivatives in b, D_o, D_f[, alpha][, lam], of the broadcast shape."""
    given = step.by_name()
    check_values(**given)
    shape = broadcast(**given)
    names = ["b", "D_o", "D_f", *(["alpha"] if wrt_alpha else []), *(["tempering"] if step.rate else [])]
    # leaves of the full shape, so that each sample has its own derivative
    leaves = {name: given[name].expand(shape).clone().requires_grad_() for name in names}
    if shape.numel() == 0:
        return [step.D_o.new_zeros(shape), *(t.detach() for t in leaves.values())]
    wanted = list(leaves.values())
    with torch.enable_grad():
        log_p = log_density_by_torch(step._replace(**leaves), method=method)
        return [log_p.detach(), *torch.autograd.grad(log_p.sum(), wanted)]


class _CompiledStep(Function):
    """The compiled pass of the stable law: log p, and the derivatives that are needed."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, method, grad = arguments
        log_p, *slopes = _compiled_pass(Step(*tensors), method, int(grad), grad and ctx.needs_input_grad[4])
        if grad:
            ctx.save_for_backward(*tensors, *slopes)
        return log_p

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        step, needs = Step(*ctx.saved_tensors[:6]), ctx.needs_input_grad[:6]
        if torch.is_grad_enabled():  # create_graph
            return (*partial_derivatives(step, needs, g), None, None)
        by_b, by_D_o, by_D_f, *by_alpha = ctx.saved_tensors[6:]
        grads: list[Tensor | None] = [None] * 6
        if needs[0]:
            grads[0] = -g * by_b / step.dt
        for k, slope in enumerate((by_b, by_D_o, by_D_f, *by_alpha), 1):
            if needs[k]:
                grads[k] = g * slope
        if needs[5]:
            grads[5] = g * (by_b * step.b + by_D_o * step.D_o + by_D_f * step.D_f) / step.dt
        shaped = (v if v is None or v.shape == t.shape else v.sum_to_size(t.shape) for v, t in zip(grads, step[:6]))
        return (*shaped, None, None)


def _compiled_pass(step: Step, method: str, order: int, with_alpha: bool) -> list[Tensor]:
    """log p[, d/db, d/dD_o, d/dD_f[, d/dalpha[, d/dlam]]] of the broadcast shape.

    Values are checked on the way, and named only when a bad one is found.
    """
    given = step.by_name()
    shapes = {t.shape for t in given.values() if t.dim() > 0}
    shape = next(iter(shapes)) if len(shapes) == 1 else broadcast(**given)
    n = shape.numel()
    count = 1 if order == 0 else 6 if step.rate else 4 + with_alpha
    # rows of their own: the allocator reuses them, where one large block would be new pages every time
    out = [torch.empty(shape, dtype=torch.float64) for _ in range(count)]
    if n == 0:
        check_values(**given)
        return out
    if step.alpha.numel() == 1:
        check_values(alpha=step.alpha)  # before a table is made for it

    def flat(t: Tensor) -> np.ndarray:
        whole = t if t.numel() == 1 or t.shape == shape else t.expand(shape)
        return whole.detach().contiguous().reshape(-1).numpy()

    x, b, D_o, D_f, alpha, dt, *rate = (flat(t) for t in (*step[:6], *step.rate))
    rows = tuple(row.numpy().reshape(n) for row in out)
    method = choose_method(method, step.alpha, n, with_alpha)
    if step.rate:
        from levytorch.law.tempered_line import tempered_step

        codes = threads.in_blocks(tempered_step, n, x, b, D_o, D_f, alpha, dt, *rate, rows, grain=GRAIN)
    elif method == "contour" or with_alpha:
        from levytorch.law.step_kernels import contour_step

        codes = threads.in_blocks(contour_step, n, x, b, D_o, D_f, alpha, dt, rows, grain=GRAIN)
    else:
        codes = _from_table(n, x, b, D_o, D_f, float(alpha[0]), dt, rows)
    bad = [code for code in codes if code >= 0]
    if bad:
        check_values(**given)
        raise out_of_range(min(bad))
    return out


def _from_table(
    n: int, x: Array, b: Array, D_o: Array, D_f: Array, alpha: float, dt: Array, rows: tuple[Array, ...]
) -> list[int]:
    """The pass by the table of alpha, again where columns of it are missing."""
    from levytorch.law.step_kernels import table_step

    tab = table(alpha)
    while True:
        needed = np.zeros(N_S, dtype=np.bool_)
        more = (*tab.arrays, needed, rows)
        codes = threads.in_blocks(table_step, n, x, b, D_o, D_f, alpha, dt, *more, grain=4096)
        if not needed.any() or any(code >= 0 for code in codes):
            return codes
        tab.build(np.flatnonzero(needed).tolist())
