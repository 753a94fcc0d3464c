"""Tables (.csv, .tsv, .parquet) as blocks of points, by polars; and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from levytorch.data.actions import label, named
from levytorch.data.arrays import Array, Counts
from levytorch.data.clock import MAX_DT, FileClock
from levytorch.data.columns import OneNumber, TableOptions, TableReader, check_id, first_null, listed, numbers
from levytorch.data.misread import check_header, refuse_clock, refuse_index, refuse_unnamed
from levytorch.data.points import NeedsMemory, PointFile, Points, numbers_of
from levytorch.errors import InputError
from levytorch.files import replacing

if TYPE_CHECKING:
    import polars as pl

    from levytorch.data.trajectories import Trajectories


@dataclass(frozen=True)
class Cells:
    """Some rows of a table: one entry per observation, trajectory after trajectory."""

    values: Array  # (n, d), NaN for an empty cell
    group: Counts  # (n,) ascending, the number of the trajectory
    row: Any  # (n,) integers, the row in the file
    ticks: NDArray[Any] | None = None
    reward: Array | None = None
    action: Array | None = None  # places among the names seen so far, or the numbers themselves
    column: list[str] | None = None  # of each observation of a wide table, or of one of rows

    def take(self, rows: NDArray[Any]) -> Cells:
        column = None if self.column is None else [self.column[k] for k in np.arange(len(self.group))[rows]]
        parts = {name: getattr(self, name) for name in ("ticks", "reward", "action")}
        return Cells(
            self.values[rows],
            self.group[rows],
            np.asarray(self.row)[rows],
            **{name: None if part is None else part[rows] for name, part in parts.items()},
            column=column,
        )


class TableFile(PointFile):
    """Points of a table."""

    def __init__(self, file: Path, max_dt: float | None, on_disk: Path | None, options: TableOptions) -> None:
        super().__init__(file, max_dt, on_disk)
        self.options, self.recipe = options, asdict(options)
        self.dt = options.dt if isinstance(options.dt, float) else None
        self._whole: Cells | None = None
        self._starts: Counts | None = None  # rows where trajectories begin, known after the survey
        self._names_of_actions: dict[str, int] = {}  # of a column of text, in the order in which they are met

    def open(self, whole: bool) -> None:
        options = self.options
        if not whole and options.action is not None:
            raise NeedsMemory(f"{self.path}: actions are read in memory only, found action with blocks: leave it out.")
        if not whole and (options.layout != "long" or options.sort):
            found = "sort=True" if options.sort else f"layout {options.layout!r}"
            raise NeedsMemory(
                f"{self.path}: on_disk needs a long table whose rows are in order, found {found}: write the file so, "
                "sorted by id and time."
            )
        self.table = TableReader(self.path, options.separator, options.decimal, whole)
        if self.table.text:
            check_header(self.path, self.table.columns, options)
        options.check(self.path, self.table.columns, self.table.rows)
        if options.layout == "long":
            self.options = options = options.complete(self.path, self.table.columns)
            if not whole and options.action is not None:  # one that was not asked for is left in the file
                self.options = options = replace(options, action=None)
            if options.id is not None:
                check_id(self.path, options.id, self.table.types[options.id], in_json=self.on_disk is not None)
        else:
            own, other = ("time", "id") if options.layout == "wide" else ("id", "time")
            for option in ("reward", "action", other):
                if getattr(options, option) is not None:
                    raise InputError(
                        f"{self.path}: layout {options.layout!r} has no {option} column, found "
                        f"{getattr(options, option)!r}: use layout='long'."
                    )
            if own in self.table.columns and own not in (options.value or []):
                name = getattr(options, own) or own
                options = replace(options, time=name) if own == "time" else replace(options, id=name)
                self.options = options
        if options.time is not None:
            where = f"{self.path}, column {options.time!r}"
            self.clock = FileClock(where, options.units, beside_dt=options.dt is not None)
        if (options.time or options.dt) is None or (options.layout != "long" and isinstance(options.dt, str)):
            raise InputError(
                f"{self.path}: dt or time must be given, found neither among {listed(self.table.columns)}: pass "
                "dt=... or time='...'."
            )
        columns = (options.value or []) if options.layout == "long" else ["of every trajectory"]
        self.coordinates = [f"{self.path}: column {name!r}" for name in columns]

    def own_max_dt(self) -> float | None:
        named = [name for _, name in self.options.named()]
        if self.options.layout != "long" or MAX_DT not in self.table.columns or MAX_DT in named:
            return None
        number, before = OneNumber(self.path, MAX_DT, "make it one number, or pass max_dt"), 0
        for frame in self.table.frames([MAX_DT]):
            number.see(frame[MAX_DT], before)
            before += len(frame)
        return self.options.units.length(f"{self.path}, column {MAX_DT!r}", number.value)

    # ----------------------------------------------------------------------------------------------------------- passes

    def survey(self) -> None:
        lengths, lost, total, empty = np.zeros(0, dtype=np.int64), 0, 0, ""
        for cells in self._first_pass():
            if cells.ticks is not None:
                assert self.clock is not None
                self.clock.see(cells.ticks)
            kept = self._clean(cells)
            if len(kept.group) < len(cells.group):
                empty = empty or self._where(cells, *_first(np.isnan(cells.values)))
                lost += len(cells.group) - len(kept.group)
            total += len(cells.group)
            counts = np.bincount(kept.group, minlength=int(cells.group.max()) + 1)
            counts[: len(lengths)] += lengths
            lengths = counts
            if self.table.whole:
                self._whole = self._ordered(kept)
        if self.clock is not None:
            self.clock.refuse_days()
        if lost == total:
            raise InputError(
                f"{empty}: a number somewhere in the column was expected, found none: choose another column."
            )
        single = lengths == 1
        if single.any() and (not self.options.drop_short or single.sum() == (lengths > 0).sum()):
            self._refuse_short(int(np.argmax(single)))
        self._kept = lengths > 1
        self.lengths = lengths[self._kept]
        self.ids = None if self.ids is None else [self.ids[k] for k in np.flatnonzero(self._kept)]
        for reason, count in (("row without a value", lost), ("trajectory of one point", int(single.sum()))):
            if count:
                self.dropped[reason] = count

    def _first_pass(self) -> Iterator[Cells]:
        """The cells, and what is known only after they were seen: ids, where they begin, a column of dt."""
        if self.options.layout != "long":
            (table,) = self.table.frames()
            yield self._grid(table)
            return
        options = self.options
        dt, step = OneNumber(self.path, "dt", "name a column of times instead"), options.dt
        asked = [*(options.value or []), options.id, options.time, options.reward, options.action, step]
        columns = list(dict.fromkeys(name for name in asked if isinstance(name, str)))
        runs, before = _Runs(self.path, options.id), 0
        for frame in self.table.frames(columns):
            runs.see(frame, before, whole=self.table.whole)
            cells = self._cells(frame, before, runs.group)
            if isinstance(step, str):
                dt.see(frame[step], before)
            yield cells
            before += len(frame)
        self.table.forget()
        self.ids = None if options.id is None else runs.names
        self._starts = np.append(runs.starts, before)
        if isinstance(step, str):
            self.dt = options.units.length(f"{self.path}, column {step!r}", dt.value)

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
        asked = [*(self.options.value or []), self.options.time, self.options.reward]
        before = 0
        for frame in self.table.frames([name for name in asked if name is not None]):
            group = numbers_of(self._starts, before, before + len(frame))
            yield self._clean(self._cells(frame, before, group))
            before += len(frame)

    def _blocks(self) -> Iterator[Points]:
        start, dropped = 0, not self._kept.all()
        for cells in self._second_pass():
            kept = cells.take(self._kept[cells.group]) if dropped else cells
            if not len(kept.group):
                continue
            values = np.log(kept.values) if self.options.log else kept.values
            times = None
            if kept.ticks is not None:
                assert self.clock is not None
                times = self.clock.times(kept.ticks)
            x, action = values[:, 0] if values.shape[1] == 1 else values, kept.action
            if action is not None:  # the whole table is one block
                action, self.actions = label(named(action, list(self._names_of_actions)))
            yield Points(start, x, times, kept.reward, kept.row, action)
            start += len(values)

    # ---------------------------------------------------------------------------------------------------------- layouts

    def _cells(self, frame: pl.DataFrame, before: int, group: Counts) -> Cells:
        """Of a long table: one row per observation."""
        options = self.options
        values = [numbers(self.path, frame[name], before) for name in options.value or []]
        return Cells(
            np.stack(values, axis=1) if len(values) > 1 else values[0][:, None],
            group,
            range(before + 1, before + len(frame) + 1),
            self._ticks(frame, before),
            None if options.reward is None else numbers(self.path, frame[options.reward], before),
            None if options.action is None else self._actions_of(frame[options.action], before),
        )

    def _actions_of(self, column: pl.Series, before: int) -> Array:
        """Actions as numbers: text by the order in which names are met."""
        import polars as pl

        if row := first_null(column, before):
            raise InputError(
                f"{self.path}, column {column.name!r}, row {row}: an action was expected, found none: fill the cell."
            )
        if column.dtype not in (pl.String, pl.Categorical, pl.Enum):
            return numbers(self.path, column.cast(pl.Int64) if column.dtype == pl.Boolean else column, before)
        text = column.cast(pl.String).str.strip_chars()
        as_numbers = text.cast(pl.Float64, strict=False)
        if not as_numbers.null_count():  # every cell of a .csv is text
            return as_numbers.to_numpy()
        for name in text.unique(maintain_order=True).to_list():
            self._names_of_actions.setdefault(name, len(self._names_of_actions))
        known = list(self._names_of_actions)
        return text.replace_strict(known, np.arange(len(known), dtype=np.float64)).to_numpy().astype(np.float64)

    def _ticks(self, frame: pl.DataFrame, before: int = 0) -> NDArray[Any] | None:
        if self.clock is None:
            return None
        column, where = frame[str(self.options.time)], self.clock.where
        if row := first_null(column, before):
            raise InputError(f"{where}, row {row}: a time was expected, found none: fill the cell or remove the row.")
        ticks = self.clock.ticks(column, before)
        if not np.isfinite(ticks).all():
            k = int(np.argmax(~np.isfinite(ticks)))
            raise InputError(
                f"{where}, row {before + k + 1}: a finite time was expected, found {float(ticks[k])}: correct the cell."
            )
        return ticks

    def _grid(self, table: pl.DataFrame) -> Cells:
        """Of a table with one column ("wide") or one row per trajectory; it ends where its cells become empty."""
        options, wide = self.options, self.options.layout == "wide"
        own = options.time if wide else options.id
        columns = options.value or [name for name in table.columns if name != own]
        ticks = self._ticks(table)
        if options.value is None:  # columns that were asked for are what was meant
            refuse_unnamed(self.path, table, columns, options.layout)
        grid = [numbers(self.path, table[name]) for name in columns]
        lines = [_trim(line) for line in (grid if wide else np.stack(grid, axis=1))]
        if options.value is None and wide:
            refuse_clock(self.path, columns, lines)
        elif options.value is None:
            refuse_index(self.path, columns, np.stack(grid, axis=1))
        names: list[Any] = columns if wide else list(range(1, len(lines) + 1))
        if own is not None and not wide:
            check_id(self.path, own, table[own].dtype, in_json=False)
            names = table[own].to_list()
        kept = [k for k, line in enumerate(lines) if len(line)]
        if not kept:
            raise InputError(f"{self.path}: numbers were expected in {listed(columns)}, found none: check the layout.")
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
            column=[columns[k] for k in (across if wide else along)],
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
            if not self.options.drop_missing:
                self._refuse(cells, empty, "a number", "fill the cell, or pass missing='drop'")
            if self.options.dt is not None:
                self._refuse(cells, empty, "a number", "name a time column (missing='drop' needs one)")
            cells = cells.take(np.asarray(~empty.any(axis=1)))
        if cells.reward is not None and not np.isfinite(cells.reward).all():
            k = int(np.argmax(~np.isfinite(cells.reward)))
            raise InputError(
                f"{self.path}, column {self.options.reward!r}, row {cells.row[k]}: a reward was expected, found "
                f"{cells.reward[k]}: fill the cell."
            )
        if log and not (cells.values > 0).all():
            self._refuse(cells, ~(cells.values > 0), "a positive number (log=True)", "use log=False")
        return cells

    def _refuse(self, cells: Cells, bad: NDArray[np.bool_], expected: str, remedy: str) -> NoReturn:
        k, coordinate = _first(bad)
        found = cells.values[k, coordinate]
        raise InputError(
            f"{self._where(cells, k, coordinate)}: {expected} was expected, found "
            f"{'none' if np.isnan(found) else found}: {remedy}."
        )

    def _refuse_short(self, group: int) -> NoReturn:
        name = "" if self.ids is None else f" {self.ids[group]!r}"
        for cells in self._second_pass():
            if (cells.group == group).any():
                where = self._where(cells, int(np.argmax(cells.group == group)), 0)
                raise InputError(
                    f"{where}: a trajectory needs at least two points, found one in trajectory{name}: remove it, or "
                    "pass short='drop'."
                )
        raise AssertionError("a trajectory of one point has a point")

    def _disorder(self, point: int, times: Array, rows: list[int]) -> InputError:
        assert self.clock is not None
        where = f"{self.clock.where}, row {rows[1]}"
        if times[0] == times[1]:
            return InputError(
                f"{where}: times must differ within a trajectory, found that of row {rows[0]} again: remove one row."
            )
        return InputError(
            f"{where}: times must increase within a trajectory, found an earlier one than in row {rows[0]}: sort the "
            "table, name the id column, or pass sort=True."
        )

    def _where(self, cells: Cells, k: int, coordinate: int) -> str:
        """Where observation k stands in the file."""
        column = (self.options.value or [])[coordinate] if cells.column is None else cells.column[k]
        return f"{self.path}, column {column!r}, row {cells.row[k]}"


class _Runs:
    """Trajectories of a long table: rows that follow each other with one id."""

    def __init__(self, file: Path, id: str | None) -> None:
        self.path, self.id = file, id
        self.names: list[Any] = []
        self._seen: set[Any] = set()
        self._starts: list[Counts] = []
        self.group: Counts = np.zeros(0, dtype=np.int64)  # of the rows seen last

    @property
    def starts(self) -> Counts:
        return np.concatenate(self._starts) if self._starts else np.zeros(1, dtype=np.int64)

    def see(self, frame: pl.DataFrame, before: int, whole: bool) -> None:
        """Number the rows of a frame; unless it is the whole table, those of a trajectory must follow each other."""
        if self.id is None:
            self.group = np.zeros(len(frame), dtype=np.int64)
            return
        column = frame[self.id]
        if row := first_null(column, before):
            raise InputError(
                f"{self.path}, column {self.id!r}, row {row}: a trajectory's id was expected, found none: fill it."
            )
        changes = (column != column.shift(1)).fill_null(True).to_numpy().copy()
        changes[0] = not self.names or self.names[-1] != column[0]
        rows = np.flatnonzero(changes)
        fresh = column.gather(rows).to_list()
        again = len(set(fresh)) < len(fresh) or not self._seen.isdisjoint(fresh)
        if again and whole:
            unique = column.unique(maintain_order=True)
            self.names = unique.to_list()
            self.group = column.replace_strict(unique, np.arange(len(unique))).to_numpy().astype(np.int64)
            return
        if again:
            name = next(name for k, name in enumerate(fresh) if name in self._seen or name in fresh[:k])
            raise NeedsMemory(
                f"{self.path}, column {self.id!r}: the rows of a trajectory must follow each other on disk, found "
                f"{name!r} again after others: sort the file by id and time."
            )
        self.group = len(self.names) - 1 + np.cumsum(changes)
        self.names += fresh
        self._seen.update(fresh)
        self._starts.append(rows + before)


def write_table(t: Trajectories, file: Path) -> None:
    """A long table: id, time or dt, x (or x1, x2, ...), reward, action, max_dt."""
    import polars as pl

    names: Any = np.arange(len(t)) if t.ids is None else np.asarray(t.ids)
    columns: dict[str, Any] = {"id": np.repeat(names, t.lengths)}
    columns["dt" if t.times is None else "time"] = np.full(len(t.x), t.dt) if t.times is None else t.times
    for k, column in enumerate(t.x.reshape(len(t.x), -1).T):
        columns["x" if t.dim == 1 else f"x{k + 1}"] = column
    if t.reward is not None:
        columns["reward"] = t.reward
    if t.action is not None:
        columns["action"] = named(t.action, t.actions)
    if t.max_dt is not None:
        columns[MAX_DT] = np.full(len(t.x), t.max_dt)
    table = pl.DataFrame(columns)
    with replacing(file) as temporary:
        try:
            if file.suffix.lower() == ".parquet":
                table.write_parquet(temporary)
            else:
                table.write_csv(temporary, separator="\t" if file.suffix.lower() == ".tsv" else ",")
        except pl.exceptions.ComputeError as error:  # what polars makes of a full disk
            raise OSError(str(error)) from error


def _first(mask: NDArray[np.bool_]) -> tuple[int, int]:
    row, column = np.argwhere(mask)[0]
    return int(row), int(column)


def _trim(values: Array) -> Array:
    """Without the empty cells at the end."""
    filled = np.flatnonzero(~np.isnan(values))
    return values[: filled[-1] + 1] if len(filled) else values[:0]
