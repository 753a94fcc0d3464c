"""The pairs that are looked at: all, or blocks of neighbours drawn at random, so that the cost stays bounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.diagnostics.region import Region

BLOCK = 32  # neighbours drawn together: what follows what stays visible


@dataclass(frozen=True)
class Sample:
    """Pairs inside a region. `previous`: index here of the pair that ended where this one begins, -1 if there is none.

    `dt` is (n,); `share`: how much of the data was looked at; `total`: pairs of the data inside the region (an
    estimate when not all were looked at).
    """

    x: Tensor
    dx: Tensor
    dt: Tensor
    center: Tensor
    label: Tensor
    previous: Tensor
    uniform_dt: bool
    share: float
    total: int

    def __len__(self) -> int:
        return self.x.shape[0]

    @property
    def dim(self) -> int:
        return 1 if self.x.dim() == 1 else self.x.shape[1]

    @property
    def deviation(self) -> Tensor:
        apart = self.dx - self.center
        return apart.abs() if self.dim == 1 else apart.norm(dim=1)

    @property
    def step_dt(self) -> Tensor:
        """0-d when all pairs share it: what laws and bins like best."""
        return self.dt[0] if self.uniform_dt else self.dt


def choose(transitions: Transitions, most: int, seed: int) -> Transitions:
    """At most about `most` pairs, in blocks of neighbours, in the order of the data."""
    n = len(transitions)
    if n <= most:
        return transitions
    blocks = np.random.default_rng(seed).permutation(n // BLOCK)[: max(1, most // BLOCK)]
    rows = (np.sort(blocks)[:, None] * BLOCK + np.arange(BLOCK)).reshape(-1)
    return transitions[torch.from_numpy(rows)]


def follows(transitions: Transitions) -> Tensor:
    """(n,) bool: the pair begins where the one in the row before ended, in the same trajectory."""
    x, dx, ids = transitions.x, transitions.dx, transitions.trajectory
    end = (x + dx)[:-1]
    slack = 1e-9 * (x[:-1].abs() + x[1:].abs()) + 1e-12 * dx[:-1].abs()
    met = (end - x[1:]).abs() <= slack
    met = met if met.dim() == 1 else met.all(dim=1)
    return torch.cat([torch.zeros(1, dtype=torch.bool), met & (ids[1:] == ids[:-1])])


def make_sample(transitions: Transitions, region: Region, most: int, seed: int) -> Sample:
    """The chosen pairs that lie in the region."""
    chosen = choose(transitions, most, seed)
    label = region.labels(chosen.deviation, chosen.dt)
    inside = label >= 0
    place = torch.where(inside, torch.cumsum(inside, 0) - 1, -1)
    previous = torch.full_like(place, -1)
    previous[1:] = torch.where(follows(chosen)[1:], place[:-1], -1)
    dt = chosen.dt[inside]
    scale = torch.ones_like(dt) if chosen.uniform_dt else dt
    center = chosen.mu * (scale if chosen.dim == 1 else scale.unsqueeze(-1))
    share = len(chosen) / len(transitions)
    return Sample(
        chosen.x[inside],
        chosen.dx[inside],
        dt,
        center,
        label[inside],
        previous[inside],
        chosen.uniform_dt,
        share,
        len(dt) if share == 1.0 else round(len(dt) / share),
    )
