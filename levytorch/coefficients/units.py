"""Internal units: heads work with numbers of order one whatever the units of the data.

With a length s and a time T, b = b' s / T, D_o = D_o' s^2 / T and D_f = D_f' s^(2 alpha) / T. Choosing s as the width
of one step also removes most of the correlation between D_f and a learned alpha: D_f' is then the jump mass per step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from levytorch.errors import InputError


@dataclass(frozen=True)
class Units:
    """A length and a time; Units() are the data's own units, as in the paper."""

    length: float = 1.0
    time: float = 1.0

    def __post_init__(self) -> None:
        for name in ("length", "time"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise InputError(
                    f"units.{name} must be positive and finite, found {value!r}; leave it out to use the data's."
                )

    @property
    def b(self) -> float:
        return self.length / self.time

    @property
    def D_o(self) -> float:
        return self.length**2 / self.time

    @property
    def log_length(self) -> float:
        return math.log(self.length)

    def D_f(self, alpha: Tensor) -> Tensor:
        """Unit of D_f; depends on alpha, which may be one per sample."""
        return (2.0 * self.log_length * alpha).exp() / self.time
