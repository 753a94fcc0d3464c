"""YAML and CSV of a run directory as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from levytorch.errors import InputError
from levytorch.plain_files import read_settings

Array = np.ndarray[Any, Any]


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
