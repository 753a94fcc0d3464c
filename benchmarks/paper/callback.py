"""Hydra's callback that reports on a sweep once it is over: `hydra.callbacks.report._target_` of the experiments."""

from __future__ import annotations

import logging
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

log = logging.getLogger("benchmarks.paper")


class Report(Callback):
    """After `python train.py -m experiment=...`: figures/, tables/ and sweep.json in the sweep directory."""

    def __init__(self) -> None:
        self.began, self.cpu = time.perf_counter(), time.process_time()

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        # imported here: every job of the sweep builds the callback, only its end needs these
        from benchmarks.paper.collect import collect
        from benchmarks.paper.report import write_report
        from levytorch.errors import LevytorchError
        from levytorch.tables import write_json

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
