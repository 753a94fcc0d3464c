"""`hankel.hankel_scaled` for tensors: every piece is evaluated where it holds and chosen by |z|."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from levytorch.law.hankel import (
    A0,
    A1,
    ASYMPTOTIC_START,
    DESCENT_S2,
    DESCENT_W,
    EULER,
    N_ASYMPTOTIC,
    N_SERIES,
    SERIES_END,
)


def hankel_scaled(z: Tensor) -> tuple[Tensor, Tensor]:
    """(H_0(z), H_1(z)) / exp(i z) for complex z in 0 <= arg z <= pi/4."""
    size = z.abs()
    near, far = size <= SERIES_END, size >= ASYMPTOTIC_START
    series = _series(torch.where(near, z, 1.0))
    descent = _descent(torch.where(near | far, 10.0, z))
    asymptotic = _asymptotic(torch.where(far, z, 100.0))
    h0, h1 = (torch.where(near, s, torch.where(far, a, d)) for s, a, d in zip(series, asymptotic, descent, strict=True))
    return h0, h1


def _series(z: Tensor) -> tuple[Tensor, Tensor]:
    q = -0.25 * z * z
    term = torch.ones_like(z)
    j0, y0, j1, y1 = term, torch.zeros_like(z), term, (1.0 - 2.0 * EULER) * term
    harmonic = 0.0
    for k in range(1, N_SERIES):
        term = term * q / (k * k)
        harmonic += 1.0 / k
        j0, y0 = j0 + term, y0 - term * harmonic
        t1 = term / (k + 1.0)
        j1, y1 = j1 + t1, y1 + t1 * (2.0 * harmonic + 1.0 / (k + 1.0) - 2.0 * EULER)
    log_half = torch.log(0.5 * z)
    j1 = 0.5 * z * j1
    y0 = (2.0 / math.pi) * ((log_half + EULER) * j0 + y0)
    y1 = -2.0 / (math.pi * z) + (2.0 / math.pi) * log_half * j1 - (0.5 / math.pi) * z * y1
    unit = torch.exp(-1j * z)
    return (j0 + 1j * y0) * unit, (j1 + 1j * y1) * unit


def _descent(z: Tensor) -> tuple[Tensor, Tensor]:
    i_over_z = 1j / z
    sum0, sum1 = torch.zeros_like(z), torch.zeros_like(z)
    for s2, weight in zip(DESCENT_S2.tolist(), DESCENT_W.tolist(), strict=True):
        t = i_over_z * s2
        w = weight / torch.sqrt(2.0 + t)
        sum0, sum1 = sum0 + w, sum1 + w * (1.0 + t)
    scale = (4.0 / math.pi) * torch.sqrt(i_over_z)
    return -1j * scale * sum0, -scale * sum1


def _asymptotic(z: Tensor) -> tuple[Tensor, Tensor]:
    inverse = 1.0 / z
    sum0, sum1 = torch.zeros_like(z), torch.zeros_like(z)
    for k in range(N_ASYMPTOTIC - 1, -1, -1):
        sum0, sum1 = sum0 * inverse + complex(A0[k]), sum1 * inverse + complex(A1[k])
    root = math.sqrt(0.5)
    scale = torch.sqrt(2.0 / math.pi * inverse) * complex(root, -root)
    return scale * sum0, -1j * scale * sum1
