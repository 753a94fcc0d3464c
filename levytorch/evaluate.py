"""Policy evaluation from the command line: `python evaluate.py run=<run directory or glob>` (conf/evaluate.yaml).

A run directory is read as data: nothing named in it is imported or executed. Results go to a new directory.
"""

# ruff: noqa: E402

from __future__ import annotations

from levytorch import startup

startup.prepare_process()

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

with startup.importing():
    import hydra
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from levytorch.errors import LevytorchError, LevytorchWarning
    from levytorch.interrupts import Interrupted, interruptible
    from levytorch.runs import command_line
    from levytorch.runs.evaluation_settings import newest
    from levytorch.runs.words import for_command_line

OmegaConf.register_new_resolver("newest", newest, replace=True)  # conf/experiment/value_error.yaml
log = logging.getLogger("levytorch.evaluate")


@contextmanager
def told_once() -> Iterator[None]:
    """Own warnings as sentences of the log, each once, without the place in the code that they come from."""
    logged: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", LevytorchWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, LevytorchWarning):
                others(message, category, *place, **more)
            elif str(message) not in logged:
                logged.add(str(message))
                log.warning(str(message))

        warnings.showwarning = show
        yield


@hydra.main(version_base="1.3", config_path=command_line.conf_directory(), config_name="evaluate")
def main(config: DictConfig) -> None:
    command_line.guard_log()
    with startup.importing():
        startup.import_lightning()
        from levytorch.runs.evaluate import run_evaluation

    try:
        settings: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        with interruptible(), told_once():
            run_evaluation(settings)
    except Interrupted as stop:
        print(f"evaluate: stopped by {stop.name}; nothing was written", file=sys.stderr)
        raise
    except (LevytorchError, OmegaConfBaseException) as error:
        # one sentence, not a traceback: the input is at fault, not the program
        sys.exit(f"evaluate: {for_command_line(str(error).splitlines()[0])}")


def start() -> None:
    """The command line of this process."""
    command_line.run_main(main, "evaluate")


if __name__ == "__main__":
    start()
