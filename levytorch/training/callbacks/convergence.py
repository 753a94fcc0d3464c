"""When to stop: the engine says so (full batch), or the moving average of theta has converged (adam).

The paper leaves the test open. Here: the window is full, its two halves agree within their own noise, and the noise
of the average (from ten batch means) is below `tolerance` of the parameters' size.
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor

from levytorch.training.callbacks.averaging import MovingAverage
from levytorch.training.module import LevyModule

_BATCH_MEANS = 10


class Convergence(L.Callback):
    """Sets `trainer.should_stop`; `converged` is what a Recovery reports."""

    def __init__(self, averaging: MovingAverage | None = None, tolerance: float = 2e-3, stop: bool = True) -> None:
        self.averaging, self.tolerance, self.stop = averaging, tolerance, stop
        self.converged = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.converged and self.stop:
            # resumed from the checkpoint of the last step, whose run was stopped before it could end
            trainer.should_stop = True

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LevyModule)
        if self.averaging is None:
            self.converged = pl_module.engine.converged(pl_module.torch_optimizer())
        else:
            if self.averaging.filled or not self.averaging.full:
                return
            self.converged = has_settled(self.averaging.block_means(), self.tolerance)
        if self.converged and self.stop:
            trainer.should_stop = True

    def state_dict(self) -> dict[str, Any]:
        return {"converged": self.converged}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.converged = state_dict["converged"]


def has_settled(blocks: Tensor, tolerance: float) -> bool:
    """Halves agree within 3 standard errors and the average's standard error is below tolerance * max(|theta|, 1)."""
    n = blocks.shape[0] // _BATCH_MEANS * _BATCH_MEANS
    if n < _BATCH_MEANS:
        return False
    means = blocks[-n:].reshape(_BATCH_MEANS, -1, blocks.shape[1]).mean(1)
    half = _BATCH_MEANS // 2
    difference = means[:half].mean(0) - means[half:].mean(0)
    within = 0.5 * (means[:half].var(0) + means[half:].var(0))
    size = means.mean(0).abs().clamp(min=1.0)
    agree = difference.abs() <= 3 * (2 * within / half).sqrt() + 1e-12 * size
    precise = (means.var(0) / _BATCH_MEANS).sqrt() <= tolerance * size
    return bool(torch.all(agree & precise))
