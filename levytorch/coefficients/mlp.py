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
from levytorch.coefficients.head import KNOWABLE, Coefficients, Head, Units
from levytorch.coefficients.links import (
    FLOOR_D_F,
    FLOOR_D_O,
    AlphaSpec,
    Link,
    TemperingSpec,
    positivity,
    tempering_inverse,
    tempering_link,
)
from levytorch.coefficients.spline import check_windows
from levytorch.convert import shown, switch, whole_number
from levytorch.errors import InputError


class MLPHead(Head):
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
        super().__init__()
        self.dim, self.known = dim, dict(known or {})
        self.tempering_spec = tempering or TemperingSpec()
        for name, value in (("width", width), ("depth", depth), ("n_features", n_features)):
            whole_number(f"{name} of an MLP head", value, 1, 4096, "try 16, 2 and 3")
        self.width, self.depth, self.n_features = int(width), int(depth), int(n_features)
        self.periodic = switch("periodic", periodic) and period is not None
        if period is None:
            windows = check_windows(window, dim)
            cell = [(high - low, low) for low, high in windows]
            self.window = windows[0] if dim == 1 else windows
        elif window is not None:
            raise InputError(f"window is for a state on a line, found {shown(window)} and a period; leave one out.")
        else:
            cell = list(zip(per_coordinate("period", period, dim), per_coordinate("origin", origin, dim)))
        for p, o in cell:
            check_basis(2 * n_features + 1, p, o)
        self.features = [FourierBasis(2 * n_features + 1, p, o) for p, o in cell]
        self.period, self.origin = (v[0] if dim == 1 else tuple(v) for v in zip(*cell))
        if period is None:
            self.period = None
        self.alpha_spec, self.units, self.positivity_link = alpha or AlphaSpec(), units or Units(), positivity_link
        self.links = (Link("identity"), positivity(positivity_link, FLOOR_D_O), positivity(positivity_link, FLOOR_D_F))
        names = ["b", *(name for name in KNOWABLE if name not in self.known)]
        names += ["alpha"] if self.alpha_spec.mode == "function" else []
        self.nets = nn.ModuleDict({name: self._network(dim if name == "b" else 1) for name in names})
        if self.alpha_spec.mode == "constant":
            start = self.alpha_spec.link.inverse(self.alpha_spec.value)
            self.raw_alpha = nn.Parameter(torch.tensor(start, dtype=torch.float64))
        if self.tempering_spec.learned:
            self.raw_tempering = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.set_constants(0.0, self.units.D_o, float(self.units.D_f(torch.tensor(self.alpha_spec.value))))

    def _network(self, outputs: int) -> nn.Sequential:
        sizes = [self.dim * (2 * self.n_features if self.periodic else 1)] + [self.width] * self.depth
        layers: list[nn.Module] = []
        for a, c in itertools.pairwise(sizes):
            layers += [nn.Linear(a, c, dtype=torch.float64), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs, dtype=torch.float64))

    def config(self) -> dict[str, Any]:
        cell: dict[str, Any] = {"period": self.period, "origin": self.origin}
        if self.period is None:
            cell = {"period": None, "window": [list(w) for w in self.bounds] if self.dim > 1 else list(self.window)}
        return (
            ({} if self.dim == 1 else {"dim": self.dim})
            | cell
            | self.tempering_spec.config()
            | dict(self.known)
            | {
                "name": "mlp",
                "width": self.width,
                "depth": self.depth,
                "periodic": self.periodic,
                "n_features": self.n_features,
                "positivity": self.positivity_link,
                "alpha_mode": self.alpha_spec.mode,
                "alpha": self.alpha_spec.value,
                **self.alpha_spec.link.config(),
                "length": self.units.length,
                "time": self.units.time,
            }
        )

    @torch.no_grad()
    def set_constants(
        self,
        b: float | Sequence[float],
        D_o: float,
        D_f: float,
        alpha: float | None = None,
        tempering: float | None = None,
    ) -> None:
        """Start near constants: the output bias carries the value, the output weights are made small, not zero."""
        a = self.alpha_spec.value if alpha is None else alpha
        unit_f = float(self.units.D_f(torch.tensor(a, dtype=torch.float64)))
        drift = [v / self.units.b for v in per_coordinate("b", b, self.dim)]
        values = {"b": drift, "D_o": [D_o / self.units.D_o], "D_f": [D_f / unit_f]}
        for link, (name, value) in zip(self.links, values.items()):
            if name in self.nets:
                self._set_output(name, link.inverse(torch.tensor([float(v) for v in value], dtype=torch.float64)))
        if self.alpha_spec.mode == "function":
            self._set_output("alpha", torch.tensor([self.alpha_spec.link.inverse(a)], dtype=torch.float64))
        elif self.alpha_spec.mode == "constant":
            self.raw_alpha.fill_(self.alpha_spec.link.inverse(a))
        if self.tempering_spec.learned:
            lam = self.tempering_spec.value if tempering is None else tempering
            self.raw_tempering.fill_(tempering_inverse(lam, self.alpha_spec.value, self.units.length))

    def _set_output(self, name: str, bias: Tensor) -> None:
        last = self.nets[name][-1]  # type: ignore[index]
        last.weight.mul_(0.1 / last.weight.abs().max().clamp(min=1e-12))
        last.bias.copy_(bias)

    def inputs(self, x: Tensor) -> Tensor:
        x = self.place(x)
        columns = [x] if self.dim == 1 else list(x.T)
        if self.periodic:
            parts = [f.rows(c.contiguous()).T[:, 1:] for f, c in zip(self.features, columns)]
        else:
            parts = [(2.0 * (c - f.origin) / f.period - 1.0).unsqueeze(-1) for f, c in zip(self.features, columns)]
        return parts[0].contiguous() if self.dim == 1 else torch.cat(parts, dim=1)

    def forward(self, x: Tensor) -> Coefficients:
        u = self.inputs(self.states(x))
        shape = x.shape if self.dim == 1 else x.shape[:-1]
        out = {name: net(u).reshape(x.shape if name == "b" else shape) for name, net in self.nets.items()}
        if self.alpha_spec.mode == "function":
            alpha = self.alpha_spec.link(out["alpha"])
        elif self.alpha_spec.mode == "constant":
            alpha = self.alpha_spec.link(self.raw_alpha)
        else:
            alpha = torch.tensor(self.alpha_spec.value, dtype=torch.float64, device=x.device)
        if self.tempering_spec.learned:
            tempering = tempering_link(self.raw_tempering, self.alpha_spec.value, self.units.length)[0]
        else:
            tempering = torch.tensor(self.tempering_spec.value, dtype=torch.float64, device=x.device)
        D_o, D_f = (u.new_full(shape, self.known.get(name, 0.0)) for name in KNOWABLE)
        if "D_o" in out:
            D_o = self.links[1](out["D_o"]) * self.units.D_o
        if "D_f" in out:
            D_f = self.links[2](out["D_f"]) * self.units.D_f(alpha)
        return Coefficients(out["b"] * self.units.b, D_o, D_f, alpha, tempering)
