"""At the end of `train.py -m experiment=btc_...`: the panel of figure 9 and its table into the sweep's directory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback

log = logging.getLogger("levytorch.train")


class FigureAtEnd(Callback):
    """Built by hydra for every job; works only when a sweep is over."""

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        from levytorch.errors import LevytorchError

        directory = Path(str(config.hydra.sweep.dir))
        try:
            report(directory)
        except LevytorchError as error:  # the runs are there whatever becomes of their figure
            log.warning(f"no figure of {directory}: {error}")


def report(directory: Path) -> None:
    """figures/btc*.png|pdf and table.txt of all runs below a directory."""
    from levytorch.experiments.btc import adam_bands, figure, full_batch_bands, text_table
    from levytorch.experiments.btc_collect import panels
    from levytorch.figures import save
    from levytorch.training.files import write_text

    found = panels(directory)
    for name, bands in (("btc", full_batch_bands), ("btc_adam", adam_bands)):
        if any(bands(panel) for panel in found):
            save(figure(found, bands)[0], directory / "figures" / name)
    tables = "\n\n".join(f"{panel.experiment}\n{text_table(panel)}" for panel in found)
    if tables:
        write_text(directory / "table.txt", tables + "\n")
        print(f"{tables}\nfigures and table: {directory}")
