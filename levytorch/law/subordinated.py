"""The law of one step with jumps that know the density of their random time: log p and tail mass, any dimension.

Given the time s the step is Gaussian with covariance 2 (A + s) I, A = D_o dt, so that

    p(y) = int N(y; 0, 2 (A + s) I) g(s) ds,

a sum of positive terms by the trapezoidal rule in w, log s = c + w - exp(-w): what is like a power of s near zero falls
off double-exponentially in w, and c lies to the left of all that happens for larger s. Derivatives are those of the
sum, by autograd. Stable and tempered jumps have faster rules of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from levytorch.law.arguments import Numeric, broadcast, check_dim, check_values, check_vector, to_tensors
from levytorch.law.balls import gamma_tail
from levytorch.law.jumps import TimedJumps

_STEP = 0.12  # of the rule in w
_WIDTH = 0.6  # of the rule, in widths of the narrowest peak
_DROP = 40.0  # terms below exp(-_DROP) of the largest one are left out
_TERMS = 1 << 20  # held at a time
_TINY = 1e-280  # stands for the square of a vanishing displacement


def log_density(
    jumps: TimedJumps, displacement: Numeric, b: Numeric, D_o: Numeric, D_f: Numeric, dt: Numeric, dim: int
) -> Tensor:
    """log p of a step; the arguments are those of `law.log_density`, D_o a number."""
    check_dim(dim)
    given, dtype, device = to_tensors(displacement=displacement, b=b, D_o=D_o, D_f=D_f, dt=dt)
    check_values(**given)
    shift, A, B = _step(given, "displacement", dim)

    def log_p(square: Tensor, A: Tensor, B: Tensor) -> Tensor:
        s, log_weight = _nodes(jumps, square, A, B)
        variance = (A[:, None] + s).clamp_min(_TINY)
        log_normal = -0.5 * dim * torch.log(4.0 * math.pi * variance) - 0.25 * square[:, None] / variance
        return torch.logsumexp(log_weight + log_normal, 1)

    return _by_rows(log_p, (shift * shift).sum(-1) + _TINY, A, B).to(device, dtype)


def tail_probability(
    jumps: TimedJumps,
    threshold: Numeric,
    center: Numeric,
    b: Numeric,
    D_o: Numeric,
    D_f: Numeric,
    dt: Numeric,
    dim: int,
) -> Tensor:
    """P(|dx - center| > threshold); the arguments are those of `law.tail_probability`, D_o a number; on a line."""
    check_dim(dim)
    given, dtype, device = to_tensors(threshold=threshold, center=center, b=b, D_o=D_o, D_f=D_f, dt=dt)
    check_values(**given)
    shift, A, B = _step(given, "center", 1)

    def beyond(u: Tensor, A: Tensor, B: Tensor) -> Tensor:
        s, log_weight = _nodes(jumps, u * u + _TINY, A, B)
        return (torch.exp(log_weight) * gamma_tail(1, 0.25 * (u * u)[:, None] / (A[:, None] + s).clamp_min(_TINY))).sum(
            1
        )

    total = torch.zeros((), dtype=torch.float64)
    for u in (given["threshold"] + shift[..., 0], given["threshold"] - shift[..., 0]):
        half = 0.5 * _by_rows(beyond, u.abs(), A, B)
        total = total + torch.where(u >= 0, half, 1.0 - half)
    return total.to(device, dtype)


def _step(given: dict[str, Tensor], point: str, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """The displacement of a point from where the drift leads (..., dim), A and B."""
    if dim > 1:
        check_vector(point, given[point], dim)
    x, b = (given[name] if dim > 1 and given[name].dim() else given[name][..., None] for name in (point, "b"))
    broadcast(**given | {point: x[..., 0], "b": b[..., 0]})
    dt = given["dt"]
    return x - b * dt[..., None], given["D_o"] * dt, given["D_f"] * dt


def _by_rows(function: Callable[..., Tensor], first: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """A function of 1-D tensors of one length, applied to some rows at a time."""
    inputs = torch.broadcast_tensors(first, A, B)
    flat = [t.reshape(-1) for t in inputs]
    size = max(1, _TERMS // 1024)
    parts = [function(*(t[low : low + size] for t in flat)) for low in range(0, len(flat[0]), size)]
    return torch.cat(parts).reshape(inputs[0].shape) if parts else inputs[0].clone()


def _nodes(jumps: TimedJumps, square: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Times s (n, m) and the logarithms of their weights, for displacements of this square."""
    with torch.no_grad():
        latest, sharpness = jumps.time_range(square, B, _DROP)
        first = torch.maximum(A * A / (A + 0.25 * square), square / (4.0 * _DROP))
        c = torch.minimum(first.log(), latest.log() - math.log(_DROP)) - 2.5
        low = -torch.log(_DROP / B + 1.0) - 1.0
        high = latest.log() - c
        step = (_WIDTH / (1.0 + sharpness).sqrt()).clamp_max(_STEP)
        count = int(((high - low) / step).max()) + 2
        h = (high - low) / (count - 1)
        w = low[:, None] + h[:, None] * torch.arange(count, dtype=torch.float64)
        log_s = c[:, None] + w - torch.exp(-w)
        log_h = torch.log(h)[:, None] + torch.log1p(torch.exp(-w))
    return torch.exp(log_s), log_h + jumps.log_time_density(log_s, B[:, None])
