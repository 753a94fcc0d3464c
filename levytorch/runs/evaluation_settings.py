"""The settings of evaluate.py, checked before any work: a command line can put any kind of value anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from levytorch.convert import choice, known_keys, number_within, positive_number, shown, switch, whole_number
from levytorch.dynamics import SYSTEMS
from levytorch.errors import ConfigError, InputError, within_configuration
from levytorch.policy.checks import check_window
from levytorch.policy.named import check_policies
from levytorch.policy.rewards import check_reward
from levytorch.spaces.basis import MOST_MODES

FORMATS = ("png", "pdf")  # of figures: PNG alone, or PDF beside it


class Setting(NamedTuple):
    """kind: what `_check` looks for; usual: a value that makes sense; least: of a whole number; optional: null is a
    choice.
    """

    kind: str
    usual: Any = None
    least: int = 0
    optional: bool = False


SETTINGS = {
    "out": Setting("name", optional=True),
    "beta": Setting("positive", 0.1),
    "n_modes": Setting("modes", 64, 1, optional=True),
    "tolerance": Setting("positive", 1e-6),
    "group_by": Setting("name"),
    "tensorboard": Setting("switch"),
    "baselines": Setting("switch"),
    "truth.name": Setting("system", optional=True),
    "truth.alpha": Setting("below one", 0.3, optional=True),
    "data.path": Setting("name", optional=True),
    "data.n_terms": Setting("whole", 3001, 1, optional=True),
    "data.horizon": Setting("positive", 100.0, optional=True),
    "data.linear": Setting("switch"),
    "data.n_basis": Setting("modes", 11, 1),
    "data.first": Setting("whole", 6000, 1, optional=True),
    "data.random": Setting("whole", 60000, 1, optional=True),
    "data.seed": Setting("whole", 0),
    "figures.format": Setting("format"),
}
GROUPS = ("reward", "truth", "data", "data.options", "figures")
# what is looked at by itself; the last three: conf/experiment/value_error.yaml
OTHERS = ("run", "window", "policy", "experiment", "of", "sweep", "size")


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings of the wrong kind."""
    for key in GROUPS:
        if not isinstance(_at(settings, key), Mapping):
            raise ConfigError(f"{key} must be a group of settings, found {shown(_at(settings, key))}; give one.")
    known = (*SETTINGS, *GROUPS, *OTHERS)
    known_keys("settings", settings, [key for key in known if "." not in key], ConfigError)
    for group in ("truth", "data", "figures"):
        own = [key.partition(".")[2] for key in known if key.startswith(f"{group}.")]
        known_keys(f"the settings of {group}", settings[group], own, ConfigError)
    with within_configuration():
        for key, setting in SETTINGS.items():
            if not (setting.optional and _at(settings, key) is None):
                _check(key, _at(settings, key), setting)
        _check_lists(settings)
        reward = settings["reward"]
        if reward.get("name") == "regressed" and settings["data"]["path"] is None:
            raise InputError(
                "data.path must be given for reward=regressed, found none; name data with a reward column."
            )
        check_policies(settings.get("policy"))
        if settings["run"] is not None:
            check_reward(reward, settings["beta"])


def _check(key: str, value: Any, setting: Setting) -> None:
    remedy = f"give one, for example {key}={setting.usual}"
    if setting.usual is not None and isinstance(value, list):
        raise InputError(f"{key} must be a number, found {shown(value)}; {remedy}.")
    if setting.kind in ("whole", "modes"):
        whole_number(key, value, setting.least, MOST_MODES if setting.kind == "modes" else None, remedy)
    elif setting.kind == "positive":
        positive_number(key, value, remedy)
    elif setting.kind == "below one":
        number_within(key, value, "(0, 1)", remedy)
    elif setting.kind == "switch":
        switch(key, value)
    elif setting.kind == "format":
        choice(key, value, FORMATS)
    # a directory may be called 5
    elif isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise InputError(f"{key} must be a name, found {shown(value)}; give one.")
    elif setting.kind == "system":
        choice(key, value, tuple(SYSTEMS))


def _check_lists(settings: Mapping[str, Any]) -> None:
    window, run = settings["window"], settings["run"]
    if window is not None and window != "data":
        try:
            check_window(window, math.inf, None)
        except InputError as error:
            raise InputError(f"{str(error).removesuffix('.')}, or use window=data, the range of the data.") from error
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
