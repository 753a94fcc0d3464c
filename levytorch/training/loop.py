"""The loop of a full-batch engine: steps on its batch, the TCF updated after each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch.optim import Optimizer

from levytorch.data.batches import FullBatch
from levytorch.likelihood.likelihood import Likelihood
from levytorch.training.engines import Engine
from levytorch.training.history import Clock, entry


@dataclass
class Maximised:
    """How a maximisation went."""

    optimizer: Optimizer
    converged: bool = False
    steps: int = 0
    history: list[dict[str, float]] = field(default_factory=list)

    @property
    def R_theta(self) -> float | None:
        """Of the last evaluation, where the engine keeps one."""
        return getattr(getattr(self.optimizer, "accepted", None), "R_theta", None)


def maximise(
    engine: Engine, likelihood: Likelihood, batch: FullBatch, *, seed: int = 0, progress: bool = False
) -> Maximised:
    """Steps of a full-batch engine, the TCF updated after each, until it has converged."""
    done, clock = Maximised(engine.optimizer(likelihood)), Clock()
    steps = _steps(engine.max_steps, progress)
    for step in steps:
        mixed = batch._replace(tcf=likelihood.correction.tcf)
        nll = engine.step(likelihood, done.optimizer, mixed, step, seed)
        done.steps = step + 1
        done.history.append(
            {"step": float(done.steps), **entry(likelihood, done.optimizer, nll), **clock.lap(done.steps, batch.n_main)}
        )
        accepted = getattr(done.optimizer, "accepted", None)
        likelihood.correct(None if accepted is None else accepted.R_theta)
        done.converged = engine.converged(done.optimizer)
        if progress:
            steps.set_postfix_str(f"log-likelihood per pair {-nll:.6g}", refresh=False)  # type: ignore[attr-defined]
        if done.converged:
            break
    return done


def _steps(n: int, progress: bool) -> Iterable[int]:
    if not progress:
        return range(n)
    from tqdm import tqdm

    return tqdm(range(n), desc="passes", leave=False, disable=None)  # not into files and pipes
