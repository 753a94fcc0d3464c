"""A fit under Lightning: what train.py runs. The module and the batches are those of the same Fit as in `recover`."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from torch import Tensor

from levytorch.data import Transitions
from levytorch.data.batches import Batch, FullBatch
from levytorch.data.lattice import Lattice
from levytorch.data.module import BatchModule, HeldOut, fingerprint
from levytorch.errors import InputError, LevytorchError, LevytorchWarning
from levytorch.training.callbacks import Advance, Progress, UpdateTCF
from levytorch.training.fit import Fit
from levytorch.training.module import LevyModule
from levytorch.training.recovery import Recovery
from levytorch.training.settings import FitSettings

TRAINER: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
}
_LOGGERS = ("lightning", "lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")


class FitDataModule(BatchModule):
    """The batches of a fit: all of its data in every step, or draws that mix the main and the tail pool by its TCF."""

    def __init__(self, fit: Fit) -> None:
        super().__init__(fit.most_steps)
        self.fit = fit

    def draw(self, step: int) -> Batch | FullBatch:
        """The batch of the next step of the fit."""
        return self.fit.batch()

    def val_dataloader(self) -> Any:
        return HeldOutOfFit(self.fit)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "data": fingerprint(self.fit.data)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if "data" not in state_dict:
            raise InputError(
                "a run must be resumed with the version of levytorch that started it, found a checkpoint of an older "
                "version; start a new run."
            )
        if state_dict["data"] != fingerprint(self.fit.data):
            raise InputError(
                f"a resumed run must have the data it was started with, found {len(self.fit.data)} pairs that "
                f"are not its {state_dict['data'][0]:.0f}; name that file, or start a new run."
            )
        self._step = int(state_dict["step"])


class HeldOutOfFit:
    """The held-out pairs of a fit in chunks, none before it is prepared."""

    def __init__(self, fit: Fit) -> None:
        self.fit = fit

    def __iter__(self) -> Iterator[Batch]:
        pairs = None if self.fit.problem is None else self.fit.problem.held_out
        return iter(() if pairs is None else HeldOut(pairs))


@dataclass
class Trained:
    """A fit under Lightning that has ended, and everything around it."""

    recovery: Recovery
    module: LevyModule
    data: FitDataModule
    trainer: L.Trainer


def train(
    transitions: Transitions | Lattice,
    settings: FitSettings,
    *,
    callbacks: Sequence[L.Callback] = (),
    trainer: dict[str, Any] | None = None,
    trainer_class: type[L.Trainer] | None = None,
    resume: str | None = None,
    start: Tensor | None = None,
) -> Trained:
    """Fit transitions or a lattice in a Trainer.

    callbacks, trainer (flags), trainer_class: added by train.py (loggers, checkpoints, progress); resume: a checkpoint;
    start: first theta.
    """
    fit = Fit.of(transitions, settings, start)
    module, data = LevyModule.of(fit), FitDataModule(fit)
    own: list[L.Callback] = [UpdateTCF(), Advance()]
    if settings.progress and not any(isinstance(callback, ProgressBar) for callback in callbacks):
        own.append(Progress())
    options = TRAINER | {
        "enable_progress_bar": settings.progress,
        "max_epochs": 1,  # the loader is as long as the fit can be
    }
    if not settings.data.get("validation"):
        options["limit_val_batches"] = 0
    else:
        options["val_check_interval"] = 1 if fit.engine.full_batch else min(1000, fit.engine.max_steps)
    options |= trainer or {}
    with quiet_lightning():
        lightning = (trainer_class or L.Trainer)(**options, callbacks=[*own, *callbacks])
        try:
            # True also without a checkpoint of ours: on a cluster Lightning looks for one of its own
            lightning.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            if resume is None or module.began or isinstance(error, LevytorchError):
                raise
            raise InputError(
                f"{resume} must be a checkpoint of a run with these settings, found another ({type(error).__name__}); "
                "resume without other settings, or remove the checkpoint to start over."
            ) from error
    return Trained(fit.recovery(), module, data, lightning)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Lightning announces devices, tips and missing loaders; here only levytorch's own warnings pass."""
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
