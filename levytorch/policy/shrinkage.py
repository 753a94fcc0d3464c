"""How much of a correction to keep: as much as predicts blocks that were left out best, none included.

Where a model is right its V is better than anything that the data says about it (maximum likelihood is efficient), and
a correction is noise; where it is wrong the correction is what is right. The level of V, the reward's mean over beta,
is known far less well than its shape when beta is small, so that the two are shrunk apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from levytorch.policy.blocked import STRENGTHS, Equations

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Shrunk:
    """c = keep (A + s P)^-1 g, s the strength of the ridge; share: what `keep` holds of the level and of the rest."""

    equations: Equations
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
    return Shrunk(equations, kept(K, level, share) * equations.solve(strength), strength, (level, share))
