"""The generator L = b d/dx + D_o d2/dx2 - D_f (-Lap)^alpha on a Fourier basis, and its resolvent (beta - L)^-1,
batched.

Section 3.3 of the paper: V solves (beta - L) V = r (equation of Lemma 2.1). Collocation turns it into the dense system

    sum_m c_m (beta phi_m - b phi_m' - D_o phi_m'' + D_f (-Lap)^alpha phi_m)(x_j) = r(x_j).

alpha may depend on x: row j then uses |k|^(2 alpha(x_j)). Coefficients carry any leading batch dimensions; the four
fixed matrices are shared by the whole batch, so that assembly is one batched product. Everything is torch and
differentiable in b, D_o, D_f, alpha and r.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from levytorch.policy.basis import FourierBasis

# matrices assembled at a time: bounds memory at 64 modes to a few MB and keeps them in the cache between assembly and
# solve
_CHUNK_NUMBERS = 1 << 20


class Operators(NamedTuple):
    """phi, phi', phi'' and (-Lap)^alpha phi at the points, each (m, n).

    The last (..., m, n) when alpha has a batch of its own.
    """

    phi: Tensor
    first: Tensor
    second: Tensor
    fractional: Tensor


def operators(basis: FourierBasis, x: Tensor, alpha: Tensor) -> Operators:
    """The generator's parts applied to the basis at x (m,). alpha: one number, or (..., m) for alpha(x)."""
    phi = basis.matrix(x)
    return Operators(phi, basis.matrix(x, 1), basis.matrix(x, 2), basis.symbol(alpha) * phi)


def resolvent_matrix(ops: Operators, b: Tensor, D_o: Tensor, D_f: Tensor, beta: float | Tensor) -> Tensor:
    """beta - L as a matrix from Fourier coefficients to values at the points: (..., m, n) for coefficients (..., m)."""
    b, D_o, D_f = torch.broadcast_tensors(b, D_o, D_f)
    m, n = ops.phi.shape
    if ops.fractional.ndim > 2 or b.ndim == 1:
        local = b[..., None] * ops.first + D_o[..., None] * ops.second
        return beta * ops.phi - local + D_f[..., None] * ops.fractional
    # One small product per point j, (batch x 3) (3 x n), added to beta phi_j: four times faster than broadcast
    # multiply-adds.
    batch = b.shape[:-1]
    coefficients = torch.stack(
        [-b.reshape(-1, m).T, -D_o.reshape(-1, m).T, D_f.reshape(-1, m).T], dim=-1
    )  # (m, batch, 3)
    parts = torch.stack([ops.first, ops.second, ops.fractional], dim=1)  # (m, 3, n)
    out = torch.baddbmm((beta * ops.phi)[:, None, :], coefficients, parts)
    return out.transpose(0, 1).reshape(*batch, m, n)


def column_scale(
    basis: FourierBasis, b: Tensor, D_o: Tensor, D_f: Tensor, alpha: Tensor, beta: float | Tensor
) -> Tensor:
    """Size of (beta - L) phi_m, (n,).

    Dividing it out keeps the condition number near that of the coefficients, not n^2.
    """
    k = basis.wavenumbers.to(b.device)
    jump = basis.symbol(alpha.detach().mean())
    size = beta + b.detach().abs().mean() * k + D_o.detach().abs().mean() * k**2 + D_f.detach().abs().mean() * jump
    return torch.as_tensor(size, dtype=b.dtype)


def resolvent_coefficients(
    basis: FourierBasis, b: Tensor, D_o: Tensor, D_f: Tensor, alpha: Tensor, r: Tensor, beta: float
) -> Tensor:
    """Fourier coefficients of V = (beta - L)^-1 r by collocation, for many coefficient sets at once.

    b, D_o, D_f, r: (..., n) values at `basis.points()`, broadcast against each other. alpha: a number, or (..., n) for
    alpha(x). Returns (..., n). Differentiable in every tensor argument.
    """
    x = basis.points().to(b.device)
    n = basis.n_modes
    shape = torch.broadcast_shapes(b.shape, D_o.shape, D_f.shape, r.shape, alpha.shape, (n,))
    scale = column_scale(basis, b, D_o, D_f, alpha, beta)
    if len(shape) == 1:
        A = resolvent_matrix(operators(basis, x, alpha), b, D_o, D_f, beta)
        return torch.linalg.solve(A / scale, r.expand(shape)) / scale

    flat = [t.expand(shape).reshape(-1, n) for t in (b, D_o, D_f, r)]
    alpha_flat = None if alpha.ndim == 0 else alpha.expand(shape).reshape(-1, n)
    shared = None if alpha_flat is not None else _scaled(operators(basis, x, alpha), scale)
    chunk = max(1, _CHUNK_NUMBERS // (n * n))
    out = []
    for start in range(0, flat[0].shape[0], chunk):
        part = slice(start, start + chunk)
        ops = shared if alpha_flat is None else _scaled(operators(basis, x, alpha_flat[part]), scale)
        assert ops is not None
        A = resolvent_matrix(ops, flat[0][part], flat[1][part], flat[2][part], beta)
        out.append(torch.linalg.solve(A, flat[3][part]))
    return torch.cat(out).reshape(shape) / scale


def _scaled(ops: Operators, scale: Tensor) -> Operators:
    return Operators(*(part / scale for part in ops))
