"""Tables (.csv, .tsv, .parquet) as blocks of points, by polars; and back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from levytorch.convert import Array, Integers
from levytorch.data.arrays import label
from levytorch.data.clock import FileClock
from levytorch.data.columns import (
    FrameReader,
    OneNumber,
    Runs,
    TableReader,
    check_header,
    check_id,
    column_numbers,
    first_null,
    refuse_clock,
    refuse_index,
    refuse_unnamed,
)
from levytorch.data.options import CLOCKS, MAX_DT, FileOptions, column_names, quoted
from levytorch.data.places import TEXT, DataFile
from levytorch.data.points import NeedsMemory, PointFile, Points, bad_cell, numbers_of
from levytorch.errors import InputError, LevytorchWarning

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Cells:
    """Some rows of a table: one entry per observation, trajectory after trajectory."""

    values: Array  # (n, d), NaN for an empty cell
    group: Integers  # (n,) ascending, the number of the trajectory
    row: Any  # (n,) integers, the row in the file
    ticks: NDArray[Any] | None = None
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # reward and terminal; action: names, or numbers
    place: NDArray[np.str_] | None = None  # (n,) its column in a wide table, or in one of rows

    def take(self, rows: NDArray[Any]) -> Cells:
        ticks, place = (None if part is None else part[rows] for part in (self.ticks, self.place))
        columns = {name: values[rows] for name, values in self.columns.items()}
        return Cells(self.values[rows], self.group[rows], np.asarray(self.row)[rows], ticks, columns, place)


class TableFile(PointFile):
    """Points of a table."""

    def __init__(self, path: DataFile, options: FileOptions) -> None:
        super().__init__(path, options)
        if options.on_disk is not None and path.suffix in TEXT:
            raise InputError(
                f"{path} must be a .parquet, .feather, .npy or .npz file for on_disk, found {path.suffix}; convert it, "
                "polars.scan_csv(path).sink_parquet(path)."
            )
        self._whole: Cells | None = None
        self._starts: Integers | None = None  # rows where trajectories begin, known after the survey

    def _find_columns(self) -> None:
        options, whole = self.options, self.whole
        if not whole and (options.layout != "long" or options.sort):
            found = "sort=True" if options.sort else f"layout {options.layout!r}"
            raise NeedsMemory(
                f"{self.path} must be a long table whose rows are in order for on_disk, found {found}; write the file "
                "so, sorted by id and time."
            )
        self.table = self._reader(whole)
        if self.table.text:
            check_header(self.path, self.table.columns, options)
        if self.table.rows == 0:
            raise InputError(
                f"{self.path}: there must be rows below the header, found none; check how the file was written."
            )
        names = column_names(self.path, options, self.table.columns)
        # actions are numbered over the whole table; a column that was not asked for is left in the file
        names = self.names = names if whole else names._replace(action=None, terminal=None)
        if names.id is not None:
            check_id(self.path, names.id, self.table.types[names.id], in_json=options.on_disk is not None)
        if names.time is not None:
            where = f"{self.path}, column {names.time!r}"
            self.clock = FileClock(where, options.units, beside_dt=names.dt is not None)
        if (names.time or names.dt) is None or (options.layout != "long" and isinstance(names.dt, str)):
            raise InputError(
                f"{self.path}: dt or time must be given, found neither among {quoted(self.table.columns)}; pass "
                "dt=... or time='...'."
            )
        columns = names.value if options.layout == "long" else ["of every trajectory"]
        self.coordinates = [f"{self.path}: column {name!r}" for name in columns]

    def _reader(self, whole: bool) -> TableReader | FrameReader:
        return TableReader(self.path, self.options.separator, self.options.decimal, whole)

    def _own_max_dt(self) -> float | None:
        named = [name for _, name in self.options.named()]
        if self.options.layout != "long" or MAX_DT not in self.table.columns or MAX_DT in named:
            return None
        number = OneNumber(self.path, MAX_DT, "make it one number, or pass max_dt")
        for before, frame in self.table.frames([MAX_DT]):
            number.see(frame[MAX_DT], before)
        return self.options.units.length(f"{self.path}, column {MAX_DT!r}", number.value)

    # ----------------------------------------------------------------------------------------------------------- passes

    def survey(self) -> None:
        lengths, lost, total, empty = np.zeros(0, dtype=np.int64), 0, 0, ""
        for cells in self._first_pass():
            if self.clock is not None and cells.ticks is not None:
                self.clock.see(cells.ticks)
            kept = self._clean(cells)
            if len(kept.group) < len(cells.group):
                empty = empty or self._where(cells, *_first(np.isnan(cells.values)))
                lost += len(cells.group) - len(kept.group)
            total += len(cells.group)
            counts = np.bincount(kept.group, minlength=int(cells.group.max()) + 1)
            counts[: len(lengths)] += lengths
            lengths = counts
            if self.whole:
                self._whole = self._ordered(kept)
        if self.clock is not None:
            self.clock.refuse_days()
        if self.table.comments:
            self.dropped["comment line"] = self.table.comments
        if lost == total:
            raise InputError(
                f"{empty}: there must be a number somewhere in the column, found none; choose another column."
            )
        single = lengths == 1
        if single.any() and (self.options.short == "error" or single.sum() == (lengths > 0).sum()):
            self._refuse_short(int(np.argmax(single)))
        self._kept = lengths > 1
        self.lengths = lengths[self._kept]
        self.ids = None if self.ids is None else [self.ids[k] for k in np.flatnonzero(self._kept)]
        if lost and self.names.action is not None and self.max_dt is None:
            warnings.warn(
                f"{self.path}: {lost} rows without a value are left out, and another action may have been held during "
                "them; pass max_dt to leave out the pairs across them.",
                LevytorchWarning,
                stacklevel=2,
            )
        for reason, count in (("row without a value", lost), ("trajectory of one point", int(single.sum()))):
            if count:
                self.dropped[reason] = count

    def _first_pass(self) -> Iterator[Cells]:
        """The cells, and what is known only after they were seen: ids, where they begin, a column of dt."""
        if self.options.layout != "long":
            ((_, table),) = self.table.frames()
            yield self._grid(table)
            return
        names, step = self.names, self.names.dt
        dt = OneNumber(self.path, "dt", "name a column of times instead")
        action = [name for name in names.action or () if name in self.table.columns]
        asked = [*names.value, names.id, names.time, names.reward, names.terminal, *action, step]
        columns = list(dict.fromkeys(name for name in asked if isinstance(name, str)))
        runs, rows = Runs(self.path, names.id), 0
        for before, frame in self.table.frames(columns):
            runs.see(frame, before, whole=self.whole)
            cells = self._cells(frame, before, runs.group)
            if isinstance(step, str):
                dt.see(frame[step], before)
            yield cells
            rows = before + len(frame)
        self.table.forget()
        self.ids = None if names.id is None else runs.names
        self._starts = np.append(runs.starts, rows)
        if isinstance(step, str):
            self.dt = self.options.units.length(f"{self.path}, column {step!r}", dt.value)

    def _ordered(self, cells: Cells) -> Cells:
        """Trajectory after trajectory, and by time where that is asked for."""
        if self.options.sort and cells.ticks is not None:
            return cells.take(np.lexsort((cells.ticks, cells.group)))
        in_order = (cells.group[1:] >= cells.group[:-1]).all()
        return cells if in_order else cells.take(np.argsort(cells.group, kind="stable"))

    def _second_pass(self) -> Iterator[Cells]:
        if self._whole is not None:
            yield self._whole
            return
        assert self._starts is not None
        asked = [*self.names.value, self.names.time, self.names.reward]
        for before, frame in self.table.frames([name for name in asked if name is not None]):
            group = numbers_of(self._starts, before, before + len(frame))
            yield self._clean(self._cells(frame, before, group))

    def _blocks(self) -> Iterator[Points]:
        start, dropped = 0, not self._kept.all()
        for cells in self._second_pass():
            kept = cells.take(self._kept[cells.group]) if dropped else cells
            if not len(kept.group):
                continue
            values = np.log(kept.values) if self.options.log else kept.values
            times = None if self.clock is None or kept.ticks is None else self.clock.times(kept.ticks)
            x, columns = values[:, 0] if values.shape[1] == 1 else values, dict(kept.columns)
            if "action" in columns:  # the whole table is one block
                columns["action"], self.actions = label(columns["action"])
            yield Points(start, x, times, columns, kept.row)
            start += len(values)

    # ---------------------------------------------------------------------------------------------------------- layouts

    def _cells(self, frame: pl.DataFrame, before: int, group: Integers) -> Cells:
        """Of a long table: one row per observation."""
        numbers = {"reward": self.names.reward, "terminal": self.names.terminal}
        columns = {k: column_numbers(self.path, frame[name], before) for k, name in numbers.items() if name is not None}
        values = [column_numbers(self.path, frame[name], before) for name in self.names.value]
        ticks, names = self._ticks(frame, before), self.names.action
        if names is not None:
            clock = len(names) == 1 and names[0] not in frame.columns
            columns["action"] = self._of_clock(names[0], ticks) if clock else self._actions(frame, names, before)
        rows = range(before + 1, before + len(frame) + 1)
        return Cells(np.stack(values, axis=1), group, rows, ticks, columns)

    def _actions(self, frame: pl.DataFrame, names: list[str], before: int) -> NDArray[Any]:
        """(n,), or (n, 2) where the action is a vector."""
        columns = [self._actions_of(frame[name], before) for name in names]
        if len(columns) == 1:
            return columns[0]
        if any(column.dtype.kind == "U" for column in columns):
            raise InputError(
                f"{self.path}: an action of several columns must be numbers, found text in {quoted(names)}; name one."
            )
        return np.stack(columns, axis=1)

    def _of_clock(self, name: str, ticks: NDArray[Any] | None) -> Array:
        """What the dates of a file, or its numbers counted from 1970 on, say of the time of day, or of the week."""
        if ticks is None or self.clock is None:
            raise InputError(f"{self.path}: {name} must be read off times, found none; name a column of times.")
        tick = self.clock.tick
        if tick is None:
            raise InputError(
                f"{self.path}: {name} must be read off dates, or off numbers of a known unit, found numbers without "
                "a unit; pass time_in, such as time_in='ms' for milliseconds since 1970, and time_unit."
            )
        period, unit, begins = CLOCKS[name]
        return (ticks % (period // tick) * tick + begins) % period / unit

    def _actions_of(self, column: pl.Series, before: int) -> NDArray[Any]:
        """Numbers, or names."""
        import polars as pl

        if row := first_null(column, before):
            raise bad_cell(f"{self.path}, column {column.name!r}, row {row}", "an action", "none", "fill the cell")
        if column.dtype not in (pl.String, pl.Categorical, pl.Enum):
            return column_numbers(self.path, column.cast(pl.Int64) if column.dtype == pl.Boolean else column, before)
        text = column.cast(pl.String).str.strip_chars()
        as_numbers = text.cast(pl.Float64, strict=False)
        if not as_numbers.null_count():  # every cell of a .csv is text
            return as_numbers.to_numpy()
        names = text.unique()
        return names.to_numpy().astype(str)[text.replace_strict(names, np.arange(len(names))).to_numpy()]

    def _ticks(self, frame: pl.DataFrame, before: int = 0) -> NDArray[Any] | None:
        if self.clock is None:
            return None
        column, where = frame[str(self.names.time)], self.clock.where
        if row := first_null(column, before):
            raise bad_cell(f"{where}, row {row}", "a time", "none", "fill the cell or remove the row")
        ticks = self.clock.ticks(column, before)
        if not np.isfinite(ticks).all():
            k = int(np.argmax(~np.isfinite(ticks)))
            raise bad_cell(f"{where}, row {before + k + 1}", "a finite time", float(ticks[k]), "correct the cell")
        return ticks

    def _grid(self, table: pl.DataFrame) -> Cells:
        """Of a table with one column ("wide") or one row per trajectory; it ends where its cells become empty."""
        options, wide = self.options, self.options.layout == "wide"
        columns, own = self.names.value, self.names.id
        ticks = self._ticks(table)
        if options.value is None:  # columns that were asked for are what was meant
            refuse_unnamed(self.path, table, columns, options.layout)
        grid = [column_numbers(self.path, table[name]) for name in columns]
        lines = [_trim(line) for line in (grid if wide else np.stack(grid, axis=1))]
        if options.value is None and wide:
            refuse_clock(self.path, columns, lines)
        elif options.value is None:
            refuse_index(self.path, columns, np.stack(grid, axis=1))
        names: list[Any] = columns if wide else list(range(1, len(lines) + 1))
        if own is not None and not wide:
            names = table[own].to_list()
        kept = [k for k, line in enumerate(lines) if len(line)]
        if not kept:
            raise InputError(f"{self.path}: {quoted(columns)} must hold numbers, found none; check the layout.")
        if len(kept) < len(lines):
            self.dropped["trajectory without a value"] = len(lines) - len(kept)
        self.ids = [names[k] for k in kept]
        lengths = [len(lines[k]) for k in kept]
        along = np.concatenate([np.arange(n) for n in lengths])
        across = np.repeat(kept, lengths)
        return Cells(
            np.concatenate([lines[k] for k in kept])[:, None],
            np.repeat(np.arange(len(kept)), lengths),
            (along if wide else across) + 1,
            None if ticks is None else ticks[along],
            place=np.array(columns)[across if wide else along],
        )

    # --------------------------------------------------------------------------------------------------------- refusals

    def _clean(self, cells: Cells) -> Cells:
        """Without rows that lack a value; other cells that cannot be used are refused."""
        values, log = cells.values, self.options.log
        infinite = np.isinf(values)
        if infinite.any():
            self._refuse(cells, infinite, "a finite number", "remove the row")
        empty = np.isnan(values)
        if empty.any():
            if self.options.missing == "error":
                self._refuse(cells, empty, "a number", "fill the cell, or pass missing='drop'")
            if self.names.dt is not None:
                self._refuse(cells, empty, "a number", "name a time column (missing='drop' needs one)")
            cells = cells.take(np.asarray(~empty.any(axis=1)))
        reward = cells.columns.get("reward")
        if reward is not None and not np.isfinite(reward).all():
            k = int(np.argmax(~np.isfinite(reward)))
            where = f"{self.path}, column {self.names.reward!r}, row {cells.row[k]}"
            raise bad_cell(where, "a reward", reward[k], "fill the cell")
        if log and not (cells.values > 0).all():
            self._refuse(cells, ~(cells.values > 0), "a positive number (log=True)", "use log=False")
        return cells

    def _refuse(self, cells: Cells, bad: NDArray[np.bool_], expected: str, remedy: str) -> NoReturn:
        k, coordinate = _first(bad)
        found = cells.values[k, coordinate]
        raise bad_cell(self._where(cells, k, coordinate), expected, "none" if np.isnan(found) else found, remedy)

    def _refuse_short(self, group: int) -> NoReturn:
        name = "" if self.ids is None else f" {self.ids[group]!r}"
        for cells in self._second_pass():
            if (cells.group == group).any():
                where = self._where(cells, int(np.argmax(cells.group == group)), 0)
                raise InputError(
                    f"{where}: a trajectory must have at least two points, found one in trajectory{name}; remove it, "
                    "or pass short='drop'."
                )
        raise AssertionError("a trajectory of one point has a point")

    def _disorder(self, point: int, times: Array, rows: list[int]) -> InputError:
        assert self.clock is not None
        where = f"{self.clock.where}, row {rows[1]}"
        if times[0] == times[1]:
            return InputError(
                f"{where}: times must differ within a trajectory, found that of row {rows[0]} twice; remove one row."
            )
        return InputError(
            f"{where}: times must increase within a trajectory, found an earlier one than in row {rows[0]}; sort the "
            "table, name the id column, or pass sort=True."
        )

    def _where(self, cells: Cells, k: int, coordinate: int) -> str:
        """Where observation k stands in the file."""
        column = self.names.value[coordinate] if cells.place is None else cells.place[k]
        return f"{self.path}, column {str(column)!r}, row {cells.row[k]}"


class FrameTable(TableFile):
    """Points of a table in memory."""

    def __init__(self, frame: pl.DataFrame, options: FileOptions) -> None:
        super().__init__(DataFile("the frame", Path(), ""), options)
        self._given = frame

    def _reader(self, whole: bool) -> FrameReader:
        return FrameReader(self._given)


def _first(mask: NDArray[np.bool_]) -> tuple[int, int]:
    row, column = np.argwhere(mask)[0]
    return int(row), int(column)


def _trim(values: Array) -> Array:
    """Without the empty cells at the end."""
    filled = np.flatnonzero(~np.isnan(values))
    return values[: filled[-1] + 1] if len(filled) else values[:0]
