"""PhiBE: a differential equation for V whose coefficients are conditional moments of displacements (Zhu 2024).

    beta V = r + b_i V' + s_i V'' / 2,    b_1 = E[x_1 - x_0 | x_0] / dt,    s_1 = E[(x_1 - x_0)^2 | x_0] / dt,
                                          b_2 = E[2 (x_1 - x_0) - (x_2 - x_0) / 2 | x_0] / dt,    s_2 alike,

of first and second order in dt, tested with phi on the data: no model is fitted. It knows diffusions only. Where jumps
are stable with 2 alpha < 2 the second moment does not exist, with 2 alpha <= 1 not even the first, and sums over data
grow with the data: moments are therefore those of displacements up to CT, and further ones count as none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.errors import InputError
from levytorch.policy.bases import Functions
from levytorch.policy.blocked import Equations, block_rows

_CHUNK = 1 << 14
# derivatives of the equation, by the coordinates of the state: each with the moment of the same powers of displacements
DERIVATIVES: dict[int, tuple[tuple[int, ...], ...]] = {1: ((1,), (2,)), 2: ((1, 0), (0, 1), (2, 0), (1, 1), (0, 2))}


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
