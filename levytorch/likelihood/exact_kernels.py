"""Local polynomials through the tables of the exact law, and their adjoints, compiled.

The core is a table over (x, dx), the tail one over (x, landing point) with a channel per node of its quadrature and
weights that depend on log |dx| alone. Positions are in units of the tables' own steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.law.compiled import cached_njit
from levytorch.law.threads import in_blocks

X_POINTS, Y_POINTS = 8, 10  # of the stencils along x (and the landing point, and log |dx|), and along dx
_GRAIN = 1024


def core_values(table: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """table (M, J), periodic in x; x, y (n,) in steps of the table -> (n,). Differentiable in the table."""
    values: Tensor = _Core.apply(table, x, y)
    return values


def tail_values(table: Tensor, weights: Tensor, x: Tensor, z: Tensor, log_y: Tensor) -> Tensor:
    """sum_q weights[log_y, q] table[x, z, q], table (M, M, N) periodic in x and z, weights (L, N) -> (n,)."""
    values: Tensor = _Tail.apply(table, weights, x, z, log_y)
    return values


def _denominators(points: int) -> np.ndarray:
    k = np.arange(points)
    return np.array([np.prod([a - c for c in k if c != a]) for a in k], dtype=np.float64)


_DX, _DY = _denominators(X_POINTS), _denominators(Y_POINTS)


class _Core(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        ctx.shape = tuple(table.shape)
        out = torch.empty_like(x)
        table_ = table.detach().contiguous().numpy()
        in_blocks(_core, x.shape[0], table_, x.numpy(), y.numpy(), out.numpy(), _DX, _DY, grain=_GRAIN)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, bar: Tensor) -> tuple[Tensor | None, ...]:
        x, y = ctx.saved_tensors
        arguments = (ctx.shape, x.numpy(), y.numpy(), bar.contiguous().numpy(), _DX, _DY)
        parts = in_blocks(_core_adjoint, x.shape[0], *arguments, grain=16 * _GRAIN)
        # added in their order: the sum may depend on the number of threads, never on their timing
        return torch.from_numpy(sum(parts[1:], start=parts[0])), None, None


class _Tail(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, weights: Tensor, x: Tensor, z: Tensor, log_y: Tensor) -> Tensor:
        ctx.save_for_backward(table, weights, x, z, log_y)
        out = torch.empty_like(x)
        arrays = (t.detach().contiguous().numpy() for t in (table, weights, x, z, log_y))
        in_blocks(_tail, x.shape[0], *arrays, out.numpy(), _DX, grain=_GRAIN)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, bar: Tensor) -> tuple[Tensor | None, ...]:
        arrays = (t.detach().contiguous().numpy() for t in (*ctx.saved_tensors, bar))
        parts = in_blocks(_tail_adjoint, len(bar), *arrays, _DX, grain=16 * _GRAIN)
        table_bar, weights_bar = (torch.from_numpy(sum(values[1:], start=values[0])) for values in zip(*parts))
        return table_bar, weights_bar, None, None, None


@cached_njit(nogil=True)
def _weights(position, size, periodic, denominators, out):
    """Fills out and returns the first index."""
    points = denominators.shape[0]
    start = int(np.floor(position)) - (points // 2 - 1)
    if not periodic:
        start = max(0, min(start, size - points))
    f = position - start
    left = 1.0
    for a in range(points):
        out[a] = left / denominators[a]
        left *= f - a
    right = 1.0
    for a in range(points - 1, -1, -1):
        out[a] *= right
        right *= f - a
    return start


@cached_njit(nogil=True)
def _core(start, stop, table, x, y, out, dx, dy):
    M, J = table.shape
    u, v = np.empty(dx.shape[0]), np.empty(dy.shape[0])
    for s in range(start, stop):
        i0 = _weights(x[s], M, True, dx, u)
        j0 = _weights(y[s], J, False, dy, v)
        total = 0.0
        for a in range(u.shape[0]):
            i = (i0 + a) % M
            row = 0.0
            for c in range(v.shape[0]):
                row += v[c] * table[i, j0 + c]
            total += u[a] * row
        out[s] = total


@cached_njit(nogil=True)
def _core_adjoint(start, stop, shape, x, y, bar, dx, dy):
    M, J = shape
    table = np.zeros((M, J))
    u, v = np.empty(dx.shape[0]), np.empty(dy.shape[0])
    for s in range(start, stop):
        if bar[s] == 0.0:
            continue
        i0 = _weights(x[s], M, True, dx, u)
        j0 = _weights(y[s], J, False, dy, v)
        for a in range(u.shape[0]):
            i = (i0 + a) % M
            g = bar[s] * u[a]
            for c in range(v.shape[0]):
                table[i, j0 + c] += g * v[c]
    return table


@cached_njit(nogil=True)
def _tail(start, stop, table, weights, x, z, log_y, out, dx):
    M, N = table.shape[0], table.shape[2]
    u, v, t = np.empty(dx.shape[0]), np.empty(dx.shape[0]), np.empty(dx.shape[0])
    w = np.empty(N)
    for s in range(start, stop):
        i0 = _weights(x[s], M, True, dx, u)
        j0 = _weights(z[s], M, True, dx, v)
        l0 = _weights(log_y[s], weights.shape[0], False, dx, t)
        w[:] = 0.0
        for a in range(t.shape[0]):
            for q in range(N):
                w[q] += t[a] * weights[l0 + a, q]
        total = 0.0
        for a in range(u.shape[0]):
            i = (i0 + a) % M
            for c in range(v.shape[0]):
                j = (j0 + c) % M
                value = 0.0
                for q in range(N):
                    value += w[q] * table[i, j, q]
                total += u[a] * v[c] * value
        out[s] = total


@cached_njit(nogil=True)
def _tail_adjoint(start, stop, table, weights, x, z, log_y, bar, dx):
    M, N = table.shape[0], table.shape[2]
    u, v, t = np.empty(dx.shape[0]), np.empty(dx.shape[0]), np.empty(dx.shape[0])
    w, field = np.empty(N), np.empty(N)
    table_bar, weights_bar = np.zeros(table.shape), np.zeros(weights.shape)
    for s in range(start, stop):
        g = bar[s]
        if g == 0.0:
            continue
        i0 = _weights(x[s], M, True, dx, u)
        j0 = _weights(z[s], M, True, dx, v)
        l0 = _weights(log_y[s], weights.shape[0], False, dx, t)
        w[:] = 0.0
        field[:] = 0.0
        for a in range(t.shape[0]):
            for q in range(N):
                w[q] += t[a] * weights[l0 + a, q]
        for a in range(u.shape[0]):
            i = (i0 + a) % M
            for c in range(v.shape[0]):
                j = (j0 + c) % M
                uv = u[a] * v[c]
                for q in range(N):
                    field[q] += uv * table[i, j, q]
                    table_bar[i, j, q] += g * uv * w[q]
        for a in range(t.shape[0]):
            for q in range(N):
                weights_bar[l0 + a, q] += g * t[a] * field[q]
    return table_bar, weights_bar
