"""PhiBE: a differential equation for V whose coefficients are conditional moments of displacements (Zhu 2024).

    beta V = r + b_i V' + s_i V'' / 2,    b_1 = E[x_1 - x_0 | x_0] / dt,    s_1 = E[(x_1 - x_0)^2 | x_0] / dt,
                                          b_2 = E[2 (x_1 - x_0) - (x_2 - x_0) / 2 | x_0] / dt,    s_2 alike,

of first and second order in dt, tested with phi on the data: no model is fitted. It knows diffusions only. Where jumps
are stable with 2 alpha < 2 the second moment does not exist, with 2 alpha <= 1 not even the first, and sums over data
grow with the data: moments are therefore those of displacements up to CT, and further ones count as none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import FourierBasis
from levytorch.data import Transitions
from levytorch.errors import InputError
from levytorch.policy.blocked import Equations
from levytorch.policy.line_basis import LineBasis
from levytorch.policy.model_step import to_series
from levytorch.policy.moments import block_rows

_CHUNK = 1 << 14


@dataclass(frozen=True)
class Displacements:
    """start: (B, K, n) sums of phi Phi^T; first, second: (B, K, m) the same with b_i and s_i of every pair, of as many
    functions as the derivatives of phi have.
    """

    basis: FourierBasis | LineBasis
    pairs: int
    start: Tensor
    first: Tensor
    second: Tensor


def displacements(
    transitions: Transitions, basis: FourierBasis | LineBasis, n_basis: int, CT: float, order: int
) -> Displacements:
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
    # derivatives of waves on a cell are waves of the same frequencies; those of splines are nearly in the wide space
    m = n_basis | 1 if basis.period is not None else basis.n_modes
    columns = (basis.n_modes, m, m)
    sums = [torch.zeros((len(blocks), n_basis, m), dtype=torch.float64) for m in columns]
    for b, mine in enumerate(blocks):
        if follow is not None:
            mine = mine[follow[mine]]
        for low in range(0, len(mine), _CHUNK):
            some = torch.from_numpy(mine[low : low + _CHUNK])
            dx, dt = transitions.dx[some], transitions.dt[some]
            once = dx * (dx.abs() <= CT)
            moved, spread = once, once**2
            if order == 2:
                twice = dx + transitions.dx[some + 1]
                twice = twice * (twice.abs() <= CT)
                moved, spread = 2 * once - twice / 2, 2 * once**2 - twice**2 / 2
            wide = basis.rows(transitions.x[some])
            few = wide[:n_basis]
            for k, weight in enumerate((None, moved / dt, spread / dt)):
                sums[k][b].addmm_(few if weight is None else few * weight, wide[: columns[k]].T)
            pairs += len(some)
    return Displacements(basis, pairs, *sums)


def followed(transitions: Transitions) -> np.ndarray:
    """(n,) whether the next pair begins where this one ends."""
    x, dx, own = transitions.x.numpy(), transitions.dx.numpy(), transitions.trajectory.numpy()
    out = np.zeros(len(x), dtype=bool)
    end = x[:-1] + dx[:-1]
    out[:-1] = (own[1:] == own[:-1]) & (np.abs(end - x[1:]) <= 1e-9 * np.maximum(np.abs(end), np.abs(dx[:-1])))
    return out


def phibe(found: Displacements, r: Tensor, beta: float) -> Equations:
    """r: (n,) Fourier coefficients of the reward."""
    basis, K = found.basis, found.start.shape[1]
    x = basis.points()
    slope, bend = (to_series(basis, basis.matrix(x, order))[: found.first.shape[2], :K] for order in (1, 2))
    A = beta * found.start[..., :K] - found.first @ slope - found.second @ bend / 2
    metric = found.start[..., :K].sum(0) / found.pairs
    return Equations(A, found.start @ r, metric, basis.harmonic_numbers()[:K])
