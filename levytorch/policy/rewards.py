"""Reward functions r(x) by name, for configuration files; each is a function of a tensor.

`build_reward` turns a configuration into one of them. Nothing is evaluated from strings: `callable` imports a function
by its dotted path, and only evaluate.py's own command line can name it, never a run directory.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import FourierBasis
from levytorch.convert import known_keys, positive_number, real_array, real_number, real_tensor, shown
from levytorch.data.arrays import numeric
from levytorch.errors import ConfigError, InputError
from levytorch.files import path_of
from levytorch.policy.checks import cell_of, check_beta, check_modes, coefficients_at
from levytorch.policy.series import FourierSeries, fit_fourier

States = Tensor | np.ndarray | Sequence[float] | float


@dataclass(frozen=True)
class CosinePower:
    """amplitude * cos^power(2 pi frequency (x - shift) / period).

    The paper's: cos^3(2x) has power 3, frequency 2, period 2 pi.
    """

    power: int = 3
    frequency: int = 2
    shift: float = 0.0
    period: float = 2 * math.pi
    amplitude: float = 1.0

    def __post_init__(self) -> None:
        for name in ("power", "frequency", "shift", "period", "amplitude"):
            value = getattr(self, name)
            object.__setattr__(self, name, real_number(name, value, "give one, as in conf/reward"))
        if int(self.power) != self.power or self.power < 0 or int(self.frequency) != self.frequency:
            raise InputError(
                f"power and frequency must be whole numbers, found {self.power!r} and {self.frequency!r}; "
                "other values would not have the period."
            )
        positive_number("period", self.period, "give the length of the cell")
        if self.power > 1e6 or not abs(2 * math.pi * self.frequency / self.period) < 1e150:
            raise InputError(
                f"power must be at most 1e6 and frequency / period moderate, found {self.power:g} and "
                f"{self.frequency:g} / {self.period:g}; lower them."
            )

    def __call__(self, x: States) -> Tensor:
        x = real_tensor("x", x)
        angle = torch.remainder(x - self.shift, self.period) * (2 * math.pi * self.frequency / self.period)
        return self.amplitude * angle.cos() ** self.power


class Manufactured:
    """r = beta V - L V for a given V and the true dynamics (section 4.2), so that V is the value function of r."""

    def __init__(self, V: Callable[[Tensor], Tensor], dynamics: Any, beta: float, max_modes: int = 1025) -> None:
        period, origin = cell_of(dynamics)
        self.V, self.dynamics, self.beta = V, dynamics, check_beta(beta)
        half = 32
        while True:
            self.basis = FourierBasis(2 * half + 1, period, origin)
            Phi = self.basis.matrix(self.basis.points())
            # discrete orthogonality: the inverse of Phi is its transpose, rescaled
            c = (Phi.T @ V(self.basis.points())) / (Phi**2).sum(0)
            size = c.abs().max()
            if float(c[-half // 4 :].abs().max()) <= 1e-13 * float(size):
                break
            half *= 2
            if 2 * half + 1 > max_modes:
                raise InputError(
                    f"The manufactured V must be smooth with the period {period:g}, found one that {max_modes} "
                    "Fourier modes do not resolve; choose a smoother one."
                )
        self.coefficients = torch.where(c.abs() < 1e-15 * size, 0.0, c)  # rounding, which L would multiply by k^2

    def __call__(self, x: States) -> Tensor:
        x = real_tensor("x", x)
        at = coefficients_at(self.dynamics, x)
        c = self.coefficients
        V, V1, V2 = (self.basis.matrix(x, order) @ c for order in (0, 1, 2))
        jump = (self.basis.matrix(x) * self.basis.symbol(at.alpha) * c).sum(-1)
        return self.beta * V - at.b * V1 - at.D_o * V2 + at.D_f * jump


class Tabulated:
    """Linear interpolation in a table of (x, r).

    With a period, x is reduced to it first and a table of a whole period is closed.
    """

    def __init__(self, x: Any, r: Any, period: float | None = None) -> None:
        table_x, table_r = (numeric(name, a).reshape(-1) for name, a in (("x", x), ("r", r)))
        if len(table_x) != len(table_r) or len(table_x) < 2:
            raise InputError(
                f"The reward table must have at least two pairs (x, r), found {len(table_x)} x and {len(table_r)} r; "
                "complete it."
            )
        if not (np.isfinite(table_x).all() and np.isfinite(table_r).all()):
            raise InputError("The reward table must be finite, found NaN or infinite entries; fill or remove them.")
        order = np.argsort(table_x, kind="stable")
        table_x, table_r = table_x[order], table_r[order]
        if bool((np.diff(table_x) == 0).any()):
            twice = table_x[np.flatnonzero(np.diff(table_x) == 0)[0]]
            raise InputError(
                f"Every x must occur once in the reward table, found {twice:g} again; remove or average duplicates."
            )
        if period is not None:
            period = positive_number("period", period, "give the length of the cell")
            if table_x[-1] - table_x[0] > period * (1 + 1e-12):
                raise InputError(
                    f"The reward table must fit in one period of {period:g}, found a span of "
                    f"{table_x[-1] - table_x[0]:g}; cut it."
                )
            spacing = float(np.diff(table_x).max())
            if table_x[0] + period - table_x[-1] <= 1.5 * spacing:  # the whole cell is tabulated: close it
                table_x, table_r = (
                    np.concatenate([[table_x[-1] - period], table_x, [table_x[0] + period]]),
                    np.concatenate([[table_r[-1]], table_r, [table_r[0]]]),
                )
        self.x, self.r, self.period = table_x, table_r, period

    @classmethod
    def from_csv(cls, path: str | Path, period: float | None = None, x: str = "x", r: str = "r") -> Tabulated:
        """Read the columns `x` and `r` of a CSV file with a header."""
        file = path_of(path)
        if not file.is_file():
            raise InputError(
                f"{file} must be a CSV file with columns {x} and {r}, found that there is none; check reward.path."
            )
        from levytorch.data.columns import load_table, numbers

        table = load_table(file)
        for name in (x, r):
            if name not in table.columns:
                raise InputError(
                    f"{file} must have the columns {x} and {r}, found {', '.join(table.columns)}; name them with "
                    "reward.x= and reward.r=."
                )
        try:
            return cls(numbers(file, table[x]), numbers(file, table[r]), period=period)
        except InputError as error:
            told = str(error)
            raise InputError(told if told.startswith(str(file)) else f"{file}: {told}") from None

    def check_covers(self, low: float, high: float, what: str) -> None:
        """Refuse to be solved with where the table ends before the interval does; `what` the interval is."""
        start, slack = low, 1e-9 * (high - low)
        if self.period is not None:
            if self.x[-1] - self.x[0] >= self.period:
                return
            # slack on both sides: an interval that begins with the table must not end up a period later
            start = self.x[0] - slack + float(np.remainder(low - self.x[0] + slack, self.period))
        if start < self.x[0] - slack or start + (high - low) > self.x[-1] + slack:
            raise InputError(
                f"The reward table must cover the {what}, [{low:g}, {high:g}], found x from {self.x[0]:g} to "
                f"{self.x[-1]:g}; widen the table, or solve on a window inside it (window=[low, high])."
            )

    def __call__(self, x: States) -> Tensor:
        at = asked = real_array("x", x)
        if self.period is not None:
            # Into the period that begins with the table, whatever cell the caller counts from
            at = self.x[0] + np.remainder(at - self.x[0], self.period)
        outside = (at < self.x[0]) | (at > self.x[-1])
        if bool(outside.any()):
            raise InputError(
                f"x must lie within the reward table, [{self.x[0]:g}, {self.x[-1]:g}], found "
                f"{asked[outside].flat[0]:g}; extend the table or solve on a window inside it."
            )
        return torch.as_tensor(np.interp(at, self.x, self.r))


def regress_reward(x: Any, reward: Any, basis: FourierBasis) -> FourierSeries:
    """r(x) from a logged reward column by least squares."""
    if reward is None:
        raise InputError("The data must have a logged reward column, found none; name it when reading the data.")
    return fit_fourier(x, reward, basis)


def import_callable(path: str) -> Callable[[Tensor], Any]:
    """The function at a dotted path, 'package.module.name' or 'package.module:name'.

    Runs that module: only for the user's own input.
    """
    module_name, _, name = path.replace(":", ".").rpartition(".")
    if not module_name or not all(part.isidentifier() for part in f"{module_name}.{name}".split(".")):
        raise ConfigError(
            f"reward.path must be a dotted path, found {path!r}; give one such as my_package.rewards.mine."
        )
    try:
        found = getattr(importlib.import_module(module_name), name)
    except Exception as error:  # importing runs code that someone else wrote
        raise ConfigError(
            f"reward.path = {path!r} must be importable, found that it is not ({' '.join(str(error).split())}); check "
            "the name and that it is on PYTHONPATH."
        ) from error
    if not callable(found):
        raise ConfigError(
            f"reward.path = {path!r} must name a function of x, found a {type(found).__name__}; choose one."
        )
    return found


@dataclass(frozen=True)
class RewardContext:
    """What a reward may be built from: the cell, the discount rate, the true dynamics and logged data when known."""

    period: float
    origin: float
    beta: float
    truth: Any = None
    transitions: Any = None


def _manufactured(config: Mapping[str, Any], context: RewardContext) -> Callable[[Tensor], Any]:
    if context.truth is None:
        raise ConfigError(
            "reward=manufactured needs the true coefficients, found data whose coefficients are not known; choose "
            "a reward: reward=cosine_power, reward=tabulated reward.path=<table.csv>, reward=regressed "
            "data.path=<data with rewards>, or reward=callable reward.path=<package.module.function>."
        )
    period, _ = cell_of(context.truth)
    return Manufactured(CosinePower(**{"period": period, **config}), context.truth, context.beta)


def _cosine_power(config: Mapping[str, Any], context: RewardContext) -> Callable[[Tensor], Any]:
    return CosinePower(**{"period": context.period, **config})


def _tabulated(config: Mapping[str, Any], context: RewardContext) -> Callable[[Tensor], Any]:
    return Tabulated.from_csv(**{"period": context.period, **config})


def _regressed(config: Mapping[str, Any], context: RewardContext) -> Callable[[Tensor], Any]:
    check_logged_reward({"name": "regressed"}, context.transitions)
    basis = FourierBasis(config.get("n_basis", 11), context.period, context.origin)
    return regress_reward(context.transitions.x, context.transitions.reward, basis)


def _callable(config: Mapping[str, Any], context: RewardContext) -> Callable[[Tensor], Any]:
    return import_callable(str(config["path"]))


# name -> (builder, its options)
REWARDS: dict[str, tuple[Callable[[Mapping[str, Any], RewardContext], Callable[[Tensor], Any]], frozenset[str]]] = {
    "manufactured": (_manufactured, frozenset({"power", "frequency", "shift", "amplitude"})),
    "cosine_power": (_cosine_power, frozenset({"power", "frequency", "shift", "amplitude", "period"})),
    "tabulated": (_tabulated, frozenset({"path", "x", "r", "period"})),
    "regressed": (_regressed, frozenset({"n_basis"})),
    "callable": (_callable, frozenset({"path"})),
}


def check_reward(config: Mapping[str, Any], beta: Any) -> None:
    """Refuse a reward that could not be built whatever the recovery turns out to be; before any work."""
    check_beta(beta)
    name, options = _options(config)
    if name in ("manufactured", "cosine_power"):
        CosinePower(**options)
    elif name == "tabulated":
        Tabulated.from_csv(**options)
    elif name == "callable":
        import_callable(str(options["path"]))
    elif name == "regressed":
        check_modes("reward.n_basis", options.get("n_basis", 11))


def check_logged_reward(config: Mapping[str, Any], transitions: Any) -> None:
    """Refuse a reward that is to be learned from data which has none."""
    if config["name"] == "regressed" and (transitions is None or transitions.reward is None):
        raise ConfigError(
            "reward=regressed needs data with a reward column, found none; name it with data.reward= (train.py) "
            "or with data.path= and data.options.reward= (evaluate.py)."
        )


def build_reward(config: Mapping[str, Any], context: RewardContext) -> Callable[[Tensor], Any]:
    """The reward that a configuration names: {"name": one of REWARDS, and its options}.

    Options that are None take their default.
    """
    name, options = _options(config)
    return REWARDS[name][0](options, context)


def _options(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the options that are not null, checked against REWARDS."""
    name = config.get("name")
    if not isinstance(name, str) or name not in REWARDS:
        raise ConfigError(f"reward.name must be one of {', '.join(REWARDS)}, found {shown(name)}; choose one of them.")
    allowed = REWARDS[name][1]
    options = {str(key): value for key, value in config.items() if key != "name" and value is not None}
    known_keys(f"the options of reward={name}", options, allowed, ConfigError)
    if "path" in allowed and "path" not in options:
        raise ConfigError(f"reward={name} needs a path, found none; add reward.path=...")
    return name, options
