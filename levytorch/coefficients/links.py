"""Links from a linear predictor eta to a coefficient: identity for the drift, softplus or clamp for D_o and D_f.

`clamp` is Algorithm E.4's: max(floor, eta) on the value, the gradient passed straight through. torch.clamp would
zero the gradient where it clamps, and the parameters could never leave. A learned alpha is a scaled sigmoid, or, as in
the paper's expansion alpha(x) = sum_k theta_4k phi_4k(x), linear in theta and clamped in the same way.
`AlphaSpec` and `TemperingSpec` say which of alpha and the tempering are known, and which are learned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from levytorch.convert import choice, real_array, real_number, shown
from levytorch.errors import InputError

MODES = ("fixed", "constant", "function")
TEMPERINGS = ("fixed", "learn")
FLOOR_D_O = 0.0  # Algorithm E.4, line 2
FLOOR_D_F = 1e-8
TEMPERING_FLOOR = 1e-12  # of lam^(2 alpha): the law is finite there, and no data can tell it from zero
_LEAST_SLOPE = 1e-7  # of eta = raw^2: at raw = 0 itself nothing could move any more
ALPHA_MIN, ALPHA_MAX = 0.03, 0.98  # a learned alpha stays where the law is accurate and the parts are separable


class _StraightThrough(torch.autograd.Function):
    """eta within bounds exactly (eta + (max - eta) would round, and may leave a negative D_f), gradient 1 anywhere."""

    @staticmethod
    def forward(eta: Tensor, floor: float, ceiling: float | None = None) -> Tensor:
        return eta.clamp(min=floor, max=ceiling)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient, None, None


@dataclass(frozen=True)
class Link:
    """value(eta), and what Fisher scoring needs: first and second derivative in eta as the optimiser sees them."""

    name: str
    floor: float = 0.0

    def __call__(self, eta: Tensor) -> Tensor:
        if self.name == "identity":
            return eta
        if self.name == "clamp":
            return _StraightThrough.apply(eta, self.floor, None)
        # the floor keeps D_f > 0 where softplus underflows; it is far below anything that data can tell from zero
        return F.softplus(eta, threshold=36.0) + self.floor

    def derivatives(self, eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(value, first, second derivative)."""
        if self.name == "softplus":
            slope = torch.sigmoid(eta)
            return self(eta), slope, slope * (1.0 - slope)
        return self(eta), torch.ones_like(eta), torch.zeros_like(eta)

    def inverse(self, value: Tensor) -> Tensor:
        """eta with link(eta) = value (values at or below the floor give a small positive coefficient)."""
        if self.name != "softplus":
            return value.clone()
        v = (value - self.floor).clamp(min=1e-12)
        return v + torch.log(-torch.expm1(-v))


LINKS = ("softplus", "clamp")


def positivity(name: str, floor: float) -> Link:
    """The link of D_o or D_f by name."""
    choice("positivity", name, LINKS, "softplus is the default")
    return Link(name, floor if name == "clamp" else 1e-12)


ALPHA_LINKS = ("sigmoid", "clamp")


@dataclass(frozen=True)
class AlphaLink:
    """alpha within its bounds from an unbounded eta: a scaled "sigmoid", or eta itself with a "clamp" (the paper)."""

    name: str = "sigmoid"
    low: float = ALPHA_MIN
    high: float = ALPHA_MAX

    @staticmethod
    def build(name: Any, bounds: Any) -> AlphaLink:
        """From the plain settings alpha_link and alpha_bounds of a head."""
        choice("alpha_link", name, ALPHA_LINKS, "sigmoid is the default, clamp the paper's")
        ends = real_array("alpha_bounds", bounds, "give [low, high] within (0, 1)")
        if ends.shape != (2,) or not 0.0 < ends[0] < ends[1] < 1.0:
            raise InputError(
                f"alpha_bounds must be [low, high] with 0 < low < high < 1, found {shown(bounds)}; the default is "
                f"[{ALPHA_MIN}, {ALPHA_MAX}]."
            )
        return AlphaLink(name, float(ends[0]), float(ends[1]))

    def config(self) -> dict[str, Any]:
        """Plain settings; none where they are the default ones."""
        return {} if self == SIGMOID else {"alpha_link": self.name, "alpha_bounds": [self.low, self.high]}

    def __call__(self, eta: Tensor) -> Tensor:
        if self.name == "clamp":
            return _StraightThrough.apply(eta, self.low, self.high)
        return self.low + (self.high - self.low) * torch.sigmoid(eta)

    def derivatives(self, eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Value, first and second derivative."""
        if self.name == "clamp":
            return self(eta), torch.ones_like(eta), torch.zeros_like(eta)
        sigma, span = torch.sigmoid(eta), self.high - self.low
        slope = sigma * (1 - sigma)
        return self.low + span * sigma, span * slope, span * slope * (1 - 2 * sigma)

    def inverse(self, alpha: float) -> float:
        """eta of a start value; a start outside of the bounds is moved into them (a sigmoid has no eta at its ends)."""
        if self.name == "clamp":
            return min(max(alpha, self.low), self.high)
        margin = min(1e-3, 0.25 * (self.high - self.low))
        u = (min(max(alpha, self.low + margin), self.high - margin) - self.low) / (self.high - self.low)
        return math.log(u / (1 - u))


SIGMOID = AlphaLink()


def tempering_link(raw: Tensor, alpha: float, length: float) -> tuple[Tensor, Tensor, Tensor]:
    """lam = (raw^2)^(1 / (2 alpha)) / length: value, first and second derivative.

    alpha is where the fit starts: near zero the likelihood is smooth in eta = lam^(2 alpha), not in lam
    (`law/tempered_line.py`). Where the data wants no tempering the likelihood is a parabola in raw with its top at
    zero, at which Newton's steps arrive at once; a link with its zero at infinity would take a pass for every factor of
    e.
    """
    p = 0.5 / alpha
    eta, slope = tempering_eta(raw)
    lam = eta**p / length
    first = p * lam / eta
    return lam, first * slope, first * ((p - 1.0) / eta * slope * slope + 2.0)


def tempering_eta(raw: Tensor) -> tuple[Tensor, Tensor]:
    """eta = (lam length)^(2 alpha) and d eta / d raw."""
    slope = 2.0 * raw.detach()
    return raw * raw + TEMPERING_FLOOR, torch.where(slope.abs() < _LEAST_SLOPE, _LEAST_SLOPE, slope)


def tempering_of(eta: float, alpha: float, length: float) -> float:
    """lam of eta; infinite where it is beyond all numbers."""
    try:
        return float(eta ** (0.5 / alpha) / length)
    except OverflowError:
        return math.inf


def tempering_inverse(lam: float, alpha: float, length: float) -> float:
    """raw of a start value."""
    return math.sqrt(max((lam * length) ** (2.0 * alpha) - TEMPERING_FLOOR, 1e-10))


@dataclass(frozen=True)
class AlphaSpec:
    """alpha is fixed (known), constant (one learned number) or a function of x; `value`: it, or where it starts.

    link: how a learned alpha follows from its parameters, and its bounds.
    """

    mode: str = "fixed"
    value: float = 0.5
    link: AlphaLink = SIGMOID

    @staticmethod
    def parse(alpha: object) -> AlphaSpec:
        """A number (known), "learn" or "constant" (one learned number), "function" (alpha(x))."""
        if isinstance(alpha, AlphaSpec):
            return alpha
        if isinstance(alpha, str):
            mode = {"learn": "constant", "constant": "constant", "function": "function"}.get(alpha)
            if mode is None:
                raise InputError(
                    f'alpha must be a number in (0, 1), "learn" or "function", found {shown(alpha)}; give one of these.'
                )
            return AlphaSpec(mode)
        value = real_number("alpha", alpha, 'give a number in (0, 1), "learn" or "function"')
        if not 0.0 < value < 1.0:
            raise InputError(
                f"alpha must lie in (0, 1) (half the stability index of the noise), found {value}; "
                "divide a stability index by two."
            )
        return AlphaSpec("fixed", value)

    @property
    def learned(self) -> bool:
        return self.mode != "fixed"


@dataclass(frozen=True)
class TemperingSpec:
    """Jumps beyond 1 / lam are exponentially rare; one lam for all states.

    `value`: lam in the units of the data, or where a learned one starts; 0 and fixed is the stable law.
    """

    mode: str = "fixed"
    value: float = 0.0

    @staticmethod
    def parse(tempering: object) -> TemperingSpec:
        """A number >= 0 (known; 0 for none), or "learn"."""
        if isinstance(tempering, TemperingSpec):
            return tempering
        if isinstance(tempering, str):
            if tempering != "learn":
                raise InputError(
                    f'tempering must be a number >= 0 or "learn", found {shown(tempering)}; give one of these.'
                )
            return TemperingSpec("learn")
        value = real_number("tempering", tempering, 'give a number >= 0 or "learn"')
        if value < 0:
            raise InputError(
                f"tempering must be >= 0 (a rate per unit of x), found {value}; 0 means that jumps are not truncated."
            )
        return TemperingSpec("fixed", value)

    @staticmethod
    def build(mode: str, value: float) -> TemperingSpec:
        """From the plain settings of a head."""
        return TemperingSpec(choice("tempering_mode", mode, TEMPERINGS), TemperingSpec.parse(value).value)

    @property
    def learned(self) -> bool:
        return self.mode == "learn"

    @property
    def active(self) -> bool:
        return self.learned or self.value > 0

    def config(self) -> dict[str, float | str]:
        """Plain settings; none where there is no tempering."""
        return {"tempering_mode": self.mode, "tempering": self.value} if self.active else {}
