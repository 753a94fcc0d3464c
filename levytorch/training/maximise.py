"""A fit without a trainer: transitions and settings in, a Recovery out. What `recover` runs for full-batch engines."""

from __future__ import annotations

import time
from dataclasses import replace

from torch import Tensor

from levytorch.data import Transitions
from levytorch.data.lattice import Lattice
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.likelihood import Likelihood
from levytorch.ranks import Ranks
from levytorch.training.blocks import MOST_PAIRS, Blocks
from levytorch.training.engines import build_engine
from levytorch.training.engines.base import engine_facts, joined_history, maximise
from levytorch.training.finish import Ended
from levytorch.training.law_choice import check_exact, conclude
from levytorch.training.modulation import check_modulation, modulate
from levytorch.training.problem import Problem, all_data, problem_of
from levytorch.training.recovery import Recovery
from levytorch.training.resampling import blocks_from
from levytorch.training.selection import Selection, select
from levytorch.training.settings import FitSettings
from levytorch.training.start import inside, reconsidered


def fit_full_batch(
    data: Transitions | Lattice, settings: FitSettings, *, start: Tensor | None = None, ranks: Ranks | None = None
) -> Recovery:
    """Maximise with a full-batch engine; with several ranks each of them calls this."""
    began = time.perf_counter()
    if settings.modulation is not None:
        check_modulation(data, settings)
        settings = replace(settings, law="frozen")
    problem, ranks = problem_of(data, settings, fit_full_batch, start), ranks or Ranks()
    batches = all_data(problem, ranks)
    selection = None
    if problem.settings.left_open:
        problem, selection = select(problem, batches.blocks)
    settings, head = problem.settings, problem.head
    engine = build_engine(settings.engine)
    if settings.law == "exact":
        check_exact(head, data, started=settings.init == "data")
    law = FrozenLaw(steady_method(settings.density, head), head.dim)
    likelihood = Likelihood(head, law, settings.tail)
    likelihood.observe(batches.observed, engine.n_bins)
    if not batches.from_lattice:
        likelihood.ranks = ranks
    done = maximise(engine, likelihood, batches.fitted, seed=settings.seed, progress=settings.progress)
    whole = isinstance(data, Lattice)  # on every rank, and no pairs behind it
    likelihood.ranks = Ranks() if whole else ranks
    ended = Ended(*(likelihood, engine, done, batches.fitted, batches.observed, batches.facts, batches.samples, ranks))
    blocks = None if batches.blocks is None else replace(batches.blocks, law=law, treatment=settings.tail)
    recovery, _ = concluded(ended, problem, data, selection, began, blocks)
    other = reconsidered(settings.tail, recovery, problem.guessed_CT)
    if not ranks.agree(other is not None):
        return recovery
    assert other is not None
    again = fit_full_batch(data, replace(settings, tail=other), start=head.flat(), ranks=ranks)
    return joined(recovery, again)


def concluded(
    ended: Ended,
    problem: Problem,
    data: Transitions | Lattice,
    selection: Selection | None,
    began: float,
    blocks: Blocks | None = None,
) -> tuple[Recovery, Likelihood]:
    """The recovery under the law of the settings, with what the whole fit says about itself; and its likelihood.

    began: when the fit was, by `time.perf_counter`.
    """
    settings = problem.settings
    recovery, likelihood = ended.frozen() if settings.law == "frozen" else conclude(ended, settings, data)
    recovery.blocks, recovery.history = blocks, joined_history(ended.done.history, recovery.history)
    recovery.metrics |= engine_facts(ended.engine, settings.engine_reason)
    if selection is not None:
        recovery.metrics["selection"] = selection.summary()
    if settings.modulation is not None:
        pairs = data if recovery.period is not None else inside(data, recovery.head.bounds)
        assert isinstance(pairs, Transitions)
        modulate(recovery, pairs, settings)
        recovery.blocks = blocks_from(recovery, pairs) if len(pairs) <= MOST_PAIRS else None
    recovery.metrics["seconds"] = time.perf_counter() - began
    problem.judge(likelihood, recovery)
    return recovery, likelihood


def joined(first: Recovery, again: Recovery) -> Recovery:
    """The second of two fits, with the history of both and the comparison of strata that led to it."""
    again.history = joined_history(first.history, again.history)
    for key in ("missing_between_CT_and_TRT_z", "selection"):
        if key in first.metrics:
            again.metrics[key] = first.metrics[key]
    return again
