"""Coefficients out of transitions: `python train.py`, or `levytorch-train` where the package is installed.

`python train.py resume=<run directory>` goes on in that directory with the settings the run was started with.
"""

# ruff: noqa: E402

from __future__ import annotations

from levytorch import startup

startup.prepare_process()

import errno
import logging
import sys
from pathlib import Path

with startup.importing():
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    from levytorch import interrupts, ranks
    from levytorch.data.store import is_shortage
    from levytorch.errors import LevytorchError
    from levytorch.files import unwritable
    from levytorch.runs import command_line, resume
    from levytorch.runs.directory import check_unused, claimed, remove_unused
    from levytorch.runs.words import for_command_line

log = logging.getLogger("levytorch.train")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@hydra.main(config_path=command_line.conf_directory(), config_name="train", version_base="1.3")
def main(config: DictConfig) -> float | None:
    """A run in its directory; what is refused before it has one must not reach the log file, which is another run's."""
    command_line.guard_log()
    directory, sweep = Path(HydraConfig.get().runtime.output_dir), HydraConfig.get().mode.name == "MULTIRUN"
    try:
        with interrupts.interruptible(), claimed(directory):
            if config.resume is None:
                check_unused(directory)
            return train_in(config, directory, sweep)
    except LevytorchError as error:
        if sweep:
            raise
        sys.exit(f"{type(error).__name__}: {for_command_line(str(error))}")


def train_in(config: DictConfig, directory: Path, sweep: bool) -> float | None:
    """The run itself: its results, or one sentence and an exit status."""
    with startup.importing():
        startup.import_lightning()
        from levytorch.runs.terminal import in_full, show
        from levytorch.runs.training import train

    logging.raiseExceptions = False  # a log file on a full disk must not bury the error itself in tracebacks
    try:
        outcome = train(config, directory)
    except interrupts.Interrupted as stop:
        if ranks.is_first():
            log.warning(f"stopped by {stop.name}; continue with: {resume.command(directory)}")
        raise
    except (LevytorchError, OSError, OmegaConfBaseException) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            error = unwritable(error.filename or directory, error)
        log.error(f"{type(error).__name__}: {for_command_line(str(error).splitlines()[0])}")
        goes_on = remove_unused(directory, resumed=config.resume is not None)
        if sweep:
            raise
        if goes_on:
            log.error(f"correct this, and continue with: {resume.command(directory)}")
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        log.error("memory must hold the data, found none left; use data.on_disk=true (docs/scaling.md) or fewer pairs.")
        sys.exit(2)
    if outcome is None:
        return None
    show(log, outcome)
    in_full(log, outcome.metrics)
    log.info(f"run directory: {directory} (open report.html in it)")
    return outcome.mean_error()


def start() -> None:
    """The command line of this process."""
    try:
        sys.argv[1:] = ranks.quiet_arguments(resume.expand(sys.argv[1:]))
    except LevytorchError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    command_line.run_main(main, "train")


if __name__ == "__main__":
    start()
