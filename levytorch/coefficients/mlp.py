"""MLP heads: one small network per coefficient on periodic input features cos(k w x), sin(k w x).

With `periodic=False` the input is x scaled to [-1, 1] over the cell; outside the cell the network extrapolates. On a
line (period=None) it is x scaled to [-1, 1] over the window, at whose ends it stays: coefficients are constant beyond.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from levytorch.coefficients.basis import FourierBasis, check_basis, per_coordinate
from levytorch.coefficients.head import KNOWABLE, Coefficients, LinkedHead, Units
from levytorch.coefficients.links import AlphaSpec, TemperingSpec
from levytorch.convert import shown, switch, whole_number
from levytorch.errors import InputError
from levytorch.spaces.splines import check_windows


class MLPHead(LinkedHead):
    """Three (or four, with alpha(x)) tanh networks of `depth` hidden layers, `width` wide."""

    def __init__(
        self,
        width: int = 16,
        depth: int = 2,
        period: float | Sequence[float] | None = 2 * math.pi,
        origin: float | Sequence[float] = 0.0,
        periodic: bool = True,
        n_features: int = 3,
        positivity_link: str = "softplus",
        alpha: AlphaSpec | None = None,
        units: Units | None = None,
        dim: int = 1,
        window: Any = None,
        tempering: TemperingSpec | None = None,
        known: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(dim, positivity_link, alpha, units, tempering, known)
        for name, value in (("width", width), ("depth", depth), ("n_features", n_features)):
            whole_number(f"{name} of an MLP head", value, 1, 4096, "try 16, 2 and 3")
        self.width, self.depth, self.n_features = int(width), int(depth), int(n_features)
        self.periodic = switch("periodic", periodic) and period is not None
        if period is None:
            windows = check_windows(window, dim)
            sides = [(high - low, low) for low, high in windows]
            self.window = windows[0] if dim == 1 else windows
        elif window is not None:
            raise InputError(f"window must be left out beside a period, found {shown(window)}; leave one of them out.")
        else:
            sides = list(zip(per_coordinate("period", period, dim), per_coordinate("origin", origin, dim)))
        for p, o in sides:
            check_basis(2 * n_features + 1, p, o)
        self.features = [FourierBasis(2 * n_features + 1, p, o) for p, o in sides]
        self.period, self.origin = (v[0] if dim == 1 else tuple(v) for v in zip(*sides))
        if period is None:
            self.period = None
        names = ["b", *(name for name in KNOWABLE if name not in self.known)]
        names += ["alpha"] if self.alpha_spec.mode == "function" else []
        self.nets = nn.ModuleDict({name: self._network(dim if name == "b" else 1) for name in names})
        if self.alpha_spec.mode == "constant":
            self.raw_alpha = nn.Parameter(torch.zeros((), dtype=torch.float64))
        if self.tempering_spec.learned:
            self.raw_tempering = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.start_at_order_one()

    def in_units(self, units: Units) -> MLPHead:
        new = super().in_units(units)
        new.features = [basis.in_units(units.length) for basis in self.features]
        return new

    def _network(self, outputs: int) -> nn.Sequential:
        sizes = [self.dim * (2 * self.n_features if self.periodic else 1)] + [self.width] * self.depth
        layers: list[nn.Module] = []
        for a, c in itertools.pairwise(sizes):
            layers += [nn.Linear(a, c, dtype=torch.float64), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs, dtype=torch.float64))

    def config(self) -> dict[str, Any]:
        domain: dict[str, Any] = {"period": self.period, "origin": self.origin}
        if self.period is None:
            domain = {"period": None, "window": [list(w) for w in self.bounds] if self.dim > 1 else list(self.window)}
        net = {name: getattr(self, name) for name in ("width", "depth", "periodic", "n_features")}
        return ({} if self.dim == 1 else {"dim": self.dim}) | domain | {"name": "mlp"} | net | self.settings()

    def set_predictors(self, eta: Mapping[str, Tensor]) -> None:
        """Near constants: the output bias carries the value, the output weights are made small, not zero."""
        for name in self.nets:
            last = self.nets[name][-1]  # type: ignore[index]
            last.weight.mul_(0.1 / last.weight.abs().max().clamp(min=1e-12))
            last.bias.copy_(eta[name])
        if self.alpha_spec.mode == "constant":
            self.raw_alpha.fill_(eta["alpha"][0])
        if self.tempering_spec.learned:
            self.raw_tempering.fill_(eta["tempering"][0])

    def inputs(self, x: Tensor) -> Tensor:
        x = self.clamped(x)
        columns = [x] if self.dim == 1 else list(x.T)
        if self.periodic:
            parts = [f.rows(c.contiguous()).T[:, 1:] for f, c in zip(self.features, columns)]
        else:
            parts = [(2.0 * (c - f.origin) / f.period - 1.0).unsqueeze(-1) for f, c in zip(self.features, columns)]
        return parts[0].contiguous() if self.dim == 1 else torch.cat(parts, dim=1)

    def forward(self, x: Tensor) -> Coefficients:
        u = self.inputs(self.states(x))
        shape = x.shape if self.dim == 1 else x.shape[:-1]
        eta = {name: net(u).reshape(x.shape if name == "b" else shape) for name, net in self.nets.items()}
        if self.alpha_spec.mode == "constant":
            eta["alpha"] = self.raw_alpha
        if self.tempering_spec.learned:
            eta["tempering"] = self.raw_tempering
        return self.coefficients_of(eta)
