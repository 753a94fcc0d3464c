"""b as the mean of a step instead of its location: `recover(drift="mean")`.

The likelihood puts b where most steps are. An animal rests in most hours and walks home in a few of them: the steps
are not symmetric about b, which then follows the peak of the rests, and paths of the fit never return. With tempering
a step has a mean and a variance, and b follows from all steps by generalised least squares,

    sum over pairs (dx - b dt)^2 / (2 v),    v = 2 dt (D_o + alpha D_f lam^(2 alpha - 2)),

with D_o, D_f and alpha, and so f of a memory, as the likelihood found them about the location, and with the smoothing
that it chose. Errors of b are those of a sandwich: they do not trust v.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from levytorch.coefficients import Head, LinearHead, linear
from levytorch.coefficients.layout import ISOTROPIC
from levytorch.data import Transitions
from levytorch.errors import InputError, LevytorchWarning
from levytorch.law import log_density
from levytorch.likelihood.penalty import RoughnessPenalty
from levytorch.likelihood.tail import TailSettings
from levytorch.spaces.states import beside

if TYPE_CHECKING:
    from levytorch.training.recovery import Recovery

DRIFTS = ("location", "mean")
_LEAST = 1e-100  # of the tempering of a fit without jumps


def check_mean(head: Head, tail: TailSettings, tempered: bool) -> None:
    """Refuse fits whose steps have no mean that could be estimated."""
    found = None
    if not tempered:
        found = "no tempering"
    elif not isinstance(head, LinearHead) or head.layout.noise is not ISOTROPIC:
        found = f"a {type(head).__name__}" + (" with matrix noise" if isinstance(head, LinearHead) else "")
    elif tail.active:
        found = f"tail.method {tail.method}"
    if found is not None:
        raise InputError(
            'drift "mean" must have tempering, a Fourier, spline or polynomial head with isotropic noise and no '
            f'treatment of tails, found {found}; pass tempering="learn", or drift="location".'
        )


@torch.no_grad()
def with_mean(recovery: Recovery, pairs: Transitions) -> None:
    """Put the mean in the place of the location, with its errors, and the log-likelihood at it."""
    head = linear(recovery.head)
    if not recovery.tempering > 0 and bool((recovery.D_f(recovery.states) > 0).any()):
        warnings.warn(
            'drift "mean" must have tempered jumps, found a tempering of zero; b remains the location.',
            LevytorchWarning,
            stacklevel=2,
        )
        return
    P, rows = head.theta.numel(), head.layout.rows("b")
    parts = torch.cat([torch.arange(P)[head.part(row)] for row in range(rows.start, rows.stop)])
    A, g, M = torch.zeros((P, P)).double(), torch.zeros(P).double(), torch.zeros((P, P)).double()
    for block in pairs.blocks():
        J, weight = _weighted(head, pairs.states[block], pairs.dt[block])
        dx = pairs.dx[block].reshape(len(J), -1)
        A += torch.einsum("n,ndp,ndq->pq", weight, J, J)
        g += torch.einsum("n,ndp,nd->p", weight, J, dx)
    smooth = torch.zeros(P).double()
    if strengths := recovery.metrics.get("penalty_strengths"):
        smooth = RoughnessPenalty(head, strengths).precision()
    at = parts[:, None], parts[None, :]
    inverse = torch.linalg.pinv(A[at] + torch.diag(smooth[parts]), hermitian=True)
    theta = head.flat()
    theta[parts] = inverse @ g[parts]
    recovery.head.set_flat(theta)
    total = 0.0
    for block in pairs.blocks():
        states, dx, dt = pairs.states[block], pairs.dx[block], pairs.dt[block]
        J, weight = _weighted(head, states, dt)
        c = head(states)
        rest = dx - c.b * beside(dt, c.b)
        score = torch.einsum("n,ndp,nd->np", weight, J, rest.reshape(len(J), -1))
        M += score.T @ score
        total += float(log_density(dx, *c[:4], dt, dim=head.dim, tempering=c.tempering).sum())
    if recovery.covariance is not None:
        covariance = recovery.covariance.clone()
        covariance[parts, :], covariance[:, parts] = 0.0, 0.0
        covariance[at] = inverse @ (M[at] + torch.diag(smooth[parts])) @ inverse
        recovery.covariance = covariance
    recovery.log_likelihood, recovery.blocks, recovery.shift = total, None, None
    recovery.metrics["drift"] = "mean"


def _weighted(head: LinearHead, states: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """d (b dt) / d theta, (n, d, P), and one over the variance of a coordinate of a step, (n,)."""
    c, n = head(states), len(dt)
    J = head.jacobian(states)[0].reshape(n, head.dim, -1) * dt.reshape(n, 1, 1)
    of_jumps = c.alpha * c.D_f * c.tempering.clamp(min=_LEAST) ** (2 * c.alpha - 2)
    variance = 2 * (c.D_o + of_jumps) * dt
    return J, 1 / variance.expand(n)
