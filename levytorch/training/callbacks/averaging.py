"""Moving average of theta over the last `window` steps (section E.2), kept as sums over blocks of steps.

Memory is blocks x P whatever the window; the oldest block leaves when a new one is full, so that the average covers
between window and window plus one block of steps once that many have been taken.

When to stop: the engine says so (full batch), or the moving average of theta has converged (adam). The paper leaves the
test open. Here: the window is full, its two halves agree within their own noise, and the noise of the average (from ten
batch means) is below `tolerance` of the parameters' size.
"""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from torch import Tensor

from levytorch.training.module import LevyModule

_BLOCKS = 100
_BATCH_MEANS = 10


class MovingAverage(L.Callback):
    """`average()` is what Algorithm B.1 returns."""

    def __init__(self, window: int = 20_000) -> None:
        self.window = window
        self.block = max(1, window // _BLOCKS)
        self.sums: list[Tensor] = []
        self.current: Tensor | None = None
        self.filled = 0

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LevyModule)
        self.add(pl_module.head.flat())

    def add(self, theta: Tensor) -> None:
        """Take one more step into the average."""
        self.current = theta.clone() if self.current is None else self.current.add_(theta)
        self.filled += 1
        if self.filled == self.block:
            self.sums.append(self.current)
            self.current, self.filled = None, 0
            del self.sums[: max(0, len(self.sums) - self.window // self.block)]

    @property
    def steps(self) -> int:
        """Steps in the average."""
        return len(self.sums) * self.block + self.filled

    @property
    def full(self) -> bool:
        return len(self.sums) * self.block >= self.window // self.block * self.block

    def average(self) -> Tensor:
        parts = [*self.sums] + ([self.current] if self.current is not None else [])
        return torch.stack(parts).sum(0) / self.steps

    def block_means(self) -> Tensor:
        """(number of full blocks, P) in the order they were taken."""
        return torch.stack(self.sums) / self.block

    def state_dict(self) -> dict[str, Any]:
        return {"sums": [s.clone() for s in self.sums], "current": self.current, "filled": self.filled}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.sums = list(state_dict["sums"])
        current = state_dict["current"]
        self.current, self.filled = None if current is None else current.clone(), state_dict["filled"]


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
