"""Where a fit starts: constants at the scale of the data, curves through groups of states where alpha is learned."""

from __future__ import annotations

from typing import Any

import torch

from levytorch.coefficients import Head, initial_guess
from levytorch.coefficients.basis import per_coordinate
from levytorch.coefficients.head import known_constants
from levytorch.coefficients.init import Guess, thinned
from levytorch.coefficients.leveling import Groups, group_states
from levytorch.data import Transitions
from levytorch.data.lattice import Lattice
from levytorch.training.settings import FitSettings

_PLACES = 48  # states that stand for all of those of a lattice


def guess_from(data: Transitions | Lattice, settings: FitSettings) -> Guess:
    """Constants at the scale of the data; where alpha is learned, D_o and D_f of groups of states beside them."""
    known = {} if isinstance(settings.head, Head) else known_constants(settings.head)
    by_state = settings.alpha.learned and _depends_on_the_state(settings)
    asked, groups = (settings.alpha, settings.tempering), None
    if isinstance(data, Lattice):
        x, dx, dt = data.typical_steps(n_groups=_PLACES if by_state else 1)
        if by_state:
            groups = group_states(x, [(data.origin, data.period)])
        uniform = not data.mu_is_rate
        return initial_guess(dx, dt, data.mu, *asked, uniform_dt=uniform, known=known, groups=groups)
    if by_state:
        groups = groups_of(data, settings)
    mu = torch.as_tensor(data.mu, dtype=torch.float64)
    at = (data.dx, data.dt, float(mu) if data.dim == 1 else mu, *asked)
    return initial_guess(*at, uniform_dt=data.uniform_dt, known=known, groups=groups)


def _depends_on_the_state(settings: FitSettings) -> bool:
    """Whether coefficients of the head are functions; a user's own knows where it starts."""
    if isinstance(settings.head, Head):
        return False
    return settings.head.get("n_basis") != 1 or "n_basis" in settings.left_open


def groups_of(data: Transitions, settings: FitSettings) -> Groups | None:
    """Groups of the states of the pairs that a start is made from."""
    return group_states(thinned(data.x).to(torch.float64), _cells(settings.head, data.dim))


def _cells(head: Any, dim: int) -> list[tuple[float, float | None]]:
    """Origin and period of every coordinate, from plain settings of a head."""
    if head.get("period") is None:
        return [(0.0, None)] * dim
    origins, periods = (per_coordinate(name, head.get(name) or 0.0, dim) for name in ("origin", "period"))
    return list(zip(origins, periods))
