"""The progress bar of a fit: one line for the present phase, with rate, remaining time at most, and likelihood.

The bar takes the columns that the rest leaves, so that 80 hold the whole line. The line goes away at the end of the
fit, and is not drawn into files and pipes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from levytorch.training.fit import Fit

_FORMAT = "{desc}: {n_fmt}/{total_fmt} |{bar}| {elapsed}<{remaining}, {rate_fmt}{postfix}"


Item = TypeVar("Item")


def counted_off(items: Sequence[Item], what: str, progress: bool) -> Iterable[Item]:
    """The items one after the other, beside a bar that says how many are done."""
    if not progress:
        return items
    from tqdm import tqdm

    return tqdm(items, desc=what, leave=False, disable=None)  # not into files and pipes


class ProgressLine:
    """Drawn with tqdm."""

    def __init__(self, fit: Fit) -> None:
        self._start(fit)

    def _start(self, fit: Fit) -> None:
        from tqdm import tqdm

        self._phase = phase = fit.phase
        unit = "pass" if phase.engine.full_batch else "step"
        self._bar: Any = tqdm(
            desc=phase.label,
            total=phase.max_steps,
            initial=phase.steps,
            unit=unit,
            leave=False,
            disable=None,  # where the output is not a terminal
            bar_format=_FORMAT,
        )

    def update(self, fit: Fit, nll: float) -> None:
        """After a step."""
        if fit.phase is not self._phase:
            self.close()
            self._start(fit)
        if self._bar.disable or math.isnan(nll):
            return
        self._bar.set_postfix({"log p": f"{-nll:.4g}"}, refresh=False)
        self._bar.update(fit.phase.steps - self._bar.n)

    def close(self) -> None:
        self._bar.close()
