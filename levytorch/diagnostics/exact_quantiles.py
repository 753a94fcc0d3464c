"""Steps at given probabilities under the exact law of a step, conditional on a region: moments under it are sums.

The probabilities are nodes of Gauss' rule on panels that narrow towards 0 and 1, with edges where the goodness-of-fit
test counts rare steps, so that a few dozen steps per state stand for all of them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.diagnostics.components import TAILS
from levytorch.diagnostics.sample import Region
from levytorch.likelihood.exact import ScaledStep

_PER_RARE, _PER_PANEL, _PANELS = 3, 6, 8  # nodes beyond the rarest levels and between them, and in the middle
_FARTHEST = 1e13  # periods: beyond it scores have long settled
_HALVINGS = 34


class Masses(NamedTuple):
    """Of what lies below and above, P(dx < a) and P(dx > a), each with its digits when it is tiny."""

    lower: Tensor
    upper: Tensor


class Edges(NamedTuple):
    """Masses outside the core on the left and on the right, and outside of its outer stratum."""

    left: Tensor
    right: Tensor
    far_left: Tensor
    far_right: Tensor


def probability_nodes() -> tuple[Tensor, Tensor]:
    """v in (0, 1) and weights that sum to one."""
    side = [0.0, *sorted(level / 2 for level in TAILS)]
    middle = np.linspace(side[-1], 1 - side[-1], _PANELS + 1)
    edges = [*side[:-1], *middle, *(1 - e for e in reversed(side[:-1]))]
    nodes, weights = [], []
    for low, high in pairwise(edges):
        rare = min(low, 1 - high) < side[-1] - 1e-12
        t, w = np.polynomial.legendre.leggauss(_PER_RARE if rare else _PER_PANEL)
        nodes.append(low + (high - low) * (t + 1) / 2)
        weights.append((high - low) * w / 2)
    return torch.from_numpy(np.concatenate(nodes)), torch.from_numpy(np.concatenate(weights))


@torch.no_grad()
def edges_at(step: ScaledStep, region: Region, x: Tensor, center: Tensor, dt: Tensor) -> Edges:
    """At states x with the center of dx there; zeros where the region has no edge."""
    zero = torch.zeros_like(x)
    inner, outer = region.thresholds(dt)
    near = far = (zero, zero)
    if inner is not None:
        near = step.lower(x, center - inner), step.upper(x, center + inner)
    if outer is not None:
        far = step.lower(x, center - outer), step.upper(x, center + outer)
    return Edges(*near, *far)


@torch.no_grad()
def steps_at(step: ScaledStep, x: Tensor, v: Tensor, edges: Edges, stratum: int) -> Tensor:
    """dx (n,) with P(step < dx | stratum) = v at states x, by bisection."""
    if stratum == 0:
        kept = 1 - edges.left - edges.right
        goal = Masses(edges.left + v * kept, edges.right + (1 - v) * kept)
    else:
        left, right = edges.left - edges.far_left, edges.right - edges.far_right
        mass = v * (left + right)
        below = mass < left
        lower, upper = edges.far_left + mass, edges.far_right + (1 - v) * (left + right)
        goal = Masses(torch.where(below, lower, 1 - upper), torch.where(below, 1 - lower, upper))
    mirrored = goal.upper < goal.lower
    target = torch.where(mirrored, goal.upper, goal.lower)
    unit = 0.1 * step.period
    low = torch.full_like(x, -np.arcsinh(_FARTHEST * step.period / unit))
    high = -low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        dx = unit * torch.sinh(middle)
        # the smaller of the two masses has the digits
        short = torch.empty_like(dx)
        short[~mirrored] = (step.lower(x[~mirrored], dx[~mirrored]) < target[~mirrored]).double()
        short[mirrored] = (step.upper(x[mirrored], dx[mirrored]) > target[mirrored]).double()
        low, high = torch.where(short > 0, middle, low), torch.where(short > 0, high, middle)
    return unit * torch.sinh((low + high) / 2)
