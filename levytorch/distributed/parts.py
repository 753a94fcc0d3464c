"""What one worker returns for one file: its lattice, and the ends of trajectories that may continue in another file."""

from __future__ import annotations

import hashlib
import io
import json
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from levytorch import exchange
from levytorch.data import Trajectories, Transitions, transition_blocks
from levytorch.data.columns import TableReader
from levytorch.data.lattice import Lattice
from levytorch.data.lattice_tables import from_arrays, to_arrays
from levytorch.data.options import FileOptions, column_names
from levytorch.data.places import TABLES, DataFile, data_file, mark_of
from levytorch.errors import LevytorchError, LevytorchWarning
from levytorch.files import save_tensors

VERSION = 1  # of what is kept
_LARGE = 64 << 20  # bytes of a file that is read in blocks, not as a whole
_OF_FILES = ("separator", "decimal", "on_disk", "layout", "sort")  # options that a frame does not have


Rows = dict[str, list[Any]]  # of a table, as columns by name


@dataclass(frozen=True)
class Recipe:
    """How files become lattices: the same for all of them.

    reading: options of `Trajectories.from_file`. making: those of `Lattice.from_blocks` but for the blocks.
    own_blocks: of every file. keep: a directory for the results of single files, or None. window: pairs that start
    elsewhere are left out.
    """

    reading: Mapping[str, Any]
    making: Mapping[str, Any]
    own_blocks: int = 1
    keep: str | None = None
    window: tuple[float, float] | None = None


@dataclass
class Part:
    """What a file gave: a lattice of `own_blocks` blocks, or a problem in one sentence.

    ids: marks of its trajectories, where they have names. first, last: the first and last row of a table with times
    but without names. was_kept: found in the directory of the recipe, not read.
    """

    name: str
    lattice: Lattice | None = None
    problem: str | None = None
    ids: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    first: Rows | None = None
    last: Rows | None = None
    was_kept: bool = False
    seconds: float = 0.0


def read_part(name: str, recipe: Recipe, like: Lattice | None) -> Part:
    """One file. Without `like` it decides the grid.

    What is wrong with the file itself is told in the part; other errors (a network, a disk) are raised, and whoever
    runs this tries again.
    """
    began = time.perf_counter()
    target = None
    try:
        if recipe.keep is not None:
            target = Path(recipe.keep) / f"{key_of(name, recipe, like)}{exchange.SUFFIX}"
            part = _kept(name, target)
            if part is not None:
                part.seconds = time.perf_counter() - began
                return part
        part = _read(name, recipe, like)
    except LevytorchError as error:
        return Part(name, problem=str(error), seconds=time.perf_counter() - began)
    if target is not None:
        _keep(part, target)
    part.seconds = time.perf_counter() - began
    return part


def key_of(name: str | None, recipe: Recipe, like: Lattice | None) -> str:
    """A name for the result of a file (None: of whichever is first): other content, other options or another grid give
    another one.
    """
    file = None if name is None else mark_of(name)
    text = json.dumps(
        [VERSION, file, plain(recipe.reading), plain(recipe.making), recipe.own_blocks, recipe.window],
        sort_keys=True,
    )
    digest = hashlib.sha256(text.encode())
    if like is not None:
        for array in to_arrays(like.empty(recipe.own_blocks)).values():
            digest.update(np.ascontiguousarray(array).tobytes())  # x_range is infinite, and there are no pairs
    return digest.hexdigest()[:32]


def plain(options: Mapping[str, Any]) -> dict[str, str]:
    """Options as text; functions by the values they have at some dt."""
    dt = torch.tensor([0.001, 0.01, 0.1, 1.0, 10.0], dtype=torch.float64)
    return {key: str(value(dt)) if callable(value) else repr(value) for key, value in sorted(options.items())}


def _read(name: str, recipe: Recipe, like: Lattice | None) -> Part:
    file = data_file(name)
    if like is None:
        own = {**recipe.making, "n_blocks": recipe.own_blocks}
    else:
        own = {"like": like.empty(recipe.own_blocks), "period": like.period}
    if file.size > _LARGE:
        blocks = transition_blocks(file, **recipe.reading)
        lattice, ids = Lattice.from_blocks(_within(blocks, recipe.window), **own), blocks.ids
    else:
        paths = Trajectories.from_file(file, **recipe.reading)
        lattice, ids = Lattice.from_blocks(_within([paths.transitions()], recipe.window), **own), paths.ids
    columns = columns_of_table(file, recipe)
    named = columns is not None and columns.id is not None
    part = Part(name, lattice, ids=_marks(ids) if named and ids is not None else np.empty(0, dtype=np.uint64))
    if columns is not None and columns.time is not None and not named:
        part.first, part.last = edge_rows(file, recipe)
    return part


def _within(pieces: Iterable[Transitions], window: tuple[float, float] | None) -> Iterator[Transitions]:
    """Pieces without the pairs that start outside of a window."""
    for piece in pieces:
        inside = None if window is None else (piece.x >= window[0]) & (piece.x <= window[1])
        if inside is None or bool(inside.all()):
            yield piece
        elif bool(inside.any()):
            yield piece[inside]


def _marks(ids: Any) -> NDArray[np.uint64]:
    """64 bits of every name, ascending."""
    found = [int.from_bytes(hashlib.blake2b(str(one).encode(), digest_size=8).digest(), "little") for one in ids]
    return np.unique(np.array(found, dtype=np.uint64))


def columns_of_table(file: DataFile, recipe: Recipe) -> Any:
    """The names of the columns that are read; None for what is no long table."""
    options = FileOptions(**recipe.reading)
    if file.suffix not in TABLES or options.layout != "long":
        return None
    return column_names(file, options, TableReader(file, options.separator, options.decimal, False).columns)


def edge_rows(file: DataFile, recipe: Recipe) -> tuple[Rows, Rows]:
    """First and last rows of a table: of every trajectory where these have names."""
    import polars as pl

    options, names = FileOptions(**recipe.reading), columns_of_table(file, recipe)
    used = [name for name in (names.id, names.time, *names.value) if name is not None]
    firsts, lasts = [], []
    for _, frame in TableReader(file, options.separator, options.decimal, False).frames(used):
        rows = frame.select(used)
        by = [rows.head(1), rows.tail(1)]
        if names.id is not None:
            groups = rows.group_by(names.id, maintain_order=True)
            by = [groups.first().select(used), groups.last().select(used)]
        firsts.append(by[0])
        lasts.append(by[1])
    first, last = pl.concat(firsts), pl.concat(lasts)
    if names.id is None:
        first, last = first.head(1), last.tail(1)
    else:
        first, last = (
            rows.unique(names.id, keep=which, maintain_order=True)  # type: ignore[arg-type]
            for rows, which in ((first, "first"), (last, "last"))
        )
    return first.to_dict(as_series=False), last.to_dict(as_series=False)


def read_edges(name: str, recipe: Recipe) -> tuple[Rows, Rows] | None:
    """`edge_rows` of a file by its name; None for what is no long table with times."""
    file = data_file(name)
    columns = columns_of_table(file, recipe)
    return None if columns is None or columns.time is None else edge_rows(file, recipe)


def seam(last: Rows, first: Rows, recipe: Recipe) -> Transitions | None:
    """The pairs that lead from last rows to first rows of the same trajectories; None where these do not follow."""
    import polars as pl

    rows = pl.concat([pl.DataFrame(last), pl.DataFrame(first)], how="vertical_relaxed")
    kept = {key: value for key, value in recipe.reading.items() if key not in _OF_FILES}
    if kept.get("id") is not None:
        rows = rows.sort(kept["id"], maintain_order=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LevytorchWarning)
            return Trajectories.from_frame(rows, **kept).transitions()
    except LevytorchError:  # the second does not follow the first in time
        return None


def _keep(part: Part, target: Path) -> None:
    assert part.lattice is not None
    arrays = to_arrays(part.lattice)
    content = {
        "dropped_reasons": arrays.pop("dropped_reasons").tolist(),
        "lattice": {name: torch.from_numpy(array) for name, array in arrays.items()},
        "ids": torch.from_numpy(part.ids.view(np.int64)),
        "edges": _rows_as_bytes(part),
    }
    save_tensors(content, target)


def _kept(name: str, target: Path) -> Part | None:
    """What is kept of a file; None where nothing is, or where it is damaged."""
    if not target.is_file():
        return None
    try:
        content = exchange.unpack(target)
        arrays = {key: value.numpy() for key, value in content["lattice"].items()}
        arrays["dropped_reasons"] = np.array(content["dropped_reasons"], dtype=np.str_)
        part = Part(name, Lattice(**from_arrays(arrays)), ids=content["ids"].numpy().view(np.uint64), was_kept=True)
        if content["edges"] is not None:
            part.first, part.last = _rows_from_bytes(content["edges"])
        return part
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return None


def _rows_as_bytes(part: Part) -> torch.Tensor | None:
    """Two rows as an Arrow table, which keeps dates."""
    import polars as pl

    if part.first is None or part.last is None:
        return None
    rows = pl.concat([pl.DataFrame(part.first), pl.DataFrame(part.last)])
    buffer = io.BytesIO()
    rows.write_ipc(buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _rows_from_bytes(packed: torch.Tensor) -> tuple[Rows, Rows]:
    import polars as pl

    rows = pl.read_ipc(io.BytesIO(packed.numpy().tobytes()))
    return rows.head(1).to_dict(as_series=False), rows.tail(1).to_dict(as_series=False)
