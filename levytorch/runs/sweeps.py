"""What train.py does around the jobs of a sweep (`-m`): settings that contradict it are refused, and one page compares
its runs at the end. Every job builds this callback of hydra, so that it imports nothing before it must.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

from levytorch.errors import LevytorchError

log = logging.getLogger("levytorch.train")
SWEPT = "dynamics.alpha"  # what experiments of the paper sweep; `alpha` is the same number unless it is given


class Sweep(Callback):
    """hydra.callbacks.sweep of conf/train.yaml."""

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        refused = contradiction(
            config.get("experiment"),
            list((config.hydra.sweeper.get("params") or {}).keys()),
            list(config.hydra.overrides.task),
        )
        if refused is not None:
            sys.exit(f"ConfigError: {refused}")  # hydra turns exceptions of callbacks into warnings, but not this one

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        if "report" in config.hydra.callbacks:
            return  # experiments of the paper have pages of their own
        from levytorch.runs.comparison import write_comparison

        try:
            page = write_comparison(Path(config.hydra.sweep.dir))
        except LevytorchError as error:
            log.warning(f"no comparison of the runs: {error}")
            return
        if page is not None:
            log.info(f"comparison of the runs: {page}")


def contradiction(experiment: Any, swept: list[str], overrides: list[str]) -> str | None:
    """A sentence where a command line fixes alpha for a fit whose data is simulated with every alpha of a sweep."""
    given = {key.lstrip("+"): value for key, _, value in (override.partition("=") for override in overrides)}
    alpha = given.get("alpha")
    if alpha is None or SWEPT not in swept or SWEPT in given:
        return None
    if not all(character in "0123456789.,e-" for character in alpha):
        return None  # learn or function: every alpha of the sweep is estimated
    return (
        f"alpha must be left to {SWEPT}, which experiment={experiment} sweeps, found alpha={alpha}, which would be "
        f"used for the data of every alpha; use {SWEPT}={alpha}."
    )
