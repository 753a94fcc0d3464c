"""Policies over labelled actions: pi(a | x), whatever form a user has it in.

While an action is held over a step, the step's law has the coefficients of that action; a randomised policy that is
observed at short intervals has the averaged generator, L^pi = sum_a pi(a | x) L^a.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import answer_of, real_tensor, shown
from levytorch.errors import InputError

_ROUNDING = 1e-6  # by which probabilities may miss one: those of float32 networks
_REMEDY = "return the probability of every action at every x, or one action per x"


class Policy:
    """pi(a | x) over `actions`, made of what a user has:

    - a function of x that returns probabilities, shape [..., n_actions], in the order of `actions`;
    - a function of x that returns one action per x;
    - one action for all x; or probabilities for all x, as a list in the order of `actions` or as {action: probability};
    - "uniform".

    >>> Policy(lambda x: torch.where(torch.sin(x) > 0, 1, -1), actions=(-1, 0, 1))(torch.tensor([1.0, 4.0]))
    tensor([[0., 0., 1.],
            [1., 0., 0.]], dtype=torch.float64)
    """

    def __init__(self, given: Any, actions: Sequence[Any]) -> None:
        self.actions = tuple(actions)
        self._function: Callable[[Tensor], Any] | None = None
        self._fixed: Tensor | None = None
        if isinstance(given, Policy):
            if given.actions != self.actions:
                raise InputError(
                    f"a policy must be over the actions {shown(self.actions)}, found one over {shown(given.actions)}; "
                    "write it for these actions."
                )
            self._function, self._fixed = given._function, given._fixed
        elif callable(given):
            self._function = given
        else:
            self._fixed = self._constant(given)

    def __call__(self, x: Tensor) -> Tensor:
        """Probabilities (n, n_actions) at states x, (n,) or (n, d)."""
        n = x.shape[0]
        if self._fixed is not None:
            return self._fixed.expand(n, -1)
        assert self._function is not None
        answer = answer_of("policy", self._function, x)
        if isinstance(answer, Tensor | np.ndarray) and answer.ndim == 2:
            return self._probabilities(real_tensor("policy(x)", answer, _REMEDY).detach(), n)
        return self._chosen(answer, n)

    def averaged(self, reward: Any, dim: int = 1) -> Any:
        """The reward of the closed loop: r(x, action) averaged over actions; a reward of x alone as it is."""
        if not takes_action(reward):
            return reward

        def r(x: Tensor) -> Tensor:
            flat = x.reshape(-1) if dim == 1 else x.reshape(-1, dim)
            of_actions = torch.stack([reward_of(reward, action, flat) for action in self.actions], dim=-1)
            return (self(flat) * of_actions).sum(-1).reshape(x.shape if dim == 1 else x.shape[:-1])

        return r

    # -- what was given -----------------------------------------------------------------------------------------------
    def _constant(self, given: Any) -> Tensor:
        size = len(self.actions)
        if isinstance(given, Mapping):
            unknown = [a for a in given if a not in self.actions]
            if unknown:
                raise self._unknown(unknown[0])
            given = [float(given.get(a, 0.0)) for a in self.actions]
        elif isinstance(given, str) and given == "uniform" and given not in self.actions:
            return torch.full((1, size), 1 / size, dtype=torch.float64)
        elif isinstance(given, str) or np.ndim(given) == 0:
            return self._one_hot([self._index(given)])
        return self._probabilities(real_tensor("policy", given, _REMEDY).reshape(1, -1), 1)

    def _probabilities(self, p: Tensor, n: int) -> Tensor:
        if p.shape != (n, len(self.actions)):
            raise InputError(
                f"probabilities of a policy must have shape ({n}, {len(self.actions)}) at {n} states for the actions "
                f"{shown(self.actions)}, found {tuple(p.shape)}; {_REMEDY}."
            )
        total = p.sum(-1)
        if not bool((torch.isfinite(p) & (p >= -_ROUNDING)).all()) or float((total - 1).abs().max()) > _ROUNDING:
            worst = int((total - 1).abs().nan_to_num(float("inf")).argmax())
            raise InputError(
                f"probabilities of a policy must be >= 0 and sum to one, found {shown(p[worst].tolist())}; divide by "
                "their sum."
            )
        return p.clamp(min=0) / p.clamp(min=0).sum(-1, keepdim=True)

    def _chosen(self, answer: Any, n: int) -> Tensor:
        chosen = answer.tolist() if isinstance(answer, Tensor | np.ndarray) else answer
        chosen = [chosen] * n if isinstance(chosen, str) or np.ndim(chosen) == 0 else list(chosen)
        if len(chosen) != n:
            raise InputError(f"policy(x) must return one action per state, {n}, found {len(chosen)}; {_REMEDY}.")
        known: dict[Any, int] = {}
        return self._one_hot([known[a] if a in known else known.setdefault(a, self._index(a)) for a in chosen])

    def _index(self, action: Any) -> int:
        try:
            return self.actions.index(action)
        except ValueError:
            raise self._unknown(action) from None

    def _one_hot(self, index: list[int]) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor(index), len(self.actions)).to(torch.float64)

    def _unknown(self, action: Any) -> InputError:
        return InputError(
            f"a policy must use the actions {shown(self.actions)}, found {shown(action)}; nothing is known of others."
        )


def reward_of(reward: Any, action: Any, x: Tensor) -> Tensor:
    """r(x, action), or r(x), at n states: (n,)."""
    given = answer_of("reward", lambda states: reward(states, action), x) if takes_action(reward) else reward
    value = answer_of("reward", given, x) if callable(given) else given
    return real_tensor("reward(x, action)", value, "return one value per state").detach().expand(x.shape[:1])


def takes_action(reward: Any) -> bool:
    """Whether a reward is a function of the state and the action."""
    if not callable(reward):
        return False
    try:
        parameters = inspect.signature(reward).parameters.values()
    except (TypeError, ValueError):
        return False  # torch.cos and the like
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters) >= 2
