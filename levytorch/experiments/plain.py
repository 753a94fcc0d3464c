"""YAML and CSV of a run directory as plain values, and the values a configuration refers to.

`${dotted.key}` is looked up in the same configuration only: no resolvers, so neither code nor environment variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from levytorch.errors import InputError
from levytorch.plain_files import read_settings

Array = np.ndarray[Any, Any]
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")


def read_yaml(file: Path, missing: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """A mapping of plain values; `missing` when there is no such file."""
    if missing is not None and not file.is_file():
        return missing
    return read_settings(file)


def read_csv(file: Path, columns: Sequence[str]) -> dict[str, Array]:
    """Columns of numbers by name; these ones must be there."""
    import polars as pl

    try:
        table = pl.read_csv(file, infer_schema_length=None)
        out = {name: table[name].cast(pl.Float64).to_numpy() for name in table.columns}
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{file} must be a CSV of numbers, but cannot be read ({type(error).__name__}).") from error
    absent = [name for name in columns if name not in out]
    if absent:
        raise InputError(f"{file} must have the columns {', '.join(columns)}, but {absent[0]} is missing; run again.")
    return out


def lookup(config: Mapping[str, Any], key: str, default: Any = None, depth: int = 8) -> Any:
    """The value of a dotted key, references within the configuration followed (to a limited depth)."""
    value: Any = config
    for part in key.split("."):
        value = _follow(config, value, depth)
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return _follow(config, value, depth)


def _follow(config: Mapping[str, Any], value: Any, depth: int) -> Any:
    """A value, or what its `${dotted.key}` refers to; any other interpolation stays the text it is."""
    if isinstance(value, str) and depth > 0:
        reference = _REFERENCE.fullmatch(value)
        if reference is not None:
            return lookup(config, reference[1], None, depth - 1)
    return value
