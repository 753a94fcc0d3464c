"""Files larger than memory -> Trajectories whose points lie in a store, and their pairs in another entry of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from levytorch.data.pairing import float_limit, single_dt
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
            f"{file}: on_disk reads .parquet, .npy and .npz files, found {suffix}: convert it, "
            "polars.scan_csv(path).sink_parquet(path)."
        )
    status = file.stat()
    recipe = {"file": str(file.resolve()), "size": status.st_size, "changed": status.st_mtime_ns, "options": options}
    if suffix == ".parquet":
        from levytorch.data.disk_tables import DiskTable

        entry = make(Path(directory), recipe, lambda writer: DiskTable(file, options).write(writer))
    else:
        from levytorch.data.disk_numpy import write_arrays

        names, dt, units, log = (options[key] for key in ("names", "dt", "units", "log"))
        entry = make(Path(directory), recipe, lambda writer: write_arrays(file, names, dt, units, log, writer))
    lengths = np.array(entry.array("lengths"), dtype=np.int64)
    new = Trajectories(
        entry.array("x"),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        dt=None if "times" in entry else entry.record["dt"],
        times=entry.array("times") if "times" in entry else None,
        reward=entry.array("reward") if "reward" in entry else None,
        ids=entry.record.get("ids"),
        max_dt=max_dt,
        dropped=entry.record["dropped"],
        stored=entry,
    )
    if suffix == ".parquet":
        new.check_motion([f"{file}: column {name!r}" for name in entry.record["columns"]])
        return new
    try:
        new.check()
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    return new


def pair_up_on_disk(t: Trajectories, max_dt: float | None) -> Transitions:
    """pairing.pair_up, block by block: the same pairs, in an entry of their own."""
    assert t.stored is not None
    if t.times is None and max_dt is not None and t.dt is not None and t.dt > max_dt:
        raise InputError(f"max_dt must not be below dt, found max_dt = {max_dt:g} and dt = {t.dt:g}: raise it.")
    entry = t.stored.derive({"pairs": max_dt}, lambda writer: _write_pairs(t, max_dt, writer))
    dropped = dict(t.dropped)
    if max_dt is not None and t.times is not None:
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
    dt: Any = t.dt if t.times is None else entry.tensor("dt")
    return Transitions._build(
        entry.tensor("x"),
        entry.tensor("dx"),
        dt,
        t.times is None,
        counts=np.array(entry.array("counts"), dtype=np.int64),
        reward=entry.tensor("reward") if "reward" in entry else None,
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
                gap = usable & ~(dt <= max_dt * (1 + 1e-9))
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

    return t.stored.derive(name, build)
