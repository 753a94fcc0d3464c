"""V on a window of a line for many coefficient sets at once.

They are replicas, draws of the parameters, perturbed systems: close to each other, and so to their mean. With its
inverse P the correction V <- V + P (r - A V) takes two products of matrices for all systems together, and contracts by
what the systems differ from the mean by; those that do not contract are solved one by one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from levytorch.law.jumps import Stable
from levytorch.policy.generator import solve_many
from levytorch.spaces.line_operator import Exterior, LineOperators, line_operators

_ROUNDS = 16  # systems that need more are solved directly
_DONE = 1e-8  # of V, the last correction: what is left is smaller, and rounding at reflecting ends no less
_FEW = 16  # systems that are not worth an inverse
_CHUNK = 512  # systems at a time, which stay in the cache


def resolvent_on_line(
    n: int,
    window: tuple[float, float],
    b: Tensor,
    D_o: Tensor,
    D_f: Tensor,
    alpha: float,
    r: Tensor,
    beta: float,
    exterior: Exterior | None = None,
) -> Tensor:
    """V at the inner nodes for many coefficient sets at once: (batch, n - 1) each, or (n - 1,) where all share it.

    The nodes are `inner_nodes(n, window)`. Returns (batch, n - 1).
    """
    outside = exterior or Exterior(True)
    ops = line_operators(n, window, torch.tensor(alpha, dtype=torch.float64), outside, jumps=Stable())
    shape = torch.broadcast_shapes(b.shape, D_o.shape, D_f.shape, r.shape)
    b, D_o, D_f, r = (v.to(torch.float64).expand(shape).reshape(-1, n - 1) for v in (b, D_o, D_f, r))
    size = torch.full((n - 1,), beta, dtype=torch.float64)
    for c, part in ((b, ops.first), (D_o, ops.second), (D_f, ops.fractional)):
        size += c.abs().amax(0) * part.abs().amax(1)
    right = r + b * ops.first_end + D_o * ops.second_end - D_f * ops.fractional_end
    out = torch.empty_like(right)
    alone = torch.ones(len(right), dtype=torch.bool)
    if len(right) > _FEW:
        alone = _around_the_mean(ops, b, D_o, D_f, right, beta, size, out)
    if bool(alone.any()):
        identity = torch.eye(n - 1, dtype=torch.float64)
        parts = torch.stack([identity, ops.first, ops.second, ops.fractional], dim=1) / size[:, None, None]
        weights = torch.stack([torch.full_like(b[alone], beta), -b[alone], -D_o[alone], D_f[alone]], dim=2)
        out[alone] = solve_many(parts, weights, right[alone] / size)
    return out.reshape(shape)


def _around_the_mean(
    ops: LineOperators, b: Tensor, D_o: Tensor, D_f: Tensor, right: Tensor, beta: float, size: Tensor, out: Tensor
) -> Tensor:
    """Fills the rows of `out` whose corrections contract; returns which do not, (batch,) bool."""
    mean = D_f.mean(0)[:, None] * ops.fractional - b.mean(0)[:, None] * ops.first - D_o.mean(0)[:, None] * ops.second
    mean.diagonal().add_(beta)
    inverse, failed = torch.linalg.inv_ex(mean / size[:, None])
    if bool(failed) or not bool(torch.isfinite(inverse).all()):
        return torch.ones(len(right), dtype=torch.bool)
    back, m = (inverse / size).T.contiguous(), len(size)
    forward = torch.cat([ops.first, ops.second, ops.fractional]).T.contiguous()  # (m, 3 m)
    left = torch.zeros(len(right), dtype=torch.bool)
    for start in range(0, len(right), _CHUNK):
        rows = slice(start, start + _CHUNK)
        own, V = [c[rows] for c in (b, D_o, D_f)], right[rows] @ back
        for _ in range(_ROUNDS):
            first, second, jumps = (V @ forward).split(m, dim=1)
            residual = right[rows] - beta * V + own[0] * first + own[1] * second - own[2] * jumps
            step = residual @ back
            V = V + step
            moved = step.abs().amax(1) / V.abs().amax(1).clamp(min=1e-300)
            if not bool((moved > _DONE).any()):
                break
        out[rows] = V
        left[rows] = ~(moved <= _DONE)
    return left
