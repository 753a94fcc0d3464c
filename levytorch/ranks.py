"""Several processes on one fit: who has which pairs, sums over all of them, and errors that all of them see.

Under Lightning's DDP strategy every process (rank) works on its own contiguous shard of the pairs. Engines need sums
over pairs, so one reduction per pass (or per mini-batch) is all that is exchanged. With a single process nothing here
does anything.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from levytorch.errors import ConfigError, NumericalError

if TYPE_CHECKING:
    import lightning as L

T = TypeVar("T")
DRIFTED = (
    "the parameters and the TCF must be the same on all ranks, found different ones; start all of them from the same "
    "code and data, on processors of the same kind."
)
MOST = 4096  # processes on a machine, and machines
_FIRST = ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK")  # set by torchrun, srun, the user, Lightning


@dataclass(frozen=True)
class Ranks:
    """This process (`rank`) of `world` ones. All of them must call the methods, in the same order."""

    rank: int = 0
    world: int = 1

    @classmethod
    def of(cls, trainer: L.Trainer) -> Ranks:
        return cls(trainer.global_rank, trainer.world_size)

    def shard(self, n: int) -> slice:
        """This rank's part of n things."""
        return slice(self.rank * n // self.world, (self.rank + 1) * n // self.world)

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sums over ranks, the same bits on all of them, in one exchange."""
        if self.world == 1:
            return list(tensors)
        flat = torch.cat([t.detach().reshape(-1) for t in tensors])
        dist.all_reduce(flat)
        parts = flat.split([t.numel() for t in tensors])
        return [part.reshape(t.shape) for part, t in zip(parts, tensors)]

    def in_order(self, rows: Sequence[Tensor], start: Tensor) -> Tensor:
        """start + the rows of all ranks, one after the other: the same bits however many ranks share them."""
        total = start.clone()
        if self.rank > 0:
            dist.recv(total, self.rank - 1)
        for row in rows:
            total = total + row
        if self.rank < self.world - 1:
            dist.send(total, self.rank + 1)
        if self.world > 1:
            dist.broadcast(total, self.world - 1)
        return total

    def gather(self, thing: T) -> list[T]:
        """The things of all ranks, in their order."""
        found: list[Any] = [thing]
        if self.world > 1:
            found = [None] * self.world
            dist.all_gather_object(found, thing)
        return found

    def same(self, values: Tensor) -> Tensor:
        """The first rank's values: processors may differ in the last bit, and decisions must not."""
        if self.world == 1:
            return values
        values = values.detach().clone()
        dist.broadcast(values, 0)
        return values

    def agree(self, decision: bool) -> bool:
        """The first rank's decision."""
        return bool(self.same(torch.tensor([decision], dtype=torch.int64)))

    def any(self, flag: bool) -> bool:
        """Whether the flag is up on any rank."""
        if self.world == 1:
            return flag
        return bool(self.sum([torch.tensor([float(flag)], dtype=torch.float64)])[0] > 0)

    def together(self, work: Callable[[], T]) -> T:
        """work(), or the same error on all ranks when the numbers fail on one of them: nobody is left waiting."""
        if self.world == 1:
            return work()
        result: list[T] = []
        problem: ArithmeticError | None = None
        try:
            result.append(work())
        except ArithmeticError as error:
            problem = error
        self.check(problem)
        return result[0]

    def check(self, problem: ArithmeticError | None) -> None:
        """Raise on all ranks what went wrong on any of them."""
        if self.world == 1:
            if problem is not None:
                raise problem
            return
        (failed,) = self.sum([torch.tensor([float(problem is not None)], dtype=torch.float64)])
        if not failed:
            return
        found: list[str | None] = [None] * self.world
        dist.all_gather_object(found, None if problem is None else str(problem))
        first = next(k for k, text in enumerate(found) if text is not None)
        raise SharedError(f"{found[first]} (rank {first} of {self.world})") from problem

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()


def fingerprint(values: Tensor) -> Tensor:
    """(h, h^2) of a 20-bit mark of some bits: with S, Q the sums over ranks, all are the same when world Q = S^2."""
    mark = float(zlib.crc32(values.detach().numpy().tobytes()) % (1 << 20))
    return torch.tensor([mark, mark * mark], dtype=torch.float64)


class SharedError(NumericalError):
    """A numerical failure that every rank has been told of."""


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
