"""What a fit says about itself at each step: likelihood, TCF, mean coefficients, speed."""

from __future__ import annotations

import time

from torch.optim import Optimizer

from levytorch.likelihood.likelihood import Likelihood


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
