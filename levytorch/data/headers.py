"""Tables that are not what their layout says: no header, an index or a clock among the trajectories."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from levytorch.data.arrays import Array
from levytorch.errors import InputError

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DATE = re.compile(r"\d{4}[-/.]\d{2}[-/.]\d{2}.*")
_AGAIN = re.compile(r"_duplicated_\d+$")  # polars' mark of a name that was there before


def check_header(file: Path, columns: list[str], layout: str, asked: dict[str, Any], comma: bool) -> None:
    """Refuse a text table whose first line is an observation: it would be lost as the header.

    Numbers may name columns: where an option names one of them, and where they count the columns of a wide table or of
    one of rows (0, 1, 2, ... or the times 0, 0.5, 1, ...).
    """
    cells = [_AGAIN.sub("", name).strip() for name in columns]
    cells = [cell.replace(",", ".") if comma else cell for cell in cells if cell]
    numbers = [float(cell) for cell in cells if _NUMBER.fullmatch(cell)]
    if not numbers or not all(_NUMBER.fullmatch(cell) or _DATE.fullmatch(cell) for cell in cells):
        return
    named = [*(asked["value"] or []), *(asked[option] for option in ("id", "time", "reward", "dt"))]
    if any(name in columns for name in named):
        return
    if layout != "long" and len(numbers) == len(cells) > 2 and steps_evenly(np.array(numbers)):
        return
    raise InputError(
        f"{file}: a header that names the columns was expected in the first line, found the numbers "
        f"{', '.join(columns[:3])}{', ...' if len(columns) > 3 else ''}: write a header above them."
    )


def steps_evenly(values: Array) -> bool:
    """Whether all steps are the same but for rounding, and not zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.diff(values)
        rounding = 4 * np.spacing(np.abs(values).max())
        # steps that are hardly more than rounding are too few floats apart to tell
        return bool((np.abs(steps - steps[0]) <= rounding).all() and np.abs(steps[0]) > 1e3 * rounding)
