"""The log-likelihood of all pairs at any head, by one pass over them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.data import Pools
from levytorch.data.batches import FullBatch
from levytorch.likelihood.masses import TailMasses
from levytorch.likelihood.plan import make_masses, shared_dt
from levytorch.likelihood.states import StateBins

if TYPE_CHECKING:
    from levytorch.training.module import LevyModule


def pair_counts(bins: StateBins, pools: Pools) -> tuple[Tensor, Tensor]:
    """Pairs of the main and of the tail pool on each state bin."""
    dt, rows = shared_dt(pools), pools.tail
    tail_dt = dt if dt.dim() == 0 else dt[rows]
    return bins.counts(pools.main.x, dt), bins.counts(pools.main.x[rows], tail_dt)


def mean_log_kept(masses: TailMasses, head: Head, counts: Tensor, tail_counts: Tensor) -> Tensor:
    """log of the kept mass, averaged over the pairs: what a conditional likelihood subtracts."""
    core, middle = masses.log_kept(head)
    n = counts.sum()
    if masses.CT is None:
        return (counts * core).sum() / n
    return ((counts - tail_counts) * core).sum() / n + (tail_counts * middle).sum() / n


def log_likelihood_of(module: LevyModule, head: Head, tcf: float) -> float:
    """What the fit maximises, times the number of pairs, at `head`, which need not be the module's own."""
    pools, ranks = module.pools, module.ranks
    batch = FullBatch(pools, tcf, module.data.chunk_size, ranks.rank, ranks.world)
    with torch.no_grad():
        mean = torch.zeros((), dtype=torch.float64)
        for chunk in batch.chunks(summed=True):
            mean += (chunk.weight * module.law.log_prob(head, chunk.x, chunk.dx, chunk.dt)).sum()
        (mean,) = ranks.sum([mean])
        if module.tail.method == "conditional":
            masses = make_masses(head, pools, module.tail, module.law, 512)
            mean -= mean_log_kept(masses, head, *pair_counts(masses.bins, pools))
    return pools.n_main * float(mean)
