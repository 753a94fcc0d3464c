"""Columns of tables: which they are, their numbers and times; every refusal names file, column and row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.data.arrays import Array
from levytorch.data.clock import MAX_DT, dt_in_unit, readable, to_numbers, units_beside_dt
from levytorch.data.memory import require
from levytorch.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_EMPTY = ["", "NA", "N/A", "NaN", "nan", "null", "None"]  # cells that mean: no value
_COMMA, _POINT = (rf"^\s*[+-]?\d*{mark}\d+([eE][+-]?\d+)?\s*$" for mark in (",", r"\."))  # numbers with either
_SEPARATORS = (",", "\t", ";", "|")
Names = tuple[list[str], str | None, str | None, str | None, float | str | None]


def check_columns(file: Path, columns: list[str], rows: int, asked: dict[str, Any]) -> None:
    """Refuse options that name columns which are not there, and a table without rows."""
    dt, value = asked["dt"], asked["value"]
    named = [(option, asked[option]) for option in ("id", "time", "reward")]
    named += [("dt", dt if isinstance(dt, str) else None), *(("value", v) for v in value or [])]
    for option, name in named:
        if name is not None and name not in columns:
            raise InputError(
                f"{file}: {option} must be a column of the file, found no {name!r} among {listed(columns)}: pass one "
                "of these."
            )
    if value is not None and len(value) == 0:
        raise InputError(f"{file}: value must name at least one column, found none: pass some of {listed(columns)}.")
    if value is not None and len(set(value)) < len(value):
        raise InputError(f"{file}: value must name different columns, found {listed(value)}: name each once.")
    if rows == 0:
        raise InputError(f"{file}: rows were expected below the header, found none: check how the file was written.")


def name_columns(file: Path, columns: list[str], asked: dict[str, Any]) -> Names:
    """value, id, time, reward and dt of a long table; the names that write_table uses need not be spelled out."""
    value, id, time, reward, dt = (asked[option] for option in ("value", "id", "time", "reward", "dt"))
    free = [name for name in columns if name not in (value or []) and name != dt]
    id = id or ("id" if "id" in free else None)
    reward = reward or ("reward" if "reward" in free else None)
    if time is None:
        time = "time" if "time" in free else None  # also beside a dt: the two must agree
    if time is None and dt is None:
        dt = "dt" if "dt" in free else None
    if value is None:
        rest = [name for name in free if name not in (id, time, reward, dt, MAX_DT)]
        numbered = [f"x{k + 1}" for k in range(len(rest))]
        value = ["x"] if "x" in rest else numbered if rest == numbered else rest
        if not value or (len(value) != 1 and value != numbered):
            found = listed(rest) or "none"
            raise InputError(f"{file}: value must name the column of x, found {found}: pass value='...'.")
    return value, id, time, reward, dt


def load_table(file: Path, separator: str | None = None) -> pl.DataFrame:
    """The whole table; text cells stay text, because only then can a bad one be shown."""
    import polars as pl

    with reading(file):
        if file.suffix.lower() == ".parquet":
            scan = pl.scan_parquet(file)
            # polars ends the process when it cannot allocate, so it is asked only for what there is room for
            require(file, int(scan.select(pl.len()).collect().item()), len(scan.collect_schema()))
            return pl.read_parquet(file)
        if separator is None:
            with file.open(encoding="utf-8-sig") as stream:
                head = stream.readline()
            separator = "\t" if file.suffix.lower() == ".tsv" else max(_SEPARATORS, key=head.count)
        return pl.read_csv(file, separator=separator, infer_schema=False, null_values=_EMPTY)


def with_points(file: Path, table: pl.DataFrame) -> pl.DataFrame:
    """Decimal commas as points. A number with a point is refused: 1.234 would be a thousand times too small."""
    import polars as pl

    for column in table:
        pointed = column.str.contains(_POINT).fill_null(False)
        if pointed.any():
            row = int(pointed.arg_max() or 0)
            raise InputError(
                f"{file}, column {column.name!r}, row {row + 1}: numbers must have a decimal comma, found "
                f"{column[row]!r}: leave decimal out, or remove the points between thousands."
            )
    text = pl.all()
    return table.with_columns(pl.when(text.str.contains(_COMMA)).then(text.str.replace(",", ".")).otherwise(text))


def refuse_twice(file: Path, columns: list[str]) -> None:
    """polars renames the second column of a name; which of the two was meant is not ours to guess."""
    for name in columns:
        original, mark, _ = name.rpartition("_duplicated_")
        if mark and original in columns:
            raise InputError(f"{file}: column names must differ, found {original!r} twice: rename one of them.")


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """What polars says of a malformed file, in one sentence."""
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, UnicodeDecodeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        remedy = "write it again" if file.suffix.lower() == ".parquet" else "mend the file, or pass separator=..."
        if isinstance(error, UnicodeDecodeError) or "utf-8" in reason.lower():
            remedy = "save it as UTF-8"
        raise InputError(
            f"{file}: a readable {file.suffix} table was expected, found a malformed one ({reason}): {remedy}."
        ) from None


def no_clock(file: Path, columns: list[str]) -> InputError:
    return InputError(
        f"{file}: dt or time must be given, found neither among {listed(columns)}: pass dt=... or time='...'."
    )


def no_id(file: Path, id: str | None, row: int) -> InputError:
    return InputError(f"{file}, column {id!r}, row {row}: a trajectory's id was expected, found none: fill it.")


def check_id(file: Path, id: str, dtype: Any, on_disk: bool) -> None:
    """Refuse a column that cannot name trajectories; on disk names are kept as JSON, which has numbers and text."""
    import polars as pl

    plain = dtype.is_numeric() and not dtype.is_decimal()
    plain = plain or dtype in (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null)
    if plain or not (on_disk or dtype.is_nested() or dtype == pl.Object):
        return
    raise InputError(
        f"{file}, column {id!r}: ids must be numbers or text, found {dtype}: convert the column, or name another as id."
    )


def no_time(where: str, row: int) -> InputError:
    return InputError(f"{where}, row {row}: a time was expected, found none: fill the cell or remove the row.")


def bad_time(where: str, row: int, found: float) -> InputError:
    return InputError(f"{where}, row {row}: a finite time was expected, found {found}: correct the cell.")


def numbers(file: Path, column: pl.Series, before: int = 0) -> Array:
    """A column as float64, NaN where it is empty; a cell that is no number is refused (`before`: rows before it)."""
    import polars as pl

    if column.dtype == pl.String:
        text = column.str.strip_chars()
        cells = text.cast(pl.Float64, strict=False)
        bad = cells.is_null() & text.is_not_null()
        if bad.any():
            row = int(bad.arg_max() or 0)
            remedy = "correct the cell or choose another column"
            if re.match(_COMMA, text[row]):
                remedy = "pass decimal=',' if that is a decimal comma, or remove the commas between thousands"
            raise InputError(
                f"{file}, column {column.name!r}, row {before + row + 1}: a number was expected, found {text[row]!r}: "
                f"{remedy}."
            )
    elif column.dtype.is_numeric():
        cells = column.cast(pl.Float64)
    else:
        raise InputError(
            f"{file}, column {column.name!r}, row 1: a number was expected, found {column.dtype}: choose another "
            "column."
        )
    return np.array(cells.fill_null(float("nan")).to_numpy(), dtype=np.float64)


def one_number(file: Path, parts: Iterable[pl.Series], what: str, remedy: str) -> float:
    """The number that a column, part after part, holds throughout."""
    first: float | None = None
    before = 0
    for part in parts:
        cells = numbers(file, part, before)
        first = float(cells[0]) if first is None else first
        other = ~(cells == first)
        if other.any():
            row = int(np.argmax(other))
            raise InputError(
                f"{file}, column {part.name!r}, row {before + row + 1}: one {what} was expected throughout, found "
                f"{cells[row]:g} after {first:g}: {remedy}."
            )
        before += len(cells)
    assert first is not None
    return first


def has_max_dt(columns: list[str], asked: dict[str, Any]) -> bool:
    """Whether the table itself says which steps are gaps; a column that an option names is something else."""
    named = [*(asked["value"] or []), *(asked[option] for option in ("id", "time", "reward", "dt"))]
    return MAX_DT in columns and MAX_DT not in named


def max_dt_of(file: Path, parts: Iterable[pl.Series], units: tuple[str | None, str | None, str | None]) -> float:
    """The table's own max_dt, which is in the unit of its times."""
    found = one_number(file, parts, MAX_DT, "make it one number, or pass max_dt")
    return dt_in_unit(f"{file}, column {MAX_DT!r}", found, *units[:2])


def times_of(
    file: Path,
    table: pl.DataFrame,
    time: str | None,
    units: tuple[str | None, str | None, str | None],
    beside_dt: bool,
) -> tuple[Array | None, bool]:
    """The times, and whether they are in the unit of dt (dates without time_unit beside a dt are not)."""
    if time is None:
        return None, True
    column = table[time]
    where = f"{file}, column {time!r}"
    if column.null_count():
        raise no_time(where, int(column.is_null().arg_max() or 0) + 1)
    unit_known = True
    if beside_dt:
        column = readable(column, where, units[2])
        units, unit_known = units_beside_dt(column.dtype.is_temporal(), *units)
    times = to_numbers(column, where, *units)
    if not np.isfinite(times).all():
        row = int(np.argmax(~np.isfinite(times))) + 1
        raise bad_time(where, row, times[row - 1])
    return times, unit_known


def listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:12]) + (", ..." if len(names) > 12 else "")
