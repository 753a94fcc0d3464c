"""V as numbers c on which the generator acts by matrices: on a cell, on a window of a line, on a torus.

What policy iteration works on: the same few hundred nodes, whatever the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import FourierBasis
from levytorch.convert import whole_number
from levytorch.errors import InputError
from levytorch.policy.checks import cell_of, is_line
from levytorch.policy.generator import jump_symbol, operators
from levytorch.policy.line_operator import Exterior, line_operators
from levytorch.policy.line_value import line_window
from levytorch.policy.plane import PlaneOperator, torus
from levytorch.policy.value import LineValue, PlaneValue, ValueFunction

_USUAL = {"cell": 129, "line": 256, "torus": 24}
_MOST = {"cell": 2049, "line": 1024, "torus": 48}


class Local(NamedTuple):
    """V, its derivative in every coordinate, V'' (the Laplacian) and (-Lap)^alpha V (tempered where jumps are) at n
    states, (n,) each.
    """

    V: Tensor
    first: list[Tensor]
    second: Tensor
    jump: Tensor


class Jumps(NamedTuple):
    """Of the operator that D_f multiplies."""

    alpha: Tensor
    tempering: float


class Nodes(NamedTuple):
    """n nodes: x (n,) or (n, 2); V(x) = phi c and so on, (n, n) each; `share` (n,): of the cell that each stands for.

    value: c -> V; local: (c, x) -> Local at any states; scale: rows are divided by their largest number first.
    """

    x: Tensor
    phi: Tensor
    first: list[Tensor]
    second: Tensor
    fractional: Tensor
    share: Tensor
    value: Callable[[Tensor], Any]
    local: Callable[[Tensor, Tensor], Local]
    scale: bool = False

    def at_nodes(self, c: Tensor) -> Local:
        return Local(self.phi @ c, [part @ c for part in self.first], self.second @ c, self.fractional @ c)


def nodes_of(system: Any, beta: float, n_modes: int | None, window: Any) -> Nodes:
    """Nodes for a Dynamics or Recovery with one alpha and tempering; n_modes: per coordinate, None: a usual number."""
    where = "line" if is_line(system) else "torus" if system.dim == 2 else "cell"
    if system.dim > 2 or (where == "line" and system.dim > 1):
        raise InputError(
            f"the state must be on a circle, a line or a torus to improve policies, found dim = {system.dim} "
            f"{'without' if where == 'line' else 'with'} a period; evaluate some by `rank` instead."
        )
    if window is not None and where != "line":
        raise InputError(f"window must be left out beside a period, found {window}; remove it.")
    n = whole_number("n_modes", _USUAL[where] if n_modes is None else n_modes, 3, _MOST[where], "give an odd number")
    jumps = Jumps(torch.as_tensor(float(system.alpha), dtype=torch.float64), float(system.tempering))
    if where == "cell":
        return _on_cell(system, beta, n, jumps)
    return _on_line(system, beta, n, jumps, window) if where == "line" else _on_torus(system, beta, n, jumps)


def _on_cell(system: Any, beta: float, n: int, jumps: Jumps) -> Nodes:
    period, origin = cell_of(system)
    basis = FourierBasis(n, period, origin)
    x = basis.points()
    ops, symbol = operators(basis, x, *jumps), jump_symbol(basis.wavenumbers, *jumps)

    def value(c: Tensor) -> ValueFunction:
        return ValueFunction(c, period, origin, beta)

    def local(c: Tensor, at: Tensor) -> Local:
        V = value(c)
        jump = basis.matrix(at) @ (symbol * c)
        return Local(V(at), [V.derivative(at)], V.derivative(at, 2), jump)

    share = torch.full((n,), 1 / n, dtype=torch.float64)
    return Nodes(x, ops.phi, [ops.first], ops.second, ops.fractional, share, value, local)


def _on_line(system: Any, beta: float, n: int, jumps: Jumps, window: Any) -> Nodes:
    """Exterior "constant": jumps past an end land on it, diffusion is reflected there."""
    limits = line_window(system, window, beyond_data=True)
    ops = line_operators(n, limits, jumps.alpha, Exterior(True), tempering=jumps.tempering)
    ends = torch.tensor(limits, dtype=torch.float64)
    edges = torch.cat([ends[:1], (ops.x[1:] + ops.x[:-1]) / 2, ends[1:]])

    def value(v: Tensor) -> LineValue:
        return LineValue(torch.cat([v[:1], v, v[-1:]]), limits, beta)

    def local(v: Tensor, at: Tensor) -> Local:
        parts = [torch.from_numpy(np.interp(at.numpy(), ops.x.numpy(), (part @ v).numpy())) for part in matrices]
        return Local(value(v)(at), [parts[0]], parts[1], parts[2])

    matrices = (ops.first, ops.second, ops.fractional)
    share = edges.diff() / (ends[1] - ends[0])
    eye = torch.eye(len(ops.x), dtype=torch.float64)
    return Nodes(ops.x, eye, [ops.first], ops.second, ops.fractional, share, value, local, scale=True)


def _on_torus(system: Any, beta: float, n: int, jumps: Jumps) -> Nodes:
    cell = torus(system)
    operator, N = PlaneOperator(cell, n, jumps.tempering), n * n
    square, symbol = operator.square, operator.symbol(float(jumps.alpha))
    waves = operator.forward(np.eye(N).reshape(N, n, n))  # of every node's own function

    def matrix(factor: Any) -> Tensor:
        return torch.from_numpy(operator.inverse(waves * factor).reshape(N, N).T.copy())

    def value(v: Tensor) -> PlaneValue:
        c = torch.from_numpy(operator.forward(v.reshape(n, n).numpy()) / N)
        return PlaneValue(c, cell.period, cell.origin, beta)

    def local(v: Tensor, at: Tensor) -> Local:
        V = value(v)
        gradient = V.gradient(at)
        second, jump = (V._sum(at, V.coefficients * torch.from_numpy(factor)) for factor in (-square, symbol))
        return Local(V(at), [gradient[..., 0], gradient[..., 1]], second, jump)

    first = [matrix(part) for part in operator.gradient]
    x, share = cell.points(n).reshape(-1, 2), torch.full((N,), 1 / N, dtype=torch.float64)
    return Nodes(x, torch.eye(N, dtype=torch.float64), first, matrix(-square), matrix(symbol), share, value, local)
