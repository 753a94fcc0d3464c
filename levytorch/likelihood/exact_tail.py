"""The far tail of the exact law: the contour of k turned onto the cut of |k|^(2 alpha).

For y > 0, with the contour at k = -i tau on either side of the cut (for y < 0 at +i tau), and z the landing point,

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

import torch
from torch import Tensor

from levytorch.coefficients.head import NO_TEMPERING
from levytorch.likelihood.exact_kernels import X_POINTS, tail_values
from levytorch.likelihood.exact_rule import Rule, chebyshev, gamma

LADDER = 0.125  # step in log |y|
_NODES = 128  # of the double-exponential rule for V
_LOWEST = {False: -3.8, True: -6.3}  # where it begins, for the density and for the mass (t^(2 alpha - 1) at 0)
_LONGEST = 45.0  # e^{-45} is where it ends at the latest


class Tail:
    """Both sides of the tail. P: (2, N, n, n) imaginary parts; alpha 0-d; tau (N,)."""

    def __init__(
        self, P: Tensor, alpha: Tensor, tau: Tensor, rule: Rule, *, mass: bool, lam: Tensor = NO_TEMPERING
    ) -> None:
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
            even = (modes[..., :1].real / self.n).expand(-1, -1, -1, R * self.n)
            waves = R * torch.fft.irfft(modes * factor[:, :, None, :], n=R * self.n, dim=3)
            G = torch.cat([waves, even], dim=1)
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


def node_scales(rule: Rule, alpha: Tensor, tau: Tensor, n: int, lam: Tensor = NO_TEMPERING) -> Tensor:
    """(2, N): what Im P of either side is multiplied by before it is interpolated in tau."""
    side = torch.tensor([1.0, -1.0], dtype=torch.float64, device=tau.device)[:, None]
    height = tau + lam
    size = (tau * (tau + 2 * lam)) ** -alpha
    return n / math.pi * size * torch.exp(-rule.growth * height**2 - side * rule.drift * height)


def ladder_weights(
    rule: Rule, alpha: Tensor, side: int, log_y: Tensor, mass: bool, lam: Tensor = NO_TEMPERING
) -> Tensor:
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
