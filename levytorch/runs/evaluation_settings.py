"""The settings of evaluate.py, checked before any work: a command line can put any kind of value anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from levytorch.coefficients.basis import MOST_MODES
from levytorch.convert import choice, known_keys, number_within, positive_number, shown, switch, whole_number
from levytorch.dynamics import SYSTEMS
from levytorch.errors import ConfigError, InputError, within_configuration
from levytorch.policy.checks import check_window
from levytorch.policy.named import check_policies
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
FORMATS = ("png", "pdf")  # of figures: PNG alone, or PDF beside it
SWITCHES = ("rates.enabled", "tensorboard", "data.linear", "baselines")
GROUPS = ("reward", "truth", "data", "data.options", "rates", "figures")
KEYS = {
    "": (
        *("run", "out", "beta", "n_modes", "tolerance", "window", "group_by", "truth", "data", "rates", "tensorboard"),
        *("figures", "baselines"),
        *("reward", "policy", "experiment", "of", "sweep", "size"),  # the last three: conf/experiment/value_error.yaml
    ),
    "truth": ("name", "alpha"),
    "data": ("path", "options", "n_terms", "horizon", "linear", "n_basis", "first", "random", "seed"),
    "figures": ("format",),
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
            raise ConfigError(f"{key} must be a group of settings, found {shown(_at(settings, key))}; give one.")
    for group, known in KEYS.items():
        name, section = (f"the settings of {group}", settings[group]) if group else ("settings", settings)
        known_keys(name, section, known, ConfigError)
    with within_configuration():
        _check_numbers(settings)
        for key in SWITCHES:
            switch(key, _at(settings, key))
        for key in TEXT:
            value = _at(settings, key)
            # a directory may be called 5
            if not (value is None and key in OPTIONAL) and (
                isinstance(value, bool) or not isinstance(value, str | int) or value == ""
            ):
                raise InputError(f"{key} must be a name, found {shown(value)}; give one.")
        for key in ("truth.name", "rates.system"):
            if _at(settings, key) is not None:
                choice(key, _at(settings, key), tuple(SYSTEMS))
        choice("figures.format", settings["figures"].get("format"), FORMATS)
        _check_lists(settings)
        reward = settings["reward"]
        if reward.get("name") == "regressed" and settings["data"]["path"] is None:
            raise InputError("reward=regressed needs data with a reward column, found none; add data.path=.")
        check_policies(settings.get("policy"))
        if settings["run"] is not None:
            check_reward(reward, settings["beta"])


def _check_numbers(settings: Mapping[str, Any]) -> None:
    for key, usual in {**{key: usual for key, (_, usual) in INTEGERS.items()}, **POSITIVE}.items():
        value, remedy = _at(settings, key), f"give one, for example {key}={usual}"
        if value is None and key in OPTIONAL:
            continue
        if isinstance(value, list):
            raise InputError(f"{key} must be a number, found {shown(value)}; {remedy}.")
        if key in INTEGERS:
            whole_number(key, value, INTEGERS[key][0], MOST_MODES if key in MODES else None, remedy)
        elif key in BELOW_ONE:
            number_within(key, value, "(0, 1)", remedy)
        else:
            positive_number(key, value, remedy)


def _check_lists(settings: Mapping[str, Any]) -> None:
    window, eps, run = settings["window"], settings["rates"]["eps"], settings["run"]
    if window is not None and window != "data":
        try:
            check_window(window, math.inf, None)
        except InputError as error:
            raise InputError(f"{error} Or use window=data; that is the range of the data.") from error
    if not isinstance(eps, list) or not eps:
        raise InputError(
            f"rates.eps must be a list of positive numbers, found {shown(eps)}; give one, for example "
            "rates.eps=[0.1,0.01,0.001]."
        )
    for size in eps:
        positive_number("every number of rates.eps", size, "give sizes of perturbations")
    kinds = settings["rates"]["perturbations"]
    if not isinstance(kinds, list | str) or not kinds:
        raise InputError(f"rates.perturbations must be names, found {shown(kinds)}; give {', '.join(PERTURBATIONS)}.")
    for kind in [kinds] if isinstance(kinds, str) else kinds:  # one may stand alone on a command line
        choice("rates.perturbations", kind, tuple(PERTURBATIONS))
    several = run if isinstance(run, list) else [run]
    named = all(isinstance(r, str | int) and not isinstance(r, bool) and r != "" for r in several)
    if run is not None and not (several and named):
        raise InputError(f"run must name run directories, found {shown(run)}; give a path, a glob or a list.")


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
