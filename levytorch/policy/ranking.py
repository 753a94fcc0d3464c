"""Several policies on the same data: what each is worth, and their differences with the errors of differences.

Values of two policies come from the same recovered coefficients, so their errors are largely the same: the error of a
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
from levytorch.policy.checks import discounted_by_rate
from levytorch.policy.solver import solve_value

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
        if self.first.covariance_factor is None or self.second.covariance_factor is None:
            raise InputError(
                "coefficients must be recovered with a covariance for the error of a difference, found none; fit with "
                "engine fisher or evidence."
            )
        # two value functions of one recovery move along the same directions
        return (self.first.deviations(at) - self.second.deviations(at)).norm(dim=-1)


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
        return self._mean_std(self._deviations(self._of(name)))

    def difference(self, first: str, second: str) -> Difference:
        """V_first - V_second, whose `.std(x)` is the error of the difference."""
        return Difference(self._of(first), self._of(second))

    def gap(self, first: str, second: str) -> tuple[float, float]:
        """Mean of V_first - V_second over the observed states, and its standard error."""
        D = self.difference(first, second)
        one, other = self._deviations(D.first), self._deviations(D.second)
        error = math.nan if one is None or other is None else self._mean_std(one - other)
        return float(self.weights @ D(self.states)), error

    def _deviations(self, V: Any) -> Tensor | None:
        """How far V moves at the states with every direction of the parameters, (n, P); None where it has no errors."""
        return None if V.covariance_factor is None else V.deviations(self.states)

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


@discounted_by_rate
def rank(recovery: Any, policies: Mapping[str, Any], reward: Any, beta: float, **options: Any) -> Ranking:
    """Evaluate several policies on one fit, and the differences between their values.

    Args:
        recovery: a ControlledRecovery, or a ContinuousRecovery.
        policies: {name: a policy in any accepted form}. Differences are taken to "behaviour" if it is among them, and
            otherwise to the first.
        reward: r(x), or r(x, action).
        beta: the discount rate per unit of time.
        options: those of `solve_value`. V of a policy that jumps between actions has kinks, and is solved with a fixed
            n_modes unless you give one.

    Returns:
        A Ranking: print it, or ask it for `.gap(one, other)` and `.difference(one, other)`.

    Example:
        >>> import torch
        >>> from levytorch import ControlledDynamics, recover, simulate
        >>> logs = simulate(ControlledDynamics.named("pushes"), "uniform", 1000, 40, 1 / 40, seed=0).transitions()
        >>> table = rank(recover(logs, alpha=0.6, n_basis=1, law="frozen"), {"left": -1, "right": 1}, torch.sin, 1.0)
        >>> gap, std = table.gap("left", "right")
        >>> bool(std > 0)
        True
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
    if not V.space.repeats:
        low, high = V.window
        seen = torch.where((states >= low) & (states <= high), seen, torch.zeros_like(seen))
    return states, seen / seen.sum()
