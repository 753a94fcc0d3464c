"""V of a state on a torus of two coordinates from pairs: the same estimates as on a circle, in products of functions.

The model's generator acts on these products in closed form (`PlaneModel`) and is projected on them by a grid that is
fine enough for products of two, so that a step of the model is a small matrix here, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients.basis import jump_symbol
from levytorch.errors import InputError
from levytorch.policy.blocked import solution
from levytorch.policy.brownian import fit_brownian
from levytorch.policy.checks import Reward, coefficients_at
from levytorch.policy.data_value import PlaneDataValue
from levytorch.policy.estimation import Estimation
from levytorch.policy.generator import GeneratorChange, tempering_change
from levytorch.policy.model_step import Model, ModelChange, to_series
from levytorch.policy.moments import n_blocks_of
from levytorch.policy.plane import Torus
from levytorch.policy.plane_basis import PlaneBasis
from levytorch.policy.solver import solve_value

WIDE = 21  # functions per coordinate of rewards and of what a model expects: 221 in all
_MODES = 64  # per coordinate, of the V of a fit without jumps
_KEPT = 1e-7  # of the largest direction of V's errors: what is smaller is left out


@dataclass(frozen=True)
class PlaneModel(Model):
    """generator: (n, n) on coefficients of the basis; V, r: (n,)."""

    basis: PlaneBasis  # type: ignore[assignment]

    @classmethod
    def of(cls, system: Any, basis: PlaneBasis, r: Tensor, beta: float) -> PlaneModel:  # type: ignore[override]
        x = basis.points()
        at = coefficients_at(system, x, dim=2)
        first, second, lap, jump = _parts(basis, x, at.alpha, float(at.tempering))
        L = at.b[:, :1] * first + at.b[:, 1:] * second + at.D_o[:, None] * lap - at.D_f[:, None] * jump
        L = to_series(basis, L)
        V = solution(beta * torch.eye(len(L), dtype=L.dtype) - L, r[:, None])[:, 0]
        return cls(basis, L, V, r, beta, system)

    def change(self, reward: Reward) -> ModelChange:
        x = self.basis.points()
        at = coefficients_at(self.system, x, dim=2)
        lam, D_f = float(at.tempering), at.D_f[:, None]
        first, second, lap, jump = _parts(self.basis, x, at.alpha, lam)
        phi = self.basis.matrix(x)
        by_alpha = jump_symbol(self.basis.wavenumbers, at.alpha, 1, lam) * phi
        by_lam, J_lam = tempering_change(self.system, at, self.basis.wavenumbers, phi)
        with torch.no_grad():
            J_b, J_D_o, J_D_f, J_alpha = (torch.as_tensor(J, dtype=torch.float64) for J in self.system.jacobian(x))
        change = GeneratorChange(
            (
                *((first, J_b[:, 0]), (second, J_b[:, 1]), (lap, J_D_o)),
                *((jump, -J_D_f), (by_alpha, -J_alpha * D_f), (by_lam, -J_lam * D_f)),
            )
        )
        one = torch.eye(len(self.generator), dtype=torch.float64)
        dV = solution(self.beta * one - self.generator, to_series(self.basis, change.of(self.V)))
        return ModelChange(self, change, dV, torch.empty(0))


def _parts(basis: PlaneBasis, x: Tensor, alpha: Tensor, lam: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Both first derivatives, the Laplacian and (-Lap)^alpha of the functions at x, each (m, n)."""
    phi = basis.matrix(x)
    jump = jump_symbol(basis.wavenumbers, alpha, 0, lam) * phi
    return basis.matrix(x, (1, 0)), basis.matrix(x, (0, 1)), -(basis.wavenumbers**2) * phi, jump


@dataclass
class PlaneEstimation(Estimation):
    """n_basis: functions of V in all; per_coordinate: those of each coordinate, and of a fit; see `Estimation`."""

    cell: Torus = field(kw_only=True)
    per_coordinate: int = field(kw_only=True)

    def brownian(self) -> PlaneDataValue:  # type: ignore[override]
        found = fit_brownian(self.transitions, PlaneBasis(self.per_coordinate, self.cell), self.cut)
        note = f"Fitted without jumps to displacements within {self.cut:g} of their median."
        return self._of_model("brownian", "Brownian only", found, note, n_modes=_MODES)

    def _of_model(  # type: ignore[override]
        self, method: str, name: str, recovery: Any, note: str, n_modes: int | None = None
    ) -> PlaneDataValue:
        V = solve_value(recovery, self.reward, self.beta, n_modes=n_modes)
        factor = V.covariance_factor if self.n_bootstrap else None
        checks = {"residual": V.residual, "change": V.change, "iterations": V.iterations, "converged": V.converged}
        return replace(self._plane(method, name, V.coefficients, 0.0, note), covariance_factor=factor, **checks)

    @cached_property
    def basis(self) -> PlaneBasis:  # type: ignore[override]
        return PlaneBasis(max(WIDE, 2 * self.per_coordinate - 1), self.cell)

    @cached_property
    def r(self) -> Tensor:
        return self.basis.series(self.reward)

    @property
    def asked(self) -> dict[str, Any]:
        return {"n_basis": self.per_coordinate, "period": self.cell.period, "origin": self.cell.origin}

    @cached_property
    def model(self) -> PlaneModel:
        return PlaneModel.of(self.model_recovery, self.basis, self.r, self.beta)

    @cached_property
    def threshold(self) -> None:
        """Nowhere: what lies beyond one is known in one dimension only."""
        if super().threshold is not None:
            raise InputError(
                "the data of a state in a plane must have its tails for hybrid and corrected, found a model that "
                'corrects for lost ones; use method="model".'
            )

    @property
    def cut(self) -> float:
        """CT, or half the shorter period."""
        return min(self.cell.period) / 2 if self.CT is None else self.CT

    def _made(  # type: ignore[override]
        self, method: str, name: str, c: Tensor, strength: float, note: str
    ) -> PlaneDataValue:
        return self._plane(method, name, self._spectrum(c[:, None])[..., 0], strength, note)

    def _with_errors(self, V: Any, replicas: Tensor) -> Any:
        U, S, _ = torch.linalg.svd(super()._with_errors(V, replicas).covariance_factor, full_matrices=False)
        return replace(V, covariance_factor=self._spectrum((U * S)[:, S > _KEPT * S[0]]))

    def _spectrum(self, c: Tensor) -> Tensor:
        """Coefficients (K, k) of the functions as those of a PlaneValue, (n, n // 2 + 1, k)."""
        n = self.basis.n_basis
        on_grid = self.basis.matrix(self.basis.grid_points(n))[:, : len(c)] @ c
        return torch.from_numpy(np.fft.rfft2(on_grid.reshape(n, n, -1).numpy(), axes=(0, 1)) / n**2)

    def _plane(self, method: str, name: str, c: Tensor, strength: float, note: str) -> PlaneDataValue:
        return PlaneDataValue(
            coefficients=c,
            period=self.cell.period,
            origin=self.cell.origin,
            beta=self.beta,
            method=method,
            name=name,
            note=note,
            strength=strength,
            n_pairs=len(self.transitions),
            n_blocks=n_blocks_of(self.transitions),
        )
