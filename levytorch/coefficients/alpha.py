"""alpha: fixed (known), constant (learned) or a function of x with a head of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from levytorch.convert import real_number, shown
from levytorch.errors import InputError

ALPHA_MIN, ALPHA_MAX = 0.03, 0.98  # a learned alpha stays where the law is accurate and the parts are separable
MODES = ("fixed", "constant", "function")


@dataclass(frozen=True)
class AlphaSpec:
    """How alpha is treated; `value` is the known alpha, or the start of a learned one."""

    mode: str = "fixed"
    value: float = 0.5

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
