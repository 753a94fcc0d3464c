"""Several processes that train a network by mini-batches, under Lightning's DDP strategy.

Each of them (a rank) has all of the data and draws mini-batches of its own; the gradient is the mean over them. All
else, from thresholds to standard errors, every process computes for itself, from the same numbers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from levytorch.errors import ConfigError

if TYPE_CHECKING:
    import lightning as L

MOST = 4096  # processes on a machine, and machines
_FIRST = ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK")  # set by torchrun, srun, the user, Lightning


def _alone(values: Tensor) -> Tensor:
    return values


@dataclass(frozen=True)
class Ranks:
    """This process (`rank`) of `world` ones; mean: of a tensor over all of them, which all must call."""

    rank: int = 0
    world: int = 1
    mean: Callable[[Tensor], Tensor] = _alone

    @classmethod
    def of(cls, trainer: L.Trainer) -> Ranks:
        return cls(trainer.global_rank, trainer.world_size, trainer.strategy.reduce)


def check_processes(n: int, engine: str, full_batch: bool) -> None:
    """Refuse several processes for an engine that sees all data in every step."""
    if n > 1 and full_batch:
        raise ConfigError(
            f"several processes must have an engine that draws mini-batches (adam, adamw), found {n} with {engine}; "
            "leave trainer=ddp out: one process uses all cores, and data=files with cluster=dask many machines."
        )


def processes(trainer: Mapping[str, Any]) -> dict[str, Any]:
    """The trainer options of a configuration's trainer group: none for one process, else Lightning's DDP strategy."""
    for key in ("devices", "num_nodes"):
        if isinstance(trainer[key], bool) or not isinstance(trainer[key], int) or not 1 <= trainer[key] <= MOST:
            raise ConfigError(f"trainer.{key} must be an integer from 1 to {MOST}, found {trainer[key]!r}; 1 is usual.")
    if trainer["devices"] * trainer["num_nodes"] == 1:
        return {}
    return {"strategy": "ddp", "devices": trainer["devices"], "num_nodes": trainer["num_nodes"]}


def is_first() -> bool:
    """Whether this is the process that writes: known from the environment, before any trainer exists."""
    return not any(int(os.environ.get(name) or 0) > 0 for name in _FIRST)


def started_from_outside() -> bool:
    """Whether torchrun or srun started this process as one of several (and not Lightning)."""
    torchrun = int(os.environ.get("WORLD_SIZE") or 1) > 1 and "RANK" in os.environ
    return torchrun or (int(os.environ.get("SLURM_NTASKS") or 1) > 1 and "SLURM_PROCID" in os.environ)


def quiet_arguments(arguments: Sequence[str]) -> list[str]:
    """A command line for hydra: only the first of several processes keeps a log file."""
    several = any(a.startswith(("trainer=ddp", "trainer.devices=", "trainer.num_nodes=")) for a in arguments)
    if not several or is_first():
        return list(arguments)
    return [*arguments, "hydra.job_logging.root.handlers=[console]"]


def share_processors(processes: int) -> None:
    """Threads per process such that those of one machine use each core once; OMP_NUM_THREADS has the last word.

    Set before any number is computed: sums over threads depend on how many there are, and what every rank computes
    for itself (mu, the start, a preliminary fit) must be the same on all of them.
    """
    if "OMP_NUM_THREADS" in os.environ:
        return
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(max(1, available // processes))
