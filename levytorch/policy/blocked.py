"""Linear equations that are sums over blocks of data: A c = g with A = sum_b A_b, g = sum_b g_b.

Blocks hold whole trajectories (stretches of time where there are few), so that they are independent of each other, or
nearly so.

The solution may be smoothed by a ridge, (A + s P) c = g with P proportional to the diagonal of A and to the fourth
power of the wave number, so that the mean of c is free. Its strength s is the one whose solutions without a block come
nearest to what that block says (leave one block out): the error of a block is A^-1 (A_b c - g_b), a function of the
state, whose variance over the states of the data is averaged over blocks. Resampled blocks give standard errors. None
of it reads data again.

Of a correction to a model `shrink` keeps as much as predicts blocks that were left out best, none included. Where a
model is right its V is better than anything that the data says about it (maximum likelihood is efficient), and a
correction is noise; where it is wrong the correction is what is right. The level of V, the reward's mean over beta, is
known far less well than its shape when beta is small, so that the two are shrunk apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from levytorch.data import Transitions
from levytorch.errors import InputError, NumericalError
from levytorch.training.blocks import N_BLOCKS

STRENGTHS = (0.0, *np.geomspace(1e-9, 1e1, 21).tolist())
SLIGHT = STRENGTHS[1]  # enough to invert A where data is missing
_NEARLY = 1e-12  # of the largest number of A: directions that the data does not see
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Equations:
    """A: (B, K, K), g: (B, K); metric: (K, K), of the square of a function; wave: (K,) wave numbers, 0, 1, 1, 2, ..."""

    A: Tensor
    g: Tensor
    metric: Tensor
    wave: Tensor

    @property
    def n_blocks(self) -> int:
        return int(self.A.shape[0])

    @property
    def ridge(self) -> Tensor:
        """(K, K): P."""
        size = self.A.sum(0).diagonal().abs()
        return torch.diag(size.clamp(min=_NEARLY * float(size.max())) * self.wave**4)

    def solve(self, strength: float, times: Tensor | None = None, moved: Tensor | None = None) -> Tensor:
        """(..., K): c when block b counts times[..., b] times (None: each once).

        moved (..., K): what c is counted from where that is not zero, so that A (c + moved) = g but for the ridge.
        """
        B = self.n_blocks
        weight = torch.ones(B, dtype=torch.float64) if times is None else times
        A = torch.einsum("...b,bij->...ij", weight, self.A)
        g = torch.einsum("...b,bi->...i", weight, self.g)
        if moved is not None:
            g = g - torch.einsum("...ij,...j->...i", A, moved)
        share = weight.sum(-1) / B
        return solution(A + strength * share[..., None, None] * self.ridge, g[..., None])[..., 0]

    def held_out(self, strength: float, moved: Tensor | None = None) -> Tensor:
        """(B, K): c without each block; moved (B, K): see `solve`."""
        B = self.n_blocks
        return self.solve(strength, torch.ones((B, B), dtype=torch.float64) - torch.eye(B, dtype=torch.float64), moved)

    def errors(self, c: Tensor) -> tuple[Tensor, Tensor]:
        """(..., B), (..., B): squares of the error of every block under its own c (..., B, K), as a function of the
        state: of its shape, and of its mean.
        """
        off = torch.einsum("bij,...bj->...bi", self.A, c) - self.g
        total = self.A.sum(0) + SLIGHT * self.ridge
        e = solution(total, off.reshape(-1, off.shape[-1]).T).T.reshape(off.shape) * self.n_blocks
        mean = e @ self.metric[0]
        return torch.einsum("...i,ij,...j->...", e, self.metric, e) - mean**2, mean**2

    def best_strength(self) -> float:
        """The strength whose solutions predict the shape of blocks left out best.

        The mean is free of the ridge, and what blocks say about it is mostly noise when beta is small.
        """
        if self.n_blocks < 2:
            return 0.0
        losses = []
        for strength in STRENGTHS:
            try:
                losses.append(float(self.errors(self.held_out(strength))[0].mean()))
            except NumericalError:
                losses.append(float("inf"))
        best = int(np.argmin(losses))
        if not np.isfinite(losses[best]):
            self.solve(STRENGTHS[-1])  # says why
        return STRENGTHS[best]


def solution(A: Tensor, y: Tensor) -> Tensor:
    """A^-1 y: (..., K, K) and (..., K, m) -> (..., K, m); refuses what has none."""
    c, failed = torch.linalg.solve_ex(A, y)
    if bool((failed != 0).any()) or not bool(torch.isfinite(c).all()):
        raise NumericalError(
            f"the equations of {A.shape[-1]} functions must have a solution, found that the data do not determine "
            "some; use a smaller n_basis or a larger beta, or use data from the whole cell."
        )
    return c


def resampled(n_blocks: int, n: int, seed: int) -> Tensor:
    """(n, B): how often each block is drawn, n times over."""
    if n_blocks < 2:
        raise InputError("standard errors must have at least two blocks of data, found one; pass n_bootstrap=0.")
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(n_blocks, (n, n_blocks), generator=generator)
    return torch.zeros((n, n_blocks), dtype=torch.float64).scatter_add_(1, drawn, torch.ones_like(drawn).double())


def factor_of(replicas: Tensor) -> Tensor:
    """(K, n): S with S S^T the covariance of n replicas (n, K)."""
    return (replicas - replicas.mean(0)).T / (len(replicas) - 1) ** 0.5


@dataclass(frozen=True)
class Shrunk:
    """c = keep (A + s P)^-1 g, s the strength of the ridge; share: what `keep` holds of the level and of the rest."""

    c: Tensor
    strength: float
    share: tuple[float, float]

    @property
    def keep(self) -> Tensor:
        """(K,)."""
        return kept(len(self.c), *self.share)


def kept(K: int, level: float, rest: float) -> Tensor:
    return torch.tensor([level] + [rest] * (K - 1), dtype=torch.float64)


def shrink(equations: Equations, influence: Tensor | None = None) -> Shrunk:
    """influence (B, K): by how much a block moves what the correction starts from, the model, which is left out with
    the block. The rest is chosen by the error of the shape of V, then the level by that of its mean.
    """
    K = len(equations.wave)
    moved = torch.zeros_like(equations.g) if influence is None else -influence
    left_out = torch.stack([equations.held_out(strength, moved) for strength in STRENGTHS[1:]])
    rest = torch.stack([kept(K, 1.0, share) for share in SHARES])[:, None, None, :]
    shape, _ = equations.errors(moved + rest * left_out)
    best = int(shape.mean(-1).argmin())
    share, strength = SHARES[best // len(left_out)], STRENGTHS[1 + best % len(left_out)]
    both = torch.stack([kept(K, level, share) for level in SHARES])[:, None, :]
    _, mean = equations.errors(moved + both * left_out[best % len(left_out)])
    level = SHARES[int(mean.mean(-1).argmin())]
    return Shrunk(kept(K, level, share) * equations.solve(strength), strength, (level, share))


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
