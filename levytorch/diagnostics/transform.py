"""The probability integral transform of steps under a law, conditional on the region they were kept in.

One dimension: u = P(step <= dx | region). More: u = P(|y| <= r | region, direction of y), y = dx - b dt; the law is
isotropic about b dt, so given its direction the radius has the same law on every ray, cut where the ray leaves the
region. Under the law u is uniform and independent of x, of dt, of the direction and of the past.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.diagnostics.sample import Region
from levytorch.law.tails import radial_tail, survival


class Transform(NamedTuple):
    """u in (0, 1) and 1 - u, each with its digits when it is tiny; the direction (n, d) in more than one dimension."""

    u: Tensor
    upper: Tensor
    direction: Tensor | None = None


@torch.no_grad()
def transform(
    c: Coefficients, dx: Tensor, dt: Tensor, center: Tensor, label: Tensor, region: Region, edges: Tensor | None = None
) -> Transform:
    """u of every step; `edges`: see `edge_masses` (d = 1), evaluated here when they are not given."""
    if dx.dim() > 1:
        return _radial(c, dx, dt, center, label, region)
    A, B = c.D_o * dt, c.D_f * dt
    y = dx - c.b * dt
    half = 0.5 * radial_tail(y.abs(), A, B, c.alpha, lam=_lam(c))
    lower, upper = torch.where(y < 0, half, 1.0 - half), torch.where(y < 0, 1.0 - half, half)
    if region.whole:
        return Transform(lower, upper)
    if edges is None:
        edges = edge_masses(c, dt, center, region)
    return conditional(lower, upper, edges, dx, center, label, region)


def conditional(
    lower: Tensor, upper: Tensor, edges: Tensor, dx: Tensor, center: Tensor, label: Tensor, region: Region
) -> Transform:
    """The transform given the stratum of each step, from the masses below and above it and at the edges (d = 1)."""
    if region.whole:
        return Transform(lower, upper)
    F1, S1 = edges[0], edges[1]
    kept = 1.0 - F1 - S1
    u, v = (lower - F1) / kept, (upper - S1) / kept
    if region.outer is not None:
        F2, S2 = edges[2], edges[3]
        kept = ((F1 - F2) + (S1 - S2)).clamp(min=1e-300)
        below, above = (lower - F2) / kept, (upper - S2) / kept
        left, second = dx < center, label == 1
        u = torch.where(second, torch.where(left, below, 1.0 - above), u)
        v = torch.where(second, torch.where(left, 1.0 - below, above), v)
    return Transform(u.clamp(0.0, 1.0), v.clamp(0.0, 1.0))


@torch.no_grad()
def edge_masses(c: Coefficients, dt: Tensor, center: Tensor, region: Region) -> Tensor:
    """Rows P(dx < center - inner), P(dx > center + inner), and the same for outer: (2 or 4, n)."""
    A, B, shift = c.D_o * dt, c.D_f * dt, center - c.b * dt
    rows = []
    for threshold in region.thresholds(dt):
        if threshold is not None:
            rows += [survival(threshold + side * shift, A, B, c.alpha, _lam(c)) for side in (-1.0, 1.0)]
    return torch.stack(torch.broadcast_tensors(*rows))


def _lam(c: Coefficients) -> Tensor | None:
    return c.tempering if bool((c.tempering > 0).any()) else None


def _radial(c: Coefficients, dx: Tensor, dt: Tensor, center: Tensor, label: Tensor, region: Region) -> Transform:
    dim = dx.shape[1]
    drift = c.b * dt.unsqueeze(-1)
    y = dx - drift
    r = y.norm(dim=1)
    direction = y / r.clamp(min=1e-300).unsqueeze(-1)
    A, B = c.D_o * dt, c.D_f * dt

    def tail(radius: Tensor) -> Tensor:
        return radial_tail(radius, A, B, c.alpha, dim=dim, lam=_lam(c))

    beyond = tail(r)
    if region.whole:
        return Transform(1.0 - beyond, beyond, direction)
    offset = center - drift
    inner, outer = region.thresholds(dt)
    assert inner is not None
    enter, leave = _crossings(direction, offset, inner)
    S_in, S_out = tail(enter), tail(leave)
    kept = (S_in - S_out).clamp(min=1e-300)
    held = torch.where(r > leave, S_out, torch.where(r < enter, S_in, beyond))  # tail at the radius moved into the ball
    u, v = (S_in - held) / kept, (held - S_out) / kept
    if outer is not None:
        begin, end = _crossings(direction, offset, outer)
        S_begin, S_end = tail(begin), tail(end)
        shell = ((S_begin - S_end) - kept).clamp(min=1e-300)
        second = label == 1
        u = torch.where(second, ((S_begin - beyond) - (S_in - held)) / shell, u)
        v = torch.where(second, ((beyond - S_end) - (held - S_out)) / shell, v)
    return Transform(u.clamp(0.0, 1.0), v.clamp(0.0, 1.0), direction)


def _crossings(direction: Tensor, offset: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """Where the ray from b dt enters (0 when it starts inside) and leaves the ball about the center."""
    along = (direction * offset).sum(1)
    root = (radius**2 - (offset * offset).sum(1) + along**2).clamp(min=0.0).sqrt()
    return (along - root).clamp(min=0.0), (along + root).clamp(min=0.0)
