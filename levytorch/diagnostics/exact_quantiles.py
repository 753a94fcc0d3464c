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
from levytorch.likelihood.exact_step import ExactStep

_PER_RARE, _PER_PANEL, _PANELS = 3, 6, 8  # nodes beyond the rarest levels and between them, and in the middle
_FARTHEST = 1e13  # periods: beyond it scores have long settled
_ROUNDS, _CLOSE = 40, 1e-9  # of the secant method, and where it ends, in log mass


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
def edges_at(step: ExactStep, region: Region, x: Tensor, center: Tensor, dt: Tensor) -> Edges:
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
def steps_at(step: ExactStep, states: Tensor, v: Tensor, edges: Edges, stratum: int) -> Tensor:
    """dx (M, J) with P(step < dx | stratum) = v (J,) at states (M,); edges: there.

    A ladder of dx brackets every one of them, and the secant method in asinh dx and log mass, both nearly straight
    lines in the tail, closes in.
    """
    goal = _goals(v, Edges(*(e[:, None] for e in edges)), stratum)
    mirrored = goal.upper < goal.lower  # the smaller of the two masses has the digits
    target = torch.where(mirrored, goal.upper, goal.lower).clamp(min=1e-300).log()
    sign = torch.where(mirrored, -1.0, 1.0).to(target)
    unit = 0.1 * step.period
    x = states[:, None].expand_as(target)

    def off(z: Tensor) -> Tensor:
        """Of log mass, growing with z = asinh(dx / unit)."""
        dx, mass = unit * torch.sinh(z), torch.empty_like(z)
        mass[~mirrored] = step.lower(x[~mirrored], dx[~mirrored])
        mass[mirrored] = step.upper(x[mirrored], dx[mirrored])
        return sign * (mass.clamp(min=1e-300).log() - target)

    low, high, f_low, f_high = _bracket(step, states, unit, mirrored, target)
    z, before = (low + high) / 2, torch.zeros_like(target)
    for _ in range(_ROUNDS):
        gap = f_high - f_low
        z = torch.where(gap > 0, (low * f_high - high * f_low) / gap.clamp(min=1e-300), (low + high) / 2)
        z = torch.minimum(torch.maximum(z, low), high)
        f = off(z)
        if float(f.abs().max()) < _CLOSE:
            break
        short, side = f < 0, f.sign()
        half = torch.where(side == before, 0.5, 1.0)  # of the end that stays for the second time (Illinois)
        f_high, f_low = torch.where(short, half * f_high, f), torch.where(short, f, half * f_low)
        low, high, before = torch.where(short, z, low), torch.where(short, high, z), side
    return unit * torch.sinh(z)


def _goals(v: Tensor, edges: Edges, stratum: int) -> Masses:
    """Masses below and above the steps with probabilities v (J,) of a stratum, (M, J)."""
    if stratum == 0:
        kept = 1 - edges.left - edges.right
        return Masses(edges.left + v * kept, edges.right + (1 - v) * kept)
    left, right = edges.left - edges.far_left, edges.right - edges.far_right
    mass = v * (left + right)
    below = mass < left
    lower, upper = edges.far_left + mass, edges.far_right + (1 - v) * (left + right)
    return Masses(torch.where(below, lower, 1 - upper), torch.where(below, 1 - lower, upper))


def _bracket(
    step: ExactStep, states: Tensor, unit: float, mirrored: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two rungs of a ladder of z around every goal, and how far log mass is off at them."""
    end = float(np.arcsinh(_FARTHEST * step.period / unit))
    side = torch.cat([torch.arange(0.0, 4.0, 0.125), torch.linspace(4.0, end, 32)]).double()
    ladder = torch.cat([-side.flip(0)[:-1], side])
    x, dx = (t.reshape(-1) for t in torch.broadcast_tensors(states[:, None], unit * torch.sinh(ladder)))
    masses = [mass(x, dx).reshape(len(states), -1).clamp(min=1e-300).log() for mass in (step.lower, step.upper)]
    growing = [masses[0], -masses[1]]
    found = []
    for rungs, wanted in zip(growing, (target, -target)):
        rungs = torch.cummax(rungs, dim=1).values.contiguous()
        above = torch.searchsorted(rungs, wanted.contiguous()).clamp(1, len(ladder) - 1)
        found.append([ladder[above - 1], ladder[above], *(rungs.gather(1, i) - wanted for i in (above - 1, above))])
    return tuple(torch.where(mirrored, b, a) for a, b in zip(*found))  # type: ignore[return-value]
