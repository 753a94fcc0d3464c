"""Silence around library use: Lightning announces devices, tips and missing loaders; `recover` should not."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from levytorch.errors import LevytorchWarning

_LOGGERS = ("lightning", "lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Only levytorch's own warnings pass."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning.*|torch.*")
            warnings.filterwarnings(
                "ignore", message=r".*(does not have many workers|LeafSpec|treespec|pytree|sanity).*"
            )
            warnings.filterwarnings("always", category=LevytorchWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
