"""Steps drawn from the fitted law at observed states, each in the stratum of the pair it stands for.

Moments of scores and components under the law itself are then means over as many draws as one likes: they do not carry
the noise of a small data set into the variance of its own test.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.diagnostics.region import Region
from levytorch.diagnostics.sample import Sample
from levytorch.diagnostics.tangent import Tangent
from levytorch.law import LevyStep

_ROUNDS = 60
_AT_ONCE = 50_000


class Draws(NamedTuple):
    """Rows of the sample that were used, their coefficients, and a step for each."""

    rows: Tensor
    coefficients: Coefficients
    dx: Tensor


@torch.no_grad()
def draw(tangent: Tangent, sample: Sample, count: int, seed: int) -> Draws:
    """`count` draws at states picked evenly from the sample.

    Rejection: a stratum that holds a share p of the law holds about that share of the pairs, so it costs about `count`
    draws in all. Pairs where the law hardly ever lands are left out.
    """
    generator = torch.Generator().manual_seed(seed)
    n = len(sample)
    repeats, rest = divmod(count, n)
    rows = torch.cat([torch.arange(n).repeat(repeats), torch.randperm(n, generator=generator)[:rest]])
    c = tangent.coefficients(sample.x[rows])
    dx = torch.empty((len(rows), *sample.x.shape[1:]), dtype=torch.float64)
    waiting = torch.arange(len(rows))
    for _ in range(_ROUNDS):
        copies = max(1, _AT_ONCE // max(len(waiting), 1))
        at = waiting.repeat_interleave(copies)
        found = _steps(c, sample.dt[rows[at]], at, sample.dim, generator)
        good = _inside(tangent.region, found, sample, rows[at])
        # of several copies the first that fits
        first = good.reshape(-1, copies).double().argmax(1) + copies * torch.arange(len(waiting))
        hit = good[first]
        dx[waiting[hit]] = found[first[hit]]
        waiting = waiting[~hit]
        if not len(waiting):
            break
    keep = torch.ones(len(rows), dtype=torch.bool)
    keep[waiting] = False
    kept = Coefficients(*(v[keep] if v.dim() else v for v in c))
    return Draws(rows[keep], kept, dx[keep])


def _steps(c: Coefficients, dt: Tensor, at: Tensor, dim: int, generator: torch.Generator) -> Tensor:
    b, D_o, D_f, alpha = (v[at] if v.dim() else v for v in c)
    return LevyStep(b, D_o, D_f, alpha, dt, dim).sample(generator=generator)


def _inside(region: Region, dx: Tensor, sample: Sample, rows: Tensor) -> Tensor:
    if region.whole:
        return torch.ones(len(rows), dtype=torch.bool)
    apart = dx - sample.center[rows]
    deviation = apart.abs() if sample.dim == 1 else apart.norm(dim=1)
    return region.labels(deviation, sample.dt[rows]) == sample.label[rows]
