"""log p by torch operations around the radial law: any dimension, any device, differentiable twice.

The compiled passes (`autograd.py`, `vector.py`) come here for second derivatives, and where they do not apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from levytorch.errors import InputError
from levytorch.law.arguments import broadcast
from levytorch.law.radial import log_density_radial

TINY = 1e-280  # keeps the radius differentiable at zero; far below any displacement that is not zero


class Step(NamedTuple):
    """The arguments of the law."""

    displacement: Tensor
    b: Tensor
    D_o: Tensor
    D_f: Tensor
    alpha: Tensor
    dt: Tensor


def out_of_range(index: int) -> InputError:
    return InputError(
        f"displacement - b dt, D_o dt and D_f dt must be finite and D_f dt > 0, with derivatives that are finite too, "
        f"but the step of sample {index} leaves the range of float64; rescale x or t."
    )


def check_range(y: Tensor, A: Tensor, B: Tensor) -> None:
    """Refuse steps whose derivatives would leave float64."""
    with torch.no_grad():
        good = torch.isfinite(y) & torch.isfinite(A) & torch.isfinite(B) & (B > 0)
    if not bool(good.all()):
        raise out_of_range(int((~good).reshape(-1).nonzero()[0]))


def batch_shape(step: Step, dim: int) -> torch.Size:
    """The batch shape, without the last axis of the vectors."""
    tensors = step._asdict()
    if dim > 1:
        for name in ("displacement", "b"):
            t = tensors[name]
            if t.shape[-1:] != (dim,) and not (name == "b" and t.numel() == 1):
                raise InputError(
                    f"{name} must have {dim} components in its last axis (dim = {dim}), but has shape "
                    f"{tuple(t.shape)}; put the coordinates there."
                )
            tensors[name] = t[..., 0] if t.dim() else t
    return broadcast(**tensors)


def composed(step: Step, *, dim: int, method: str) -> Tensor:
    """The same by torch operations around the radial law: any dimension, any device, differentiable twice."""
    x, b, D_o, D_f, alpha, dt = step
    shape = batch_shape(step, dim)
    if shape.numel() == 0:
        return x.new_zeros(shape)
    shift = x - b * (dt if dim == 1 or dt.dim() == 0 else dt.unsqueeze(-1))
    square = shift * shift if dim == 1 else (shift * shift).sum(-1)
    y = torch.sqrt(square + TINY)

    def flat(t: Tensor) -> Tensor:
        return t.reshape(1) if t.numel() == 1 else t.expand(shape).reshape(-1)

    y, A, B = flat(y), flat(D_o * dt), flat(D_f * dt)
    check_range(y, A, B)
    log_p = log_density_radial(y, A, B, flat(alpha), dim=dim, method=method)
    return log_p.expand(shape.numel()).reshape(shape)


def partial_derivatives(step: Step, needs: Sequence[bool], g: Tensor, dim: int) -> list[Tensor | None]:
    """g times the derivative of log p in each argument that needs it, itself differentiable."""
    # aliases: the arguments may depend on each other, and each derivative must be the partial one
    step = Step(*(t.view_as(t) for t in step))
    wanted = [t for t, need in zip(step, needs) if need]
    log_p = composed(step, dim=dim, method="contour")
    found = iter(torch.autograd.grad(log_p, wanted, g, create_graph=True))
    return [next(found) if need else None for need in needs]
