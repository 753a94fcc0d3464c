"""ValueFunction: V as a Fourier series, with its uncertainty, that can be called, differentiated, saved and loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients.basis import FourierBasis
from levytorch.convert import real_tensor, shown, whole_number
from levytorch.errors import InputError
from levytorch.policy import saved

_FORMAT = "levytorch.value.1"


@dataclass(frozen=True, repr=False)
class ValueFunction:
    """V(x) = sum_m c_m phi_m(x) with beta V = r + b V' + D_o V'' - D_f (-Lap)^alpha V.

    Call it at any x (tensor, array or number; a float64 tensor of x's shape comes back). On a `window` it means
    something inside the window only. `residual` is max |(beta - L) V - r| between the collocation points, relative to
    max |r|; `change` how much V moved when the resolution was last doubled (None when n_modes was given).
    """

    coefficients: Tensor
    period: float
    origin: float
    beta: float
    window: tuple[float, float] | None = None
    residual: float = float("nan")
    condition: float = float("nan")
    change: float | None = None
    converged: bool = True
    # V's covariance is Phi S S^T Phi^T: exact and positive semi-definite, and no larger than the parameters ask for
    covariance_factor: Tensor | None = None

    def __repr__(self) -> str:
        where = f"period={self.period:g}" if self.window is None else "window=({:g}, {:g})".format(*self.window)
        return (
            f"ValueFunction(n_modes={self.n_modes}, {where}, beta={self.beta:g}, residual={self.residual:.2g}, "
            f"converged={self.converged})"
        )

    @property
    def n_modes(self) -> int:
        return int(self.coefficients.shape[-1])

    @property
    def basis(self) -> FourierBasis:
        return FourierBasis(self.n_modes, self.period, self.origin)

    def __call__(self, x: Tensor | np.ndarray | float) -> Tensor:
        return self.derivative(x, order=0)

    def derivative(self, x: Tensor | np.ndarray | float, order: int = 1) -> Tensor:
        """d^order V / dx^order at x."""
        order = _order(order)
        return self._chunked(x, lambda part: self.basis.matrix(part, order) @ self.coefficients)

    def fractional_laplacian(self, x: Tensor | np.ndarray | float, alpha: float | Tensor) -> Tensor:
        """((-Lap)^alpha V)(x); alpha a number or one per point."""
        at = real_tensor("x", x)
        power = real_tensor("alpha", alpha, "pass half the stability index")
        if not bool(((power > 0) & (power <= 1)).all()):
            raise InputError(f"alpha must lie in (0, 1], but is {shown(alpha)}; pass half the stability index.")
        if power.ndim and power.shape != at.shape:
            raise InputError(
                f"alpha must be a number or of x's shape {tuple(at.shape)}, but has shape {tuple(power.shape)}; "
                "pass one "
                "per point."
            )
        symbol = self.basis.symbol(power)
        return (self.basis.matrix(at) * symbol * self.coefficients).sum(-1)

    def std(self, x: Tensor | np.ndarray | float, order: int = 0) -> Tensor:
        """Standard deviation of V (or of a derivative) at x, from the covariance of the recovered coefficients (delta
        method).
        """
        factor, order = self.covariance_factor, _order(order)
        if factor is None:
            raise InputError(
                "V.std needs the covariance of recovered coefficients, but this V comes from coefficients without one; "
                "solve from a Recovery whose engine gives standard errors (engine='fisher')."
            )
        return self._chunked(x, lambda part: (self.basis.matrix(part, order) @ factor).norm(dim=-1))

    def _chunked(self, x: Tensor | np.ndarray | float, f: Callable[[Tensor], Tensor]) -> Tensor:
        at = real_tensor("x", x)
        flat = at.reshape(-1)
        # 800,000 empirical points times 1000 modes would be 6 GB at once
        step = max(1, (1 << 22) // self.n_modes)
        if flat.numel() <= step:
            return f(at)
        return torch.cat([f(part) for part in flat.split(step)]).reshape(at.shape)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write V to one file (tensors and numbers only).

        An earlier file is replaced only once the new one is complete.
        """
        return saved.save(self, _FORMAT, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ValueFunction:
        """Read what `save` wrote. Nothing in the file is executed (weights-only loading)."""
        return saved.load(cls, _FORMAT, path, _is_sound)


def _is_sound(content: Mapping[str, Any]) -> bool:
    coefficients, factor = content["coefficients"], content["covariance_factor"]
    return (
        isinstance(coefficients, Tensor)
        and coefficients.ndim == 1
        and (factor is None or (isinstance(factor, Tensor) and factor.ndim == 2 and len(factor) == len(coefficients)))
        and all(isinstance(content[name], float) for name in ("period", "origin", "beta"))
    )


def _order(order: int) -> int:
    return whole_number("order", order, 0, 32, "give the order of the derivative")
