"""Fourier heads (equation 3.3): every coefficient is a link of a linear predictor eta = Phi(x) theta.

The linearity is what Fisher scoring lives on: scores in the coefficients chain to theta through one diagonal factor and
the basis. Rows of theta, in order: b, D_o, D_f (K each), then alpha (none, 1 or K_alpha).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from levytorch.coefficients.alpha import AlphaSpec, alpha_inverse, alpha_link
from levytorch.coefficients.basis import FourierBasis
from levytorch.coefficients.head import Coefficients, Head
from levytorch.coefficients.links import FLOOR_D_F, FLOOR_D_O, Link, positivity
from levytorch.coefficients.units import Units


class Chain(NamedTuple):
    """Coefficients at n states and how they move with the predictors: slope (C, n), curvature (C, n).

    `D_f_alpha` is d D_f / d alpha at fixed eta (the unit of D_f depends on alpha); zero when alpha is fixed.
    """

    coefficients: Coefficients
    slope: Tensor
    curvature: Tensor
    D_f_alpha: Tensor


class FourierHead(Head):
    """K basis functions per coefficient; K = 1 gives constants."""

    def __init__(
        self,
        n_basis: int = 21,
        period: float = 2 * math.pi,
        origin: float = 0.0,
        positivity_link: str = "softplus",
        alpha: AlphaSpec | None = None,
        n_basis_alpha: int = 3,
        units: Units | None = None,
    ) -> None:
        super().__init__()
        self.basis = FourierBasis(n_basis, period, origin)
        self.alpha_spec = alpha or AlphaSpec()
        n_alpha = {"fixed": 0, "constant": 1, "function": n_basis_alpha}[self.alpha_spec.mode]
        self.alpha_basis = FourierBasis(n_alpha, period, origin) if n_alpha else None
        self.units = units or Units()
        self.positivity_link = positivity_link
        self.links = (
            Link("identity"),
            positivity(positivity_link, FLOOR_D_O),
            positivity(positivity_link, FLOOR_D_F),
        )
        self.period, self.origin = self.basis.period, self.basis.origin
        self.theta = nn.Parameter(torch.zeros(3 * n_basis + n_alpha, dtype=torch.float64))
        self.set_constants(0.0, self.units.D_o, float(self.units.D_f(torch.tensor(self.alpha_spec.value))))

    # -- structure ----------------------------------------------------------------------------------------------------
    @property
    def n_basis(self) -> int:
        return self.basis.n_basis

    @property
    def n_predictors(self) -> int:
        return 3 if self.alpha_basis is None else 4

    @property
    def sizes(self) -> list[int]:
        """Number of parameters of each predictor."""
        return [self.n_basis] * 3 + ([self.alpha_basis.n_basis] if self.alpha_basis else [])

    @property
    def is_constant(self) -> bool:
        return max(self.sizes) == 1

    def config(self) -> dict[str, Any]:
        return {
            "name": "fourier",
            "n_basis": self.n_basis,
            "period": self.period,
            "origin": self.origin,
            "positivity": self.positivity_link,
            "alpha_mode": self.alpha_spec.mode,
            "alpha": self.alpha_spec.value,
            "n_basis_alpha": self.alpha_basis.n_basis if self.alpha_basis else 3,
            "length": self.units.length,
            "time": self.units.time,
        }

    @torch.no_grad()
    def set_constants(self, b: float, D_o: float, D_f: float, alpha: float | None = None) -> None:
        """Coefficients that do not depend on x, in physical units."""
        a = self.alpha_spec.value if alpha is None else alpha
        unit_f = float(self.units.D_f(torch.tensor(a, dtype=torch.float64)))
        values = (b / self.units.b, D_o / self.units.D_o, D_f / unit_f)
        self.theta.zero_()
        for row, (link, value) in enumerate(zip(self.links, values)):
            self.theta[row * self.n_basis] = link.inverse(torch.tensor(float(value), dtype=torch.float64))
        if self.alpha_basis is not None:
            self.theta[3 * self.n_basis] = alpha_inverse(a)

    # -- evaluation ---------------------------------------------------------------------------------------------------
    def forward(self, x: Tensor) -> Coefficients:
        flat = x.reshape(-1).to(torch.float64)
        phi = self.basis.evaluate(flat)
        eta = phi @ self.theta[: 3 * self.n_basis].reshape(3, -1).T
        alpha = self._alpha(flat, phi)
        b = eta[:, 0] * self.units.b
        D_o = self.links[1](eta[:, 1]) * self.units.D_o
        D_f = self.links[2](eta[:, 2]) * self.units.D_f(alpha)
        return Coefficients(*(c.reshape(x.shape) if c.dim() else c for c in (b, D_o, D_f, alpha)))

    def _alpha(self, x: Tensor, phi: Tensor) -> Tensor:
        if self.alpha_basis is None:
            return torch.tensor(self.alpha_spec.value, dtype=phi.dtype, device=phi.device)
        raw = self.theta[3 * self.n_basis :]
        if self.alpha_basis.n_basis == 1:
            return alpha_link(raw[0])[0]
        return alpha_link(self.alpha_basis.evaluate(x) @ raw)[0]

    def design(self, x: Tensor) -> list[Tensor]:
        """Basis rows (K_c, n) of each predictor; the first three share one tensor."""
        phi = self.basis.rows(x)
        if self.alpha_basis is None:
            return [phi, phi, phi]
        rows = phi[: self.alpha_basis.n_basis] if self.alpha_basis.n_basis <= self.n_basis else self.alpha_basis.rows(x)
        return [phi, phi, phi, rows]

    def chain(self, theta: Tensor, design: list[Tensor]) -> Chain:
        """Coefficients, d c / d eta and d2 c / d eta2 at the states behind `design`, without autograd."""
        K = self.n_basis
        eta = theta[: 3 * K].reshape(3, K) @ design[0]
        n = eta.shape[1]
        slope = torch.empty((self.n_predictors, n), dtype=eta.dtype, device=eta.device)
        curvature = torch.zeros_like(slope)
        alpha = torch.tensor(self.alpha_spec.value, dtype=eta.dtype, device=eta.device)
        D_f_alpha = torch.zeros((), dtype=eta.dtype, device=eta.device)
        if self.alpha_basis is not None:
            constant = self.alpha_basis.n_basis == 1
            eta_alpha = theta[3 * K] if constant else theta[3 * K :] @ design[3]
            alpha, slope[3], curvature[3] = alpha_link(eta_alpha)
        unit_f = self.units.D_f(alpha)
        D_o, slope_o, curve_o = self.links[1].derivatives(eta[1])
        D_f, slope_f, curve_f = self.links[2].derivatives(eta[2])
        slope[0] = self.units.b
        torch.mul(slope_o, self.units.D_o, out=slope[1])
        torch.mul(slope_f, unit_f, out=slope[2])
        torch.mul(curve_o, self.units.D_o, out=curvature[1])
        torch.mul(curve_f, unit_f, out=curvature[2])
        D_f = D_f * unit_f
        if self.alpha_basis is not None:
            D_f_alpha = 2.0 * self.units.log_length * D_f
        return Chain(Coefficients(eta[0] * self.units.b, D_o * self.units.D_o, D_f, alpha), slope, curvature, D_f_alpha)

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        flat = x.reshape(-1).to(torch.float64)
        design = self.design(flat)
        chain = self.chain(self.theta.detach(), design)
        K, P = self.n_basis, self.theta.numel()
        out = torch.zeros((4, flat.shape[0], P), dtype=torch.float64)
        for row in range(3):
            out[row, :, row * K : (row + 1) * K] = (chain.slope[row] * design[row]).T
        if self.alpha_basis is not None:
            out[3, :, 3 * K :] = (chain.slope[3] * design[3]).T
            out[2, :, 3 * K :] = (chain.D_f_alpha * chain.slope[3] * design[3]).T
        return out[0], out[1], out[2], out[3]
