"""recover() of files that other machines read: a lattice where that is possible, else sums over their pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from levytorch.convert import shown
from levytorch.data.transitions import Transitions
from levytorch.distributed.cluster import Runner, running
from levytorch.distributed.files import Files, can_be_a_lattice
from levytorch.distributed.lattices import Progress
from levytorch.distributed.pairs import Distant, PairsOfFiles
from levytorch.errors import InputError
from levytorch.training.blocks import n_blocks_for
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.fit import Fit, fitted
from levytorch.training.prepare import Problem, problem_of, settings_for
from levytorch.training.recovery import Recovery
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
    if settings.modulation is not None or settings.data.get("validation"):
        raise InputError(
            "a modulation and validation must have the pairs in this process, found files on a cluster; read them with "
            "Trajectories.from_file, or leave these out."
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
        return _fit(replace(problem, distant=PairsOfFiles(distant, distant.count())))


def _of_lattice(files: Files, problem: Problem, sample: Transitions, job: Runner) -> Recovery:
    """A fit to the lattice of all files, and its last step over their pairs."""
    progress, head, tail = Progress(len(files.names)), problem.head, problem.settings.tail
    window = None  # of a line: the states of the sample but for excursions, as for pairs in this process
    if head.period is None:
        assert isinstance(problem.train, Transitions)
        window = (float(problem.train.x.min()), float(problem.train.x.max()))
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
