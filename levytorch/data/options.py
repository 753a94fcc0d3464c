"""The options of files of trajectories, checked before a file is looked at, and the columns of a table they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from levytorch.convert import choice, positive_number, shown, switch
from levytorch.errors import InputError

NANOSECONDS = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
    "day": 86_400_000_000_000,
    "week": 604_800_000_000_000,
    "year": 31_557_600_000_000_000,  # of 365.25 days
}
# what a column of dates says without a column of its own: nanoseconds of a period, of the unit, and of its beginning
CLOCKS = {
    "time_of_day": (NANOSECONDS["day"], NANOSECONDS["h"], 0),
    "time_of_week": (NANOSECONDS["week"], NANOSECONDS["day"], 3 * NANOSECONDS["day"]),  # from Monday; 1970 on Thursday
}
MAX_DT = "max_dt"  # the column of a table, or the array of a .npz file, that says which steps are gaps
_CHOICES = {
    "layout": ("long", "wide", "rows"),
    "missing": ("error", "drop"),
    "short": ("error", "drop"),
    "decimal": (".", ",", "comma"),  # a bare comma means something else to hydra
    "time_unit": tuple(NANOSECONDS),
    "time_in": tuple(NANOSECONDS),
}


class TimeUnits(NamedTuple):
    """The unit that is wanted, the one that numbers of the file are in, and how its dates are written."""

    time_unit: str | None = None
    time_in: str | None = None
    time_format: str | None = None

    def length(self, where: str, given: Any) -> float:
        """A length of time that the file holds, in the unit that is wanted."""
        if self.time_in is None:
            return positive_number(where, given)
        return positive_number(where, given * (NANOSECONDS[self.time_in] / NANOSECONDS[str(self.time_unit)]))


@dataclass(frozen=True)
class FileOptions:
    """How `Trajectories.from_file` reads a file. Pass these options to it, or to `from_frame`, by their names.

    Args:
        layout: of a table. "long": one row per observation. "wide": one column per trajectory, one row per time.
            "rows": one row per trajectory, its columns the observations. In "wide" and "rows" a trajectory ends where
            its cells become empty.
        value: the column of x, or several for d > 1. Default: x (or x1, x2, ...), or the only column left. In "wide"
            and "rows": the columns to use, by default all but time and id. In .npz: the array, by default x.
        id: the column that identifies trajectories; rows of different ones may be mixed. Default: id if there is one,
            else one trajectory.
        time: the column of times: numbers, or dates (year first, or `time_format`). Default: time if there is one.
        reward: the column of a logged reward, carried along. Default: reward if there is one.
        action: the column of the action held from each observation to the next, text or numbers (not with on_disk); two
            columns of numbers are a vector. Default: action, or action1 and action2, if they exist. If the file has
            dates also time_of_day (hours) and time_of_week (days from Monday), in UTC, for a modulation.
        terminal: the column that holds, at the last row of an episode that ended, the value of the state it ended in,
            and is empty elsewhere (not with on_disk). Default: terminal if there is one.
        dt: instead of times, the time between two observations, or a column that holds it in every row. If the file has
            times, too, both must agree. Default: dt if there is such a column.
        time_unit: the unit of dt that you want: ns, us, ms, s, min, h, day, week or year (of 365.25 days). Required for
            dates.
        time_in: the unit of a column of times or of dt that holds numbers; it is converted to time_unit.
        time_format: the format of dates that do not begin with the year, such as "%d.%m.%Y %H:%M". 03/04/2024 is never
            guessed, and 20240403 needs "%Y%m%d".
        log: take the logarithm of x (prices).
        max_dt: pairs further apart (in time_unit) are gaps, left out of transitions() and counted. Default: the max_dt
            of the file (`to_file` writes one), else no limit.
        missing: "error", or "drop": rows without a value are left out and counted; the pair across has its own, longer
            dt.
        sort: sort each trajectory by time instead of refusing unsorted ones.
        short: "error", or "drop": trajectories with a single point are left out and counted.
        separator: of a .csv; by default the one that its first line uses (comma, tab, semicolon or bar).
        decimal: of a .csv: "." or "," (or "comma"), as in 3,14. A separator of thousands is refused.
        on_disk: a directory for data larger than memory (.parquet, .npy, .npz): points and pairs are kept there and
            mapped, not loaded; existing entries are used again. Rows of a table must be in order.

    Example:
        >>> FileOptions(time="date", time_unit="h", max_dt=2.0).missing
        'error'
    """

    layout: str = "long"
    value: str | Sequence[str] | None = None
    id: str | None = None
    time: str | None = None
    reward: str | None = None
    action: str | Sequence[str] | None = None
    terminal: str | None = None
    dt: float | str | None = None
    time_unit: str | None = None
    time_in: str | None = None
    time_format: str | None = None
    log: bool = False
    max_dt: float | None = None
    missing: str = "error"
    sort: bool = False
    short: str = "error"
    separator: str | None = None
    decimal: str = "."
    on_disk: str | Path | None = None

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) is not getattr(FileOptions, name):  # the default, which may be None
                choice(name, getattr(self, name), allowed)
        switch("log", self.log)
        switch("sort", self.sort)
        for name in ("time_format", "separator"):
            given = getattr(self, name)
            if given is not None and (not isinstance(given, str) or not given):
                raise InputError(
                    f"{name} must be text, found {shown(given)}; leave it out, or pass text such as '%d.%m.%Y' or ';'."
                )
        if self.separator is not None and len(self.separator.encode()) != 1:
            raise InputError(f"separator must be one character, found {self.separator!r}; pass one, such as ';'.")
        for name in ("value", "id", "time", "reward", "action", "terminal"):
            column = getattr(self, name)
            several = name in ("value", "action")
            if isinstance(column, (Mapping, bool)) or (not several and isinstance(column, (list, tuple))):
                raise InputError(f"{name} must name a column, found {shown(column)}; pass its name.")
            if several and hasattr(column, "__iter__") and not isinstance(column, str):
                object.__setattr__(self, name, [str(one) for one in column])
            elif name != "value" and column is not None:
                # a column may be called 1, and a command line makes a number of that
                object.__setattr__(self, name, str(column))
        for name in ("dt", "max_dt"):
            length = getattr(self, name)
            if length is not None and not (name == "dt" and isinstance(length, str)):
                object.__setattr__(self, name, positive_number(name, length, "pass a length of time"))
        if self.dt is not None and self.time is not None:
            raise InputError(f"dt and time must not both be given, found {self.dt!r} and {self.time!r}; remove one.")
        if self.time_in is not None and self.time_unit is None:
            raise InputError(
                f"time_unit must be given with time_in = {self.time_in!r}, found None; pass the unit of dt."
            )
        if self.time_in is not None and isinstance(self.dt, float):
            raise InputError(
                f"time_in must be the unit of a column, found {self.time_in!r} beside dt = {self.dt:g}; pass dt in "
                "time_unit and leave time_in out."
            )
        if self.on_disk is not None and not isinstance(self.on_disk, (str, Path)):
            raise InputError(f"on_disk must be a directory, found {self.on_disk!r}; name one with room for the data.")

    @property
    def units(self) -> TimeUnits:
        return TimeUnits(self.time_unit, self.time_in, self.time_format)

    def columns(self, option: str) -> list[str]:
        """The columns that `value` or `action` names; none where it names none."""
        given = getattr(self, option)
        return [] if given is None else list(given) if isinstance(given, list) else [str(given)]

    def named(self) -> list[tuple[str, str]]:
        """The options that name columns, and which."""
        both = [(option, getattr(self, option)) for option in ("id", "time", "reward", "terminal", "dt")]
        both += [(option, name) for option in ("action", "value") for name in self.columns(option)]
        return [(option, name) for option, name in both if isinstance(name, str)]


class ColumnNames(NamedTuple):
    """What is in which column; x of a wide table, or of one of rows, is in all that are left."""

    value: list[str]
    id: str | None = None
    time: str | None = None
    reward: str | None = None
    dt: float | str | None = None  # a number: that of all
    action: list[str] | None = None  # two: a vector
    terminal: str | None = None


def column_names(path: Any, options: FileOptions, columns: list[str]) -> ColumnNames:
    """The columns that the options name, and those that need no name, of a table that has these."""
    for option, name in options.named():
        if name not in columns and not (option == "action" and name in CLOCKS):
            raise InputError(
                f"{path}: {option} must be a column of the file, found no {name!r} among {quoted(columns)}; "
                "pass one of these."
            )
    value = options.columns("value")
    if options.value is not None and (not value or len(set(value)) < len(value)):
        raise InputError(
            f"{path}: value must name one or more columns, each once, found {quoted(value) or 'none'}; pass "
            f"some of {quoted(columns)}."
        )
    return (_long_names if options.layout == "long" else _grid_names)(path, options, columns)


def _long_names(path: Any, options: FileOptions, columns: list[str]) -> ColumnNames:
    """The columns of a long table: those that to_file writes need not be named."""
    value = options.columns("value")
    free = [name for name in columns if name not in value and name != options.dt]
    # a time also beside a dt: the two must agree
    id, time, reward, terminal = (
        getattr(options, option) or (option if option in free else None)
        for option in ("id", "time", "reward", "terminal")
    )
    held = [["action"], ["action1", "action2"]]  # as to_file writes it
    action = options.columns("action") or next((names for names in held if set(names) <= set(free)), []) or None
    dt = "dt" if time is None and options.dt is None and "dt" in free else options.dt
    if not value:
        rest = [name for name in free if name not in (id, time, reward, terminal, dt, MAX_DT, *(action or ()))]
        numbered = [f"x{k + 1}" for k in range(len(rest))]
        value = ["x"] if "x" in rest else numbered if rest == numbered else rest
        if not value or (len(value) != 1 and value != numbered):
            raise InputError(
                f"{path}: value must name the column of x, found {quoted(rest) or 'none'}; pass value='...'."
            )
    return ColumnNames(value, id, time, reward, dt, action, terminal)


def _grid_names(path: Any, options: FileOptions, columns: list[str]) -> ColumnNames:
    """Those of a table with one column ("wide") or one row per trajectory: an own one is of times, or of ids."""
    own, other = ("time", "id") if options.layout == "wide" else ("id", "time")
    for option in ("reward", "action", "terminal", other):
        if getattr(options, option) is not None:
            raise InputError(
                f"{path}: {option} must be left out of layout {options.layout!r}, found {getattr(options, option)!r}; "
                "remove it, or use layout='long'."
            )
    name = getattr(options, own)
    if own in columns and own not in options.columns("value"):
        name = name or own
    value = options.columns("value") or [column for column in columns if column != name]
    return ColumnNames(value, dt=options.dt, **{own: name})


def quoted(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:12]) + (", ..." if len(names) > 12 else "")
