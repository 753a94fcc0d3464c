"""The real Fourier basis of one periodic cell, and what the generator does to it.

With s = x - origin and k_m = 2 pi m / period the basis is 1, cos k_1 s, sin k_1 s, cos k_2 s, ...; an even `n_modes`
ends with a cosine. Every operator of the generator acts on it in closed form, (-Lap)^alpha by |k|^(2 alpha): no
circulant or complex matrix is formed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from levytorch.convert import real_number, whole_number
from levytorch.errors import InputError

MOST_MODES = 1 << 14  # n_modes^2 numbers are held at once: 2 GB


@dataclass(frozen=True)
class FourierBasis:
    """`n_modes` real Fourier functions on [origin, origin + period); as many collocation points as functions."""

    n_modes: int
    period: float = 2 * math.pi
    origin: float = 0.0

    def __post_init__(self) -> None:
        # plain numbers, also of a tensor or a NumPy number
        n_modes = whole_number("n_modes", self.n_modes, 1, MOST_MODES, "give the number of Fourier modes")
        period = real_number("period", self.period, "give the length of the cell")
        origin = real_number("origin", self.origin, "give the left end of the cell")
        if not period > 0:
            raise InputError(f"period must be a positive number, but is {period!r}; give the length of the cell.")
        for name, value in (("n_modes", n_modes), ("period", period), ("origin", origin)):
            object.__setattr__(self, name, value)

    @property
    def wavenumbers(self) -> Tensor:
        """k of every basis function, (n_modes,)."""
        return (torch.arange(1, self.n_modes + 1, dtype=torch.float64) // 2) * (2 * math.pi / self.period)

    def points(self) -> Tensor:
        """Collocation points, (n_modes,): equally spaced, starting at the origin."""
        return self.origin + torch.arange(self.n_modes, dtype=torch.float64) * (self.period / self.n_modes)

    def grid(self, n: int) -> Tensor:
        """`n` equally spaced points of the cell, half a spacing away from the origin."""
        return self.origin + (torch.arange(n, dtype=torch.float64) + 0.5) * (self.period / n)

    def matrix(self, x: Tensor, order: int = 0) -> Tensor:
        """The derivative of the given order of every basis function at x: (..., n_modes) for x of shape (...)."""
        # |x| may be 1e10: reduced to the cell first, or cos and sin lose their argument
        s = torch.remainder(x - self.origin, self.period)
        k = self.wavenumbers.to(x.device)
        angle = s[..., None] * k[1::2]
        cos, sin = angle.cos(), angle.sin()
        turned = (cos, -sin, -cos, sin)  # the derivatives of cos in turn; the third is sin itself
        out = x.new_zeros((*x.shape, self.n_modes))
        if order == 0:
            out[..., 0] = 1.0
        out[..., 1::2] = turned[order % 4]
        out[..., 2::2] = turned[(order + 3) % 4][..., : (self.n_modes - 1) // 2]
        return out if order == 0 else out * k**order

    def symbol(self, alpha: Tensor, log_power: int = 0) -> Tensor:
        """|k|^(2 alpha), the symbol of (-Lap)^alpha, or its `log_power`-th derivative in alpha: (..., n_modes)."""
        k = self.wavenumbers.to(alpha.device)
        log_k = k[1:].log()
        rest = torch.exp(2 * alpha[..., None] * log_k) * (2 * log_k) ** log_power
        return torch.cat(
            [rest.new_zeros((*alpha.shape, 1)), rest], dim=-1
        )  # constants are in the kernel for every alpha > 0
