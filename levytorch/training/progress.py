"""The progress bar of a fit: one line for the present phase, with rate, remaining time and likelihood.

The line goes away at the end of the fit, and is not drawn into files and pipes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levytorch.training.fit import Fit

_FORMAT = "{desc}: {n_fmt} of at most {total_fmt} |{bar:20}| {elapsed}<{remaining}, {rate_fmt}{postfix}"


class ProgressLine:
    """Drawn with tqdm when `show` is set."""

    def __init__(self, fit: Fit, show: bool) -> None:
        self._bar: Any = None
        self._phase: Any = None
        self._show = show
        if show:
            self._start(fit)

    def _start(self, fit: Fit) -> None:
        from tqdm import tqdm

        phase = self._phase = fit.phase
        unit = "pass" if phase.engine.full_batch else "step"
        self._bar = tqdm(
            desc=f"{phase.engine.name}, {phase.name} law",
            total=phase.max_steps,
            initial=phase.steps,
            unit=unit,
            leave=False,
            disable=None,  # where the output is not a terminal
            bar_format=_FORMAT,
        )

    def update(self, fit: Fit, nll: float) -> None:
        """After a step."""
        if not self._show:
            return
        if fit.phase is not self._phase:
            self.close()
            self._start(fit)
        if self._bar.disable:
            return
        shown = {"log-likelihood per pair": -nll}
        if fit.tail.method == "tcf":
            shown["TCF"] = float(fit.likelihood.correction.tcf)
        self._bar.set_postfix({name: f"{value:.5g}" for name, value in shown.items()}, refresh=False)
        self._bar.update(fit.phase.steps - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


@contextmanager
def progress_bar(fit: Fit, show: bool) -> Iterator[ProgressLine]:
    """A bar for the length of a fit."""
    line = ProgressLine(fit, show)
    try:
        yield line
    finally:
        line.close()
