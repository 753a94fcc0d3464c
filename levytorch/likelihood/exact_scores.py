"""All scores of the exact law at once: d log p along the parameters of a head.

Wanted are averages over the law (information, covariances of scores): `expected_scores` lists transitions that stand
for the law, with their probabilities, and their scores, by Duhamel's formula (`propagator`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.coefficients.padded import on_a_cell
from levytorch.likelihood.exact import ExactLaw, directions, on_grid
from levytorch.likelihood.exact_rule import SIZES, Rule
from levytorch.likelihood.exact_step import ladder_weights, node_scales
from levytorch.likelihood.propagator import Node, Slopes, propagators

COARSER = 0.7  # of the grid of a fit: scores are averaged over the law, of which log p is wanted to many digits
STATES = 45  # at least so many states of the cell
LANDINGS = 20  # and so many landing points of a far jump
TAIL_NODES = 12  # of the quadrature of the tail: three digits, where a fit has six
NEAR = 4  # periods within which dx runs over the grid when the law is cut there
FAR_CELLS = {False: 6, True: 24}  # of |dx| beyond, where alpha is known, and where it is learned or jumps are tempered
_REST = 1e-3  # of the mass of the tail, in the last cell
_FARTHEST = 1e12
_SMALLEST = 1e-14  # p below is rounding
_CHANGE = 1e-4  # of alpha, and relative of the tempering, for differences
_UNLIKELY, _NARROW = 40.0, 0.7  # in 1 / lam: where nothing is left of the law, and the width of its cells


class ExpectedScores(NamedTuple):
    """Transitions from S states, N in all: from states[which[r]] by dx[r], with probability p[r] (one from each state).

    low, high: the cell of dx that stands behind a row; scores: (N, P) in the parameters, where they were asked for,
    and zero in the far tail where they were not.
    """

    states: Tensor
    which: Tensor
    dx: Tensor
    low: Tensor
    high: Tensor
    p: Tensor
    scores: Tensor | None

    def within(self, low: float, high: float) -> Tensor:
        """The probability of each row's cell that lies between low and high; p is linear within a cell of the core."""
        width = self.high - self.low
        slope = torch.zeros_like(self.p)
        slope[1:-1] = (self.p[2:] - self.p[:-2]) / 2
        steady = (width[2:] / width[:-2] - 1).abs() + (width[1:-1] / width[:-2] - 1).abs() < 1e-6
        slope[1:-1] *= steady & (self.dx[2:] > self.dx[:-2])  # further out cells widen, and end at thresholds

        def below(edge: float) -> Tensor:
            a = ((edge - self.low) / width - 0.5).clamp(-0.5, 0.5)
            ends = slope / 24 * (a.abs() < 0.5)  # of Euler and Maclaurin, for the cells before
            return self.p * (a + 0.5) + slope * (a * a - 0.25) / 2 + ends

        finite = torch.isfinite(width)
        inside = torch.where(self.dx.abs() < max(-low, high), self.p, 0.0)
        return torch.where(finite, below(high) - below(low), inside)


@torch.no_grad()
def expected_scores(
    law: ExactLaw,
    head: Any,
    dt: float,
    *,
    cuts: Sequence[float] = (),
    scores: bool = True,
    reach: float = math.inf,
) -> ExpectedScores:
    """The law of a head after dt, in rows; cuts: values of dx at which cells are to end (thresholds).

    reach: |dx| beyond which no scores are wanted.
    """
    head = on_a_cell(head)
    rule = replace(law.rule(head, dt), tail=TAIL_NODES)
    if scores:
        rule = replace(rule, n=next(size for size in SIZES if size >= COARSER * rule.n))
    c = on_grid(head, dt, rule.n)
    learned = scores and bool(getattr(head, "learns_alpha", False))
    unit = 2 * math.pi / float(head.period)
    lam, places = float(c.tempering), [cut * unit for cut in cuts]
    far = learned or (scores and lam > 0)  # scores that change all the way out
    rows = _Rows.of(rule, float(c.alpha), lam, places, far, STATES if scores else rule.n)
    found = None
    if scores:
        along = directions(head, c, dt)
        p, found = rows.derivatives(c, along.coefficients.reshape(len(along.alpha), -1), reach * unit)
        for name, rate, change in (("alpha", along.alpha, _CHANGE), ("tempering", along.tempering, _CHANGE * lam)):
            if bool(rate.any()):
                value = getattr(c, name)
                up, down = (rows.densities(c._replace(**{name: value + move})) for move in (change, -change))
                slope = (up - down) / (2 * change)
                found += torch.where(p > _SMALLEST, slope / p.clamp(min=_SMALLEST), 0.0)[:, None] * rate
    else:
        p = rows.densities(c)
    probability = (p * rows.measure).clamp(min=0.0)
    total = torch.zeros(len(rows.states), dtype=torch.float64).index_add_(0, rows.which, probability)
    states = float(head.origin) + float(head.period) * rows.states.to(torch.float64) / rule.n
    y, low, high = (v / unit for v in (rows.y, rows.low, rows.high))
    return ExpectedScores(states, rows.which, y, low, high, probability / total[rows.which], found)


@dataclass
class _Rows:
    """Where a law is looked at, in units where the period is 2 pi.

    From every state (an index of the grid) dx runs over 2 W periods of the grid, and beyond over cells of |y|, in each
    of which all landing points occur. edges: of the cells on either side; stride: between landing points.
    """

    rule: Rule
    alpha: float
    lam: float
    states: Tensor
    periods: int
    edges: list[list[float]]
    stride: int

    @classmethod
    def of(cls, rule: Rule, alpha: float, lam: float, cuts: Sequence[float], learned: bool, states: int) -> _Rows:
        n, h = rule.n, 2 * math.pi / rule.n
        stride = max(d for d in range(1, n + 1) if n % d == 0 and n // d >= min(states, n))
        landings = max(d for d in range(1, n + 1) if n % d == 0 and n // d >= LANDINGS)
        near = [abs(cut) for cut in cuts if abs(cut) < 2 * math.pi * NEAR]
        periods = math.ceil(max([rule.seam, *near]) / (2 * math.pi) - 1e-9)
        edges = []
        for side in (1, -1):
            first = 2 * math.pi * periods - side * h / 2
            ladder, cells = [first], FAR_CELLS[learned]
            for _ in range(cells - 1):
                farther = min(ladder[-1] * _REST ** (-1 / (2 * alpha * cells)), _FARTHEST)
                if lam > 0:
                    farther = min(farther, ladder[-1] + _NARROW / lam)
                ladder.append(max(ladder[-1] + 2 * math.pi, farther))
            ladder = sorted({*ladder, *(side * cut for cut in cuts if side * cut > first)})
            edges.append([*ladder, math.inf])
        return cls(rule, alpha, lam, torch.arange(0, n, stride), periods, edges, landings)

    # -- the list of rows -----------------------------------------------------------------------------------------
    @property
    def displacements(self) -> Tensor:
        """(2 W n,)"""
        n = self.rule.n
        return 2 * math.pi / n * torch.arange(-self.periods * n, self.periods * n, dtype=torch.float64)

    @property
    def far(self) -> list[Tensor]:
        """|y| that stands for each cell, on either side."""
        grown = math.exp(1 / (2 * self.alpha))  # the mean of log |y| beyond

        def middle(low: float, high: float) -> float:
            if self.lam > 0:  # of what is left of the law there
                return min(low * grown, low + 1 / self.lam, math.sqrt(low * min(high, _FARTHEST)))
            return min(low * grown, _FARTHEST) if math.isinf(high) else math.sqrt(low * high)

        return [torch.tensor([middle(*cell) for cell in pairwise(e)], dtype=torch.float64) for e in self.edges]

    def _table(self, near: Tensor, far: Sequence[Tensor]) -> Tensor:
        """Per displacement, and per cell of either side and landing point: one list, the same for every state."""
        landings = self.rule.n // self.stride
        return torch.cat([near, *(v.repeat_interleave(landings) for v in far)])

    def _all(self, row: Tensor) -> Tensor:
        return row.repeat(len(self.states))

    @property
    def y(self) -> Tensor:
        right, left = self.far
        return self._all(self._table(self.displacements, [right, -left]))

    @property
    def low(self) -> Tensor:
        h = 2 * math.pi / self.rule.n
        right, left = (torch.tensor(e, dtype=torch.float64) for e in self.edges)
        return self._all(self._table(self.displacements - h / 2, [right[:-1], -left[1:]]))

    @property
    def high(self) -> Tensor:
        h = 2 * math.pi / self.rule.n
        right, left = (torch.tensor(e, dtype=torch.float64) for e in self.edges)
        return self._all(self._table(self.displacements + h / 2, [right[1:], -left[:-1]]))

    @property
    def which(self) -> Tensor:
        length = 2 * self.periods * self.rule.n + sum(len(e) - 1 for e in self.edges) * (self.rule.n // self.stride)
        return torch.arange(len(self.states)).repeat_interleave(length)

    @property
    def measure(self) -> Tensor:
        """What p is multiplied by: the width of a cell; beyond, p falls as |y|^-(1 + 2 alpha) e^{-lam |y|} in it."""
        a2 = 2 * self.alpha
        near = torch.full_like(self.displacements, 2 * math.pi / self.rule.n)
        cells = []
        for e, y in zip(self.edges, self.far):
            if self.lam > 0:
                cells.append(self._tempered_widths(e, y) / (self.rule.n // self.stride))
                continue
            edges = torch.tensor(e, dtype=torch.float64) ** -a2
            cells.append((edges[:-1] - edges[1:]) / a2 * y ** (1 + a2) / (self.rule.n // self.stride))
        return self._all(self._table(near, cells))

    def _tempered_widths(self, edges: Sequence[float], y: Tensor) -> Tensor:
        low = torch.tensor(edges[:-1], dtype=torch.float64)
        high = torch.minimum(torch.tensor(edges[1:], dtype=torch.float64), low + _UNLIKELY / self.lam)
        s, w = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(48))
        u = (s + 1) / 2
        at = low[:, None] + (high - low)[:, None] * u * u  # crowded where the law is largest
        fall = (at / y[:, None]) ** -(1 + 2 * self.alpha) * torch.exp(-self.lam * (at - y[:, None]))
        return (fall * (w * u)).sum(1) * (high - low)

    # -- the law on them ------------------------------------------------------------------------------------------
    def _weights(self, alpha: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
        """k, tau, and what the matrices of each family weigh: (nodes, 2 W n) at the displacements, (nodes, cells)."""
        rule, y = self.rule, self.displacements
        k, w = rule.core_nodes()
        tau = rule.tail_nodes(alpha)
        scales = node_scales(rule, alpha, tau, rule.n, lam)
        inside = (y.abs() <= rule.seam).to(torch.float64)
        core = torch.polar((w * rule.n / math.pi)[:, None] * inside, -k[:, None] * y)

        def beyond(side: int, size: Tensor) -> Tensor:
            if not len(size):
                return size.new_zeros((len(tau), 0))
            V = ladder_weights(rule, alpha, side, size.log(), False, lam)
            return (V * scales[side] * (size ** -(1 + 2 * alpha) * torch.exp(-lam * size))[:, None]).T

        near, far = [core], [core[:, :0]]
        for side, outside in enumerate((y > rule.seam, y < -rule.seam)):
            weights = torch.zeros((len(tau), len(y)), dtype=torch.float64)
            weights[:, outside] = beyond(side, y[outside].abs())
            near.append(weights)
            far.append(beyond(side, self.far[side]))
        return k, tau, near, far

    def densities(self, c: Coefficients) -> Tensor:
        """p at every row, (N,)."""
        k, tau, near, far = self._weights(c.alpha, c.tempering)
        P = propagators(c, k, tau)
        parts = [self._shifted(P.core[:, self.states]), *(self._shifted(P.tail[s][:, self.states]) for s in (0, 1))]
        n = self.rule.n
        rows = torch.zeros((len(self.states), 2 * self.periods * n), dtype=torch.float64)
        for part, weight in zip(parts, near):
            product = torch.einsum("qij,qwj->iwj", part, weight.reshape(len(weight), -1, n).to(part.dtype))
            rows += (product.real if product.is_complex() else product).reshape(rows.shape)
        beyond = [
            torch.einsum("qij,qw->iwj", part[:, :, :: self.stride], weight).reshape(len(self.states), -1)
            for part, weight in zip(parts[1:], far[1:])
        ]
        return torch.cat([rows, *beyond], dim=1).reshape(-1)

    def _shifted(self, P: Tensor) -> Tensor:
        """(..., S, n) over landing points -> over displacements 0 ... n - 1 from each state."""
        n = self.rule.n
        index = (self.states[:, None] + torch.arange(n)) % n
        return torch.gather(P, -1, index.expand(P.shape))

    def derivatives(self, c: Coefficients, directions: Tensor, reach: float) -> tuple[Tensor, Tensor]:
        """p (N,) and d log p along the directions (P, 3 n): (N, P), zero in cells that begin beyond `reach`."""
        n, W, S, P = self.rule.n, 2 * self.periods, len(self.states), len(directions)
        k, tau, near, far = self._weights(c.alpha, c.tempering)
        wanted = [sum(edge < reach for edge in e[:-1]) for e in self.edges]
        slopes = Slopes(c, k, tau, directions, self.states)
        index = ((self.states[:, None] + torch.arange(n)) % n).expand(P, -1, -1)

        def some(nodes: list[Node]) -> tuple[Tensor, list[Tensor]]:
            rows = torch.zeros((W, P, S, n), dtype=torch.float64)
            beyond = [torch.zeros((m, P, S, n // self.stride), dtype=torch.float64) for m in wanted]
            for node in nodes:
                T = torch.gather(slopes.at(node), 2, index)
                for out, weight in zip(rows, near[node.family][node.node].reshape(W, n)):
                    if bool((weight != 0).any()):
                        out += (T * weight).real if node.family == 0 else T * weight
                if node.family:
                    few = T[..., :: self.stride]
                    for out, w in zip(beyond[node.family - 1], far[node.family][node.node]):
                        out += few * w
            return rows, beyond

        near_parts, far_parts = zip(*slopes.each(some))
        totals = [sum(near_parts[1:], near_parts[0])]
        totals += [sum(side[1:], side[0]) for side in zip(*far_parts)]
        sizes = [W * n, *((len(e) - 1) * (n // self.stride) for e in self.edges)]
        out = torch.zeros((S, sum(sizes), P), dtype=torch.float64)
        for room, total in zip(out.split(sizes, dim=1), totals):
            room[:, : total.shape[0] * total.shape[3]] = total.permute(2, 0, 3, 1).reshape(S, -1, P)
        p = self.densities(c)
        inverse = torch.where(p > _SMALLEST, 1 / p.clamp(min=_SMALLEST), 0.0)
        return p, out.reshape(-1, P).mul_(inverse[:, None])
