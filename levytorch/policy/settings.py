"""The settings of evaluate.py, checked before any work: a command line can put any kind of value anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from levytorch.errors import ConfigError

# dotted key -> smallest value; null where null is a choice
INTEGERS = {
    "n_modes": 1,
    "data.n_terms": 1,
    "data.n_basis": 1,
    "data.first": 1,
    "data.random": 1,
    "data.seed": 0,
    "rates.n_trials": 1,
    "rates.n_modes": 1,
    "rates.seed": 0,
}
POSITIVE = ("tolerance", "data.horizon", "truth.alpha", "rates.alpha")
OPTIONAL = {"n_modes", "data.n_terms", "data.first", "data.random", "data.horizon", "truth.alpha"}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings of the wrong kind."""
    for key, least in INTEGERS.items():
        value = _at(settings, key)
        if value is None and key in OPTIONAL:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{key} must be an integer of at least {least}, but is {value!r}; correct it.")
    for key in POSITIVE:
        value = _at(settings, key)
        if value is None and key in OPTIONAL:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ConfigError(f"{key} must be a positive number, but is {value!r}; correct it.")


def newest(parent: str) -> str:
    """The last directory of `parent` by name, which for sweeps begins with their time: ${newest:multirun/<name>}."""
    found = sorted(path for path in Path(parent).glob("*") if path.is_dir())
    if not found:
        raise ConfigError(
            f"A sweep was expected in {parent}, but there is none; run it first, or give sweep=<its place>."
        )
    return str(found[-1])


def texts(settings: Mapping[str, Any], key: str) -> list[str]:
    """One text or several, as a list; a directory may be called 5."""
    value = _at(settings, key)
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]


def _at(settings: Mapping[str, Any], key: str) -> Any:
    value: Any = settings
    for part in key.split("."):
        value = value[part]
    return value
