"""What happens between the steps of a fit under Lightning: TCF, moving average and convergence, checkpoints, progress.

The moving average of theta over the last `window` steps (section E.2) is kept as sums over blocks of steps. Memory is
blocks x P whatever the window; the oldest block leaves when a new one is full, so that the average covers between
window and window plus one block of steps once that many have been taken.

When to stop: the engine says so (full batch), or the moving average of theta has converged (adam). The paper leaves the
test open. Here: the window is full, its two halves agree within their own noise, and the noise of the average (from ten
batch means) is below `tolerance` of the parameters' size.

Checkpoints appear whole or not at all, so that a run killed while writing leaves the one before. They hold plain
tensors and numbers only and load with weights-only semantics. Every one is the state between two steps: a state in the
middle of one could not be gone on with to the same numbers.
"""

from __future__ import annotations

import math
import shutil
import signal
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from torch import Tensor

from levytorch import interrupts
from levytorch.errors import LevytorchWarning, NumericalError, OutputError
from levytorch.files import replacing
from levytorch.ranks import Ranks, SharedError
from levytorch.training.module import LevyModule

N_MIN = 100  # tail visits for a stable average: the paper's n_min
_BLOCKS = 100
_BATCH_MEANS = 10


class UpdateTCF(L.Callback):
    """Algorithm E.6: after a step R_theta from the model, then the TCF of the fit's one TailCorrection; every step from
    `start` on (every pass when full batch).
    """

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


class Checkpoints(Checkpoint):
    """`last.ckpt`, `best.ckpt` and, when something goes wrong, `exception.ckpt`.

    Lightning runs Checkpoint callbacks last, after the TCF and the averages of the step are in place.
    """

    def __init__(self, directory: str | Path, every: int = 1000) -> None:
        self.directory, self.every = Path(directory), max(1, every)
        self.best = float("inf")
        self.judged = 0  # entries of the module's history that a checkpoint before has been judged by
        self.between = False  # whether no step is under way

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        interrupts.defer(True)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self.between = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, LevyModule)
        self.between = True
        step, stopping = trainer.global_step, Ranks.of(trainer).any(interrupts.requested())
        if pl_module.engine.full_batch or step % self.every == 0 or step == trainer.max_steps or stopping:
            self._write(trainer, "last.ckpt")
        if stopping or trainer.world_size == 1:  # several ranks end after the same step
            interrupts.check()
        if stopping:  # another rank was asked to end
            raise interrupts.Interrupted(signal.SIGTERM)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write(trainer, "last.ckpt")
        interrupts.defer(False)
        interrupts.check()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        interrupts.defer(False)
        # engines raise NumericalError before they touch the parameters: that is the last good state. With several ranks
        # writing waits for all of them, so only what is known to have stopped all is kept
        good = self.between or isinstance(exception, NumericalError)
        alone = trainer.world_size == 1 or isinstance(exception, SharedError)
        if trainer.global_step > 0 and good and alone and isinstance(exception, Exception):
            with suppress(OutputError):  # the exception itself is what matters
                self._write(trainer, "exception.ckpt")

    def _write(self, trainer: L.Trainer, name: str) -> None:
        objective = self._objective(trainer) if name == "last.ckpt" else math.inf
        better = objective < self.best
        if better:
            self.best = objective
        if not trainer.is_global_zero:
            trainer.save_checkpoint(self.directory / name)  # writes nothing here, but the first rank waits for it
            return
        with replacing(self.directory / name) as temporary:
            trainer.save_checkpoint(temporary)
            if better:
                # before last.ckpt, which says that this is the best one: killed in between, the step is done again
                with replacing(self.directory / "best.ckpt") as copy:
                    shutil.copyfile(temporary, copy)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "judged": self.judged}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.judged = state_dict["best"], state_dict["judged"]

    def _objective(self, trainer: L.Trainer) -> float:
        """What `best.ckpt` has the lowest of: the held-out objective when there is one, else that of all pairs.

        Mini-batch engines never see all pairs: there it is the mean of the batches logged since the checkpoint before.
        """
        module = trainer.lightning_module
        assert isinstance(module, LevyModule)
        if trainer.limit_val_batches:
            return float(trainer.callback_metrics.get("val/nll", math.inf))
        new, self.judged = module.history[self.judged :], len(module.history)
        if module.engine.full_batch:
            new = new[-1:]
        return sum(entry["train/nll"] for entry in new) / len(new) if new else math.inf


class Progress(ProgressBar):
    """Passes of a full-batch engine or steps of adam, with the likelihood: one line that goes away at the end of the
    fit, not drawn into files and pipes.
    """

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
