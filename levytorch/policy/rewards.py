"""Rewards by name, for configuration files: `build_reward` turns a configuration into one of `reward_functions`.

Nothing is evaluated from strings: `callable` imports a function by its dotted path, and only evaluate.py's own command
line can name it, never a run directory.

r(x, a) comes out of rewards that were logged with the pairs by least squares, action by action; on a scale of actions,
as products of functions of x and parabolas of a, as the coefficients have them.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients.inputs import ActionBasis
from levytorch.convert import known_keys, real_number, shown
from levytorch.errors import ConfigError, InputError
from levytorch.policy.checks import check_beta, check_modes, circle_of
from levytorch.policy.reward_functions import CosinePower, CosineProduct, Manufactured, PlaneManufactured, Tabulated
from levytorch.spaces.basis import Basis, FourierBasis, TensorBasis, per_coordinate
from levytorch.spaces.splines import SplineBasis

_RIDGE = 1e-10  # of the largest number of the normal equations: functions that no pair determines are left out
_N_ACTION = 3  # polynomials of an action on a scale


class LoggedReward:
    """r(x, action) for every logged action; without actions in the data r(x)."""

    def __init__(self, fits: dict[Any, Callable[[Tensor], Tensor]] | None, scale: Any = None) -> None:
        self.fits, self.scale = fits, scale

    def __call__(self, x: Tensor, action: Any) -> Tensor:
        if self.fits is None:
            return self.scale(x, action)
        if action not in self.fits:
            raise InputError(
                f"action must be one of those with logged rewards, {shown(list(self.fits))}, found {shown(action)}; "
                "give r(x, action) as a function for others."
            )
        return self.fits[action](x)


def logged_reward(
    transitions: Any, *, period: Any = 2 * math.pi, origin: Any = 0.0, n_basis: int = 11
) -> LoggedReward | Callable[[Tensor], Tensor]:
    """The reward of pairs as a function of x and action, by least squares: Fourier functions on a cell, splines on a
    line (period None). Of pairs without actions a function of x alone.
    """
    if getattr(transitions, "reward", None) is None:
        raise InputError("the pairs must have logged rewards, found none; give reward= where they are made.")
    basis, rewards, x = _basis(transitions, period, origin, n_basis), transitions.reward, transitions.x
    if transitions.action is None:
        return _fitted(basis, x, rewards)
    if transitions.actions:
        codes = transitions.action_codes
        fits = {a: _fitted(basis, x[codes == i], rewards[codes == i]) for i, a in enumerate(transitions.actions)}
        return LoggedReward(fits)
    action = torch.as_tensor(transitions.action).reshape(len(x), -1)
    bounds = tuple(zip(action.amin(0).tolist(), action.amax(0).tolist()))
    products = ActionBasis(basis, _N_ACTION, bounds, transitions.dim)
    of_pairs = _fitted(products, torch.cat([x.reshape(len(x), -1), action], dim=-1), rewards)

    def on_scale(states: Tensor, held: Any) -> Tensor:
        a = torch.as_tensor(held, dtype=torch.float64)
        rows = a.reshape(-1, len(bounds)).expand(len(states), -1)
        return of_pairs(torch.cat([states.reshape(len(states), -1), rows], dim=-1))

    return LoggedReward(None, on_scale)


def _basis(transitions: Any, period: Any, origin: Any, n_basis: int) -> Basis:
    dim = transitions.dim
    cells = zip(per_coordinate("period", period, dim), per_coordinate("origin", origin, dim))
    lines: list[Basis] = [
        FourierBasis(n_basis, p, o) if p is not None else SplineBasis(n_basis, (float(c.min()), float(c.max())))
        for c, (p, o) in zip(transitions.x.reshape(len(transitions), -1).T, cells)
    ]
    return lines[0] if dim == 1 else TensorBasis(dim, n_basis, lines=lines)


def _fitted(basis: Basis, x: Tensor, values: Tensor) -> Callable[[Tensor], Tensor]:
    """The least-squares combination of the functions, summed block by block."""
    A = torch.zeros((basis.size, basis.size), dtype=torch.float64)
    y = torch.zeros(basis.size, dtype=torch.float64)
    for low in range(0, len(x), 1 << 16):
        rows = basis.rows(x[low : low + (1 << 16)].contiguous())
        A += rows @ rows.T
        y += rows @ values[low : low + (1 << 16)]
    A.diagonal().add_(_RIDGE * float(A.diagonal().max()))
    theta = torch.linalg.solve(A, y)

    def function(states: Tensor) -> Tensor:
        one = isinstance(basis, TensorBasis | ActionBasis)
        flat = states.reshape(-1, states.shape[-1]) if one else states.reshape(-1)
        return (theta @ basis.rows(flat)).reshape(states.shape[:-1] if one else states.shape)

    return function


def import_callable(path: str, where: str = "reward.path") -> Callable[..., Any]:
    """The function at a dotted path, 'package.module.name' or 'package.module:name'; `where` the settings name it.

    Runs that module: only for the user's own input.
    """
    module_name, _, name = path.replace(":", ".").rpartition(".")
    if not module_name or not all(part.isidentifier() for part in f"{module_name}.{name}".split(".")):
        raise ConfigError(f"{where} must be a dotted path, found {path!r}; give one such as my_package.rewards.mine.")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # importing runs code that someone else wrote
        raise ConfigError(
            f"{where} = {path!r} must be importable, found that it is not ({' '.join(str(error).split())}); check "
            "the name and that it is on PYTHONPATH."
        ) from error
    if not callable(found):
        raise ConfigError(f"{where} = {path!r} must name a function of x, found a {type(found).__name__}; choose one.")
    return found


@dataclass(frozen=True)
class RewardContext:
    """What a reward may be built from: the cell, the discount rate, the true dynamics and logged data when known.

    In the plane (dim 2) period and origin are those of the coordinates; on a line the period is None. actions: the
    labels of data with actions, () where these are numbers on a scale, None without actions.
    """

    period: Any
    origin: Any
    beta: float
    truth: Any = None
    transitions: Any = None
    dim: int = 1
    actions: tuple[Any, ...] | None = None


class ActionCost:
    """r(x) - cost(action): a number times |action|, or a cost of its own for every label."""

    def __init__(self, reward: Callable[[Tensor], Any], cost: Any) -> None:
        self.reward, self.cost = reward, cost

    def __call__(self, x: Tensor, action: Any) -> Any:
        if isinstance(self.cost, Mapping):
            return self.reward(x) - float(self.cost.get(action, 0.0))
        size = torch.as_tensor(action, dtype=torch.float64).abs()
        several = size.ndim == 2 or isinstance(action, tuple)
        return self.reward(x) - self.cost * (size.square().sum(-1).sqrt() if several else size)


def _manufactured(config: Mapping[str, Any], context: RewardContext) -> Callable[[Tensor], Any]:
    if context.actions is not None:
        raise ConfigError(
            "reward=manufactured must be that of one system, found data with actions; choose a reward: "
            "reward=cosine_power reward.cost=0.1, reward=regressed, or reward=callable reward.path=<a function of x "
            "and action>."
        )
    if context.truth is None:
        raise ConfigError(
            "reward=manufactured must have the true coefficients, found data whose coefficients are not known; choose "
            "a reward: reward=cosine_power, reward=tabulated reward.path=<table.csv>, reward=regressed "
            "data.path=<data with rewards>, or reward=callable reward.path=<package.module.function>."
        )
    if context.dim == 2:
        return PlaneManufactured(CosineProduct(context.truth.period, **config), context.truth, context.beta)
    period = circle_of(context.truth).period
    return Manufactured(CosinePower(**{"period": period, **config}), context.truth, context.beta)


def _cosine_power(config: Mapping[str, Any], context: RewardContext) -> Callable[[Tensor], Any]:
    if context.dim == 2:
        return CosineProduct(context.period, **config)
    return CosinePower(**{"period": context.period or 2 * math.pi, **config})


def _regressed(config: Mapping[str, Any], context: RewardContext) -> Callable[..., Any]:
    n_basis = config.get("n_basis", 11 if context.dim == 1 else 5)
    return logged_reward(context.transitions, period=context.period, origin=context.origin, n_basis=n_basis)


class NamedReward(NamedTuple):
    """build: from options and context; check: of the options alone, refuses what no data could make possible."""

    build: Callable[[Mapping[str, Any], RewardContext], Callable[..., Any]]
    check: Callable[..., Any]
    options: tuple[str, ...]


REWARDS = {
    "manufactured": NamedReward(_manufactured, CosinePower, ("power", "frequency", "shift", "amplitude")),
    "cosine_power": NamedReward(
        _cosine_power, CosinePower, ("power", "frequency", "shift", "amplitude", "period", "cost")
    ),
    "tabulated": NamedReward(
        lambda config, context: Tabulated.from_csv(**{"period": context.period, **config}),
        Tabulated.from_csv,
        ("path", "x", "r", "period", "cost"),
    ),
    "regressed": NamedReward(_regressed, lambda n_basis=11: check_modes("reward.n_basis", n_basis), ("n_basis",)),
    "callable": NamedReward(
        lambda config, context: import_callable(str(config["path"])),
        lambda path: import_callable(str(path)),
        ("path",),
    ),
}


def check_reward(config: Mapping[str, Any], beta: Any) -> None:
    """Refuse a reward that could not be built whatever data and recovery turn out to be; before any work."""
    check_beta(beta)
    name, options = _options(config)
    _check_cost(options.pop("cost", None))
    REWARDS[name].check(**options)


def check_reward_with_data(config: Mapping[str, Any], dim: int, transitions: Any) -> None:
    """Refuse a reward that these data have not logged, or that has no form in two dimensions."""
    name, options = _options(config)
    if dim == 2 and name == "tabulated":
        raise ConfigError(
            "reward must be cosine_power, manufactured, regressed or callable in two dimensions, found tabulated; "
            "choose one."
        )
    if dim == 2 and "period" in options:
        raise ConfigError(
            "reward.period must be left out in two dimensions, where it is the period of the cell, found "
            f"{shown(options['period'])}; remove it."
        )
    if name == "regressed" and getattr(transitions, "reward", None) is None:
        raise ConfigError(
            "reward=regressed must have data with a reward column, found none; name it with data.reward= (train.py) "
            "or with data.path= and data.options.reward= (evaluate.py)."
        )


def build_reward(config: Mapping[str, Any], context: RewardContext) -> Callable[..., Any]:
    """The reward that a configuration names: {"name": one of REWARDS, and its options}.

    Options that are None take their default.
    """
    name, options = _options(config)
    check_reward_with_data(config, context.dim, context.transitions)
    cost = _check_cost(options.pop("cost", None), context.actions, known=True)
    reward = REWARDS[name].build(options, context)
    return reward if cost is None else ActionCost(reward, cost)


def _check_cost(cost: Any, actions: tuple[Any, ...] | None = None, *, known: bool = False) -> Any:
    """A number, or {label: cost}; `known`: what the data has for actions is known, and must go with it."""
    if cost is None:
        return None
    several = isinstance(cost, Mapping)
    for value in cost.values() if several else [cost]:
        real_number("reward.cost", value, "give a cost per unit of |action|, or {label: cost}")
    if not known:
        return cost
    if actions is None:
        raise ConfigError(f"reward.cost must be left out of data without actions, found {shown(cost)}; remove it.")
    if several:
        unknown = [label for label in cost if label not in actions]
        if unknown or not actions:
            raise ConfigError(
                f"reward.cost must name actions of the data, {shown(actions)}, found {shown(list(cost))}; name these."
            )
    elif any(isinstance(a, str) for a in actions):
        raise ConfigError(
            f"reward.cost must be {{label: cost}} for actions that are names, found {shown(cost)}; give one each."
        )
    return cost


def _options(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the options that are not null, checked against REWARDS."""
    name = config.get("name")
    if not isinstance(name, str) or name not in REWARDS:
        raise ConfigError(f"reward.name must be one of {', '.join(REWARDS)}, found {shown(name)}; choose one of them.")
    allowed = REWARDS[name].options
    options = {str(key): value for key, value in config.items() if key != "name" and value is not None}
    known_keys(f"the options of reward={name}", options, allowed, ConfigError)
    if "path" in allowed and "path" not in options:
        raise ConfigError(f"reward.path must be given for reward={name}, found none; add reward.path=...")
    return name, options
