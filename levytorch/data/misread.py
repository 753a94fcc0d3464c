"""Tables that are not what their layout says: no header, an index or a clock among the trajectories."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from levytorch.convert import Array
from levytorch.data.options import FileOptions
from levytorch.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DATE = re.compile(r"\d{4}[-/.]\d{2}[-/.]\d{2}.*")
_UNNAMED = re.compile(r"(Unnamed: \d+|_duplicated_\d+|__index_level_\d+__)?")  # as pandas and polars call them
_FAR = 5  # times the usual step
_LEAST = 4  # numbers that must step evenly to be taken for a count
_AGAIN = re.compile(r"_duplicated_\d+$")  # polars' mark of a name that was there before


def check_header(file: Path, columns: list[str], options: FileOptions) -> None:
    """Refuse a text table whose first line is an observation, which would be lost as the header, and a name used twice.

    Numbers may name columns: where an option names one of them, and where they count the columns of a wide table or of
    one of rows (0, 1, 2, ... or the times 0, 0.5, 1, ...).
    """
    names = [_AGAIN.sub("", name) for name in columns]
    cells = [name.strip().replace(",", ".") if options.decimal != "." else name.strip() for name in names]
    cells = [cell for cell in cells if cell]
    numbers = [float(cell) for cell in cells if _NUMBER.fullmatch(cell)]
    only_numbers = bool(numbers) and all(_NUMBER.fullmatch(cell) or _DATE.fullmatch(cell) for cell in cells)
    counted = options.layout != "long" and len(numbers) == len(cells) > 2 and steps_evenly(np.array(numbers))
    if only_numbers and not counted and not any(name in columns for _, name in options.named()):
        raise InputError(
            f"{file}: a header that names the columns was expected in the first line, found the numbers "
            f"{', '.join(columns[:3])}{', ...' if len(columns) > 3 else ''}; write a header above them."
        )
    for name, original in zip(columns, names):  # which of the two was meant is not ours to guess
        if name != original and original in columns:
            raise InputError(f"{file}: column names must differ, found {original!r} twice; rename one of them.")


def refuse_unnamed(file: Path, table: pl.DataFrame, columns: list[str], layout: str) -> None:
    """Refuse a column without a name among the data, which is as a rule the index of whatever wrote the file."""
    option = "time" if layout == "wide" else "id"
    for name in columns:
        if _UNNAMED.fullmatch(name.strip()) and table[name].null_count() < len(table):
            raise InputError(
                f"{file}, column {columns.index(name) + 1} of the data: a name was expected in the header, found "
                f"{name!r}; remove the column if it only counts, or name it and pass {option}=... or value=[...]."
            )


def refuse_clock(file: Path, columns: list[str], parts: list[Array]) -> None:
    """Refuse a column of a wide table that counts: no trajectory takes equal steps throughout."""
    for name, part in zip(columns, parts):
        if len(part) >= _LEAST and steps_evenly(part[:_LEAST]) and steps_evenly(part):
            raise InputError(
                f"{file}, column {name!r}: a trajectory was expected, found steps of {part[1] - part[0]:g} throughout; "
                f"pass time={name!r} (instead of dt) if these are times, remove the column if it only counts, or name "
                "the trajectories with value=[...]."
            )


def refuse_index(file: Path, columns: list[str], grid: Array) -> None:
    """Refuse a first column that counts the rows, or says when they begin.

    Trajectories may start on a grid of states, which their second points are then near to, as near as to the third.
    """
    first = grid[:, 0]
    if len(first) < _LEAST or not (steps_evenly(first[:_LEAST]) and steps_evenly(first)):
        return
    counts = first[0] in (0, 1) and first[1] - first[0] == 1
    if not counts and grid.shape[1] > 2:
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.abs(np.diff(grid[:, :3], axis=1))
        steps = steps[np.isfinite(steps).all(axis=1)]
        if len(steps) and np.median(steps[:, 0]) <= _FAR * np.median(steps[:, 1]):
            return
    raise InputError(
        f"{file}, column {columns[0]!r}: the first points of trajectories were expected, found steps of "
        f"{first[1] - first[0]:g} from row to row; pass id={columns[0]!r} if these name the trajectories, remove the "
        "column if it only counts, or name the observations with value=[...]."
    )


def steps_evenly(values: Array) -> bool:
    """Whether all steps are the same but for rounding, and not zero."""
    with np.errstate(over="ignore", invalid="ignore"):
        steps = np.diff(values)
        rounding = 4 * np.spacing(np.abs(values).max())
        # steps that are hardly more than rounding are too few floats apart to tell
        return bool((np.abs(steps - steps[0]) <= rounding).all() and np.abs(steps[0]) > 1e3 * rounding)
