"""How far a value function moves with every principal direction of the parameters that it was solved from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from levytorch.policy.line_value import LineValue
from levytorch.policy.value import PlaneValue


def spread(V: Any, x: Tensor) -> Tensor | None:
    """(n, P) at states (n,) or (n, 2), whose rows have length V.std(x); None where V has no errors.

    Two value functions of one recovery move along the same directions: the error of their difference is the length of
    the difference of their rows.
    """
    factor = V.covariance_factor
    if factor is None:
        return None
    if isinstance(V, LineValue):
        return V._between(x, factor)
    if isinstance(V, PlaneValue):
        return torch.stack([V._sum(x, factor[..., p]) for p in range(factor.shape[-1])], dim=-1)
    return V.basis.matrix(x) @ factor
