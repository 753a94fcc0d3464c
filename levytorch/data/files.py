"""Files that hold trajectories, by suffix: .npz, .npy, .csv, .tsv, .parquet, read and written.

Every refusal names the file, the column and the row (the first row after the header is row 1), and says what to do.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.convert import choice, positive_number, shown, switch
from levytorch.data.actions import named
from levytorch.data.clock import MAX_DT, TimeUnits
from levytorch.data.columns import TableOptions
from levytorch.data.numpy_files import ArrayFile
from levytorch.data.points import PointFile
from levytorch.data.tables import TableFile, write_table
from levytorch.errors import InputError
from levytorch.files import path_of, replacing

if TYPE_CHECKING:
    from levytorch.data.trajectories import Trajectories

TABLES = (".csv", ".tsv", ".parquet")
SUFFIXES = (".npz", ".npy", *TABLES)
LAYOUTS = ("long", "wide", "rows")
_MAGIC = {".npz": b"PK", ".npy": b"\x93NUMPY", ".parquet": b"PAR1"}


def open_file(
    path: str | Path,
    *,
    layout: str = "long",
    value: str | Sequence[str] | None = None,
    id: str | None = None,
    time: str | None = None,
    reward: str | None = None,
    action: str | None = None,
    dt: float | str | None = None,
    time_unit: str | None = None,
    time_in: str | None = None,
    time_format: str | None = None,
    log: bool = False,
    max_dt: float | None = None,
    missing: str = "error",
    sort: bool = False,
    short: str = "error",
    separator: str | None = None,
    decimal: str = ".",
    on_disk: str | Path | None = None,
) -> PointFile:
    """The points of a .npz, .npy, .csv, .tsv or .parquet file: options are checked here, nothing is read yet.

    Args:
        layout: of a table. "long": one row per observation. "wide": one column per trajectory, one row per time.
            "rows": one row per trajectory, its columns the observations. In "wide" and "rows" a trajectory ends where
            its cells become empty.
        value: the column of x, or several for d > 1. Default: x (or x1, x2, ...), or the only column left. In "wide"
            and "rows": the columns to use, by default all but time and id. In .npz: the array, by default x.
        id: the column that tells trajectories apart; rows of different ones may be mixed. Default: id if there is one,
            else one trajectory.
        time: the column of times: numbers, or dates (year first, or `time_format`). Default: time if there is one.
        reward: the column of a logged reward, carried along. Default: reward if there is one.
        action: the column of the action held from each observation to the next, text or numbers (not with on_disk).
            Default: action if there is one.
        dt: instead of times, the time between two observations; or the column that says so. A file that has times too
            is refused where they disagree with it.
        time_unit: the unit of dt that you want: ns, us, ms, s, min, h, day or week. Required for dates.
        time_in: the unit that a column of times or of dt is in, when it holds numbers; with time_unit, converts it.
        time_format: how to read dates, such as "%d.%m.%Y %H:%M".
        log: take the logarithm of x (prices).
        max_dt: pairs further apart (in time_unit) are gaps, left out of transitions() and counted. Default: what the
            file says, a constant column or a number max_dt (`to_file` writes it), else no limit.
        missing: "error", or "drop": rows without a value are left out and counted; the pair across has its own, longer
            dt.
        sort: sort each trajectory by time instead of refusing unsorted ones.
        short: "error", or "drop": trajectories with a single point are left out and counted.
        separator: of a .csv; by default the one that its first line uses (comma, tab, semicolon or bar).
        decimal: of a .csv: "." or "," (or "comma").
        on_disk: a directory for data larger than memory (.parquet, .npy, .npz): points and pairs are kept there and
            mapped, not loaded; what is there already is used again. Rows of a table must be in order.
    """
    file = path_of(path)
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{file}: the suffix must be one of {', '.join(SUFFIXES)}, found {suffix!r}: convert the file."
        )
    if not file.is_file():
        raise InputError(f"{file}: a file must exist there, found none: check the path (from {Path.cwd()}).")
    choice("layout", layout, LAYOUTS)
    choice("missing", missing, ("error", "drop"))
    choice("short", short, ("error", "drop"))
    choice("decimal", decimal, (".", ",", "comma"))  # on hydra's command line a bare comma means something else
    log, sort = switch("log", log), switch("sort", sort)
    for name, given in (("time_format", time_format), ("separator", separator)):
        if given is not None and (not isinstance(given, str) or not given):
            raise InputError(
                f"{name} must be text, found {shown(given)}: leave it out, or pass such as '%d.%m.%Y' or ';'."
            )
    if separator is not None and len(separator.encode()) != 1:
        raise InputError(f"separator must be one character, found {separator!r}: pass such as ';'.")
    for name, column in (("value", value), ("id", id), ("time", time), ("reward", reward), ("action", action)):
        if isinstance(column, (Mapping, bool)) or (name != "value" and isinstance(column, (list, tuple))):
            raise InputError(f"{name} must name a column, found {shown(column)}: pass its name.")
    if dt is not None and not isinstance(dt, str):
        dt = positive_number("dt", dt)
    if dt is not None and time is not None:
        raise InputError(f"{file}: only one of dt and time may be given, found both: remove one.")
    units = TimeUnits(time_unit, time_in, time_format)
    units.check()
    if time_in is not None and isinstance(dt, float):
        raise InputError(
            f"{file}: time_in is the unit of a column, found {time_in!r} beside dt = {dt:g}: pass dt in time_unit and "
            "leave time_in out."
        )
    _check_magic(file, suffix)
    # a column may be called 1, and a command line makes a number of that
    id, time, reward, action = (None if name is None else str(name) for name in (id, time, reward, action))
    max_dt = None if max_dt is None else positive_number("max_dt", max_dt)
    directory = None if on_disk is None else _directory(file, suffix, on_disk)
    if suffix in TABLES:
        several = not isinstance(value, str) and hasattr(value, "__iter__")
        options = TableOptions(
            layout=layout,
            value=None if value is None else [str(name) for name in (value if several else [value])],
            id=id,
            time=time,
            reward=reward,
            action=action,
            dt=dt,
            units=units,
            log=log,
            drop_missing=missing == "drop",
            sort=sort,
            drop_short=short == "drop",
            separator=separator,
            decimal=decimal,
        )
        return TableFile(file, max_dt, directory, options)
    if isinstance(dt, str):
        raise InputError(
            f"{file}: dt must be a number for {suffix} files, found {dt!r}: pass the time between two points."
        )
    of_tables: tuple[tuple[str, Any, Any], ...] = (
        ("layout", layout, "long"),
        ("missing", missing, "error"),
        ("sort", sort, False),
        ("short", short, "error"),
        ("separator", separator, None),
        ("decimal", decimal, "."),
        ("time_format", time_format, None),
    )
    for name, given, default in of_tables:
        if given != default:
            raise InputError(
                f"{file}: {name} is an option of tables, found {given!r} for a {suffix} file: leave it out and prepare "
                "the arrays."
            )
    names = {"value": value, "time": time, "reward": reward, "id": id, "action": action}
    return ArrayFile(file, max_dt, directory, names, dt, units, log)


OPTIONS = frozenset(inspect.signature(open_file).parameters) - {"path"}


def write(trajectories: Trajectories, path: str | Path) -> None:
    """Write a file that `open_file(path)` turns into the same numbers; it appears whole or not at all."""
    file = path_of(path)
    suffix = file.suffix.lower()
    if suffix not in (".npz", *TABLES):
        raise InputError(f"{file}: the suffix must be one of .npz, {', '.join(TABLES)}, found {suffix!r}: choose one.")
    if suffix == ".npz":
        fields: dict[str, Any] = {"x": trajectories.x, "offsets": trajectories.offsets}
        for name in ("dt", "times", "reward"):
            if getattr(trajectories, name) is not None:
                fields[name] = getattr(trajectories, name)
        if trajectories.action is not None:
            fields["action"] = named(trajectories.action, trajectories.actions)
        if trajectories.max_dt is not None:
            fields[MAX_DT] = trajectories.max_dt
        if trajectories.ids is not None:
            fields["ids"] = np.asarray(trajectories.ids)
        with replacing(file) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **fields)
        return
    write_table(trajectories, file)


def _directory(file: Path, suffix: str, directory: Any) -> Path:
    """on_disk as a path, for a file that can be read block by block."""
    if isinstance(directory, bool) or not isinstance(directory, (str, Path)):
        raise InputError(f"on_disk must be a directory, found {directory!r}: name one with room for the data.")
    if suffix in (".csv", ".tsv"):
        raise InputError(
            f"{file}: on_disk needs a .parquet, .npy or .npz file, found {suffix}: convert it, "
            "polars.scan_csv(path).sink_parquet(path)."
        )
    return Path(directory)


def _check_magic(file: Path, suffix: str) -> None:
    """A .csv that is a spreadsheet in disguise, a .parquet that is text: said before a parser chokes on it."""
    with file.open("rb") as stream:
        head = stream.read(4096)
    if not head:
        raise InputError(f"{file}: the file must not be empty, found 0 bytes: check how it was written.")
    if suffix in _MAGIC:
        if not head.startswith(_MAGIC[suffix]):
            raise InputError(f"{file}: a {suffix} file was expected, found other content: correct the suffix.")
    elif b"\0" in head or any(head.startswith(magic) for magic in _MAGIC.values()):
        raise InputError(f"{file}: text was expected in a {suffix} file, found binary content: correct the suffix.")
