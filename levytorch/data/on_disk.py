"""Files larger than memory -> Trajectories whose points lie in a store, and their pairs in another entry of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levytorch.data.arrays import warn_of_columns
from levytorch.data.pairing import float_limit, is_gap, single_dt
from levytorch.data.store import Entry, Writer, make
from levytorch.data.trajectories import Trajectories
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError

_BLOCK = 1 << 17  # points at a time


def read_on_disk(file: Path, directory: Any, options: dict[str, Any], max_dt: float | None) -> Trajectories:
    """See files.read, which checked the options."""
    if isinstance(directory, bool) or not isinstance(directory, (str, Path)):
        raise InputError(f"on_disk must be a directory, found {directory!r}: name one with room for the data.")
    suffix = file.suffix.lower()
    if suffix in (".csv", ".tsv"):
        raise InputError(
            f"{file}: on_disk needs a .parquet, .npy or .npz file, found {suffix}: convert it, "
            "polars.scan_csv(path).sink_parquet(path)."
        )
    status = file.stat()
    recipe = {"file": str(file.resolve()), "size": status.st_size, "changed": status.st_mtime_ns, "options": options}
    if suffix == ".parquet":
        from levytorch.data.disk_tables import DiskTable

        entry = make(Path(directory), recipe, lambda writer: DiskTable(file, options).write(writer))
        max_dt = DiskTable(file, options).max_dt() if max_dt is None else max_dt
    else:
        from levytorch.data.disk_numpy import members_of, write_arrays
        from levytorch.data.numpy_files import max_dt_of

        names, dt, units, log = (options[key] for key in ("names", "dt", "units", "log"))
        entry = make(Path(directory), recipe, lambda writer: write_arrays(file, names, dt, units, log, writer))
        max_dt = max_dt_of(file, names, members_of(file), units) if max_dt is None else max_dt
    new = _trajectories(entry, max_dt)
    if suffix == ".parquet":
        columns = entry.record.get("columns")
        if not isinstance(columns, list) or len(columns) != new.dim:
            raise entry.spoiled("no names of its columns")
        new.check_motion([f"{file}: column {name!r}" for name in columns])
        return new
    try:
        new.check()
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    warn_of_columns(new.x, new.lengths, stacklevel=5)
    return new


def _trajectories(entry: Entry, max_dt: float | None) -> Trajectories:
    """The points of an entry; their numbers are those of the file, but their shapes must go together."""
    lengths, record = np.array(entry.array("lengths")), entry.record
    if lengths.ndim != 1 or lengths.dtype != np.int64 or not len(lengths) or (lengths < 0).any():
        raise entry.spoiled("no lengths of its trajectories")
    rows = len(entry.array("x"))
    ends = np.cumsum(lengths)
    if lengths.max() > rows or ends.max() > rows or ends[-1] != rows:  # also when the sum overflows
        raise entry.spoiled(f"trajectories of other lengths than the {rows} points of x")
    dt, ids = record.get("dt"), record.get("ids")
    if "times" not in entry and not (isinstance(dt, float) and 0 < dt < math.inf):
        raise entry.spoiled(f"dt = {str(dt)[:60]} and no times")
    named = isinstance(ids, list) and all(isinstance(name, str | int | float) for name in ids)
    if ids is not None and not (named and len(ids) == len(lengths)):
        raise entry.spoiled(f"ids that do not name {len(lengths)} trajectories")
    return Trajectories(
        entry.points("x", "<f8", rows),
        np.concatenate([[0], ends]).astype(np.int64),
        dt=None if "times" in entry else dt,
        times=entry.points("times", "<f8", rows) if "times" in entry else None,
        reward=entry.points("reward", "<f8", rows) if "reward" in entry else None,
        ids=ids,
        max_dt=max_dt,
        dropped=_dropped(entry),
        stored=entry,
    )


def _dropped(entry: Entry) -> dict[str, int]:
    """How many rows were left out, by reason."""
    dropped = entry.record.get("dropped")
    if not isinstance(dropped, dict) or not all(_is_count(count) for count in dropped.values()):
        raise entry.spoiled("no counts of what was left out")
    return dropped


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def pair_up_on_disk(t: Trajectories, max_dt: float | None) -> Transitions:
    """pairing.pair_up, block by block: the same pairs, in an entry of their own."""
    assert t.stored is not None
    if t.times is None and max_dt is not None and t.dt is not None and t.dt > max_dt:
        raise InputError(f"max_dt must not be below dt, found max_dt = {max_dt:g} and dt = {t.dt:g}: raise it.")
    entry = t.stored.derive({"pairs": max_dt}, lambda writer: _write_pairs(t, max_dt, writer))
    dropped = dict(t.dropped)
    if max_dt is not None and t.times is not None:
        if not _is_count(entry.record.get("gaps")):
            raise entry.spoiled("no count of gaps")
        dropped["across a gap"] = entry.record["gaps"]
    if "x" not in entry:
        reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
        raise InputError(f"at least one pair must remain, found none ({reasons}): raise max_dt, or check the data.")
    pairs = _transitions(t, entry, dropped)
    x, dx = entry.array("x"), entry.array("dx")
    limit = float_limit(dx)
    if math.isfinite(limit) and max(-float(x.min()), float(x.max())) >= limit:
        near = np.empty(len(x), dtype=bool)
        for low in range(0, len(x), _BLOCK):
            block = x[low : low + _BLOCK]
            near[low : low + _BLOCK] = np.abs(block.reshape(len(block), -1)).max(axis=1) < limit
        dropped["beyond float resolution"] = int((~near).sum())
        if not near.any():
            raise InputError(f"at least one pair must remain, found all {len(x)} beyond float resolution: check x.")
        pairs = pairs._kept(near, {"beyond float resolution": dropped["beyond float resolution"]}, keep_mu=False)
    if t.times is not None:
        steps = pairs.dt.numpy()
        single = single_dt(steps, max(-float(t.times.min()), float(t.times.max())))
        if single is not None:
            pairs = pairs._even(single)
    return pairs


def _transitions(t: Trajectories, entry: Entry, dropped: dict[str, int]) -> Transitions:
    counts = np.array(entry.array("counts"))
    rows = len(entry.array("x"))
    sound = counts.shape == t.lengths.shape and counts.dtype == np.int64
    if not sound or (counts < 0).any() or (counts >= t.lengths).any() or counts.sum() != rows:
        raise entry.spoiled(f"counts that do not add up to the {rows} pairs")
    _check_pairs(entry, t.x.shape[1:], rows, dt=t.times is not None, reward=t.reward is not None)
    dt: Any = t.dt if t.times is None else entry.tensor("dt")
    return Transitions._build(
        entry.tensor("x"),
        entry.tensor("dx"),
        dt,
        t.times is None,
        counts=counts,
        reward=None if t.reward is None else entry.tensor("reward"),
        dropped={reason: count for reason, count in dropped.items() if count},
        stored=entry,
    )


def _write_pairs(t: Trajectories, max_dt: float | None, writer: Writer) -> dict[str, Any]:
    n, gaps = len(t.x), 0
    counts = t.lengths - 1
    for low in range(0, n - 1, _BLOCK):
        high = min(low + _BLOCK, n - 1)
        here, after = slice(low, high), slice(low + 1, high + 1)
        usable = np.ones(high - low, dtype=bool)
        first, last = np.searchsorted(t.offsets[1:-1], [low + 1, high + 1])
        usable[t.offsets[1:-1][first:last] - 1 - low] = False  # the last of one trajectory and the first of the next
        if t.times is not None:
            dt = t.times[after] - t.times[here]
            if max_dt is not None:
                gap = usable & is_gap(dt, max_dt)
                gaps += int(gap.sum())
                usable &= ~gap
                lost = np.searchsorted(t.offsets, low + np.flatnonzero(gap), side="right") - 1
                np.subtract.at(counts, lost, 1)
            if usable.any():
                writer.append("dt", np.asarray(dt)[usable])
        if not usable.any():
            continue
        writer.append("x", np.asarray(t.x[here])[usable])
        writer.append("dx", (np.asarray(t.x[after]) - np.asarray(t.x[here]))[usable])
        if t.reward is not None:
            writer.append("reward", np.asarray(t.reward[here])[usable])
    writer.append("counts", counts)
    return {"gaps": gaps}


def kept_on_disk(t: Transitions, keep: NDArray[np.bool_], name: dict[str, Any]) -> Entry:
    """The pairs of a mask, copied block by block."""
    assert t.stored is not None

    def build(writer: Writer) -> dict[str, Any]:
        columns = {"x": t.x, "dx": t.dx, "dt": None if t.uniform_dt else t.dt, "reward": t.reward}
        for low in range(0, len(t), _BLOCK):
            rows = slice(low, min(low + _BLOCK, len(t)))
            for column, values in columns.items():
                if values is not None:
                    writer.append(column, values[rows].numpy()[keep[rows]])
        return {}

    entry = t.stored.derive(name, build)
    shape = tuple(t.x.shape[1:])
    _check_pairs(entry, shape, int(keep.sum()), dt=not t.uniform_dt, reward=t.reward is not None)
    return entry


def _check_pairs(entry: Entry, shape: tuple[int, ...], rows: int, *, dt: bool, reward: bool) -> None:
    """Refuse an entry of pairs whose columns do not go together."""
    names = ["x", "dx", *(["dt"] if dt else []), *(["reward"] if reward else [])]
    found = [entry.points(name, "<f8", rows).shape[1:] for name in names]
    if found[0] != shape or found[1] != shape:
        raise entry.spoiled(f"states of shape {found[0]} instead of {shape}")
