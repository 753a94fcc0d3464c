"""A model without jumps: b and D_o by maximum likelihood of Gaussian steps, with errors from blocks of the data.

    log p = -log(4 pi D_o dt) / 2 - (dx - b dt)^2 / (4 D_o dt),    b = phi^T theta_b,    log D_o = phi^T theta_D

The likelihood depends on the data through four sums per bin of x, block by block. b follows from D_o by weighted least
squares, D_o from b by Fisher scoring, in turn.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import FourierBasis
from levytorch.data import Transitions
from levytorch.policy.blocked import solution
from levytorch.policy.line_basis import LineBasis
from levytorch.policy.moments import block_rows

_BINS = 1024
_ROUNDS = 200
_CLOSE = 1e-10  # relative change of the coefficients
_RIDGE = 1e-9  # times the fourth power of the wave number: where there is no data


class Brownian:
    """What `solve_value` asks of a model: b, D_o, D_f = 0 and the covariance of their parameters."""

    dim, D_f, alpha, tempering = 1, 0.0, 0.5, 0.0

    def __init__(self, basis: FourierBasis | LineBasis, theta: Tensor, covariance: Tensor) -> None:
        self.basis, self.period, self.origin = basis, basis.period, basis.origin
        self.support = getattr(basis, "window", None)
        self.theta, self.covariance = theta, covariance  # (2 K,), (2 K, 2 K)

    def b(self, x: Tensor) -> Tensor:
        return self.basis.matrix(x) @ self.theta[: self.basis.n_modes]

    def D_o(self, x: Tensor) -> Tensor:
        return (self.basis.matrix(x) @ self.theta[self.basis.n_modes :]).exp()

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        phi = self.basis.matrix(x)
        none = torch.zeros((len(x), 2 * self.basis.n_modes), dtype=torch.float64)
        zero = torch.zeros_like(phi)
        return torch.cat([phi, zero], 1), torch.cat([zero, phi * self.D_o(x)[:, None]], 1), none, none


def fit_brownian(transitions: Transitions, basis: FourierBasis | LineBasis, CT: float) -> Brownian:
    """From the pairs with |dx - mu| <= CT."""
    sums = _sums(transitions, basis, CT)  # (4, B, bins)
    phi = basis.matrix(basis.grid(_BINS))
    ridge = torch.diag(_RIDGE * float(sums[0].sum()) * basis.harmonic_numbers() ** 4)
    count, moved, spread, time = sums.sum(1)
    start = float((spread.sum() - moved.sum() ** 2 / time.sum()) / (2 * count.sum()))
    theta_b = torch.zeros(basis.n_modes, dtype=torch.float64)
    theta_D = torch.zeros_like(theta_b)
    theta_D[0] = np.log(max(start, 1e-300))
    curve_D = phi.T @ (0.5 * count[:, None] * phi) + ridge
    for _ in range(_ROUNDS):
        D = (phi @ theta_D).exp()
        curve_b = phi.T @ ((time / (2 * D))[:, None] * phi) + ridge / D.mean()
        new_b = solution(curve_b, (phi.T @ (moved / (2 * D)))[:, None])[:, 0]
        b = phi @ new_b
        square = spread - 2 * b * moved + b * b * time
        step = solution(curve_D, (phi.T @ (square / (4 * D) - 0.5 * count) - ridge @ theta_D)[:, None])[:, 0]
        change = float((new_b - theta_b).norm() / new_b.norm().clamp(min=1e-300)) + float(step.norm())
        theta_b, theta_D = new_b, theta_D + step / max(1.0, float((phi @ step).abs().max()))
        if change < _CLOSE:
            break
    theta = torch.cat([theta_b, theta_D])
    return Brownian(basis, theta, _sandwich(sums, phi, theta_b, theta_D, ridge))


def _sums(transitions: Transitions, basis: FourierBasis | LineBasis, CT: float) -> Tensor:
    """Pairs, sums of dx, of dx^2 / dt and of dt, per block and bin of x."""
    if isinstance(basis, LineBasis):
        place = (transitions.x - basis.origin) * (_BINS / basis.length)
    else:
        place = torch.remainder(transitions.x - basis.origin, basis.period) * (_BINS / basis.period)
    node = place.long().clamp(0, _BINS - 1)
    near = (transitions.deviation <= CT).double()
    blocks = block_rows(transitions)
    out = torch.zeros((4, len(blocks), _BINS), dtype=torch.float64)
    for k, rows in enumerate(map(torch.from_numpy, blocks)):
        dx, dt, weight = transitions.dx[rows] * near[rows], transitions.dt[rows], near[rows]
        for sums, values in zip(out, (weight, dx, dx * dx / dt, weight * dt)):
            sums[k].index_add_(0, node[rows], values)
    return out


def _sandwich(sums: Tensor, phi: Tensor, theta_b: Tensor, theta_D: Tensor, ridge: Tensor) -> Tensor:
    """(2 K, 2 K) covariance from the scores of the blocks."""
    b, D = phi @ theta_b, (phi @ theta_D).exp()
    count, moved, spread, time = sums
    scores = torch.cat(
        [
            ((moved - b * time) / (2 * D)) @ phi,
            ((spread - 2 * b * moved + b * b * time) / (4 * D) - 0.5 * count) @ phi,
        ],
        dim=1,
    )
    scores = scores - scores.mean(0)  # of the ridge
    curve_b = phi.T @ ((time.sum(0) / (2 * D))[:, None] * phi) + ridge / D.mean()
    curve_D = phi.T @ (0.5 * count.sum(0)[:, None] * phi) + ridge
    influence = solution(torch.block_diag(curve_b, curve_D), scores.T)
    B = scores.shape[0]
    return influence @ influence.T * (B / max(B - 1, 1))
