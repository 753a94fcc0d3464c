"""Uncertainty of V from that of the recovered parameters, by the exact linearisation of the resolvent.

(beta - L) V = r gives, for a parameter theta_p of the coefficient functions,

    dV/dtheta_p = (beta - L)^-1 (J_b V' + J_D_o V'' - J_D_f (-Lap)^alpha V - J_alpha D_f d/dalpha (-Lap)^alpha V),

one more right-hand side of the system that is already factorised. Least squares on a window has its own exact
linearisation,

    d(A^T (A c - r)) = 0   =>   dc = -A^+ dA c - (A^T A)^-1 dA^T (A c - r).

Both terms are kept apart, for A on a window has condition numbers up to 1e12: the first costs one of them, where
(A^T A)^-1 A^T would cost its square, and the second costs no more once the residual is orthogonal to the range of A to
rounding, which A c - r as a difference is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from levytorch.errors import InputError

if TYPE_CHECKING:
    from levytorch.policy.solver import Factor, Linear


def sensitivity(source: Any, system: Linear, c: Tensor, factor: Factor) -> Tensor:
    """dc / dtheta, (n_modes, P), c the Fourier coefficients of V."""
    with torch.no_grad():
        J_b, J_D_o, J_D_f, J_alpha = (torch.as_tensor(J, dtype=torch.float64) for J in source.jacobian(system.x))
    basis, ops, D_f = system.basis, system.ops, system.at.D_f
    jump_alpha = basis.symbol(system.at.alpha, log_power=1) * ops.phi  # d/dalpha of |k|^(2 alpha) phi
    w = system.weight[:, None]
    # dA/dtheta_p c, row by row; A = beta - L
    change = -(
        J_b * (ops.first @ c)[:, None]
        + J_D_o * (ops.second @ c)[:, None]
        - J_D_f * (ops.fractional @ c)[:, None]
        - J_alpha * (D_f * (jump_alpha @ c))[:, None]
    )
    dc = factor.solve(-w * change)
    if system.A.shape[0] > system.A.shape[1]:
        residual = -factor.unreached((system.weight * system.r)[:, None]) * w
        dA_T_residual = -(
            ops.first.T @ (J_b * residual)
            + ops.second.T @ (J_D_o * residual)
            - ops.fractional.T @ (J_D_f * residual)
            - jump_alpha.T @ (J_alpha * D_f[:, None] * residual)
        )
        dc = dc - factor.gram_solve(dA_T_residual / system.scale[:, None])
    return dc / system.scale[:, None]


def covariance_factor(source: Any, system: Linear, c: Tensor, factor: Factor) -> Tensor | None:
    """S with cov(c) = S S^T, (n_modes, P); None when the source has no covariance."""
    covariance = getattr(source, "covariance", None)
    if covariance is None or not hasattr(source, "jacobian"):
        return None
    cov = torch.as_tensor(covariance, dtype=torch.float64).detach()
    if cov.ndim != 2 or cov.shape[0] != cov.shape[1] or not bool(torch.isfinite(cov).all()):
        raise InputError(
            f"The recovery's covariance must be a finite square matrix, but has shape {tuple(cov.shape)}; recover it "
            "again."
        )
    # An eigen-decomposition, not Cholesky: a fixed parameter has variance zero and rounding makes others slightly
    # negative
    values, vectors = torch.linalg.eigh((cov + cov.T) / 2)
    return sensitivity(source, system, c, factor) @ (vectors * values.clamp_min(0).sqrt())
