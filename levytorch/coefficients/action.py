"""Coefficients of a state and a continuous action: products of Fourier functions of x and low polynomials of a."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from levytorch.coefficients.basis import FourierBasis
from levytorch.coefficients.fourier import FourierHead
from levytorch.coefficients.head import AlphaSpec, Coefficients, Head


class ActionBasis:
    """phi_k(x) P_j(u), u = a scaled to [-1, 1] over the logged range; x and a are the columns of a state (n, 2)."""

    def __init__(self, states: FourierBasis, n_action: int, low: float, high: float) -> None:
        self.states, self.n_action, self.low, self.high = states, n_action, low, high
        self.period, self.origin = states.period, states.origin

    @property
    def size(self) -> int:
        return self.states.size * self.n_action

    def rows(self, x: Tensor) -> Tensor:
        """(n, 2) -> (K, n); the constant is first."""
        phi, u = self.states.rows(x[:, 0].contiguous()), 2 * (x[:, 1] - self.low) / (self.high - self.low) - 1
        P = [torch.ones_like(u), u]
        for j in range(1, self.n_action - 1):  # Legendre
            P.append(((2 * j + 1) * u * P[j] - j * P[j - 1]) / (j + 1))
        return (phi.unsqueeze(1) * torch.stack(P[: self.n_action])).reshape(self.size, -1)

    def harmonic_numbers(self) -> Tensor:
        """What a roughness penalty weighs: waves in x; a polynomial is smooth by itself."""
        return self.states.harmonic_numbers().repeat_interleave(self.n_action)


class ActionHead(FourierHead):
    """b, D_o, D_f of (x, a), linear predictors over an ActionBasis; states are rows (x, a)."""

    columns = 2

    def __init__(self, n_basis: int, n_action: int, low: float, high: float, **same: Any) -> None:
        super().__init__(n_basis, **same)
        assert isinstance(self.basis, FourierBasis)
        self.n_action, self.low, self.high = n_action, low, high
        self.basis = self.drift = ActionBasis(self.basis, n_action, low, high)
        self.theta = nn.Parameter(torch.zeros(sum(self.sizes), dtype=torch.float64))
        self.set_constants(0.0, self.units.D_o, float(self.units.D_f(torch.tensor(self.alpha_spec.value))))

    def states(self, x: Tensor) -> Tensor:
        return x.to(torch.float64).reshape(-1, 2)

    def grid(self, n: int) -> Tensor:
        side = max(2, round(n**0.5))
        unit = (torch.arange(side, dtype=torch.float64) + 0.5) / side
        axes = (self.origin + self.period * unit, self.low + (self.high - self.low) * unit)
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, 2)

    def forward(self, x: Tensor) -> Coefficients:
        """Without gradients: these heads are fitted by scoring, through `chain`."""
        with torch.no_grad():
            return self.chain(self.theta, self.design(self.states(x))).coefficients

    def config(self) -> dict[str, Any]:
        kept = {key: value for key, value in super().config().items() if key not in ("name", "n_basis_alpha")}
        return kept | {"n_action": self.n_action, "low": self.low, "high": self.high}


class HeldHead(Head):
    """The coefficients of an ActionHead where the action is a function of x: a head of x alone, same parameters."""

    def __init__(self, head: ActionHead, action: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.of_pairs, self.action = head, action
        self.period, self.origin = head.period, head.origin

    @property
    def alpha_spec(self) -> AlphaSpec:
        return self.of_pairs.alpha_spec

    def forward(self, x: Tensor) -> Coefficients:
        return self.of_pairs(self._pairs(x))

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.of_pairs.jacobian(self._pairs(x))

    def _pairs(self, x: Tensor) -> Tensor:
        return torch.stack([x, self.action(x).expand(x.shape)], dim=-1)
