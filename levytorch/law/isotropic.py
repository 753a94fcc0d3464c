"""log p of a step in d > 1 dimensions, isotropic about b dt, through the compiled table of a shared alpha.

The fast path of `autograd.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from levytorch.law import contour, threads
from levytorch.law.arguments import Step, check_values, out_of_range
from levytorch.law.radial import partial_derivatives
from levytorch.law.table import table
from levytorch.law.table_grid import N_S


def applies(step: Step, dim: int, method: str, device: torch.device) -> bool:
    """Whether the compiled pass may be used: d > 1 on the CPU, one alpha that needs no derivative."""
    return (
        dim > 1
        and method == "table"
        and device.type == "cpu"
        and step.alpha.numel() == 1
        and not (step.alpha.requires_grad and torch.is_grad_enabled())
        and contour.compiled_kernels() is not None
    )


class IsotropicStep(Function):
    """One compiled pass from the six arguments to log p and the derivatives that are needed."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *tensors, shape, dim, grad = arguments
        ctx.shape, ctx.dim = shape, dim
        out, by_b = evaluate(Step(*tensors), shape, dim, grad)
        if grad:
            ctx.save_for_backward(*tensors, out, by_b)
        return out[0].clone().reshape(shape)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, out, by_b = ctx.saved_tensors
        needs, step, dim = ctx.needs_input_grad[:6], Step(*tensors), ctx.dim
        if torch.is_grad_enabled():  # create_graph
            return (*partial_derivatives(step, needs, g, dim), None, None, None)
        by_D_o, by_D_f = out[1].reshape(ctx.shape), out[2].reshape(ctx.shape)
        by_b = by_b.reshape(*ctx.shape, dim)
        dt = step.dt if step.dt.dim() == 0 else step.dt.unsqueeze(-1)
        grads: list[Tensor | None] = [None] * 6
        if needs[0]:
            grads[0] = -g.unsqueeze(-1) * by_b / dt
        if needs[1]:
            grads[1] = g.unsqueeze(-1) * by_b
        if needs[2]:
            grads[2] = g * by_D_o
        if needs[3]:
            grads[3] = g * by_D_f
        if needs[5]:
            grads[5] = g * ((by_b * step.b).sum(-1) + by_D_o * step.D_o + by_D_f * step.D_f) / step.dt
        shaped = (v if v is None or v.shape == t.shape else v.sum_to_size(t.shape) for v, t in zip(grads, step))
        return (*shaped, None, None, None)


def evaluate(step: Step, shape: torch.Size, dim: int, slopes: bool) -> tuple[Tensor, Tensor]:
    """Rows log p[, d/dD_o, d/dD_f] over the broadcast samples (n,), and d/db (n, d)."""
    from levytorch.law.table_kernels import isotropic_table_step

    check_values(alpha=step.alpha)  # before a table is made for it
    n = shape.numel()
    out = torch.empty((3 if slopes else 1, n), dtype=torch.float64)
    by_b = torch.empty((n if slopes else 0, dim), dtype=torch.float64)
    if n == 0:
        check_values(**step._asdict())
        return out, by_b
    vector = torch.Size((*shape, dim))
    x, b = (
        (t.expand(dim) if t.numel() in (1, dim) and t.dim() <= 1 else t.expand(vector)).detach().reshape(-1, dim)
        for t in (step.displacement, step.b)
    )
    D_o, D_f, dt = (
        (t if t.numel() == 1 else t.expand(shape)).detach().reshape(-1) for t in (step.D_o, step.D_f, step.dt)
    )
    arrays = [t.contiguous().numpy() for t in (x, b, D_o, D_f)]
    tab = table(float(step.alpha), dim)
    beyond = np.zeros(n, dtype=np.bool_)
    while True:
        needed = np.zeros(N_S, dtype=np.bool_)
        rest = (dt.contiguous().numpy(), *tab.arrays, needed, beyond, out.numpy(), by_b.numpy())
        codes = threads.run(isotropic_table_step, n, *arrays, tab.alpha, *rest, grain=4096)
        bad = [code for code in codes if code >= 0]
        if bad:
            check_values(**step._asdict())
            raise out_of_range(min(bad))
        if not needed.any():
            break
        tab.build(np.flatnonzero(needed).tolist())
    if beyond.any():
        _fill(torch.from_numpy(np.flatnonzero(beyond)), x, b, D_o, D_f, step.alpha.detach(), dt, out, by_b)
    return out, by_b


def _fill(
    rows: Tensor, x: Tensor, b: Tensor, D_o: Tensor, D_f: Tensor, alpha: Tensor, dt: Tensor, out: Tensor, by_b: Tensor
) -> None:
    """The few samples that no table holds (no Gaussian part, steps of 1e10 widths), by quadrature."""
    x, b, D_o, D_f, dt = (t if t.shape[0] == 1 else t[rows] for t in (x, b, D_o, D_f, dt))
    shift = (x - b * dt.unsqueeze(-1)).expand(len(rows), x.shape[1])
    y = torch.linalg.vector_norm(shift, dim=-1)
    A, B = ((c * dt).expand(len(rows)).contiguous() for c in (D_o, D_f))
    order = 1 if out.shape[0] > 1 else 0
    found = contour.evaluate(y, A, B, alpha.reshape(1), dim=x.shape[1], order=order)
    out[0, rows] = found[0]
    if order:
        out[1, rows], out[2, rows] = found[2] * dt, found[3] * dt
        pull = torch.where(y > 0, -found[1] * dt / y, 0.0)
        by_b[rows] = pull.unsqueeze(-1) * shift
