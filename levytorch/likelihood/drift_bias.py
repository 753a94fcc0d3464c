"""What freezing the coefficients over a step does to the drift, to first order in how D_o changes along it.

With g the gradient of D_o and p the density of a frozen step, D_o + g . y instead of D_o changes the density by
dt / 2 (g . grad)(d + y . grad) p: in Fourier space by i dt^2 / 2 k^2 (g . grad_k)(D_o k^2 + D_f |k|^(2 alpha)), and the
law scales. Projected on the score of the drift, with psi = grad log p of the isotropic law in d dimensions, the frozen
law's drift is moved by

    kappa g,    kappa = -E[ div psi (d + y . psi) ] / (2 E[ div psi ]),

a function of alpha and D_f dt / (D_o dt)^alpha alone; zero without jumps. It is what can be taken back where the exact
law is not to be had: in several dimensions, for many distinct dt, and for steps too short for its grid. D_o and D_f
stay as they are.

Data need not follow an equation along a step: Euler's rule, and any model in discrete time, holds coefficients until
the next observation. The same change of the density, what a shift of the drift explains taken off, is a score for how
much of it the steps show (`shown_by_steps`).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from levytorch.coefficients import LinearHead
from levytorch.data.batches import Batch
from levytorch.law import score
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.sums import project

_POINTS = 1200  # of the radius
_FARTHEST = 60.0  # in widths of the Brownian part: beyond, the law is a power of the radius and psi vanishes
_RATIOS = 33  # of jumps to diffusion between which kappa is interpolated
_SMALL = 1e-3  # of the width of a step, for differences of D_o


def kappa(ratio: Tensor, alpha: float, dim: int) -> tuple[Tensor, Tensor]:
    """kappa, and E|psi|^2 / d in units of 1 / (D_o dt), at ratios D_f dt / (D_o dt)^alpha (m,)."""
    step = math.asinh(_FARTHEST) / _POINTS
    r = torch.sinh(step * (torch.arange(_POINTS, dtype=torch.float64) + 0.5))
    measure = step * torch.cosh(step * (torch.arange(_POINTS, dtype=torch.float64) + 0.5)) * r ** (dim - 1)
    measure = measure * 2 * math.pi ** (dim / 2) / math.gamma(dim / 2)
    one = torch.ones((), dtype=torch.float64)
    values = []
    for q in ratio.tolist():

        def slope(at: Tensor, q: float = q) -> tuple[Tensor, Tensor]:
            """log p and its derivative along the radius, for D_o = dt = 1."""
            if dim == 1:
                s = score(at, 0.0 * one, one, q * one, alpha, one)
                return s.log_p, -s.b
            y = torch.cat([at[:, None], at.new_zeros((len(at), dim - 1))], dim=1)
            s = score(y, torch.zeros(dim, dtype=torch.float64), one, q * one, alpha, one, dim=dim)
            return s.log_p, -s.b[:, 0]

        log_p, f = slope(r)
        h = 1e-4 * (1 + r)
        bend = (slope(r + h)[1] - slope(r - h)[1]) / (2 * h)
        divergence = bend + (dim - 1) * f / r
        p = log_p.exp() * measure
        mean = float((p * divergence).sum())
        values.append((-float((p * divergence * (dim + r * f)).sum()) / (2 * mean), float((p * f * f).sum()) / dim))
    found = torch.tensor(values, dtype=torch.float64)
    return found[:, 0], found[:, 1]


@torch.no_grad()
def drift_bias(head: LinearHead, x: Tensor, dt: Tensor) -> tuple[Tensor, Tensor]:
    """What the frozen law adds to b at states x (m,) or (m, d) after dt (m,), and the information on b there, (m,)."""
    c = head(x)
    spread = c.D_o * dt
    alpha = float(c.alpha)
    ratio = (c.D_f * dt / spread.clamp(min=1e-300) ** alpha).clamp(1e-6, 1e6).log()
    low, high = float(ratio.min()), float(ratio.max())
    count = _RATIOS if high - low > 1e-6 else 2
    nodes = torch.linspace(low, max(high, low + 1e-6), count, dtype=torch.float64)
    factor, information = (_interpolated(nodes, values, ratio) for values in kappa(nodes.exp(), alpha, head.dim))
    return factor.reshape(-1, *([1] * (x.dim() - 1))) * _gradient(head, x), information * dt**2 / spread.clamp(
        min=1e-300
    )


@torch.no_grad()
def drift_step(objective: FullBatchObjective, ev: Evaluation, counts: Tensor) -> Tensor:
    """The step in theta (P,) that takes the bias of the drift back; counts: pairs on the bins of the objective."""
    head, bins, n = objective.head, objective.bins, float(counts.sum())
    bias, information = drift_bias(head, bins.x, bins.dt)
    rows = torch.zeros((len(head.sizes), len(bins)), dtype=torch.float64)
    rows[: head.dim] = (bias if head.dim == 1 else bias.T) * information * counts / n * head.units.b
    curvature = objective.information(ev)
    if objective.penalty is not None and objective.penalty.active:
        curvature = curvature + torch.diag(objective.penalty.precision()) / objective.n
    return -torch.linalg.solve(curvature, project(head, rows, objective.design))


@torch.no_grad()
def shown_by_steps(head: LinearHead, pairs: Batch) -> tuple[Tensor, Tensor]:
    """Sums over pairs in one dimension: the score S of D_o's change along steps, and its information J.

    S / J, with a standard error of J^(-1/2), is 1 where D_o is followed along a step, 0 where it is held. pairs: their
    weights are numbers of pairs.
    """
    x, dx, weight = pairs.x, pairs.dx, pairs.weight
    dt = pairs.dt.expand(x.shape)
    c = head(x)
    alpha = float(c.alpha)
    width = (c.D_o * dt).clamp(min=1e-300).sqrt()

    def slope(at: Tensor) -> Tensor:
        """d log p / dy."""
        return -score(at, c.b, c.D_o, c.D_f, alpha, dt, tempering=c.tempering).b / dt

    y = dx - c.b * dt
    h = _SMALL * (width + y.abs())
    f = slope(dx)
    bend = (slope(dx + h) - slope(dx - h)) / (2 * h)
    gradient = _gradient(head, x)
    changed = gradient * 0.5 * dt * (2 * f + y * (bend + f * f))
    v = changed + drift_bias(head, x, dt)[0] * dt * f  # the score of b is -dt f
    return (weight * v).sum(), (weight * v * v).sum()


def _interpolated(nodes: Tensor, values: Tensor, at: Tensor) -> Tensor:
    right = torch.searchsorted(nodes, at).clamp(1, len(nodes) - 1)
    share = (at - nodes[right - 1]) / (nodes[right] - nodes[right - 1])
    return values[right - 1] * (1 - share) + values[right] * share


def _gradient(head: LinearHead, x: Tensor) -> Tensor:
    """grad D_o at states, in the shape of x, by differences over a small part of a step."""
    h = _SMALL * head.units.length
    if head.dim == 1:
        return (head(x + h).D_o - head(x - h).D_o) / (2 * h)
    moves = h * torch.eye(head.dim, dtype=torch.float64)
    return torch.stack([(head(x + move).D_o - head(x - move).D_o) / (2 * h) for move in moves], dim=1)
