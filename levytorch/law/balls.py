"""Mass outside of a ball in several dimensions, P(|Y - m| > c), as a mean over the random time of the mixture.

Given the time s the step is Gaussian with covariance 2 C, C = A + s I. Along the direction e its density is that of
r^(d-1) exp(-r^2 a / 4), a = e^T C^-1 e, so that the mass beyond the radius R(e) at which a ray from the origin leaves
the ball is

    mean over e of a^(-d/2) det(C)^(-1/2) Q(d/2, R(e)^2 a / 4),

with the regularised gamma function Q. Where C is a multiple of the identity only the angle between e and m counts: a
rule in one variable. With a matrix directions fill the circle (d = 2, trapezoid rule), the sphere (d = 3,
Gauss-Legendre times trapezoid) or are N_DIRECTIONS fixed ones (d > 3, a relative error of about 1 %).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from levytorch.law import mixture_torch, threads
from levytorch.law.mixture_torch import gaussian, spectrum

TINY = 1e-280  # keeps a length differentiable at zero
CHUNK = 4096  # rows at a time
N_DIRECTIONS = 512


class _Rowwise(Function):
    """A function of tensors whose rows belong together, a chunk of rows at a time, differentiable once."""

    @staticmethod
    def forward(ctx: Any, function: Callable[..., Tensor], grad: bool, *inputs: Tensor) -> Tensor:
        n, needs = len(inputs[0]), ctx.needs_input_grad[2:]
        values, slopes = [], []
        for low in range(0, n, CHUNK):
            own = [t.detach()[low : low + CHUNK].clone() for t in inputs]
            leaves = [t.requires_grad_() for t, need in zip(own, needs) if grad and need]
            with torch.set_grad_enabled(grad):
                value = function(*own)
                if grad:
                    slopes.append(torch.autograd.grad(value.sum(), leaves))
            values.append(value.detach())
        if grad:
            ctx.save_for_backward(*(torch.cat(column) for column in zip(*slopes)))
        return torch.cat(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        slopes = iter(ctx.saved_tensors)
        out: list[Tensor | None] = []
        for need in ctx.needs_input_grad[2:]:
            slope = next(slopes) if need else None
            out.append(None if slope is None else g.reshape(-1, *[1] * (slope.dim() - 1)) * slope)
        return (None, None, *out)


def _apply(function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    # inside an autograd.Function grad mode is always off, so it is read here
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    values: Tensor = _Rowwise.apply(function, grad, *inputs)
    return values


def gamma_tail(d: int, x: Tensor) -> Tensor:
    """Q(d / 2, x)."""
    if d == 2:
        return torch.exp(-x)
    if d == 1:
        return torch.erfc(x.sqrt())
    tail: Tensor = torch.special.gammaincc(x.new_tensor(0.5 * d), x)
    return tail


def radial_mass(dim: int, u: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor | None) -> Tensor:
    """P(|Y| > u) for A a number, everything (n,)."""

    def mass(u: Tensor, A: Tensor, B: Tensor, alpha: Tensor, *rate: Tensor) -> Tensor:
        def at(s: Tensor, rows: Tensor) -> Tensor:
            return gamma_tail(dim, 0.25 * (u * u)[rows, None] / (A[rows, None] + s).clamp_min(1e-300))

        return mixture_torch.over_times(at, A, u * u, B, alpha, rate[0] if rate else None)

    return _apply(mass, u, A, B, alpha, *([] if lam is None else [lam]))


@cache
def _axial_rule(d: int, n: int) -> tuple[Tensor, Tensor]:
    """cos of the angle to an axis and weights of the mean over directions."""
    if d == 2:
        return torch.as_tensor(np.cos((np.arange(n) + 0.5) * np.pi / n)), torch.full((n,), 1.0 / n, dtype=torch.float64)
    from scipy.special import roots_gegenbauer

    nodes, weights = roots_gegenbauer(n, 0.5 * (d - 2))
    return torch.as_tensor(nodes), torch.as_tensor(weights / weights.sum())


def _angle_density(d: int) -> float:
    """Of sin^(d-2) of the angle to an axis."""
    return math.gamma(0.5 * d) / (math.sqrt(math.pi) * math.gamma(0.5 * (d - 1)))


def _directions_needed(c: Tensor, m: Tensor) -> Tensor:
    """Directions that resolve the distance to the sphere of radius c from a point m < c away from its center."""
    ratio = (m / c.clamp_min(1e-300)).clamp(1e-12, 1.0)
    return torch.ceil(36.0 / (-torch.log(ratio)).clamp_min(0.14)).clamp(8, 256)


def mass_beyond(dim: int, c: Tensor, shift: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor | None) -> Tensor:
    """P(|Y - m| > c): c (n,), shift m (n, d), A (n,) or (n, d, d), the others (n,)."""
    rate = [] if lam is None else [lam]
    if A.dim() == 1:
        offset = torch.sqrt((shift * shift).sum(-1) + TINY)
        return _axial(dim, c, offset, A, B, alpha, lam)
    outside = (shift.detach().norm(dim=1) >= c.detach()).nonzero()[:, 0]
    inside = (shift.detach().norm(dim=1) < c.detach()).nonzero()[:, 0]
    out = torch.zeros_like(c)
    for rows, masses in ((inside, _from_inside), (outside, partial(_apply, _from_outside))):
        if len(rows):
            out = out.index_copy(0, rows, masses(*(t[rows] for t in (c, shift, A, B, alpha, *rate))))
    return out


def _axial(dim: int, c: Tensor, m: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor | None) -> Tensor:
    """The mean over the angle to m of the radial mass beyond the point where the ray leaves the ball."""

    def beyond(radius: Tensor) -> Tensor:
        A_, B_, alpha_ = (t[:, None].expand_as(radius).reshape(-1) for t in (A, B, alpha))
        lam_ = None if lam is None else lam[:, None].expand_as(radius).reshape(-1)
        return radial_mass(dim, radius.reshape(-1), A_, B_, alpha_, lam_).reshape(radius.shape)

    c1, m1, inside = c[:, None], m[:, None], m.detach() < c.detach()
    needed = _directions_needed(c.detach(), m.detach())[m.detach() < c.detach()]
    cos, weight = _axial_rule(dim, int(needed.max()) if len(needed) else 8)
    sin2 = (1.0 - cos * cos).clamp_min(0.0)
    leaving = (m1 * cos + torch.sqrt((c1 * c1 - m1 * m1 * sin2).clamp_min(0.0) + TINY)).clamp_min(0.0)
    from_inside = (beyond(leaving) * weight).sum(-1)
    if bool(inside.all()):
        return from_inside
    # the origin is outside of the ball: rays cross it twice; sin(phi) = (c / m) sin(t) removes the square root
    nodes, weights = np.polynomial.legendre.leggauss(96)
    t, w = (torch.as_tensor(v) for v in (0.25 * np.pi * (nodes + 1.0), 0.25 * np.pi * weights))
    q = (c1 / m1.clamp_min(1e-300)).clamp_max(1.0)
    sin_phi = q * torch.sin(t)
    cos_phi = torch.sqrt((1.0 - sin_phi * sin_phi).clamp_min(TINY))
    near = (m1 * cos_phi - c1 * torch.cos(t)).clamp_min(0.0)
    shell = beyond(near) - beyond(m1 * cos_phi + c1 * torch.cos(t))
    angle = q * torch.cos(t) / cos_phi * w * _angle_density(dim) * sin_phi ** (dim - 2)
    return torch.where(inside, from_inside, 1.0 - (shell * angle).sum(-1))


@cache
def _directions(d: int, n: int) -> tuple[Tensor, Tensor]:
    """Unit vectors (k, d) and their weights; in d = 3 n^2 of them around the first axis."""
    if d == 2:
        phi = (np.arange(n) + 0.5) * 2.0 * np.pi / n
        return torch.as_tensor(np.stack([np.cos(phi), np.sin(phi)], 1)), torch.full((n,), 1.0 / n, dtype=torch.float64)
    if d == 3:
        x, w = np.polynomial.legendre.leggauss(n)
        phi = (np.arange(n) + 0.5) * 2.0 * np.pi / n
        s = np.sqrt(1.0 - x * x)
        e = np.stack([np.repeat(x, n), np.outer(s, np.cos(phi)).ravel(), np.outer(s, np.sin(phi)).ravel()], 1)
        return torch.as_tensor(e), torch.as_tensor(np.repeat(0.5 * w / n, n))
    gauss = torch.randn((N_DIRECTIONS // 2, d), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    e = torch.cat([gauss, -gauss]) / gauss.norm(dim=1, keepdim=True).repeat(2, 1)
    return e, torch.full((N_DIRECTIONS,), 1.0 / N_DIRECTIONS, dtype=torch.float64)


def _sides(A: Tensor) -> Tensor:
    """Directions along a circle that resolve each of the ellipses of A (n,)."""
    l = torch.linalg.eigvalsh(A)
    condition = l[:, -1] / l[:, 0].clamp_min(1e-6 * l[:, -1]).clamp_min(1e-300)
    return (2.0 * torch.ceil(16.0 * torch.sqrt(condition))).clamp(24, 400)


class _Inside(Function):
    """P(|Y - m| > c) with a matrix, where |m| < c, by the compiled kernel; differentiable once."""

    @staticmethod
    def forward(ctx: Any, grad: bool, c: Tensor, shift: Tensor, A: Tensor, *rest: Tensor) -> Tensor:
        d = shift.shape[1]
        needed = _sides(A)
        if d == 2:
            needed = torch.maximum(needed, _directions_needed(c, shift.norm(dim=1)).to(needed))
            needed = torch.ceil(needed / 24) * 24
        else:
            needed = torch.ceil(needed.clamp_max(32) / 8) * 8
        # mass, and its derivatives in c, shift, A, B, alpha, tempering
        out = [c.new_empty(t.shape) for t in (c, c, shift, A, c, c, c)]
        for n in needed.unique().tolist():
            rows = (needed == n).nonzero()[:, 0]
            for whole, part in zip(out, _inside_rows(int(n), grad, *(t[rows] for t in (c, shift, A, *rest)))):
                whole[rows] = part
        ctx.save_for_backward(*out[1:])
        return out[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[1:]
        slopes = ctx.saved_tensors[: len(needs)]
        return (None, *(
            g.reshape(-1, *[1] * (slope.dim() - 1)) * slope if need else None for need, slope in zip(needs, slopes)
        ))  # fmt: skip


def _inside_rows(
    n: int, grad: bool, c: Tensor, shift: Tensor, A: Tensor, B: Tensor, alpha: Tensor, *rate: Tensor
) -> list[Tensor]:
    """Mass and derivatives of samples for which n directions along a circle are enough."""
    from levytorch.law.ball_kernels import inside

    e, share = (t.numpy() for t in _directions(shift.shape[1], n))
    widest = torch.linalg.eigvalsh(A)[:, -1].clamp_min(0.0)
    nearest = (c - shift.norm(dim=1)).clamp_min(0.0)
    out = [c.new_empty(t.shape) for t in (c, c, shift, A, c, c, c)]
    for rows, nodes in mixture_torch.shared_times(widest, nearest**2, B, alpha, rate[0] if rate else None):
        own = [t[rows].numpy() for t in (c, shift, 0.5 * (A + A.transpose(1, 2)), B, alpha)]
        found = [t[rows].numpy() for t in out]
        lam = rate[0][rows].numpy() if rate else np.zeros(len(rows))
        threads.in_blocks(inside, len(rows), *own, lam, e, share, *nodes, grad, *found, grain=8)
        for whole, part in zip(out, found):
            whole[rows] = torch.from_numpy(part)
    return out


def _from_inside(*inputs: Tensor) -> Tensor:
    # inside an autograd.Function grad mode is always off, so it is read here
    mass: Tensor = _Inside.apply(torch.is_grad_enabled() and any(t.requires_grad for t in inputs), *inputs)
    return mass


def _along(e: Tensor, A: Tensor, radius: Tensor, s: Tensor) -> Tensor:
    """a^(-d/2) det(C)^(-1/2) Q(d/2, radius^2 a / 4): e (n, k, d), radius (n, k), s (n, m) to (n, k, m)."""
    n, k, d = e.shape
    times = s[:, None, :].expand(n, k, s.shape[1]).reshape(n * k, -1)
    log_det, a = gaussian(e.reshape(n * k, d), A[:, None].expand(n, k, d, d).reshape(n * k, d, d), times)
    tail = gamma_tail(d, 0.25 * (radius * radius).reshape(n * k, 1) * a)
    return (torch.exp(-0.5 * log_det - 0.5 * d * torch.log(a)) * tail).reshape(n, k, -1)


def _from_outside(c: Tensor, shift: Tensor, A: Tensor, B: Tensor, alpha: Tensor, *rate: Tensor) -> Tensor:
    """Rays cross the ball twice, within the angle asin(c / |m|) around m."""
    d = shift.shape[1]
    length = torch.sqrt((shift * shift).sum(1) + TINY)
    axis = shift / length[:, None]
    nodes, weights = np.polynomial.legendre.leggauss(96 if d == 2 else 32)
    t, w = (torch.as_tensor(v) for v in (0.25 * np.pi * (nodes + 1.0), 0.25 * np.pi * weights))
    q = (c / length).clamp_max(1.0)[:, None]
    sin_phi = q * torch.sin(t)
    cos_phi = torch.sqrt((1.0 - sin_phi * sin_phi).clamp_min(TINY))
    around, share = _around(d)
    # vectors orthogonal to the axis: the reflection that sends the first axis to m
    first = torch.zeros(d, dtype=torch.float64)
    first[0] = 1.0
    mirror = axis - first
    size = (mirror * mirror).sum(1, keepdim=True).clamp_min(1e-24)
    across = around - 2.0 * (around @ mirror.T).T[..., None] * mirror[:, None, :] / size[:, None]  # (n, a, d)
    e = cos_phi[:, :, None, None] * axis[:, None, None, :] + sin_phi[:, :, None, None] * across[:, None]
    k, a = e.shape[1:3]
    half = c[:, None] * torch.cos(t)
    near, far = (length[:, None] * cos_phi - half).clamp_min(0.0), length[:, None] * cos_phi + half
    angle = q * torch.cos(t) / cos_phi * w * _angle_density(d) * sin_phi ** (d - 2)

    def at(s: Tensor, rows: Tensor) -> Tensor:
        vectors, weight = e[rows].reshape(len(rows), k * a, d), (angle[rows][..., None] * share).reshape(len(rows), -1)
        inner, outer = (r[rows][..., None].expand(len(rows), k, a).reshape(len(rows), -1) for r in (near, far))
        shell = _along(vectors, A[rows], inner, s) - _along(vectors, A[rows], outer, s)
        return (shell * weight[..., None]).sum(1)

    widest = spectrum(shift.detach(), A.detach())[0].amax(1)
    nearest = (length.detach() - c.detach()).clamp_min(0.0)
    inside = mixture_torch.over_times(at, widest, nearest**2, B, alpha, rate[0] if rate else None)
    return 1.0 - inside


@cache
def _around(d: int) -> tuple[Tensor, Tensor]:
    """Unit vectors orthogonal to the first axis (a, d), and their shares."""
    if d == 2:
        e = torch.tensor([[0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    elif d == 3:
        phi = torch.arange(32, dtype=torch.float64) * (2.0 * math.pi / 32) + 0.1
        e = torch.stack([torch.zeros_like(phi), torch.cos(phi), torch.sin(phi)], 1)
    else:
        gauss = torch.randn((64, d - 1), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        unit = torch.cat([gauss, -gauss]) / gauss.norm(dim=1, keepdim=True).repeat(2, 1)
        e = torch.cat([torch.zeros((len(unit), 1), dtype=torch.float64), unit], 1)
    return e, torch.full((len(e),), 1.0 / len(e), dtype=torch.float64)
