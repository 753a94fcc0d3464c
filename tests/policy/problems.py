"""Systems with known answers that the policy tests share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from levytorch.dynamics import Dynamics


def smooth(alpha: float = 0.3) -> Dynamics:
    """Analytic coefficients: V converges spectrally."""
    return Dynamics(
        b=lambda x: torch.sin(x),
        D_o=lambda x: 0.3 + 0.2 * torch.cos(x),
        D_f=lambda x: 0.5 + 0.3 * torch.sin(x),
        alpha=alpha,
    )


def smooth_reward(x: Tensor) -> Tensor:
    return torch.exp(torch.cos(x))


def cos3(x: Tensor) -> Tensor:
    return torch.cos(2 * x) ** 3


def cos3_reward(dynamics: Dynamics, beta: float, x: Tensor) -> Tensor:
    """beta V - L V for V = cos^3(2x) = (3 cos 2x + cos 6x) / 4, written out by hand."""
    a = dynamics.alpha_at(x)
    V1 = -(6 * torch.sin(2 * x) + 6 * torch.sin(6 * x)) / 4
    V2 = -(12 * torch.cos(2 * x) + 36 * torch.cos(6 * x)) / 4
    jump = (3 * 2 ** (2 * a) * torch.cos(2 * x) + 6 ** (2 * a) * torch.cos(6 * x)) / 4
    return beta * cos3(x) - dynamics.b(x) * V1 - dynamics.D_o(x) * V2 + dynamics.D_f(x) * jump


class LinearRecovery:
    """The surface of a Recovery: b, log D_o, log D_f and alpha are linear in theta, with a covariance that is given."""

    period, origin, dim = 2 * math.pi, 0.0, 1

    def __init__(self, theta: Tensor | None = None, alpha_of_x: bool = False, sd: float = 0.02) -> None:
        start = torch.tensor([1.0, 0.3, -0.2, 0.5, 0.2, 0.1, 0.0, -0.1, 0.3, 0.4, 0.05], dtype=torch.float64)
        self.theta = start if theta is None else theta
        self.alpha_of_x = alpha_of_x
        mixing = torch.randn(11, 11, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        self.covariance = sd**2 * (mixing @ mixing.T) / 11

    def moved(self, theta: Tensor) -> LinearRecovery:
        return LinearRecovery(theta, self.alpha_of_x)

    @staticmethod
    def _phi(x: Tensor) -> Tensor:
        return torch.stack([torch.ones_like(x), x.cos(), x.sin()], dim=-1)

    def b(self, x: Tensor) -> Tensor:
        return self._phi(x) @ self.theta[0:3]

    def D_o(self, x: Tensor) -> Tensor:
        return (self._phi(x) @ self.theta[3:6]).exp()

    def D_f(self, x: Tensor) -> Tensor:
        return (self._phi(x) @ self.theta[6:9]).exp()

    def alpha_at(self, x: Tensor) -> Tensor:
        return self.theta[9] + (self.theta[10] * x.cos() if self.alpha_of_x else torch.zeros_like(x))

    @property
    def alpha(self):  # a float or a function, as in Recovery
        return self.alpha_at if self.alpha_of_x else float(self.theta[9])

    def jacobian(self, x: Tensor) -> tuple[Tensor, ...]:
        out = tuple(x.new_zeros((len(x), 11)) for _ in range(4))
        phi = self._phi(x)
        out[0][:, 0:3] = phi
        out[1][:, 3:6] = phi * self.D_o(x)[:, None]
        out[2][:, 6:9] = phi * self.D_f(x)[:, None]
        out[3][:, 9] = 1.0
        if self.alpha_of_x:
            out[3][:, 10] = x.cos()
        return out
