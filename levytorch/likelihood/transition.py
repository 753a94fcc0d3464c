"""p(dx | x) of a system, for people who want the density itself."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.convert import real_number, real_tensor, shown
from levytorch.errors import InputError
from levytorch.likelihood.exact import ExactLaw

_TOLERANCE = 1e-9


def transition_density(dynamics: Any, x: Any, dx: Any, dt: float) -> Tensor:
    """The density of x_next - x at dx, given x, after a step of dt along which the coefficients vary.

    dynamics: a Dynamics or a Recovery, one-dimensional with a period; x and dx broadcast and may be of any size. D_o dt
    must not be so small that the law is narrower than a few hundredths of the period.

    >>> from levytorch import Dynamics
    >>> p = transition_density(Dynamics(b=1.0, D_o=0.5, D_f=0.0, alpha=0.5), x=0.0, dx=0.1, dt=0.1)
    >>> round(float(p) * math.sqrt(0.2 * math.pi), 6)  # Brownian motion with drift, at its mode
    1.0
    """
    head = _System(dynamics)
    step = real_number("dt", dt, "give the time between two observations")
    if not step > 0:
        raise InputError(f"dt must be positive, found {shown(dt)}; give the time between two observations.")
    points = {"x": real_tensor("x", x), "dx": real_tensor("dx", dx)}
    for name, value in points.items():
        if not bool(torch.isfinite(value).all()):
            raise InputError(f"{name} must be finite, found a NaN or infinity; remove such entries.")
    try:
        states, jumps = torch.broadcast_tensors(*points.values())
    except RuntimeError:
        shapes = " and ".join(str(tuple(v.shape)) for v in points.values())
        raise InputError(
            f"x and dx must broadcast, found shapes {shapes}; give one dx per x, or one for all."
        ) from None
    with torch.no_grad():
        law = ExactLaw(_TOLERANCE)
        flat = law.log_prob(head, states.reshape(-1).cpu(), jumps.reshape(-1).cpu(), torch.tensor(step))
    return flat.exp().reshape(states.shape)


class _System:
    """A Dynamics or a Recovery as coefficient functions on a cell."""

    def __init__(self, source: Any) -> None:
        missing = [name for name in ("b", "D_o", "D_f", "alpha", "period") if not hasattr(source, name)]
        if missing:
            raise InputError(
                f"dynamics must be a Dynamics or a Recovery, found a {type(source).__name__} without "
                f"{', '.join(missing)}; build one with Dynamics(...) or recover(...)."
            )
        if getattr(source, "dim", 1) != 1:
            raise InputError(
                f"dynamics must have dim = 1 for the exact law, found dim = {source.dim}; use log_density, which "
                "freezes the coefficients over the step."
            )
        if source.period is None or not math.isfinite(source.period):
            raise InputError(
                f"dynamics must have a period for the exact law, found {source.period}; set period= to a cell much "
                "wider than a step."
            )
        if callable(source.alpha):
            raise InputError(
                "alpha must be one number for the exact law, found a function of x; use log_density, which freezes the "
                "coefficients over the step."
            )
        self.source, self.period = source, float(source.period)
        self.origin = float(getattr(source, "origin", 0.0))
        self.alpha = torch.tensor(float(source.alpha), dtype=torch.float64)
        self.tempering = torch.tensor(float(getattr(source, "tempering", 0.0)), dtype=torch.float64)

    def __call__(self, x: Tensor) -> Coefficients:
        return Coefficients(self.source.b(x), self.source.D_o(x), self.source.D_f(x), self.alpha, self.tempering)
