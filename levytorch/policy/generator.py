"""The generator L = b d/dx + D_o d2/dx2 - D_f (-Lap)^alpha on a Fourier basis and its resolvent, in batches.

Section 3.3 of the paper: V solves (beta - L) V = r (equation of Lemma 2.1). Collocation turns it into the dense system

    sum_m c_m (beta phi_m - b phi_m' - D_o phi_m'' + D_f (-Lap)^alpha phi_m)(x_j) = r(x_j).

Tempered jumps have (lam^2 - Lap)^alpha - lam^(2 alpha) in the place of (-Lap)^alpha.
alpha may depend on x: row j then uses |k|^(2 alpha(x_j)). Coefficients carry any leading batch dimensions; the four
fixed matrices are shared by the whole batch, so that assembly is one batched product. Everything is torch and
differentiable in b, D_o, D_f, alpha and r; many small systems on the CPU without gradients go to NumPy's LAPACK in
cache-sized pieces, one thread per core: for 64 modes it takes two thirds of the time of torch's and releases the GIL.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import FourierBasis
from levytorch.convert import common_shape
from levytorch.errors import NumericalError

_CHUNK_NUMBERS = 1 << 20  # of the matrices that are assembled at a time
_PIECE_NUMBERS = 1 << 17  # the same without gradients: 1 MB of matrices, about the size of a second-level cache
_SMALL = 160  # modes; from about here LAPACK itself uses several threads


class Operators(NamedTuple):
    """phi, phi', phi'' and (-Lap)^alpha phi at the points, each (m, n).

    The last (..., m, n) when alpha has a batch of its own.
    """

    phi: Tensor
    first: Tensor
    second: Tensor
    fractional: Tensor


def operators(basis: FourierBasis, x: Tensor, alpha: Tensor, tempering: float = 0.0) -> Operators:
    """The generator's parts applied to the basis at x (m,). alpha: one number, or (..., m) for alpha(x)."""
    phi = basis.matrix(x)
    return Operators(phi, basis.matrix(x, 1), basis.matrix(x, 2), basis.symbol(alpha, 0, tempering) * phi)


def resolvent_matrix(ops: Operators, b: Tensor, D_o: Tensor, D_f: Tensor, beta: float | Tensor) -> Tensor:
    """beta - L as a matrix from Fourier coefficients to values at the points: (..., m, n) for coefficients (..., m)."""
    local = b[..., None] * ops.first + D_o[..., None] * ops.second
    return beta * ops.phi - local + D_f[..., None] * ops.fractional


def column_scale(
    basis: FourierBasis,
    b: Tensor,
    D_o: Tensor,
    D_f: Tensor,
    alpha: Tensor,
    beta: float | Tensor,
    tempering: float = 0.0,
) -> Tensor:
    """Size of (beta - L) phi_m, (n,).

    Dividing it out keeps the condition number near that of the coefficients, not n^2.
    """
    k = basis.wavenumbers.to(b.device)
    jump = basis.symbol(alpha.detach().mean(), 0, tempering)
    size = beta + b.detach().abs().mean() * k + D_o.detach().abs().mean() * k**2 + D_f.detach().abs().mean() * jump
    return torch.as_tensor(size, dtype=b.dtype)


def resolvent_coefficients(
    basis: FourierBasis,
    b: Tensor,
    D_o: Tensor,
    D_f: Tensor,
    alpha: Tensor,
    r: Tensor,
    beta: float,
    tempering: float = 0.0,
) -> Tensor:
    """Fourier coefficients of V = (beta - L)^-1 r by collocation, for many coefficient sets at once.

    b, D_o, D_f, r: (..., n) values at `basis.points()`, broadcast against each other. alpha: a number, or (..., n) for
    alpha(x). Returns (..., n). Differentiable in every tensor argument.
    """
    x = basis.points().to(b.device)
    n = basis.n_modes
    shape = common_shape(b.shape, D_o.shape, D_f.shape, r.shape, alpha.shape, (n,))
    scale = column_scale(basis, b, D_o, D_f, alpha, beta, tempering)
    if len(shape) == 1:
        A = resolvent_matrix(operators(basis, x, alpha, tempering), b, D_o, D_f, beta)
        return torch.linalg.solve(A / scale, r.expand(shape)) / scale

    b, D_o, D_f, r = (t.expand(shape).reshape(-1, n) for t in (b, D_o, D_f, r))
    tracked = torch.is_grad_enabled() and any(t.requires_grad for t in (b, D_o, D_f, r, alpha))
    if alpha.ndim == 0 and not tracked and b.device.type == "cpu":
        ops = operators(basis, x, alpha, tempering)
        parts = torch.stack([beta * ops.phi, ops.first, ops.second, ops.fractional], dim=1) / scale
        weights = torch.stack([torch.ones_like(b), -b, -D_o, D_f], dim=-1)
        return solve_many(parts, weights, r).reshape(shape) / scale

    chunk = max(1, _CHUNK_NUMBERS // (n * n))
    alphas = alpha.expand(shape).reshape(-1, n) if alpha.ndim > 0 else None
    out = []
    for start in range(0, len(b), chunk):
        part = slice(start, start + chunk)
        ops = operators(basis, x, alpha if alphas is None else alphas[part], tempering)
        A = resolvent_matrix(ops, b[part], D_o[part], D_f[part], beta)
        out.append(torch.linalg.solve(A / scale, r[part]))
    return torch.cat(out).reshape(shape) / scale


def solve_many(parts: Tensor, coefficients: Tensor, r: Tensor) -> Tensor:
    """Solve A_i c_i = r_i with A_i[j] = sum_p coefficients[i, j, p] parts[j, p], for every i.

    parts: (m, p, m); coefficients: (batch, m, p); r: (batch, m). Returns (batch, m). CPU tensors, no gradient.
    """
    fixed, weights, rhs = parts.detach().numpy(), coefficients.detach().numpy(), r.detach().numpy()
    batch, m = rhs.shape
    out = np.empty((batch, m))
    piece = max(1, _PIECE_NUMBERS // (m * m))

    def job(start: int) -> None:
        rows = slice(start, start + piece)
        # one product per row j, (systems x p) (p x m): several times faster than multiply-adds over whole matrices
        A = np.matmul(np.ascontiguousarray(weights[rows].transpose(1, 0, 2)), fixed).transpose(1, 0, 2)
        out[rows] = np.linalg.solve(A, rhs[rows, :, None])[..., 0]

    starts = range(0, batch, piece)
    try:
        if m > _SMALL or torch.get_num_threads() == 1 or len(starts) == 1:
            for start in starts:
                job(start)
        else:
            with ThreadPoolExecutor(torch.get_num_threads()) as pool:
                list(pool.map(job, starts))
    except np.linalg.LinAlgError as error:
        raise NumericalError(
            "A system of the batch must not be singular, found one; check that D_o and D_f are positive."
        ) from error
    return torch.from_numpy(out)
