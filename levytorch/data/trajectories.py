"""Trajectories: observed paths of one or many lengths, evenly or unevenly sampled, in d >= 1 dimensions.

All points lie in one flat array, trajectory after trajectory, so a single long price series and 400,000 short paths are
the same thing. They are read from and written to files by suffix: .npz, .npy, .csv, .tsv, .parquet.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from levytorch.convert import Array, Integers, known_keys, path_of, positive_number, shown, whole_number
from levytorch.data.arrays import flatten, labels_of, match, per_point, rewards_per_point, warn_of_columns
from levytorch.data.numpy_files import ArrayFile
from levytorch.data.options import MAX_DT, FileOptions
from levytorch.data.pairing import TransitionBlocks, pair_up
from levytorch.data.points import (
    PointFile,
    Points,
    disorder,
    judge_motion,
    out_of_order,
    refuse_nonfinite,
    refuse_short,
    refuse_twice,
    steps_across,
)
from levytorch.data.store import Entry, Writer, make, within_memory
from levytorch.data.tables import TableFile
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError
from levytorch.files import replacing

_BLOCK = 1 << 17  # points looked at together
TABLES = (".csv", ".tsv", ".parquet")
SUFFIXES = (".npz", ".npy", *TABLES)
_MAGIC = {".npz": b"PK", ".npy": b"\x93NUMPY", ".parquet": b"PAR1"}
OPTIONS = frozenset(field.name for field in fields(FileOptions))


class Trajectories:
    """Paths, made by `from_arrays`, `from_file` or `levytorch.simulate`.

    Attributes:
        x: all points, (N,) or (N, d).
        offsets: (n + 1,) where each trajectory begins in x, and N.
        dt: the time between any two neighbours, or None when `times` has it.
        times: (N,) or None.
        reward: (N,) reward logged at each point, or None.
        action: (N,) place among `actions` of the action held from each point to the next, or None.
        ids: the name of each trajectory, or None.
        max_dt: pairs further apart than this are gaps, not transitions; None: no limit.
        dropped: what was left out while reading, by reason.
        stored: where the points lie when they are on disk (`from_file(..., on_disk=directory)`), else None.
    """

    def __init__(
        self,
        x: Array,
        offsets: Integers,
        *,
        dt: float | None = None,
        times: Array | None = None,
        reward: Array | None = None,
        action: Array | None = None,
        actions: Sequence[Any] = (),
        ids: Sequence[Any] | None = None,
        max_dt: float | None = None,
        dropped: Mapping[str, int] | None = None,
        stored: Entry | None = None,
    ) -> None:
        self.x, self.offsets, self.times, self.reward = x, offsets, times, reward
        for name, given in (("actions", actions), ("ids", () if ids is None else ids)):
            if isinstance(given, str | bytes) or not isinstance(given, Iterable):
                raise InputError(f"{name} must be a list of labels, found {shown(given)}; pass one.")
        if not isinstance(dropped, Mapping | None):
            raise InputError(f"dropped must be counts by reason, found {shown(dropped)}; leave it out.")
        self.action, self.actions = action, tuple(actions)
        self.dt, self.ids = dt, None if ids is None else tuple(ids)
        self.max_dt = None if max_dt is None else positive_number("max_dt", max_dt)
        self.dropped = dict(dropped or {})
        self.stored = stored
        self.repeats = False  # whether the system is known to repeat itself from cell to cell

    # ----------------------------------------------------------------------------------------------------- in and out

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        dt: float | None = None,
        *,
        times: Any = None,
        reward: Any = None,
        action: Any = None,
        ids: Sequence[Any] | None = None,
        max_dt: float | None = None,
    ) -> Trajectories:
        """From arrays or tensors.

        Args:
            x: (n_traj, n_time) or (n_traj, n_time, d); (n_time,) is one trajectory, and one in d dimensions is x[None];
                a list of (n_time,) or (n_time, d) arrays holds trajectories of different lengths.
            dt: the time between any two neighbours; or
            times: (n_time,) for all trajectories, or (n_traj, n_time), or a list like x; strictly increasing.
            reward: one number per point, shaped like x without its d, or one per pair, (n_traj, n_time - 1).
            action: the label of the action held from each point to the next, numbers or strings: one per point (that of
                the last is not used) or one per pair, (n_traj, n_time - 1). Vectors of two numbers: (..., 2).
            ids: a name per trajectory.
            max_dt: pairs further apart are gaps: left out of transitions() and counted.

        >>> Trajectories.from_arrays([[0.0, 1.0, 4.0]], dt=0.5).transitions().dx
        tensor([1., 3.], dtype=torch.float64)
        """
        points, lengths = flatten("x", x)
        if dt is None and times is None:
            raise InputError("dt or times must be given, found neither; pass the time between observations, or times.")
        if dt is not None and times is not None:
            raise InputError("dt and times must not both be given, found both; remove one.")
        ids = None if ids is None else _names(ids)
        if ids is not None and len(ids) != len(lengths):
            raise InputError(f"ids must name {len(lengths)} trajectories, found {len(ids)}; pass one per trajectory.")
        if ids is not None:
            refuse_twice(ids)
        held, actions = (None, ()) if action is None else per_point(action, lengths)
        new = cls(
            points,
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            dt=None if dt is None else positive_number("dt", dt),
            times=None if times is None else match("times", times, lengths, shared=True),
            reward=None if reward is None else match("reward", rewards_per_point(reward, lengths), lengths),
            action=held,
            actions=actions,
            ids=ids,
            max_dt=max_dt,
        )
        new.check()
        warn_of_columns(points, lengths, stacklevel=3)
        return new

    @classmethod
    def from_file(cls, path: str | Path, **options: Any) -> Trajectories:
        """From a .npz, .npy, .csv, .tsv or .parquet file; `levytorch.data.options.FileOptions` documents every option.

        With on_disk=<directory> a .npz, .npy or .parquet file may be larger than memory (docs/scaling.md).
        """
        file = open_file(path, **options)
        on_disk = file.options.on_disk
        with within_memory(file.path):
            new = cls._in_memory(file) if on_disk is None else cls._mapped(file, Path(on_disk))
        new._check_motion(file.coordinates, stacklevel=4)
        if isinstance(file, ArrayFile):
            warn_of_columns(new.x, new.lengths, stacklevel=3)
        return new

    @classmethod
    def _in_memory(cls, file: PointFile) -> Trajectories:
        file.open(whole=True)
        max_dt = file.max_dt
        file.survey()
        ((_, x, times, reward, _, action),) = file.points()
        facts: dict[str, Any] = {"dt": file.dt, "ids": file.ids, "max_dt": max_dt, "dropped": file.dropped}
        return cls(x, file.offsets, times=times, reward=reward, action=action, actions=file.actions, **facts)

    @classmethod
    def _mapped(cls, file: PointFile, directory: Path) -> Trajectories:
        """The points in an entry of a store; their numbers are those of the file, but their shapes must go together."""

        def build(writer: Writer) -> dict[str, Any]:
            file.survey()
            for block in file.points():
                for name in ("x", "times", "reward"):
                    if getattr(block, name) is not None:
                        writer.append(name, getattr(block, name))
            writer.append("lengths", file.lengths)
            return {"dt": file.dt, "ids": file.ids, "dropped": file.dropped}

        status = file.path.stat()
        named = {"file": str(file.path.resolve()), "size": status.st_size, "changed": status.st_mtime_ns}
        file.open(whole=False)
        entry = make(directory, {**named, "options": file.recipe}, build)
        max_dt = file.max_dt
        lengths, rows = np.array(entry.array("lengths")), len(entry.array("x"))
        if lengths.ndim != 1 or lengths.dtype != np.int64 or not len(lengths) or (lengths < 0).any():
            raise entry.spoiled("no lengths of its trajectories")
        ends = np.cumsum(lengths)
        if lengths.max() > rows or ends.max() > rows or ends[-1] != rows:  # also when the sum overflows
            raise entry.spoiled(f"trajectories of other lengths than the {rows} points of x")
        dt, ids, dropped = (entry.record.get(key) for key in ("dt", "ids", "dropped"))
        if "times" not in entry and not (isinstance(dt, float) and 0 < dt < math.inf):
            raise entry.spoiled(f"dt = {str(dt)[:60]} and no times")
        named_by = isinstance(ids, list) and all(isinstance(name, str | int | float) for name in ids)
        if ids is not None and not (named_by and len(ids) == len(lengths)):
            raise entry.spoiled(f"ids that do not name {len(lengths)} trajectories")
        if not isinstance(dropped, dict) or not all(type(n) is int and n >= 0 for n in dropped.values()):
            raise entry.spoiled("no counts of what was left out")
        dim = len(file.coordinates)
        columns = entry.columns(["x", *(name for name in ("times", "reward") if name in entry)], rows, dim)
        return cls(
            columns["x"],
            np.concatenate([[0], ends]).astype(np.int64),
            dt=None if "times" in entry else dt,
            times=columns.get("times"),
            reward=columns.get("reward"),
            ids=ids,
            max_dt=max_dt,
            dropped=dropped,
            stored=entry,
        )

    def to_file(self, path: str | Path) -> None:
        """To a .npz, .csv, .tsv or .parquet file that `from_file(path)` reads back exactly; whole or not at all."""
        file = path_of(path)
        suffix = file.suffix.lower()
        if suffix in TABLES:
            _write_table(self, file)
            return
        if suffix != ".npz":
            raise InputError(
                f"{file}: the suffix must be one of .npz, {', '.join(TABLES)}, found {suffix!r}; choose one."
            )
        held = None if self.action is None else labels_of(self.action, self.actions)
        ids = None if self.ids is None else np.asarray(self.ids)
        arrays: dict[str, Any] = {"x": self.x, "offsets": self.offsets, "dt": self.dt, "times": self.times}
        arrays |= {"reward": self.reward, "action": held, MAX_DT: self.max_dt, "ids": ids}
        with replacing(file) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **{name: array for name, array in arrays.items() if array is not None})

    def to_array(self) -> Array:
        """(n_traj, n_time) or (n_traj, n_time, d); trajectories of different lengths are an error."""
        lengths = self.lengths
        if (lengths != lengths[0]).any():
            raise InputError(
                f"trajectories must have one length for to_array, found {lengths.min()} to {lengths.max()} points; use "
                ".x with .offsets instead."
            )
        return self.x.reshape(len(self), int(lengths[0]), *self.x.shape[1:])

    def transitions(self, max_dt: float | None = None) -> Transitions:
        """All pairs of neighbours, as Transitions.

        Left out, and counted in `.dropped`: pairs across a gap (dt > max_dt), and pairs whose x is so large that its
        float spacing exceeds 1e-3 of half the interquartile range of dx: at |x| = 1e13 neighbouring floats are 0.002
        apart, and a difference of two of them says little about a step of width 0.4. The rule looks at x alone, never
        at dx, so it does not select among jumps.
        """
        max_dt = self.max_dt if max_dt is None else positive_number("max_dt", max_dt)
        pairs = pair_up(self, max_dt)
        pairs.repeats = self.repeats
        return pairs

    def blocks(self, size: int) -> Iterator[Points]:
        """All points, so many steps at a time: each block ends with the point that the next one begins with."""
        for low in range(0, len(self.x) - 1, size):
            rows = slice(low, low + size + 1)
            parts = (None if part is None else part[rows] for part in (self.times, self.reward, self.action))
            times, reward, action = parts
            yield Points(low, self.x[rows], times, reward, action=action)

    # ---------------------------------------------------------------------------------------------------------- facts

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return 1 if self.x.ndim == 1 else self.x.shape[1]

    @property
    def lengths(self) -> Integers:
        """Points of each trajectory."""
        return np.diff(self.offsets)

    def __repr__(self) -> str:
        return f"Trajectories({len(self)} of {self.lengths.min()} to {self.lengths.max()} points, dim={self.dim})"

    # --------------------------------------------------------------------------------------------------------- checks

    def check(self) -> None:
        """Refuse what cannot be used: non-finite values, one-point paths, times out of order, constant series."""
        refuse_short(self.lengths, self.ids)
        for block in self.blocks(_BLOCK):
            refuse_nonfinite(block, self.offsets, self.ids)
            if block.times is not None:
                last = block.start + len(block.times) - 1
                k = out_of_order(block.times, steps_across(self.offsets, block.start, last))
                if k is not None:
                    raise disorder(block.start + k, block.times[k : k + 2], self.offsets, self.ids)
        self._check_motion([f"coordinate {k} of x" for k in range(self.dim)] if self.dim > 1 else ["x"], stacklevel=5)

    def _check_motion(self, coordinates: Sequence[str], stacklevel: int) -> None:
        still = np.empty((len(self), self.dim), dtype=bool)
        for k, column in enumerate(self.x.reshape(len(self.x), -1).T):
            low = np.minimum.reduceat(column, self.offsets[:-1])
            still[:, k] = low == np.maximum.reduceat(column, self.offsets[:-1])
        judge_motion(still, self.x[0], coordinates, self.ids, stacklevel)


def _names(ids: Any) -> list[Any]:
    """A list of names: anything that can be told apart and printed."""
    try:
        names = list(ids.tolist() if hasattr(ids, "tolist") else ids)
        hash(tuple(names))
    except (TypeError, RuntimeError):
        raise InputError(f"ids must be a list of names, found {shown(ids)}; pass one per trajectory.") from None
    return names


def transition_blocks(path: str | Path, *, block: int = 1 << 17, **options: Any) -> TransitionBlocks:
    """The transitions of a file, in memory that does not grow with it; options are those of `Trajectories.from_file`.

    Iterating, as often as you like, gives Transitions of at most `block` pairs whose union, in order, is
    `Trajectories.from_file(path, **options).transitions()`, numbers of trajectories and refusals included (where
    rounding leaves the mean of uneven times undecided, dt may differ in the last bit). What was dropped is counted in
    the first one. The file is read twice before the first block, to know what concerns all of it, and once per
    iteration. Tables that are wide, of rows, to be sorted or not in order cannot be read in blocks: they are read as a
    whole and cut.
    """
    known_keys(f"{path}: options", options, OPTIONS - {"on_disk"})
    block = whole_number("block", block, 1)
    return TransitionBlocks(open_file(path, **options), block, lambda: Trajectories.from_file(path, **options))


# ------------------------------------------------------------------------------------------------------------ files


def open_file(path: str | Path, **options: Any) -> PointFile:
    """The points of a .npz, .npy, .csv, .tsv or .parquet file, of which nothing is read yet; see `FileOptions`."""
    file = path_of(path)
    known_keys(f"{file}: options", options, OPTIONS)
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{file}: the suffix must be one of {', '.join(SUFFIXES)}, found {suffix!r}; convert the file."
        )
    if not file.is_file():
        raise InputError(f"{file}: a file must exist there, found none; check the path (from {Path.cwd()}).")
    _check_magic(file, suffix)
    checked = FileOptions(**options)
    return TableFile(file, checked) if suffix in TABLES else ArrayFile(file, checked)


def _write_table(t: Trajectories, file: Path) -> None:
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
        for k, column in enumerate(np.atleast_2d(labels_of(t.action, t.actions).T)):
            columns["action" if t.action.ndim == 1 else f"action{k + 1}"] = column
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


def _check_magic(file: Path, suffix: str) -> None:
    """A .csv that is a spreadsheet in disguise, a .parquet that is text: said before a parser chokes on it."""
    with file.open("rb") as stream:
        head = stream.read(4096)
    if not head:
        raise InputError(f"{file}: the file must not be empty, found 0 bytes; check how it was written.")
    if suffix in _MAGIC:
        if not head.startswith(_MAGIC[suffix]):
            raise InputError(f"{file} must be a {suffix} file, found other content; correct the suffix.")
    elif b"\0" in head or any(head.startswith(magic) for magic in _MAGIC.values()):
        raise InputError(f"{file} must be text, as {suffix} files are, found binary content; correct the suffix.")
