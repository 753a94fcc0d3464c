"""Networks as heads: any nn.Module that maps states to raw outputs, and how its outputs move with its parameters.

The raw outputs are predictors, in units in which they are of order one; the links of every head of our own make b, D_o,
D_f and alpha of them. Fisher scoring asks a network for three things: the predictors at some states, the Jacobian of
these in all parameters, and its product with given numbers from the left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

from levytorch.coefficients.head import Coefficients, Head, LinkedHead, Units
from levytorch.coefficients.links import AlphaSpec, TemperingSpec
from levytorch.coefficients.product import product_windows
from levytorch.convert import shown, whole_number
from levytorch.errors import InputError
from levytorch.spaces.basis import FourierBasis, check_basis, per_coordinate
from levytorch.spaces.splines import check_windows

_CHUNK = 1 << 22  # numbers of a Jacobian that are computed at once where there is no rule by layers


class NetworkHead(LinkedHead):
    """A module of your own as a head: `NetworkHead(module, alpha=0.6)`.

    module: maps (n, d) states to (n, d + 2) raw outputs, those of b (one per coordinate), D_o and D_f, and one more for
    alpha="function". It is turned to float64. b is the first output times a unit; D_o and D_f are softplus functions
    of theirs times units, so that any real number is allowed.
    period, origin, window: as of every head (a line: period=None and a window). n_features: on a circle the module is
    given cos(k w x) and sin(k w x) up to that k, 2 d n_features columns, and is then periodic; 0: the states, scaled to
    [-1, 1] over the cell or the window.

    Fisher scoring keeps all weights small that the data do not ask for, one strength per layer; biases of the last
    layer are free.

    >>> module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    >>> head = NetworkHead(module, alpha=0.6, n_features=2)
    >>> [tuple(c.shape) for c in head(torch.linspace(0, 6, 5))], head.flat().numel()
    ([(5,), (5,), (5,), ()], 67)
    """

    def __init__(
        self,
        module: nn.Module | None,
        alpha: AlphaSpec | float | str = 0.5,
        period: float | Sequence[float] | None = 2 * math.pi,
        origin: float | Sequence[float] = 0.0,
        window: Any = None,
        n_features: int = 0,
        dim: int = 1,
        tempering: TemperingSpec | float | str | None = None,
        **options: Any,
    ) -> None:
        tempered = TemperingSpec.parse(tempering) if tempering is not None else None
        super().__init__(dim, alpha=AlphaSpec.parse(alpha), tempering=tempered, **options)
        self.n_features = whole_number("n_features of a network", n_features, 0, 4096, "try 3")
        self._place(period, origin, window)
        self.periodic = self.n_features > 0 and period is not None
        if module is not None:
            self.module = module.to(torch.float64)
            self.shift = nn.Parameter(torch.zeros(self.n_outputs, dtype=torch.float64))
        self._more_parameters()
        if module is not None:
            self._check_module()
            self.start_at_order_one()

    def _place(self, period: Any, origin: Any, window: Any) -> None:
        """The cell or the window, and the functions of the state that a network is given."""
        dim = self.dim
        periods, origins = per_coordinate("period", period, dim), per_coordinate("origin", origin, dim)
        if None in periods:
            windows = check_windows(window, dim) if period is None else product_windows(periods, origins, window)
            origins = tuple(low for low, _ in windows)
            self.window = windows[0] if dim == 1 else windows
        elif window is not None:
            raise InputError(f"window must be left out beside a period, found {shown(window)}; leave one of them out.")
        size = 2 * max(self.n_features, 1) + 1
        for p, o in zip(periods, origins):
            if p is not None:
                check_basis(size, p, o)
        self.features = [None if p is None else FourierBasis(size, p, o) for p, o in zip(periods, origins)]
        self.origin = origins[0] if dim == 1 else origins
        self.period = periods[0] if dim == 1 else None if period is None else periods

    def in_units(self, units: Units) -> Self:
        new = super().in_units(units)
        new.features = [None if basis is None else basis.in_units(units.length) for basis in self.features]
        return new

    def _more_parameters(self) -> None:
        if self.alpha_spec.mode == "constant":
            self.raw_alpha = nn.Parameter(torch.zeros((), dtype=torch.float64))
        if self.tempering_spec.learned:
            self.raw_tempering = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def _check_module(self) -> None:
        x = self.grid(4)
        with torch.no_grad():
            found = self.module(self.inputs(self.states(x)))
        want = (x.shape[0], self.n_outputs)
        if not isinstance(found, Tensor) or tuple(found.shape) != want:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"the module must return {want[1]} raw outputs per state ({', '.join(self.output_names)}), found "
                f"{shape} for {want[0]} states; change its last layer."
            )
        if self.period is not None and not self.periodic:
            low, high = (torch.tensor(end, dtype=torch.float64).reshape(1, -1) for end in zip(*self.bounds))
            first, last = (self.module(self._scaled(end)) for end in (low, high))
            self.periodic = bool(torch.allclose(first, last, rtol=1e-9, atol=1e-9))

    # -- structure ----------------------------------------------------------------------------------------------------
    @property
    def output_names(self) -> list[str]:
        """Which predictors the network gives, in order; b is there once for every coordinate, D_o for every row."""
        left_out = {"tempering", *self.known} | ({"alpha"} if self.alpha_spec.mode != "function" else set())
        return [name for name in self.layout.names if name not in left_out]

    @property
    def n_outputs(self) -> int:
        return len(self.output_names)

    @property
    def output_rows(self) -> list[int]:
        """Which predictor each of the outputs is, as scores are ordered."""
        given = set(self.output_names)
        return [row for row, name in enumerate(self.layout.names) if name in given]

    @property
    def starts(self) -> dict[str, int]:
        """Where every parameter begins in `flat`."""
        names, sizes = zip(*[(name, p.numel()) for name, p in self.named_parameters()])
        return dict(zip(names, [0, *itertools.accumulate(sizes)]))

    def penalty_groups(self) -> list[list[str]]:
        """Names of the parameters that share the strength of a prior; those in no group have none."""
        by_layer: dict[str, list[str]] = {}
        for name, _ in self.named_parameters():
            if name.startswith("module."):
                by_layer.setdefault(name.rpartition(".")[0], []).append(name)
        return list(by_layer.values())

    def last_groups(self) -> list[list[str]]:
        """Those of them that belong to last layers."""
        return self.penalty_groups()[-1:]

    def config(self) -> dict[str, Any]:
        raise InputError(
            "a head must be one of levytorch's own to be written to a file, found a NetworkHead around a module; save "
            "its state_dict() and build it yourself."
        )

    def set_predictors(self, eta: Mapping[str, Tensor]) -> None:
        """Near constants: on average over the cell the outputs are these."""
        x = self.grid(64 if self.dim == 1 else 400)
        now = self.raw(self.states(x)).mean(0) - self.shift
        wanted = torch.cat([eta[name] for name in dict.fromkeys(self.output_names)])
        self.shift.copy_(wanted - now)
        self._set_more(eta)

    def _set_more(self, eta: Mapping[str, Tensor]) -> None:
        if self.alpha_spec.mode == "constant":
            self.raw_alpha.fill_(eta["alpha"][0])
        if self.tempering_spec.learned:
            self.raw_tempering.fill_(eta["tempering"][0])

    # -- evaluation ---------------------------------------------------------------------------------------------------
    def inputs(self, x: Tensor) -> Tensor:
        """What the network is given at states: (n, columns)."""
        x = self.clamped(x)
        scaled = self._scaled(x if self.dim > 1 else x.unsqueeze(-1))
        if self.n_features == 0 or self.period is None:
            return scaled
        columns = [x] if self.dim == 1 else list(x.T)
        parts = [
            scaled[:, i : i + 1] if waves is None else waves.rows(column.contiguous()).T[:, 1:]
            for i, (waves, column) in enumerate(zip(self.features, columns))
        ]
        return parts[0].contiguous() if self.dim == 1 else torch.cat(parts, dim=1)

    @property
    def n_inputs(self) -> int:
        """Columns of `inputs`."""
        waves = self.n_features > 0 and self.period is not None
        return sum(2 * self.n_features if waves and p is not None else 1 for p in self.periods)

    def _scaled(self, columns: Tensor) -> Tensor:
        scaled = [2.0 * (x - low) / (high - low) - 1.0 for x, (low, high) in zip(columns.unbind(1), self.bounds)]
        return torch.stack(scaled, dim=1)

    def raw(self, x: Tensor) -> Tensor:
        """The outputs at states, (n, n_outputs)."""
        return self.module(self.inputs(x)) + self.shift

    def forward(self, x: Tensor) -> Coefficients:
        shape, names = x.shape if self.dim == 1 else x.shape[:-1], self.output_names
        eta = self.by_name(self.raw(self.states(x)).T.reshape(len(names), *shape))
        if self.alpha_spec.mode == "constant":
            eta["alpha"] = self.raw_alpha
        if self.tempering_spec.learned:
            eta["tempering"] = self.raw_tempering
        return self.coefficients_of(eta)

    def by_name(self, outputs: Tensor) -> dict[str, Tensor]:
        """Outputs (n_outputs, ...) as `coefficients_of` takes them."""
        rows: dict[str, list[Tensor]] = {}
        for name, row in zip(self.output_names, outputs):
            rows.setdefault(name, []).append(row)
        eta = {name: torch.stack(own, dim=-1 if name == "b" else 0) for name, own in rows.items()}
        single = {"alpha"} | ({"b"} if self.dim == 1 else set())
        return eta | {name: rows[name][0] for name in single if name in rows}

    def tempering_slope(self) -> Tensor:
        out = torch.zeros_like(self.flat())
        if self.tempering_spec.learned:
            out[self.starts["raw_tempering"]] = self.tempering_response(self.raw_tempering.detach())[1]
        return out

    def eta(self, x: Tensor) -> Tensor:
        """All predictors at states, (C, n), in the order of scores; zero rows for what is known."""
        raw = self.raw(x).T
        out = raw.new_zeros((self.n_predictors, raw.shape[1]))
        out[self.output_rows] = raw
        if self.alpha_spec.mode == "constant":
            out[self.layout.row("alpha")] = self.raw_alpha
        if self.tempering_spec.learned:
            out[-1] = self.raw_tempering
        return out

    def eta_jacobian(self, x: Tensor) -> Tensor:
        """d eta / d theta at states, (C, n, P)."""
        n, P = x.shape[0], self.flat().numel()
        out = torch.zeros((self.n_predictors, n, P), dtype=torch.float64)
        out[self.output_rows] = raw_jacobian(self, x)
        if self.alpha_spec.mode == "constant":
            out[self.layout.row("alpha"), :, self.starts["raw_alpha"]] = 1.0
        if self.tempering_spec.learned:
            out[-1, :, self.starts["raw_tempering"]] = 1.0
        return out

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        at = self.states(x)
        with torch.no_grad():
            eta = self.eta(at)
        J, d, m, layout = self.eta_jacobian(at), self.dim, self.n_linear, self.layout
        alpha_row = None
        if self.learns_alpha:
            alpha_row = eta[m] if self.alpha_spec.mode == "function" else eta[m, 0]
        chain = self.respond(eta[:m], alpha_row, eta[-1, 0])
        out = chain.slope.unsqueeze(-1) * J
        alpha = out[m] if self.learns_alpha else torch.zeros_like(out[0])
        if chain.D_f_alpha.dim():
            out[m - 1] += chain.D_f_alpha.unsqueeze(-1) * alpha
        D_o = layout.noise.jacobian(layout.noise_rows(chain.coefficients), out[layout.rows("D_o")])
        return out[0] if d == 1 else out[:d].transpose(0, 1), D_o, out[m - 1], alpha


def penalty_groups(head: Head) -> list[list[str]]:
    """Names of parameters that share a strength: those of a network say so, others have one per linear layer."""
    if isinstance(head, NetworkHead):
        return head.penalty_groups()
    layers = [name for name, module in head.named_modules() if isinstance(module, nn.Linear)]
    groups = [[f"{name}.{key}" for key, _ in head.get_submodule(name).named_parameters()] for name in layers]
    if groups:
        groups[-1] = [name for name in groups[-1] if not name.endswith(".bias")]
    return groups


def parameters_of_features(head: Head) -> frozenset[str]:
    """Names of the parameters in all layers of a head before the last: what its last layer is given depends on them."""
    last = head.last_groups() if isinstance(head, NetworkHead) else penalty_groups(head)[-1:]
    return frozenset(name for group in penalty_groups(head) if group not in last for name in group)


def raw_jacobian(head: NetworkHead, x: Tensor) -> Tensor:
    """d raw / d theta at states, (n_outputs, n, P).

    Where all parameters sit in linear layers, each used once, it is made layer by layer: one forward pass, and one
    backward pass per output gives the slopes in what every layer has added up, for all states at once. Otherwise state
    by state, vectorised.
    """
    parameters = dict(head.named_parameters())
    layers = {name: m for name, m in head.named_modules() if isinstance(m, nn.Linear)}
    inside = {f"{name}.{key}" for name, m in layers.items() for key, _ in m.named_parameters()}
    plain = set(parameters) - inside - {"shift", "raw_alpha", "raw_tempering"}
    if not plain:
        found = _by_layers(head, x, layers, parameters)
        if found is not None:
            return found
    return _by_states(head, x, parameters)


def _by_layers(
    head: NetworkHead, x: Tensor, layers: Mapping[str, nn.Module], parameters: Mapping[str, Tensor]
) -> Tensor | None:
    """None where a layer is used more than once, or not on rows of states."""
    given: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}
    repeated: list[str] = []

    def hook(name: str) -> Any:
        def keep(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if name in given or output.dim() != 2 or output.shape[0] != x.shape[0]:
                repeated.append(name)
            given[name], sums[name] = args[0].detach(), output

        return keep

    handles = [layer.register_forward_hook(hook(name)) for name, layer in layers.items()]
    try:
        with torch.enable_grad():
            raw = head.raw(x)
    finally:
        for handle in handles:
            handle.remove()
    if repeated:
        return None
    n, P = x.shape[0], sum(p.numel() for p in parameters.values())
    starts = head.starts
    out = torch.zeros((raw.shape[1], n, P), dtype=raw.dtype)
    used = [name for name in layers if name in sums and sums[name].requires_grad]
    for k in range(raw.shape[1]):
        with torch.enable_grad():
            one = raw[:, k].sum()
        slopes = torch.autograd.grad(one, [sums[name] for name in used], retain_graph=True, allow_unused=True)
        for name, slope in zip(used, slopes):
            if slope is None:
                continue
            weight = parameters[f"{name}.weight"]
            here = out[k, :, starts[f"{name}.weight"] :][:, : weight.numel()]
            here += (slope.unsqueeze(2) * given[name].unsqueeze(1)).reshape(n, -1)
            if f"{name}.bias" in parameters:
                first = starts[f"{name}.bias"]
                out[k, :, first : first + slope.shape[1]] += slope
        if "shift" in parameters:
            out[k, :, starts["shift"] + k] = 1.0
    return out


class _Raw(nn.Module):
    """The outputs of a head as a module, whose parameters can be exchanged."""

    def __init__(self, head: NetworkHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, state: Tensor) -> Tensor:
        return self.head.raw(state)


def _by_states(head: NetworkHead, x: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
    detached = {name: p.detach() for name, p in parameters.items()}
    P = sum(p.numel() for p in parameters.values())

    wrapped = _Raw(head)

    def outputs(values: dict[str, Tensor], state: Tensor) -> Tensor:
        named = {f"head.{name}": value for name, value in values.items()}
        return functional_call(wrapped, named, (state.unsqueeze(0),))[0]

    rows = []
    size = max(1, _CHUNK // max(P * head.n_outputs, 1))
    for low in range(0, x.shape[0], size):
        parts = vmap(jacrev(outputs), in_dims=(None, 0))(detached, x[low : low + size])
        rows.append(torch.cat([parts[k].reshape(*parts[k].shape[:2], -1) for k in parameters], dim=2))
    return torch.cat(rows).transpose(0, 1).contiguous()
