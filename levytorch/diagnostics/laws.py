"""Which law of steps describes the data: Gaussian, stable, tempered, and two that are not this package's model.

Student's t and the normal inverse Gaussian law, both fitted with a location and a scale by SciPy, stand beside constant
coefficients: where they describe the steps better, independent steps of this model class are not what the data is.
"""

from __future__ import annotations

from typing import Any

import torch

from levytorch.data import Trajectories, Transitions
from levytorch.diagnostics.compare import Extra, compare_on
from levytorch.diagnostics.comparison import Comparison
from levytorch.diagnostics.law_table import other_laws
from levytorch.diagnostics.sample import Sample
from levytorch.training.api import recover
from levytorch.training.recovery import Recovery


def compare_laws(data: Transitions | Trajectories, *, n_basis: int = 1, **options: Any) -> Comparison:
    """Fit and compare the laws on the same pairs: log-likelihood per pair with its standard error, and AIC.

    Args:
        data: transitions or trajectories.
        n_basis: of the coefficients; 1 gives constants, for which Student's t and the normal inverse Gaussian law
            (d = 1, all dt alike, no lost tails) are compared, too.
        options: of `recover`, without alpha and tempering, which are learned.

    >>> from levytorch import Dynamics, simulate
    >>> steps = simulate(Dynamics(0.0, 0.1, 1.0, 0.45, tempering=0.4), 400, 20, 0.25, seed=1)
    >>> found = compare_laws(steps)
    >>> min(found.rows, key=lambda row: row.aic).model
    'tempered'
    """
    transitions = data.transitions() if isinstance(data, Trajectories) else data
    named: dict[str, Recovery] = {
        "stable": recover(transitions, alpha="learn", n_basis=n_basis, **options),
        "tempered": recover(transitions, alpha="learn", tempering="learn", n_basis=n_basis, **options),
    }
    constants = n_basis == 1 and transitions.dim == 1 and transitions.uniform_dt
    return compare_on(named, transitions, _others if constants else None)


def _others(sample: Sample) -> list[Extra]:
    if bool((sample.label != 0).any()):  # strata: these laws know nothing of lost tails
        return []
    dx = sample.dx.numpy()
    return [Extra(law.name, torch.from_numpy(law.log_prob(dx)), 3.0) for law in other_laws(dx)]
