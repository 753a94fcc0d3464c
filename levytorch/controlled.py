"""A system with actions: b, D_o and D_f as functions of the state and of the action that is held over a step."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import answer_of, choice, listed, real_array, real_tensor, shown
from levytorch.dynamics import Coefficient, Dynamics
from levytorch.errors import InputError
from levytorch.policies import NumberPolicy, Policy, index_among

Controlled = Callable[[Tensor, Any], Any] | Coefficient


class ControlledDynamics:
    """A system with actions: coefficients that depend on the state and on the action that is held.

    Args:
        b, D_o, D_f: numbers, or functions of (x, action). x is a tensor of states. action is one of `actions`, or
            without labels a tensor with one number per state, (n,), or one vector, (n, m).
        alpha: half the stability index; the same for all actions, or their generators could not be averaged.
        period, dim, origin, window: as in `Dynamics`.
        actions: the labels, numbers or strings; None: actions are numbers on a scale.
        action_range: without labels: (low, high) of a, or one such pair per coordinate of a vector.
        tempering: as in `Dynamics`; one for all actions.

    Example:
        >>> push = ControlledDynamics(lambda x, a: a - torch.sin(x), 1.0, 0.5, 0.6, actions=(-1, 1))
        >>> push.of(1).b(0.0), push.under([0.25, 0.75]).b(0.0)
        (tensor(1., dtype=torch.float64), tensor(0.5000, dtype=torch.float64))
    """

    def __init__(
        self,
        b: Controlled,
        D_o: Controlled,
        D_f: Controlled,
        alpha: float,
        period: float | Sequence[float] | None = 2 * math.pi,
        actions: Sequence[Any] | None = None,
        dim: int = 1,
        origin: float | Sequence[float] = 0.0,
        window: Sequence[Any] | None = None,
        action_range: Sequence[Any] | None = None,
        tempering: float = 0.0,
    ) -> None:
        if (actions is None) == (action_range is None):
            raise InputError(
                "either actions (labels) or action_range (numbers on a scale) must be given, found "
                f"{'neither' if actions is None else 'both'}; give actions=(-1, 1) or action_range=(-1, 1)."
            )
        self._given, self._alpha = (b, D_o, D_f), alpha
        self._shared: dict[str, Any] = {"period": period, "dim": dim, "origin": origin, "window": window}
        self._shared["tempering"] = tempering
        self.bounds = () if action_range is None else check_action_range(action_range)
        self.actions = () if actions is None else check_actions(actions)
        self.systems = {a: self._held(a) for a in self.actions}
        first = self.systems[self.actions[0]] if self.actions else self._held(self._middle())
        if not isinstance(first.alpha, float):
            raise InputError("alpha must be one number for all states and actions, found a function; give a number.")
        self.first = first
        self.alpha, self.period, self.origin, self.dim = first.alpha, first.period, first.origin, dim
        self.tempering = first.tempering

    @staticmethod
    def named(name: str, alpha: float | None = None, tempering: float = 0.0) -> ControlledDynamics:
        """An example: "pushes", a circle on which one of three pushes is held over each step; "thrust", a line with a
        continuous thrust between -2 and 2 against heavy-tailed gusts; "sails", a torus with three courses to steer.

        alpha is 0.6 if not given, and 0.75 for the thrust.
        """
        choice("name", name, tuple(SYSTEMS))
        b, D_o, D_f, usual, options = SYSTEMS[name]
        return ControlledDynamics(b, D_o, D_f, usual if alpha is None else alpha, tempering=tempering, **options)

    def of(self, action: Any) -> Dynamics:
        """The system while one action is held."""
        if not self.actions:
            return self.under(action)
        index = index_among(action, self.actions)
        if index is None:
            raise InputError(f"action must be one of {shown(self.actions)}, found {shown(action)}; choose one of them.")
        return self.systems[self.actions[index]]

    def policy(self, given: Any) -> Policy | NumberPolicy:
        """A policy over these actions, from any accepted form of a policy."""
        return Policy(given, self.actions) if self.actions else NumberPolicy(given, self.bounds, known="range")

    def under(self, policy: Any) -> Dynamics:
        """The closed loop: coefficients averaged over the actions of a policy."""
        pi = self.policy(policy)

        def averaged(name: str) -> Callable[[Tensor], Tensor]:
            def coefficient(x: Tensor) -> Tensor:
                flat = x.reshape(-1) if self.dim == 1 else x.reshape(-1, self.dim)
                if isinstance(pi, Policy):
                    values = [getattr(self.systems[a], name)(flat) for a in self.actions]
                    weights = pi(flat)
                else:
                    actions, weights = pi.components(flat)
                    values = [self.at(name, flat, a) for a in actions]
                stacked = torch.stack(values, dim=-1)
                mean = (stacked * (weights if stacked.ndim == 2 else weights.unsqueeze(1))).sum(-1)
                return mean.reshape(x.shape if name == "b" or self.dim == 1 else x.shape[:-1])

            return coefficient

        b, D_o, D_f = (averaged(name) for name in ("b", "D_o", "D_f"))
        loop = Dynamics(b, D_o, D_f, self.alpha, **self._shared)
        loop.policy = pi
        return loop

    def on(self, actions: Sequence[Any] | None = None) -> ControlledDynamics:
        """The same system with a few actions of its scale, which become labels; a grid of them if none are given."""
        if self.actions:
            return self
        labels = grid_of_actions(self.bounds) if actions is None else check_actions(actions)

        def held(name: str) -> Controlled:
            given = self._given[("b", "D_o", "D_f").index(name)]
            if not callable(given):
                return given
            rows = {a: NumberPolicy(a, self.bounds, known="range").inside(a).reshape(1, -1) for a in labels}
            return lambda x, a: self.at(name, x, rows[a].expand(len(x), -1))

        return ControlledDynamics(held("b"), held("D_o"), held("D_f"), self.alpha, actions=labels, **self._shared)

    def at(self, name: str, x: Tensor, action: Tensor) -> Tensor:
        """A coefficient at n states of the cell and as many actions (n, m) on a scale: (n,), or (n, d) for b."""
        given = self._given[("b", "D_o", "D_f").index(name)]
        shape = x.shape if name == "b" else x.shape[:1]
        if not callable(given):
            return torch.as_tensor(given, dtype=torch.float64).expand(shape)
        a = action[:, 0] if len(self.bounds) == 1 else action
        answer = answer_of(name, lambda states: given(states, a), x)  # type: ignore[call-arg]
        return real_tensor(f"{name}(x, a)", answer, "write it with elementwise tensor operations").expand(shape)

    def _held(self, action: Any) -> Dynamics:
        """The system while one action is held, as functions of x; checks them on the way."""

        def held(coefficient: Controlled) -> Any:
            if not callable(coefficient):
                return coefficient
            if self.actions:
                return lambda x: coefficient(x, action)  # type: ignore[call-arg]
            a = torch.as_tensor(action, dtype=torch.float64)
            return lambda x: coefficient(x, a.expand(x.shape[:1] + a.shape))  # type: ignore[call-arg]

        b, D_o, D_f = (held(given) for given in self._given)
        return Dynamics(b, D_o, D_f, self._alpha, **self._shared)

    def _middle(self) -> Any:
        middle = [0.5 * (low + high) for low, high in self.bounds]
        return middle[0] if len(middle) == 1 else middle

    def __repr__(self) -> str:
        text = f"actions={self.actions}" if self.actions else f"action_range={self.bounds}"
        jumps = f"alpha={self.alpha:g}" + (f", tempering={self.tempering:g}" if self.tempering else "")
        return f"ControlledDynamics({text}, {jumps}, period={self.period}, dim={self.dim})"


def grid_of_actions(bounds: Sequence[tuple[float, float]]) -> tuple[Any, ...]:
    """Actions to choose from on a scale: 9 numbers, or 5 x 5 vectors."""
    side = {1: 9, 2: 5}[len(bounds)]
    axes = [np.linspace(low, high, side).tolist() for low, high in bounds]
    return tuple(axes[0]) if len(axes) == 1 else tuple(itertools.product(*axes))


def _is_vector(action: Any) -> bool:
    return isinstance(action, tuple) and all(isinstance(v, int | float) for v in action)


def check_action_range(action_range: Sequence[Any]) -> tuple[tuple[float, float], ...]:
    """(low, high), or one such pair per coordinate of a vector of one or two, as a tuple of pairs."""
    ends = real_array("action_range", action_range, "pass (low, high)")
    ends = ends[None] if ends.ndim == 1 else ends
    sound = ends.ndim == 2 and ends.shape[1] == 2 and len(ends) in (1, 2)
    if not sound or not (np.isfinite(ends).all() and (ends[:, 0] < ends[:, 1]).all()):
        raise InputError(
            f"action_range must be (low, high) with low < high, or two such pairs, found {shown(action_range)}; give "
            "the ends of the scale."
        )
    return tuple((float(low), float(high)) for low, high in ends)


def check_actions(actions: Sequence[Any]) -> tuple[Any, ...]:
    """Labels as a tuple: two or more different ones, numbers or strings."""
    given = listed("actions", actions, "name every action once")
    labels = tuple(tuple(a) if isinstance(a, list) else a for a in given)
    sound = all(isinstance(a, int | float | str) or _is_vector(a) for a in labels)
    if len(labels) < 2 or not sound or len(set(labels)) < len(labels):
        raise InputError(
            f"actions must be two or more different numbers or strings, found {shown(actions)}; name every action once."
        )
    return labels


# ------------------------------------------------------------------------------------------------------------ examples


def _pushes_b(x: Tensor, action: float) -> Tensor:
    return 3 * torch.sin(x) + action * (2 + torch.cos(x))


def _pushes_D_o(x: Tensor, action: float) -> Tensor:
    return torch.exp(0.5 * torch.sin(x + 1)) * (1 + 0.3 * abs(action))  # a push stirs


def _pushes_D_f(x: Tensor, action: float) -> Tensor:
    return 1 + 0.5 * torch.cos(2 * x) + 0.2 * action * torch.sin(x)


def _thrust_b(x: Tensor, action: Tensor) -> Tensor:
    return 1.5 * action - 2 * torch.tanh(x)


def _thrust_D_o(x: Tensor, action: Tensor) -> Tensor:
    return 0.3 + 0.1 * action**2 + 0 * x  # an engine that labours shakes


def _thrust_D_f(x: Tensor, action: Tensor) -> Tensor:
    return 0.5 + 0.25 * torch.exp(-(x**2)) + 0 * action  # gusts are strongest in the middle


def _sails_b(x: Tensor, action: float) -> Tensor:
    u, v = x[..., 0], x[..., 1]
    turn = 2 * math.pi * action / 3
    return torch.stack([torch.sin(v) + 1.5 * math.cos(turn), torch.cos(u) + 1.5 * math.sin(turn)], dim=-1)


def _sails_D_f(x: Tensor, action: float) -> Tensor:
    return 0.8 + 0.3 * torch.cos(x[..., 0])


# b, D_o, D_f, alpha unless it is given, and the rest
SYSTEMS: dict[str, tuple[Any, Any, Any, float, dict[str, Any]]] = {
    "pushes": (_pushes_b, _pushes_D_o, _pushes_D_f, 0.6, {"actions": (-1, 0, 1)}),
    "thrust": (
        *(_thrust_b, _thrust_D_o, _thrust_D_f, 0.75),
        {"action_range": (-2.0, 2.0), "period": None, "window": (-3.0, 3.0)},
    ),
    "sails": (_sails_b, 1.0, _sails_D_f, 0.6, {"actions": (0, 1, 2), "dim": 2}),
}
