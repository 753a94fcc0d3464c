"""Hydra's callback that reports on a sweep once it is over: `hydra.callbacks.report._target_` of the experiments."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

log = logging.getLogger("levytorch.experiments")


class Report(Callback):
    """After `python train.py -m experiment=...`: figures/ and tables/ in the sweep directory, the tables printed."""

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        # imported here: every job of the sweep builds the callback, only its end needs these
        from levytorch.errors import LevytorchError
        from levytorch.experiments.collect import collect
        from levytorch.experiments.report import write_report

        directory = Path(str(config.hydra.sweep.dir))
        try:
            print(write_report(collect(directory), directory))
        except LevytorchError as error:  # the runs are there whatever becomes of their report
            log.warning(f"no report on {directory}: {error}")
        else:
            print(f"figures and tables: {directory}")
