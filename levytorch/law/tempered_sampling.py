"""Samples of the tempered stable time T: E exp(-u T) = exp(-B ((u + lam^2)^alpha - lam^(2 alpha))), B = D_f dt.

A stable time of Laplace transform exp(-B u^alpha) is accepted with probability exp(-lam^2 T), which happens with
probability exp(-B lam^(2 alpha)). Where that is small T is the sum of n independent times of B / n: infinitely
divisible, so that nothing is approximated. Beyond MOST parts T is all but a Gaussian, and is drawn from its first three
cumulants (Cornish and Fisher; what is neglected is of order 1 / MOST).
"""

from __future__ import annotations

import torch
from torch import Tensor

from levytorch.law.stable_sampling import log_stable_time

MOST = 4096  # parts of a time, each accepted with probability exp(-1) or more


@torch.no_grad()
def tempered_time(alpha: Tensor, B: Tensor, lam: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """T, one per entry (all of one shape)."""
    shape = alpha.shape
    alpha, B, lam = (t.reshape(-1) for t in (alpha, B, lam))
    cost = B * lam ** (2.0 * alpha)
    parts = torch.ceil(cost).clamp_min(1.0)
    out = torch.zeros_like(alpha)
    wide = parts > MOST
    if bool(wide.any()):
        a, c, l2 = alpha[wide], cost[wide], lam[wide] ** 2
        gauss = torch.randn(a.shape, generator=generator, dtype=torch.float64, device=a.device)
        spread = torch.sqrt(a * (1.0 - a) * c)
        skewness = (2.0 - a) / spread
        out[wide] = (a * c + spread * (gauss + (gauss * gauss - 1.0) * skewness / 6.0)).clamp_min(0.0) / l2
    counts = torch.where(wide, 0.0, parts).long()
    owner = torch.repeat_interleave(torch.arange(len(out), device=out.device), counts)
    log_scale = torch.log(B / parts) / alpha
    while len(owner):
        log_T = log_stable_time(alpha[owner], generator) + log_scale[owner]
        # alpha of 1e-300 overflows on the way: its times are zero or beyond all numbers
        T = torch.exp(log_T.nan_to_num(-690.0).clamp(-690.0, 690.0))
        uniform = torch.rand(T.shape, generator=generator, dtype=torch.float64, device=T.device)
        good = torch.log1p(-uniform) < -(lam[owner] ** 2) * T
        good |= lam[owner] == 0
        out.index_add_(0, owner[good], T[good])
        owner = owner[~good]
    return out.reshape(shape)
