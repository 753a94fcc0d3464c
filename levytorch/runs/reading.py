"""Run directories as input: found by path or glob, read as data, never executed. The one reader for everybody.

Of a run only files of plain values are read: `recovery.pt` (tensors and numbers), `.hydra/*.yaml`, `metrics.json` and
tables. No class named in them is built: the true system is taken over only when its name is one of `Dynamics.named`.
"""

from __future__ import annotations

import glob
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from levytorch.controlled import SYSTEMS as WITH_ACTIONS
from levytorch.controlled import ControlledDynamics
from levytorch.dynamics import SYSTEMS, Dynamics
from levytorch.errors import InputError, LevytorchWarning
from levytorch.training.continuous import ContinuousRecovery
from levytorch.training.controlled import ControlledRecovery
from levytorch.training.recovery import Recovery
from levytorch.untrusted import load_tensors, lookup, read_csv, read_json, read_settings

# what the sources of data are and were called; compared with, never imported from a configuration
SIMULATED = (
    *("levytorch.simulation.Simulated", "levytorch.simulation.source.Simulated"),
    "benchmarks.paper.metropolis.MetropolisData",
)
FROM_FILE = ("levytorch.data.sources.FromFile",)
FROM_FILES = ("levytorch.distributed.source.FromFiles",)
FROM_LATTICE = ("levytorch.data.sources.FromLattice", "levytorch.data.lattice_source.FromLattice", *FROM_FILES)
DEFAULTS = 2  # of conf/, as run.json tells them
RECORD = "run.json"  # the overrides a training run was started with
MARKER = "evaluation.yaml"  # the file by which an evaluation's output directory is recognised
Columns = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, eq=False)  # a run is itself, whatever it holds
class Run:
    """One finished run: where it is and the configuration it was made with; the rest is read when it is asked for."""

    path: Path
    config: Mapping[str, Any]

    @cached_property
    def recovery(self) -> Any:
        """A Recovery; of data with actions a ControlledRecovery or a ContinuousRecovery."""
        try:
            return load_recovery(self.path / "recovery.pt")
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise InputError(
                f"{self.path / 'recovery.pt'} must be a recovery written by levytorch, found one that cannot be "
                f"read ({error}); recover again."
            ) from error

    @property
    def has_actions(self) -> bool:
        return not isinstance(self.recovery, Recovery)

    @cached_property
    def metrics(self) -> Mapping[str, Any]:
        """The numbers of metrics.json."""
        content = read_json(self.path / "metrics.json")
        if not isinstance(content, Mapping):
            raise InputError(f"{self.path / 'metrics.json'} must hold a mapping, found something else; restore it.")
        return content

    @cached_property
    def choices(self) -> Mapping[str, Any]:
        """The option chosen from each group of configurations, as far as hydra has written it down."""
        file = self.path / ".hydra" / "hydra.yaml"
        content = lookup(read_settings(file), "hydra.runtime.choices") if file.is_file() else None
        return content if isinstance(content, Mapping) else {}

    def setting(self, key: str, default: Any = None) -> Any:
        """The value of a dotted key of the run's configuration, references within it followed."""
        return lookup(self.config, key, default)

    def number(self, key: str) -> float:
        """A number of metrics.json by its dotted key, NaN where there is none."""
        value = lookup(self.metrics, key)
        return float(value) if isinstance(value, int | float) else math.nan

    def table(self, name: str, columns: Sequence[str]) -> Columns:
        """A table of the run; those of `columns` must be there."""
        return read_csv(self.path / name, columns)

    @cached_property
    def curves(self) -> Columns:
        """curves.csv: x, every coefficient, its standard error and the truth."""
        return self.table("curves.csv", ("x", "b", "D_o", "D_f"))

    @property
    def has_values(self) -> bool:
        return (self.path / "value.csv").is_file()

    @cached_property
    def values(self) -> Columns:
        """value.csv: x, V, its standard error, and the truth or the references it is compared with."""
        return self.table("value.csv", ("x", "V"))

    @cached_property
    def history(self) -> Columns:
        """history.csv: one row per logged step."""
        return self.table("history.csv", ("step",))

    @property
    def tail_label(self) -> str:
        """with TCF / conditional / without TCF, from what the recovery says about itself."""
        method = self.recovery.metrics.get("tail_method")
        if method is None:
            method = "tcf" if self.recovery.tcf else "none"
        return {"tcf": "with TCF", "none": "without TCF"}.get(str(method), f"{method} likelihood")

    def scale(self) -> dict[str, Any] | None:
        """What x and t are measured in, as far as the configuration says: options of the file, or None."""
        if self.setting("data._target_") not in FROM_FILE:
            return None
        return {"time_unit": self.setting("data.time_unit"), "log": bool(self.setting("data.log"))}

    def truth(self) -> Dynamics | ControlledDynamics | None:
        """The true system when the data was simulated from one of the examples, else None."""
        data, system = self.config.get("data"), self.config.get("dynamics")
        # train.py's configuration always names a dynamics; it is the truth only of data that was simulated from it
        if isinstance(data, Mapping) and data.get("_target_", SIMULATED[0]) not in SIMULATED:
            return None
        name = system.get("name") if isinstance(system, Mapping) else None
        known = WITH_ACTIONS if self.has_actions else SYSTEMS
        if not isinstance(system, Mapping) or not isinstance(name, str) or name not in known:
            return None
        alpha, tempering = system.get("alpha", 0.3), system.get("tempering", 0.0)
        if any(isinstance(v, bool) or not isinstance(v, int | float) for v in (alpha, tempering)):
            return None
        if self.has_actions:
            return ControlledDynamics.named(name, alpha=float(alpha), tempering=float(tempering))
        return Dynamics.named(name, alpha=float(alpha), tempering=float(tempering))


def load_recovery(path: Path) -> Any:
    """What a run has found, of whichever kind; nothing in the file is executed."""
    kinds: dict[Any, Any] = {"levytorch.controlled.1": ControlledRecovery, "levytorch.continuous.1": ContinuousRecovery}
    try:
        content = load_tensors(path)
        kind = kinds.get(content.get("format")) if isinstance(content, dict) else None
    except Exception:  # pickle, zip, torch and I/O errors of foreign files have no common base: told by the loader
        kind = None
    return (Recovery if kind is None else kind).load(path)


def find_runs(pattern: str | Sequence[str]) -> list[Path]:
    """Run directories named by a path, a glob (** for any depth) or a list of these, sorted, each once.

    A glob meets whatever lies beside the runs: what is no finished run is skipped, with a warning that names it. A path
    stands for itself and is refused when it is read.
    """
    patterns = [pattern] if isinstance(pattern, str | Path) else list(pattern)
    if not patterns:
        raise InputError("run must name a run directory or a glob, found nothing; give run=outputs/<date>/<time>.")
    found: dict[Path, None] = {}
    for one in map(str, patterns):
        found.update(dict.fromkeys([Path(one)] if Path(one).is_dir() else _matches(one)))
    return list(found)


def _matches(pattern: str) -> list[Path]:
    """The finished runs of one glob."""
    matches = sorted(Path(match) for match in glob.glob(pattern, recursive=True))
    directories = [match for match in matches if match.is_dir() and not _is_evaluation(match)]
    if "**" in pattern:  # any depth: parents and checkpoint folders match as well, only runs are meant
        directories = [match for match in directories if (match / "recovery.pt").is_file()]
    if not directories:
        what = "matches no run directory" if glob.has_magic(pattern) else "is no directory"
        raise InputError(
            f"run={pattern} must name finished runs, found that it {what}; check the path (quote globs in the shell)."
        )
    skipped = {path: reason for path in directories if (reason := _unfinished(path)) is not None}
    if len(skipped) == len(directories):
        raise InputError(
            f"run={pattern} must name finished runs, found none ({_reasons(skipped)}); train first, or continue "
            "with train.py resume=<run directory>."
        )
    if skipped:
        warnings.warn(
            f"run={pattern} also matches directories that are not finished runs and are skipped: {_reasons(skipped)}; "
            "finish these runs, or narrow the pattern.",
            LevytorchWarning,
            stacklevel=3,
        )
    return [path for path in directories if path not in skipped]


def _unfinished(path: Path) -> str | None:
    """Why a directory is no finished run; None when it is one."""
    if (path / "recovery.pt").is_file():
        return None
    started = (path / ".hydra").is_dir() or (path / "checkpoints").is_dir()
    return "the run is not finished (no recovery.pt)" if started else "it is not a run directory (no recovery.pt)"


def _reasons(skipped: Mapping[Path, str]) -> str:
    """The directories by reason, in one line; of many only the first ones."""
    text = []
    for reason in dict.fromkeys(skipped.values()):
        paths = [str(path) for path, own in skipped.items() if own == reason]
        text.append(f"{_few(paths)}: {reason}")
    return "; ".join(text)


def _is_evaluation(path: Path) -> bool:
    """Whether a directory is evaluate.py's own output (or its sweep directory), which a glob meets beside the runs."""
    return (path / MARKER).is_file() or path.name.endswith("-evaluations")


def run_directories(top: Path) -> list[Path]:
    """The directories of training runs, finished or not, at or below a directory."""
    if not top.is_dir() or _is_evaluation(top):
        return []
    if (top / ".hydra" / "config.yaml").is_file():
        return [top]
    found = [file.parents[1] for file in sorted(top.glob("**/.hydra/config.yaml"))]
    return [path for path in found if not _is_evaluation(path)]


def read_run(path: Path) -> Run:
    """One run; refuses incomplete and foreign directories."""
    if (path / MARKER).is_file():
        raise InputError(
            f"{path} must be a training run, found the output of an evaluation; give the run it evaluated."
        )
    if (reason := _unfinished(path)) is not None:
        raise InputError(
            f"{path} must hold a finished run, found that {reason}; train first, or resume with resume={path}."
        )
    config = path / ".hydra" / "config.yaml"
    return Run(path, read_settings(config) if config.is_file() else {})


def load_run(path: Path) -> Run:
    """The same with its recovery, refused now if it cannot be loaded."""
    run = read_run(path)
    _ = run.recovery
    return run


def load_runs(pattern: str | Sequence[str]) -> list[Run]:
    """All runs of a pattern, which must share one cell to be drawn together."""
    runs = [load_run(path) for path in find_runs(pattern)]
    by_cell: dict[tuple[Any, Any], list[str]] = {}
    for run in runs:
        # a line begins where its own data does
        origin = None if run.recovery.period is None else run.recovery.origin
        by_cell.setdefault((run.recovery.period, origin), []).append(str(run.path))
    if len(by_cell) > 1:
        found = "; ".join(
            f"({_told(period)}, {_told(origin)}) in {_few(at)}" for (period, origin), at in by_cell.items()
        )
        raise InputError(
            f"all runs must have one period and origin, found {len(by_cell)}: {found}; name the runs that belong "
            f"together, such as run=[{','.join(next(iter(by_cell.values()))[:2])}]."
        )
    scales = {str(scale): run.path for run in runs if (scale := run.scale()) is not None}
    if len(scales) > 1:
        (one, here), (other, there) = list(scales.items())[:2]
        raise InputError(
            f"all runs must measure x and t in the same units, found {here} with {one} and {there} with {other}; "
            "evaluate them one by one, each with its own beta."
        )
    return runs


def _told(number: Any) -> str:
    return f"{number:g}" if isinstance(number, int | float) else str(number)


def _few(paths: Sequence[str]) -> str:
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
