"""ControlledRecovery: the coefficients of every action, and the closed loop of any policy over them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from levytorch import files
from levytorch.coefficients import Head
from levytorch.coefficients.action import MixtureHead
from levytorch.controlled import ControlledDynamics
from levytorch.convert import path_of, shown
from levytorch.dynamics import Dynamics
from levytorch.errors import InputError
from levytorch.policies import Policy, place_among
from levytorch.training.parts import CountedActions, Parts
from levytorch.training.recovery import ArrayLike, Recovery

FORMAT = "levytorch.controlled.1"


@dataclass(repr=False)
class ClosedLoop(Recovery):
    """A Recovery of the system under a policy: a head that averages those of the actions."""

    policy: Any = None

    def dynamics(self) -> Dynamics:
        loop = super().dynamics()
        loop.policy = self.policy  # averages rewards that depend on the action
        return loop


@dataclass
class ControlledRecovery(CountedActions):
    """b(x, a), D_o(x, a), D_f(x, a) in the units of the data, for every action of the data.

    covariance: of the parameters of all actions, one action after the other; `counts` (A, bins): pairs per action and
    part of the cell.
    """

    actions: tuple[Any, ...]
    recoveries: tuple[Recovery, ...]
    covariance: Tensor | None
    counts: Tensor
    metrics: dict[str, Any] = field(default_factory=dict)

    # -- coefficients of an action ------------------------------------------------------------------------------------
    def of(self, action: Any) -> Recovery:
        """The recovery of the system while one action is held."""
        return self.recoveries[self._index(action)]

    def b(self, x: ArrayLike, action: Any) -> Tensor:
        return self.of(action).b(x)

    def D_o(self, x: ArrayLike, action: Any) -> Tensor:
        return self.of(action).D_o(x)

    def D_f(self, x: ArrayLike, action: Any) -> Tensor:
        return self.of(action).D_f(x)

    def std(self, x: ArrayLike, action: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Pointwise standard errors of b, D_o, D_f of one action."""
        return self.of(action).std(x)

    @property
    def alpha(self) -> Any:
        return self.recoveries[0].alpha

    @property
    def alpha_std(self) -> Any:
        return self.recoveries[0].alpha_std

    @property
    def converged(self) -> bool:
        return all(found.converged for found in self.recoveries)

    @property
    def log_likelihood(self) -> float:
        """Of all pairs; what sharing has cost is taken off in its quadratic approximation."""
        return sum(found.log_likelihood for found in self.recoveries) - 0.5 * self.metrics.get("shared/chi2", 0.0)

    @property
    def dim(self) -> int:
        return self.recoveries[0].dim

    @property
    def period(self) -> Any:
        return self.recoveries[0].period

    @property
    def origin(self) -> Any:
        return self.recoveries[0].origin

    @property
    def support(self) -> tuple[float, float] | None:
        """The range of the states of all actions; None in more than one dimension."""
        ranges = [found.support for found in self.recoveries]
        known = [pair for pair in ranges if pair is not None]
        return (min(low for low, _ in known), max(high for _, high in known)) if len(known) == len(ranges) else None

    @property
    def parts(self) -> Parts:
        """The parts of the cell, or of the window on a line, that `counts` counts."""
        return Parts(self.recoveries[0].head, self.counts.shape[1])

    @property
    def heads(self) -> list[Head]:
        """What holds the parameters that `covariance` is of, in its order."""
        return [found.head for found in self.recoveries]

    def _index(self, action: Any) -> int:
        place = place_among(action, self.actions)
        if place is None:
            raise InputError(
                f"action must be one of those in the data, {shown(self.actions)}, found {shown(action)}; nothing is "
                "known of others."
            )
        return place

    # -- policies -----------------------------------------------------------------------------------------------------
    @property
    def behaviour(self) -> Policy:
        """The policy that made the data, by counts of actions in parts of the cell."""
        return Policy(self._logged(), self.actions)

    def policy(self, given: Any) -> Policy:
        """A policy from whatever describes one; "behaviour" is that of the data."""
        if isinstance(given, str) and given == "behaviour" and given not in self.actions:
            return self.behaviour
        return Policy(given, self.actions)

    def under(self, policy: Any) -> ClosedLoop:
        """The closed loop of a policy: a Recovery for `solve_value`, whose errors are those of all actions together.

        policy: x -> probabilities [..., n_actions] in the order of `actions`, or x -> action; an action; "behaviour".
        """
        pi = self.policy(policy)
        thin = self._told_extrapolation(pi, "of its action nearby")
        metrics = {k: v for k, v in self.recoveries[0].metrics.items() if k in ("law", "dt")}
        if self.support is not None:
            metrics["x_min"], metrics["x_max"] = self.support
        metrics["extrapolated"] = thin
        return ClosedLoop(
            self._averaged(pi),
            log_likelihood=self.log_likelihood,
            converged=self.converged,
            covariance=self.covariance,
            metrics=metrics,
            policy=pi,
        )

    def _averaged(self, pi: Policy) -> Head:
        return MixtureHead(self.heads, pi)

    def nearby(self, policy: Any) -> tuple[Tensor, Tensor]:
        return self.counts.T, self.policy(policy)(self.centers())

    # -- elsewhere ----------------------------------------------------------------------------------------------------
    def dynamics(self) -> ControlledDynamics:
        """The recovered system, ready for simulation."""
        one = self.recoveries[0].dynamics()
        cell: dict[str, Any] = {"period": one.period, "dim": one.dim, "origin": one.origin, "window": one.window}
        return ControlledDynamics(self.b, self.D_o, self.D_f, float(self.alpha), actions=self.actions, **cell)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write plain tensors and numbers; the file appears whole or not at all."""
        target = path_of(path)
        content = {
            "format": FORMAT,
            "actions": list(self.actions),
            "recoveries": [found.content() for found in self.recoveries],
            "covariance": self.covariance,
            "counts": self.counts,
            "metrics": self.metrics,
        }
        files.save(content, target)
        return target

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> ControlledRecovery:
        """What `save` wrote; refuses what does not go together."""
        recoveries = tuple(Recovery.from_content(part) for part in content["recoveries"])
        actions, counts, covariance = tuple(content["actions"]), content["counts"], content["covariance"]
        size = sum(found.theta.numel() for found in recoveries)
        sound = len(actions) == len(recoveries) == len(counts) and isinstance(counts, Tensor) and counts.ndim == 2
        sound &= all(isinstance(a, int | float | str) for a in actions) and len(set(actions)) == len(actions) > 0
        sound &= bool((counts >= 0).all()) and len({(one.dim, str(one.period)) for one in recoveries}) == 1
        if not sound or content["format"] != FORMAT or not (covariance is None or covariance.shape == (size, size)):
            raise InputError("the parts of a ControlledRecovery must belong together, found others; fit again.")
        return cls(actions, recoveries, covariance, counts.to(torch.float64), dict(content["metrics"]))

    def __repr__(self) -> str:
        pairs = ", ".join(f"{a}: {n:,.0f}" for a, n in zip(self.actions, self.counts.sum(1).tolist()))
        return f"ControlledRecovery(pairs of actions {{{pairs}}}, alpha={self.alpha:.4g}, converged={self.converged})"
