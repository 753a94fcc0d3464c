"""What LSTD and its relatives ask of the data: sums of products of Fourier functions, per step and block, in one pass.

    start[t, b] = sum phi(x) Phi(x)^T,    land[t, b] = sum phi(x) Phi(x + dx)^T

over the pairs of block b whose step is dt[t]: phi are the K functions that V is made of, Phi the first n >= K. Whatever
is a function of the state, a reward, its integral over a step, what a model expects, enters as a Fourier series of n
functions, so that another reward, discount rate, fold or resampling reads no pair again. Blocks hold whole trajectories
(stretches of time where there are few), so that they are independent of each other, or nearly so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.coefficients import FourierBasis
from levytorch.data import Transitions
from levytorch.errors import InputError
from levytorch.likelihood.exact import MANY_STEPS
from levytorch.policy.line_basis import LineBasis
from levytorch.policy.plane_basis import PlaneBasis
from levytorch.training.blocks import N_BLOCKS
from levytorch.training.law_choice import distinct_steps

WIDE = 65  # functions of rewards and of what a model expects
_CHUNK = 1 << 14  # pairs at a time: their functions stay in the cache
_SAME = 1e-5  # relative distance within which two dt are one


@dataclass(frozen=True)
class Moments:
    """dt: (T,); pairs: (T, B); start, land: (T, B, K, n); basis: the n functions."""

    basis: FourierBasis | LineBasis | PlaneBasis
    dt: Tensor
    pairs: Tensor
    start: Tensor
    land: Tensor

    @property
    def n_basis(self) -> int:
        """K."""
        return int(self.start.shape[2])

    @property
    def gram(self) -> Tensor:
        """(K, K): the mean of phi phi^T, the metric in which functions are compared where the data is."""
        K = self.n_basis
        return self.start[..., :K].sum((0, 1)) / self.pairs.sum()

    def without(self, part: Moments) -> Moments:
        """Those of all other pairs."""
        return Moments(self.basis, self.dt, self.pairs - part.pairs, self.start - part.start, self.land - part.land)


def series(basis: FourierBasis, f: Callable[[Tensor], Tensor]) -> Tensor:
    """(n,) Fourier coefficients of a function of the state, averaged over eight times as many points: a function with a
    jump is not what it is at n of them.
    """
    x = FourierBasis(8 * basis.n_modes + 1, basis.period, basis.origin).points()
    Phi = basis.matrix(x)
    return (Phi.T @ f(x)) / (Phi**2).sum(0)


def moments(
    transitions: Transitions,
    basis: FourierBasis | LineBasis | PlaneBasis,
    n_basis: int,
    rows: NDArray[np.int64] | None = None,
) -> Moments:
    """One pass over the pairs (over `rows` of them, ascending; None: all). basis: the n functions, of which V has K."""
    steps = distinct_steps(transitions)
    if len(steps) > MANY_STEPS:
        raise InputError(
            f"the pairs must have at most {MANY_STEPS} distinct dt, found more; round dt, or sample at even times."
        )
    dt = torch.tensor(steps, dtype=torch.float64)
    blocks = block_rows(transitions)
    shape = (len(steps), len(blocks), n_basis, basis.n_modes)
    start, land, pairs = (torch.zeros(size, dtype=torch.float64) for size in (shape, shape, shape[:2]))
    for b, all_of_block in enumerate(blocks):
        mine = all_of_block if rows is None else np.intersect1d(all_of_block, rows, assume_unique=True)
        for low in range(0, len(mine), _CHUNK):
            some = torch.from_numpy(mine[low : low + _CHUNK])
            x = transitions.x[some]
            y = x + transitions.dx[some]
            for t, here in enumerate(_by_step(transitions, some, dt)):
                wide = basis.rows(x[here])
                few = wide[:n_basis]
                start[t, b].addmm_(few, wide.T)
                land[t, b].addmm_(few, basis.rows(y[here]).T)
                pairs[t, b] += wide.shape[1]
    return Moments(basis, dt, pairs, start, land)


def block_rows(transitions: Transitions) -> list[NDArray[np.int64]]:
    """The pairs of every block, ascending: the blocks that standard errors of a recovery are from, too."""
    found = []
    for starts, stops in transitions.membership.runs_by_block(n_blocks_of(transitions)):
        lengths = stops - starts
        before = np.cumsum(lengths) - lengths
        found.append(np.repeat(starts - before, lengths) + np.arange(int(lengths.sum())))
    return found


def n_blocks_of(transitions: Transitions) -> int:
    return min(N_BLOCKS, len(transitions))


def _by_step(transitions: Transitions, some: Tensor, dt: Tensor) -> list[Tensor | slice]:
    """Which of some pairs have each dt."""
    if len(dt) == 1:
        return [slice(None)]
    own = transitions.dt[some]
    return [((own - step).abs() <= _SAME * step).nonzero().reshape(-1) for step in dt]
