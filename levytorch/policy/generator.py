"""The generator L = b d/dx + D_o d2/dx2 - D_f (-Lap)^alpha on a Fourier basis and its resolvent, in batches.

Section 3.3 of the paper: V solves (beta - L) V = r (equation of Lemma 2.1). Collocation turns it into the dense system

    sum_m c_m (beta phi_m - b phi_m' - D_o phi_m'' + D_f (-Lap)^alpha phi_m)(x_j) = r(x_j).

Tempered jumps have (lam^2 - Lap)^alpha - lam^(2 alpha) in the place of (-Lap)^alpha.
alpha may depend on x: row j then uses |k|^(2 alpha(x_j)). Coefficients carry any leading batch dimensions; the four
fixed matrices are shared by the whole batch, so that assembly is one batched product. Everything is torch and
differentiable in b, D_o, D_f, alpha and r; many small systems on the CPU without gradients go to NumPy's LAPACK in
cache-sized pieces, one thread per core: for 64 modes it takes two thirds of the time of torch's and releases the GIL.

The system of one V is factorised: collocation on the cell (section 3.3), least squares on a window (section 4.3). The
uncertainty of V follows from that of the recovered parameters by the exact linearisation: for a parameter theta_p of
the coefficient functions,

    dV/dtheta_p = (beta - L)^-1 (J_b V' + J_D_o V'' - J_D_f (-Lap)^alpha V - J_alpha D_f d/dalpha (-Lap)^alpha V),

one more right-hand side of the system that is already factorised. Least squares has its own,

    d(A^T (A c - r)) = 0   =>   dc = -A^+ dA c - (A^T A)^-1 dA^T (A c - r).

Both terms are kept apart, for A on a window has condition numbers up to 1e12: the first costs one of them, where
(A^T A)^-1 A^T would cost its square, and the second costs no more once the residual is orthogonal to the range of A to
rounding, which A c - r as a difference is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import FourierBasis
from levytorch.convert import common_shape
from levytorch.errors import InputError, NumericalError
from levytorch.law.jumps import Jumps, Stable
from levytorch.policy.checks import Coefficients, Reward, coefficients_at

_CHUNK_NUMBERS = 1 << 20  # of the matrices that are assembled at a time
_PIECE_NUMBERS = 1 << 17  # the same without gradients: 1 MB of matrices, about the size of a second-level cache
_SMALL = 160  # modes; from about here LAPACK itself uses several threads
STABLE = Stable()


class Operators(NamedTuple):
    """phi, phi', phi'' and (-Lap)^alpha phi at the points, each (m, n).

    The last (..., m, n) when alpha has a batch of its own.
    """

    phi: Tensor
    first: Tensor
    second: Tensor
    fractional: Tensor


def jump_symbol(k: Tensor, alpha: Tensor, jumps: Jumps) -> Tensor:
    """psi of waves k (n,), (..., n) for alpha (...)."""
    return jumps.symbol((k * k).to(alpha.device), alpha[..., None])


def operators(basis: FourierBasis, x: Tensor, alpha: Tensor, jumps: Jumps = STABLE) -> Operators:
    """The generator's parts applied to the basis at x (m,). alpha: one number, or (..., m) for alpha(x)."""
    phi = basis.matrix(x)
    return Operators(phi, basis.matrix(x, 1), basis.matrix(x, 2), jump_symbol(basis.wavenumbers, alpha, jumps) * phi)


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
    jumps: Jumps = STABLE,
) -> Tensor:
    """Size of (beta - L) phi_m, (n,).

    Dividing it out keeps the condition number near that of the coefficients, not n^2.
    """
    k = basis.wavenumbers.to(b.device)
    jump = jump_symbol(k, alpha.detach().mean(), jumps)
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
    jumps: Jumps = STABLE,
) -> Tensor:
    """Fourier coefficients of V = (beta - L)^-1 r by collocation, for many coefficient sets at once.

    b, D_o, D_f, r: (..., n) values at `basis.points()`, broadcast against each other. alpha: a number, or (..., n) for
    alpha(x). Returns (..., n). Differentiable in every tensor argument.
    """
    x = basis.points().to(b.device)
    n = basis.n_modes
    shape = common_shape(b.shape, D_o.shape, D_f.shape, r.shape, alpha.shape, (n,))
    scale = column_scale(basis, b, D_o, D_f, alpha, beta, jumps)
    if len(shape) == 1:
        A = resolvent_matrix(operators(basis, x, alpha, jumps), b, D_o, D_f, beta)
        return torch.linalg.solve(A / scale, r.expand(shape)) / scale

    b, D_o, D_f, r = (t.expand(shape).reshape(-1, n) for t in (b, D_o, D_f, r))
    tracked = torch.is_grad_enabled() and any(t.requires_grad for t in (b, D_o, D_f, r, alpha))
    if alpha.ndim == 0 and not tracked and b.device.type == "cpu":
        ops = operators(basis, x, alpha, jumps)
        parts = torch.stack([beta * ops.phi, ops.first, ops.second, ops.fractional], dim=1) / scale
        weights = torch.stack([torch.ones_like(b), -b, -D_o, D_f], dim=-1)
        return solve_many(parts, weights, r).reshape(shape) / scale

    chunk = max(1, _CHUNK_NUMBERS // (n * n))
    alphas = alpha.expand(shape).reshape(-1, n) if alpha.ndim > 0 else None
    out = []
    for start in range(0, len(b), chunk):
        part = slice(start, start + chunk)
        ops = operators(basis, x, alpha if alphas is None else alphas[part], jumps)
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
            "a system of the batch must not be singular, found one; check that D_o and D_f are positive."
        ) from error
    return torch.from_numpy(out)


class LinearSystem(NamedTuple):
    """The (weighted) system A (scale c) = w r at the points x, and all that its linearisation needs."""

    basis: FourierBasis
    x: Tensor
    weight: Tensor  # sqrt of the quadrature weight of each row; ones for collocation
    ops: Operators
    at: Coefficients
    scale: Tensor
    A: Tensor
    r: Tensor
    beta: float


def linear_system(
    dynamics: Any, r: Reward, beta: float, basis: FourierBasis, window: tuple[float, float] | None
) -> LinearSystem:
    if window is None:
        x = basis.points()
        weight = torch.ones_like(x)
    else:
        nodes, weights = np.polynomial.legendre.leggauss(max(200, 4 * basis.n_modes))
        low, high = window
        x = low + (high - low) * (torch.from_numpy(nodes) + 1) / 2
        weight = (torch.from_numpy(weights) / 2).sqrt()
    at = coefficients_at(dynamics, x)
    ops = operators(basis, x, at.alpha, at.jumps)
    scale = column_scale(basis, at.b, at.D_o, at.D_f, at.alpha, beta, at.jumps)
    A = weight[:, None] * resolvent_matrix(ops, at.b, at.D_o, at.D_f, beta) / scale
    return LinearSystem(basis, x, weight, ops, at, scale, A, r(x), beta)


class Factor(NamedTuple):
    """A factorisation of A: `solve` applies its (pseudo-)inverse, `gram_solve` (A^T A)^-1, `unreached` the projection
    onto what no A y can be; `condition` is that of A.
    """

    solve: Callable[[Tensor], Tensor]
    gram_solve: Callable[[Tensor], Tensor]
    unreached: Callable[[Tensor], Tensor]
    condition: Callable[[], float]


def factorise(system: LinearSystem) -> Factor:
    A = system.A
    if A.shape[0] == A.shape[1]:
        lu, pivots, _ = torch.linalg.lu_factor_ex(A)

        def solve(y: Tensor) -> Tensor:
            return torch.linalg.lu_solve(lu, pivots, y)

        def gram_solve(y: Tensor) -> Tensor:
            return solve(torch.linalg.lu_solve(lu, pivots, y, adjoint=True))

        def condition() -> float:
            if bool((lu.diagonal() == 0).any()):
                return math.inf
            inverse = solve(torch.eye(len(A), dtype=A.dtype))
            return float(torch.linalg.matrix_norm(A, 1) * torch.linalg.matrix_norm(inverse, 1))

        return Factor(solve, gram_solve, torch.zeros_like, condition)
    Q, R = torch.linalg.qr(A)

    def solve_ls(y: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(R, Q.T @ y, upper=True)

    def gram_solve_ls(y: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(R, torch.linalg.solve_triangular(R.T, y, upper=False), upper=True)

    def unreached_ls(y: Tensor) -> Tensor:
        # Twice: after one pass rounding leaves eps |y| in the range of A, which gram_solve would blow up
        for _ in range(2):
            y = y - Q @ (Q.T @ y)
        return y

    def condition_ls() -> float:
        s = torch.linalg.svdvals(R)
        return float(s[0] / s[-1]) if float(s[-1]) > 0 else math.inf

    return Factor(solve_ls, gram_solve_ls, unreached_ls, condition_ls)


class GeneratorChange(NamedTuple):
    """dL / dtheta: operators (m, n) on coefficients of functions, and what multiplies each, (m, P) or (1, P)."""

    parts: tuple[tuple[Tensor, Tensor], ...]

    def of(self, c: Tensor) -> Tensor:
        """(m, P): d(L f) / dtheta at the points, f the function with the coefficients c."""
        return sum((J * (operator @ c)[:, None] for operator, J in self.parts), start=torch.zeros((), dtype=c.dtype))

    def adjoint(self, rows: Tensor) -> Tensor:
        """(n, P), rows (m, 1)."""
        return sum((operator.T @ (J * rows) for operator, J in self.parts), start=torch.zeros((), dtype=rows.dtype))


def generator_change(
    dynamics: Any,
    x: Tensor,
    at: Coefficients,
    k: Tensor,
    phi: Tensor,
    gradient: Sequence[Tensor],
    laplacian: Tensor,
    jump: Tensor,
) -> GeneratorChange:
    """phi: functions of wave numbers k at the points x, and what the parts of the generator make of them, (m, n)."""
    with torch.no_grad():
        J_b, J_D_o, J_D_f, J_alpha = (torch.as_tensor(J, dtype=torch.float64) for J in dynamics.jacobian(x))
    symbols_of = at.jumps.symbol_derivatives(k * k, at.alpha[..., None])
    by_parameters = zip(symbols_of, (J_alpha, tempering_jacobian(dynamics, J_D_o.shape[-1])))
    drift = zip(gradient, J_b.unbind(1) if len(gradient) > 1 else [J_b])
    D_f = at.D_f[:, None]
    symbols = ((symbol * phi, -J * D_f) for symbol, J in by_parameters if J is not None)
    return GeneratorChange((*drift, (laplacian, J_D_o), (jump, -J_D_f), *symbols))


def tempering_jacobian(dynamics: Any, n: int) -> Tensor | None:
    """d lam / d theta of all n parameters, (1, n); None where the tempering is none of them."""
    slope = getattr(getattr(dynamics, "head", None), "tempering_slope", None)
    if slope is None:
        return None
    own = slope()
    return torch.nn.functional.pad(own, (0, n - len(own)))[None]


def delta_method(
    dynamics: Any, change: Callable[[Tensor], Tensor], solve: Callable[[Tensor], Tensor], c: Tensor
) -> Tensor | None:
    """S with cov(c) = S S^T for the numbers c that V is made of; None when the dynamics have no covariance.

    change: c -> (m, P), d(L V) / dtheta at the points; solve: the columns of a right-hand side there -> numbers of V.
    """
    directions = principal_directions(dynamics)
    return None if directions is None else solve(change(c) @ directions)


def principal_directions(dynamics: Any) -> Tensor | None:
    """S with cov(theta) = S S^T, (P, P), of a Recovery; None when it has no covariance."""
    covariance = getattr(dynamics, "covariance", None)
    if covariance is None or not hasattr(dynamics, "jacobian"):
        return None
    return root_of(covariance)


def root_of(covariance: Any) -> Tensor:
    """S with S S^T the covariance of the parameters."""
    cov = torch.as_tensor(covariance, dtype=torch.float64).detach()
    if cov.ndim != 2 or cov.shape[0] != cov.shape[1] or not bool(torch.isfinite(cov).all()):
        raise InputError(
            f"the recovery's covariance must be a finite square matrix, found shape {tuple(cov.shape)}; recover it "
            "again."
        )
    # not Cholesky: a fixed parameter has variance zero, and rounding makes others slightly negative
    values, vectors = torch.linalg.eigh((cov + cov.T) / 2)
    return vectors * values.clamp_min(0).sqrt()
