"""Time columns as numbers in the user's unit of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from levytorch.convert import choice
from levytorch.data.arrays import positive
from levytorch.errors import InputError

if TYPE_CHECKING:
    import polars as pl

NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "day": 86_400_000_000_000,
    "week": 604_800_000_000_000,
}
MAX_DT = "max_dt"  # the column of a table, or the array of a .npz file, that says which steps are gaps
_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])  # of each month, from 1 on
_YEAR_FIRST = r"^\d{4}[-/.]?\d{2}"


def check_units(time_unit: str | None, time_in: str | None) -> None:
    """Refuse a unit that does not exist."""
    for name, unit in (("time_unit", time_unit), ("time_in", time_in)):
        if unit is not None:
            choice(name, unit, tuple(NANOSECONDS))
    if time_in is not None and time_unit is None:
        raise InputError(f"time_unit must be given with time_in = {time_in!r}, found None: pass the unit of dt.")


def to_numbers(
    column: pl.Series, where: str, time_unit: str | None, time_in: str | None, time_format: str | None
) -> NDArray[np.float64]:
    """Times as float64 in `time_unit`.

    Dates and datetimes, and numbers with `time_in`, count from the first time in the file, which is subtracted while
    they are still integers: nanoseconds since 1970 do not fit a float64. Numbers without `time_in` are taken as they
    are.
    """
    column = readable(column, where, time_format)
    ticks, tick = ticks_of(column, where, time_unit, time_in, time_format)
    if not column.dtype.is_temporal() and calendar_days(ticks):
        raise no_count(where, ticks[0])
    known = ticks[np.isfinite(ticks)]  # one bad cell must not spoil the others: the caller names it
    least, most = (known.min(), known.max()) if len(known) else (0, 0)
    return elapsed(ticks, tick, time_unit, least, most)


def calendar_days(numbers: NDArray[Any]) -> bool:
    """Whether all are days of 1900 to 2100 written as YYYYMMDD; as plain numbers, two days may be 70 apart."""
    if not len(numbers) or not 19_000_101 <= numbers[0] <= 21_001_231:  # nearly always all that is looked at
        return False
    if not ((numbers >= 19_000_101) & (numbers <= 21_001_231) & (numbers == np.floor(numbers))).all():
        return False
    days = numbers.astype(np.int64)
    year, month, day = days // 10_000, days // 100 % 100, days % 100
    if not ((month >= 1) & (month <= 12) & (day >= 1)).all():
        return False
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    return bool((day <= _DAYS[month] + (leap & (month == 2))).all())


def no_count(where: str, found: Any, remedy: str = "pass time_format='%Y%m%d' and a time_unit") -> InputError:
    """The refusal of days that stand there as numbers."""
    return InputError(
        f"{where}: times that can be subtracted were expected, found days written as numbers such as {int(found)}: "
        f"{remedy}."
    )


def units_beside_dt(
    dates: bool, time_unit: str | None, time_in: str | None, time_format: str | None
) -> tuple[tuple[str | None, str | None, str | None], bool]:
    """The units in which times are read that are only compared with a given dt, and whether these are those of dt.

    Numbers whose unit is not given are taken to be in that of dt; dates without time_unit are read in seconds.
    """
    if dates:
        return (time_unit or "s", time_in, time_format), time_unit is not None
    return (None if time_in is None else time_unit, time_in, time_format), True


def elapsed(ticks: NDArray[Any], tick: int | None, time_unit: str | None, least: Any, most: Any) -> NDArray[np.float64]:
    """Ticks of so many nanoseconds since the first one, in `time_unit`; the numbers themselves where tick is None."""
    if tick is None:
        return np.asarray(ticks, dtype=np.float64)
    unit = NANOSECONDS[str(time_unit)]
    since = ticks - least
    if np.issubdtype(since.dtype, np.integer) and (int(most) - int(least)) * tick < 2**63:
        return np.asarray(since * tick / unit, dtype=np.float64)
    return np.asarray(since * (tick / unit), dtype=np.float64)


def dt_in_unit(where: str, step: Any, time_unit: str | None, time_in: str | None) -> float:
    """A column's dt, converted where its own unit is given."""
    return positive(where, step if time_in is None else step * (NANOSECONDS[time_in] / NANOSECONDS[str(time_unit)]))


def ticks_of(
    column: pl.Series, where: str, time_unit: str | None, time_in: str | None, time_format: str | None
) -> tuple[NDArray[Any], int | None]:
    """A column of times as numbers, and how many nanoseconds one of them is (None: they are what they are)."""
    import polars as pl

    column = readable(column, where, time_format)
    if column.dtype.is_temporal():
        if time_unit is None:
            raise InputError(
                f"{where}: time_unit must be given for dates, found None: pass the unit of dt, one of "
                f"{', '.join(NANOSECONDS)}."
            )
        if column.dtype in (pl.Time, pl.Duration):
            raise InputError(f"{where}: times must be datetimes or numbers, found {column.dtype}: convert the column.")
        return column.dt.epoch("ns").to_numpy(), 1
    if not column.dtype.is_numeric():
        raise InputError(f"{where}: times must be datetimes or numbers, found {column.dtype}: choose another column.")
    # 64 bits before anything is multiplied: seconds are often stored in 32
    ticks = column.cast(pl.Int64 if column.dtype.is_integer() else pl.Float64, strict=False).to_numpy()
    if time_unit is None:
        return ticks, None
    if time_in is None:
        raise InputError(
            f"{where}: time_in must be given for a column of numbers when time_unit = {time_unit!r}, found None: "
            "pass the unit that the column is in."
        )
    return ticks, NANOSECONDS[time_in]


def readable(column: pl.Series, where: str, time_format: str | None) -> pl.Series:
    """A column of text as numbers or datetimes, integers with a time_format as datetimes; others as they are."""
    import polars as pl

    if column.dtype in (pl.Categorical, pl.Enum) or (column.dtype.is_integer() and time_format is not None):
        column = column.cast(pl.String)
    return _parse(column, where, time_format) if column.dtype == pl.String else column


def _parse(column: pl.Series, where: str, time_format: str | None) -> pl.Series:
    """Text as numbers if every cell is one, else as datetimes."""
    import polars as pl

    text = column.str.strip_chars()
    numbers = text.cast(pl.Float64, strict=False)
    if time_format is None and numbers.null_count() == 0:
        whole = text.cast(pl.Int64, strict=False)
        return numbers if whole.null_count() else whole
    if time_format is None:
        # 03/04 is in March for some and in April for others: only years that come first are read without being asked
        text = text.set(~text.str.contains(_YEAR_FIRST), None)
    try:
        parsed = text.str.to_datetime(time_format, strict=False, time_unit="ns", ambiguous="earliest")
    except pl.exceptions.PolarsError:  # no format fits the first cells
        parsed = pl.Series(column.name, [None] * len(text), dtype=pl.Datetime("ns"))
    bad = parsed.is_null() if numbers[0] is None or time_format is not None else numbers.is_null()
    if bad.any():
        row = int(bad.arg_max() or 0)
        raise InputError(
            f"{where}, row {row + 1}: times must be numbers or dates, found {column[row]!r}: correct the cell, or pass "
            "time_format (such as '%d.%m.%Y %H:%M')."
        )
    return parsed
