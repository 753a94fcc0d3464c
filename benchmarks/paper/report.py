"""Everything an experiment shows, written into a directory: figures (PNG, PDF), tables (CSV) and their text.

`Report` does so when a sweep is over: `hydra.callbacks.report._target_` of conf/experiment.
"""

from __future__ import annotations

import logging
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback

if TYPE_CHECKING:  # every job of a sweep builds the callback, only the sweep's end needs these
    from benchmarks.paper.collect import Runs
    from benchmarks.paper.figures import PaperFigure

log = logging.getLogger("benchmarks.paper")


def write_figures(runs: Runs, entries: dict[str, PaperFigure], directory: Path) -> list[Path]:
    """One figure per entry as <directory>/<name>.png and .pdf; one that these runs are not enough for is skipped."""
    from levytorch.errors import InputError
    from levytorch.figures import save

    written: list[Path] = []
    for name, entry in entries.items():
        try:
            fig, _ = entry.of(runs)
        except InputError as error:
            log.warning(f"no figure {name}: {error}")
            continue
        written += save(fig, directory / name)
    return written


def write_tables(runs: Runs, directory: Path) -> str:
    """All tables as <directory>/<name>.csv; returns them as text, the paper's statements first."""
    from benchmarks.paper.claims import claims
    from benchmarks.paper.tables import KEEP, all_tables, markdown
    from levytorch.files import write_csv

    text = []
    for name, table in {"paper": claims(runs), **all_tables(runs)}.items():
        if not len(table):
            continue
        write_csv(directory / f"{name}.csv", table.to_dict())
        text.append(f"{name}\n\n{markdown(table, keep=KEEP)}\n")
    return "\n".join(text)


def write_report(runs: Runs, directory: Path) -> str:
    """The figures and tables of the experiments these runs belong to; returns the tables as text."""
    from benchmarks.paper.figures import figures_of

    write_figures(runs, figures_of(runs.unique("experiment")), directory / "figures")
    return write_tables(runs, directory / "tables")


class Report(Callback):
    """`python train.py -m experiment=...`: a file is judged before the first run, the report comes after the last."""

    def __init__(self) -> None:
        self.began, self.cpu = time.perf_counter(), time.process_time()

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        """A file that every job would refuse with a traceback is refused here, in one sentence."""
        from hydra.utils import instantiate
        from omegaconf import OmegaConf

        from levytorch.errors import LevytorchError

        if OmegaConf.is_missing(config.data, "path"):
            sys.exit("ConfigError: a file of data must be given, found none; add data.path=<file>.")
        if "path" not in config.data:
            return
        try:
            instantiate(config.data, _convert_="all")()
        except LevytorchError as error:
            sys.exit(f"{type(error).__name__}: {error}")

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        from benchmarks.paper.collect import collect
        from levytorch.errors import LevytorchError
        from levytorch.files import write_json

        directory = Path(str(config.hydra.sweep.dir))
        try:
            runs = collect(directory)
            write_json(directory / "sweep.json", self.record(config))
            print(write_report(runs, directory))
        except LevytorchError as error:  # the runs are there whatever becomes of their report
            log.warning(f"no report on {directory}: {error}")
        else:
            print(f"figures and tables: {directory}")

    def record(self, config: Any) -> dict[str, Any]:
        """The command and how long the sweep took; CPU time only where all jobs were made in this process."""
        launcher = str(config.hydra.get("launcher", {}).get("_target_", ""))
        words = [Path(sys.argv[0]).name, *sys.argv[1:]]
        return {
            "command": f"python {shlex.join(words)}",
            "wall_seconds": round(time.perf_counter() - self.began, 1),
            "cpu_seconds": round(time.process_time() - self.cpu, 1) if launcher.endswith("BasicLauncher") else None,
        }
