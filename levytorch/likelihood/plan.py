"""From pools and settings to what engines work on: state bins, tail masses, the full-batch objective."""

from __future__ import annotations

import torch
from torch import Tensor

from levytorch.coefficients import FourierHead, Head
from levytorch.data import Pools
from levytorch.data.thresholds import threshold_at
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.masses import TailMasses
from levytorch.likelihood.objective import FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, Strength
from levytorch.likelihood.states import StateBins
from levytorch.likelihood.tail import TailSettings
from levytorch.ranks import Ranks


def shared_dt(pools: Pools) -> Tensor:
    """dt as the engines take it: 0-d when all pairs share it."""
    return pools.main.dt[0] if pools.main.uniform_dt else pools.main.dt


def conditional_region(settings: TailSettings) -> str:
    """What a conditional likelihood conditions on; "auto" starts from the stratified form, which is always right."""
    if settings.CT is None or settings.region == "TRT":
        return "TRT"
    return "strata"


def make_masses(head: Head, pools: Pools, settings: TailSettings, law: FrozenLaw, n_bins: int) -> TailMasses:
    """Thresholds, centres and state shares on `n_bins` bins of x (times groups of dt)."""
    dt = shared_dt(pools)
    bins = StateBins(head, dt, n_bins)
    x = pools.main.x
    counts = bins.counts(x, dt)
    scale = torch.ones_like(bins.dt) if pools.main.uniform_dt else bins.dt
    center = pools.mu * (scale if head.dim == 1 else scale.unsqueeze(-1))
    CT = None
    if pools.CT is not None:
        varies = callable(pools.CT) and not pools.main.uniform_dt
        CT = bins.means(pools.threshold_of, dt) if varies else pools.threshold_of(slice(0, 1)).expand(len(bins))
    TRT = None
    if pools.TRT is not None:
        TRT = torch.as_tensor(threshold_at(pools.TRT, bins.dt), dtype=torch.float64).expand(len(bins))
    if settings.method == "conditional" and conditional_region(settings) == "TRT":
        CT = None
    return TailMasses(bins, center, CT, TRT, counts / counts.sum(), law, at_mean=settings.R_theta == "mean")


def make_objective(
    head: FourierHead,
    pools: Pools,
    settings: TailSettings,
    law: FrozenLaw,
    *,
    n_bins: int = 512,
    penalty: Strength = "none",
    ranks: Ranks | None = None,
) -> FullBatchObjective:
    """The full-batch objective of a Fourier head over the pools; each rank sweeps its own shard of the pairs."""
    ranks = ranks or Ranks()
    n, dt = pools.n_main, shared_dt(pools)
    mine = ranks.shard(n)
    main = (pools.main.x[mine], pools.main.dx[mine], dt if dt.dim() == 0 else dt[mine])
    extra = RoughnessPenalty(head, penalty)
    extra_penalty = extra if extra.active else None
    if not settings.active:
        bins = StateBins(head, dt, n_bins)
        return FullBatchObjective(head, law, bins, main, n, penalty=extra_penalty, ranks=ranks)
    masses = make_masses(head, pools, settings, law, n_bins)
    tail, tail_counts = None, None
    if pools.n_tail:
        rows = pools.tail[ranks.shard(pools.n_tail)]
        tail_dt = dt if dt.dim() == 0 else dt[rows]
        tail = (pools.main.x[rows], pools.main.dx[rows], tail_dt)
        (tail_counts,) = ranks.sum([masses.bins.counts(tail[0], tail_dt)])
    return FullBatchObjective(
        head,
        law,
        masses.bins,
        main,
        n,
        tail=tail,
        masses=masses,
        method=settings.method,
        region=conditional_region(settings),
        R_sample=pools.R_sample,
        penalty=extra_penalty,
        counts=masses.share * pools.n_main,
        tail_counts=tail_counts,
        ranks=ranks,
    )
