"""Algorithm E.6 as a callback: after a step, R_theta from the model, then the TCF into the data module.

The data module is the one place where the TCF lives; this callback is the only one that writes it.
"""

from __future__ import annotations

import warnings
from typing import Any

import lightning as L

from levytorch.errors import LevytorchWarning
from levytorch.likelihood.masses import tail_correction_factor
from levytorch.training.module import LevyModule

N_MIN = 100  # tail visits for a stable average: the paper's n_min


class TailCorrection(L.Callback):
    """TCF = max(0, (R_theta - R_sample) / (1 - R_sample)), every step from `start` on (every pass when full batch)."""

    def __init__(self, start: int = 4000) -> None:
        self.start = start
        self.tcf = 0.0
        self.R_theta = float("nan")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, LevyModule)
        pl_module.data.tcf = self.tcf

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LevyModule)
        if pl_module.tail.method != "tcf":
            return
        if not pl_module.engine.full_batch and trainer.global_step < self.start:
            return
        self.R_theta = pl_module.R_theta()
        self.tcf = tail_correction_factor(self.R_theta, pl_module.pools.R_sample)
        pl_module.data.tcf = self.tcf

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # not on_train_end, which a finished run that is resumed does not reach
        assert isinstance(pl_module, LevyModule)
        engine = pl_module.engine
        if engine.full_batch or self.tcf <= 0:
            return
        needed = N_MIN / self.tcf
        window = min(getattr(engine, "window", 1), trainer.global_step)
        if window < needed:
            warnings.warn(
                f"the moving average covers {window} steps, but a TCF of {self.tcf:.2g} calls for about {needed:.0f} "
                f"(n_min / TCF): D_f is noisy; raise engine.max_steps and engine.window, or use a full-batch engine.",
                LevytorchWarning,
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        return {"tcf": self.tcf, "R_theta": self.R_theta}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.tcf, self.R_theta = state_dict["tcf"], state_dict["R_theta"]
