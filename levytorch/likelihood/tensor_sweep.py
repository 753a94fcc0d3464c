"""One pass over transitions in d > 1 dimensions: the counterpart of `sweep` for tensor-product Fourier heads.

A fine grid over the cell, as in one dimension, would have 4096^d nodes. Here the basis is evaluated chunk by chunk, the
gradient is exact, and products of scores in the predictors go into the state bins.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from levytorch.coefficients import LinearHead
from levytorch.coefficients.fourier import Chain
from levytorch.data.batches import Batch
from levytorch.errors import NumericalError
from levytorch.likelihood.frozen import FrozenLaw, StepScore
from levytorch.likelihood.sums import CHUNK, ScoreSums, StateBins, project, slices, where

_NUMBERS = 1 << 20  # basis values held at once


@torch.no_grad()
def tensor_sweep(
    head: LinearHead, law: FrozenLaw, batch: Batch, bins: StateBins, *, hessian: bool = False
) -> ScoreSums:
    """Sums over all pairs at the head's current parameters; see `sweep`."""
    theta = head.theta.detach()
    C, M = head.n_predictors, len(bins)
    seen, n, log_p = 0, 0.0, torch.zeros((), dtype=torch.float64)
    gradient = torch.zeros_like(theta)
    upper = torch.triu_indices(C, C)
    packed = torch.zeros((M, C + (2 if hessian else 1) * upper.shape[1]), dtype=torch.float64)
    constant = head.is_constant
    one = head.design(torch.zeros((1, max(head.dim, head.columns)), dtype=torch.float64)) if constant else None
    for x, dx, dt, weight in slices(batch, CHUNK if constant else max(1024, _NUMBERS // max(head.sizes))):
        design = one or head.design(x)
        eta, eta_alpha = head.predictors(theta, design)
        chain = head.respond(eta, eta_alpha, theta[-1])
        step = law.score(chain.coefficients, dx, dt, wrt_alpha=head.learns_alpha)
        part = float((weight * step.log_p).sum())
        if not math.isfinite(part):
            raise NumericalError(where(step.log_p, seen, x, dx))
        q = predictor_scores(chain, step)
        columns = [q, q[upper[0]] * q[upper[1]]]
        if hessian:
            columns.append(_curvature(head, law, eta, eta_alpha, theta[-1], dx, dt)[upper[0], upper[1]])
        moments = torch.cat(columns) * weight
        if M == 1:
            packed[0] += moments.sum(1)
        else:
            packed.index_add_(0, bins.index(x, dt), moments.T)
        q = q * weight
        gradient += project(head, q if not constant else q.sum(1, keepdim=True), design)
        log_p += part
        seen += x.shape[0]
        n += float(weight.expand(x.shape[0]).sum())
    second = _square(packed[:, C : C + upper.shape[1]], upper, C)
    bent = _square(packed[:, C + upper.shape[1] :], upper, C) if hessian else None
    return ScoreSums(n, log_p, gradient, packed[:, :C].T.contiguous(), second, bent)


def predictor_scores(chain: Chain, step: StepScore) -> Tensor:
    """d log p / d eta of every pair, (C, n)."""
    rows = [*(step.b.T if chain.dim > 1 else [step.b]), step.D_o, step.D_f]
    if step.alpha is not None:
        rows.append(step.alpha + step.D_f * chain.D_f_alpha)
    if step.tempering is not None and len(rows) < len(chain.slope):
        rows.append(step.tempering)
    return torch.stack(rows) * chain.slope


def _curvature(
    head: LinearHead,
    law: FrozenLaw,
    eta: Tensor,
    eta_alpha: Tensor | None,
    eta_tempering: Tensor,
    dx: Tensor,
    dt: Tensor,
) -> Tensor:
    """d2 log p / d eta d eta of every pair, (C, C, n): central differences of the analytic scores."""
    d, C = head.dim, head.n_predictors
    chain = head.respond(eta, eta_alpha, eta_tempering)
    c = chain.coefficients
    spread = (c.D_o / dt).sqrt() if bool((c.D_o > 0).all()) else torch.full_like(c.D_o, head.units.b)
    widths = [1e-4 * spread / head.units.b] * d
    # relative steps of the coefficients themselves, brought to the predictors
    widths += [1e-4 * value / slope.clamp(min=1e-12) for value, slope in zip((c.D_o, c.D_f), chain.slope[d : d + 2])]
    out = []
    for row in range(C):
        moved = []
        width = widths[row] if row < d + 2 else torch.full((), 1e-4, dtype=torch.float64)
        for sign in (1.0, -1.0):
            here, here_alpha, here_tempering = eta, eta_alpha, eta_tempering
            if row < d + 2:
                here = eta.clone()
                here[row] += sign * width
            elif eta_alpha is not None and row == d + 2:
                here_alpha = eta_alpha + sign * width
            else:
                here_tempering = eta_tempering + sign * width
            at = head.respond(here, here_alpha, here_tempering)
            moved.append(predictor_scores(at, law.score(at.coefficients, dx, dt, wrt_alpha=head.learns_alpha)))
        out.append((moved[0] - moved[1]) / (2 * width))
    bent = torch.stack(out)
    return 0.5 * (bent + bent.transpose(0, 1))


def _square(packed: Tensor, upper: Tensor, C: int) -> Tensor:
    out = torch.empty((C, C, packed.shape[0]), dtype=packed.dtype)
    out[upper[0], upper[1]] = packed.T
    out[upper[1], upper[0]] = packed.T
    return out
