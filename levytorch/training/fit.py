"""A fit under Lightning: what train.py runs for every engine, and `recover` for adam."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from torch import Tensor

from levytorch.data import LevyDataModule, Transitions
from levytorch.data.lattice import Lattice
from levytorch.data.module import LatticeModule
from levytorch.errors import InputError, LevytorchError, LevytorchWarning
from levytorch.likelihood.likelihood import N_BINS
from levytorch.ranks import Ranks
from levytorch.training.callbacks import Convergence, MovingAverage, Progress, UpdateTCF
from levytorch.training.engines.base import Maximised
from levytorch.training.finish import Ended
from levytorch.training.module import LevyModule
from levytorch.training.problem import (
    Problem,
    all_data,
    check_pools,
    fit_full_batch,
    joined,
    pool_options,
    problem_of,
)
from levytorch.training.recovery import Recovery
from levytorch.training.settings import FitSettings
from levytorch.training.start import reconsidered

TRAINER: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
}
PROCESSES = ("accelerator", "devices", "num_nodes", "strategy")  # options that say which processes a fit has
_LOGGERS = ("lightning", "lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero")


@dataclass
class Fit:
    """A finished (or interrupted) fit and everything around it."""

    recovery: Recovery
    module: LevyModule
    data: LevyDataModule | LatticeModule
    trainer: L.Trainer


def fit(
    transitions: Transitions | Lattice,
    settings: FitSettings,
    *,
    callbacks: Sequence[L.Callback] = (),
    trainer: dict[str, Any] | None = None,
    trainer_class: type[L.Trainer] | None = None,
    resume: str | None = None,
    start: Tensor | None = None,
) -> Fit:
    """Train a module on transitions, or on a lattice with a full-batch engine.

    callbacks, trainer (flags), trainer_class: added by train.py (loggers, checkpoints, progress); resume: a checkpoint;
    start: first theta.
    """
    problem = problem_of(transitions, settings, start)
    problem = problem.closed(lambda: all_data(problem, Ranks()).blocks)
    settings = problem.settings
    module, data = make_module(problem), make_data(problem)
    engine = module.engine
    averaging = None if engine.full_batch else MovingAverage(engine.window)
    convergence = Convergence(averaging, engine.tolerance, engine.stop_early)
    own: list[L.Callback] = [UpdateTCF(settings.tail.start), *([averaging] if averaging else []), convergence]
    if settings.progress and not any(isinstance(callback, ProgressBar) for callback in callbacks):
        own.append(Progress())
    options = TRAINER | {
        "enable_progress_bar": settings.progress,
        "max_steps": engine.max_steps,
        "max_epochs": 1,  # the loader is as long as max_steps
    }
    if problem.held_out is None:
        options["limit_val_batches"] = 0
    else:
        options["val_check_interval"] = 1 if engine.full_batch else min(1000, engine.max_steps)
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
    final = replace(module.likelihood, head=copy.deepcopy(module.head))
    if averaging is not None and averaging.steps:  # what Algorithm B.1 returns
        final.head.set_flat(averaging.average())
    if not engine.full_batch:
        final.observe(data.observed, N_BINS)
    everyone = Ranks.of(lightning)
    batch, samples = data.everything(everyone.rank, everyone.world), data.behind(everyone.rank, everyone.world)
    # a lattice without pairs is whole on every rank
    final.ranks = Ranks() if isinstance(transitions, Lattice) else everyone
    steps, history = int(lightning.global_step), list(module.history)
    done = Maximised(module.torch_optimizer(), convergence.converged, steps, history)
    ended = Ended(final, engine, done, batch, data.observed, data.facts(), samples, everyone)
    recovery, final = problem.conclude(ended)
    other = reconsidered(settings.tail, recovery, problem.guessed_CT)
    if everyone.agree(other is not None):
        assert other is not None
        changed, theta = replace(settings, tail=other), final.head.flat()
        if engine.full_batch:
            again = fit_full_batch(transitions, replace(changed, progress=False), start=theta, ranks=everyone)
        else:
            processes = {key: options[key] for key in PROCESSES if key in options}
            again = fit(transitions, changed, trainer=processes, trainer_class=trainer_class, start=theta).recovery
        recovery = joined(recovery, again)
    return Fit(recovery, module, data, lightning)


def make_module(problem: Problem) -> LevyModule:
    """The module at its start, in internal units."""
    settings = problem.settings
    return LevyModule(problem.head, settings.engine, settings.tail, settings.density, settings.seed, settings.log_every)


def make_data(problem: Problem) -> LevyDataModule | LatticeModule:
    """The data module with the pools of these tail settings, or with a lattice that has its own."""
    settings = problem.settings
    engine = settings.engine
    if isinstance(problem.train, Lattice):
        return LatticeModule(problem.train, max_steps=engine.max_steps)
    data = LevyDataModule(
        problem.train,
        problem.held_out,
        full_batch=engine.full_batch,
        seed=settings.seed,
        max_steps=engine.max_steps,
        period_and_origin=(problem.head.period, problem.head.origin) if problem.head.dim == 1 else None,
        **pool_options(settings, problem.guess),
        **{key: value for key, value in settings.data.items() if value is not None and key != "validation"},
    )
    check_pools(data.pools, settings, problem.train)
    return data


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
