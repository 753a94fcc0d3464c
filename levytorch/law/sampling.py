"""Samples of the symmetric 2 alpha-stable law, E exp(i k L) = exp(-|k|^(2 alpha)), and of its time change."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG_LARGEST = 690.0  # a jump is cut at 1e299 instead of overflowing, which happens for alpha below 0.03
MOST = 4096  # parts of a tempered time, each accepted with probability exp(-1) or more


def symmetric_stable(alpha: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One sample per entry of alpha (float64)."""
    uniform = torch.rand(alpha.shape, generator=generator, dtype=torch.float64, device=alpha.device)
    angle = math.pi * (uniform - 0.5)
    waiting = _exponential(alpha, generator)
    index = 2.0 * alpha
    log_size = (
        torch.log(torch.sin(index * angle).abs().clamp_min(1e-300))
        - torch.log(torch.cos(angle).clamp_min(1e-300)) / index
        + (torch.log(torch.cos((1.0 - index) * angle).clamp_min(1e-300)) - torch.log(waiting)) * (1.0 - index) / index
    )
    return torch.sign(angle) * torch.exp(log_size.clamp_max(LOG_LARGEST))


def isotropic_stable(alpha: Tensor, dim: int, generator: torch.Generator | None = None) -> Tensor:
    """Vectors `[*alpha.shape, dim]`."""
    log_T = log_stable_time(alpha, generator)
    gauss = torch.randn((*alpha.shape, dim), generator=generator, dtype=torch.float64, device=alpha.device)
    return torch.exp(0.5 * (math.log(2.0) + log_T).clamp_max(2.0 * LOG_LARGEST)).unsqueeze(-1) * gauss


def log_stable_time(alpha: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """log T, one per entry of alpha: T > 0 with Laplace transform exp(-s^alpha) (Kanter 1975)."""
    uniform = torch.rand(alpha.shape, generator=generator, dtype=torch.float64, device=alpha.device)
    angle = math.pi * uniform.clamp(1e-16, 1.0 - 1e-16)
    waiting = _exponential(alpha, generator)
    return (
        torch.log(torch.sin(alpha * angle))
        - torch.log(torch.sin(angle).clamp_min(1e-300)) / alpha
        + (torch.log(torch.sin((1.0 - alpha) * angle)) - torch.log(waiting)) * (1.0 - alpha) / alpha
    )


@torch.no_grad()
def tempered_time(alpha: Tensor, B: Tensor, lam: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The tempered stable time T, one per entry (all of one shape):
    E exp(-u T) = exp(-B ((u + lam^2)^alpha - lam^(2 alpha))), B = D_f dt.

    A stable time of Laplace transform exp(-B u^alpha) is accepted with probability exp(-lam^2 T), which happens with
    probability exp(-B lam^(2 alpha)). Where that is small T is the sum of n independent times of B / n: infinitely
    divisible, so that nothing is approximated. Beyond MOST parts T is all but a Gaussian, and is drawn from its first
    three cumulants (Cornish and Fisher; what is neglected is of order 1 / MOST).
    """
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


def _exponential(like: Tensor, generator: torch.Generator | None) -> Tensor:
    uniform = torch.rand(like.shape, generator=generator, dtype=torch.float64, device=like.device)
    return (-torch.log1p(-uniform)).clamp_min(1e-300)
