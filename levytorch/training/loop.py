"""The loop of a full-batch engine: steps on its batch, the TCF updated after each; and what a fit says of itself at
every step, in this loop or in Lightning's: likelihood, TCF, mean coefficients, speed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch.optim import Optimizer

from levytorch.data.batches import FullBatch
from levytorch.likelihood.likelihood import Likelihood
from levytorch.training.engines import Engine


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


class Clock:
    """Milliseconds per step and pairs per second between two entries."""

    def __init__(self, step: int = 0) -> None:
        self.step, self.then = step, time.perf_counter()

    def lap(self, step: int, pairs: float) -> dict[str, float]:
        now = time.perf_counter()
        steps, seconds = step - self.step, now - self.then
        self.step, self.then = step, now
        if steps <= 0:
            return {}
        return {"time/step_ms": 1e3 * seconds / steps, "time/samples_per_s": pairs * steps / seconds}


def entry(likelihood: Likelihood, optimizer: Optimizer, nll: float) -> dict[str, float]:
    """The state of a fit after a step."""
    # fisher knows the TCF of the parameters it has just accepted; the correction is updated after the step
    accepted = getattr(optimizer, "accepted", None)
    tcf = float(likelihood.correction.tcf if accepted is None else accepted.tcf)
    R_sample = 0.0 if likelihood.masses is None else likelihood.masses.R_sample
    values = {"train/nll": nll, "tail/TCF": tcf, "tail/R_sample": R_sample}
    if likelihood.tail.method == "tcf":
        values["tail/R_theta"] = tcf * (1 - R_sample) + R_sample
    return values | likelihood.mean_coefficients()


def followed(first: list[dict[str, float]], later: list[dict[str, float]]) -> list[dict[str, float]]:
    """One history of two fits, the second of which went on where the first had ended: its steps count on."""
    done = first[-1]["step"] if first else 0.0
    return first + [{**one, "step": one["step"] + done} for one in later]
