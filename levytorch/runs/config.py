"""A whole configuration checked before any data is made: a command line can put any kind of value anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levytorch.convert import known_keys, shown, switch, whole_number
from levytorch.errors import ConfigError, InputError
from levytorch.ranks import processes
from levytorch.runs.run import settings_of
from levytorch.training.settings import FitSettings

SECTIONS = (
    *("data", "coefficients", "density", "engine", "tail", "reward", "batch"),
    *("trainer", "callbacks", "logger", "diagnostics"),
)


# the keys that something reads, of the whole and of the groups whose keys nobody else checks
KEYS = {
    "": (
        *SECTIONS,
        *("dynamics", "seed", "alpha", "init", "units", "beta", "empirical"),
        *("resume", "experiment", "arm", "variant"),
    ),
    "density": ("method",),
    "trainer": ("progress", "log_every", "devices", "num_nodes"),
    "callbacks": ("checkpoints", "figures"),
    "callbacks.checkpoints": ("every",),
    "callbacks.figures": ("files", "every"),
    "logger": ("tensorboard",),
}


def check_keys(config: Mapping[str, Any]) -> None:
    """Refuse keys that nothing reads, which `+key=value` adds: a misspelt one would be a setting that does nothing."""
    for group, known in KEYS.items():
        section: Any = config
        for name in group.split(".") if group else ():
            section = section[name]
        known_keys(f"the settings of {group}" if group else "settings", section, known, ConfigError)


def check_config(config: Mapping[str, Any]) -> FitSettings:
    """The settings of the fit; refuses what train.py would stumble over later."""
    for name in SECTIONS:
        if not isinstance(config.get(name), Mapping):
            raise ConfigError(
                f"{name} must be a group of settings, found {shown(config.get(name))}; choose an option with "
                f"{name}=<name>."
            )
    callbacks = config["callbacks"]
    for name in ("checkpoints", "figures"):
        if not isinstance(callbacks.get(name), Mapping) or "every" not in callbacks[name]:
            raise ConfigError(
                f"callbacks.{name} must have a value every, found {shown(callbacks.get(name))}; use callbacks=default."
            )
    check_keys(config)
    settings = settings_of(config)
    if not {"devices", "num_nodes"} <= set(config["trainer"]):
        raise ConfigError("trainer must have devices and num_nodes, found one missing; use trainer=default.")
    processes(config["trainer"])
    try:
        for name in ("checkpoints", "figures"):
            whole_number(f"callbacks.{name}.every", callbacks[name]["every"], 1)
        switch("logger.tensorboard", config["logger"].get("tensorboard"))
    except InputError as error:
        raise ConfigError(str(error)) from error
    return settings
