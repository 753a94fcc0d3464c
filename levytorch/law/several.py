"""log p in several dimensions: the autograd function around the mixture of Gaussians.

D_o is a number times the identity, or a symmetric positive matrix. Value and analytic first derivatives come from one
compiled pass; a second backward pass differentiates the torch path.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from levytorch.convert import common_shape
from levytorch.errors import InputError
from levytorch.law import mixture_torch, threads
from levytorch.law.arguments import Step, broadcast_error, check_values, check_vector, out_of_range, third_derivative
from levytorch.law.mixture import ALPHA_HIGH, ALPHA_LOW, panel, panel_index

GRAIN = 256  # samples that are worth a thread
COUNTS = (1, 4, 6)  # results by order: log p; its derivatives in b, D_o, D_f; those in alpha and tempering


def is_matrix(D_o: Tensor, dim: int, batch: Sequence[int]) -> bool:
    """Whether D_o is a matrix (or one per sample) and not one number per sample of the batch."""
    if D_o.dim() < 2 or D_o.shape[-2:] != (dim, dim):
        return False
    if tuple(batch[-2:]) == (dim, dim) and D_o.dim() <= len(batch):
        raise InputError(
            f"D_o must not be ambiguous (a matrix, or one number per sample), found shape {tuple(D_o.shape)} for "
            f"samples of shape {tuple(batch)}; flatten the samples, so that D_o is [n] or [n, {dim}, {dim}]."
        )
    return True


def batch_shape(step: Step, dim: int, matrix: bool) -> torch.Size:
    """The common shape of the samples."""
    shapes = {name: t.shape for name, t in step.by_name().items()}
    for name in ("displacement", "b"):
        t = getattr(step, name)
        if name == "displacement" or t.numel() != 1:
            check_vector(name, t, dim)
        shapes[name] = t.shape[:-1] if t.dim() else t.shape
    if matrix:
        shapes["D_o"] = step.D_o.shape[:-2]
    try:
        return common_shape(*shapes.values())
    except ValueError:
        raise broadcast_error(**step.by_name()) from None


def check_matrix(D_o: Tensor) -> None:
    """Refuse matrices that are not symmetric or have a negative eigenvalue."""
    D_o = D_o.detach()
    if not bool(torch.isfinite(D_o).all()):
        raise InputError("D_o must be finite, found NaN or infinity in a matrix; remove or correct it.")
    size = D_o.abs().amax((-1, -2), keepdim=True)
    skew = (D_o - D_o.transpose(-1, -2)).abs() > 1e-9 * size
    if bool(skew.any()):
        at = tuple(skew.nonzero()[0].tolist())
        across = (*at[:-2], at[-1], at[-2])
        raise InputError(
            f"D_o must be a symmetric matrix, found {D_o[at].item():.6g} at {list(at)} and {D_o[across].item():.6g} "
            "across the diagonal; pass Sigma Sigma^T / 2."
        )
    least = torch.linalg.eigvalsh(D_o)[..., 0]
    bad = least < -1e-10 * size[..., 0, 0]
    if bool(bad.any()):
        raise InputError(
            f"D_o must be a positive matrix, found one with the eigenvalue {float(least[bad].flatten()[0]):.6g}; pass "
            "Sigma Sigma^T / 2."
        )


def check(step: Step, matrix: bool) -> None:
    """Refuse the first argument that is out of its range."""
    given = step.by_name()
    if matrix:
        check_matrix(given.pop("D_o"))
    check_values(**given)
    check_alpha(step.alpha)


def positive(matrix: Tensor) -> Tensor:
    """Whether each of some symmetric matrices has no negative eigenvalue."""
    finite = torch.isfinite(matrix.detach()).all(-1).all(-1)
    safe = torch.where(finite[..., None, None], matrix.detach(), 0.0)
    least = torch.linalg.eigvalsh(safe)[..., 0]
    sound: Tensor = least >= -1e-10 * safe.abs().amax((-1, -2))
    return finite & sound


def root_of(matrix: Tensor) -> Tensor:
    """R with R R^T = matrix, symmetric and positive; zero eigenvalues are allowed."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if not bool(failed.any()):
        return factor
    l, Q = torch.linalg.eigh(matrix)
    factor = Q * l.clamp_min(0.0).sqrt().unsqueeze(-2)
    return factor


def log_density(step: Step, dim: int, matrix: bool | None = None) -> Tensor:
    """log p of the broadcast shape (float64); matrix: whether D_o is one, None to tell by its shape."""
    if matrix is None:
        matrix = is_matrix(step.D_o, dim, step.displacement.shape[:-1])
    shape = batch_shape(step, dim, matrix)
    tempered = step.tempering is not None
    given = (*step[:6], *(step.rate or (step.dt.new_zeros(()),)))
    # inside an autograd.Function grad mode is always off, so it is read here
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    order = 0 if not grad else 2 if step.alpha.requires_grad or given[-1].requires_grad else 1
    log_p: Tensor = _Mixture.apply(*given, shape, matrix, tempered, order)[0]
    return log_p


def score_rows(step: Step, dim: int, wrt_alpha: bool) -> list[Tensor]:
    """log p and its derivatives in b, D_o, D_f[, alpha][, tempering], of the broadcast shape."""
    matrix = is_matrix(step.D_o, dim, step.displacement.shape[:-1])
    shape = batch_shape(step, dim, matrix)
    rows = _rows(step, shape, matrix, 2 if wrt_alpha or step.rate else 1)
    return [*rows[:4], *(rows[4:5] if wrt_alpha else []), *(rows[5:6] if step.rate else [])]


def radial_rows(dim: int, inputs: Sequence[Tensor], order: int) -> Tensor:
    """As `quadrature.density` in several dimensions: rows of log p and its derivatives up to an order in the radius y,
    A, B, alpha[, lam], which are (n,) each.
    """
    y, A, B, alpha, *rate = (t.detach() for t in inputs)
    n, m = len(y), len(inputs)

    def vectors(y: Tensor) -> Tensor:
        return torch.nn.functional.pad(y[:, None], (0, dim - 1))

    step = Step(vectors(y), y.new_zeros(dim), A, B, alpha, y.new_ones(()), *rate)
    rows = _rows(step, torch.Size((n,)), False, 2 if order else 0)
    if order == 0:
        return rows[0][None]
    first = [rows[0], -rows[1][:, 0], *rows[2:5], *(rows[5:] if rate else [])]
    if order == 1:
        return torch.stack(first)
    with torch.enable_grad():
        own: list[Any] = [t.clone().requires_grad_() for t in (y, A, B, alpha, *rate)]
        log_p = mixture_torch.log_density(vectors(own[0]), own[1], own[2], own[3], own[4] if rate else None)
        slopes = torch.autograd.grad(log_p.sum(), own, create_graph=True)
        bends = [torch.autograd.grad(slope.sum(), own, retain_graph=True) for slope in slopes]
    return torch.stack([*first, *(bends[i][j] for i in range(m) for j in range(i, m))])


class _Mixture(Function):
    """log p and its derivatives in b, D_o, D_f, alpha and tempering as far as `order` asks for them."""

    @staticmethod
    def forward(*given: Any) -> tuple[Tensor, ...]:
        *tensors, shape, matrix, tempered, order = given
        return tuple(_rows(Step(*tensors[: 6 + tempered]), torch.Size(shape), matrix, order))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, shape, ctx.matrix, ctx.tempered, ctx.order = inputs
        ctx.shape = torch.Size(shape)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        needs = tuple(ctx.needs_input_grad[:7])
        if g is None or ctx.order == 0:
            return (None,) * 11
        found = iter(_Gradient.apply(g, *ctx.saved_tensors, needs, ctx.shape, ctx.matrix, ctx.tempered))
        return (*(next(found) if need else None for need in needs), None, None, None, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> tuple[Any, Any]:
        *tensors, shape, matrix, tempered, order = given
        inner = [1, 1, 2 if matrix else 0, 0, 0, 0, 0]  # axes of one sample
        front = []
        for t, at, axes in zip(tensors, in_dims, inner):
            if at is not None:
                t = t.movedim(at, 0)
                t = t.reshape(t.shape[0], *[1] * (len(shape) - (t.dim() - 1 - min(axes, t.dim() - 1))), *t.shape[1:])
            front.append(t)
        out = _Mixture.apply(*front, torch.Size((info.batch_size, *shape)), matrix, tempered, order)
        return out, (0,) * len(out)


class _Gradient(Function):
    """g times the derivatives of log p in the arguments that need it, from those in the coefficients; differentiable
    once more by the torch path.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, *given: Any) -> tuple[Tensor, ...]:
        _, b, D_o, D_f, _, dt, _ = given[:7]
        by_b, by_D_o, by_D_f, *more = given[7:-4]
        needs, _, matrix, _ = given[-4:]
        column, d = g.unsqueeze(-1), by_b.shape[-1]
        grads: dict[int, Tensor] = {}
        if needs[0]:
            grads[0] = -column * by_b / (dt if dt.dim() == 0 else dt.unsqueeze(-1))
        if needs[1]:
            grads[1] = column * by_b
        if needs[2]:
            grads[2] = column.unsqueeze(-1) * by_D_o if matrix else g * by_D_o
        if needs[3]:
            grads[3] = g * by_D_f
        if needs[5]:
            ordinary = (by_D_o * D_o).sum((-1, -2)) if matrix else by_D_o * D_o
            grads[5] = g * ((by_b * b.expand(*b.shape[:-1], d)).sum(-1) + ordinary + by_D_f * D_f) / dt
        for k, row in zip((4, 6), more):
            if needs[k]:
                grads[k] = g * row
        return tuple(grads[k].sum_to_size(given[k].shape) for k in sorted(grads))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:8])
        ctx.n_inputs, ctx.settings = len(inputs), inputs[-4:]

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        needs, shape, matrix, tempered = ctx.settings
        with torch.enable_grad():
            g, *own = (t.detach().clone().requires_grad_() for t in ctx.saved_tensors)
            log_p = _by_torch(Step(*own[: 6 + tempered]), shape, matrix)
            wanted = [t for t, need in zip(own, needs) if need]
            first = torch.autograd.grad(log_p, wanted, g, create_graph=True)
            second = torch.autograd.grad(first, (g, *own), outer, allow_unused=True)
        if torch.is_grad_enabled():
            second = tuple(None if v is None else LastDerivative.apply(v, *ctx.saved_tensors) for v in second)
        return (*second, *[None] * (ctx.n_inputs - len(second)))


class LastDerivative(Function):
    """Passes second derivatives on, and refuses to be differentiated: they depend on the inputs beyond their graph."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *inputs: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        raise third_derivative()


def _flat(step: Step, shape: torch.Size, matrix: bool) -> list[Tensor]:
    """(n or 1, d), (n or 1, d), (n or 1[, d, d]), then (n or 1,) each, the tempering last where there is one."""
    d = step.displacement.shape[-1]

    def flat(t: Tensor, *inner: int) -> Tensor:
        if t.dim() <= len(inner) or t.numel() == int(np.prod(inner)):  # shared by all samples
            return t.expand(inner).reshape(1, *inner) if t.dim() <= len(inner) else t.reshape(1, *inner)
        return t.expand((*shape, *inner)).reshape(-1, *inner)

    D_o = flat(step.D_o, d, d) if matrix else flat(step.D_o)
    return [
        flat(step.displacement, d), flat(step.b, d), D_o, *(flat(t) for t in (*step[3:6], *step.rate)),
    ]  # fmt: skip


def _by_torch(step: Step, shape: torch.Size, matrix: bool) -> Tensor:
    """log p by torch operations, of the broadcast shape."""
    n = shape.numel()
    x, b, D_o, D_f, alpha, dt, *rate = _flat(step, shape, matrix)
    y = (x - b * dt[:, None]).expand(n, -1)
    A = D_o * (dt[:, None, None] if matrix else dt)
    A = A.expand(n, *A.shape[1:])
    if matrix:
        A = 0.5 * (A + A.transpose(1, 2))
    B = (D_f * dt).expand(n)
    return mixture_torch.log_density(y, A, B, alpha, rate[0].expand(n) if rate else None).reshape(shape)


def _rows(step: Step, shape: torch.Size, matrix: bool, order: int) -> list[Tensor]:
    """log p[, by b, by D_o, by D_f[, by alpha, by tempering]]."""
    d, n = step.displacement.shape[-1], shape.numel()
    step = step.each(torch.Tensor.detach)
    inner = [(), (d,), (d, d) if matrix else (), (), (), ()][: COUNTS[order]]
    out = [step.displacement.new_empty((*shape, *axes)) for axes in inner]
    if n == 0:
        check(step, matrix)
        return out
    check_alpha(step.alpha)  # before a table is made for it
    if matrix:
        check_matrix(step.D_o)
    bad = _compiled(step, shape, matrix, order, [t.reshape(n, *axes) for t, axes in zip(out, inner)])
    if bad >= 0:
        check(step, matrix)
        raise out_of_range(bad)
    for row in out:
        if not bool(torch.isfinite(row.sum())):  # derivatives may be infinite, but are numbers
            good = torch.isfinite(row) if row is out[0] else ~torch.isnan(row)
            if not bool(good.all()):
                raise out_of_range(int((~good).reshape(n, -1).any(1).nonzero()[0]))
    return out


def check_alpha(alpha: Tensor) -> None:
    """Refuse an alpha that the table of the mixture does not hold."""
    check_values(alpha=alpha)
    low, high = (float(v) for v in torch.aminmax(alpha.detach()))
    if low < ALPHA_LOW or high > ALPHA_HIGH:
        found = low if low < ALPHA_LOW else high
        raise InputError(
            f"alpha must lie in [{ALPHA_LOW}, {ALPHA_HIGH}] in several dimensions, found {found:g}; keep it away from "
            "0 and 1."
        )


def _compiled(step: Step, shape: torch.Size, matrix: bool, order: int, out: list[Tensor]) -> int:
    from levytorch.law.mixture_kernels import mixture_step

    flat = _flat(step if step.rate else step._replace(tempering=step.dt.new_zeros(())), shape, matrix)
    x, b, D_o, D_f, alpha, dt, rate = (t.contiguous().numpy() for t in flat)
    D_o = D_o if matrix else D_o[:, None, None]
    n, d, groups = shape.numel(), x.shape[1], D_o.shape[1]
    empty = [(n,), (0, d), (0, groups, groups), (0,), (0,), (0,)]
    rows = [t.numpy() for t in out] + [np.empty(s) for s in empty[len(out) :]]
    rows[2] = rows[2].reshape(-1, groups, groups)
    index = panel_index(alpha)
    found = np.unique(index).tolist()
    if len(found) == 1:
        codes = threads.in_blocks(
            mixture_step, n, x, b, D_o, D_f, alpha, dt, rate, *panel(found[0]), order, *rows, grain=GRAIN
        )
        return min((code for code in codes if code >= 0), default=-1)
    for k in found:  # alpha of several panels: one after the other
        at = np.flatnonzero(index == k)
        some = [v if v.shape[0] == 1 else np.ascontiguousarray(v[at]) for v in (x, b, D_o, D_f, alpha, dt, rate)]
        part = [np.empty((len(at), *v.shape[1:])) if v.shape[0] else v for v in rows]
        codes = threads.in_blocks(mixture_step, len(at), *some, *panel(k), order, *part, grain=GRAIN)
        bad = min((code for code in codes if code >= 0), default=-1)
        if bad >= 0:
            return int(at[bad])
        for whole, piece in zip(rows, part):
            if whole.shape[0]:
                whole[at] = piece
    return -1
