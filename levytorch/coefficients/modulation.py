"""m(c): what multiplies D_o and D_f where a covariate c quickens and slows everything; positive and periodic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients.basis import FourierBasis
from levytorch.convert import positive_number, real_tensor, whole_number

MOST = 99
_TENSORS = ("theta", "covariance", "centers")


@dataclass(frozen=True)
class ModulationSpec:
    """period: of the covariate; n_basis: functions of log m with the constant, which is not free."""

    period: float
    n_basis: int = 9

    def __post_init__(self) -> None:
        remedy = "give the period of the covariate, 24 for hours of the day"
        object.__setattr__(self, "period", positive_number("modulation", self.period, remedy))
        whole_number("n_modulation", self.n_basis, 2, MOST, "9 is the default")


@dataclass
class Modulation:
    """m(c), with its standard error; its mean over the data is one.

    theta: (K,) of log m, a Fourier series without its constant; covariance: (K, K); centers: (K,) means of m times each
    function over the data; log_mean: of exp(series) there.
    """

    period: float
    theta: Tensor
    covariance: Tensor
    centers: Tensor
    log_mean: float

    def __call__(self, c: Any) -> Tensor:
        """m at c, which has mean one over the data."""
        at = real_tensor("covariate", c)
        return (self._rows(at) @ self.theta - self.log_mean).exp().reshape(at.shape)

    def std(self, c: Any) -> Tensor:
        """Standard error of m at c."""
        at = real_tensor("covariate", c)
        rows = self._rows(at) - self.centers
        return self(at) * ((rows @ self.covariance) * rows).sum(-1).clamp(min=0.0).sqrt().reshape(at.shape)

    def _rows(self, c: Tensor) -> Tensor:
        return functions(c.reshape(-1), self.period, len(self.theta)).T

    def plain(self) -> dict[str, Any]:
        """As numbers and lists, for a file."""
        tensors = {name: getattr(self, name).tolist() for name in _TENSORS}
        return {"period": self.period, "log_mean": self.log_mean, **tensors}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Modulation:
        """The inverse of `plain`."""
        tensors = {name: torch.tensor(plain[name], dtype=torch.float64) for name in _TENSORS}
        return cls(float(plain["period"]), log_mean=float(plain["log_mean"]), **tensors)


def functions(c: Tensor, period: float, n: int) -> Tensor:
    """The n functions of log m at c (m,), without the constant: (n, m)."""
    return FourierBasis(n + 1, period).rows(c)[1:]
