"""Algorithm E.6 as a callback: after a step, R_theta from the model, then the TCF of the fit's one TailCorrection."""

from __future__ import annotations

import warnings
from typing import Any

import lightning as L

from levytorch.errors import LevytorchWarning
from levytorch.training.module import LevyModule

N_MIN = 100  # tail visits for a stable average: the paper's n_min


class UpdateTCF(L.Callback):
    """TCF = max(0, (R_theta - R_sample) / (1 - R_sample)), every step from `start` on (every pass when full batch)."""

    def __init__(self, start: int = 4000) -> None:
        self.start = start

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LevyModule)
        if pl_module.engine.full_batch or trainer.global_step >= self.start:
            accepted = getattr(pl_module.torch_optimizer(), "accepted", None)
            pl_module.likelihood.correct(None if accepted is None else accepted.R_theta)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # not on_train_end, which a finished run that is resumed does not reach
        assert isinstance(pl_module, LevyModule)
        engine, tcf = pl_module.engine, pl_module.likelihood.correction.tcf
        if engine.full_batch or tcf <= 0:
            return
        needed = N_MIN / tcf
        window = min(getattr(engine, "window", 1), trainer.global_step)
        if window < needed:
            warnings.warn(
                f"the moving average covers {window} steps, but a TCF of {tcf:.2g} calls for about {needed:.0f} "
                f"(n_min / TCF): D_f is noisy; raise engine.max_steps and engine.window, or use a full-batch engine.",
                LevytorchWarning,
                stacklevel=2,
            )
