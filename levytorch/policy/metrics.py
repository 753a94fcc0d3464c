"""How V is judged: relative L2 error and coverage (section 4.3), C^0 and discrete C^2 norms (section 4.2.2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from levytorch.coefficients.basis import FourierBasis
from levytorch.errors import InputError

Function = Callable[[Tensor], Tensor]


def relative_l2(V: Function, reference: Function, low: float, high: float, n: int = 2000) -> float:
    """||V - reference|| / ||reference|| in L2(low, high), midpoint rule."""
    if not low < high:
        raise InputError(
            f"low < high was expected, but found {low!r} and {high!r}; give the ends of the interval in order."
        )
    x = low + (torch.arange(n, dtype=torch.float64) + 0.5) * ((high - low) / n)
    size = reference(x).norm()
    if float(size) == 0:
        raise InputError(
            "A relative error needs a reference that is not zero, but it vanishes; compare absolute values instead."
        )
    return float((V(x) - reference(x)).norm() / size)


def coverage(values: Tensor, center: Tensor, half_width: Tensor) -> float:
    """Fraction of values within center +- half_width (section 4.3: empirical values within mean +- one standard
    deviation).
    """
    return float(((values - center).abs() <= half_width).to(torch.float64).mean())


def c0_norm(basis: FourierBasis, coefficients: Tensor) -> Tensor:
    """max |V| over the collocation points, for coefficients (..., n)."""
    return (coefficients @ basis.matrix(basis.points()).T).abs().amax(-1)


def c2_norm(basis: FourierBasis, coefficients: Tensor) -> Tensor:
    """max |V| + max |V'| + max |V''| over the collocation points: the discrete C^2 norm, for coefficients (..., n)."""
    x = basis.points()
    return torch.stack([(coefficients @ basis.matrix(x, order).T).abs().amax(-1) for order in (0, 1, 2)]).sum(0)
