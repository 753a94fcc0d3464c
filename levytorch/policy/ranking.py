"""Several policies on the same data: what each is worth, and their differences with the errors of differences.

Values of two policies rest on the same recovered coefficients, so their errors are largely the same: the error of a
difference is that of V_1 - V_2 under one and the same draw of the parameters, not the root of a sum of squares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from levytorch.convert import shown
from levytorch.errors import InputError
from levytorch.policy.solver import solve_value
from levytorch.policy.value import ValueFunction


@dataclass(frozen=True)
class Ranking:
    """V of every policy; means are over the observed states (`states`, weighted by `weights`)."""

    values: dict[str, ValueFunction]
    states: Tensor
    weights: Tensor
    reference: str
    extrapolated: dict[str, float]

    def mean(self, name: str) -> float:
        """Mean of V over the observed states."""
        return float(self.weights @ self._of(name)(self.states))

    def mean_std(self, name: str) -> float:
        return self._mean_std(self._of(name))

    def difference(self, first: str, second: str) -> ValueFunction:
        """V_first - V_second, whose `.std(x)` is the error of the difference."""
        one, other = _padded(self._of(first), self._of(second))
        factor = None
        if one.covariance_factor is not None and other.covariance_factor is not None:
            factor = one.covariance_factor - other.covariance_factor
        return replace(one, coefficients=one.coefficients - other.coefficients, covariance_factor=factor)

    def gap(self, first: str, second: str) -> tuple[float, float]:
        """Mean of V_first - V_second over the observed states, and its standard error."""
        V = self.difference(first, second)
        return float(self.weights @ V(self.states)), self._mean_std(V)

    @property
    def order(self) -> list[str]:
        """The names, best first."""
        return sorted(self.values, key=self.mean, reverse=True)

    def rows(self) -> list[dict[str, Any]]:
        """One row per policy, best first: mean of V, its error, the gap to the reference and the gap's error."""
        found = []
        for name in self.order:
            gap, error = (0.0, 0.0) if name == self.reference else self.gap(name, self.reference)
            row = {"policy": name, "mean V": self.mean(name), "std": self.mean_std(name)}
            found.append(
                row | {f"minus {self.reference}": gap, "std of it": error, "extrapolated": self.extrapolated[name]}
            )
        return found

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name in ["policy", *self.values])
        gap = f"minus {self.reference}"
        lines = [f"{'policy':<{width}}  {'mean V':>10}  {'+-':>8}  {gap:>18}  {'+-':>8}  {'extrapolated':>12}"]
        lines += [
            f"{row['policy']:<{width}}  {row['mean V']:>10.4g}  {row['std']:>8.2g}  {row[gap]:>18.4g}  "
            f"{row['std of it']:>8.2g}  {100 * row['extrapolated']:>10.1f} %"
            for row in rows
        ]
        return "\n".join(lines)

    def _of(self, name: str) -> ValueFunction:
        if name not in self.values:
            raise InputError(f"policy must be one of {shown(list(self.values))}, found {shown(name)}; choose one.")
        return self.values[name]

    def _mean_std(self, V: ValueFunction) -> float:
        if V.covariance_factor is None:
            return float("nan")
        return float((self.weights @ V.basis.matrix(self.states) @ V.covariance_factor).norm())


def rank(recovery: Any, policies: Mapping[str, Any], reward: Any, beta: float, **options: Any) -> Ranking:
    """Evaluate policies by name on a ControlledRecovery; differences are to "behaviour" if it is among them, else to
    the first.

    policies: {name: whatever describes a policy}; options: those of `solve_value`.
    """
    if not hasattr(recovery, "under") or not hasattr(recovery, "counts"):
        raise InputError(
            f"policies are compared on a recovery with actions, found a {type(recovery).__name__}; recover one from "
            "transitions with actions."
        )
    if not policies:
        raise InputError("policies must name at least one, found none; give {name: policy}.")
    loops = {name: recovery.under(policy) for name, policy in policies.items()}
    values = {name: solve_value(loop, reward, beta, **options) for name, loop in loops.items()}
    seen = recovery.counts.sum(0)
    reference = "behaviour" if "behaviour" in values else next(iter(values))
    extrapolated = {name: float(loop.metrics["extrapolated"]) for name, loop in loops.items()}
    return Ranking(values, recovery.centers(), seen / seen.sum(), reference, extrapolated)


def _padded(one: ValueFunction, other: ValueFunction) -> tuple[ValueFunction, ValueFunction]:
    """Both with the larger number of modes; missing ones are zero."""
    n = max(one.n_modes, other.n_modes)

    def pad(V: ValueFunction) -> ValueFunction:
        more = n - V.n_modes
        c, S = V.coefficients, V.covariance_factor
        S = None if S is None else torch.cat([S, S.new_zeros((more, S.shape[1]))])
        return replace(V, coefficients=torch.cat([c, c.new_zeros(more)]), covariance_factor=S)

    return pad(one), pad(other)
