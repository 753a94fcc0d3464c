"""Arrays of .npz and .npy files -> Trajectories. Pickled objects are never loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from levytorch.data.arrays import Array, numeric, positive
from levytorch.data.clock import MAX_DT, NANOSECONDS, calendar_days, no_count, to_numbers, units_beside_dt
from levytorch.data.declared import check_declared
from levytorch.data.even import check_dt
from levytorch.data.trajectories import Trajectories
from levytorch.errors import InputError

SAVE_DAYS = "save them as datetime64[D] and pass a time_unit"


def read_numpy(
    file: Path,
    names: dict[str, Any],
    dt: float | None,
    units: tuple[str | None, str | None],
    log: bool,
    max_dt: float | None,
) -> Trajectories:
    """See files.read, which checked the options."""
    arrays = load_arrays(file)
    x, clock, times, reward, ids, offsets, dt = choose(file, names, arrays, dt, units)
    max_dt = max_dt_of(file, names, arrays, units) if max_dt is None else max_dt
    unit_known = True
    if times is not None:
        if dt is not None:
            read_in, unit_known = units_beside_dt(times.dtype.kind == "M", *units, None)
            units = read_in[:2]
        times = _times(file, clock, times, units)
    try:
        x = numeric("x", x)
        if log:
            x = _logarithm(x)
        if offsets is not None:
            cuts = cuts_of(offsets, len(x) if x.ndim else 0)
            n = len(cuts) + 1
            x, times, reward = (None if a is None else np.split(a, cuts) for a in (x, times, reward))
        else:
            n = len(x) if x.ndim > 1 else 1
        if ids is not None:
            check_ids(ids, n)
        names_of = None if ids is None else ids.tolist()
        own_dt = dt if times is None else None
        new = Trajectories.from_arrays(x, own_dt, times=times, reward=reward, ids=names_of, max_dt=max_dt)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    if dt is not None and new.times is not None:
        check_dt(f"{file}, array {clock!r}", new.times, new.offsets, dt, unit_known)
        new.times, new.dt = None, dt
    return new


def check_ids(ids: Any, n: int, where: str = "") -> None:
    """Refuse ids of another number than there are trajectories, before they become Python objects."""
    if ids.shape != (n,):
        raise InputError(
            f"{where}ids must name {n} trajectories, each once, found shape {ids.shape}: save one per trajectory."
        )


def choose(
    file: Path, names: dict[str, Any], arrays: Mapping[str, Any], dt: float | None, units: tuple[str | None, str | None]
) -> tuple[Any, str, Any, Any, Any, Any, float | None]:
    """x, the name of the times, times, reward, ids and offsets among the arrays (None: not there), and dt.

    A dt that the caller gives comes back beside the times: the two must agree.
    """

    def entry(option: str, default: str) -> Any:
        name = names[option] or default
        if not isinstance(name, str):
            raise InputError(
                f"{file}: {option} must name one array, found {name!r}: stack the coordinates in one array."
            )
        if names[option] and name not in arrays:
            raise InputError(
                f"{file}: {option} must name one of {', '.join(arrays)}, found {name!r}: pass one of these."
            )
        return arrays.get(name)

    x = entry("value", "x")
    if x is None and len(arrays) == 1:
        x = next(iter(arrays.values()))
    if x is None:
        raise InputError(f"{file}: value must name the array of x, found {', '.join(arrays)}: pass value='...'.")
    clock = names["time"] or "times"
    if clock not in arrays and (dt is not None or "dt" not in arrays) and _fits(arrays.get("time"), x):
        clock = "time"
    times, reward, ids = entry("time", clock), entry("reward", "reward"), entry("id", "ids")
    if dt is None and times is None and "dt" in arrays:
        dt = _length(file, "dt", arrays["dt"], units, "save times instead of it")
    if dt is None and times is None:
        raise InputError(f"{file}: dt must be given, found neither dt nor times in the file: pass dt=...")
    return x, clock, times, reward, ids, arrays.get("offsets"), dt


def _fits(times: Any, x: Any) -> bool:
    """Whether an array that is called time can be that of the points; it may be how long a run took."""
    return times is not None and times.ndim > 0 and times.shape in (x.shape, x.shape[:1], x.shape[:2], x.shape[1:2])


def unreadable(file: Path, error: Exception) -> InputError:
    told = " ".join(str(error).split())[:200]
    return InputError(f"{file}: a {file.suffix} file of plain arrays was expected, found {told}: save it again.")


def load_arrays(file: Path) -> dict[str, Any]:
    """The arrays of a .npz or .npy file by name."""
    try:
        check_declared(file)
        if file.suffix.lower() == ".npy":
            return {"x": np.load(file, allow_pickle=False)}
        with np.load(file, allow_pickle=False) as loaded:
            return dict(loaded)
    except MemoryError:
        raise  # said by the caller, with a remedy
    except Exception as error:  # a damaged header is parsed as Python or as a zip directory, with any error of theirs
        raise unreadable(file, error) from None


def max_dt_of(
    file: Path, names: dict[str, Any], arrays: Mapping[str, Any], units: tuple[str | None, str | None]
) -> float | None:
    """The file's own max_dt, if it has one; an array that an option names is something else."""
    if MAX_DT not in arrays or MAX_DT in names.values():
        return None
    return _length(file, MAX_DT, arrays[MAX_DT], units, "save one, or pass max_dt")


def _length(file: Path, name: str, given: Any, units: tuple[str | None, str | None], remedy: str) -> float:
    """A length of time that the file holds, a number in the unit time_in."""
    if given.size != 1:
        raise InputError(f"{file}: {name} must be one number, found shape {given.shape}: {remedy}.")
    given = given if isinstance(given, np.ndarray) else given.load()  # of a file that is not loaded as a whole
    time_unit, time_in = units
    scale = 1.0 if time_in is None else NANOSECONDS[time_in] / NANOSECONDS[str(time_unit)]
    return positive(f"{file}: {name}", given.item()) * scale


def _times(file: Path, name: str, given: Any, units: tuple[str | None, str | None]) -> Array:
    if given.dtype.kind not in "mM":
        plain = numeric(f"{file}: {name}", given)
        if calendar_days(plain.reshape(-1)):
            raise no_count(f"{file}, array {name!r}", plain.reshape(-1)[0], SAVE_DAYS)
        if units[0] is None:
            return plain
    import polars as pl

    flat = given.reshape(-1).astype("datetime64[ns]") if given.dtype.kind == "M" else given.reshape(-1)
    return to_numbers(pl.Series(flat), f"{file}, array {name!r}", *units, None).reshape(given.shape)


def _logarithm(x: Array) -> Array:
    if not (x > 0).all():
        where = tuple(int(k) for k in np.argwhere(~(x > 0))[0])
        raise InputError(f"x must be positive for log=True, found {x[where]} at index {where}: use log=False.")
    return np.asarray(np.log(x))


def cuts_of(offsets: Any, n: int) -> Any:
    """Where to split n points; offsets are those of Trajectories."""
    sound = offsets.ndim == 1 and len(offsets) > 1 and offsets.dtype.kind in "iu"
    if not sound or offsets[0] != 0 or offsets[-1] != n or (np.diff(offsets.astype(np.int64)) < 0).any():
        raise InputError(
            f"offsets must be integers that rise from 0 to the {n} points of x, found {offsets.tolist()!s:.60}: save "
            "where each trajectory begins, and the number of points."
        )
    return offsets[1:-1]
