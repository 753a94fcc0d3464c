"""V as numbers c on which the generator acts by matrices: on a cell, on a window of a line, on a torus.

What policy iteration works on: the same few hundred nodes, whatever the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import whole_number
from levytorch.errors import InputError
from levytorch.law.jumps import Jumps, jumps_in
from levytorch.policy.generator import jump_symbol, operators
from levytorch.policy.on_interval import line_window
from levytorch.policy.value import ValueFunction
from levytorch.spaces import Circle, Interval, Product, space_of
from levytorch.spaces.line_operator import Exterior, line_operators
from levytorch.spaces.torus import TorusOperator


class Local(NamedTuple):
    """V, its derivative in every coordinate, V'' (the Laplacian) and (-Lap)^alpha V (tempered where jumps are) at n
    states, (n,) each.
    """

    V: Tensor
    first: list[Tensor]
    second: Tensor
    jump: Tensor


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
    space = space_of(system)
    if system.dim > 2 or (isinstance(space, Product) and not space.repeats):
        raise InputError(
            f"the state must be on a circle, a line or a torus to improve policies, found dim = {system.dim} "
            f"{'with' if space.repeats else 'without'} a period; evaluate some by `rank` instead."
        )
    if isinstance(space, Interval):
        space = Interval(*line_window(system, window, beyond_data=True))
    elif window is not None:
        raise InputError(f"window must be left out beside a period, found {window}; remove it.")
    usual, most, make = _KINDS[type(space)]
    n = whole_number("n_modes", usual if n_modes is None else n_modes, 3, most, "give an odd number")
    return make(space, beta, n, torch.as_tensor(float(system.alpha), dtype=torch.float64), jumps_in(system))


def _on_circle(space: Circle, beta: float, n: int, alpha: Tensor, jumps: Jumps) -> Nodes:
    basis, x = space.basis(n), space.grid(n, 0.0)
    ops, symbol = operators(basis, x, alpha, jumps), jump_symbol(basis.wavenumbers, alpha, jumps)

    def value(c: Tensor) -> ValueFunction:
        return ValueFunction(c, space, beta)

    def local(c: Tensor, at: Tensor) -> Local:
        V = value(c)
        return Local(V(at), [V.derivative(at)], V.derivative(at, 2), value(symbol * c)(at))

    share = torch.full((n,), 1 / n, dtype=torch.float64)
    return Nodes(x, ops.phi, [ops.first], ops.second, ops.fractional, share, value, local)


def _on_interval(space: Interval, beta: float, n: int, alpha: Tensor, jumps: Jumps) -> Nodes:
    """Exterior "constant": jumps past an end land on it, diffusion is reflected there."""
    ops = line_operators(n, space.ends, alpha, Exterior(True), jumps=jumps)
    ends = torch.tensor(space.ends, dtype=torch.float64)
    edges = torch.cat([ends[:1], (ops.x[1:] + ops.x[:-1]) / 2, ends[1:]])

    def value(v: Tensor) -> ValueFunction:
        return ValueFunction(torch.cat([v[:1], v, v[-1:]]), space, beta)

    def local(v: Tensor, at: Tensor) -> Local:
        parts = [torch.from_numpy(np.interp(at.numpy(), ops.x.numpy(), (part @ v).numpy())) for part in matrices]
        return Local(value(v)(at), [parts[0]], parts[1], parts[2])

    matrices = (ops.first, ops.second, ops.fractional)
    eye = torch.eye(len(ops.x), dtype=torch.float64)
    share = edges.diff() / space.length
    return Nodes(ops.x, eye, [ops.first], ops.second, ops.fractional, share, value, local, scale=True)


def _on_torus(space: Product, beta: float, n: int, alpha: Tensor, jumps: Jumps) -> Nodes:
    operator, N = TorusOperator(space, n, jumps), n * n
    square, symbol = operator.square, operator.symbol(float(alpha))
    waves = operator.forward(np.eye(N).reshape(N, n, n))  # of every node's own function

    def matrix(factor: Any) -> Tensor:
        return torch.from_numpy(operator.values(waves * factor).reshape(N, N).T.copy())

    def value(v: Tensor, factor: Any = 1.0) -> ValueFunction:
        return ValueFunction(torch.from_numpy(operator.forward(v.reshape(n, n).numpy()) / N * factor), space, beta)

    def local(v: Tensor, at: Tensor) -> Local:
        V = value(v)
        return Local(V(at), list(V.gradient(at).unbind(-1)), value(v, -square)(at), value(v, symbol)(at))

    first = [matrix(part) for part in operator.slopes]
    x, share = space.grid(n, 0.0).reshape(-1, 2), torch.full((N,), 1 / N, dtype=torch.float64)
    return Nodes(x, torch.eye(N, dtype=torch.float64), first, matrix(-square), matrix(symbol), share, value, local)


# how many nodes are usual and how many are allowed, per coordinate
_KINDS: dict[type, tuple[int, int, Any]] = {
    Circle: (129, 2049, _on_circle),
    Interval: (256, 1024, _on_interval),
    Product: (24, 48, _on_torus),
}
