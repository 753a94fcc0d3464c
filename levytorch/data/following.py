"""Which pairs follow each other: a pair that begins where the one in the row before ended, in the same trajectory."""

from __future__ import annotations

import torch
from torch import Tensor

from levytorch.spaces.states import columns_of

_CLOSE = 1e-6  # of a period: angles that are the same


def follows(x: Tensor, dx: Tensor, trajectory: Tensor, periods: Tensor | None = None) -> Tensor:
    """(n,) bool. periods: (d,) of the state; on a circle a pair may begin whole periods from where the last one ended,
    so that wrapped and unwrapped angles are the same data.
    """
    gap = (x + dx)[:-1] - x[1:]
    slack = 1e-9 * (x[:-1].abs() + x[1:].abs()) + 1e-12 * dx[:-1].abs()
    met = gap.abs() <= slack
    if periods is not None:
        around = gap - periods * torch.round(gap / periods)
        met |= around.abs() <= torch.minimum(_CLOSE * periods + 1e-15 * dx[:-1].abs(), 1e-2 * periods)
    met = columns_of(met).all(0)
    return torch.cat([torch.zeros(1, dtype=torch.bool), met & (trajectory[1:] == trajectory[:-1])])
