"""Around `train.py -m experiment=btc_...`: the file is judged before the first run, and after the last one the panel of
figure 9 and its table are written into the sweep's directory.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

log = logging.getLogger("levytorch.train")


class FigureAtEnd(Callback):
    """Built by hydra for every job; works only when a sweep begins and when it is over."""

    def on_multirun_start(self, config: Any, **kwargs: Any) -> None:
        from hydra.utils import instantiate
        from omegaconf import OmegaConf

        from levytorch.errors import LevytorchError

        if OmegaConf.is_missing(config.data, "path"):
            sys.exit("ConfigError: a file of prices must be given, found none; add data.path=<file>.")
        try:
            instantiate(config.data, _convert_="all")()
        except LevytorchError as error:
            sys.exit(f"{type(error).__name__}: {error}")  # one sentence; every job would fail with a traceback

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        from levytorch.errors import LevytorchError

        directory = Path(str(config.hydra.sweep.dir))
        try:
            report(directory)
        except LevytorchError as error:  # the runs are there whatever becomes of their figure
            log.warning(f"no figure of {directory}: {error}")


def report(directory: Path) -> None:
    """figures/btc*.png|pdf and table.txt of all runs below a directory."""
    from benchmarks.paper.btc import adam_bands, figure, full_batch_bands, text_table
    from benchmarks.paper.btc_collect import panels
    from levytorch.figures import save
    from levytorch.tables import write_text

    found = panels(directory)
    for name, bands in (("btc", full_batch_bands), ("btc_adam", adam_bands)):
        if any(bands(panel) for panel in found):
            save(figure(found, bands)[0], directory / "figures" / name)
    tables = "\n\n".join(f"{panel.experiment}\n{text_table(panel)}" for panel in found)
    if tables:
        write_text(directory / "table.txt", tables + "\n")
        print(f"{tables}\nfigures and table: {directory}")
