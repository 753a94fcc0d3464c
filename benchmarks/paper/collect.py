"""Run directories as one table: what was asked for (configuration) beside what came out (metrics.json).

A run directory is read as data: nothing named in it is imported, built or executed.
"""

from __future__ import annotations

import glob
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.errors import InputError, LevytorchWarning
from levytorch.runs.reading import Run, read_run, run_directories

if TYPE_CHECKING:
    import polars as pl

Array = np.ndarray[Any, Any]
COEFFICIENTS = ("b", "D_o", "D_f")
ERRORS = tuple(f"error_{name}" for name in (*COEFFICIENTS, "V"))
FACTOR, DEVIATIONS = 2.0, 8.0
# The paper speaks of outliers without saying what they are. The median and the median absolute deviation stay put when
# up to half of the replicas are outliers; quartiles of 12 replicas do not (3 outliers already move the upper one).
# Of twelve errors |N(0, 1)|, the widest that fits give, these limits find an outlier in 1 group of 75.
DEFINITION = (
    f"an outlier is a replica whose relative L2 error is more than {FACTOR:g} times the median of its group and "
    f"more than {DEVIATIONS:g} robust standard deviations (1.4826 times the median absolute deviation) above it"
)


def outliers(errors: Array) -> Array:
    """Which of a group's errors are outliers (`DEFINITION`); an error that is not finite is one, too."""
    errors = np.asarray(errors, dtype=float)
    finite = np.isfinite(errors)
    if not finite.any():
        return ~finite
    median = np.median(errors[finite])
    spread = 1.4826 * np.median(np.abs(errors[finite] - median))
    far = np.zeros(errors.shape, dtype=bool)
    far[finite] = (errors[finite] > FACTOR * median) & (errors[finite] > median + DEVIATIONS * spread)
    return far | ~finite


class Record(Run):
    """One finished run, as data, and what the paper's tables say about it."""

    @property
    def experiment(self) -> Any:
        """The experiment's name: a key of the configuration, or the option chosen from that group."""
        name = self.setting("experiment")
        return name if isinstance(name, str) else self.choices.get("experiment")

    @property
    def tail(self) -> str:
        return str(self.metrics.get("tail_method", "none"))

    @property
    def censoring(self) -> str:
        if self.setting("data.sampler", "euler") == "metropolis":
            return "metropolis"
        return "none" if self.setting("data.censor") is None else "filter"

    @property
    def arm(self) -> str:
        """What was done about tails: unbiased (none were lost), tcf, conditional or none."""
        if self.censoring != "none":
            return self.tail
        return "unbiased" if self.tail == "none" else f"unbiased, {self.tail}"

    @property
    def law(self) -> str:
        """Which law of a step was fitted; runs that do not say were made before there was another than the frozen."""
        return str(self.metrics.get("law") or self.setting("law", "frozen"))

    @property
    def literal(self) -> bool:
        """Whether the run is the paper's Algorithm B.1 (Adam, random start), not levytorch's own engine."""
        return self.metrics.get("engine") == "adam" and self.setting("init") == "random"

    def signed_error(self, name: str) -> float:
        """Relative error, with sign, of the mean of a coefficient over the cell."""
        truth = self.curves.get(f"{name}_truth")
        size = 0.0 if truth is None else float(np.mean(truth[:-1]))  # the last point is the first one again
        return float(np.mean(self.curves[name][:-1])) / size - 1 if size else math.nan

    def shape_error(self) -> float:
        """Relative L2 error of V after both curves have lost their means over the cell."""
        if not self.has_values or "V_truth" not in self.values:
            return math.nan
        V, truth = (self.values[name][:-1] - self.values[name][:-1].mean() for name in ("V", "V_truth"))
        size = float(np.linalg.norm(truth))
        return float(np.linalg.norm(V - truth)) / size if size else math.nan


# the columns that tell runs apart; the others of the table are relative L2 errors
SETTINGS: dict[str, tuple[type, Any]] = {
    "path": (str, lambda run: str(run.path)),
    "experiment": (str, lambda run: run.experiment),
    "arm": (str, lambda run: run.arm),
    "dynamics": (str, lambda run: run.setting("dynamics.name")),
    "n_trajectories": (int, lambda run: run.setting("data.n_trajectories")),
    "alpha_true": (float, lambda run: run.setting("dynamics.alpha")),
    "dt": (float, lambda run: run.setting("data.dt")),
    "n_basis": (int, lambda run: run.setting("coefficients.n_basis")),
    "engine": (str, lambda run: run.metrics.get("engine")),
    "literal": (bool, lambda run: run.literal),
    "tail": (str, lambda run: run.tail),
    "censoring": (str, lambda run: run.censoring),
    "reach": (float, lambda run: run.setting("data.reach")),
    "seed": (int, lambda run: run.setting("seed")),
}


@dataclass(frozen=True)
class Runs:
    """Finished runs and their table, one row per run in the same order."""

    records: tuple[Record, ...]
    studies: tuple[Path, ...] = ()  # error-bound studies (rates.csv of evaluate.py) found beside the runs

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @cached_property
    def table(self) -> pl.DataFrame:
        import polars as pl

        kinds = {str: pl.String, int: pl.Int64, float: pl.Float64, bool: pl.Boolean}
        schema = {key: kinds[kind] for key, (kind, _) in SETTINGS.items()} | dict.fromkeys(ERRORS, pl.Float64)
        rows = [
            {key: _typed(get(run), kind) for key, (kind, get) in SETTINGS.items()}
            | {key: _typed(run.metrics.get(key), float) for key in ERRORS}
            for run in self.records
        ]
        return pl.DataFrame(rows, schema=schema)

    def where(self, **wanted: Any) -> Runs:
        """Runs whose columns have these values (a list: one of them)."""
        unknown = [key for key in wanted if key not in SETTINGS]
        if unknown:
            raise InputError(f"runs are chosen by {', '.join(SETTINGS)}, found {unknown[0]!r}; use one of these.")
        rows = self.table.select(list(wanted)).rows(named=True)
        chosen = [all(_fits(row[key], value) for key, value in wanted.items()) for row in rows]
        return Runs(tuple(record for record, keep in zip(self.records, chosen) if keep), self.studies)

    def unique(self, key: str) -> list[Any]:
        """The values of a column, sorted, without nulls."""
        return self.table[key].drop_nulls().unique().sort().to_list()

    def need(self, what: str, *alike: str, **wanted: Any) -> Runs:
        """The runs with these settings, which agree in `alike`; a figure without them is refused."""
        chosen = self.where(**wanted) if wanted else self
        if not len(chosen):
            shown = ", ".join(f"{key}={value}" for key, value in wanted.items())
            raise InputError(
                f"{what} needs runs with {shown}, found none among {len(self)}; give the runs it is made of."
            )
        for column in alike:
            values = chosen.unique(column)
            if len(values) > 1:
                shown = ", ".join(map(str, values))
                raise InputError(
                    f"the runs of this figure must have one {column}, found {shown}; give the runs of one."
                )
        return chosen

    def own(self) -> Runs:
        """Runs of levytorch's own engines; all of them when every run is Algorithm B.1 to the letter."""
        own = self.where(literal=False)
        return own if len(own) else self

    def largest(self) -> int:
        """The largest number of trajectories at which every arm has been run (the largest of all, if there is none)."""
        per_arm = [set(self.where(arm=arm).unique("n_trajectories")) for arm in self.unique("arm")]
        return max(set.intersection(*per_arm) or set().union(*per_arm))

    def errors(self, name: str) -> Array:
        """Relative L2 errors (n,) of a coefficient or of V, NaN where there is none."""
        return np.array([run.number(f"error_{name}") for run in self])

    def outliers(self, *names: str) -> Array:
        """Which replicas of this group (n,) are outliers in any of these coefficients."""
        return np.any([outliers(self.errors(name)) for name in names], axis=0)

    def by_size(self, measure: Any) -> dict[int, Array]:
        """Finite values of `measure`, a function of a run, per number of trajectories and in the order of the seeds."""
        out: dict[int, Array] = {}
        for n in self.unique("n_trajectories"):
            own = sorted(self.where(n_trajectories=n), key=lambda run: _typed(run.setting("seed"), int) or 0)
            values = np.array([measure(run) for run in own])
            out[n] = values[np.isfinite(values)]
        return out

    def stack(self, name: str) -> tuple[Array, Array, Array | None]:
        """x (m,), the curves of all runs (n, m) and the truth (m,) of a coefficient, or of V."""
        tables = [run.values if name == "V" else run.curves for run in self]
        x = tables[0]["x"]
        for run, table in zip(self, tables):
            if table["x"].shape != x.shape or not np.allclose(table["x"], x):
                raise InputError(f"all runs of a figure must have one cell, but {run.path} has another; draw it apart.")
        return x, np.stack([table[name] for table in tables]), tables[0].get(f"{name}_truth")


def collect(source: str | Path | Sequence[str | Path]) -> Runs:
    """All finished runs below a directory (any depth), or of a glob, or of a list of these.

    Unfinished and unreadable ones are left out with one warning that names them.
    """
    sources = [source] if isinstance(source, str | Path) else list(source)
    found: dict[Path, None] = {}
    studies: dict[Path, None] = {}
    for one in map(str, sources):
        tops = [Path(one)] if Path(one).is_dir() else [Path(match) for match in sorted(glob.glob(one, recursive=True))]
        for top in tops:
            found.update(dict.fromkeys(run_directories(top)))
            # rates.csv alone is also a table of a sweep
            written = (file.parent for file in sorted(top.glob("**/rates.json")))
            studies.update(dict.fromkeys(folder for folder in written if (folder / "rates.csv").is_file()))
    if not found and not studies:
        raise InputError(
            f"runs must name run directories (with .hydra/config.yaml in them), found none in "
            f"{', '.join(map(str, sources)) or 'an empty list'}; check the path, and quote globs in the shell."
        )
    records, problems = [], []
    for path in found:
        try:
            records.append(read(path))
        except InputError as error:
            problems.append(str(error))
    if problems:
        warnings.warn(
            f"{len(problems)} of {len(found)} run directories are left out: " + "; ".join(problems),
            LevytorchWarning,
            stacklevel=2,
        )
    if not records and not studies:
        raise InputError(f"there must be at least one finished run, found {len(found)} unfinished ones; resume them.")
    return Runs(tuple(sorted(records, key=lambda record: _natural(record.path))), tuple(studies))


def read(path: Path) -> Record:
    """One run directory; refuses unfinished and damaged ones."""
    for name in ("recovery.pt", "metrics.json", "curves.csv"):
        if not (path / name).is_file():
            raise InputError(f"{path} is not finished (no {name})")
    run = Record(path, read_run(path).config)
    _ = run.metrics, run.choices  # refused now if they cannot be read
    return run


def _natural(path: Path) -> list[Any]:
    """Sorts .../10 behind .../9."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in path.parts]


def _typed(value: Any, kind: type) -> Any:
    """A value of the column's kind, or None: a configuration may hold anything."""
    if kind is bool:
        return bool(value)
    if kind is str:
        return value if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    if kind is int:
        return int(value) if abs(value) < 2**62 and int(value) == value else None
    return float(value)  # infinity is a value: a Metropolis chain without a limit has that reach


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, list | tuple | set):
        return any(_fits(value, one) for one in wanted)
    if isinstance(wanted, float) and isinstance(value, float):
        return math.isclose(value, wanted, rel_tol=1e-9)
    return bool(value == wanted)
