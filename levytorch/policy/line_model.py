"""A model on a line for V from data: its generator on the functions of `line_basis`, by Galerkin's method.

The generator is that of `solve_value` (`line_operator`, V constant beyond the window), applied to the functions on its
nodes and projected: a space in which one step, exp(dt L), is a small matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from levytorch.errors import InputError
from levytorch.policy.blocked import solution
from levytorch.policy.checks import Reward
from levytorch.policy.line import generator_on_line, sensitivity_on_line
from levytorch.policy.line_basis import LineBasis
from levytorch.policy.line_grid import line_grid
from levytorch.policy.model_step import Model, ModelChange, ModelStep

_NODES = 256


@dataclass(frozen=True)
class LineModel(Model):
    """generator: (n, n) on coefficients of the basis; V, r: (n,)."""

    basis: LineBasis  # type: ignore[assignment]

    @classmethod
    def of(cls, system: Any, basis: LineBasis, r: Tensor, beta: float) -> LineModel:  # type: ignore[override]
        nodes = Nodes(system, basis)
        L = nodes.projected(nodes.generator @ nodes.values)
        V = solution(beta * torch.eye(len(L), dtype=L.dtype) - L, r[:, None])[:, 0]
        return cls(basis, L, V, r, beta, system)

    def change(self, reward: Reward) -> LineModelChange:
        nodes = Nodes(self.system, self.basis)
        moved = nodes.projected(nodes.change(self.V))
        one = torch.eye(len(self.generator), dtype=torch.float64)
        return LineModelChange(self, nodes, solution(self.beta * one - self.generator, moved), torch.empty(0))

    def step(self, dt: float, core: tuple[float, float] | None = None) -> ModelStep:
        if core is not None:
            raise InputError(
                "the data of a state on a line must have its tails for hybrid and corrected, found a model that "
                'corrects for lost ones; use method="model".'
            )
        return super().step(dt)


@dataclass(frozen=True)
class LineModelChange(ModelChange):
    """V: (n, P), dV / dtheta; generator: the nodes on which it changes."""

    generator: Nodes  # type: ignore[assignment]

    def _changed(self, u: Tensor) -> Tensor:
        return self.generator.projected(self.generator.change(u))


class Nodes:
    """Functions and the generator on the nodes of a window; what is computed there is projected on the functions."""

    def __init__(self, system: Any, basis: LineBasis) -> None:
        self.system, self.basis = system, basis
        self.x, self.generator = generator_on_line(system, _NODES, basis.window)
        self.values = basis.matrix(self.x)  # (m, n)
        grid = line_grid(_NODES)
        self.weights = torch.from_numpy(0.5 * grid.h * grid.slope[grid.inner].copy())  # of the mean over the window

    @cached_property
    def _gram(self) -> Tensor:
        return self.values.T @ (self.weights[:, None] * self.values)

    def projected(self, at_nodes: Tensor) -> Tensor:
        """(m, k) -> (n, k)."""
        return solution(self._gram, self.values.T @ (self.weights[:, None] * at_nodes))

    def change(self, u: Tensor) -> Tensor:
        """(m, P): d(L u) / dtheta of a function with coefficients u (n,), for a Recovery."""
        return sensitivity_on_line(self.system, self.values @ u, _NODES, self.basis.window)
