"""MLP heads: one small network per coefficient, or one with a shared trunk, on features of the state.

On a circle the inputs are cos(k w x) and sin(k w x), k up to `n_features`. With `periodic=False` the input is x scaled
to [-1, 1] over the cell; outside the cell the network extrapolates. On a line (period=None) it is x scaled to [-1, 1]
over the window, at whose ends it stays: coefficients are constant beyond.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from levytorch.coefficients.links import AlphaSpec
from levytorch.coefficients.network import NetworkHead, parameters_of_features
from levytorch.convert import choice, switch, whole_number


class Sine(nn.Module):
    """sin(x) as an activation."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x)


class Residual(nn.Module):
    """h + f(h)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.layers(h)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "silu": nn.SiLU, "gelu": nn.GELU, "sine": Sine}
TRAINED = ("all", "last_layer")


class MLPHead(NetworkHead):
    """Networks of `depth` hidden layers, `width` wide.

    shared_trunk: one network with a common trunk for all coefficients instead of one network for each. activation:
    "tanh", "silu", "gelu" or "sine". residual: hidden layers after the first add to what they are given. trained:
    "all", or "last_layer": Fisher scoring leaves all other layers as they are.
    """

    def __init__(
        self,
        width: int = 16,
        depth: int = 2,
        period: float | Sequence[float] | None = 2 * math.pi,
        origin: float | Sequence[float] = 0.0,
        periodic: bool = True,
        n_features: int = 2,
        dim: int = 1,
        window: Any = None,
        activation: str = "silu",
        shared_trunk: bool = False,
        residual: bool = False,
        trained: str = "all",
        alpha: AlphaSpec | None = None,
        **options: Any,
    ) -> None:
        for name, value in (("width", width), ("depth", depth), ("n_features", n_features)):
            whole_number(f"{name} of an MLP head", value, 1, 4096, "try 16, 2 and 2")
        asked = switch("periodic", periodic)
        super().__init__(
            None,
            alpha or AlphaSpec(),
            period,
            origin,
            window,
            n_features if asked and period is not None else 0,
            dim,
            **options,
        )
        self.width, self.depth, self.asked_features = int(width), int(depth), int(n_features)
        self.activation = choice("activation", activation, tuple(ACTIVATIONS))
        self.shared_trunk, self.residual = switch("shared_trunk", shared_trunk), switch("residual", residual)
        if self.shared_trunk:
            self.nets = nn.ModuleDict({"all": self._network(self.n_outputs)})
        else:
            names = self.output_names
            self.nets = nn.ModuleDict({name: self._network(names.count(name)) for name in dict.fromkeys(names)})
        if choice("trained", trained, TRAINED) == "last_layer":
            self.fixed = parameters_of_features(self)
        self.start_at_order_one()

    def _network(self, outputs: int) -> nn.Sequential:
        sizes = [self.n_inputs] + [self.width] * self.depth
        layers: list[nn.Module] = []
        for k, (a, c) in enumerate(itertools.pairwise(sizes)):
            both = nn.Linear(a, c, dtype=torch.float64), ACTIVATIONS[self.activation]()
            layers += [Residual(*both)] if self.residual and k else both
        return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs, dtype=torch.float64))

    def penalty_groups(self) -> list[list[str]]:
        """One per layer of every network, of its weights and biases; the last biases are free."""
        groups: list[list[str]] = []
        for name, net in self.nets.items():
            layers = [key for key, module in net.named_modules() if isinstance(module, nn.Linear)]
            groups += [[f"nets.{name}.{key}.weight", f"nets.{name}.{key}.bias"] for key in layers[:-1]]
            groups.append([f"nets.{name}.{layers[-1]}.weight"])
        return groups

    def last_groups(self) -> list[list[str]]:
        return self.penalty_groups()[self.depth :: self.depth + 1]

    def config(self) -> dict[str, Any]:
        domain: dict[str, Any] = {"period": self.period, "origin": self.origin}
        if not self.repeats:
            domain |= {"window": [list(w) for w in self.bounds] if self.dim > 1 else list(self.window)}
        if self.period is None:
            del domain["origin"]
        net: dict[str, Any] = {
            "width": self.width,
            "depth": self.depth,
            "periodic": self.periodic,
            "n_features": self.asked_features,
        }
        net |= {"activation": self.activation, "shared_trunk": self.shared_trunk, "residual": self.residual}
        if self.fixed:
            net["trained"] = "last_layer"
        return ({} if self.dim == 1 else {"dim": self.dim}) | domain | {"name": "mlp"} | net | self.settings()

    def set_predictors(self, eta: Mapping[str, Tensor]) -> None:
        """Near constants: the output bias carries the value, the output weights are made small, not zero."""
        values = {name: eta[name] for name in dict.fromkeys(self.output_names)}
        if self.shared_trunk:
            values = {"all": torch.cat(list(values.values()))}
        for name, value in values.items():
            last = self.nets[name][-1]  # type: ignore[index]
            before = [m for m in self.nets[name].modules() if isinstance(m, nn.Linear)][-2]
            half = self.width // 2
            before.weight[half : 2 * half] = before.weight[:half]
            before.bias[half : 2 * half] = before.bias[:half]
            last.weight[:, half : 2 * half] = -last.weight[:, :half]
            last.weight[:, 2 * half :] = 0.0
            last.bias.copy_(value)
        self._set_more(eta)

    def raw(self, x: Tensor) -> Tensor:
        u = self.inputs(x)
        return torch.cat([net(u) for net in self.nets.values()], dim=1)
