"""Several policies on the same data: what each is worth, and their differences with the errors of differences.

Values of two policies rest on the same recovered coefficients, so their errors are largely the same: the error of a
difference is that of V_1 - V_2 under one and the same draw of the parameters, not the root of a sum of squares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levytorch.convert import real_tensor, shown
from levytorch.errors import InputError
from levytorch.policy.solver import solve_value
from levytorch.policy.value import LineValue, PlaneValue

_LOOK = {False: 1024, True: 4096}  # states at which it is looked whether a policy jumps; in the plane
_JUMP = 0.3  # of the range of a policy, from one of these states to the next
_NODES = {False: 512, True: 48}  # of V then: on a circle and a line, per coordinate of the plane


@dataclass(frozen=True)
class Difference:
    """V of one policy minus V of another, and the error of that: both move with the same parameters."""

    first: Any
    second: Any

    def __call__(self, x: Any) -> Tensor:
        return self.first(x) - self.second(x)

    def std(self, x: Any) -> Tensor:
        at = real_tensor("x", x)
        plane = isinstance(self.first, PlaneValue)
        flat = at.reshape(-1, 2) if plane else at.reshape(-1)
        one, other = _moves(self.first, flat), _moves(self.second, flat)
        if one is None or other is None:
            raise InputError(
                "coefficients must be recovered with a covariance for the error of a difference, found none; fit with "
                "a Fourier or spline head."
            )
        return (one - other).norm(dim=-1).reshape(at.shape[:-1] if plane else at.shape)


@dataclass(frozen=True)
class Ranking:
    """V of every policy; means are over the observed states (`states`, weighted by `weights`)."""

    values: dict[str, Any]
    states: Tensor
    weights: Tensor
    reference: str
    extrapolated: dict[str, float]

    def mean(self, name: str) -> float:
        """Mean of V over the observed states."""
        return float(self.weights @ self._of(name)(self.states))

    def mean_std(self, name: str) -> float:
        return self._mean_std(_moves(self._of(name), self.states))

    def difference(self, first: str, second: str) -> Difference:
        """V_first - V_second, whose `.std(x)` is the error of the difference."""
        return Difference(self._of(first), self._of(second))

    def gap(self, first: str, second: str) -> tuple[float, float]:
        """Mean of V_first - V_second over the observed states, and its standard error."""
        D = self.difference(first, second)
        one, other = _moves(D.first, self.states), _moves(D.second, self.states)
        error = math.nan if one is None or other is None else self._mean_std(one - other)
        return float(self.weights @ D(self.states)), error

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

    def _of(self, name: str) -> Any:
        if name not in self.values:
            raise InputError(f"policy must be one of {shown(list(self.values))}, found {shown(name)}; choose one.")
        return self.values[name]

    def _mean_std(self, moved: Tensor | None) -> float:
        return math.nan if moved is None else float((self.weights @ moved).norm())


def rank(recovery: Any, policies: Mapping[str, Any], reward: Any, beta: float, **options: Any) -> Ranking:
    """Evaluate policies by name on a ControlledRecovery; differences are to "behaviour" if it is among them, else to
    the first.

    policies: {name: whatever describes a policy}; options: those of `solve_value`. V of a policy that jumps between
    actions has kinks, and is found on a fixed number of nodes unless n_modes says otherwise.
    """
    if not hasattr(recovery, "under") or not hasattr(recovery, "counts"):
        raise InputError(
            f"policies must be compared on a recovery with actions, found a {type(recovery).__name__}; recover one "
            "from transitions with actions."
        )
    if not isinstance(policies, Mapping) or not policies:
        raise InputError(
            f"policies must be a mapping with one or more, found {shown(policies)}; give {{name: policy}}."
        )
    loops = {name: recovery.under(policy) for name, policy in policies.items()}
    values = {name: solve_value(loop, reward, beta, **_resolution(loop, options)) for name, loop in loops.items()}
    states, weights = observed_states(recovery, next(iter(values.values())))
    reference = "behaviour" if "behaviour" in values else next(iter(values))
    extrapolated = {name: float(loop.metrics["extrapolated"]) for name, loop in loops.items()}
    return Ranking(values, states, weights, reference, extrapolated)


def _resolution(loop: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `solve_value`, with n_modes where the policy of a closed loop jumps."""
    if options.get("n_modes") is not None:
        return dict(options)
    plane = loop.dim == 2
    x = loop.head.grid(_LOOK[plane])
    rows = loop.policy(x).reshape(len(x), -1)
    if plane:
        side = math.isqrt(len(x))
        rows = rows.reshape(side, side, -1)
    size = rows.amax() - rows.amin()
    steps = [rows.diff(dim=axis).abs().amax() for axis in range(rows.ndim - 1)]
    jumps = bool(size > 0) and float(max(steps)) > _JUMP * float(size)
    return dict(options) | ({"n_modes": _NODES[plane]} if jumps else {})


def observed_states(recovery: Any, V: Any) -> tuple[Tensor, Tensor]:
    """The parts of the cell where pairs were seen, and how large a share of them; on a line those within V's window."""
    states, seen = recovery.centers(), recovery.counts.sum(0)
    if isinstance(V, LineValue):
        low, high = V.window
        seen = torch.where((states >= low) & (states <= high), seen, torch.zeros_like(seen))
    return states, seen / seen.sum()


def _moves(V: Any, x: Tensor) -> Tensor | None:
    """How far V moves with every principal direction of the parameters it was solved from: (n, P) at
    states (n,) or (n, 2), whose rows have length V.std(x); None where V has no errors.

    Two value functions of one recovery move along the same directions: the error of their difference is the length of
    the difference of their rows.
    """
    factor = V.covariance_factor
    if factor is None:
        return None
    if isinstance(V, LineValue):
        return V._between(x, factor)
    if isinstance(V, PlaneValue):
        return torch.stack([V._sum(x, factor[..., p]) for p in range(factor.shape[-1])], dim=-1)
    return V.basis.matrix(x) @ factor
