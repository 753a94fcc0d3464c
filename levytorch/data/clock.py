"""Times of files as numbers in the user's unit of time, block after block, and the dt that stands beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from levytorch.convert import Array, Integers
from levytorch.data.options import NANOSECONDS, TimeUnits
from levytorch.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_YEAR_FIRST = r"^\d{4}[-/.]?\d{2}"
_SAME = 1e-6  # relative difference of steps that are one


class FileClock:
    """The times of a file, named `where`: `ticks` of every block, `see` all of them, then `times` of every block.

    Dates, and numbers with `time_in`, count from the first time in the file, which is subtracted while they are still
    integers: nanoseconds since 1970 do not fit a float64. Numbers without `time_in` are taken as they are. Times beside
    a dt are only compared with it; the unit of dates is not known without time_unit, and their steps need only be even.
    """

    def __init__(
        self,
        where: str,
        units: TimeUnits,
        beside_dt: bool,
        days: str = "pass time_format='%Y%m%d' and a time_unit",
    ) -> None:
        self.where, self.units, self.beside_dt, self._remedy = where, units, beside_dt, days
        self.unit_known = True
        self._dates: bool | None = None  # None: nothing seen yet
        self._tick: int | None = None  # nanoseconds; None: the numbers are what they are
        self._first: pl.Series | None = None  # cell of a column of text, which decides how the others are read
        self._whole, self._days = True, True
        self._example: Any = None  # the first number
        self._least: Any = None
        self._most: Any = None
        self._step: float | None = None  # the first one

    @property
    def dates(self) -> bool:
        """Whether the times are dates: nanoseconds since 1970."""
        return bool(self._dates)

    @property
    def tick(self) -> int | None:
        """Nanoseconds of one unit of `ticks`; None where it is not known."""
        return self._tick

    def ticks(self, column: pl.Series | NDArray[Any], before: int = 0) -> NDArray[Any]:
        """A block of the column, so many rows after the first, as integers or floats."""
        import polars as pl

        if isinstance(column, np.ndarray):
            if column.dtype.kind in "fiu" and self.units.time_unit is None:
                self._dates = False
                return column
            column = pl.Series(column.astype("datetime64[ns]") if column.dtype.kind == "M" else column)
        column = self._readable(column, before)
        if self._dates is None:
            self._dates = column.dtype.is_temporal()
            if self.beside_dt:
                self._read_beside_dt()
        if column.dtype in (pl.Time, pl.Duration) or not (column.dtype.is_temporal() or column.dtype.is_numeric()):
            raise InputError(
                f"{self.where}: times must be datetimes or numbers, found {column.dtype}; choose or convert a column."
            )
        if column.dtype.is_temporal():
            if self.units.time_unit is None:
                raise InputError(
                    f"{self.where}: time_unit must be given for dates, found None; pass the unit of dt, one of "
                    f"{', '.join(NANOSECONDS)}."
                )
            self._tick = 1
            return column.dt.epoch("ns").to_numpy()
        if self.units.time_unit is not None:
            if self.units.time_in is None:
                raise InputError(
                    f"{self.where}: time_in must be given for a column of numbers when time_unit = "
                    f"{self.units.time_unit!r}, found None; pass the unit that the column is in."
                )
            self._tick = NANOSECONDS[self.units.time_in]
        # 64 bits before anything is multiplied: seconds are often stored in 32
        return column.cast(pl.Int64 if column.dtype.is_integer() else pl.Float64, strict=False).to_numpy()

    def see(self, ticks: NDArray[Any]) -> None:
        """Remember the range of a block, and whether these may be days."""
        self._days = self._days and not self._dates and _calendar_days(ticks)
        self._whole = self._whole and ticks.dtype.kind in "iu"
        self._example = ticks[0] if self._example is None and len(ticks) else self._example
        known = ticks if ticks.dtype.kind in "iu" else ticks[np.isfinite(ticks)]  # bad cells are named elsewhere
        if len(known):
            least, most = known.min(), known.max()
            self._least = least if self._least is None else min(self._least, least)
            self._most = most if self._most is None else max(self._most, most)

    def refuse_days(self) -> None:
        """Refuse days that stand there as numbers, once all were seen."""
        if self._days and self._example is not None:
            raise InputError(
                f"{self.where}: the differences of times must be lengths of time, found days written as "
                f"numbers such as {int(self._example)}; {self._remedy}."
            )

    def times(self, ticks: NDArray[Any]) -> Array:
        """A block in the unit that is wanted, once all were seen."""
        if not self._whole:
            ticks = np.asarray(ticks, dtype=np.float64)
        if self._tick is None or self._least is None:
            return np.asarray(ticks, dtype=np.float64)
        unit = NANOSECONDS[str(self.units.time_unit)]
        since = ticks - (self._least if self._whole else np.float64(self._least))
        if self._whole and (int(self._most) - int(self._least)) * self._tick < 2**63:
            return np.asarray(since * self._tick / unit, dtype=np.float64)
        return np.asarray(since * (self._tick / unit), dtype=np.float64)

    def check_dt(self, dt: float, times: Array, across: Integers) -> None:
        """Refuse a dt that the times contradict; steps `across` lead from one trajectory to the next."""
        if len(times) < 2:
            return
        steps = np.diff(times)
        self._step = float(steps[0]) if self._step is None else self._step
        expected = dt if self.unit_known else self._step
        steps[across] = expected
        rounding = 4 * float(np.spacing(np.abs(times).max()))
        wrong = ~(np.abs(steps - expected) <= max(_SAME * expected, rounding))
        if not wrong.any():
            return
        found = float(steps[int(np.argmax(wrong))])
        if self.unit_known:
            raise InputError(
                f"{self.where}: these times must be dt = {dt:g} apart, found a step of {found:g}; leave dt out to use "
                "the times (time_in and time_unit convert them), or remove them from the file."
            )
        raise InputError(
            f"{self.where}: times beside dt = {dt:g} must be evenly spaced, found a step of {found:g} s after "
            f"{expected:g} s; leave dt out and pass time_unit=... to use the dates, or remove them from the file."
        )

    def _read_beside_dt(self) -> None:
        """Numbers whose unit is not given are taken to be in that of dt; dates without time_unit are read in s."""
        time_unit, time_in, _ = self.units
        if self._dates:
            self.units, self.unit_known = self.units._replace(time_unit=time_unit or "s"), time_unit is not None
        else:
            self.units = self.units._replace(time_unit=None if time_in is None else time_unit)

    def _readable(self, column: pl.Series, before: int) -> pl.Series:
        """A column of text as numbers or datetimes, integers with a time_format as datetimes; others as they are."""
        import polars as pl

        if column.dtype in (pl.Categorical, pl.Enum) or (column.dtype.is_integer() and self.units.time_format):
            column = column.cast(pl.String)
        if column.dtype != pl.String:
            return column
        if self._first is None:
            self._first = column.head(1)
            return self._parse(column, before)
        return self._parse(pl.concat([self._first.alias(column.name), column]), before - 1)[1:]

    def _parse(self, column: pl.Series, before: int) -> pl.Series:
        """Text as numbers if every cell is one, else as datetimes; the first cell decides which of them is wrong."""
        import polars as pl

        time_format = self.units.time_format
        text = column.str.strip_chars()
        numbers = text.cast(pl.Float64, strict=False)
        if time_format is None and numbers.null_count() == 0:
            whole = text.cast(pl.Int64, strict=False)
            return numbers if whole.null_count() else whole
        if time_format is None:
            # 03/04 is in March for some and in April for others: only years that come first are read unasked
            text = text.set(~text.str.contains(_YEAR_FIRST), None)
        try:
            parsed = text.str.to_datetime(time_format, strict=False, time_unit="ns", ambiguous="earliest")
        except pl.exceptions.PolarsError:  # no format fits the first cells
            parsed = pl.Series(column.name, [None] * len(text), dtype=pl.Datetime("ns"))
        bad = parsed.is_null() if numbers[0] is None or time_format is not None else numbers.is_null()
        if bad.any():
            row = int(bad.arg_max() or 0)
            raise InputError(
                f"{self.where}, row {before + row + 1}: times must be numbers or dates, found "
                f"{column[row]!r}; correct the cell, or pass time_format (such as '%d.%m.%Y %H:%M')."
            )
        return parsed


def _calendar_days(numbers: NDArray[Any]) -> bool:
    """Whether all are days of 1900 to 2100 written as YYYYMMDD; as plain numbers, two days may be 70 apart."""
    import polars as pl

    if not len(numbers) or not 19_000_101 <= numbers[0] <= 21_001_231:  # nearly always all that is looked at
        return False
    if not ((numbers >= 19_000_101) & (numbers <= 21_001_231) & (numbers == np.floor(numbers))).all():
        return False
    days = pl.Series(numbers.astype(np.int64)).cast(pl.String)
    return not days.str.to_date("%Y%m%d", strict=False).null_count()
