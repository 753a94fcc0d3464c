"""Statistics of a step beside the frozen law's score s, for estimating equations that use more of what a pair tells.

Along a step the score of the law that follows the coefficients depends on where the path was, which s(x, dx) alone does
not hold. Products of s with functions of dx do. They are windows around the center of the step,

    g_0 = 1,    g_1 = z exp(-z^2 / 2),    g_2 = exp(-z^2 / 2),    z = (dx - b dt) / w,

of the width w of the step's core. For any function g(dx) with w and the center held, E[s g] is the derivative of E[g]
in the coefficients; and a Gaussian window turns E[g] into the frozen law's own density with a larger D_o at the center
of the step. The expectations of s g_1 and s g_2 under the frozen law are therefore known without an integral. Windows
vanish in the tails, so that nothing changes where tails are lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head, LinearHead
from levytorch.data.batches import Batch
from levytorch.likelihood.frozen import CellTable, FrozenLaw, StepScore, predictor_jacobian, to_predictors
from levytorch.likelihood.sums import StateBins, slices

COUNT = 3  # of g_0, g_1, g_2
NEGLIGIBLE = 6.0  # widths beyond which a window is nothing


class StatisticSums(NamedTuple):
    """Sums over pairs of the statistics in the predictors: gradient (3 P,), per bin first (3 C, M) and, where asked
    for, their products (3 C, 3 C, M)."""

    gradient: Tensor
    first: Tensor
    second: Tensor | None


@dataclass(frozen=True)
class Windows:
    """The statistics s g_0, s g_1, s g_2 of a frozen law. widest: the largest width w."""

    law: FrozenLaw
    widest: float = math.inf

    def width(self, c: Coefficients, dt: Tensor) -> Tensor:
        """w (n,): of the Gaussian part, and of the core of the jumps."""
        core = c.D_o * dt + (c.D_f * dt) ** (1.0 / c.alpha)
        return (2.0 * core).sqrt().clamp(max=self.widest)

    def factors(self, c: Coefficients, dx: Tensor, dt: Tensor) -> Tensor:
        """(3, n)."""
        z = (dx - c.b * dt) / self.width(c, dt)
        window = torch.exp(-0.5 * z * z)
        return torch.stack([torch.ones_like(z), z * window, window])

    def statistics(self, head: Head, c: Coefficients, dx: Tensor, dt: Tensor) -> Tensor:
        """(3, C, n) in the coefficients."""
        scores = head.layout.scores(self.law.score(c, dx, dt, wrt_alpha=head.learns_alpha), c)
        return scores * self.factors(c, dx, dt).unsqueeze(1)

    def expected(self, head: Head, c: Coefficients, dt: Tensor) -> Tensor:
        """Their expectations under the frozen law, (3, C, n)."""
        odd, even = (head.layout.scores(one, c) for one in self.expected_steps(c, dt, head.learns_alpha))
        return torch.stack([torch.zeros_like(even), odd, even])

    def expected_steps(self, c: Coefficients, dt: Tensor, wrt_alpha: bool) -> tuple[StepScore, StepScore]:
        """Expectations of s g_1 and s g_2 in the form of scores."""
        w = self.width(c, dt)
        smooth = c._replace(D_o=c.D_o + 0.5 * w * w / dt)
        center = self.law.score(smooth, c.b * dt, dt, wrt_alpha=wrt_alpha)
        mass = math.sqrt(2.0 * math.pi) * w * center.log_p.exp()
        even = _times(center._replace(b=torch.zeros_like(center.b)), mass)
        odd = _times(center, torch.zeros_like(mass))
        # of b: the second derivative of the density in dx is that in D_o over dt
        return odd._replace(b=-w * mass * center.D_o), even

    def law_of(self, k: int) -> FrozenLaw:
        """The frozen law with s g_k, less its expectation, in the place of the score."""
        return self.law if k == 0 else _Statistic(self, k)

    def sums(
        self, head: LinearHead, batch: Batch, bins: StateBins, *, centered: bool, products: bool = False
    ) -> StatisticSums:
        """Weighted sums over pairs; centered: of the statistics less their expectations under the frozen law."""
        total = _Sums(head, bins, batch.x, products)
        for x, dx, dt, weight in slices(batch):
            at, c = total.cell.at(x)
            rows = self.statistics(head, c, dx, dt)
            if centered:
                rows -= self.expected(head, c, dt)
            total.add(x, at, rows, dt, weight)
        return total.result()

    def differences(
        self, head: LinearHead, bins: StateBins, x: Tensor, dt: Tensor, fine: Tensor, frozen: Tensor
    ) -> Tensor:
        """Sums (3 P,) over coupled steps of the statistics at one displacement less those at the other."""
        total = _Sums(head, bins, x, products=False)
        weight = torch.ones((), dtype=torch.float64)
        both = Batch(x, torch.stack([fine, frozen], dim=1), dt, weight.expand(len(x)))
        for x, dx, dt, _ in slices(both):
            at, c = total.cell.at(x)
            one, two = (self.statistics(head, c, dx[:, k].contiguous(), dt) for k in (0, 1))
            total.add(x, at, one - two, dt, weight)
        return total.result().gradient


class _Statistic(FrozenLaw):
    def __init__(self, windows: Windows, k: int) -> None:
        super().__init__(windows.law.method, windows.law.dim)
        self._windows, self._k = windows, k

    def score(self, c: Coefficients, dx: Tensor, dt: Tensor, wrt_alpha: bool = False) -> StepScore:
        step = super().score(c, dx, dt, wrt_alpha)
        found = _times(step, self._windows.factors(c, dx, dt)[self._k])
        expected = self._windows.expected_steps(c, dt, wrt_alpha)[self._k - 1]
        parts: list[Any] = [None if a is None or e is None else a - e for a, e in zip(found, expected)]
        return StepScore(step.log_p, *parts[1:])


def _times(step: StepScore, factor: Tensor) -> StepScore:
    parts: list[Any] = [None if part is None else part * factor for part in step]
    return StepScore(*parts)


class _Sums:
    """Sums of statistics over pairs, some pairs at a time."""

    def __init__(self, head: LinearHead, bins: StateBins, x: Tensor, products: bool) -> None:
        self.head, self.bins, self.cell = head, bins, CellTable(head, bins, x)
        C, M = head.n_predictors, len(bins)
        self.nodes = torch.zeros((COUNT, C, self.cell.size), dtype=torch.float64)
        self.first = torch.zeros((COUNT, C, M), dtype=torch.float64)
        self.upper = torch.triu_indices(COUNT * C, COUNT * C)
        self.packed = torch.zeros((self.upper.shape[1] if products else 0, M), dtype=torch.float64)

    def add(self, x: Tensor, at: Tensor, rows: Tensor, dt: Tensor, weight: Tensor) -> None:
        for k in range(COUNT):
            nodes, first, _ = self.cell.scatter(at, list(rows[k]), self.bins, dt, weight)
            self.nodes[k] += nodes
            self.first[k] += first
        if len(self.packed):
            flat = rows.flatten(0, 1)
            products = flat[self.upper[0]] * flat[self.upper[1]] * weight
            self.packed.index_add_(1, self.bins.index(x, dt), products)

    def result(self) -> StatisticSums:
        head, chain, bins = self.head, self.cell.chain, self.bins
        by_predictors = to_predictors(self.nodes, chain)
        gradient = torch.cat([head.gathered(part, self.cell.design) for part in by_predictors])
        at_bins = head.chain(head.theta.detach(), head.design(bins.x))
        first = to_predictors(self.first, at_bins).flatten(0, 1)
        if not len(self.packed):
            return StatisticSums(gradient, first, None)
        second = torch.empty((len(first), len(first), len(bins)), dtype=torch.float64)
        second[self.upper[0], self.upper[1]] = self.packed
        second[self.upper[1], self.upper[0]] = self.packed
        return StatisticSums(
            gradient, first, products_in_predictors(second, predictor_jacobian(at_bins, head.n_predictors, len(bins)))
        )


def products_in_predictors(second: Tensor, jacobian: Tensor) -> Tensor:
    """(K C, K C, M) products of statistics in the coefficients, as those in the predictors."""
    C, M = jacobian.shape[1:]
    K = len(second) // C
    blocks = second.reshape(K, C, K, C, M)
    return torch.einsum("ian,kiljn,jbn->kalbn", jacobian, blocks, jacobian).reshape(K * C, K * C, M)


class Repeated:
    """A head whose rows are repeated `count` times, for `assemble` and `project`: P parameters become count P."""

    def __init__(self, head: LinearHead, count: int) -> None:
        self._head, self._count = head, count
        self.sizes = list(head.sizes) * count
        self.theta = head.theta.detach().repeat(count)

    def part(self, row: int) -> slice:
        k, row = divmod(row, len(self._head.sizes))
        one, P = self._head.part(row), self._head.theta.numel()
        return slice(one.start + k * P, one.stop + k * P)
