"""The progress bar: passes of a full-batch engine or steps of adam, with the likelihood; silent where nobody looks."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar

from levytorch.training.module import LevyModule


class Progress(ProgressBar):
    """One line that goes away at the end of the fit; not drawn into files and pipes."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled = True
        self._bar: Any = None

    def disable(self) -> None:  # Lightning's way of keeping other processes quiet
        self.enabled = False

    def enable(self) -> None:
        self.enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.enabled:
            return
        from tqdm import tqdm

        assert isinstance(pl_module, LevyModule)
        unit = "pass" if pl_module.engine.full_batch else "step"
        self._bar = tqdm(
            desc=f"{pl_module.engine.name}",
            total=pl_module.engine.max_steps,
            initial=trainer.global_step,
            unit=unit,
            leave=False,
            disable=None,  # where the terminal is none
            bar_format="{desc}: at most {total_fmt}, {unit} {n_fmt} |{bar:20}| {elapsed}{postfix}",
        )

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._bar is None or self._bar.disable:
            return
        shown = {"log-likelihood per pair": -trainer.progress_bar_metrics["train/nll"]} if self._known(trainer) else {}
        if "tail/TCF" in trainer.progress_bar_metrics:
            shown["TCF"] = trainer.progress_bar_metrics["tail/TCF"]
        self._bar.set_postfix({name: f"{value:.5g}" for name, value in shown.items()}, refresh=False)
        self._bar.update(trainer.global_step - self._bar.n)

    def _known(self, trainer: L.Trainer) -> bool:
        return "train/nll" in trainer.progress_bar_metrics

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
