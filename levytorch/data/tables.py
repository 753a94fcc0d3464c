"""Tables (.csv, .tsv, .parquet) -> points -> Trajectories, by polars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.atomic import replacing
from levytorch.data.arrays import Array, positive
from levytorch.data.clock import NANOSECONDS, to_numbers
from levytorch.data.points import Points
from levytorch.data.trajectories import Trajectories
from levytorch.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_EMPTY = ["", "NA", "N/A", "NaN", "nan", "null", "None"]  # cells that mean: no value
_SEPARATORS = (",", "\t", ";", "|")


def read_table(
    file: Path,
    *,
    layout: str,
    value: list[str] | None,
    id: str | None,
    time: str | None,
    reward: str | None,
    dt: float | str | None,
    units: tuple[str | None, str | None, str | None],
    separator: str | None,
    **handling: Any,
) -> Trajectories:
    """See files.read, which checked the options."""
    table = load_table(file, separator)
    named = [("id", id), ("time", time), ("reward", reward), ("dt", dt if isinstance(dt, str) else None)]
    for option, name in [*named, *(("value", v) for v in value or [])]:
        if name is not None and name not in table.columns:
            raise InputError(
                f"{file}: {option} must be a column of the file, found no {name!r} among {_list(table.columns)}: pass "
                "one of these."
            )
    if value is not None and len(set(value)) < len(value):
        raise InputError(f"{file}: value must name different columns, found {_list(value)}: name each once.")
    if len(table) == 0:
        raise InputError(f"{file}: rows were expected below the header, found none: check how the file was written.")
    if layout == "long":
        points, dt = _long(file, table, value, id, time, reward, dt, units)
    else:
        absent = (("reward", reward), ("id", id) if layout == "wide" else ("time", time))
        for option, name in absent:
            if name is not None:
                raise InputError(
                    f"{file}: layout {layout!r} has no {option} column, found {name!r}: use layout='long'."
                )
        points = _wide(file, table, value, time, dt, units) if layout == "wide" else _rows(file, table, value, id)
    if points.times is None and not isinstance(dt, float):
        raise InputError(
            f"{file}: dt or time must be given, found neither among {_list(table.columns)}: pass dt=... or time='...'."
        )
    return points.assemble(None if points.times is not None else dt, **handling)  # type: ignore[arg-type]


def write_table(t: Trajectories, file: Path) -> None:
    """A long table: id, time or dt, x (or x1, x2, ...), reward."""
    import polars as pl

    names: Any = np.arange(len(t)) if t.ids is None else np.asarray(t.ids)
    columns: dict[str, Any] = {"id": np.repeat(names, t.lengths)}
    columns["dt" if t.times is None else "time"] = np.full(len(t.x), t.dt) if t.times is None else t.times
    for k, column in enumerate(t.x.reshape(len(t.x), -1).T):
        columns["x" if t.dim == 1 else f"x{k + 1}"] = column
    if t.reward is not None:
        columns["reward"] = t.reward
    table = pl.DataFrame(columns)
    with replacing(file) as temporary:
        try:
            if file.suffix.lower() == ".parquet":
                table.write_parquet(temporary)
            else:
                table.write_csv(temporary, separator="\t" if file.suffix.lower() == ".tsv" else ",")
        except pl.exceptions.ComputeError as error:  # what polars makes of a full disk
            raise OSError(str(error)) from error


# -------------------------------------------------------------------------------------------------------------- layouts


def _long(
    file: Path,
    table: pl.DataFrame,
    value: list[str] | None,
    id: str | None,
    time: str | None,
    reward: str | None,
    dt: float | str | None,
    units: tuple[str | None, str | None, str | None],
) -> tuple[Points, float | None]:
    """One row per observation. The names that write_table uses need not be spelled out."""
    free = [name for name in table.columns if name not in (value or [])]
    id = id or ("id" if "id" in free else None)
    reward = reward or ("reward" if "reward" in free else None)
    if time is None and dt is None:
        time = "time" if "time" in free else None
        dt = "dt" if time is None and "dt" in free else None
    if value is None:
        rest = [name for name in free if name not in (id, time, reward, dt)]
        numbered = [f"x{k + 1}" for k in range(len(rest))]
        value = ["x"] if "x" in rest else numbered if rest == numbered else rest
        if len(value) != 1 and value != numbered:
            raise InputError(f"{file}: value must name the column of x, found {_list(rest)}: pass value='...'.")
    n = len(table)
    group, ids = np.zeros(n, dtype=np.int64), None
    if id is not None:
        column = table[id]
        if column.null_count():
            row = int(column.is_null().arg_max() or 0) + 1
            raise InputError(f"{file}, column {id!r}, row {row}: a trajectory's id was expected, found none: fill it.")
        unique = column.unique(maintain_order=True)
        ids = unique.to_list()
        group = column.replace_strict(unique, np.arange(len(unique))).to_numpy().astype(np.int64)
    points = Points(
        file,
        np.stack([numbers(file, table[name]) for name in value], axis=1),
        value,
        group,
        np.arange(1, n + 1),
        ids,
        _times(file, table, time, units),
        time,
        None if reward is None else numbers(file, table[reward]),
        reward,
    )
    if isinstance(dt, str):
        steps = numbers(file, table[dt])
        if not (steps == steps[0]).all():
            row = int(np.argmax(~(steps == steps[0]))) + 1
            raise InputError(
                f"{file}, column {dt!r}, row {row}: one dt was expected throughout, found {steps[row - 1]:g} after "
                f"{steps[0]:g}: name a column of times instead."
            )
        time_unit, time_in, _ = units
        step = steps[0] if time_in is None else steps[0] * (NANOSECONDS[time_in] / NANOSECONDS[str(time_unit)])
        dt = positive(f"{file}, column {dt!r}", step)
    return points, dt


def _wide(
    file: Path,
    table: pl.DataFrame,
    value: list[str] | None,
    time: str | None,
    dt: float | str | None,
    units: tuple[str | None, str | None, str | None],
) -> Points:
    """One column per trajectory; it ends where its cells become empty."""
    clock = time or ("time" if "time" in table.columns and "time" not in (value or []) else None)
    columns = value or [name for name in table.columns if name != clock]
    time = clock if dt is None else None
    times = _times(file, table, time, units)
    parts = [_trim(numbers(file, table[name])) for name in columns]
    kept = [k for k, part in enumerate(parts) if len(part)]
    if not kept:
        raise InputError(f"{file}: numbers were expected in {_list(columns)}, found none: check the layout.")
    rows = np.concatenate([np.arange(len(parts[k])) for k in kept])
    return Points(
        file,
        np.concatenate([parts[k] for k in kept])[:, None],
        ["of every trajectory"],
        np.repeat(np.arange(len(kept)), [len(parts[k]) for k in kept]),
        rows + 1,
        [columns[k] for k in kept],
        None if times is None else times[rows],
        time,
        cell=[columns[k] for k in kept for _ in range(len(parts[k]))],
        dropped=_lost(parts, kept),
    )


def _rows(file: Path, table: pl.DataFrame, value: list[str] | None, id: str | None) -> Points:
    """One row per trajectory; it ends where its cells become empty."""
    id = id or ("id" if "id" in table.columns and "id" not in (value or []) else None)
    columns = value or [name for name in table.columns if name != id]
    grid = np.stack([numbers(file, table[name]) for name in columns], axis=1)
    parts = [_trim(line) for line in grid]
    names = list(range(1, len(parts) + 1)) if id is None else table[id].to_list()
    kept = [k for k, part in enumerate(parts) if len(part)]
    if not kept:
        raise InputError(f"{file}: numbers were expected in {_list(columns)}, found none: check the layout.")
    return Points(
        file,
        np.concatenate([parts[k] for k in kept])[:, None],
        ["of every trajectory"],
        np.repeat(np.arange(len(kept)), [len(parts[k]) for k in kept]),
        np.repeat(np.array(kept) + 1, [len(parts[k]) for k in kept]),
        [names[k] for k in kept],
        cell=[columns[j] for k in kept for j in range(len(parts[k]))],
        dropped=_lost(parts, kept),
    )


# -------------------------------------------------------------------------------------------------------------- columns


def load_table(file: Path, separator: str | None = None) -> pl.DataFrame:
    """The whole table; text cells stay text, because only then can a bad one be shown."""
    import polars as pl

    try:
        if file.suffix.lower() == ".parquet":
            return pl.read_parquet(file)
        if separator is None:
            with file.open(encoding="utf-8-sig") as stream:
                head = stream.readline()
            separator = "\t" if file.suffix.lower() == ".tsv" else max(_SEPARATORS, key=head.count)
        table = pl.read_csv(file, separator=separator, infer_schema=False, null_values=_EMPTY)
    except (pl.exceptions.PolarsError, UnicodeDecodeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        remedy = "write it again" if file.suffix.lower() == ".parquet" else "mend the file, or pass separator=..."
        if isinstance(error, UnicodeDecodeError) or "utf-8" in reason.lower():
            remedy = "save it as UTF-8"
        raise InputError(
            f"{file}: a readable {file.suffix} table was expected, found a malformed one ({reason}): {remedy}."
        ) from None
    _refuse_twice(file, table.columns)
    return table


def _refuse_twice(file: Path, columns: list[str]) -> None:
    """polars renames the second column of a name; which of the two was meant is not ours to guess."""
    for name in columns:
        original, mark, _ = name.rpartition("_duplicated_")
        if mark and original in columns:
            raise InputError(f"{file}: column names must differ, found {original!r} twice: rename one of them.")


def numbers(file: Path, column: pl.Series) -> Array:
    """A column as float64, NaN where it is empty; a cell that is no number is refused."""
    import polars as pl

    if column.dtype == pl.String:
        text = column.str.strip_chars()
        cells = text.cast(pl.Float64, strict=False)
        bad = cells.is_null() & text.is_not_null()
        if bad.any():
            row = int(bad.arg_max() or 0)
            raise InputError(
                f"{file}, column {column.name!r}, row {row + 1}: a number was expected, found {text[row]!r}: correct "
                "the cell or choose another column."
            )
    elif column.dtype.is_numeric():
        cells = column.cast(pl.Float64)
    else:
        raise InputError(
            f"{file}, column {column.name!r}, row 1: a number was expected, found {column.dtype}: choose another "
            "column."
        )
    return np.array(cells.fill_null(float("nan")).to_numpy(), dtype=np.float64)


def _times(
    file: Path, table: pl.DataFrame, time: str | None, units: tuple[str | None, str | None, str | None]
) -> Array | None:
    if time is None:
        return None
    column = table[time]
    where = f"{file}, column {time!r}"
    if column.null_count():
        row = int(column.is_null().arg_max() or 0) + 1
        raise InputError(f"{where}, row {row}: a time was expected, found none: fill the cell or remove the row.")
    times = to_numbers(column, where, *units)
    if not np.isfinite(times).all():
        row = int(np.argmax(~np.isfinite(times))) + 1
        raise InputError(f"{where}, row {row}: a finite time was expected, found {times[row - 1]}: correct the cell.")
    return times


def _trim(values: Array) -> Array:
    """Without the empty cells at the end."""
    filled = np.flatnonzero(~np.isnan(values))
    return values[: filled[-1] + 1] if len(filled) else values[:0]


def _lost(parts: list[Array], kept: list[int]) -> dict[str, int]:
    return {"trajectory without a value": len(parts) - len(kept)} if len(kept) < len(parts) else {}


def _list(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:12]) + (", ..." if len(names) > 12 else "")
