"""Whether data follow the coefficients along a step, or hold them until the next observation.

Freezing the coefficients over a step changes its law; here to first order in how D_o and D_f change along it.

With g the gradient of D_o and p the density of a frozen step, D_o + g . y instead of D_o changes the density by
dt / 2 (g . grad)(d + y . grad) p: in Fourier space by i dt^2 / 2 k^2 (g . grad_k)(D_o k^2 + D_f |k|^(2 alpha)), and the
law scales. Projected on the score of the drift, with psi = grad log p of the isotropic law in d dimensions, the frozen
law's drift is moved by

    kappa g,    kappa = -E[ div psi (d + y . psi) ] / (2 E[ div psi ]),

a function of alpha and D_f dt / (D_o dt)^alpha alone; zero without jumps. In one dimension the same holds for a
gradient of D_f: k^2 is then |k|^(2 alpha), and with F the distribution function the density changes by

    g / 2 (y dp/dD_f + 2 alpha dF/dD_f),    2 alpha D_f dF/dD_f = -(y p + 2 D_o dt dp/dy)    (the law scales).

Data need not follow an equation along a step: Euler's rule, and any model in discrete time, holds coefficients until
the next observation. The same change of the density, what a shift of the drift explains taken off, is a score for how
much of it the steps show (`shown_by_steps`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.data.batches import Batch
from levytorch.law import score

_POINTS = 1200  # of the radius
_FARTHEST = 60.0  # in widths of the Brownian part: beyond, the law is a power of the radius and psi vanishes
_RATIOS = 33  # of jumps to diffusion between which kappa is interpolated
_SMALL = 1e-3  # of the width of a step, for differences of D_o


def kappa(ratio: Tensor, alpha: float, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """kappa, E|psi|^2 / d in units of 1 / (D_o dt), and the kappa of D_f's gradient (0 for dim > 1), which multiplies
    (D_o dt)^(1 - alpha), at ratios D_f dt / (D_o dt)^alpha (m,).
    """
    step = math.asinh(_FARTHEST) / _POINTS
    r = torch.sinh(step * (torch.arange(_POINTS, dtype=torch.float64) + 0.5))
    measure = step * torch.cosh(step * (torch.arange(_POINTS, dtype=torch.float64) + 0.5)) * r ** (dim - 1)
    measure = measure * 2 * math.pi ** (dim / 2) / math.gamma(dim / 2)
    one = torch.ones((), dtype=torch.float64)
    values = []
    for q in ratio.tolist():

        def slope(at: Tensor, q: float = q) -> tuple[Tensor, Tensor, Tensor]:
            """log p and its derivatives along the radius and in D_f, for D_o = dt = 1."""
            if dim == 1:
                s = score(at, 0.0 * one, one, q * one, alpha, one)
                return s.log_p, -s.b, s.D_f
            y = torch.cat([at[:, None], at.new_zeros((len(at), dim - 1))], dim=1)
            s = score(y, torch.zeros(dim, dtype=torch.float64), one, q * one, alpha, one, dim=dim)
            return s.log_p, -s.b[:, 0], s.D_f

        log_p, f, in_D_f = slope(r)
        h = 1e-4 * (1 + r)
        bend = (slope(r + h)[1] - slope(r - h)[1]) / (2 * h)
        divergence = bend + (dim - 1) * f / r
        p = log_p.exp() * measure
        mean = float((p * divergence).sum())
        known = float((p * f * f).sum())
        jumps = -float((p * f * _of_jumps(r, f, in_D_f, one, q * one)).sum()) / known if dim == 1 else 0.0
        values.append((-float((p * divergence * (dim + r * f)).sum()) / (2 * mean), known / dim, jumps))
    found = torch.tensor(values, dtype=torch.float64)
    return found[:, 0], found[:, 1], found[:, 2]


def _of_jumps(y: Tensor, f: Tensor, in_D_f: Tensor, spread: Tensor, D_f: Tensor) -> Tensor:
    """What log p changes by with a unit gradient of D_f along a step; f: d log p / dy; spread: D_o dt."""
    return 0.5 * (y * in_D_f - (y + 2 * spread * f) / D_f)


@torch.no_grad()
def drift_bias(head: Head, x: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """What the frozen law adds to b at states x (m,) or (m, d) after dt (m,), and the information on b there, (m,)."""
    c = head(x)
    spread = c.D_o * dt
    alpha = float(c.alpha)
    ratio = (c.D_f * dt / spread.clamp(min=1e-300) ** alpha).clamp(1e-6, 1e6).log()
    low, high = float(ratio.min()), float(ratio.max())
    count = _RATIOS if high - low > 1e-6 else 2
    nodes = torch.linspace(low, max(high, low + 1e-6), count, dtype=torch.float64)
    found = [_interpolated(nodes, values, ratio) for values in kappa(nodes.exp(), alpha, head.dim)]
    factor, information, of_jumps = found
    of_D_o, of_D_f = _gradients(head, x)
    bias = factor.reshape(-1, *([1] * (x.dim() - 1))) * of_D_o
    if head.dim == 1:
        bias = bias + of_jumps * spread ** (1 - alpha) * of_D_f
    return bias, information * dt**2 / spread.clamp(min=1e-300)


@torch.no_grad()
def shown_by_steps(head: Head, pairs: Batch) -> tuple[Tensor, Tensor]:
    """Sums over pairs in one dimension: the score S of the change of D_o and D_f along steps, and its information J.

    S / J, with a standard error of J^(-1/2), is 1 where they are followed along a step, 0 where they are held. pairs:
    their weights are numbers of pairs.
    """
    x, dx, weight = pairs.x, pairs.dx, pairs.weight
    dt = pairs.dt.expand(x.shape)
    c = head(x)
    alpha = float(c.alpha)
    width = (c.D_o * dt).clamp(min=1e-300).sqrt()

    def slope(at: Tensor) -> tuple[Tensor, Tensor]:
        """d log p / dy, and in D_f."""
        s = score(at, c.b, c.D_o, c.D_f, alpha, dt, tempering=c.tempering)
        return -s.b / dt, s.D_f

    y = dx - c.b * dt
    h = _SMALL * (width + y.abs())
    f, in_D_f = slope(dx)
    bend = (slope(dx + h)[0] - slope(dx - h)[0]) / (2 * h)
    of_D_o, of_D_f = _gradients(head, x)
    changed = of_D_o * 0.5 * dt * (2 * f + y * (bend + f * f))
    changed = changed + of_D_f * _of_jumps(y, f, in_D_f, width**2, c.D_f.clamp(min=1e-300))
    v = changed + drift_bias(head, x, dt)[0] * dt * f  # the score of b is -dt f
    return (weight * v).sum(), (weight * v * v).sum()


def _interpolated(nodes: Tensor, values: Tensor, at: Tensor) -> Tensor:
    right = torch.searchsorted(nodes, at).clamp(1, len(nodes) - 1)
    share = (at - nodes[right - 1]) / (nodes[right] - nodes[right - 1])
    return values[right - 1] * (1 - share) + values[right] * share


def _gradients(head: Head, x: Tensor) -> tuple[Tensor, Tensor]:
    """grad D_o and grad D_f at states, in the shape of x, by differences over a small part of a step."""
    h = _SMALL * head.units.length
    moves = [torch.tensor(h, dtype=torch.float64)] if head.dim == 1 else list(h * torch.eye(head.dim).double())
    slopes = []
    for move in moves:
        up, down = head(x + move), head(x - move)
        slopes.append([(one - other) / (2 * h) for one, other in ((up.D_o, down.D_o), (up.D_f, down.D_f))])
    of_D_o, of_D_f = zip(*slopes)
    if head.dim == 1:
        return of_D_o[0].expand(x.shape), of_D_f[0].expand(x.shape)
    return torch.stack(of_D_o, dim=1), torch.stack(of_D_f, dim=1)
