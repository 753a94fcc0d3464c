"""Run directories as one table: what was asked for (configuration) beside what came out (metrics.json).

A run directory is read as data (see `plain`): nothing named in it is imported, built or executed.
"""

from __future__ import annotations

import glob
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.paper.plain import read_csv, read_yaml
from levytorch.errors import InputError, LevytorchWarning
from levytorch.plain_files import lookup, read_json
from levytorch.runs.directories import MARKER

if TYPE_CHECKING:
    import polars as pl

Array = np.ndarray[Any, Any]
COEFFICIENTS = ("b", "D_o", "D_f")
# columns of the table that tell runs apart; the rest are numbers of metrics.json
SETTINGS = {
    "path": str, "experiment": str, "arm": str, "dynamics": str, "n_trajectories": int, "alpha_true": float,
    "dt": float, "n_basis": int, "coefficients": str, "engine": str, "literal": bool, "tail": str, "censoring": str,
    "reach": float, "seed": int,
}  # fmt: skip
NUMBERS = (
    *(f"{kind}_{name}" for kind in ("mean", "mean_std", "error") for name in COEFFICIENTS),
    *("error_V", "alpha", "alpha_std", "tcf", "R_theta", "R_sample", "n_main", "n_tail", "steps", "seconds"),
    *("seconds_fit", "converged"),
)


@dataclass(frozen=True, eq=False)  # a run is itself, whatever it holds: its data may be cached
class Record:
    """One finished run, as data."""

    path: Path
    config: Mapping[str, Any]
    choices: Mapping[str, Any]
    metrics: Mapping[str, Any]

    def setting(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key of the configuration, with references within it followed."""
        return lookup(self.config, key, default)

    def number(self, key: str) -> float:
        """A number of metrics.json, NaN where there is none."""
        value = self.metrics.get(key)
        return float(value) if isinstance(value, int | float) else math.nan

    def curves(self) -> dict[str, Array]:
        """curves.csv: x, every coefficient, its standard error and the truth."""
        return self._curves

    @cached_property
    def _curves(self) -> dict[str, Array]:
        return read_csv(self.path / "curves.csv", ("x", *COEFFICIENTS))

    def values(self) -> dict[str, Array]:
        """value.csv: x, V, its standard error and the truth."""
        return read_csv(self.path / "value.csv", ("x", "V"))

    def history(self) -> dict[str, Array]:
        """history.csv: one row per logged step."""
        return read_csv(self.path / "history.csv", ("step",))

    @property
    def experiment(self) -> Any:
        """The experiment's name: a key of the configuration, or the option chosen from that group."""
        name = self.setting("experiment")
        return name if isinstance(name, str) else self.choices.get("experiment")

    @property
    def arm(self) -> str:
        """What was done about tails: unbiased (none were lost), tcf, conditional or none."""
        if self.setting("data.censor") is None and self.setting("data.sampler", "euler") == "euler":
            method = str(self.metrics.get("tail_method", "none"))
            return "unbiased" if method == "none" else f"unbiased, {method}"
        return str(self.metrics.get("tail_method", "none"))

    @property
    def censoring(self) -> str:
        if self.setting("data.sampler", "euler") == "metropolis":
            return "metropolis"
        return "none" if self.setting("data.censor") is None else "filter"

    @property
    def literal(self) -> bool:
        """Whether the run is the paper's Algorithm B.1 (Adam, random start), not levytorch's own engine."""
        return self.metrics.get("engine") == "adam" and self.setting("init") == "random"

    def row(self) -> dict[str, Any]:
        """The run's line of the table."""
        settings: dict[str, Any] = {
            "path": str(self.path),
            "experiment": self.experiment,
            "arm": self.arm,
            "dynamics": self.setting("dynamics.name"),
            "n_trajectories": self.setting("data.n_trajectories"),
            "alpha_true": self.setting("dynamics.alpha"),
            "dt": self.setting("data.dt"),
            "n_basis": self.setting("coefficients.n_basis"),
            "coefficients": self.setting("coefficients.name"),
            "engine": self.metrics.get("engine"),
            "literal": self.literal,
            "tail": self.metrics.get("tail_method"),
            "censoring": self.censoring,
            "reach": self.setting("data.reach"),
            "seed": self.setting("seed"),
        }
        typed = {key: _typed(settings[key], kind) for key, kind in SETTINGS.items()}
        return typed | {key: None if math.isnan(v := self.number(key)) else v for key in NUMBERS}


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
        schema = {key: kinds[kind] for key, kind in SETTINGS.items()} | dict.fromkeys(NUMBERS, pl.Float64)
        return pl.DataFrame([record.row() for record in self.records], schema=schema)

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
            found.update(dict.fromkeys(_run_directories(top)))
            studies.update(dict.fromkeys(file.parent for file in sorted(top.glob("**/rates.csv"))))
    if not found:
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
    if not records:
        raise InputError(f"at least one finished run was expected, found {len(found)} unfinished ones; resume them.")
    return Runs(tuple(sorted(records, key=lambda record: _natural(record.path))), tuple(studies))


def read(path: Path) -> Record:
    """One run directory; refuses unfinished and damaged ones."""
    for name in ("recovery.pt", "metrics.json", "curves.csv"):
        if not (path / name).is_file():
            raise InputError(f"{path} is not finished (no {name})")
    config = read_yaml(path / ".hydra" / "config.yaml")
    runtime = lookup(read_yaml(path / ".hydra" / "hydra.yaml", missing={}), "hydra.runtime.choices", {})
    metrics = read_json(path / "metrics.json")
    if not isinstance(metrics, Mapping):
        raise InputError(f"{path}/metrics.json holds no mapping")
    return Record(path, config, runtime if isinstance(runtime, Mapping) else {}, metrics)


def _run_directories(top: Path) -> list[Path]:
    """The run directories at or below a directory; what an evaluation wrote is none."""
    if not top.is_dir() or (top / MARKER).is_file():
        return []
    if (top / ".hydra" / "config.yaml").is_file():
        return [top]
    files = sorted(top.glob("**/.hydra/config.yaml"))
    return [file.parents[1] for file in files if not (file.parents[1] / MARKER).is_file()]


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
