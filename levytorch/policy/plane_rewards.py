"""Rewards in two dimensions by name: products of cosines, and the reward of a given V (manufactured)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from levytorch.errors import ConfigError, InputError
from levytorch.policy.plane import PlaneOperator, Torus, torus
from levytorch.policy.rewards import CosinePower, RewardContext, build_reward
from levytorch.policy.value import PlaneValue

_MODES = 256


class CosineProduct:
    """prod_i amplitude cos^power(2 pi frequency (x_i - shift) / period_i), the amplitude once."""

    def __init__(self, cell: Torus, power: int = 3, frequency: int = 1, shift: float = 0.0, amplitude: float = 1.0):
        self.factors = [CosinePower(power, frequency, shift, p, 1.0) for p in cell.period]
        self.amplitude = amplitude

    def __call__(self, x: Tensor) -> Tensor:
        return self.amplitude * self.factors[0](x[..., 0]) * self.factors[1](x[..., 1])


class PlaneManufactured:
    """r = beta V - L V for a given V and the true dynamics, so that V is the value function of r."""

    def __init__(self, V: Any, dynamics: Any, beta: float) -> None:
        if callable(dynamics.alpha):
            raise InputError(
                "a manufactured reward in the plane needs a constant alpha, found alpha(x); give a number."
            )
        self.dynamics, self.beta, self.cell = dynamics, float(beta), torus(dynamics)
        n = 32
        while True:
            operator = PlaneOperator(self.cell, n)
            c = operator.forward(V(self.cell.points(n)).numpy()) / n**2
            size = abs(c).max()
            outer = operator.square > 0.25 * operator.square.max()
            if abs(c[outer]).max() < 1e-13 * size:
                break
            n *= 2
            if n > _MODES:
                raise InputError("The manufactured V must be smooth and periodic, found one that is not; change it.")
        c[abs(c) < 1e-15 * size] = 0.0  # rounding, which L would multiply by |k|^2
        symbols = (1.0, -operator.square, operator.symbol(dynamics.alpha))
        self.V, self.laplacian, self.fractional = (
            PlaneValue(torch.from_numpy(c * s), self.cell.period, self.cell.origin, self.beta) for s in symbols
        )

    def __call__(self, x: Tensor) -> Tensor:
        d = self.dynamics
        drift = (d.b(x) * self.V.gradient(x)).sum(-1)
        return self.beta * self.V(x) - drift - d.D_o(x) * self.laplacian(x) + d.D_f(x) * self.fractional(x)


def check_plane_reward(config: Mapping[str, Any]) -> None:
    """Refuse a reward that has no form in the plane."""
    if config["name"] not in ("cosine_power", "manufactured", "callable"):
        raise ConfigError(
            "reward must be cosine_power, manufactured or callable in two dimensions, found "
            f"{config['name']!r}; choose one."
        )
    if config.get("period") is not None:
        raise ConfigError(
            f"reward.period must be left open in two dimensions, where it is that of the cell, found "
            f"{config['period']!r}; remove it."
        )


def build_plane_reward(config: Mapping[str, Any], source: Any, truth: Any, beta: float) -> Any:
    """The reward of a configuration: cosine_power and manufactured are products over the coordinates."""
    check_plane_reward(config)
    settings = {k: v for k, v in config.items() if k != "name" and v is not None}
    name = config["name"]
    if name == "callable":
        return build_reward(config, RewardContext(source.period, source.origin, beta, truth, None))
    product = CosineProduct(torus(source), **settings)
    return product if name == "cosine_power" else PlaneManufactured(product, truth, beta)
