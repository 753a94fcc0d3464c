"""Columns of tables: which they are, block by block, and their numbers; every refusal names file, column and row.
Among them those of tables that are not what their layout says: no header, an index or a clock among the trajectories.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.convert import Array, Integers
from levytorch.data.options import FileOptions
from levytorch.data.places import ARROW, TEXT, DataFile, data_file
from levytorch.data.points import NeedsMemory, bad_cell
from levytorch.data.store import require_memory
from levytorch.errors import InputError

if TYPE_CHECKING:
    import polars as pl

_EMPTY = ["", "NA", "N/A", "NaN", "nan", "null", "None"]  # cells that mean: no value
_COMMA, _POINT = (rf"^\s*[+-]?\d*{mark}\d+([eE][+-]?\d+)?\s*$" for mark in (",", r"\."))  # numbers with either
_SEPARATORS = (",", "\t", ";", "|")
_ROWS = 1 << 18  # rows of Parquet read at a time: what polars writes as one row group
_BYTES = 1 << 21  # of text read at a time
COMMENT = "#"  # lines of text that begin with it are no rows
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_DATE = re.compile(r"\d{4}[-/.]\d{2}[-/.]\d{2}.*")
_UNNAMED = re.compile(r"(Unnamed: \d+|_duplicated_\d+|__index_level_\d+__)?")  # as pandas and polars call them
_FAR = 5  # times the usual step
_LEAST = 4  # numbers that must step evenly to be taken for a count
_AGAIN = re.compile(r"_duplicated_\d+$")  # polars' mark of a name that was there before


class TableReader:
    """A table on disk: its columns, and its rows in one frame or in many.

    Text cells stay text, because only then can a bad one be shown. comments: lines that begin with #, passed over.
    """

    def __init__(self, file: DataFile, separator: str | None = None, decimal: str = ".", whole: bool = True) -> None:
        import polars as pl

        self.file, self.whole, self._comma = file, whole, decimal != "."
        self.text = file.suffix in TEXT
        self._separator, self.comments = separator, 0
        self._frame: pl.DataFrame | None = None
        with _reading(file):
            if not self.text:
                self._scan = (pl.scan_ipc if file.suffix in ARROW else pl.scan_parquet)(file.local)
                self.types: Mapping[str, Any] = self._scan.collect_schema()
                self.rows = int(self._scan.select(pl.len()).collect().item())
                self.columns = list(self.types)
                return
            if separator is None:
                with file.local.open(encoding="utf-8-sig") as stream:
                    head = next((line for line in stream if line.strip() and not line.startswith(COMMENT)), "")
                self._separator = "\t" if file.suffix == ".tsv" else max(_SEPARATORS, key=head.count)
            with file.local.open("rb") as lines:
                self.comments = sum(line.startswith(COMMENT.encode()) for line in lines)
            frame = self._parsed(_without_blank_lines(file.local)) if whole else next(self._texts())
        self._frame = frame if whole else None
        self.types, self.rows, self.columns = frame.schema, len(frame), frame.columns  # rows: of the first frame

    def frames(self, names: list[str] | None = None) -> Iterator[tuple[int, pl.DataFrame]]:
        """All rows of some columns (None: of all), frame by frame, each after so many rows."""
        before, parts = 0, self._parts(self.columns if names is None else names)
        while True:
            with _reading(self.file):
                frame = next(parts, None)
            if frame is None:
                return
            if len(frame):
                yield before, self._with_points(frame, before) if self.text and self._comma else frame
            before += len(frame)

    def forget(self) -> None:
        """Give the memory of a frame that was read as a whole back."""
        self._frame = None

    def _parts(self, names: list[str]) -> Iterator[pl.DataFrame]:
        if self._frame is not None:
            yield self._frame.select(names)
        elif self.text:
            yield from (frame.select(names) for frame in self._texts())
        else:
            if self.whole:
                # polars ends the process when it cannot allocate, so it is asked only for what there is room for
                require_memory(self.file, self.rows, len(names))
            step = self.rows if self.whole else _ROWS
            for low in range(0, self.rows, step):
                yield self._scan.select(names).slice(low, step).collect()

    def _parsed(self, text: Path | io.BytesIO) -> pl.DataFrame:
        import polars as pl

        options: dict[str, Any] = {"infer_schema": False, "null_values": _EMPTY, "comment_prefix": COMMENT}
        return pl.read_csv(text, separator=str(self._separator), **options)

    def _texts(self) -> Iterator[pl.DataFrame]:
        """Lines, some at a time, each time below the header; a line that goes on inside quotes is not cut."""
        with self.file.local.open("rb") as stream:
            header = stream.readline()
            while header.startswith(COMMENT.encode()) or header.isspace():
                header = stream.readline()
            while header.count(b'"') % 2 and (more := stream.readline()):
                header += more
            rest = b""
            while part := stream.read(_BYTES):
                rest += part
                end = rest.rfind(b"\n") + 1
                while end and rest.count(b'"', 0, end) % 2:
                    end = rest.rfind(b"\n", 0, end - 1) + 1
                if end:
                    yield self._parsed(io.BytesIO(header + rest[:end]))
                rest = rest[end:]
            yield self._parsed(io.BytesIO(header + rest))

    def _with_points(self, frame: pl.DataFrame, before: int) -> pl.DataFrame:
        """Cells that are numbers with a decimal comma, with a decimal point instead."""
        import polars as pl

        for column in frame:
            pointed = column.str.contains(_POINT).fill_null(False)
            if pointed.any():
                row = int(pointed.arg_max() or 0)
                raise InputError(
                    f"{self.file}, column {column.name!r}, row {before + row + 1}: numbers must have a decimal comma, "
                    f"found {column[row]!r}; leave decimal out, or remove the points between thousands."
                )
        text = pl.all()
        return frame.with_columns(pl.when(text.str.contains(_COMMA)).then(text.str.replace(",", ".")).otherwise(text))


class FrameReader:
    """A table in memory, read as one on disk is."""

    text, comments = False, 0

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame
        self.types: Mapping[str, Any] = frame.schema
        self.rows, self.columns = len(frame), frame.columns

    def frames(self, names: list[str] | None = None) -> Iterator[tuple[int, pl.DataFrame]]:
        """All rows of some columns (None: of all)."""
        yield 0, self._frame if names is None else self._frame.select(names)

    def forget(self) -> None:
        """The frame is the caller's."""


def load_table(file: Path) -> pl.DataFrame:
    """A whole table of text."""
    table = TableReader(data_file(file))
    assert table._frame is not None
    return table._frame


@contextmanager
def _reading(file: DataFile) -> Iterator[None]:
    """What polars says of a malformed file, in one sentence."""
    import polars as pl

    try:
        yield
    except (pl.exceptions.PolarsError, UnicodeDecodeError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        remedy = "write it again" if file.suffix not in TEXT else "repair the file, or pass separator=..."
        if isinstance(error, UnicodeDecodeError) or "utf-8" in reason.lower():
            remedy = "save it as UTF-8"
        raise InputError(
            f"{file} must be a readable {file.suffix} table, found a malformed one ({reason}); {remedy}."
        ) from None


def check_id(file: Any, id: str, dtype: Any, in_json: bool) -> None:
    """Refuse a column that cannot name trajectories; on disk names are kept as JSON, which has numbers and text."""
    import polars as pl

    plain = dtype.is_numeric() and not dtype.is_decimal()
    plain = plain or dtype in (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null)
    if plain or not (in_json or dtype.is_nested() or dtype == pl.Object):
        return
    raise InputError(
        f"{file}, column {id!r}: ids must be numbers or text, found {dtype}; convert the column, or name another as id."
    )


def first_null(column: pl.Series, before: int) -> int:
    """The row of the first empty cell, 0 where there is none."""
    return before + int(column.is_null().arg_max() or 0) + 1 if column.null_count() else 0


def column_numbers(file: Any, column: pl.Series, before: int = 0) -> Array:
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
            where = f"{file}, column {column.name!r}, row {before + row + 1}"
            raise bad_cell(where, "a number", repr(text[row]), remedy)
    elif column.dtype.is_numeric():
        cells = column.cast(pl.Float64)
    else:
        raise bad_cell(f"{file}, column {column.name!r}, row 1", "a number", column.dtype, "choose another column")
    return np.array(cells.fill_null(float("nan")).to_numpy(), dtype=np.float64)


class OneNumber:
    """The number that a column holds throughout, seen part by part."""

    def __init__(self, file: Any, what: str, remedy: str) -> None:
        self.file, self.what, self.remedy = file, what, remedy
        self.value: float | None = None

    def see(self, column: pl.Series, before: int) -> None:
        cells = column_numbers(self.file, column, before)
        self.value = float(cells[0]) if self.value is None else self.value
        other = ~(cells == self.value)
        if other.any():
            row = int(np.argmax(other))
            raise InputError(
                f"{self.file}, column {column.name!r}, row {before + row + 1}: {self.what} must be the same "
                f"throughout, found {cells[row]:g} after {self.value:g}; {self.remedy}."
            )


class Runs:
    """Trajectories of a long table: rows that follow each other with one id."""

    def __init__(self, file: Any, id: str | None) -> None:
        self.path, self.id = file, id
        self.names: list[Any] = []
        self._seen: set[Any] = set()
        self._starts: list[Integers] = []
        self.group: Integers = np.zeros(0, dtype=np.int64)  # of the rows seen last

    @property
    def starts(self) -> Integers:
        return np.concatenate(self._starts) if self._starts else np.zeros(1, dtype=np.int64)

    def see(self, frame: pl.DataFrame, before: int, whole: bool) -> None:
        """Number the rows of a frame; unless it is the whole table, those of a trajectory must follow each other."""
        if self.id is None:
            self.group = np.zeros(len(frame), dtype=np.int64)
            return
        column = frame[self.id]
        if row := first_null(column, before):
            raise bad_cell(f"{self.path}, column {self.id!r}, row {row}", "a trajectory's id", "none", "fill it")
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
                f"{name!r} again after others; sort the file by id and time."
            )
        self.group = len(self.names) - 1 + np.cumsum(changes)
        self.names += fresh
        self._seen.update(fresh)
        self._starts.append(rows + before)


def _without_blank_lines(file: Path) -> Path | io.BytesIO:
    """The file itself, or its text from the header on where blank lines stand above it, which polars takes for it."""
    with file.open("rb") as stream:
        blank, line = False, stream.readline()
        while line.startswith(COMMENT.encode()) or line.isspace():
            blank |= line.isspace()
            line = stream.readline()
        return io.BytesIO(line + stream.read()) if blank and line else file


def check_header(file: Any, columns: list[str], options: FileOptions) -> None:
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
            f"{file}: the first line must be a header that names the columns, found the numbers "
            f"{', '.join(columns[:3])}{', ...' if len(columns) > 3 else ''}; write a header above them."
        )
    for name, original in zip(columns, names):  # which of the two was meant is not ours to guess
        if name != original and original in columns:
            raise InputError(f"{file}: column names must differ, found {original!r} twice; rename one of them.")


def refuse_unnamed(file: Any, table: pl.DataFrame, columns: list[str], layout: str) -> None:
    """Refuse a column without a name among the data, which is as a rule the index of whatever wrote the file."""
    option = "time" if layout == "wide" else "id"
    for name in columns:
        if _UNNAMED.fullmatch(name.strip()) and table[name].null_count() < len(table):
            raise InputError(
                f"{file}: column {columns.index(name) + 1} of the data must have a name in the header, found {name!r}; "
                f"remove the column if it only counts, or name it and pass {option}=... or value=[...]."
            )


def refuse_clock(file: Any, columns: list[str], parts: list[Array]) -> None:
    """Refuse a column of a wide table that counts: no trajectory takes equal steps throughout."""
    for name, part in zip(columns, parts):
        if len(part) >= _LEAST and steps_evenly(part[:_LEAST]) and steps_evenly(part):
            raise InputError(
                f"{file}, column {name!r}: the steps of a trajectory must not all be equal, found "
                f"{part[1] - part[0]:g} throughout; pass time={name!r} (instead of dt) if these are times, "
                "remove the column if it only counts, or name the trajectories with value=[...]."
            )


def refuse_index(file: Any, columns: list[str], grid: Array) -> None:
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
        f"{file}, column {columns[0]!r}: the first points of trajectories must not count up, found steps of "
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
