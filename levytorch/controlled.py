"""A system with actions: b, D_o and D_f as functions of the state and of the action that is held over a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from levytorch.convert import choice, shown
from levytorch.dynamics import Coefficient, Dynamics
from levytorch.errors import InputError
from levytorch.policies import Policy

Controlled = Callable[[Tensor, Any], Any] | Coefficient


class ControlledDynamics:
    """b(x, a), D_o(x, a), D_f(x, a) for a few labelled actions, and one alpha.

    Args:
        b, D_o, D_f: numbers, or functions of (x, action): x a tensor of states, action one of `actions`.
        alpha: half the stability index; the same for all actions, or their generators could not be averaged.
        actions: the labels, numbers or strings.
        period, dim, origin: as of Dynamics.

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
        period: float | Sequence[float] = 2 * math.pi,
        actions: Sequence[Any] = (),
        dim: int = 1,
        origin: float | Sequence[float] = 0.0,
    ) -> None:
        self.actions = check_actions(actions)
        self.systems = {
            a: Dynamics(_held(b, a), _held(D_o, a), _held(D_f, a), alpha, period, dim, origin) for a in self.actions
        }
        first = self.systems[self.actions[0]]
        if not isinstance(first.alpha, float):
            raise InputError("alpha must be one number for all states and actions, found a function; give a number.")
        self.alpha, self.period, self.origin, self.dim = first.alpha, first.period, first.origin, dim

    @staticmethod
    def named(name: str, alpha: float = 0.6) -> ControlledDynamics:
        """An example: "pushes", a circle on which one of three pushes is held over each step."""
        choice("name", name, tuple(SYSTEMS))
        b, D_o, D_f, actions = SYSTEMS[name]
        return ControlledDynamics(b, D_o, D_f, alpha, actions=actions)

    def of(self, action: Any) -> Dynamics:
        """The system while one action is held."""
        if action not in self.systems:
            raise InputError(f"action must be one of {shown(self.actions)}, found {shown(action)}; choose one of them.")
        return self.systems[action]

    def under(self, policy: Any) -> Dynamics:
        """The closed loop: coefficients averaged over the actions of a policy."""
        pi = Policy(policy, self.actions)

        def averaged(name: str) -> Callable[[Tensor], Tensor]:
            def coefficient(x: Tensor) -> Tensor:
                flat = x.reshape(-1) if self.dim == 1 else x.reshape(-1, self.dim)
                values = torch.stack([getattr(self.systems[a], name)(flat) for a in self.actions], dim=-1)
                weights = pi(flat)
                mean = (values * (weights if values.ndim == 2 else weights.unsqueeze(1))).sum(-1)
                return mean.reshape(x.shape if name == "b" or self.dim == 1 else x.shape[:-1])

            return coefficient

        b, D_o, D_f = (averaged(name) for name in ("b", "D_o", "D_f"))
        loop = Dynamics(b, D_o, D_f, self.alpha, self.period, self.dim, self.origin)
        loop.policy = pi
        return loop

    def __repr__(self) -> str:
        return f"ControlledDynamics(actions={self.actions}, alpha={self.alpha:g}, period={self.period}, dim={self.dim})"


def check_actions(actions: Sequence[Any]) -> tuple[Any, ...]:
    """Labels as a tuple: two or more, told apart, numbers or strings."""
    labels = tuple(actions)
    if len(labels) < 2 or len(set(labels)) < len(labels) or not all(isinstance(a, int | float | str) for a in labels):
        raise InputError(
            f"actions must be two or more different numbers or strings, found {shown(actions)}; name every action once."
        )
    return labels


def _held(coefficient: Controlled, action: Any) -> Any:
    """A coefficient while the action is held, as a function of x or a number."""
    if not callable(coefficient):
        return coefficient
    return lambda x: coefficient(x, action)  # type: ignore[call-arg]


# ------------------------------------------------------------------------------------------------------------ examples


def _pushes_b(x: Tensor, action: float) -> Tensor:
    return 3 * torch.sin(x) + action * (2 + torch.cos(x))


def _pushes_D_o(x: Tensor, action: float) -> Tensor:
    return torch.exp(0.5 * torch.sin(x + 1)) * (1 + 0.3 * abs(action))  # a push stirs


def _pushes_D_f(x: Tensor, action: float) -> Tensor:
    return 1 + 0.5 * torch.cos(2 * x) + 0.2 * action * torch.sin(x)


SYSTEMS: dict[str, tuple[Any, Any, Any, tuple[Any, ...]]] = {
    "pushes": (_pushes_b, _pushes_D_o, _pushes_D_f, (-1, 0, 1)),
}
