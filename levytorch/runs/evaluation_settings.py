"""The settings of evaluate.py, checked before any work: a command line can put any kind of value anywhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from levytorch.coefficients.basis import MOST_MODES
from levytorch.convert import known_keys, shown
from levytorch.dynamics import SYSTEMS
from levytorch.errors import ConfigError, InputError
from levytorch.policy.checks import check_window
from levytorch.policy.rates import PERTURBATIONS
from levytorch.policy.rewards import check_reward

# dotted key -> smallest value and one that makes sense; null where null is a choice
INTEGERS = {
    "n_modes": (1, 64),
    "data.n_terms": (1, 3001),
    "data.n_basis": (1, 11),
    "data.first": (1, 6000),
    "data.random": (1, 60000),
    "data.seed": (0, 0),
    "rates.n_trials": (1, 10000),
    "rates.n_modes": (1, 64),
    "rates.seed": (0, 0),
}
POSITIVE = {"beta": 0.1, "tolerance": 1e-6, "data.horizon": 100.0, "truth.alpha": 0.3, "rates.alpha": 0.3}
BELOW_ONE = ("truth.alpha", "rates.alpha")
TEXT = ("out", "data.path", "truth.name", "group_by", "rates.system")
SWITCHES = ("rates.enabled", "tensorboard", "data.linear")
GROUPS = ("reward", "truth", "data", "data.options", "rates")
KEYS = {
    "": (
        *("run", "out", "beta", "n_modes", "tolerance", "window", "group_by", "truth", "data", "rates", "tensorboard"),
        *("reward", "experiment", "of", "sweep", "size"),  # the last three: conf/experiment/value_error.yaml
    ),
    "truth": ("name", "alpha"),
    "data": ("path", "options", "n_terms", "horizon", "linear", "n_basis", "first", "random", "seed"),
    "rates": ("enabled", "system", "alpha", "eps", "perturbations", "n_trials", "n_modes", "seed"),
}
OPTIONAL = {
    *("n_modes", "data.n_terms", "data.first", "data.random", "data.horizon"),
    *("truth.alpha", "truth.name", "out", "data.path"),
}
MODES = ("n_modes", "data.n_basis", "rates.n_modes")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings of the wrong kind."""
    for key in GROUPS:
        if not isinstance(_at(settings, key), Mapping):
            raise ConfigError(f"{key} must be a group of settings, found {_told(settings, key)}; leave it as it is.")
    for group, known in KEYS.items():
        name, section = (f"the settings of {group}", settings[group]) if group else ("settings", settings)
        known_keys(name, section, known, ConfigError)
    for key, (least, usual) in INTEGERS.items():
        value = _at(settings, key)
        if value is None and key in OPTIONAL:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(
                f"{key} must be an integer of at least {least}, found {_told(settings, key)}; give one, for example "
                f"{key}={usual}."
            )
        if key in MODES and value > MOST_MODES:
            raise ConfigError(f"{key} must be at most {MOST_MODES}, found {_told(settings, key)}; lower it.")
    for key, likely in POSITIVE.items():
        value = _at(settings, key)
        if value is None and key in OPTIONAL:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
            raise ConfigError(
                f"{key} must be a positive number, found {_told(settings, key)}; give one, for example {key}={likely}."
            )
        if key in BELOW_ONE and not value < 1:
            raise ConfigError(f"{key} must lie in (0, 1), found {value!r}; give half the stability index.")
    for key in SWITCHES:
        if not isinstance(_at(settings, key), bool):
            raise ConfigError(f"{key} must be true or false, found {_told(settings, key)}; choose one.")
    for key in TEXT:
        value = _at(settings, key)
        # a directory may be called 5
        if not (value is None and key in OPTIONAL) and (
            isinstance(value, bool | float) or not isinstance(value, str | int) or value == ""
        ):
            raise ConfigError(f"{key} must be a name, found {_told(settings, key)}; give one.")
    for key in ("truth.name", "rates.system"):
        if _at(settings, key) is not None and _at(settings, key) not in SYSTEMS:
            raise ConfigError(f"{key} must be one of {', '.join(SYSTEMS)}, found {_told(settings, key)}; choose one.")
    _check_lists(settings)
    reward = dict(settings["reward"])
    if reward.get("name") == "regressed" and settings["data"]["path"] is None:
        raise ConfigError("reward=regressed needs data with a reward column, found none; add data.path=.")
    if settings["run"] is not None:
        try:
            check_reward(reward, settings["beta"])
        except InputError as error:
            raise ConfigError(str(error)) from error


def _check_lists(settings: Mapping[str, Any]) -> None:
    window, eps = settings["window"], settings["rates"]["eps"]
    if window is not None and window != "data":
        try:
            check_window(window, math.inf, None)
        except InputError as error:
            raise ConfigError(f"{error} Or use window=data; that is the range of the data.") from error
    positive = isinstance(eps, list) and all(
        isinstance(e, int | float) and not isinstance(e, bool) and 0 < e <= sys.float_info.max for e in eps
    )
    if not positive or not eps:
        raise ConfigError(
            f"rates.eps must be a list of positive numbers, found {shown(eps)}; give one, for example "
            "rates.eps=[0.1,0.01,0.001]."
        )
    kinds = settings["rates"]["perturbations"]
    kinds = [kinds] if isinstance(kinds, str) else kinds  # one may stand alone on a command line
    known = isinstance(kinds, list) and bool(kinds) and all(isinstance(k, str) and k in PERTURBATIONS for k in kinds)
    if not known:
        raise ConfigError(
            f"rates.perturbations must be a list of {', '.join(PERTURBATIONS)}, found {shown(kinds)}; name one or "
            "several of these."
        )
    run = settings["run"]
    if run is not None and (isinstance(run, Mapping | bool | float) or run in ([], "")):
        raise ConfigError(f"run must name run directories, found {shown(run)}; give a path, a glob or a list.")
    if isinstance(run, list) and not all(isinstance(r, str | int) and r != "" for r in run):
        raise ConfigError(f"run must name run directories, found {shown(run)}; give a path, a glob or a list.")


def _told(settings: Mapping[str, Any], key: str) -> str:
    return shown(_at(settings, key))


def newest(parent: str) -> str:
    """The last directory of `parent` by name, which for sweeps begins with their time: ${newest:multirun/<name>}."""
    found = sorted(path for path in Path(parent).glob("*") if path.is_dir())
    if not found:
        raise ConfigError(f"{parent} must hold a sweep, found none; run it first, or give sweep=<its place>.")
    return str(found[-1])


def texts(settings: Mapping[str, Any], key: str) -> list[str]:
    """One text or several, as a list; a directory may be called 5."""
    value = _at(settings, key)
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]


def _at(settings: Mapping[str, Any], key: str) -> Any:
    value: Any = settings
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ConfigError(f"{key} must be given, found none; leave conf/evaluate.yaml as it is.")
        value = value[part]
    return value
