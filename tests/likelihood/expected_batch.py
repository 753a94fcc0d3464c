"""What the exact law expects: all transitions from given states as one weighted batch, and their Fisher information.

The weights are probabilities, so that sums over the batch are expectations under the law. Within the seam dx runs over
the grid of the propagator, on which sums of smooth functions are integrals to rounding; beyond it over cells that grow
with |dx|, each with its exact mass, spread over a few landing points.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_step import ExactStep

STATES = 128  # of the cell, or as many as the grid has points
CELLS = 20  # of the tail on either side; the last one is infinite
FEW_CELLS = 8  # enough where alpha is known: the scores of the others hardly change with |dx| in the far tail
REST = 1e-3  # of the mass of the tail, in the last cell
FARTHEST = 1e12  # where the last of them begins at the latest
LANDINGS = 16  # points per cell of the tail, spread over one period


class ExpectedBatch(NamedTuple):
    """Transitions (N,) and their probabilities, which sum to one."""

    x: Tensor
    dx: Tensor
    weight: Tensor


@torch.no_grad()
def expected_batch(law: ExactLaw, head: Any, x: Tensor, share: Tensor, dt: float, cells: int = CELLS) -> ExpectedBatch:
    """The transitions of dt from states x (m,) that occur with these shares (m,), with their probabilities."""
    step = law.step(head, dt)
    states, weight = _spread(step, x, share)
    parts = [_core(step, states)] + [_tail(step, states, sign, cells) for sign in (1.0, -1.0)]
    dx = torch.cat([p[0] for p in parts], dim=1)
    p = torch.cat([p[1] for p in parts], dim=1) * weight[:, None]
    return ExpectedBatch(states[:, None].expand_as(dx).reshape(-1), dx.reshape(-1), p.reshape(-1))


@torch.no_grad()
def information(law: ExactLaw, head: Head, x: Tensor, share: Tensor, dt: float) -> Tensor:
    """Expected Fisher information of one transition of dt, (P, P), from states x that occur with these shares."""
    batch = expected_batch(law, head, x, share, dt, CELLS if head.learns_alpha else FEW_CELLS)
    rows = scores(law, head, batch.x, batch.dx, dt)
    return rows.T @ (batch.weight[:, None] * rows)


@torch.no_grad()
def scores(law: ExactLaw, head: Head, x: Tensor, dx: Tensor, dt: float, change: float = 1e-4) -> Tensor:
    """d log p / d theta, (n, P), by central differences under the same rule."""
    time = torch.tensor(dt, dtype=torch.float64)
    kept, theta = law.fixed(head, time), head.flat()
    columns = []
    for move in change * torch.eye(len(theta), dtype=torch.float64):
        values = []
        for sign in (1, -1):
            head.set_flat(theta + sign * move)
            values.append(kept.log_prob(head, x, dx, time))
        columns.append((values[0] - values[1]) / (2 * change))
    head.set_flat(theta)
    return torch.stack(columns, dim=1)


def _spread(step: ExactStep, x: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of arbitrary states on an even grid of the cell, where the information is smooth."""
    M = max(STATES, step.n)
    position = torch.remainder(x - step.origin, step.period) * (M / step.period)
    left = position.floor()
    weight = torch.zeros(M, dtype=torch.float64, device=x.device)
    for node, part in ((left, 1 - (position - left)), (left + 1, position - left)):
        weight.index_add_(0, node.to(torch.int64) % M, part * share)
    states = step.origin + step.period / M * torch.arange(M, dtype=torch.float64, device=x.device)
    used = weight > 0
    return states[used], weight[used] / weight.sum()


def _core(step: ExactStep, states: Tensor) -> tuple[Tensor, Tensor]:
    count = math.ceil(2 * step.seam * step.n / step.period)
    dx = torch.linspace(-step.seam, step.seam, count + 1, dtype=torch.float64, device=states.device)
    dx = dx.expand(states.shape[0], -1)
    p = step.log_density(states[:, None].expand_as(dx).reshape(-1), dx.reshape(-1)).exp().reshape(dx.shape)
    p = p * (2 * step.seam / count)
    p[:, [0, -1]] *= 0.5
    return dx, p


def _tail(step: ExactStep, states: Tensor, sign: float, cells: int) -> tuple[Tensor, Tensor]:
    """(M, cells * LANDINGS): one period within each cell, with the mass of the cell."""
    M, two_alpha = states.shape[0], 2 * float(step.c.alpha)
    edges = [step.seam * (1 + 1e-12)]
    lam = float(step.c.tempering) * step.unit
    for _ in range(cells):
        farther = min(
            edges[-1] * REST ** (-1 / (cells * two_alpha)), FARTHEST, edges[-1] + (2 / lam if lam else FARTHEST)
        )
        edges.append(max(edges[-1] + step.period, farther))
    starts = [max(low, math.sqrt(low * high) - step.period / 2) for low, high in pairwise(edges)]
    starts[-1] = min(edges[-2] * math.exp(1 / two_alpha), FARTHEST)  # the mean of log |dx| beyond
    if lam:
        starts[-1] = min(starts[-1], edges[-2] + 1 / lam)
    ends = torch.tensor(edges[:-1], dtype=torch.float64, device=states.device)
    mass = step.upper if sign > 0 else step.lower
    beyond = mass(states.repeat_interleave(cells), sign * ends.repeat(M)).reshape(M, cells)
    inside = beyond - torch.cat([beyond[:, 1:], torch.zeros_like(beyond[:, :1])], dim=1)
    # landing points move from cell to cell, so that together they fill the period
    place = torch.arange(LANDINGS, dtype=torch.float64) + torch.remainder(0.618034 * torch.arange(cells), 1.0)[:, None]
    size = torch.tensor(starts, dtype=torch.float64)[:, None] + step.period / LANDINGS * place
    dx = (sign * size.reshape(-1).to(states.device)).expand(M, -1)
    p = step.log_density(states[:, None].expand_as(dx).reshape(-1), dx.reshape(-1)).exp().reshape(M, cells, LANDINGS)
    return dx, (p / p.sum(2, keepdim=True) * inside[:, :, None]).reshape(M, -1)
