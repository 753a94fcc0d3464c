"""V on a circle: collocation on the cell (section 3.3), or least squares on a window of it (section 4.3)."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.convert import shown
from levytorch.errors import InputError, LevytorchWarning, NumericalError
from levytorch.policy.checks import check_periodic, check_window, coefficients_at, reward_function
from levytorch.policy.generator import (
    Factor,
    LinearSystem,
    delta_method,
    factorise,
    generator_change,
    linear_system,
    operators,
    resolvent_matrix,
)
from levytorch.policy.value import ValueFunction
from levytorch.spaces import Circle

# Beyond it fewer than about four digits of V are left in double precision.
_MAX_CONDITION = 1e12
_EXCESS = 1.05  # of |V| over its bound; less may be the error of V itself


class Found(NamedTuple):
    system: LinearSystem
    factor: Factor
    c: Tensor


class CircleProblem:
    """V as a Fourier series; see `solver.Problem`."""

    most = 1 << 30

    def __init__(
        self, dynamics: Any, space: Circle, reward: Any, beta: float, *, window: Any, exterior: Any, beyond_data: bool
    ) -> None:
        if exterior is not None:
            raise InputError(
                f"exterior must be left out beside a period, found {shown(exterior)}; remove it, or use period=None."
            )
        self.dynamics, self.space, self.beta = dynamics, space, beta
        self.r = reward_function(reward)
        support = None if beyond_data else getattr(dynamics, "support", None)
        self.window = None if window is None else check_window(window, space.period, support)
        if hasattr(reward, "check_covers"):  # a table, which may end before the cell does
            reward.check_covers(*(self.window or space.ends), "cell" if self.window is None else "window")
        self.keeps_best = self.window is not None
        self.first = 7 if self.keeps_best else 33
        self.remedy = (
            "use a wider window, or none" if self.keeps_best else "raise max_modes or beta, or smooth the reward"
        )
        if self.window is None:
            check_periodic(self.r, (space.period,), space.grid(37))

    def checked(self, n_modes: Any) -> int:
        return self.space.basis(n_modes).n_modes

    def finer(self, n: int) -> int:
        half = (n - 1) // 2
        return 2 * ((3 * half + 1) // 2 if self.keeps_best else 2 * half) + 1

    def solved(self, n: int) -> Found:
        system = linear_system(self.dynamics, self.r, self.beta, self.space.basis(n), self.window)
        factor = factorise(system)
        y = factor.solve((system.weight * system.r)[:, None])[:, 0]
        return Found(system, factor, y / system.scale)

    def n_modes(self, found: Found) -> int:
        return found.system.basis.n_modes

    def is_usable(self, found: Found) -> bool:
        return not self.keeps_best or found.factor.condition() < _MAX_CONDITION

    def moved(self, before: Found, found: Found) -> float:
        new, old = found.system.ops.phi @ found.c, before.system.basis.matrix(found.system.x) @ before.c
        return float((new - old).abs().max() / new.abs().max().clamp_min(1e-300))

    def residual(self, found: Found) -> float:
        basis = found.system.basis
        n = 2 * basis.n_modes + 1
        x = basis.grid(n) if self.window is None else torch.linspace(*self.window, n + 2, dtype=torch.float64)[1:-1]
        at = coefficients_at(self.dynamics, x)
        A = resolvent_matrix(operators(basis, x, at.alpha, at.jumps), at.b, at.D_o, at.D_f, self.beta)
        values = self.r(x)
        return float((A @ found.c - values).abs().max() / values.abs().max().clamp_min(1e-300))

    def value(self, found: Found, change: float | None, converged: bool) -> ValueFunction:
        condition, n = found.factor.condition(), self.n_modes(found)
        if not condition < _MAX_CONDITION or not bool(torch.isfinite(found.c).all()):
            remedy = "use fewer modes or a wider window" if self.keeps_best else "use a larger beta or fewer modes"
            raise NumericalError(
                f"(beta - L) V = r must have a condition number below {_MAX_CONDITION:.0e}, found condition number "
                f"{condition:.2g} with n_modes = {n}; {remedy}."
            )
        excess = self._excess(found) if self.keeps_best else 1.0
        if excess > _EXCESS:
            warnings.warn(
                f"|V| must not exceed max |r| / beta, found {excess:.3g} times that with n_modes = {n}: on this window "
                "the equation does not determine V; use a wider window, or none.",
                LevytorchWarning,
                stacklevel=4,
            )
            converged = False
        return ValueFunction(
            found.c,
            self.space,
            self.beta,
            self.window,
            residual=self.residual(found),
            condition=condition,
            change=change,
            converged=converged,
            covariance_factor=self._covariance_factor(found),
        )

    def _excess(self, found: Found) -> float:
        """max |V| on the window over max |r| / beta on the cell, which no expected discounted reward exceeds."""
        try:
            largest = self.r(self.space.grid(401)).abs().max()
        except InputError:  # a table that ends with the window
            largest = found.system.r.abs().max()
        return float((found.system.ops.phi @ found.c).abs().max() * self.beta / largest.clamp_min(1e-300))

    def _covariance_factor(self, found: Found) -> Tensor | None:
        if getattr(self.dynamics, "covariance", None) is None or not hasattr(self.dynamics, "jacobian"):
            return None
        system, factor = found.system, found.factor
        ops, w = system.ops, system.weight[:, None]
        parts = (ops.phi, [ops.first], ops.second, ops.fractional)
        change = generator_change(self.dynamics, system.x, system.at, system.basis.wavenumbers, *parts)
        S = delta_method(self.dynamics, change.of, lambda right: factor.solve(w * right), found.c)
        if self.keeps_best:  # least squares also moves with what its residual is orthogonal to
            residual = -factor.unreached((system.weight * system.r)[:, None]) * w

            def normal(right: Tensor) -> Tensor:
                return factor.gram_solve(-right / system.scale[:, None])

            more = delta_method(self.dynamics, lambda _: change.adjoint(residual), normal, found.c)
            S = None if S is None or more is None else S - more
        return None if S is None else S / system.scale[:, None]
