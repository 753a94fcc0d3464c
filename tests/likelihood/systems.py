"""Systems with known transition densities, as coefficient functions on a cell, and what is known of them."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Coefficients

D = torch.float64


class Functions:
    """Coefficient functions with a cell: what the exact law needs of a head."""

    def __init__(self, function, period=2 * math.pi, origin=0.0) -> None:
        self.function, self.period, self.origin = function, period, origin

    def __call__(self, x: Tensor) -> Coefficients:
        b, D_o, D_f, alpha = self.function(x)
        b, D_o, D_f = (torch.as_tensor(v, dtype=D).expand(x.shape) for v in (b, D_o, D_f))
        return Coefficients(b, D_o, D_f, torch.as_tensor(alpha, dtype=D))


def constant(b, D_o, D_f, alpha, **cell) -> Functions:
    return Functions(lambda x: (b, D_o, D_f, alpha), **cell)


def smooth(alpha) -> Functions:
    """All three coefficients vary, none is symmetric."""
    return Functions(
        lambda x: (
            4 * torch.cos(x) + torch.sin(2 * x),
            torch.exp(0.5 * torch.sin(x + 1) + 1),
            2 + torch.exp(0.7 * torch.sin(2 * x) * torch.cos(x)),
            alpha,
        )
    )


def of_parameters(theta: Tensor) -> Functions:
    """theta (16,): three series of two harmonics, D_o and D_f through exp, and alpha."""

    def function(x: Tensor):
        basis = torch.stack([torch.ones_like(x), torch.cos(x), torch.sin(x), torch.cos(2 * x), torch.sin(2 * x)])
        b, log_D_o, log_D_f = theta[:15].reshape(3, 5) @ basis
        return 4 * b, torch.exp(1 + 0.4 * log_D_o), torch.exp(1 + 0.4 * log_D_f), theta[15]

    return Functions(function)


def restoring(rate: float, D_o: float, D_f: float, alpha: float) -> Functions:
    """b = -rate x to 1e-9 for |x| < 0.6: the series of arcsin in sin x, which is a trigonometric polynomial."""

    def b(x: Tensor) -> Tensor:
        s, term, total = torch.sin(x), torch.sin(x), torch.zeros_like(x)
        for k in range(14):
            total = total + term / (2 * k + 1)
            term = term * s * s * (2 * k + 1) / (2 * k + 2)
        return -rate * total

    return Functions(lambda x: (b(x), D_o, D_f, alpha))


def restoring_density(x, dx, rate, D_o, D_f, alpha, dt):
    """The Ornstein-Uhlenbeck process with stable jumps, from its characteristic function

    exp(iu x e^{-rt} - D_o u^2 (1 - e^{-2rt}) / 2r - D_f |u|^(2a) (1 - e^{-2art}) / 2ar).
    """
    nodes, weights = np.polynomial.legendre.leggauss(2000)
    s = (nodes + 1) / 2
    top = math.sqrt(40 / (D_o * (1 - math.exp(-2 * rate * dt)) / (2 * rate)))
    u, w = top * s**4, weights / 2 * top * 4 * s**3  # |u|^(2 alpha) is singular at 0
    exponent = -D_o * u**2 * (1 - math.exp(-2 * rate * dt)) / (2 * rate)
    exponent -= D_f * u ** (2 * alpha) * (1 - math.exp(-2 * alpha * rate * dt)) / (2 * alpha * rate)
    away = np.asarray(x + dx - x * math.exp(-rate * dt))
    return (np.cos(np.multiply.outer(away, u)) * np.exp(exponent) * w).sum(-1) / math.pi
