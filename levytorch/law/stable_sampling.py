"""Samples of the symmetric 2 alpha-stable law, E exp(i k L) = exp(-|k|^(2 alpha)), and of its time change."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG_LARGEST = 690.0  # a jump is cut at 1e299 instead of overflowing, which happens for alpha below 0.03


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


def _exponential(like: Tensor, generator: torch.Generator | None) -> Tensor:
    uniform = torch.rand(like.shape, generator=generator, dtype=torch.float64, device=like.device)
    return (-torch.log1p(-uniform)).clamp_min(1e-300)
