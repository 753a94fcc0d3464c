"""The law of one step of one system, as tables: log p and the masses beyond, core and tail.

Units: the period is 2 pi, x in [0, 2 pi). The core is, on the grid points x_i and at any y,

    p(x_i, y) = n/pi Re int_0^{1/2} e^{-iky} P_k(x_i, x_i + y) dk,

P_k a trigonometric polynomial of the landing point: refined along y mode by mode, along x at given y, both to rounding,
and read off its logarithm by local polynomials.

Its derivatives along many directions at once follow from Duhamel's formula,

    d exp(L) = int_0^1 exp((1 - s) L) dL exp(s L) ds,      dL = diag(delta) M for a change delta of one coefficient:

a change at one grid point is the product of a column of exp((1 - s) L) and a row of M exp(s L), so that the
exponentials of Simpson's rule in s hold the derivatives in all 3 n directions, whose combinations follow by one product
of matrices. Right to a few digits, as averages over a law want them; `propagator_tangents` is right to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.law.threads import spread
from levytorch.likelihood.exact_kernels import core_values
from levytorch.likelihood.exact_rule import Rule
from levytorch.likelihood.exact_tail import Tail
from levytorch.likelihood.propagator import Propagators, Work, exponential, generator, propagator_tangents, propagators

INTERVALS = 12  # of Simpson's rule in s
_GROUPS = 8  # of matrices, whose sums are added in this order whatever the number of threads
_ENTRIES = 300_000  # of the products that are held at once: they stay in the cache
Result = TypeVar("Result")
_MARGIN = 6  # further points beyond the seam
_INTERVALS = 16  # of Simpson's rule for scores under a rough rule
_BYTES = 200_000_000  # of derivatives to hold at once
_FLOOR = 1e-18  # below it a density on the grid is rounding: it is told as this


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


class ExactStep:
    """c: coefficients on the n grid points of the rule, times the step; differentiable in all of them."""

    def __init__(self, c: Coefficients, rule: Rule) -> None:
        self.rule, self.c, self.alpha, self.lam, self.n = rule, c, c.alpha, c.tempering, rule.n
        k, weights = (t.to(c.b.device) for t in rule.core_nodes())
        self.k, self.weights = k, weights
        self.tau = rule.tail_nodes(c.alpha)
        self.P = propagators(c.b, c.D_o, c.D_f, c.alpha, k, self.tau, self.lam)
        self.step_y = 2 * math.pi / (self.n * rule.refine_y)
        self.half = math.ceil(rule.seam / self.step_y) + _MARGIN  # columns of the table on either side of dx = 0

    def log_density(self, x: Tensor, y: Tensor) -> Tensor:
        """log p(x -> x + y); x (n,) in [0, 2 pi), y (n,) of any size."""
        return self._read(x, y, lambda: self._log_p, self._density_tail)

    @torch.no_grad()
    def scores(self, x: Tensor, y: Tensor, directions: Tensor) -> Tensor:
        """d log p / d direction, (n, A), for directions (A, 3, n_grid) in b, D_o, D_f.

        In forward mode, to the digits of log p; under a rough rule by Duhamel's formula, to three.
        """
        inside = y.abs() <= self.rule.seam
        p = self._refined(self._core(self.P.core, cumulative=False)).clamp(min=_FLOOR)
        unit = p.shape[0] / (2 * math.pi)
        at = x[inside] * unit, y[inside] / self.step_y + self.half
        sides = []
        for side, chosen in enumerate((y > self.rule.seam, y < -self.rule.seam)):
            if bool(chosen.any()):
                points = x[chosen], _landing(x[chosen], y[chosen]), y[chosen].abs()
                ladder = self._density_tail.ladder(side, points[2])
                value = self._density_tail.value(side, *points, ladder).clamp(min=1e-300)
                sides.append((side, chosen, points, ladder, value))
        out = torch.zeros((x.shape[0], directions.shape[0]), dtype=torch.float64, device=x.device)
        for column, P in zip(out.T, self._tangents(directions)):
            column[inside] = core_values(self._refined(self._core(P.core, cumulative=False)) / p, *at)
            tail = self._tail(P.tail, mass=False) if sides else None
            for side, chosen, points, ladder, value in sides:
                assert tail is not None
                column[chosen] = tail.value(side, *points, ladder) / value
        return out

    def _tangents(self, directions: Tensor) -> Iterator[Propagators]:
        if not self.rule.rough:
            yield from propagator_tangents(self.c[:3], self.alpha, self.k, self.tau, directions, self.lam)
            return
        some = max(1, _BYTES // (16 * self.n**2 * (len(self.k) + len(self.tau))))
        for part in directions.split(some):
            slopes = propagator_slopes(self.c, self.k, self.tau, part, _INTERVALS)
            yield from (Propagators(*one) for one in zip(*slopes))

    def upper(self, x: Tensor, a: Tensor) -> Tensor:
        """P(dx > a | x); far to the right with relative accuracy."""
        return self._mass(x, a, 0)

    def lower(self, x: Tensor, a: Tensor) -> Tensor:
        """P(dx < a | x); far to the left with relative accuracy."""
        return self._mass(x, a, 1)

    def _mass(self, x: Tensor, a: Tensor, side: int) -> Tensor:
        far = a < -self.rule.seam if side == 0 else a > self.rule.seam  # where nearly all mass lies beyond
        log = self._read(x, a, lambda: self._log_masses[side], self._mass_tail)
        return torch.where(far, -torch.expm1(log), log.exp())

    def _read(self, x: Tensor, y: Tensor, core: Callable[[], Tensor], tail: Tail) -> Tensor:
        out = torch.zeros_like(x)
        inside = y.abs() <= self.rule.seam
        if bool(inside.any()):  # thresholds may all lie beyond, and need no table
            table = core()
            unit = table.shape[0] / (2 * math.pi)
            values = core_values(table, x[inside] * unit, y[inside] / self.step_y + self.half)
            out = out.masked_scatter(inside, values)
        for side, chosen in enumerate((y > self.rule.seam, y < -self.rule.seam)):
            if bool(chosen.any()):
                here, jump = x[chosen], y[chosen]
                out = out.masked_scatter(chosen, tail.log_value(side, here, _landing(here, jump), jump.abs()))
        return out

    # -- tables -------------------------------------------------------------------------------------------------------
    @cached_property
    def _log_p(self) -> Tensor:
        """(M, 2 half + 1)"""
        return self._refined(self._core(self.P.core, cumulative=False)).clamp(min=_FLOOR).log()

    @cached_property
    def _density_tail(self) -> Tail:
        return self._tail(self.P.tail, mass=False)

    @cached_property
    def _mass_tail(self) -> Tail:
        return self._tail(self.P.tail, mass=True)

    def _tail(self, P: Tensor, mass: bool) -> Tail:
        return Tail(P, self.alpha, self.tau, self.rule, mass=mass, lam=self.lam)

    @cached_property
    def _log_masses(self) -> tuple[Tensor, Tensor]:
        """log P(dx > y) and log P(dx < y): what the tail holds beyond the ends of the table, and what lies between."""
        between = self._core(self.P.core, cumulative=True)
        x = 2 * math.pi / self.n * torch.arange(self.n, dtype=torch.float64, device=between.device)
        end = torch.full_like(x, self.half * self.step_y)
        beyond = [
            self._mass_tail.log_value(side, x, torch.remainder(x + sign * end, 2 * math.pi), end).exp()[:, None]
            for side, sign in enumerate((1.0, -1.0))
        ]
        upper = beyond[0] + (between[:, -1:] - between)
        lower = beyond[1] + (between - between[:, :1])
        return self._refined(upper).clamp(min=_FLOOR).log(), self._refined(lower).clamp(min=_FLOOR).log()

    def _core(self, P: Tensor, cumulative: bool) -> Tensor:
        """p at the grid points and 2 half + 1 values of y, or its integral over y up to a constant: (n, 2 half + 1)."""
        n, k = self.n, self.k
        top = (n - 1) // 2
        x = 2 * math.pi / n * torch.arange(n, dtype=torch.float64, device=k.device)
        m = torch.arange(-top, top + 1, dtype=torch.float64, device=k.device)
        length = n * self.rule.refine_y
        fine = self.step_y * torch.arange(length, dtype=torch.float64, device=k.device)
        modes = torch.fft.fft(P * _turn(top * x)) * (_turn(m * x[:, None]) / n)
        if cumulative:
            modes = modes / (1j * (m - k[:, None]))[:, None, :]
        # modes start at -top: the refined series is turned by e^{-i top y}, together with e^{-iky}
        scale = (self.weights * (n / math.pi) * length)[:, None]
        waves = torch.fft.ifft(modes, n=length) * (scale * _turn(-(k[:, None] + top) * fine))[:, None, :]
        periods = math.ceil((self.half + 1) / fine.shape[0])
        winding = torch.arange(-periods, periods, dtype=torch.float64, device=k.device)
        turns = _turn(-2 * math.pi * winding[:, None] * k)
        table = (turns @ waves.reshape(k.shape[0], -1)).real.reshape(2 * periods, n, -1).transpose(0, 1).reshape(n, -1)
        center = periods * fine.shape[0]
        return table[:, center - self.half : center + self.half + 1]

    def _refined(self, table: Tensor) -> Tensor:
        """A table over x on a finer grid of x."""
        R = self.rule.refine_x
        return table if R == 1 else R * torch.fft.irfft(torch.fft.rfft(table, dim=0), n=R * self.n, dim=0)


def _landing(x: Tensor, y: Tensor) -> Tensor:
    return torch.remainder(x + torch.remainder(y, 2 * math.pi), 2 * math.pi)


def _turn(angle: Tensor) -> Tensor:
    """e^{i angle}"""
    return torch.polar(torch.ones_like(angle), angle)
