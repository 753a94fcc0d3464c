"""Coefficients of millions of states from a fine grid over one cell, and sums of scores back onto that grid.

Coefficients depend on the sample only through x, so a pass over the data need not evaluate basis functions and links
per sample: cubic interpolation from GRID nodes per cell gives them to about 1e-9, and its adjoint carries scores back,
so that the gradient is that of the interpolated likelihood to rounding.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from levytorch.law.compiled import cached_njit
from levytorch.law.threads import in_blocks

GRID = 4096  # nodes per cell; the shortest wave of K = 21 then has 400
_GRAIN = 8192  # samples below which a second thread does not pay


def interpolate(x: Tensor, origin: float, period: float, table: Tensor, *, positive: bool = False) -> Tensor:
    """(C, M) values on the M nodes origin + period j / M, as (C, n) values at x; periodic, four-point.

    positive: rows 1 and 2 (D_o, D_f) stay > 0 if they are on the nodes: where the cubic through values close to zero
    undershoots, the smaller of the two neighbours stands.
    """
    padded = torch.cat([table[:, -1:], table, table[:, :2]], dim=1).T.contiguous()
    out = torch.empty((table.shape[0], x.shape[0]), dtype=torch.float64)
    arrays = (padded.numpy(), out.numpy(), positive)
    in_blocks(_interpolate, x.shape[0], x.numpy(), origin, period, *arrays, grain=_GRAIN)
    return out


def scatter(
    x: Tensor,
    origin: float,
    period: float,
    scores: list[Tensor],
    M: int,
    n_x: int,
    group: Tensor,
    n_groups: int,
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The adjoint of `interpolate`, and moments of the scores per coarse bin, each sample times its weight.

    scores: C tensors (n,); group: (n,) int64 number of each sample's dt group, or empty when there is one; weight: (n,)
    or 0-d.
    Returns node sums (C, M), first (C, n_groups n_x) and second (C, C, n_groups n_x) moments, none divided by n.
    """
    C = len(scores)
    s = tuple(v.contiguous().numpy() for v in scores)
    s5 = (*s, *(s[0] for _ in range(5 - C)))
    shape = (M, n_x, n_groups, C)
    more = (group.numpy(), weight.reshape(-1).contiguous().numpy(), shape)
    parts = in_blocks(_scatter, x.shape[0], x.numpy(), origin, period, *s5, *more, grain=_GRAIN)
    # blocks are added in their order: the sum may depend on the number of threads, never on their timing
    nodes = torch.from_numpy(sum((p[0] for p in parts[1:]), start=parts[0][0]))
    packed = torch.from_numpy(sum((p[1] for p in parts[1:]), start=parts[0][1]))
    folded = nodes[1 : M + 1].clone()
    folded[-1] += nodes[0]
    folded[0] += nodes[M + 1]
    folded[1 % M] += nodes[M + 2]
    return folded.T.contiguous(), packed[:, :C].T.contiguous(), _square(packed[:, C:], C)


def per_bin(weight: Tensor, values: Tensor, index: Tensor, M: int) -> Tensor:
    """Sums (B, C, M) over the entries of each bin; weight: (B, n) in B blocks, values: (C, n), index: (n,)."""
    shape = (weight.shape[0], values.shape[0], M)
    out = torch.zeros(shape, dtype=torch.float64)
    arrays = (v.contiguous().numpy() for v in (weight, values, index))
    in_blocks(_per_bin, weight.shape[0], *arrays, out.numpy(), grain=8)
    return out


def _square(packed: Tensor, C: int) -> Tensor:
    out = torch.empty((C, C, packed.shape[0]), dtype=packed.dtype, device=packed.device)
    column = 0
    for i in range(C):
        for j in range(i, C):
            out[i, j] = out[j, i] = packed[:, column]
            column += 1
    return out


@cached_njit(nogil=True, inline="always")
def _weights(f):
    """Lagrange's, of the nodes at -1, 0, 1, 2 for a place f between 0 and 1."""
    return (
        -f * (f - 1) * (f - 2) / 6,
        (f + 1) * (f - 1) * (f - 2) / 2,
        -(f + 1) * f * (f - 2) / 2,
        (f + 1) * f * (f - 1) / 6,
    )


@cached_njit(nogil=True, inline="always")
def _locate(x, origin, period, M):
    r = x - origin
    r -= period * np.floor(r / period)
    u = r * (M / period)
    j = int(u)
    if j < 0:
        j = 0
    elif j >= M:
        j = M - 1
    return j, u - j


@cached_njit(nogil=True)
def _interpolate(start, stop, x, origin, period, table, out, positive):
    M, C = table.shape[0] - 3, table.shape[1]
    for i in range(start, stop):
        j, f = _locate(x[i], origin, period, M)
        w0, w1, w2, w3 = _weights(f)
        for c in range(C):
            out[c, i] = w0 * table[j, c] + w1 * table[j + 1, c] + w2 * table[j + 2, c] + w3 * table[j + 3, c]
        if positive:
            for c in range(1, 3):
                if not out[c, i] > 0:
                    out[c, i] = min(table[j + 1, c], table[j + 2, c])


@cached_njit(nogil=True)
def _per_bin(start, stop, weight, values, index, out):
    for block in range(start, stop):
        for c in range(values.shape[0]):
            last, total = 0, 0.0  # entries of a bin mostly follow each other
            for i in range(index.size):
                if index[i] != last:
                    out[block, c, last] += total
                    last, total = index[i], 0.0
                total += weight[block, i] * values[c, i]
            out[block, c, last] += total


@cached_njit(nogil=True)
def _scatter(start, stop, x, origin, period, s0, s1, s2, s3, s4, group, weight, shape):
    M, n_x, n_groups, C = shape
    nodes = np.zeros((M + 3, C))
    packed = np.zeros((n_groups * n_x, C + C * (C + 1) // 2))
    coarse = M // n_x
    grouped, weighted = group.size > 0, weight.size > 1
    common = weight[0]
    s = np.empty(5)
    for i in range(start, stop):
        j, f = _locate(x[i], origin, period, M)
        w0, w1, w2, w3 = _weights(f)
        s[0] = s0[i]
        s[1] = s1[i]
        s[2] = s2[i]
        if C >= 4:
            s[3] = s3[i]
        if C == 5:
            s[4] = s4[i]
        m = j // coarse
        if grouped:
            m += n_x * group[i]
        q = C
        factor = weight[i] if weighted else common
        for a in range(C):
            v = factor * s[a]
            nodes[j, a] += w0 * v
            nodes[j + 1, a] += w1 * v
            nodes[j + 2, a] += w2 * v
            nodes[j + 3, a] += w3 * v
            packed[m, a] += v
            for c in range(a, C):
                packed[m, q] += v * s[c]
                q += 1
    return nodes, packed
