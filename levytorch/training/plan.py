"""From pools and settings to what engines work on: state bins, tail masses, the full-batch objective."""

from __future__ import annotations

import torch
from torch import Tensor

from levytorch.coefficients import FourierHead, Head
from levytorch.data import Pools
from levytorch.data.transitions import threshold_at
from levytorch.training.law import FrozenLaw
from levytorch.training.masses import TailMasses
from levytorch.training.objective import FullBatchObjective
from levytorch.training.penalty import RoughnessPenalty, Strength
from levytorch.training.states import StateBins
from levytorch.training.tail import TailSettings


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
    CT = None if pools.CT is None else bins.means(pools.threshold, x, dt)
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
) -> FullBatchObjective:
    """The full-batch objective of a Fourier head over the pools."""
    main = (pools.main.x, pools.main.dx, shared_dt(pools))
    extra = RoughnessPenalty(head, penalty)
    extra_penalty = extra if extra.active else None
    if not settings.active:
        bins = StateBins(head, main[2], n_bins)
        return FullBatchObjective(head, law, bins, main, penalty=extra_penalty)
    masses = make_masses(head, pools, settings, law, n_bins)
    tail, tail_counts = None, None
    if pools.n_tail:
        rows = pools.tail
        dt = main[2] if main[2].dim() == 0 else main[2][rows]
        tail = (pools.main.x[rows], pools.main.dx[rows], dt)
        tail_counts = masses.bins.counts(tail[0], dt)
    return FullBatchObjective(
        head,
        law,
        masses.bins,
        main,
        tail=tail,
        masses=masses,
        method=settings.method,
        region=conditional_region(settings),
        R_sample=pools.R_sample,
        penalty=extra_penalty,
        counts=masses.share * pools.n_main,
        tail_counts=tail_counts,
    )
