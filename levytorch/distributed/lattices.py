"""`levytorch.distributed.lattice`: the lattice of many files, read by the workers of a Dask cluster."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from levytorch.convert import choice, path_of, shown, whole_number
from levytorch.data.lattice import Lattice
from levytorch.data.places import file_names
from levytorch.data.thresholds import Threshold
from levytorch.data.transitions import Transitions
from levytorch.distributed.cluster import Runner, running
from levytorch.distributed.parts import Part, Recipe, Rows, key_of, read_edges, read_part, seam
from levytorch.distributed.tree import Tree
from levytorch.errors import InputError

log = logging.getLogger("levytorch.distributed")
Told = Callable[["Progress"], None]
_MAKING = ("period", "origin", "mu", "reach", "order", "n_x")
_SAME_STEP = 1e-6


@dataclass
class Progress:
    """How far the reading of files has come, and what went wrong.

    read, kept: files that were read, and files whose lattice lay in `checkpoint`. retried: by how many attempts more
    than one a file. failed: what is wrong with files that could not be used, by name.
    """

    n_files: int
    read: int = 0
    kept: int = 0
    pairs: int = 0
    retried: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    joined: int = 0

    @property
    def done(self) -> int:
        return self.read + self.kept + len(self.failed)

    def metrics(self) -> dict[str, Any]:
        """For metrics.json."""
        return {
            "files": self.n_files,
            "files_read": self.read,
            "files_from_checkpoint": self.kept,
            "retries": sum(self.retried.values()),
            "failures": dict(self.failed),
            "pairs_joined_across_files": self.joined,
        }


def lattice(
    paths: Any,
    client: Any = None,
    *,
    CT: Threshold | None = None,
    TRT: Threshold | None = None,
    n_blocks: int | None = None,
    like: Lattice | None = None,
    checkpoint: str | Path | None = None,
    retries: int = 3,
    across: str = "refuse",
    bad_files: str = "error",
    progress: Told | None = None,
    **options: Any,
) -> Lattice:
    """The lattice of all pairs in many files, each read by a worker of a Dask cluster.

    The result is that of one process which reads the files in this order: lattices are added in a tree of fixed order,
    so that no bit depends on which worker was faster, or died.

    Args:
        paths: a pattern such as "data/*.parquet", a directory, a URL of fsspec such as "s3://bucket/*.parquet", or a
            list of these. Workers must be able to read them.
        client: a `dask.distributed.Client`; None starts a local cluster with a process per core.
        CT, TRT: thresholds of the pools, as in `Transitions.lattice`.
        n_blocks: blocks for folds, bootstrap and robust errors; whole files go into one block, if there are enough.
        like: a lattice whose grid, dt, pools and blocks are taken, so that the two add. Without it the first file
            decides the grid, the center mu and which dt there are.
        checkpoint: a directory that all workers can write to. The lattice of every file is kept there, under a name
            made of the file, its size and time of change, and the options; a second run reads only what is new. Files
            may be added at any time: the grid stays that of the first run.
        retries: how often a file is tried again after an error of the network, the disk or a worker that died.
        across: what to do with trajectories that continue in the next file, recognised by their names and times:
            "refuse"; "join" adds the pairs between files; "apart" does not look.
        bad_files: "error" or "skip", for files that are damaged, missing or of another kind. With a checkpoint all
            other files are read before the error is raised.
        progress: called with a Progress after every file.
        options: period, origin, mu, reach, order, n_x of `Lattice.from_blocks`, and those of `Trajectories.from_file`:
            value, id, time, dt, time_unit, ...

    Returns:
        The Lattice of all pairs.

    Example:
        >>> lattice("tracks/*.parquet", value="x", time="t", period=None)  # doctest: +SKIP
    """
    with running(client) as job:
        return lattice_with(
            file_names(paths),
            job,
            progress,
            CT=CT,
            TRT=TRT,
            n_blocks=n_blocks,
            like=like,
            checkpoint=checkpoint,
            retries=retries,
            across=across,
            bad_files=bad_files,
            **options,
        )


def lattice_with(
    names: Sequence[str],
    job: Runner,
    progress: Told | None = None,
    *,
    CT: Threshold | None = None,
    TRT: Threshold | None = None,
    n_blocks: int | None = None,
    like: Lattice | None = None,
    checkpoint: str | Path | None = None,
    retries: int = 3,
    across: str = "refuse",
    bad_files: str = "error",
    sample: Transitions | None = None,
    window: tuple[float, float] | None = None,
    **options: Any,
) -> Lattice:
    """`lattice` of files by name, with whatever runs the tasks.

    sample: pairs that decide the grid instead of the first file. window: pairs that start elsewhere are left out.
    """
    whole_number("retries", retries, 0, 100)
    choice("across", across, ("refuse", "join", "apart"))
    choice("bad_files", bad_files, ("error", "skip"))
    if like is not None and not isinstance(like, Lattice):
        raise InputError(f"like must be a Lattice, found {shown(like)}; pass one, or leave it out.")
    making = {key: options.pop(key) for key in _MAKING if key in options} | {"CT": CT, "TRT": TRT}
    given = [key for key, value in making.items() if value is not None and key != "period"]
    if like is not None and (given or n_blocks is not None):
        named = given[0] if given else "n_blocks"
        raise InputError(f"{named} must be left out beside like=..., found it given; the lattice determines it.")
    wanted = like.n_blocks if like is not None else 1 if n_blocks is None else whole_number("n_blocks", n_blocks, 1)
    keep = None if checkpoint is None else path_of(checkpoint)
    recipe = Recipe(
        options, making, own_blocks(wanted, len(names)), None if keep is None else str(keep.resolve()), window
    )
    reading = _Reading(names, recipe, job, retries, across, bad_files, progress)
    reading.sample = sample
    return reading.lattice(like, wanted)


def own_blocks(n_blocks: int, n_files: int) -> int:
    """Blocks that every file is cut into: the fewest such that all blocks are filled, and that divide their number."""
    least = math.ceil(n_blocks / n_files)
    return next(m for m in range(least, n_blocks + 1) if n_blocks % m == 0)


class _Reading:
    """One call of `lattice`."""

    def __init__(
        self,
        names: Sequence[str],
        recipe: Recipe,
        job: Runner,
        retries: int,
        across: str,
        bad_files: str,
        progress: Told | None,
    ) -> None:
        self.names, self.recipe, self.job, self.retries = list(names), recipe, job, retries
        self.across, self.bad_files, self.tell = across, bad_files, progress
        self.progress = Progress(len(names))
        self.sample: Transitions | None = None
        self.known: dict[int, Part] = {}  # read for the grid
        self.edges: dict[int, tuple[Rows, Rows]] = {}
        self.ids: dict[int, Any] = {}

    def lattice(self, like: Lattice | None, n_blocks: int) -> Lattice:
        like, n_blocks = self._grid(like, n_blocks)
        groups = n_blocks // self.recipe.own_blocks
        trees = [Tree(len(range(g, len(self.names), groups)), Lattice.__add__) for g in range(groups)]
        for k, part in self._parts(like):
            if part.lattice is not None:
                self.ids[k] = part.ids
                if part.first is not None and part.last is not None:
                    self.edges[k] = part.first, part.last
            trees[k % groups].give(k // groups, part.lattice)
        self._judge()
        empty = like.empty(self.recipe.own_blocks)
        totals = [empty if tree.total is None else tree.total for tree in trees]
        if all(total is empty for total in totals):
            raise InputError("a lattice must be made of at least one file, found none that can be read; check paths.")
        for pairs, k in self._across(like):
            totals[k % groups] = totals[k % groups] + pairs
        return Lattice.side_by_side(totals)

    # ------------------------------------------------------------------------------------------------------- the grid

    def _grid(self, like: Lattice | None, n_blocks: int) -> tuple[Lattice, int]:
        """The grid that all files share: given, that of an earlier run, or that of the first file that can be read."""
        kept = None
        if self.recipe.keep is not None and like is None:
            kept = Path(self.recipe.keep) / f"grid-{key_of(None, replace(self.recipe, own_blocks=n_blocks), None)}.npz"
            if kept.is_file():
                like = Lattice.load(kept)
                self.recipe = replace(self.recipe, own_blocks=like.n_blocks)
                return like.empty(), n_blocks
        if like is not None:
            return like.empty(), n_blocks
        if self.sample is not None:
            found = Lattice.from_transitions(self.sample, n_blocks=self.recipe.own_blocks, **self.recipe.making)
            if kept is not None:
                found.save(kept)
            return found.empty(), n_blocks
        for k, name in enumerate(self.names):
            part = next(self._run([name], None))[1]
            if part.lattice is not None:
                if kept is not None:
                    part.lattice.save(kept)
                else:
                    self.known[k] = part
                return part.lattice.empty(), n_blocks
            if self.bad_files == "error":
                raise InputError(part.problem)
        raise InputError("a lattice must be made of at least one file, found none that can be read; check paths.")

    # --------------------------------------------------------------------------------------------------------- reading

    def _run(self, names: Sequence[str], like: Lattice | None) -> Any:
        """(number, Part) of some files as they are done."""
        shared = self.job.share(like)
        tasks = [(read_part, (name, self.recipe, shared)) for name in names]

        def again(k: int, error: BaseException) -> None:
            self.progress.retried[names[k]] = self.progress.retried.get(names[k], 0) + 1
            log.warning(f"{names[k]} is tried again after {type(error).__name__}")

        for k, result in self.job.run(tasks, self.retries, again):
            if isinstance(result, BaseException):
                said = " ".join(str(result).split())[:200]
                remedy = "check the network, the disk and the memory of the workers"
                problem = (
                    f"{names[k]} must be readable by a worker, found {type(result).__name__} ({said}) after "
                    f"{self.retries + 1} attempts; {remedy}."
                )
                result = Part(names[k], problem=problem)
            yield k, result

    def _parts(self, like: Lattice) -> Any:
        left = [k for k in range(len(self.names)) if k not in self.known]
        read = ((left[n], part) for n, part in self._run([self.names[k] for k in left], like))
        for k, part in itertools.chain(self.known.items(), read):
            if part.problem is not None:
                self.progress.failed[part.name] = part.problem
                log.warning(f"{part.name} could not be used: {part.problem}")
                if self.bad_files == "error" and self.recipe.keep is None:
                    raise InputError(part.problem)
            elif part.was_kept:
                self.progress.kept += 1
            else:
                self.progress.read += 1
            self.progress.pairs += 0 if part.lattice is None else len(part.lattice)
            if self.tell is not None:
                self.tell(self.progress)
            yield k, part

    def _judge(self) -> None:
        """Refuse files that could not be used, now that all others are kept."""
        failed = self.progress.failed
        if failed and self.bad_files == "error":
            name, problem = next(iter(failed.items()))
            raise InputError(
                f"all {len(self.names)} files must be usable, found {len(failed)} that are not (the first: "
                f"{problem.rpartition('; ')[0] or problem}); repair or remove {name} and run again, or pass "
                f"bad_files='skip'. The others are kept in {self.recipe.keep}."
            )

    # ------------------------------------------------------------------------------- trajectories of more than one file

    def _across(self, like: Lattice) -> list[tuple[Lattice, int]]:
        """Lattices of the pairs that lead from one file to another, with the number of the first; or a refusal."""
        if self.across == "apart":
            return []
        found = []
        for k, pairs in self._seams():
            same = np.abs(pairs.dt.numpy()[:, None] / like.dt - 1).min(1) <= _SAME_STEP
            if not same.any():
                continue
            if self.across == "refuse":
                raise InputError(
                    f"a trajectory must lie in one file, found one that continues from {self.names[k]} to another "
                    "file; pass across='join' to add the pairs between files, or across='apart' to leave them out."
                )
            pairs = pairs[np.flatnonzero(same)] if not same.all() else pairs
            self.progress.joined += len(pairs)
            found.append((pairs.lattice(like=like.empty(self.recipe.own_blocks), period=like.period), k))
        return found

    def _seams(self) -> Any:
        """(number of the first file, pairs that lead from it to a later one)."""
        order = sorted(self.ids)
        if not any(len(ids) for ids in self.ids.values()):
            for before, after in itertools.pairwise(order):
                if before in self.edges and after in self.edges:
                    pairs = seam(self.edges[before][1], self.edges[after][0], self.recipe)
                    if pairs is not None:
                        yield before, pairs
            return
        marks, counts = np.unique(np.concatenate([self.ids[k] for k in order]), return_counts=True)
        twice = marks[counts > 1]
        concerned = [k for k in order if np.isin(self.ids[k], twice).any()]
        if not concerned:
            return
        tasks = [(read_edges, (self.names[k], self.recipe)) for k in concerned]
        found = dict(self.job.run(tasks, self.retries, lambda k, error: None))
        rows = {concerned[k]: edges for k, edges in found.items()}
        if any(edges is None or isinstance(edges, BaseException) for edges in rows.values()):
            raise InputError(
                "names of trajectories must differ between files without times, found some of "
                f"{self.names[concerned[0]]} in {self.names[concerned[1]]} too; pass across='apart' if they are "
                "different trajectories."
            )
        yield from named_seams(rows, self.recipe)


def named_seams(rows: Mapping[int, tuple[Rows, Rows]], recipe: Recipe) -> Any:
    """(number of a file, pairs): every trajectory from the file where it was seen last to the next that has it."""
    import polars as pl

    name = recipe.reading.get("id") or "id"
    last: dict[Any, tuple[int, dict[str, Any]]] = {}
    for k in sorted(rows):
        first_rows, last_rows = (pl.DataFrame(part).to_dicts() for part in rows[k])
        meeting: dict[int, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
        for row in first_rows:
            if row[name] in last:
                place, before = last[row[name]]
                meeting.setdefault(place, []).append((before, row))
        for place, together in sorted(meeting.items()):
            for before, after in together:
                pairs: Transitions | None = seam(_columns(before), _columns(after), recipe)
                if pairs is not None:
                    yield place, pairs
        last |= {row[name]: (k, row) for row in last_rows}


def _columns(row: Mapping[str, Any]) -> Rows:
    return {key: [value] for key, value in row.items()}
