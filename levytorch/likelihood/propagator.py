"""exp(L_k): one step of a periodic system, acting on functions e^{ikx} w(x) with w periodic.

On n (odd) points of a cell of length 2 pi, h apart, with modes |m| <= (n - 1) / 2 and xi = k + m, the generator times
the step is

    L_k[i, l] = b_i M(i xi)[i - l] - D_o,i M(xi^2)[i - l] - D_f,i M(|xi|^(2 alpha))[i - l]

with M(e)[d] = 1/n sum_m e_m e^{imhd} (collocation: coefficients multiply values, the operators are circulant). The
density of a step of any length follows from k in (0, 1/2] (the core) and from k = -+ i tau (the far tail). At
k = -+ i tau all modes but m = 0 come in conjugate pairs, so that the imaginary part of L is
D_f tau^(2 alpha) sin(pi alpha) / n in every entry: it is set exactly, because the tail is the imaginary part of exp(L)
relative to tau^(2 alpha), however small that is.

Tempered jumps have (xi^2 + lam^2)^alpha - lam^(2 alpha) in the place of |xi|^(2 alpha). The cut then begins at
k = -+ i lam, and tau counts from there: k = -+ i (lam + tau), with (tau (tau + 2 lam))^alpha in the place of
tau^(2 alpha).

The exponential is a Taylor polynomial of degree 9 and s squarings. Modes that decay by e^{-w} within the step carry the
absolute error e^{-w} w^10 / (10! 2^(9 s)): what limits s is only that the polynomial must not exceed one where |L| is
largest. Its reverse mode is written out, two products for each of the forward pass.

Derivatives along many directions at once follow from Duhamel's formula,

    d exp(L) = int_0^1 exp((1 - s) L) dL exp(s L) ds,      dL = diag(delta) M for a change delta of one coefficient:

a change at one grid point is the product of a column of exp((1 - s) L) and a row of M exp(s L), so that the
exponentials of Simpson's rule in s hold the derivatives in all 3 n directions, whose combinations follow by one product
of matrices. Right to a few digits, as averages over a law want them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.law.jumps import jumps_of
from levytorch.law.threads import spread

Result = TypeVar("Result")

STABLE = 3.0  # the Taylor polynomial of degree 9 stays below one on [-4.6, 0]; the rest is for what is not normal
_CHUNK = 36_000  # entries of the matrices that are worked on together: they stay in the cache
_KEPT = 600_000_000  # bytes of intermediate products to keep for the reverse mode; beyond, they are computed again
INTERVALS = 12  # of Simpson's rule in s
_GROUPS = 8  # of matrices, whose sums are added in this order whatever the number of threads
_ENTRIES = 300_000  # of the products that are held at once: they stay in the cache


class Propagators(NamedTuple):
    """core: (Q, n, n) complex exp(L_k) at k; tail: (2, N, n, n) imaginary parts at k = -i tau (dx > 0), +i tau, beyond
    the branch point."""

    core: Tensor
    tail: Tensor


def propagators(c: Coefficients, k: Tensor, tau: Tensor) -> Propagators:
    """c: on n points, times the step, in units where the period is 2 pi, alpha 0-d; k: (Q,); tau: (N,).

    Differentiable in c and tau.
    """
    core, tail = _Propagate.apply(*c, tau, c.tempering, k)
    return Propagators(core, tail)


class _Circulants(NamedTuple):
    """First columns of M(i xi), M(xi^2) and M(|xi|^(2 alpha)), (Q, n) each."""

    first: Tensor
    second: Tensor
    power: Tensor


def _modes(n: int, like: Tensor) -> Tensor:
    m = torch.arange(n, dtype=torch.float64, device=like.device)
    return torch.where(m > n // 2, m - n, m)


def _columns(symbol: Tensor) -> Tensor:
    columns: Tensor = torch.fft.ifft(symbol, dim=-1)
    return columns


class _Symbols(NamedTuple):
    """Circulants at some nodes, and their derivatives in alpha (of the power alone), lam and tau where wanted."""

    value: _Circulants
    in_alpha: Tensor | None = None
    in_lam: _Circulants | None = None
    in_tau: _Circulants | None = None


def _core_circulants(k: Tensor, n: int, alpha: Tensor, lam: Tensor, derivative: bool) -> _Symbols:
    """At real k."""
    xi = k[:, None] + _modes(n, k)
    first, second = _columns(1j * xi), _columns(xi * xi)
    jumps, square = jumps_of(lam), xi * xi
    value = _Circulants(first, second, _columns(jumps.symbol(square, alpha)))
    if not derivative:
        return _Symbols(value)
    in_alpha, *in_lam = (_columns(symbol) for symbol in jumps.symbol_derivatives(square, alpha))
    nothing = torch.zeros_like(in_alpha)
    return _Symbols(value, in_alpha, _Circulants(nothing, nothing, *in_lam) if in_lam else None)


def _tail_circulants(tau: Tensor, sign: float, n: int, alpha: Tensor, lam: Tensor, derivative: bool) -> _Symbols:
    """At k = sign i (lam + tau), on one side of the cut."""
    m, height = _modes(n, tau), lam + tau
    xi = torch.complex(m.expand(tau.shape[0], n), (sign * height)[:, None].expand(-1, n))
    beyond = tau * (tau + 2 * lam)  # -(xi^2 + lam^2) at m = 0, which is real, and set below
    square = torch.complex(m * m - beyond[:, None], 2 * m * (sign * height)[:, None])
    square[:, 0] = 1.0
    log_square = square.log()
    tempered = float(lam) > 0
    eta, log_lam = (lam ** (2 * alpha), lam.log()) if tempered else (torch.zeros_like(alpha), torch.zeros_like(alpha))
    power, size = torch.exp(log_square * alpha), beyond**alpha
    real, imaginary = torch.cos(math.pi * alpha), torch.sin(math.pi * alpha)

    def circulant(symbol: Tensor, zero: Tensor, edge: Tensor | None = None) -> Tensor:
        """Real, but for `edge`, the imaginary part of m = 0."""
        column = _columns(torch.cat([zero[:, None].to(symbol.dtype), symbol[:, 1:]], dim=1)).real
        constant = torch.zeros_like(column) if edge is None else (edge / n)[:, None].expand_as(column)
        return torch.complex(column, constant)

    first = circulant(1j * xi, -sign * height)
    second = circulant(xi * xi, -height * height)
    third = circulant(power - eta, size * real - eta, -size * imaginary)
    value = _Circulants(first, second, third)
    if not derivative:
        return _Symbols(value)
    log = beyond.log()
    in_alpha = circulant(
        power * log_square - 2 * eta * log_lam,
        size * (log * real - math.pi * imaginary) - 2 * eta * log_lam,
        -size * (log * imaginary + math.pi * real),
    )
    turn, slope = 1j * sign, alpha * power / square  # d power = slope d(xi^2 + lam^2)
    shared = (
        circulant(torch.full_like(xi, -sign), torch.full_like(tau, -sign)),
        circulant(2 * turn * xi, -2 * height),
    )
    rate = 2 * alpha * size / beyond * height
    in_tau = _Circulants(*shared, circulant(2 * slope * turn * xi, rate * real, -rate * imaginary))
    if not tempered:
        return _Symbols(value, in_alpha, None, in_tau)
    rate, loss = 2 * alpha * size / beyond * tau, 2 * alpha * eta / lam
    in_lam = _Circulants(
        *shared, circulant(2 * slope * (turn * xi + lam) - loss, rate * real - loss, -rate * imaginary)
    )
    return _Symbols(value, in_alpha, in_lam, in_tau)


def generator(c: _Circulants, part: slice, index: Tensor, b: Tensor, D_o: Tensor, D_f: Tensor) -> Tensor:
    L = b[:, None] * c.first[part][:, index]
    L -= D_o[:, None] * c.second[part][:, index]
    L -= D_f[:, None] * c.power[part][:, index]
    return L


class _Powers(NamedTuple):
    """What the reverse mode needs of one exponential; squares[-1] is the exponential itself."""

    A: Tensor
    A2: Tensor
    A3: Tensor
    inner: Tensor
    middle: Tensor
    squares: list[Tensor]


def exponential(A: Tensor, squarings: int) -> _Powers:
    """exp(2^squarings A), A: (Q, n, n) complex."""
    A2 = torch.bmm(A, A)
    A3 = torch.bmm(A2, A)

    def quadratic(c0: float, c1: float, c2: float) -> Tensor:
        out = torch.mul(A, c1).add_(A2, alpha=c2)
        out.diagonal(dim1=1, dim2=2).add_(c0)
        return out

    inner = quadratic(1 / 720, 1 / 5040, 1 / 40320).add_(A3, alpha=1 / 362880)
    middle = quadratic(1 / 6, 1 / 24, 1 / 120).baddbmm_(A3, inner)
    squares = [quadratic(1.0, 1.0, 0.5).baddbmm_(A3, middle)]
    for _ in range(squarings):
        squares.append(torch.bmm(squares[-1], squares[-1]))
    return _Powers(A, A2, A3, inner, middle, squares)


def exponential_adjoint(p: _Powers, bar: Tensor) -> Tensor:
    """The gradient in A, from the gradient `bar` in the exponential."""
    for X in reversed(p.squares[:-1]):
        adjoint = X.mH
        bar = torch.bmm(adjoint, bar).baddbmm_(bar, adjoint)
    h3 = p.A3.mH
    middle = torch.bmm(h3, bar)
    inner = torch.bmm(h3, middle)
    cube = torch.bmm(bar, p.middle.mH).baddbmm_(middle, p.inner.mH).add_(inner, alpha=1 / 362880)
    square = (0.5 * bar).add_(middle, alpha=1 / 120).add_(inner, alpha=1 / 40320).baddbmm_(cube, p.A.mH)
    out = bar.add(middle, alpha=1 / 24).add_(inner, alpha=1 / 5040).baddbmm_(p.A2.mH, cube)
    return out.baddbmm_(square, p.A.mH).baddbmm_(p.A.mH, square)


def squarings(b: Tensor, D_o: Tensor, D_f: Tensor, alpha: Tensor, n: int, tau: float) -> int:
    """How often L must be halved for the polynomial to be stable; tau: the largest imaginary part in the tail."""
    top = math.hypot(n / 2, tau)
    growth = float(D_o.max()) * top**2 + float(D_f.max()) * top ** (2 * float(alpha)) + float(b.abs().max()) * top
    return max(5, math.ceil(math.log2(max(growth, 1e-300) / STABLE)))


class _Propagate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, b: Tensor, D_o: Tensor, D_f: Tensor, alpha: Tensor, tau: Tensor, lam: Tensor, k: Tensor
    ) -> tuple[Tensor, Tensor]:
        work = _Work(b, D_o, D_f, alpha, tau, lam, k, any(ctx.needs_input_grad[3:6]))
        keep = any(ctx.needs_input_grad) and work.bytes <= _KEPT
        n, (Q, N, _) = work.n, work.sizes
        core = torch.empty((Q, n, n), dtype=torch.complex128, device=b.device)
        tail = torch.empty((2, N, n, n), dtype=torch.float64, device=b.device)

        def one(family: int, part: slice) -> _Powers | None:
            powers = work.powers(family, part)
            if family == 0:
                core[part] = powers.squares[-1]
            else:
                tail[family - 1, part] = powers.squares[-1].imag
            return powers if keep else None

        ctx.work, ctx.kept = work, work.each(one)
        return core, tail

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, core_bar: Tensor, tail_bar: Tensor) -> tuple[Tensor | None, ...]:
        work, kept = ctx.work, dict(zip(((f, p.start) for f, p in ctx.work.tasks()), ctx.kept))

        def one(family: int, part: slice) -> list[Tensor]:
            bar = core_bar[part] if family == 0 else 1j * tail_bar[family - 1, part]
            powers = kept[family, part.start] or work.powers(family, part)
            collected: list[Tensor] = work.collected(family, part, exponential_adjoint(powers, bar))
            return collected

        adjoints = work.each(one)  # added in their order, whatever the threads
        totals = [sum(values[1:], start=values[0]) for values in zip(*adjoints)]
        return *(g if need else None for g, need in zip(totals, ctx.needs_input_grad)), None


class _Work:
    """The matrices of one call: family 0 is the core, 1 and 2 the two sides of the tail."""

    def __init__(
        self,
        b: Tensor,
        D_o: Tensor,
        D_f: Tensor,
        alpha: Tensor,
        tau: Tensor,
        lam: Tensor,
        k: Tensor,
        derivative: bool = False,
    ) -> None:
        self.n = n = b.shape[0]
        self.b, self.D_o, self.D_f = b, D_o, D_f
        core = _core_circulants(k, n, alpha, lam, derivative)
        sides = (_tail_circulants(tau, sign, n, alpha, lam, derivative) for sign in (-1.0, 1.0))
        self.symbols = (core, *sides)
        self.circulants = tuple(symbols.value for symbols in self.symbols)
        self.sizes = (k.shape[0], tau.shape[0], tau.shape[0])
        i = torch.arange(n, device=b.device)
        self.index = (i[:, None] - i) % n
        self.squarings = squarings(b, D_o, D_f, alpha, n, float(tau.max() + lam))
        self.bytes = 16 * n * n * sum(self.sizes) * (self.squarings + 6)

    def tasks(self) -> list[tuple[int, slice]]:
        step = max(2, _CHUNK // self.n**2)
        return [
            (family, slice(start, min(start + step, size)))
            for family, size in enumerate(self.sizes)
            for start in range(0, size, step)
        ]

    def each(self, work: Callable[[int, slice], Result]) -> list[Result]:
        """work(family, part) for every part, on all cores."""
        tasks = self.tasks()
        if self.b.device.type != "cpu":
            return [work(*task) for task in tasks]
        return spread(lambda task: work(*task), tasks)

    def powers(self, family: int, part: slice) -> _Powers:
        L = generator(self.circulants[family], part, self.index, self.b, self.D_o, self.D_f)
        return exponential(L.mul_(0.5**self.squarings), self.squarings)

    def collected(self, family: int, part: slice, bar: Tensor) -> list[Tensor]:
        """What the gradient in the matrices of this part means for b, D_o, D_f (n,), alpha, tau (N,) and lam."""
        bar = torch.view_as_real(bar.mul_(0.5**self.squarings))

        def product(column: Tensor) -> Tensor:  # (Q, n): summed over the entries of each row
            return (torch.view_as_real(column[part][:, self.index]) * bar).sum((2, 3))

        def along(c: _Circulants) -> Tensor:
            return product(c.first) @ self.b - product(c.second) @ self.D_o - product(c.power) @ self.D_f

        symbols = self.symbols[family]
        c = symbols.value
        totals = [product(c.first).sum(0), -product(c.second).sum(0), -product(c.power).sum(0)]
        totals += [bar.new_zeros(()), bar.new_zeros(self.sizes[1]), bar.new_zeros(())]
        if symbols.in_alpha is not None:
            totals[3] = -(self.D_f @ product(symbols.in_alpha).sum(0))
        if symbols.in_tau is not None:
            totals[4][part] = along(symbols.in_tau)
        if symbols.in_lam is not None:
            totals[5] = along(symbols.in_lam).sum()
        return totals


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
        self.work = _Work(*c, tau, c.tempering, k)
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
    """The derivatives of `propagators` along directions (A, 3, n): core (A, Q, n, n), tail (A, 2, N, n, n)."""
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
