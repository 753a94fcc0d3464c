"""Policies pi(a | x), over labels or over numbers, in every form that a user may pass.

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

from levytorch.convert import answer_of, check_finite, real_number, real_tensor, shown
from levytorch.errors import InputError

_ROUNDING = 1e-6  # by which probabilities may miss one: those of float32 networks
_REMEDY = "return the probability of every action at every x, or one action per x"


def index_among(action: Any, actions: Sequence[Any]) -> int | None:
    """Which of the labels an action is; None for anything else."""
    if isinstance(action, np.ndarray | Tensor | np.generic):
        try:
            action = action.item()
        except Exception:  # of more than one number, or of a kind without any
            return None
    if isinstance(action, list):
        action = tuple(action)
    if not isinstance(action, int | float | str | tuple):
        return None
    return next((index for index, label in enumerate(actions) if label == action), None)


class _Averaging:
    """What averages over the actions of a policy."""

    def choices(self, x: Tensor) -> tuple[Sequence[Any], Tensor]:
        """Actions, as a reward takes them at n states, and their probabilities (n, K)."""
        raise NotImplementedError

    def averaged(self, reward: Any, dim: int = 1) -> Any:
        """The reward of the closed loop: r(x, action) averaged over actions; a reward of x alone as it is."""
        if not takes_action(reward):
            return reward

        def r(x: Tensor) -> Tensor:
            flat = x.reshape(-1) if dim == 1 else x.reshape(-1, dim)
            actions, weights = self.choices(flat)
            of_actions = torch.stack([reward_of(reward, action, flat) for action in actions], dim=-1)
            return (weights * of_actions).sum(-1).reshape(x.shape if dim == 1 else x.shape[:-1])

        return r


class Policy(_Averaging):
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

    def choices(self, x: Tensor) -> tuple[Sequence[Any], Tensor]:
        return self.actions, self(x)

    # -- what was given -----------------------------------------------------------------------------------------------
    def _constant(self, given: Any) -> Tensor:
        size = len(self.actions)
        if isinstance(given, Mapping):
            unknown = [a for a in given if index_among(a, self.actions) is None]
            if unknown:
                raise self._unknown(unknown[0])
            given = [real_number("probability", given.get(a, 0.0), _REMEDY) for a in self.actions]
        elif isinstance(given, str) and given == "uniform" and given not in self.actions:
            return torch.full((1, size), 1 / size, dtype=torch.float64)
        elif index_among(given, self.actions) is not None or not hasattr(given, "__len__") or isinstance(given, str):
            return self._one_hot([self._index(given)])
        table = real_tensor("policy", given, _REMEDY)
        return self._probabilities(table.reshape(1, -1) if table.ndim < 2 else table, 1)

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
        chosen = list(chosen) if isinstance(chosen, list | tuple) else [chosen] * n
        if len(chosen) != n:
            raise InputError(f"policy(x) must return one action per state, {n}, found {len(chosen)}; {_REMEDY}.")
        known: dict[Any, int] = {}
        plain = [a if isinstance(a, int | float | str) else repr(a) for a in chosen]  # what a dictionary can hold
        return self._one_hot(
            [known[key] if key in known else known.setdefault(key, self._index(a)) for key, a in zip(plain, chosen)]
        )

    def _index(self, action: Any) -> int:
        found = index_among(action, self.actions)
        if found is None:
            raise self._unknown(action)
        return found

    def _one_hot(self, index: list[int]) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor(index), len(self.actions)).to(torch.float64)

    def _unknown(self, action: Any) -> InputError:
        return InputError(
            f"a policy must use the actions {shown(self.actions)}, found {shown(action)}; the data have no others."
        )


_NODES = 8  # of u, per coordinate of the action: exact for polynomials of degree 15
_SLACK = 1e-9  # of a range: rounding at its ends


class NumberPolicy(_Averaging):
    """pi(a | x) over numbers or vectors a within `bounds`, one (low, high) per coordinate of a; made of

    - a function of x that returns one action per x, (n,) or (n, m);
    - a function of (x, u), u uniform on (0, 1) and of the shape of the actions: an action that is drawn;
    - one action for all x;
    - "uniform" over the bounds.

    >>> NumberPolicy(lambda x: -0.5 * x, ((-1.0, 1.0),))(torch.tensor([1.0, -1.0]))
    tensor([-0.5000,  0.5000], dtype=torch.float64)
    """

    def __init__(
        self, given: Any, bounds: Sequence[tuple[float, float]], weights: Any = None, known: str = "logged range"
    ) -> None:
        self.known = known
        self.bounds, self.size = tuple(bounds), len(bounds)
        self.low, self.high = (torch.tensor(end, dtype=torch.float64) for end in zip(*bounds))
        self.weights = weights  # of the rows of `given` as a function of x, where it is a table of actions (K, m)
        self._function: Callable[..., Any] | None = None
        self._table: Tensor | None = None
        self._drawn = False
        if isinstance(given, NumberPolicy):
            self._function, self._drawn, self.weights = given._function, given._drawn, given.weights
            self._table = given._table if given._table is None else self.inside(given._table)
            return
        if isinstance(given, str) and given == "uniform":
            low, span = self.low, self.high - self.low
            given = lambda x, u: low + span * u.reshape(-1, len(low))  # noqa: E731
        if callable(given):
            self._function, self._drawn = given, takes_action(given)
        else:
            self._table = self.inside(given).reshape(-1, self.size)
            if weights is None and len(self._table) != 1:
                raise InputError(
                    f"one action for all x must have {self.size} numbers, found {self._table.numel()}; give a "
                    "function of x for several."
                )

    def __call__(self, x: Tensor) -> Tensor:
        """The action at every state, (n,) or (n, m); the mean of those that are drawn."""
        actions, weights = self.components(x)
        mean = (actions * weights.T.unsqueeze(-1)).sum(0)
        return mean[:, 0] if self.size == 1 else mean

    def components(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (K, n, m) and their probabilities (n, K): what averages over the policy are taken of."""
        n = len(x)
        if self._table is not None:
            actions = self._table.unsqueeze(1).expand(-1, n, -1)
            weights = torch.ones((n, 1), dtype=torch.float64) if self.weights is None else self.weights(x)
            return actions, weights
        if not self._drawn:
            assert self._function is not None
            return self._answer(answer_of("policy", self._function, x), n).unsqueeze(0), torch.ones((n, 1)).double()
        nodes, share = np.polynomial.legendre.leggauss(_NODES)
        grid = np.stack(np.meshgrid(*[(nodes + 1) / 2] * self.size, indexing="ij"), axis=-1).reshape(-1, self.size)
        weight = np.stack(np.meshgrid(*[share / 2] * self.size, indexing="ij"), axis=-1).reshape(-1, self.size).prod(1)
        actions = torch.stack([self.draw(x, torch.from_numpy(u).expand(n, -1)) for u in grid])
        return actions, torch.from_numpy(weight).expand(n, -1)

    def draw(self, x: Tensor, u: Tensor) -> Tensor:
        """Actions (n, m) at states x for uniform numbers u (n, m)."""
        if self._table is not None and self.weights is not None:
            edges = self.weights(x).cumsum(-1)[:, :-1]
            return self._table[(u[:, :1] > edges).sum(1)]
        if not self._drawn:
            return self.components(x)[0][0]
        noise = u[:, 0] if self.size == 1 else u
        function = self._function
        assert function is not None
        return self._answer(answer_of("policy", lambda states: function(states, noise), x), len(x))

    def choices(self, x: Tensor) -> tuple[Sequence[Any], Tensor]:
        actions, weights = self.components(x)
        return [a[:, 0] if self.size == 1 else a for a in actions], weights

    def inside(self, action: Any) -> Tensor:
        """Actions (..., m), refused outside of the bounds."""
        a = real_tensor("action", action, "give numbers").detach()
        if self.size == 1 and (a.ndim == 0 or a.shape[-1] != 1):
            a = a.unsqueeze(-1)
        if a.ndim == 0 or a.shape[-1] != self.size:
            raise InputError(
                f"an action must have {self.size} numbers, found shape {tuple(a.shape)}; put them on the last axis."
            )
        slack = _SLACK * (self.high - self.low)
        outside = ~((a >= self.low - slack) & (a <= self.high + slack))
        if bool(outside.any()):
            worst = a.reshape(-1, self.size)[int(outside.reshape(-1, self.size).any(-1).to(torch.int8).argmax())]
            text = " x ".join(f"[{low:g}, {high:g}]" for low, high in self.bounds)
            found = ", ".join(f"{v:g}" for v in worst.tolist())
            raise InputError(
                f"actions must lie in the {self.known} {text}, found {found}; the data say nothing about others."
            )
        return a.maximum(self.low).minimum(self.high)

    def _answer(self, answer: Any, n: int) -> Tensor:
        found = real_tensor("policy(x)", answer, "return one action per state").detach()
        if self.size == 1 and found.shape in ((), (n,)):
            found = found.unsqueeze(-1)
        try:
            found = found.expand(n, self.size)
        except RuntimeError:
            raise InputError(
                f"policy(x) must return one action of {self.size} numbers per state, {n} of them, found shape "
                f"{tuple(found.shape)}; return shape ({n}, {self.size})."
            ) from None
        return self.inside(found)


def reward_of(reward: Any, action: Any, x: Tensor) -> Tensor:
    """r(x, action), or r(x), at n states: (n,)."""
    given = answer_of("reward", lambda states: reward(states, action), x) if takes_action(reward) else reward
    value = answer_of("reward", given, x) if callable(given) else given
    found = real_tensor("reward(x, action)", value, "return one value per state").detach()
    if found.ndim > 0 and found.shape != x.shape[:1]:
        raise InputError(
            f"reward(x, action) must have one value per state, {len(x)}, found {tuple(found.shape)}; return that many."
        )
    found = found.expand(x.shape[:1])
    check_finite("reward(x, action)", found, x, "check the reward function")
    return found


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
