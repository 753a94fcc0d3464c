"""V of a state on a line from pairs: the same estimates as on a circle, in functions that are constant beyond a window.

The window is that of the model, or the range of the data but for excursions; pairs that start outside are left out,
steps that end there land on its ends, as in `solve_value` with exterior "constant".

A model's generator is that of `solve_value`, too, applied to the functions on its nodes and projected (Galerkin's
method): a space in which one step, exp(dt L), is a small matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from levytorch.errors import InputError
from levytorch.policy.blocked import solution
from levytorch.policy.brownian import fit_brownian
from levytorch.policy.checks import Reward
from levytorch.policy.data_value import LineDataValue
from levytorch.policy.estimation import Estimation
from levytorch.policy.line_basis import LineBasis
from levytorch.policy.line_operator import Exterior, line_grid
from levytorch.policy.line_value import LineSystem
from levytorch.policy.model_step import Model, ModelChange, ModelStep
from levytorch.policy.moments import WIDE, n_blocks_of
from levytorch.policy.solver import solve_value
from levytorch.policy.value import LineValue

_NODES = 256  # of V where it is a sum of functions, or that of a fit without jumps; of a model's generator


class ProjectedGenerator:
    """L of a system on the nodes of the window, V constant beyond it; what comes out is projected on the functions."""

    def __init__(self, system: Any, basis: LineBasis) -> None:
        self.on_nodes = LineSystem.of(system, _NODES, basis.window, Exterior(True))
        self.values = basis.matrix(self.on_nodes.ops.x)  # (m, n)
        grid = line_grid(_NODES)
        self.weights = torch.from_numpy(
            0.5 * grid.h * grid.slope[grid.inner, None].copy()
        )  # of the mean over the window
        self.gram = self.values.T @ (self.weights * self.values)

    def projected(self, at_nodes: Tensor) -> Tensor:
        """(m, k) -> (n, k)."""
        return solution(self.gram, self.values.T @ (self.weights * at_nodes))

    def matrix(self) -> Tensor:
        """(n, n): L on coefficients of the functions."""
        return self.projected(-self.on_nodes.matrix(0.0) @ self.values)

    def change(self, u: Tensor) -> Tensor:
        """(n, P): d(L u) / dtheta of a function with coefficients u (n,), for a Recovery."""
        return self.projected(self.on_nodes.change(self.values @ u))


@dataclass(frozen=True)
class LineModel(Model):
    """generator: (n, n) on coefficients of the basis; V, r: (n,)."""

    basis: LineBasis  # type: ignore[assignment]

    @classmethod
    def of(cls, system: Any, basis: LineBasis, r: Tensor, beta: float) -> LineModel:  # type: ignore[override]
        L = ProjectedGenerator(system, basis).matrix()
        V = solution(beta * torch.eye(len(L), dtype=L.dtype) - L, r[:, None])[:, 0]
        return cls(basis, L, V, r, beta, system)

    def change(self, reward: Reward) -> LineModelChange:
        generator = ProjectedGenerator(self.system, self.basis)
        one = torch.eye(len(self.generator), dtype=torch.float64)
        dV = solution(self.beta * one - self.generator, generator.change(self.V))
        return LineModelChange(self, generator, dV, torch.empty(0))

    def step(self, dt: float, core: tuple[float, float] | None = None) -> ModelStep:
        if core is not None:
            raise InputError(
                "the data of a state on a line must have its tails for hybrid and corrected, found a model that "
                'corrects for lost ones; use method="model".'
            )
        return super().step(dt)


@dataclass(frozen=True)
class LineModelChange(ModelChange):
    """V: (n, P), dV / dtheta."""

    generator: ProjectedGenerator  # type: ignore[assignment]

    def _changed(self, u: Tensor) -> Tensor:
        return self.generator.change(u)


@dataclass
class LineEstimation(Estimation):
    """window: (low, high), which holds every state of the transitions; see `Estimation`."""

    window: tuple[float, float] = (0.0, 1.0)

    def brownian(self) -> LineDataValue:  # type: ignore[override]
        found = fit_brownian(self.transitions, LineBasis(self.n_basis, self.window), self.cut)
        note = f"Fitted without jumps to displacements within {self.cut:g} of their median."
        # where there is no data D_o may be anything, which no number of nodes resolves
        return self._of_model("brownian", "Brownian only", found, note, n_modes=_NODES)

    def _of_model(  # type: ignore[override]
        self, method: str, name: str, recovery: Any, note: str, n_modes: int | None = None
    ) -> LineDataValue:
        V = solve_value(recovery, self.reward, self.beta, n_modes=n_modes, window=self.window)
        out = self._line(method, name, V.values, 0.0, note)
        factor = V.covariance_factor if self.n_bootstrap else None
        return replace(out, covariance_factor=factor, change=V.change, converged=V.converged)

    @cached_property
    def basis(self) -> LineBasis:  # type: ignore[override]
        return LineBasis(max(WIDE, 2 * self.n_basis + 1), self.window)

    @cached_property
    def r(self) -> Tensor:
        return self.basis.series(self.reward(self.basis.points()))

    @property
    def asked(self) -> dict[str, Any]:
        return {"n_basis": self.n_basis, "period": None}

    @cached_property
    def model(self) -> LineModel:
        return LineModel.of(self.model_recovery, self.basis, self.r, self.beta)

    @property
    def cut(self) -> float:
        """CT, or half the window."""
        return 0.5 * (self.window[1] - self.window[0]) if self.CT is None else self.CT

    @cached_property
    def _on_nodes(self) -> Tensor:
        """(N + 1, n): the functions at the nodes of V."""
        empty = LineValue(torch.zeros(_NODES + 1, dtype=torch.float64), self.window, self.beta)
        return self.basis.matrix(empty.x)

    def _made(  # type: ignore[override]
        self, method: str, name: str, c: Tensor, strength: float, note: str
    ) -> LineDataValue:
        return self._line(method, name, self._on_nodes[:, : len(c)] @ c, strength, note)

    def _with_errors(self, V: Any, replicas: Tensor) -> Any:
        return super()._with_errors(V, replicas @ self._on_nodes[:, : replicas.shape[1]].T)

    def _line(self, method: str, name: str, values: Tensor, strength: float, note: str) -> LineDataValue:
        return LineDataValue(
            values=values,
            window=self.window,
            beta=self.beta,
            method=method,
            name=name,
            note=note,
            strength=strength,
            n_pairs=len(self.transitions),
            n_blocks=n_blocks_of(self.transitions),
        )
