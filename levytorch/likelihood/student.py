"""Standard errors under harmonics whose variances are themselves estimated.

With penalty "harmonics" theta_j has the prior N(0, s_j), and s_j an inverse-gamma one around a trend (`penalty`). A fit
takes the most probable s_j; bands that took it for certain would be too narrow, above all for harmonics that are shrunk
away. By the law of total variance, over the posterior of s_j given what the data alone says of the harmonic
(est_j, with variance v_j),

    var theta_j = E[s_j v_j / (s_j + v_j)] + E[(est_j s_j / (s_j + v_j) - theta_j)^2],

an integral over log s_j for each harmonic by itself. Covariances keep their correlations.
"""

from __future__ import annotations

import torch
from torch import Tensor

from levytorch.likelihood.penalty import SHAPE, RoughnessPenalty, trend

_LOGS = torch.linspace(-14.0, 14.0, 281, dtype=torch.float64)  # of s_j over its estimate
_LEAST = 1e-6  # share of a coefficient that the data determines: below, it says nothing


def widening(penalty: RoughnessPenalty, theta: Tensor, posterior: Tensor) -> Tensor:
    """(P,) factors of standard errors; posterior: the covariance (P, P) under the variances of the fit."""
    out = torch.ones_like(theta)
    variance, start = posterior.diagonal(), 0
    for harmonics in penalty.apart:
        taken = penalty.strengths[start + 1 : start + len(harmonics)]
        if len(taken):
            for i, (strength, mean) in enumerate(zip(taken, trend(taken, harmonics[1:]))):
                rows = torch.nonzero(penalty.group == start + 1 + i).flatten()
                out[rows] = _factors(theta[rows], variance[rows], 1.0 / strength, SHAPE * mean)
        start += len(harmonics)
    return out


def _factors(theta: Tensor, variance: Tensor, s: Tensor, rate: Tensor) -> Tensor:
    """Of the coefficients of one harmonic, whose variance s has the prior IG(SHAPE, rate)."""
    determined = (1.0 - variance / s).clamp(_LEAST, 1.0 - 1e-12)
    v, est = variance / determined, theta / determined
    grid = s * _LOGS.exp()
    total = grid[:, None] + v
    log_p = -SHAPE * grid.log() - rate / grid - 0.5 * (total.log() + est**2 / total).sum(1)
    weight = torch.softmax(log_p, 0)[:, None]  # per log s: the inverse-gamma density has lost one power
    share = grid[:, None] / total
    wide = (weight * (share * v + (share * est - theta) ** 2)).sum(0)
    return (wide / variance).clamp(min=1.0).sqrt()
