"""A fit without a trainer: transitions and settings in, a Recovery out. What `recover` runs for full-batch engines."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from torch import Tensor
from torch.optim import Optimizer

from levytorch.data import Transitions
from levytorch.data.batches import FullBatch
from levytorch.data.lattice import Lattice
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.likelihood import Likelihood
from levytorch.ranks import Ranks
from levytorch.training.engines import Engine, build_engine
from levytorch.training.finish import finish
from levytorch.training.history import Clock, entry
from levytorch.training.problem import all_data, prepare
from levytorch.training.recovery import Recovery
from levytorch.training.settings import FitSettings
from levytorch.training.thresholds import reconsidered


def fit_full_batch(
    data: Transitions | Lattice, settings: FitSettings, *, start: Tensor | None = None, ranks: Ranks | None = None
) -> Recovery:
    """Maximise with a full-batch engine; with several ranks each of them calls this."""
    began = time.perf_counter()
    problem = prepare(data, settings, fit_full_batch, start)
    settings, head, ranks = problem.settings, problem.head, ranks or Ranks()
    engine = build_engine(settings.engine)
    law = FrozenLaw(steady_method(settings.density, head), head.dim)
    likelihood = Likelihood(head, law, settings.tail)
    batches = all_data(problem, ranks)
    likelihood.observe(batches.observed, engine.n_bins)
    if not batches.from_lattice:
        likelihood.ranks = ranks
    done = maximise(engine, likelihood, batches.fitted, seed=settings.seed, progress=settings.progress)
    likelihood.ranks = ranks
    recovery = finish(
        *(likelihood, engine, done.optimizer, batches.facts, batches.fitted, done.converged, done.steps),
        samples=batches.samples,
    )
    recovery.history = done.history
    recovery.metrics["seconds"] = time.perf_counter() - began
    problem.judge(likelihood, recovery)
    other = reconsidered(settings.tail, recovery, problem.guessed_CT)
    if not ranks.agree(other is not None):
        return recovery
    assert other is not None
    again = fit_full_batch(data, replace(settings, tail=other), start=head.flat(), ranks=ranks)
    return joined(recovery, again)


def joined(first: Recovery, again: Recovery) -> Recovery:
    """The second of two fits, with the history of both and the comparison of strata that led to it."""
    again.history = first.history + again.history
    again.metrics["missing_between_CT_and_TRT_z"] = first.metrics["missing_between_CT_and_TRT_z"]
    return again


@dataclass
class Maximised:
    """How a maximisation went."""

    optimizer: Optimizer
    converged: bool = False
    steps: int = 0
    history: list[dict[str, float]] = field(default_factory=list)


def maximise(
    engine: Engine, likelihood: Likelihood, batch: FullBatch, *, seed: int = 0, progress: bool = False
) -> Maximised:
    """Steps of a full-batch engine, the TCF updated after each, until it has converged."""
    done, clock = Maximised(engine.optimizer(likelihood)), Clock()
    for step in _steps(engine.max_steps, progress):
        mixed = batch._replace(tcf=likelihood.correction.tcf)
        nll = engine.step(likelihood, done.optimizer, mixed, step, seed)
        done.steps = step + 1
        done.history.append(
            {"step": float(done.steps), **entry(likelihood, done.optimizer, nll), **clock.lap(done.steps, batch.n_main)}
        )
        accepted = getattr(done.optimizer, "accepted", None)
        likelihood.correct(None if accepted is None else accepted.R_theta)
        done.converged = engine.converged(done.optimizer)
        if done.converged:
            break
    return done


def _steps(n: int, progress: bool) -> Iterable[int]:
    if not progress:
        return range(n)
    from tqdm import tqdm

    return tqdm(range(n), desc="passes", leave=False)
