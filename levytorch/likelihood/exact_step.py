"""The law of one step of one system, as tables: log p and the masses beyond, core and far tail.

Units: the period is 2 pi, x in [0, 2 pi). The core is, on the grid points x_i and at any y,

    p(x_i, y) = n/pi Re int_0^{1/2} e^{-iky} P_k(x_i, x_i + y) dk,

P_k a trigonometric polynomial of the landing point: refined along y mode by mode, along x at given y, both to rounding,
and read off its logarithm by local polynomials.

In the far tail the contour of k is turned onto the cut of |k|^(2 alpha). For y > 0, with the contour at k = -i tau on
either side of the cut (for y < 0 at +i tau), and z the landing point,

    p(x, y) = n/pi int_0^T e^{-tau y} Im P_tau(x, z) d tau,      Im P = tau^(2 alpha) e^{growth tau^2 +- drift tau} G,

where G is smooth in tau^gamma and is interpolated there from Chebyshev nodes. What depends on y is then a weight per
node, V(y) = y^(2 alpha + 1) int e^{-tau y} ..., computed on a ladder of log |y|; what depends on x and z is a table per
node. The mass beyond y has the same form: integrating e^{-tau y + imy} divides each mode by tau - im, and m = 0,
which decays more slowly, has channels of its own.

With tempered jumps the cut begins at lam, k = -i (lam + tau), and all of it is e^{-lam y} times the same integral, with
(tau (tau + 2 lam))^alpha in the place of tau^(2 alpha).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.likelihood.exact_kernels import X_POINTS, core_values, tail_values
from levytorch.likelihood.exact_rule import Rule, chebyshev, gamma
from levytorch.likelihood.propagator import Propagators, propagator_slopes, propagators

_MARGIN = 6  # further points beyond the seam
_INTERVALS = 16  # of Simpson's rule for scores
_BYTES = 200_000_000  # of derivatives to hold at once
_FLOOR = 1e-18  # below it a density on the grid is rounding error, and is replaced by this
_CHANGE = 1e-4  # of alpha, and relative of the tempering, for differences
LADDER = 0.125  # step in log |y|
_NODES = 128  # of the double-exponential rule for V
_LOWEST = {False: -3.8, True: -6.3}  # where it begins, for the density and for the mass (t^(2 alpha - 1) at 0)
_LONGEST = 45.0  # e^{-45} is where it ends at the latest


class ExactStep:
    """Asked in the units of the data, on a cell of length `period` from `origin` on.

    c: coefficients on the n grid points of the rule, times the step, in units where the period is 2 pi; everything but
    `scores` is differentiable in all of them.
    """

    def __init__(self, c: Coefficients, rule: Rule, period: float, origin: float) -> None:
        self.rule, self.c, self.alpha, self.lam, self.n = rule, c, c.alpha, c.tempering, rule.n
        self.period, self.origin, self.unit = period, origin, 2 * math.pi / period
        self.seam = rule.seam / self.unit
        k, weights = (t.to(c.b.device) for t in rule.core_nodes())
        self.k, self.weights = k, weights
        self.tau = rule.tail_nodes(c.alpha)
        self.P = propagators(c, k, self.tau)
        self.step_y = 2 * math.pi / (self.n * rule.refine_y)
        self.half = math.ceil(rule.seam / self.step_y) + _MARGIN  # columns of the table on either side of dx = 0

    def _scaled(self, x: Tensor, dx: Tensor) -> tuple[Tensor, Tensor]:
        return torch.remainder(x - self.origin, self.period) * self.unit, dx * self.unit

    def log_density(self, x: Tensor, dx: Tensor) -> Tensor:
        """log p(x -> x + dx), (n,); dx of any size."""
        return self._read(*self._scaled(x, dx), lambda: self._log_p, self._density_tail) + math.log(self.unit)

    @torch.no_grad()
    def scores(self, x: Tensor, dx: Tensor, directions: Tensor) -> Tensor:
        """d log p / d direction, (n, A), for directions (A, 3, n_grid) in b, D_o, D_f: to three digits."""
        x, y = self._scaled(x, dx)
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
        some = max(1, _BYTES // (16 * self.n**2 * (len(self.k) + len(self.tau))))
        for part in directions.split(some):
            slopes = propagator_slopes(self.c, self.k, self.tau, part, _INTERVALS)
            yield from (Propagators(*one) for one in zip(*slopes))

    def score_in(self, name: str, x: Tensor, dx: Tensor) -> Tensor:
        """d log p / d alpha or d tempering, (n,), of the scaled coefficients: a difference under the same rule."""
        value = getattr(self.c, name)
        change = _CHANGE * (value if name == "tempering" else 1.0)
        up, down = (
            ExactStep(self.c._replace(**{name: value + move}), self.rule, self.period, self.origin).log_density(x, dx)
            for move in (change, -change)
        )
        return (up - down) / (2 * change)

    def upper(self, x: Tensor, a: Tensor) -> Tensor:
        """P(dx > a | x); far to the right with relative accuracy."""
        return self._mass(x, a, 0)

    def lower(self, x: Tensor, a: Tensor) -> Tensor:
        """P(dx < a | x); far to the left with relative accuracy."""
        return self._mass(x, a, 1)

    def _mass(self, x: Tensor, a: Tensor, side: int) -> Tensor:
        x, y = self._scaled(x, a)
        far = y < -self.rule.seam if side == 0 else y > self.rule.seam  # where nearly all mass lies beyond
        log = self._read(x, y, lambda: self._log_masses[side], self._mass_tail)
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
        table: Tensor = (
            (turns @ waves.reshape(k.shape[0], -1)).real.reshape(2 * periods, n, -1).transpose(0, 1).reshape(n, -1)
        )
        center = periods * fine.shape[0]
        core: Tensor = table[:, center - self.half : center + self.half + 1]
        return core

    def _refined(self, table: Tensor) -> Tensor:
        """A table over x on a finer grid of x."""
        R = self.rule.refine_x
        return table if R == 1 else R * torch.fft.irfft(torch.fft.rfft(table, dim=0), n=R * self.n, dim=0)


def _landing(x: Tensor, y: Tensor) -> Tensor:
    return torch.remainder(x + torch.remainder(y, 2 * math.pi), 2 * math.pi)


def _turn(angle: Tensor) -> Tensor:
    """e^{i angle}"""
    return torch.polar(torch.ones_like(angle), angle)


class Tail:
    """Both sides of the tail. P: (2, N, n, n) imaginary parts; alpha 0-d; tau (N,)."""

    def __init__(self, P: Tensor, alpha: Tensor, tau: Tensor, rule: Rule, *, mass: bool, lam: Tensor) -> None:
        self.alpha, self.rule, self.mass, self.lam = alpha, rule, mass, lam
        self.n = P.shape[-1]
        G = P * node_scales(rule, alpha, tau, self.n, lam)[..., None, None]
        tau = tau + lam
        R = rule.refine_tail
        G = R * torch.fft.irfft(torch.fft.rfft(G, dim=2), n=R * self.n, dim=2)
        modes = torch.fft.rfft(G, dim=3)
        if mass:
            m = torch.arange(modes.shape[3], dtype=torch.float64, device=P.device)
            rate = torch.complex(tau[:, None].expand(-1, m.shape[0]), -m.expand(tau.shape[0], -1))
            factor = 1 / torch.stack([rate, rate.conj()])
            factor = torch.cat([torch.zeros_like(factor[..., :1]), factor[..., 1:]], dim=-1)
            mean = (modes[..., :1].real / self.n).expand(-1, -1, -1, R * self.n)
            waves = R * torch.fft.irfft(modes * factor[:, :, None, :], n=R * self.n, dim=3)
            G = torch.cat([waves, mean], dim=1)
        else:
            G = R * torch.fft.irfft(modes, n=R * self.n, dim=3)
        self.tables = G.permute(0, 2, 3, 1).contiguous()  # (2, M, M, channels)

    def log_value(self, side: int, x: Tensor, z: Tensor, y: Tensor) -> Tensor:
        """log p, or log of the mass beyond y, on side 0 (dx > 0) or 1; x, z (n,) in [0, 2 pi), y = |dx| (n,)."""
        value = self.value(side, x, z, y, self.ladder(side, y))
        log_y, power = y.log(), 2 * self.alpha + (0 if self.mass else 1)
        return value.clamp(min=1e-300).log() - power * log_y - self.lam * y

    def value(self, side: int, x: Tensor, z: Tensor, y: Tensor, ladder: Tensor) -> Tensor:
        """p |y|^(2 alpha + 1) e^{lam |y|}, or the same of the mass with one power of |y| less; linear in P."""
        unit = self.tables.shape[1] / (2 * math.pi)
        rung = (y.log() - math.log(self.rule.seam)) / LADDER
        return tail_values(self.tables[side], ladder, x * unit, z * unit, rung)

    def ladder(self, side: int, y: Tensor) -> Tensor:
        """(L, channels): the weights at the rungs of log |y| from the seam to the largest y."""
        low = math.log(self.rule.seam)
        rungs = X_POINTS + 1 + math.ceil(max(math.log(float(y.max())) - low, 0.0) / LADDER)
        log_y = low + LADDER * torch.arange(rungs, dtype=torch.float64, device=y.device)
        return ladder_weights(self.rule, self.alpha, side, log_y, self.mass, self.lam)


def node_scales(rule: Rule, alpha: Tensor, tau: Tensor, n: int, lam: Tensor) -> Tensor:
    """(2, N): what Im P of either side is multiplied by before it is interpolated in tau."""
    side = torch.tensor([1.0, -1.0], dtype=torch.float64, device=tau.device)[:, None]
    height = tau + lam
    size = (tau * (tau + 2 * lam)) ** -alpha
    return n / math.pi * size * torch.exp(-rule.growth * height**2 - side * rule.drift * height)


def ladder_weights(rule: Rule, alpha: Tensor, side: int, log_y: Tensor, mass: bool, lam: Tensor) -> Tensor:
    """(L, channels): integrals over t = tau y, e^{-t} t^(2 alpha) e^{growth tau^2 +- drift tau} l_q(tau^gamma).

    Tempered: of (t (t + 2 lam y))^alpha, and growth and drift are those of lam + tau.
    """
    y = log_y.exp()[:, None]
    end = (rule.reach * y).clamp(max=_LONGEST).log()  # v - e^{-v} = log t ends there
    top = end
    for _ in range(3):  # Newton
        top = top - (top - torch.exp(-top) - end) / (1 + torch.exp(-top))
    bottom = _LOWEST[mass]
    step = (top - bottom) / (_NODES - 1)
    v = bottom + step * torch.arange(_NODES, dtype=torch.float64, device=y.device)
    log_t = v - torch.exp(-v)
    measure = step * torch.exp(log_t) * (1 + torch.exp(-v))
    measure[:, -1] *= 0.5
    # nodes in u = (tau / T)^gamma stay where they are when alpha moves: the polynomials l_q(u) are then constants
    power = gamma(alpha, rule.tempered)
    still = float(power.detach())
    log_u = still * (log_t - log_y[:, None] - math.log(rule.reach))
    basis = _lagrange(log_u.exp(), rule.tail)
    if alpha.requires_grad:
        moved = log_u * (1 / power - 1 / still)
        measure = measure * torch.exp(moved) * (still / power)
        log_t = log_t + moved
    t = log_t.exp()
    tau = t / y + lam
    direction = 1.0 if side == 0 else -1.0
    size = 2 * alpha * log_t if not rule.tempered else alpha * (log_t + (t + 2 * lam * y).log())
    f = measure * torch.exp(-t + size + rule.growth * tau**2 + direction * rule.drift * tau)
    V = torch.einsum("lj,ljq->lq", f, basis)
    if not mass:
        return V
    return torch.cat([V / y, torch.einsum("lj,ljq->lq", f / (t + lam * y), basis)], dim=1)


def _lagrange(u: Tensor, n: int) -> Tensor:
    """(..., n) values of the Lagrange polynomials of the Chebyshev points, in barycentric form."""
    nodes = chebyshev(n).to(u.device)
    angle = math.pi * (torch.arange(n, dtype=torch.float64, device=u.device) + 0.5) / n
    sign = 1 - 2.0 * (torch.arange(n, device=u.device) % 2)
    distance = u[..., None] - nodes
    terms = sign * torch.sin(angle) / torch.where(distance == 0, torch.full_like(distance, 1e-300), distance)
    return terms / terms.sum(-1, keepdim=True)
