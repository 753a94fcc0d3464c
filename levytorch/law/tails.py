"""Tail mass of one step: P(|dx - center| > threshold), the CDF, and the cutting threshold of Appendix A.

The mass beyond a distance u of the drifted position is the same kind of contour integral as the density, so nothing is
integrated over x, and a mass of 1e-200 has all its digits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from levytorch.convert import common_shape
from levytorch.errors import NumericalError
from levytorch.law import quadrature
from levytorch.law.arguments import Numeric, broadcast, check_dim, check_values, check_vector, is_zero, to_tensors
from levytorch.law.radial import TINY


class _Tail(Function):
    """P(|Y| > u), Y centered; 1-D tensors of one length: u, A, B, alpha[, lam]. Differentiable once in each of them."""

    @staticmethod
    def forward(ctx: Any, dim: int, grad: bool, *inputs: Tensor) -> Tensor:
        out = quadrature.tail(*inputs, dim=dim, order=int(grad))
        if grad:
            ctx.save_for_backward(out[1:])
        return out[0].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        needs = ctx.needs_input_grad[2:]
        return (None, None, *(g * slopes[k] if need else None for k, need in enumerate(needs)))


def radial_tail(u: Tensor, A: Tensor, B: Tensor, alpha: Tensor, *, dim: int = 1, lam: Tensor | None = None) -> Tensor:
    """P(|Y| > u) of the centered step, u >= 0, any broadcastable shapes; lam: the tempering, None for none."""
    given = (u, A, B, alpha) if lam is None else (u, A, B, alpha, lam)
    shape = common_shape(*(t.shape for t in given))
    flat = [t.expand(shape).reshape(-1) for t in given]
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in flat)
    if shape.numel() == 0:
        return u.new_zeros(shape)
    try:
        out = _Tail.apply(dim, grad, *flat)
    except ZeroDivisionError:  # the compiled contour, where a scale overflows
        out = u.new_full((1,), math.nan)
    if not bool(torch.isfinite(out.detach()).all()):
        raise NumericalError(
            "the tail mass must lie within what float64 can compute, found that threshold, D_o dt or D_f dt leaves "
            "that range; rescale x or t."
        )
    return out.reshape(shape)


def survival(u: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor | None = None) -> Tensor:
    """P(Y > u) in one dimension, u of either sign."""
    half = 0.5 * radial_tail(u.abs(), A, B, alpha, lam=lam)
    return torch.where(u >= 0, half, 1.0 - half)


def tail_probability(
    threshold: Numeric,
    center: Numeric,
    b: Numeric,
    D_o: Numeric,
    D_f: Numeric,
    alpha: Numeric,
    dt: Numeric,
    *,
    dim: int = 1,
    tempering: Numeric = 0.0,
) -> Tensor:
    """P(|dx - center| > threshold) for one step: R_theta of Algorithm E.6 when threshold is CT and center is mu.

    Everything broadcasts; for dim > 1 center and b are vectors `[..., dim]` and the Euclidean norm is meant.
    Tempering as in `log_density`.
    Differentiable in every argument. Relative accuracy about 1e-12 however small the mass (1e-9 for dim > 1 when the
    ball's surface passes close to the drifted position).

    Example:
        >>> tail_probability(8.0, 0.125, b=5.0, D_o=4.0, D_f=3.0, alpha=0.3, dt=1 / 40)
        tensor(0.0164, dtype=torch.float64)
    """
    check_dim(dim)
    names = dict(threshold=threshold, center=center, b=b, D_o=D_o, D_f=D_f, alpha=alpha, dt=dt)
    given, dtype, device = to_tensors(**names, **({} if is_zero(tempering) else {"tempering": tempering}))
    check_values(**given)
    c, m, b_, D_o_, D_f_, alpha_, dt_, *rest = given.values()
    lam = rest[0] if rest else None
    A, B = D_o_ * dt_, D_f_ * dt_
    if dim == 1:
        broadcast(**given)
        offset = m - b_ * dt_
        out = survival(c + offset, A, B, alpha_, lam) + survival(c - offset, A, B, alpha_, lam)
    else:
        for name in ("center", "b"):
            if given[name].dim():
                check_vector(name, given[name], dim)
                given[name] = given[name][..., 0]
        broadcast(**given)
        shift = m - b_ * (dt_ if dt_.dim() == 0 else dt_.unsqueeze(-1))
        offset = torch.sqrt((shift * shift).sum(-1) + TINY) if shift.dim() else shift.abs() * math.sqrt(dim)
        out = _ball_complement(c, offset, A, B, alpha_, dim, lam)
    return out.to(device, dtype)


def _ball_complement(c: Tensor, m: Tensor, A: Tensor, B: Tensor, alpha: Tensor, dim: int, lam: Tensor | None) -> Tensor:
    """P(|Y - m| > c) for an isotropic Y: the mean over directions of the radial tail where the ray leaves the ball."""
    given = torch.broadcast_tensors(c, m, A, B, alpha, *([] if lam is None else [lam]))
    c, m, *law = (t.unsqueeze(-1) for t in given)

    def beyond(radius: Tensor) -> Tensor:
        return radial_tail(radius, *law[:3], dim=dim, lam=law[3] if lam is not None else None)

    inside = m < c
    ratio = float((m / c.clamp_min(1e-300)).detach()[inside].max()) if bool(inside.any()) else 0.0
    n = int(min(256, max(8, math.ceil(36.0 / max(-math.log(max(ratio, 1e-12)), 0.14)))))
    if dim == 2:
        phi = torch.as_tensor((np.arange(n) + 0.5) * np.pi / n)
        cos, weight = torch.cos(phi), torch.full((n,), 1.0 / n, dtype=torch.float64)
    else:
        nodes, weights = np.polynomial.legendre.leggauss(n)
        cos, weight = torch.as_tensor(nodes), torch.as_tensor(0.5 * weights)
    cos, weight = cos.to(c), weight.to(c)
    sin2 = (1.0 - cos * cos).clamp_min(0.0)
    root = torch.sqrt((c * c - m * m * sin2).clamp_min(0.0) + TINY)
    leaving = (m * cos + root).clamp_min(0.0)
    from_inside = (beyond(leaving) * weight).sum(-1)
    if bool(inside.all()):
        return from_inside
    # the drifted position is outside the ball: rays cross it twice; sin(phi) = (c / m) sin(t) removes the square root
    nodes, weights = np.polynomial.legendre.leggauss(96)
    t = torch.as_tensor(0.25 * np.pi * (nodes + 1.0)).to(c)
    w = torch.as_tensor(0.25 * np.pi * weights).to(c)
    q = (c / m.clamp_min(1e-300)).clamp_max(1.0)
    sin_phi = q * torch.sin(t)
    cos_phi = torch.sqrt((1.0 - sin_phi * sin_phi).clamp_min(TINY))
    near = (m * cos_phi - c * torch.cos(t)).clamp_min(0.0)
    shell = beyond(near) - beyond(m * cos_phi + c * torch.cos(t))
    angle = q * torch.cos(t) / cos_phi * w * (1.0 / math.pi if dim == 2 else 0.5 * sin_phi)
    outside = 1.0 - (shell * angle).sum(-1)
    return torch.where(inside.squeeze(-1), from_inside, outside)


def cutting_threshold(
    alpha: Numeric, D_f: Numeric, dt: Numeric, mass: Numeric = 0.98, *, D_o: Numeric | None = None, dim: int = 1
) -> Tensor:
    """CT of Appendix A: the half-width that holds `mass` of the one-step increments.

    Without D_o it is the stable quantile, (D_f dt)^(1/(2 alpha)) F^-1((1 + mass) / 2), as in the paper. With D_o it is
    the quantile of the full law; the reduced one can fall below the Gaussian's own width when dt is small.

    Example:
        >>> cutting_threshold(0.3, 3.0, 1 / 40)
        tensor(5.7251, dtype=torch.float64)
    """
    check_dim(dim)
    names = dict(alpha=alpha, D_f=D_f, dt=dt, mass=mass, D_o=0.0 if D_o is None else D_o)
    given, dtype, device = to_tensors(**names)
    check_values(**given)
    broadcast(**given)
    alpha_, D_f_, dt_, mass_, D_o_ = torch.broadcast_tensors(*(t.detach() for t in given.values()))
    out = quantile(1.0 - mass_, D_o_ * dt_, D_f_ * dt_, alpha_, dim=dim)
    return out.to(device, dtype)


def quantile(tail: Tensor, A: Tensor, B: Tensor, alpha: Tensor, *, dim: int = 1) -> Tensor:
    """u with P(|Y| > u) = tail: bisection on log u, then Newton steps on log P against log u."""
    log_scale = torch.maximum(0.5 * torch.log(2.0 * A.clamp_min(1e-300)), torch.log(B) / (2.0 * alpha))
    low = log_scale - 20.0 - 2.0 / alpha
    high = log_scale + 10.0 + (5.0 - torch.log(tail)) / (2.0 * alpha)
    low, high = low.clamp(-690.0, 690.0), high.clamp(-690.0, 690.0)
    log_u = 0.5 * (low + high)
    for _ in range(24):
        above = radial_tail(torch.exp(log_u), A, B, alpha, dim=dim) > tail
        low, high = torch.where(above, log_u, low), torch.where(above, high, log_u)
        log_u = 0.5 * (low + high)
    for _ in range(5):
        u = torch.exp(log_u)
        flat = [t.reshape(-1) for t in torch.broadcast_tensors(u, A, B, alpha)]
        out = quadrature.tail(*flat, dim=dim, order=1)
        value, slope = out[0].reshape(u.shape), out[1].reshape(u.shape)
        step = (torch.log(value) - torch.log(tail)) * value / (slope * u).clamp_max(-1e-300)
        log_u = torch.clamp(log_u - step.nan_to_num(0.0), low, high)
    return torch.exp(log_u)
