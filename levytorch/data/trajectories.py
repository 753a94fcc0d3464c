"""Trajectories: observed paths of one or many lengths, evenly or unevenly sampled, in d >= 1 dimensions.

All points lie in one flat array, trajectory after trajectory, so a single long price series and 400,000 short paths are
the same thing. They come from arrays, frames (`frames`), files (`places`), and episodes (`episodes`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from levytorch.convert import Array, Integers, known_keys, path_of, positive_number, shown, whole_number
from levytorch.data.arrays import flatten, instants, labels_of, match, per_point, rewards_per_point, warn_of_columns
from levytorch.data.episodes import State, episode_arrays
from levytorch.data.frames import as_polars, columns_of, is_frame, to_frame
from levytorch.data.joining import joined_fields
from levytorch.data.numpy_files import ArrayFile
from levytorch.data.options import MAX_DT, FileOptions
from levytorch.data.pairing import TransitionBlocks, pair_up
from levytorch.data.places import ARROW, TABLES, DataFile, data_file, data_files, is_many, short_names
from levytorch.data.points import (
    COLUMNS,
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
from levytorch.data.tables import FrameTable, TableFile
from levytorch.data.transitions import Transitions
from levytorch.errors import InputError
from levytorch.files import replacing
from levytorch.plots import plotted

_BLOCK = 1 << 17  # points looked at together
OPTIONS = frozenset(field.name for field in fields(FileOptions))
FRAME_OPTIONS = OPTIONS - {"on_disk", "separator", "decimal"}


class Trajectories:
    """Paths, made by `from_arrays`, `from_frame`, `from_file`, `from_episodes` or `levytorch.simulate`.

    Attributes:
        x: all points, (N,) or (N, d).
        offsets: (n + 1,) where each trajectory begins in x, and N.
        dt: the time between any two neighbours, or None if `times` has it.
        times: (N,) or None.
        reward: (N,) reward logged at each point, or None.
        action: (N,) place among `actions` of the action held from each point to the next, or None.
        actions: the labels of the actions.
        terminal: (N,) or None. If a trajectory ends because its episode does, this is the value of the state it ends
            in (usually zero), at its last point; NaN at all other points.
        ids: the name of each trajectory, or None.
        max_dt: pairs further apart than this are gaps, not transitions; None: no limit.
        dropped: what was left out while reading, by reason.
        stored: where the points lie if they are on disk (`from_file(..., on_disk=directory)`), else None.

    Example:
        >>> paths = Trajectories.from_arrays([[0.0, 1.0, 3.0], [2.0, 2.5, 2.0]], dt=0.1)
        >>> len(paths), len(paths.transitions())
        (2, 4)
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
        terminal: Array | None = None,
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
        self.action, self.actions, self.terminal = action, tuple(actions), terminal
        self.dt, self.ids = dt, None if ids is None else tuple(ids)
        self.max_dt = None if max_dt is None else positive_number("max_dt", max_dt)
        self.dropped = dict(dropped or {})
        self.stored = stored
        self.seed: int | None = None  # of simulated ones
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
        time_unit: str | None = None,
    ) -> Trajectories:
        """From arrays or tensors; a frame with columns is read by `from_frame`.

        Args:
            x: (n_traj, n_time) or (n_traj, n_time, d); (n_time,) is one trajectory, and one in d dimensions is x[None];
                a list of (n_time,) or (n_time, d) arrays holds trajectories of different lengths.
            dt: the time between any two neighbours; or
            times: (n_time,) for all trajectories, or (n_traj, n_time), or a list like x; strictly increasing. Numbers,
                or dates (datetime64, datetime, the index of a pandas frame) together with time_unit.
            reward: one number per point, shaped like x without its d, or one per pair, (n_traj, n_time - 1).
            action: the label of the action held from each point to the next, numbers or strings: one per point (that of
                the last is not used) or one per pair, (n_traj, n_time - 1). Vectors of two numbers: (..., 2).
            ids: a name per trajectory.
            max_dt: pairs further apart are gaps: left out of transitions() and counted.
            time_unit: the unit of dt that you want if times are dates: ns, us, ms, s, min, h, day, week or year.

        >>> Trajectories.from_arrays([[0.0, 1.0, 4.0]], dt=0.5).transitions().dx
        tensor([1., 3.], dtype=torch.float64)
        """
        if is_frame(x) and getattr(x, "ndim", 2) == 2:
            raise InputError(
                f"x must be an array, a tensor or a list, found a {type(x).__name__} with columns; use "
                "Trajectories.from_frame(x, time=..., value=...)."
            )
        points, lengths = flatten("x", x)
        times = instants(times, time_unit)
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
    def from_frame(cls, frame: Any, **options: Any) -> Trajectories:
        """From a frame of pandas, polars or pyarrow, or a dict of columns.

        Options are those of `from_file` that concern columns: id, time, value, dt, reward, action, time_unit, log,
        max_dt, missing, sort, ... A time may be a date with or without a time zone, an id may be a category. An index
        of pandas that has a name, or holds dates, is a column.

        >>> table = {"animal": ["a", "a", "b", "b"], "t": [0.0, 0.5, 0.0, 0.5], "x": [1.0, 2.0, 5.0, 4.0]}
        >>> Trajectories.from_frame(table, id="animal", time="t", value="x").transitions().dx
        tensor([ 1., -1.], dtype=torch.float64)
        """
        table = as_polars(frame)
        known_keys("options of a frame", options, FRAME_OPTIONS)
        return cls._read(FrameTable(table, FileOptions(**options)))

    @classmethod
    def from_file(cls, path: Any, **options: Any) -> Trajectories:
        """From one file or many.

        Args:
            path: of a .csv, .tsv (also .csv.gz, .tsv.gz), .parquet, .feather, .npz or .npy file; a pattern such as
                "tracks/*.csv"; a directory; a URL that fsspec can open, such as "s3://bucket/track.parquet"; or a list
                of these. Trajectories of several files are called "file/id", or "file" if the file has no ids.
            options: time, value, id, dt and others: see `levytorch.data.options.FileOptions`. With
                on_disk=<directory> a .npz, .npy, .parquet or .feather file may be larger than memory
                (docs/scaling.md).

        >>> Trajectories.from_file("track.csv", time="time", value="x")  # doctest: +SKIP
        """
        if not is_many(path):
            return cls._read(open_file(path, **options))
        if options.get("on_disk") is not None:
            raise InputError("on_disk must be used with one file, found several; join them, or add up their lattices.")
        files = data_files(path)
        parts = [cls._read(open_file(file, **options)) for file in files]
        return cls(**joined_fields(parts, short_names(files)))

    @classmethod
    def from_episodes(
        cls,
        episodes: Any,
        *,
        dt: float,
        state: State = None,
        action: Any = "auto",
        terminal_value: float = 0.0,
        reward_per: str = "step",
    ) -> Trajectories:
        """From episodes of Gymnasium or Minari: observations, actions, rewards, terminations and truncations.

        Args:
            episodes: a Minari data set, or a list of its episodes, or of dicts (or objects) with these arrays.
                observations have one entry more than the others: the last is the one after the last step.
            dt: the time between two observations, for which an action is held.
            state: which part of an observation is x: the number of a coordinate, several of them, the key of an
                observation that is a dict, or a function of all observations of an episode. None: all of it.
            action: "auto" takes the actions as labels or numbers; None leaves them out; or a function of the actions
                of an episode.
            terminal_value: V of the state in which a terminated episode ends. A truncated episode has no such end.
            reward_per: "step" divides rewards by dt, because V integrates a reward per unit of time; "time" does not.

        The step into the terminal state is a pair like any other; `value_from_data(method="lstd")` gives its end the
        terminal value instead of V.

        >>> episode = {"observations": [0.0, 0.1, 0.3], "rewards": [1.0, 1.0], "terminations": [False, True]}
        >>> Trajectories.from_episodes([episode], dt=0.1).transitions().terminal
        tensor([nan, 0.], dtype=torch.float64)
        """
        step = positive_number("dt", dt)
        arrays = episode_arrays(episodes, step, state, action, terminal_value, reward_per)
        new = cls.from_arrays(arrays.x, step, action=arrays.action, reward=arrays.reward)
        if not np.isnan(arrays.terminal).all():
            new.terminal = np.full(len(new.x), np.nan)
            new.terminal[new.offsets[1:] - 1] = arrays.terminal
        return new

    @classmethod
    def _read(cls, file: PointFile) -> Trajectories:
        on_disk = file.options.on_disk
        with within_memory(file.path, file.path.size):
            new = cls._in_memory(file) if on_disk is None else cls._mapped(file, Path(on_disk))
        new._check_motion(file.coordinates, stacklevel=5)
        if isinstance(file, ArrayFile):
            warn_of_columns(new.x, new.lengths, stacklevel=4)
        return new

    @classmethod
    def _in_memory(cls, file: PointFile) -> Trajectories:
        file.open(whole=True)
        max_dt = file.max_dt
        file.survey()
        (block,) = file.points()
        facts: dict[str, Any] = {"dt": file.dt, "ids": file.ids, "max_dt": max_dt, "dropped": file.dropped}
        facts |= {"times": block.times, "actions": file.actions, **block.columns}
        new = cls(block.x, file.offsets, **facts)
        new._check_terminal()
        return new

    @classmethod
    def _mapped(cls, file: PointFile, directory: Path) -> Trajectories:
        """The points in an entry of a store; their numbers are those of the file, but their shapes must go together."""

        def build(writer: Writer) -> dict[str, Any]:
            file.survey()
            for block in file.points():
                for name, values in {"x": block.x, "times": block.times, **block.columns}.items():
                    if values is not None:
                        writer.append(name, values)
            writer.append("lengths", file.lengths)
            return {"dt": file.dt, "ids": file.ids, "dropped": file.dropped}

        file.open(whole=False)
        entry = make(directory, {**file.path.identity(), "options": file.recipe}, build)
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
        """Write a .npz, .csv, .tsv, .parquet or .feather file, which `from_file(path)` reads back exactly.

        The file is complete or absent.
        """
        file = path_of(path)
        suffix = file.suffix.lower()
        if suffix in TABLES:
            _write_table(self, file)
            return
        if suffix != ".npz":
            raise InputError(
                f"{file}: the suffix must be one of .npz, {', '.join(TABLES)}, found {suffix!r}; choose one."
            )
        ids = None if self.ids is None else np.asarray(self.ids)
        arrays: dict[str, Any] = {"x": self.x, "offsets": self.offsets, "dt": self.dt, "times": self.times}
        arrays |= self.labelled_columns() | {MAX_DT: self.max_dt, "ids": ids}
        with replacing(file) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **{name: array for name, array in arrays.items() if array is not None})

    def to_frame(self, kind: str = "polars") -> Any:
        """A long table, as `to_file` writes it: a frame of polars or of pandas, or a dict of arrays."""
        return to_frame(self, kind)

    def to_array(self) -> Array:
        """All states as one array, (n_traj, n_time) or (n_traj, n_time, d); trajectories must have one length."""
        lengths = self.lengths
        if (lengths != lengths[0]).any():
            raise InputError(
                f"trajectories must have one length for to_array, found {lengths.min()} to {lengths.max()} points; use "
                ".x with .offsets instead."
            )
        return self.x.reshape(len(self), int(lengths[0]), *self.x.shape[1:])

    def plot(self, n: int = 4, **options: Any) -> tuple[Any, Any]:
        """(fig, axes): the first n paths with their large steps marked; see `levytorch.figures.trajectories.paths`."""
        return plotted("trajectories", self, n=n, **options)

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
        """All points in blocks of some steps: each block ends with the point that the next one begins with."""
        for low in range(0, len(self.x) - 1, size):
            rows = slice(low, low + size + 1)
            times = None if self.times is None else self.times[rows]
            yield Points(low, self.x[rows], times, {name: part[rows] for name, part in self.columns.items()})

    # ---------------------------------------------------------------------------------------------------------- facts

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def dim(self) -> int:
        """Number of coordinates."""
        return 1 if self.x.ndim == 1 else self.x.shape[1]

    @property
    def columns(self) -> dict[str, Array]:
        """What is known beside the states, by name: reward, action (places among `actions`) and terminal."""
        found = {name: getattr(self, name) for name in COLUMNS}
        return {name: values for name, values in found.items() if values is not None}

    def labelled_columns(self) -> dict[str, Any]:
        """The same with the actions themselves."""
        found: dict[str, Any] = self.columns
        return found | ({} if self.action is None else {"action": labels_of(self.action, self.actions)})

    @property
    def lengths(self) -> Integers:
        """Points of each trajectory."""
        return np.diff(self.offsets)

    def __repr__(self) -> str:
        seed = "" if self.seed is None else f", seed={self.seed}"
        return f"Trajectories({len(self)} of {self.lengths.min()} to {self.lengths.max()} points, dim={self.dim}{seed})"

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

    def _check_terminal(self) -> None:
        """An episode ends at its last point; what a file says of any other point is refused."""
        if self.terminal is None:
            return
        inner = np.ones(len(self.x), dtype=bool)
        inner[self.offsets[1:] - 1] = False
        wrong = inner & ~np.isnan(self.terminal)
        if wrong.any():
            raise InputError(
                f"terminal must be empty but for the last point of a trajectory, found "
                f"{self.terminal[int(np.argmax(wrong))]:g} at point {int(np.argmax(wrong))} of all; give every episode "
                "an id of its own."
            )

    def _check_motion(self, coordinates: Sequence[str], stacklevel: int) -> None:
        still = np.empty((len(self), self.dim), dtype=bool)
        for k, column in enumerate(self.x.reshape(len(self.x), -1).T):
            low = np.minimum.reduceat(column, self.offsets[:-1])
            still[:, k] = low == np.maximum.reduceat(column, self.offsets[:-1])
        judge_motion(still, self.x[0], coordinates, self.ids, stacklevel)


def _names(ids: Any) -> list[Any]:
    """A list of names: anything that can be compared and printed."""
    try:
        names = list(ids.tolist() if hasattr(ids, "tolist") else ids)
        hash(tuple(names))
    except (TypeError, RuntimeError):
        raise InputError(f"ids must be a list of names, found {shown(ids)}; pass one per trajectory.") from None
    return names


def transition_blocks(path: Any, *, block: int = 1 << 17, **options: Any) -> TransitionBlocks:
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


def open_file(path: Any, **options: Any) -> PointFile:
    """The points of one file, of which nothing is read yet; see `FileOptions`."""
    file = path if isinstance(path, DataFile) else data_file(path)
    known_keys(f"{file}: options", options, OPTIONS)
    checked = FileOptions(**options)
    return TableFile(file, checked) if file.suffix in TABLES else ArrayFile(file, checked)


def _write_table(t: Trajectories, file: Path) -> None:
    """A long table: id, time or dt, x (or x1, x2, ...), reward, action, terminal, max_dt."""
    import polars as pl

    table, suffix = pl.DataFrame(columns_of(t)), file.suffix.lower()
    with replacing(file) as temporary:
        try:
            if suffix == ".parquet":
                table.write_parquet(temporary)
            elif suffix in ARROW:
                table.write_ipc(temporary)
            else:
                table.write_csv(temporary, separator="\t" if suffix == ".tsv" else ",")
        except pl.exceptions.ComputeError as error:  # what polars makes of a full disk
            raise OSError(str(error)) from error
