"""Links from a linear predictor eta to a coefficient: identity for the drift, softplus or clamp for D_o and D_f.

`clamp` is Algorithm E.4's: max(floor, eta) on the value, the gradient passed straight through. torch.clamp would
zero the gradient where it clamps, and the parameters could never leave. A learned alpha is a scaled sigmoid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from levytorch.convert import choice

FLOOR_D_O = 0.0  # Algorithm E.4, line 2
FLOOR_D_F = 1e-8
TEMPERING_FLOOR = 1e-12  # of lam^(2 alpha): the law is finite there, and no data can tell it from zero
_LEAST_SLOPE = 1e-7  # of eta = raw^2: at raw = 0 itself nothing could move any more
ALPHA_MIN, ALPHA_MAX = 0.03, 0.98  # a learned alpha stays where the law is accurate and the parts are separable


class _StraightThrough(torch.autograd.Function):
    """max(floor, eta) exactly (eta + (max - eta) would round, and may leave a negative D_f), gradient 1 everywhere."""

    @staticmethod
    def forward(eta: Tensor, floor: float) -> Tensor:
        return eta.clamp(min=floor)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


@dataclass(frozen=True)
class Link:
    """value(eta), and what Fisher scoring needs: first and second derivative in eta as the optimiser sees them."""

    name: str
    floor: float = 0.0

    def __call__(self, eta: Tensor) -> Tensor:
        if self.name == "identity":
            return eta
        if self.name == "clamp":
            return _StraightThrough.apply(eta, self.floor)
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


def alpha_link(eta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """alpha in (ALPHA_MIN, ALPHA_MAX) from an unbounded eta: value, first and second derivative."""
    sigma = torch.sigmoid(eta)
    span = ALPHA_MAX - ALPHA_MIN
    slope = sigma * (1 - sigma)
    return ALPHA_MIN + span * sigma, span * slope, span * slope * (1 - 2 * sigma)


def alpha_inverse(alpha: float) -> float:
    """eta of a start value; starts outside the admissible range are moved just inside."""
    u = (min(max(alpha, ALPHA_MIN + 1e-3), ALPHA_MAX - 1e-3) - ALPHA_MIN) / (ALPHA_MAX - ALPHA_MIN)
    return math.log(u / (1 - u))


def tempering_link(raw: Tensor, alpha: float, length: float) -> tuple[Tensor, Tensor, Tensor]:
    """lam = (raw^2)^(1 / (2 alpha)) / length: value, first and second derivative.

    alpha is where the fit starts: near zero the likelihood is smooth in eta = lam^(2 alpha), not in lam
    (`law/tempered.py`). Where the data wants no tempering the likelihood is a parabola in raw with its top at zero, at
    which Newton's steps arrive at once; a link with its zero at infinity would take a pass for every factor of e.
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


def tempering_inverse(lam: float, alpha: float, length: float) -> float:
    """raw of a start value."""
    return math.sqrt(max((lam * length) ** (2.0 * alpha) - TEMPERING_FLOOR, 1e-10))
