"""The cell on which coefficients are periodic, beside the states that were seen."""

from __future__ import annotations

import warnings
from typing import Any

from levytorch.errors import LevytorchWarning

_TINY = 1e-3  # of the period: a cell that the data hardly touches


def check_cell(head: Any, x_min: float, x_max: float) -> None:
    """Warn where coefficients that depend on x are folded, or spread over a cell that the data hardly touches.

    For data whose system is not known to be periodic: that of a file.
    """
    if getattr(head, "n_basis", 2) == 1 or not getattr(head, "periodic", True):
        return  # constants, or a head that does not repeat
    seen, share = f"x runs from {x_min:.6g} to {x_max:.6g}", (x_max - x_min) / head.period
    if share > 1:
        warnings.warn(
            f"{seen}, farther than the period {head.period:.6g}: states one period apart are given the same "
            "coefficients; unless the system repeats, set coefficients.period and coefficients.origin to a cell that "
            "holds all x.",
            LevytorchWarning,
            stacklevel=2,
        )
    elif share < _TINY:
        warnings.warn(
            f"{seen}, which is {share:.1g} of the period {head.period:.6g}: coefficients cannot change within so small "
            "a part of their cell; set coefficients.period and coefficients.origin to a cell a little wider than x.",
            LevytorchWarning,
            stacklevel=2,
        )
