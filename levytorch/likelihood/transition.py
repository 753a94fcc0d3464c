"""p(dx | x) of a system, for people who want the density itself."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.coefficients.padded import Padding
from levytorch.convert import real_number, real_tensor, shown
from levytorch.errors import InputError
from levytorch.likelihood.exact import ExactLaw

_TOLERANCE = 1e-9


def transition_density(dynamics: Any, x: Any, dx: Any, dt: float) -> Tensor:
    """The density of x_next - x at dx, given x, after a step of dt along which the coefficients vary.

    dynamics: a Dynamics or a Recovery, one-dimensional; x and dx broadcast and may be of any size. D_o dt must not be
    so small that the law is narrower than a few hundredths of the period. On a line x must lie in the window of the
    system, and what leaves it by a jump meets, for the rest of the step, coefficients that are not its own
    (`coefficients.padded`).

    >>> from levytorch import Dynamics
    >>> p = transition_density(Dynamics(b=1.0, D_o=0.5, D_f=0.0, alpha=0.5), x=0.0, dx=0.1, dt=0.1)
    >>> round(float(p) * math.sqrt(0.2 * math.pi), 6)  # Brownian motion with drift, at its mode
    1.0
    """
    head = System(dynamics)
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
    head.check(states)
    with torch.no_grad():
        law = ExactLaw(_TOLERANCE)
        flat = law.log_prob(head, states.reshape(-1).cpu(), jumps.reshape(-1).cpu(), torch.tensor(step))
    return flat.exp().reshape(states.shape)


class System:
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
        self.window = None
        if source.period is None or not math.isfinite(source.period):
            self.window = getattr(source, "window", None) or getattr(getattr(source, "head", None), "window", None)
            if self.window is None:
                raise InputError(
                    f"dynamics must have a period or a window for the exact law, found period {source.period}; set "
                    "window=(low, high) to a part of the line much wider than a step."
                )
        if callable(source.alpha):
            raise InputError(
                "alpha must be one number for the exact law, found a function of x; use log_density, which freezes the "
                "coefficients over the step."
            )
        self.source = source
        if self.window is None:
            self.period, self.origin = float(source.period), float(getattr(source, "origin", 0.0))
        else:
            self.padding = Padding.of(self.window)
            self.period, self.origin = self.padding.period, self.padding.origin
        self.alpha = torch.tensor(float(source.alpha), dtype=torch.float64)
        self.tempering = torch.tensor(float(getattr(source, "tempering", 0.0)), dtype=torch.float64)

    def check(self, x: Tensor) -> None:
        """Refuse states outside of the window of a line."""
        if self.window is not None and not bool(((x >= self.window[0]) & (x <= self.window[1])).all()):
            raise InputError(
                f"x must lie in the window of the system, {tuple(self.window)}, found {float(x.abs().max()):g}; widen "
                "the window."
            )

    def __call__(self, x: Tensor) -> Coefficients:
        if self.window is None:
            return Coefficients(self.source.b(x), self.source.D_o(x), self.source.D_f(x), self.alpha, self.tempering)
        low, high = self.window
        at = low + torch.remainder(x - low, self.period)
        beyond = (at - high).clamp(min=0.0)
        share = self.padding.share(beyond)
        ends = (
            torch.minimum(at, high + self.padding.beyond(beyond)),
            low - self.padding.beyond(self.padding.gap - beyond),
        )

        def mixed(c: Any) -> Tensor:
            above, below = (torch.as_tensor(c(end), dtype=torch.float64).expand(x.shape) for end in ends)
            return (1 - share) * above + share * below

        values = [mixed(c) for c in (self.source.b, self.source.D_o, self.source.D_f)]
        return Coefficients(values[0], values[1], values[2], self.alpha, self.tempering)
