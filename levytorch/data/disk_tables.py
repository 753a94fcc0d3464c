"""Parquet tables larger than memory -> a store entry of points.

Columns are first copied as they are, some row groups at a time; the checks that a table in memory gets are then made
block by block. Rows of a trajectory must follow each other in the order of time: nothing is sorted here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from levytorch.data.arrays import Counts
from levytorch.data.clock import MAX_DT, calendar_days, dt_in_unit, elapsed, no_count, ticks_of, units_beside_dt
from levytorch.data.even import check_dt
from levytorch.data.points import Points
from levytorch.data.store import Writer
from levytorch.data.table_columns import (
    bad_time,
    check_columns,
    check_id,
    has_max_dt,
    max_dt_of,
    name_columns,
    no_clock,
    no_id,
    no_time,
    numbers,
    reading,
)
from levytorch.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_ROWS = 1 << 18  # rows read at a time: what polars writes as one row group
_BLOCK = 1 << 17


class DiskTable:
    """A long Parquet table on its way into a store; options are those of files.read, checked there."""

    def __init__(self, file: Path, options: dict[str, Any]) -> None:
        import polars as pl

        if options["layout"] != "long" or options["sort"]:
            found = "sort=True" if options["sort"] else f"layout {options['layout']!r}"
            raise InputError(
                f"{file}: on_disk needs a long table whose rows are in order, found {found}: write the file so, sorted "
                "by id and time."
            )
        self.file, self.options = file, options
        with reading(file):
            self.scan = pl.scan_parquet(file)
            schema = self.scan.collect_schema()
            columns = self.columns = schema.names()
            self.n = int(self.scan.select(pl.len()).collect().item())
        check_columns(file, columns, self.n, options)
        self.value, self.id, self.time, self.reward, self.dt = name_columns(file, columns, options)
        if self.time is None and self.dt is None:
            raise no_clock(file, columns)
        kind = None if self.time is None else schema[self.time]
        self.dates = kind is not None and (
            kind.is_temporal() or (kind.is_integer() and options["units"][2] is not None)
        )
        self.units, self.unit_known = options["units"], True
        if self.time is not None and self.dt is not None:
            self.units, self.unit_known = units_beside_dt(self.dates, *options["units"])
        if self.id is not None:
            check_id(file, self.id, schema[self.id], on_disk=True)
        self.names: list[Any] = []  # of the runs of rows with one id
        self.starts: list[NDArray[np.int64]] = []  # and where they begin

    def write(self, writer: Writer) -> dict[str, Any]:
        """All points into a store entry; its record."""
        clock, dt = self._copy(writer)
        if self.time is not None and not self.dates:
            self._refuse_days(writer)
        starts = np.concatenate(self.starts) if self.id is not None else np.zeros(1, dtype=np.int64)
        lengths, lost = self._count(writer, starts)
        single = lengths == 1
        last: Points | None = None
        problem: InputError | None = None
        for part in self._parts(writer, starts, clock):
            part.clean(self.options["drop_missing"], dt, self.options["log"])
            part._take(np.flatnonzero(~single[part.group]))
            if not len(part.group):
                continue
            if part.times is not None:
                problem = problem or part.clock_problem(last)
                writer.append("times", part.times)
            last = part.tail()
            writer.append("x", part.values if len(self.value) > 1 else part.values[:, 0])
            if part.reward is not None:
                writer.append("reward", part.reward)
        self._refuse_single(starts, lengths, writer)
        if problem is not None:
            raise problem
        kept = lengths > 1
        writer.append("lengths", lengths[kept])
        if self.time is not None and dt is not None:
            ends = np.concatenate([[0], np.cumsum(lengths[kept])])
            check_dt(f"{self.file}, column {self.time!r}", writer.array("times"), ends, dt, self.unit_known)
            writer.drop("times")
        writer.drop("values", "ticks", "rewards")
        reasons = {"row without a value": lost, "trajectory of one point": int(single.sum())}
        record: dict[str, Any] = {"dt": dt, "columns": self.value}
        record["dropped"] = {reason: count for reason, count in reasons.items() if count}
        if self.id is not None:
            record["ids"] = [self.names[k] for k in np.flatnonzero(kept)]
        return record

    def max_dt(self) -> float | None:
        """The table's own max_dt, if it has one."""
        if not has_max_dt(self.columns, self.options):
            return None
        return max_dt_of(self.file, self._column(MAX_DT), self.options["units"])

    def _column(self, name: str) -> Iterator[pl.Series]:
        for low in range(0, self.n, _ROWS):
            with reading(self.file):
                part = self.scan.select(name).slice(low, _ROWS).collect()[name]
            yield part

    # ------------------------------------------------------------------------------------------------------ the passes

    def _copy(self, writer: Writer) -> tuple[tuple[int | None, Any, Any] | None, float | None]:
        """Columns as they are; the tick of the times with their range, and dt."""
        clock: tuple[int | None, Any, Any] | None = None
        dt = self.dt if isinstance(self.dt, float) else None
        asked = [*self.value, self.id, self.time, self.reward, self.dt if isinstance(self.dt, str) else None]
        columns = list(dict.fromkeys(name for name in asked if name is not None))
        for low in range(0, self.n, _ROWS):
            with reading(self.file):
                table = self.scan.select(columns).slice(low, _ROWS).collect()
            parts = [numbers(self.file, table[name], low) for name in self.value]
            writer.append("values", np.stack(parts, axis=1))
            if self.reward is not None:
                writer.append("rewards", numbers(self.file, table[self.reward], low))
            if self.id is not None:
                self._runs(table[self.id], low)
            if isinstance(self.dt, str):
                dt = self._even(numbers(self.file, table[self.dt], low), low, dt)
            if self.time is not None:
                clock = self._ticks(writer, table[self.time], low, clock)
        if isinstance(self.dt, str):
            dt = dt_in_unit(f"{self.file}, column {self.dt!r}", dt, *self.options["units"][:2])
        return clock, dt

    def _ticks(
        self, writer: Writer, column: pl.Series, low: int, clock: tuple[int | None, Any, Any] | None
    ) -> tuple[int | None, Any, Any]:
        import polars as pl

        where = f"{self.file}, column {self.time!r}"
        if column.null_count():
            raise no_time(where, int(column.is_null().arg_max() or 0) + low + 1)
        if column.dtype in (pl.String, pl.Categorical, pl.Enum):
            raise InputError(
                f"{where}: times must be datetimes or numbers on disk, found {column.dtype}: convert the column."
            )
        ticks, tick = ticks_of(column, where, *self.units)
        if not np.isfinite(ticks).all():
            row = int(np.argmax(~np.isfinite(ticks)))
            raise bad_time(where, row + low + 1, float(ticks[row]))
        writer.append("ticks", ticks)
        least, most = ticks.min(), ticks.max()
        return (tick, least, most) if clock is None else (tick, min(clock[1], least), max(clock[2], most))

    def _runs(self, column: pl.Series, low: int) -> None:
        if column.null_count():
            raise no_id(self.file, self.id, int(column.is_null().arg_max() or 0) + low + 1)
        changes = (column != column.shift(1)).fill_null(True).to_numpy().copy()
        changes[0] = not self.names or self.names[-1] != column[0]
        rows = np.flatnonzero(changes)
        fresh = column.gather(rows).to_list()
        if not set(fresh).isdisjoint(self.names) or len(set(fresh)) < len(fresh):
            seen = set(self.names)
            again = next(name for k, name in enumerate(fresh) if name in seen or name in fresh[:k])
            raise InputError(
                f"{self.file}, column {self.id!r}: the rows of a trajectory must follow each other on disk, found "
                f"{again!r} again after others: sort the file by id and time."
            )
        self.names += fresh
        self.starts.append(rows + low)

    def _refuse_days(self, writer: Writer) -> None:
        ticks = writer.array("ticks")
        if all(calendar_days(ticks[low : low + _BLOCK]) for low in range(0, self.n, _BLOCK)):
            raise no_count(f"{self.file}, column {self.time!r}", ticks[0])

    def _even(self, steps: NDArray[np.float64], low: int, dt: float | None) -> float:
        first = float(steps[0]) if dt is None else dt
        if not (steps == first).all():
            row = int(np.argmax(~(steps == first)))
            raise InputError(
                f"{self.file}, column {self.dt!r}, row {row + low + 1}: one dt was expected throughout, found "
                f"{steps[row]:g} after {first:g}: name a column of times instead."
            )
        return first

    def _count(self, writer: Writer, starts: Counts) -> tuple[Counts, int]:
        """Points of each trajectory, and rows without a value."""
        lengths, lost = np.zeros(len(starts), dtype=np.int64), 0
        values = writer.array("values")
        for low in range(0, self.n, _BLOCK):
            empty = np.isnan(values[low : low + _BLOCK]).any(axis=1)
            if not self.options["drop_missing"] and empty.any():
                empty[:] = False  # refused in its turn, with its place
            groups = _groups(starts, low, len(empty))[~empty]
            if len(groups):
                found = np.bincount(groups - groups[0])
                lengths[groups[0] : groups[0] + len(found)] += found
            lost += int(empty.sum())
        if lost == self.n:
            self._part(writer, starts, None, 0).refuse_empty()
        return lengths, lost

    def _refuse_single(self, starts: Counts, lengths: Counts, writer: Writer) -> None:
        single = np.flatnonzero(lengths == 1)
        if len(single) and (not self.options["drop_short"] or len(single) == (lengths > 0).sum()):
            row = int(starts[single[0]])
            self._part(writer, starts, None, row, 1).refuse_short(0)

    def _parts(self, writer: Writer, starts: Counts, clock: tuple[int | None, Any, Any] | None) -> Iterator[Points]:
        for low in range(0, self.n, _BLOCK):
            yield self._part(writer, starts, clock, low)

    def _part(
        self,
        writer: Writer,
        starts: Counts,
        clock: tuple[int | None, Any, Any] | None,
        low: int,
        count: int | None = None,
    ) -> Points:
        rows = slice(low, min(low + (count or _BLOCK), self.n))
        times = None
        if clock is not None:
            times = elapsed(writer.array("ticks")[rows], clock[0], self.units[0], *clock[1:])
        return Points(
            self.file,
            np.array(writer.array("values")[rows]),
            self.value,
            _groups(starts, low, rows.stop - low),
            np.arange(rows.start + 1, rows.stop + 1),
            self.names or None,
            times,
            self.time,
            None if self.reward is None else np.array(writer.array("rewards")[rows]),
            self.reward,
        )


def _groups(starts: Counts, low: int, count: int) -> Counts:
    """The run of each of some consecutive rows."""
    first = int(np.searchsorted(starts, low, side="right")) - 1
    inside = starts[first + 1 : int(np.searchsorted(starts, low + count))] - low
    steps = np.zeros(count, dtype=np.int64)
    steps[inside] = 1
    return first + np.cumsum(steps)
