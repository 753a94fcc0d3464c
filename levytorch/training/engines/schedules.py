"""Learning rates as functions of the step alone, so that a resumed run needs nothing but its step."""

from __future__ import annotations

import math
from collections.abc import Callable

_WARM_UP = 0.3  # of all steps, in which a one-cycle schedule rises
_FIRST, _LAST = 1 / 25, 1 / 25e4  # of the largest learning rate


def _between(start: float, end: float, part: float) -> float:
    """Half a cosine from start (part = 0) to end (part = 1)."""
    return end + 0.5 * (start - end) * (1.0 + math.cos(math.pi * part))


def constant(step: int, n_steps: int) -> float:
    return 1.0


def cosine(step: int, n_steps: int) -> float:
    """From the largest learning rate to zero."""
    return _between(1.0, 0.0, min(step, n_steps) / n_steps)


def one_cycle(step: int, n_steps: int) -> float:
    """Up and then down to nearly zero, as torch.optim.lr_scheduler.OneCycleLR does with its defaults."""
    top, last = _WARM_UP * n_steps - 1, n_steps - 1
    step = min(step, last)
    if step <= top:
        return _between(_FIRST, 1.0, step / top) if top > 0 else 1.0
    return _between(1.0, _LAST, (step - top) / (last - top))


# name -> the part of the largest learning rate at a step of so many
SCHEDULES: dict[str, Callable[[int, int], float]] = {"constant": constant, "cosine": cosine, "one_cycle": one_cycle}
