"""(beta - L) V = r as a linear system in the Fourier coefficients of V, its factorisation and its linearisation.

Collocation on the cell (section 3.3), least squares on a window (section 4.3). The uncertainty of V follows from that
of the recovered parameters by the exact linearisation: for a parameter theta_p of the coefficient functions,

    dV/dtheta_p = (beta - L)^-1 (J_b V' + J_D_o V'' - J_D_f (-Lap)^alpha V - J_alpha D_f d/dalpha (-Lap)^alpha V),

one more right-hand side of the system that is already factorised. Least squares has its own,

    d(A^T (A c - r)) = 0   =>   dc = -A^+ dA c - (A^T A)^-1 dA^T (A c - r).

Both terms are kept apart, for A on a window has condition numbers up to 1e12: the first costs one of them, where
(A^T A)^-1 A^T would cost its square, and the second costs no more once the residual is orthogonal to the range of A to
rounding, which A c - r as a difference is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, FourierBasis
from levytorch.errors import InputError
from levytorch.policy.checks import Reward, coefficients_at
from levytorch.policy.generator import Operators, column_scale, operators, resolvent_matrix


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
    lam = float(at.tempering)
    ops = operators(basis, x, at.alpha, lam)
    scale = column_scale(basis, at.b, at.D_o, at.D_f, at.alpha, beta, lam)
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


def sensitivity(dynamics: Any, system: LinearSystem, c: Tensor, factor: Factor) -> Tensor:
    """dc / dtheta, (n_modes, P), c the Fourier coefficients of V."""
    change = generator_change(dynamics, system)
    w = system.weight[:, None]
    dc = factor.solve(w * change.of(c))
    if system.A.shape[0] > system.A.shape[1]:
        residual = -factor.unreached((system.weight * system.r)[:, None]) * w
        dc = dc - factor.gram_solve(-change.adjoint(residual) / system.scale[:, None])
    return dc / system.scale[:, None]


class GeneratorChange(NamedTuple):
    """dL / dtheta: operators (m, n) on coefficients of functions, and what multiplies each, (m, P) or (1, P)."""

    parts: tuple[tuple[Tensor, Tensor], ...]

    def of(self, c: Tensor) -> Tensor:
        """(m, P): d(L f) / dtheta at the points, f the function with the coefficients c."""
        return sum((J * (operator @ c)[:, None] for operator, J in self.parts), start=torch.zeros((), dtype=c.dtype))

    def adjoint(self, rows: Tensor) -> Tensor:
        """(n, P), rows (m, 1)."""
        return sum((operator.T @ (J * rows) for operator, J in self.parts), start=torch.zeros((), dtype=rows.dtype))


def generator_change(dynamics: Any, system: LinearSystem) -> GeneratorChange:
    with torch.no_grad():
        J_b, J_D_o, J_D_f, J_alpha = (torch.as_tensor(J, dtype=torch.float64) for J in dynamics.jacobian(system.x))
    ops, D_f = system.ops, system.at.D_f[:, None]
    # d/dalpha of |k|^(2 alpha) phi
    jump_alpha = system.basis.symbol(system.at.alpha, 1, float(system.at.tempering)) * ops.phi
    jump_lam, J_lam = _tempering_part(dynamics, system)
    return GeneratorChange(
        (
            (ops.first, J_b),
            (ops.second, J_D_o),
            (ops.fractional, -J_D_f),
            (jump_alpha, -J_alpha * D_f),
            (jump_lam, -J_lam * D_f),
        )
    )


def _tempering_part(dynamics: Any, system: LinearSystem) -> tuple[Tensor, Tensor]:
    """d/dlam of ((lam^2 + k^2)^alpha - lam^(2 alpha)) phi, and d lam / d theta (1, P): zero where it is not learned."""
    slope = getattr(getattr(dynamics, "head", None), "tempering_slope", None)
    lam, alpha = float(system.at.tempering), system.at.alpha
    if slope is None or lam == 0.0:
        return torch.zeros_like(system.ops.phi), torch.zeros((1, 1), dtype=torch.float64)
    k2 = system.basis.wavenumbers**2 + lam * lam
    power = alpha[..., None] - 1.0
    symbol = 2.0 * alpha[..., None] * lam * (k2**power - lam ** (2.0 * power))
    return symbol * system.ops.phi, slope()[None]


def covariance_factor(dynamics: Any, system: LinearSystem, c: Tensor, factor: Factor) -> Tensor | None:
    """S with cov(c) = S S^T, (n_modes, P); None when the dynamics have no covariance."""
    directions = principal_directions(dynamics)
    return None if directions is None else sensitivity(dynamics, system, c, factor) @ directions


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
            f"The recovery's covariance must be a finite square matrix, found shape {tuple(cov.shape)}; recover it "
            "again."
        )
    # not Cholesky: a fixed parameter has variance zero, and rounding makes others slightly negative
    values, vectors = torch.linalg.eigh((cov + cov.T) / 2)
    return vectors * values.clamp_min(0).sqrt()
