"""The law that a recovery answers for its data with."""

from __future__ import annotations

from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.training.recovery import Recovery


def law_of(recovery: Recovery) -> FrozenLaw | ExactLaw:
    """For `log_prob(recovery.head, x, dx, dt)` and the masses beyond: exact unless the fit was frozen. Of coefficients
    that are corrected the exact law is right, the frozen one is not.

    An ExactLaw chooses its grid for the head and the dt it is asked for, and keeps its tables until they change.
    """
    if recovery.law == "frozen" or recovery.shift is not None:  # corrected where the exact law is not to be had
        return FrozenLaw(steady_method("auto", recovery.head), recovery.dim)
    return ExactLaw()
