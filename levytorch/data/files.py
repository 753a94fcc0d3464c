"""Files that hold trajectories, by suffix: .npz, .npy, .csv, .tsv, .parquet, read and written.

Every refusal names the file, the column and the row (the first row after the header is row 1), and says what to do.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.convert import known_keys, path_of
from levytorch.data.arrays import named
from levytorch.data.numpy_files import ArrayFile
from levytorch.data.options import MAX_DT, FileOptions
from levytorch.data.points import PointFile
from levytorch.data.tables import TableFile
from levytorch.errors import InputError
from levytorch.files import replacing

if TYPE_CHECKING:
    from levytorch.data.trajectories import Trajectories

TABLES = (".csv", ".tsv", ".parquet")
SUFFIXES = (".npz", ".npy", *TABLES)
_MAGIC = {".npz": b"PK", ".npy": b"\x93NUMPY", ".parquet": b"PAR1"}


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


OPTIONS = frozenset(field.name for field in fields(FileOptions))


def write_trajectories(trajectories: Trajectories, path: str | Path) -> None:
    """Write a file that `open_file(path)` turns into the same numbers; it appears whole or not at all."""
    file = path_of(path)
    suffix = file.suffix.lower()
    if suffix not in (".npz", *TABLES):
        raise InputError(f"{file}: the suffix must be one of .npz, {', '.join(TABLES)}, found {suffix!r}; choose one.")
    if suffix == ".npz":
        arrays: dict[str, Any] = {"x": trajectories.x, "offsets": trajectories.offsets}
        for name in ("dt", "times", "reward"):
            if getattr(trajectories, name) is not None:
                arrays[name] = getattr(trajectories, name)
        if trajectories.action is not None:
            arrays["action"] = named(trajectories.action, trajectories.actions)
        if trajectories.max_dt is not None:
            arrays[MAX_DT] = trajectories.max_dt
        if trajectories.ids is not None:
            arrays["ids"] = np.asarray(trajectories.ids)
        with replacing(file) as temporary, temporary.open("wb") as stream:
            np.savez_compressed(stream, **arrays)
        return
    _write_table(trajectories, file)


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
        for k, column in enumerate(np.atleast_2d(named(t.action, t.actions).T)):
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
            raise InputError(f"{file}: a {suffix} file was expected, found other content; correct the suffix.")
    elif b"\0" in head or any(head.startswith(magic) for magic in _MAGIC.values()):
        raise InputError(f"{file}: text was expected in a {suffix} file, found binary content; correct the suffix.")
