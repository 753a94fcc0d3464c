"""Methods without jumps: PhiBE, a differential equation for V from moments, and a Brownian model by maximum likelihood.

PhiBE (Zhu 2024) takes the coefficients of the equation to be conditional moments of displacements,

    beta V = r + b_i V' + s_i V'' / 2,    b_1 = E[x_1 - x_0 | x_0] / dt,    s_1 = E[(x_1 - x_0)^2 | x_0] / dt,
                                          b_2 = E[2 (x_1 - x_0) - (x_2 - x_0) / 2 | x_0] / dt,    s_2 alike,

of first and second order in dt, tested with phi on the data: no model is fitted. Where jumps are stable with
2 alpha < 2 the second moment does not exist, with 2 alpha <= 1 not even the first, and sums over data grow with the
data: moments are therefore those of displacements up to CT, and further ones count as none.

The Brownian model has b and D_o alone, with errors from blocks of the data,

    log p = -d log(4 pi D_o dt) / 2 - |dx - b dt|^2 / (4 D_o dt),    b = phi^T theta_b,    log D_o = phi^T theta_D

in d coordinates. The likelihood depends on the data through 3 + d sums per bin of x, block by block. b follows
from D_o by weighted least squares, D_o from b by Fisher scoring, in turn.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.errors import InputError
from levytorch.policy.bases import Functions
from levytorch.policy.blocked import Equations, block_rows, solution

_CHUNK = 1 << 14
# derivatives of the equation, by the coordinates of the state: each with the moment of the same powers of displacements
DERIVATIVES: dict[int, tuple[tuple[int, ...], ...]] = {
    d: tuple(order for order in itertools.product(range(3), repeat=d) if 1 <= sum(order) <= 2) for d in (1, 2, 3)
}
_ROUNDS = 200
_CLOSE = 1e-10  # relative change of the coefficients
_RIDGE = 1e-9  # times the fourth power of the wave number: where there is no data


@dataclass(frozen=True)
class Displacements:
    """start: (B, K, n) sums of phi Phi^T; moved: (B, K, m) the same with b_i, s_i / 2 of every pair, of as many
    functions as the derivatives of phi have: one for every derivative of the equation.
    """

    basis: Functions
    pairs: int
    start: Tensor
    moved: tuple[Tensor, ...]


def displacements(transitions: Transitions, basis: Functions, n_basis: int, CT: float, order: int) -> Displacements:
    """One pass; order 2 takes pairs that are followed by another one of the same trajectory."""
    if order == 2 and not transitions.uniform_dt:
        raise InputError("PhiBE of order 2 must have one dt, found several; use order=1.")
    follow = followed(transitions) if order == 2 else None
    if follow is not None and not bool(follow.any()):
        raise InputError(
            "PhiBE of order 2 must have pairs that follow each other, found none; use order=1, or trajectories of "
            "three observations or more."
        )
    blocks, pairs = block_rows(transitions), 0
    m, derivatives = basis.closed(n_basis), DERIVATIVES[basis.dim]
    start = torch.zeros((len(blocks), n_basis, basis.n_modes), dtype=torch.float64)
    sums = [torch.zeros((len(blocks), n_basis, m), dtype=torch.float64) for _ in derivatives]
    for b, mine in enumerate(blocks):
        if follow is not None:
            mine = mine[follow[mine]]
        for low in range(0, len(mine), _CHUNK):
            some = torch.from_numpy(mine[low : low + _CHUNK])
            dx, dt = transitions.dx[some], transitions.dt[some]
            twice = dx + transitions.dx[some + 1] if order == 2 else None
            wide = basis.rows(transitions.x[some])
            few = wide[:n_basis]
            start[b].addmm_(few, wide.T)
            for total, powers in zip(sums, derivatives):
                weight = _product(dx, powers, CT)
                if twice is not None:
                    weight = 2 * weight - _product(twice, powers, CT) / 2
                total[b].addmm_(few * (weight / dt), wide[:m].T)
            pairs += len(some)
    return Displacements(basis, pairs, start, tuple(sums))


def _product(dx: Tensor, powers: tuple[int, ...], CT: float) -> Tensor:
    """Powers of the coordinates of displacements, over their factorials; none of what lies beyond CT."""
    dx = dx.reshape(len(dx), -1)
    near = dx * (dx.norm(dim=1, keepdim=True) <= CT)
    return near.pow(torch.tensor(powers)).prod(1) / math.prod(map(math.factorial, powers))


def followed(transitions: Transitions) -> np.ndarray:
    """(n,) whether the next pair begins where this one ends."""
    x, dx, own = transitions.x.numpy(), transitions.dx.numpy(), transitions.trajectory.numpy()
    out = np.zeros(len(x), dtype=bool)
    end = x[:-1] + dx[:-1]
    near = np.abs(end - x[1:]) <= 1e-9 * np.maximum(np.abs(end), np.abs(dx[:-1]))
    out[:-1] = (own[1:] == own[:-1]) & near.reshape(len(near), -1).all(1)
    return out


def phibe(found: Displacements, r: Tensor, beta: float) -> Equations:
    """r: (n,) Fourier coefficients of the reward."""
    basis, K = found.basis, found.start.shape[1]
    x = basis.points()
    A = beta * found.start[..., :K]
    for moved, order in zip(found.moved, DERIVATIVES[basis.dim]):
        A = A - moved @ basis.project(basis.derivative(x, order))[: moved.shape[2], :K]
    metric = found.start[..., :K].sum(0) / found.pairs
    return Equations(A, found.start @ r, metric, basis.harmonic_numbers()[:K])


class Brownian:
    """What `solve_value` asks of a model: b, D_o, D_f = 0 and the covariance of their parameters."""

    D_f, alpha, tempering = 0.0, 0.5, 0.0

    def __init__(self, basis: Functions, theta: Tensor, covariance: Tensor) -> None:
        self.basis, self.period, self.origin = basis, basis.period, basis.origin
        self.support = self.window = getattr(basis, "window", None)
        self.theta, self.covariance = theta, covariance  # ((d + 1) K,), those of b coordinate by coordinate
        self.dim = len(theta) // basis.n_modes - 1

    def b(self, x: Tensor) -> Tensor:
        found = self.basis.matrix(x) @ self.theta[: -self.basis.n_modes].reshape(self.dim, -1).T
        return found if self.dim > 1 else found[..., 0]

    def D_o(self, x: Tensor) -> Tensor:
        return (self.basis.matrix(x) @ self.theta[-self.basis.n_modes :]).exp()

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        phi = self.basis.matrix(x)
        none = torch.zeros((len(x), len(self.theta)), dtype=torch.float64)
        J_b = torch.stack([none] * self.dim, dim=1)
        for i, J in enumerate(J_b.unbind(1)):
            J[:, i * self.basis.n_modes : (i + 1) * self.basis.n_modes] = phi
        J_D_o = none.clone()
        J_D_o[:, -self.basis.n_modes :] = phi * self.D_o(x)[:, None]
        return J_b if self.dim > 1 else J_b[:, 0], J_D_o, none, none


def fit_brownian(transitions: Transitions, basis: Functions, CT: float) -> Brownian:
    """From the pairs with |dx - mu| <= CT."""
    sums, d = _sums(transitions, basis, CT), transitions.dim  # (3 + d, B, bins)
    phi = basis.matrix(basis.grid(basis.n_bins))
    ridge = torch.diag(_RIDGE * float(sums[0].sum()) * basis.harmonic_numbers() ** 4)
    count, spread, time, *_ = sums.sum(1)
    moved = sums[3:].sum(1)  # (d, bins)
    start = float((spread.sum() - moved.sum(1).square().sum() / time.sum()) / (2 * d * count.sum()))
    theta_b = torch.zeros((basis.n_modes, d), dtype=torch.float64)
    theta_D = torch.zeros(basis.n_modes, dtype=torch.float64)
    theta_D[0] = np.log(max(start, 1e-300))
    curve_D = phi.T @ (0.5 * d * count[:, None] * phi) + ridge
    for _ in range(_ROUNDS):
        D = (phi @ theta_D).exp()
        curve_b = phi.T @ ((time / (2 * D))[:, None] * phi) + ridge / D.mean()
        new_b = solution(curve_b, phi.T @ (moved / (2 * D)).T)
        b = (phi @ new_b).T
        square = spread - 2 * (b * moved).sum(0) + (b * b).sum(0) * time
        step = solution(curve_D, (phi.T @ (square / (4 * D) - 0.5 * d * count) - ridge @ theta_D)[:, None])[:, 0]
        change = float((new_b - theta_b).norm() / new_b.norm().clamp(min=1e-300)) + float(step.norm())
        theta_b, theta_D = new_b, theta_D + step / max(1.0, float((phi @ step).abs().max()))
        if change < _CLOSE:
            break
    theta = torch.cat([theta_b.T.reshape(-1), theta_D])
    return Brownian(basis, theta, _sandwich(sums, phi, theta_b, theta_D, ridge))


def _sums(transitions: Transitions, basis: Functions, CT: float) -> Tensor:
    """Pairs, sums of |dx|^2 / dt, of dt and of every coordinate of dx, per block and bin of x."""
    node = basis.bins(transitions.x)
    near = (transitions.deviation <= CT).double()
    blocks = block_rows(transitions)
    out = torch.zeros((3 + transitions.dim, len(blocks), basis.n_bins), dtype=torch.float64)
    for k, rows in enumerate(map(torch.from_numpy, blocks)):
        dt, weight = transitions.dt[rows], near[rows]
        dx = transitions.dx[rows].reshape(len(rows), -1).T * weight
        for sums, values in zip(out, (weight, dx.square().sum(0) / dt, weight * dt, *dx)):
            sums[k].index_add_(0, node[rows], values)
    return out


def _sandwich(sums: Tensor, phi: Tensor, theta_b: Tensor, theta_D: Tensor, ridge: Tensor) -> Tensor:
    """((d + 1) K, (d + 1) K) covariance from the scores of the blocks."""
    b, D = (phi @ theta_b).T[:, None], (phi @ theta_D).exp()  # (d, 1, bins), (bins,)
    (count, spread, time), moved, d = sums[:3], sums[3:], len(b)
    square = spread - 2 * (b * moved).sum(0) + (b * b).sum(0) * time
    of_b = ((moved - b * time) / (2 * D)) @ phi  # (d, B, K)
    scores = torch.cat([*of_b, (square / (4 * D) - 0.5 * d * count) @ phi], dim=1)
    scores = scores - scores.mean(0)  # of the ridge
    curve_b = phi.T @ ((time.sum(0) / (2 * D))[:, None] * phi) + ridge / D.mean()
    curve_D = phi.T @ (0.5 * d * count.sum(0)[:, None] * phi) + ridge
    influence = solution(torch.block_diag(*[curve_b] * d, curve_D), scores.T)
    B = scores.shape[0]
    return influence @ influence.T * (B / max(B - 1, 1))
