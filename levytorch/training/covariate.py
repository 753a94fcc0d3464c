"""The covariate of pairs, and pairs freed of what it does to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.errors import InputError

if TYPE_CHECKING:
    from levytorch.training.recovery import Recovery


def covariate_of(transitions: Transitions) -> Tensor:
    """(n,) the covariate of each pair: what its action column holds."""
    action = transitions.action
    if not isinstance(action, Tensor) or action.ndim > 1:
        found = "none" if action is None else "two" if action.ndim > 1 else f"names such as {transitions.actions[0]!r}"
        raise InputError(
            f"a modulation must have one number per pair, found {found}; give the covariate as action=... where the "
            "trajectories are made."
        )
    return action.to(torch.float64)


def unmodulated(recovery: Recovery, transitions: Transitions) -> Transitions:
    """Pairs that are without modulation what these are with it, under the frozen law; these themselves without one."""
    modulation = recovery.modulation
    if modulation is None:
        return transitions
    more = (modulation(covariate_of(transitions)) - 1) * transitions.dt
    dx = transitions.dx + recovery.b(transitions.x) * more
    return Transitions._build(
        transitions.x,
        dx,
        transitions.dt + more,
        transitions.membership,
        dropped=transitions.dropped,
    )
