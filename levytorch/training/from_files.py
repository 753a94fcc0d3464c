"""recover() of files that other machines read: a lattice where that is possible, else sums over their pairs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import LinearHead
from levytorch.convert import shown
from levytorch.data.batches import FullBatch, full_batch
from levytorch.data.transitions import Transitions
from levytorch.distributed.cluster import Runner, running
from levytorch.distributed.files import Files, can_be_a_lattice
from levytorch.distributed.lattices import Progress
from levytorch.distributed.pairs import Distant, DistantBatch, PairsOfFiles
from levytorch.errors import InputError
from levytorch.likelihood.objective import Sweep
from levytorch.training.blocks import N_BLOCKS, PairBlocks, n_blocks_for
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.fit import Fit, fitted
from levytorch.training.problem import Problem, problem_of, settings_for
from levytorch.training.recovery import Recovery
from levytorch.training.resampling import blocks_from, of_files
from levytorch.training.reweighting import Reweighting
from levytorch.training.settings import FitSettings


def recover_files(data: Any, settings: FitSettings, client: Any) -> Recovery:
    """The recovery of all pairs in some files; `client` of Dask, None: a cluster on this machine."""
    several = isinstance(data, list | tuple) and bool(data) and all(isinstance(one, str | Path) for one in data)
    if not (several or isinstance(data, Files | str | Path)):
        raise InputError(
            f"data must be files for client=..., found {shown(data)}; pass paths or levytorch.distributed.Files, or "
            "leave client out."
        )
    files = data if isinstance(data, Files) else Files(data)
    if not isinstance(settings.engine, FisherEngine):
        raise InputError(
            f"the engine must be fisher or evidence for files on a cluster, found {settings.engine.name}; leave it out."
        )
    needs = {
        "a modulation": settings.modulation is not None,
        "validation": bool(settings.data.get("validation")),
        "a memory": settings.memory is not None,
        "observation_noise": settings.observation_noise is not None,
        "an action": files.reading.get("action") is not None,
    }
    if any(needs.values()):
        name = next(name for name, asked in needs.items() if asked)
        raise InputError(
            f"{name} must have the pairs in this process, found files on a cluster; read them with "
            "Trajectories.from_file, or leave this out."
        )
    with running(client) as job:
        sample = files.on(job).sample(files.n_sample)
        # scales, thresholds and the window are those of the sample; a lattice keeps the thresholds it was made with
        problem = replace(problem_of(sample, settings_for(sample, settings), fitted), guessed_CT=False)
        if can_be_a_lattice(sample):
            return _of_lattice(files, problem, sample, job)
        if problem.settings.tail.active:
            raise InputError(
                "a tail treatment must have one dimension and few distinct dt for files on a cluster, found more; use "
                "tail=None."
            )
        distant = files.on(job, held=True)
        counts = distant.counts()
        pairs = PairsOfFiles(distant, sum(counts))
        found = _fit(replace(problem, distant=pairs))
        if isinstance(found.head, LinearHead):
            own = blocks_from(found, sample)
            blocks = BlocksOfFiles(own.observed, units=own.units, pairs_of=pairs, of_file=torch.tensor(counts))
            found.replicas["reweighting"] = of_files(found, blocks, OfFiles)
            blocks.pairs_of = None  # whose workers may be gone
        return found


@dataclass
class BlocksOfFiles(PairBlocks):
    """The pairs of files, known here by a sample (`observed`): as many files as there are make a block, 60 at most."""

    pairs_of: PairsOfFiles | None = None
    of_file: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def n_blocks(self) -> int:
        return min(N_BLOCKS, len(self.of_file))

    @property
    def clusters(self) -> None:
        """Files hold whole trajectories."""

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor]:
        return self.by_block(self.of_file.to(torch.float64)), torch.zeros(self.n_blocks, dtype=torch.float64)

    @property
    def whole(self) -> FullBatch:
        assert self.pairs_of is not None
        return self.pairs_of.of_sample(full_batch(self.observed), (self.units.length, self.units.time))

    def by_block(self, of_files: Tensor) -> Tensor:
        """Sums over the files of every block, whose first dimension is that of files."""
        block = torch.arange(len(of_files)) % self.n_blocks
        return torch.zeros((self.n_blocks, *of_files.shape[1:]), dtype=torch.float64).index_add_(0, block, of_files)


class OfFiles(Reweighting):
    """A `Reweighting` whose blocks are files."""

    def block_scores(self) -> Tensor:
        blocks, main = self.blocks, self.objective.batch.main
        assert isinstance(blocks, BlocksOfFiles)
        assert isinstance(main, DistantBatch)
        sums = main.distant.each(main.pool, Sweep(self.head, self.law, self.objective.bins))
        none = torch.zeros_like(self.theta)
        return blocks.by_block(torch.stack([none if one is None else one.gradient for one in sums]))


def _of_lattice(files: Files, problem: Problem, sample: Transitions, job: Runner) -> Recovery:
    """A fit to the lattice of all files, and its last step over their pairs."""
    progress, head, tail = Progress(len(files.names)), problem.head, problem.settings.tail
    window = None  # of a line: the central states of the sample, as for pairs in this process
    if head.period is None:
        window = (float(problem.pairs.x.min()), float(problem.pairs.x.max()))
    making: dict[str, Any] = {
        "window": window,
        "period": head.period,
        "n_blocks": n_blocks_for(sample),
        "mu": float(sample.mu),
    }
    if head.period is not None:
        making["origin"] = head.origin
    if tail.active:
        making |= {"CT": tail.CT, "TRT": tail.TRT}

    def see(now: Progress) -> None:
        nonlocal progress
        progress = now

    lattice = files.lattice(job, progress=see, sample=problem.train, **making)
    usable = [name for name in files.names if name not in progress.failed]
    pairs = PairsOfFiles(Distant(usable, files.reading, job, retries=files.options["retries"]), window=window)
    # pairs that lead from file to file are in the lattice alone
    found = _fit(replace(problem, train=lattice, distant=None if progress.joined else pairs))
    found.metrics["reading"] = progress.metrics()
    return found


def _fit(problem: Problem) -> Recovery:
    return Fit.of(problem.data, problem.settings, problem=problem).run(problem.settings.progress)
