"""Tail mass of one step: P(|dx - center| > threshold), the CDF, and the cutting threshold of Appendix A.

The mass beyond a distance u of the drifted position is the same kind of contour integral as the density, so nothing is
integrated over x, and a mass of 1e-200 has all its digits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from levytorch.convert import common_shape
from levytorch.errors import NumericalError
from levytorch.law import quadrature
from levytorch.law.arguments import (
    Numeric,
    broadcast,
    broadcast_error,
    check_dim,
    check_values,
    check_vector,
    is_zero,
    to_tensors,
)
from levytorch.law.jumps import TimedJumps


class _Tail(Function):
    """P(|Y| > u) on a line, Y centered; 1-D tensors of one length: u, A, B, alpha[, lam]. Differentiable once."""

    @staticmethod
    def forward(ctx: Any, grad: bool, *inputs: Tensor) -> Tensor:
        out = quadrature.tail(*inputs, order=int(grad))
        if grad:
            ctx.save_for_backward(out[1:])
        return out[0].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (slopes,) = ctx.saved_tensors
        needs = ctx.needs_input_grad[1:]
        return (None, *(g * slopes[k] if need else None for k, need in enumerate(needs)))


def radial_tail(u: Tensor, A: Tensor, B: Tensor, alpha: Tensor, *, dim: int = 1, lam: Tensor | None = None) -> Tensor:
    """P(|Y| > u) of the centered step, u >= 0, any broadcastable shapes; lam: the tempering, None for none."""
    given = (u, A, B, alpha) if lam is None else (u, A, B, alpha, lam)
    shape = common_shape(*(t.shape for t in given))
    flat: list[Any] = [t.expand(shape).reshape(-1) for t in given]
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in flat)
    if shape.numel() == 0:
        return u.new_zeros(shape)
    if dim > 1:
        from levytorch.law.balls import radial_mass

        return in_range(
            radial_mass(dim, flat[0], flat[1], flat[2], flat[3], flat[4] if lam is not None else None)
        ).reshape(shape)
    try:
        out = _Tail.apply(grad, *flat)
    except ZeroDivisionError:  # the compiled contour, where a scale overflows
        out = u.new_full((1,), math.nan)
    return in_range(out).reshape(shape)


def in_range(mass: Tensor) -> Tensor:
    """The mass itself, or the refusal of what is not a number."""
    if not bool(torch.isfinite(mass.detach()).all()):
        raise NumericalError(
            "the tail mass must lie within what float64 can compute, found that threshold, D_o dt or D_f dt leaves "
            "that range; rescale x or t."
        )
    return mass


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
    """P(|dx - center| > threshold) for one step: the mass of the tail, R_theta in Algorithm E.6.

    Args:
        threshold: the distance from the center beyond which a step counts.
        center: where the distance is measured from, usually the median step.
        b, D_o, D_f, alpha, dt: as in `log_density`; jumps of another kind in the place of alpha for one dimension only.
        dim: number of coordinates. For dim > 1, center and b are vectors `[..., dim]` and distances are Euclidean.
        tempering: as in `log_density`.

    Returns:
        The probability, a tensor of the broadcast shape, differentiable in every argument. Its relative accuracy is
        about 1e-12 however small it is; for dim > 1 it is 1e-9 when the drifted position lies close to the threshold.
        With a matrix D_o it is a mean over directions: 1e-8 in the plane, 1e-6 in space, about 1 % in more dimensions.

    Example:
        >>> tail_probability(8.0, 0.125, b=5.0, D_o=4.0, D_f=3.0, alpha=0.3, dt=1 / 40)
        tensor(0.0164, dtype=torch.float64)
    """
    if isinstance(alpha, TimedJumps):
        from levytorch.law import subordinated

        return subordinated.tail_probability(alpha, threshold, center, b, D_o, D_f, dt, dim)
    check_dim(dim)
    names = dict(threshold=threshold, center=center, b=b, D_o=D_o, D_f=D_f, alpha=alpha, dt=dt)
    given, dtype, device = to_tensors(**names, **({} if is_zero(tempering) else {"tempering": tempering}))
    lam = given.get("tempering")
    if dim == 1:
        check_values(**given)
        c, m, b_, D_o_, D_f_, alpha_, dt_ = list(given.values())[:7]
        broadcast(**given)
        A, B, offset = D_o_ * dt_, D_f_ * dt_, m - b_ * dt_
        out = survival(c + offset, A, B, alpha_, lam) + survival(c - offset, A, B, alpha_, lam)
    else:
        out = _ball_complement(given, dim)
    return out.to(device, dtype)


def _ball_complement(given: dict[str, Tensor], dim: int) -> Tensor:
    """P(|dx - center| > threshold) in several dimensions."""
    from levytorch.law.balls import mass_beyond
    from levytorch.law.several import check_alpha, check_matrix, is_matrix

    shapes = {name: t.shape for name, t in given.items()}
    for name in ("center", "b"):
        if given[name].dim():
            check_vector(name, given[name], dim)
            shapes[name] = given[name].shape[:-1]
    others = common_shape(*(shape for name, shape in shapes.items() if name != "D_o"))
    matrix = is_matrix(given["D_o"], dim, others)
    if matrix:
        check_matrix(given["D_o"])
        shapes["D_o"] = given["D_o"].shape[:-2]
    check_values(**{name: t for name, t in given.items() if not (matrix and name == "D_o")})
    check_alpha(given["alpha"])
    try:
        shape = common_shape(*shapes.values())
    except ValueError:
        raise broadcast_error(**given) from None
    if shape.numel() == 0:
        return given["D_f"].new_zeros(shape)

    def flat(t: Tensor, *inner: int) -> Tensor:
        return t.expand((*shape, *inner)).reshape(-1, *inner)

    dt = flat(given["dt"])
    shift = flat(given["center"], dim) - flat(given["b"], dim) * dt[:, None]
    A = flat(given["D_o"], dim, dim) * dt[:, None, None] if matrix else flat(given["D_o"]) * dt
    law = flat(given["D_f"]) * dt, flat(given["alpha"]), flat(given["tempering"]) if "tempering" in given else None
    return in_range(mass_beyond(dim, flat(given["threshold"]), shift, A, *law)).reshape(shape)


def cutting_threshold(
    alpha: Numeric, D_f: Numeric, dt: Numeric, mass: Numeric = 0.98, *, D_o: Numeric | None = None, dim: int = 1
) -> Tensor:
    """The cutting threshold CT of Appendix A: the half-width that holds a given mass of the steps.

    Args:
        alpha, D_f, dt: as in `log_density`.
        mass: the probability of a step within the threshold.
        D_o: the ordinary diffusion. None uses the jumps alone, (D_f dt)^(1/(2 alpha)) F^-1((1 + mass) / 2), as the
            paper does; that can fall below the width of the Gaussian part if dt is small.
        dim: number of coordinates.

    Returns:
        CT, a tensor of the broadcast shape.

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
        with torch.enable_grad():
            at = u.detach().requires_grad_()
            mass = radial_tail(at, A, B, alpha, dim=dim)
            (slope,) = torch.autograd.grad(mass.sum(), at)
        value = mass.detach()
        step = (torch.log(value) - torch.log(tail)) * value / (slope * u).clamp_max(-1e-300)
        log_u = torch.clamp(log_u - step.nan_to_num(0.0), low, high)
    return torch.exp(log_u)
