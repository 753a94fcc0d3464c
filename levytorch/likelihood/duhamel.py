"""Derivatives of exp(L_k) along many directions at once, by Duhamel's formula.

    d exp(L) = int_0^1 exp((1 - s) L) dL exp(s L) ds,      dL = diag(delta) M for a change delta of one coefficient:

a change at one grid point is the product of a column of exp((1 - s) L) and a row of M exp(s L), so that the
exponentials of Simpson's rule in s hold the derivatives in all 3 n directions, whose combinations follow by one product
of matrices. Right to a few digits, as averages over a law want them; `propagator_tangents` is right to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.law.threads import spread
from levytorch.likelihood.propagator import Propagators, Work, exponential, generator

INTERVALS = 12  # of Simpson's rule in s
_GROUPS = 8  # of matrices, whose sums are added in this order whatever the number of threads
_ENTRIES = 300_000  # of the products that are held at once: they stay in the cache
Result = TypeVar("Result")


class Node(NamedTuple):
    """Which matrix: family 0 for the core, 1 and 2 for the tail at dx > 0 and dx < 0; node of k, or of tau."""

    family: int
    node: int


class Slopes:
    """d exp(L) along directions (A, 3 n) in (b, D_o, D_f) at the grid points; states: indices of the rows wanted."""

    def __init__(
        self,
        c: Coefficients,
        k: Tensor,
        tau: Tensor,
        directions: Tensor,
        states: Tensor | None = None,
        intervals: int = INTERVALS,
    ) -> None:
        self.c, self.G, self.directions = c[:3], intervals, directions.contiguous()
        self.work = Work(*c[:3], c.alpha, tau, c.tempering, k, False)
        self.states = torch.arange(self.work.n) if states is None else states
        self.halvings = max(2, self.work.squarings - math.floor(math.log2(intervals)))
        weights = torch.full((intervals + 1,), 2.0, dtype=torch.float64)
        weights[1::2], weights[0], weights[-1] = 4.0, 1.0, 1.0
        self.weights = (weights / (3 * intervals))[:, None, None]
        self.signs = torch.tensor([1.0, -1.0, -1.0], dtype=torch.float64)[:, None, None, None]

    def each(self, work: Callable[[list[Node]], Result]) -> list[Result]:
        """work(nodes) for groups of nodes, on all cores."""
        nodes = [Node(family, node) for family, size in enumerate(self.work.sizes) for node in range(size)]
        return spread(work, [nodes[i::_GROUPS] for i in range(min(_GROUPS, len(nodes)))])

    def at(self, node: Node) -> Tensor:
        """(A, S, n) over directions, states and landing points: complex in the core, imaginary parts in the tail."""
        S, B = self._path(node)
        n, A = self.work.n, len(self.directions)
        left = (S.flip(0)[:, self.states] * self.weights).permute(2, 1, 0)  # (n, S, G + 1)
        right = B.permute(0, 2, 1, 3)  # (3, n, G + 1, n)
        if node.family:
            left, right = torch.cat([left.real, left.imag], 2), torch.cat([right.imag, right.real], 2)
        out = torch.empty((A, len(self.states), n), dtype=left.dtype)
        some = max(1, _ENTRIES // (3 * n * n))
        for rows in torch.arange(len(self.states)).split(some):
            T = torch.matmul(left[:, rows], right)  # (3, n, some, n)
            T = torch.view_as_real(T) if node.family == 0 else T
            product = (self.directions @ T.reshape(3 * n, -1)).reshape(A, len(rows), *T.shape[3:])
            out[:, rows] = torch.view_as_complex(product) if node.family == 0 else product
        return out

    def _path(self, node: Node) -> tuple[Tensor, Tensor]:
        """exp(s L) at s = 0, 1/G, ..., 1, (G + 1, n, n); and M(.) exp(s L), signed as in L, (3, G + 1, n, n)."""
        circulants = self.work.circulants[node.family]
        part = slice(node.node, node.node + 1)
        L = generator(circulants, part, self.work.index, *self.c)
        step = exponential(L.mul_(0.5**self.halvings / self.G), self.halvings).squares[-1]
        S = torch.empty((self.G + 1, *L.shape[1:]), dtype=L.dtype)
        S[0] = torch.eye(L.shape[1], dtype=L.dtype)
        for g in range(self.G):
            torch.matmul(S[g], step[0], out=S[g + 1])
        symbols = torch.fft.fft(torch.stack([column[node.node] for column in circulants]))
        return S, torch.fft.ifft(symbols[:, None, :, None] * torch.fft.fft(S, dim=1), dim=2) * self.signs


@torch.no_grad()
def propagator_slopes(c: Coefficients, k: Tensor, tau: Tensor, directions: Tensor, intervals: int) -> Propagators:
    """As `propagator_tangents`, all directions (A, 3, n) at once: core (A, Q, n, n), tail (A, 2, N, n, n)."""
    A, n = len(directions), directions.shape[2]
    slopes = Slopes(c, k, tau, directions.reshape(A, -1), intervals=intervals)
    core = torch.empty((A, len(k), n, n), dtype=torch.complex128)
    tail = torch.empty((A, 2, len(tau), n, n), dtype=torch.float64)

    def some(nodes: list[Node]) -> None:
        for node in nodes:
            room = core[:, node.node] if node.family == 0 else tail[:, node.family - 1, node.node]
            room.copy_(slopes.at(node))

    slopes.each(some)
    return Propagators(core, tail)
