"""levytorch: recover heavy-tailed stochastic dynamics from trajectories and evaluate policies on them.

    dX = b(X) dt + Sigma(X) dW + sigma(X) dL^alpha,    D_o = Sigma Sigma^T / 2,    D_f = |sigma|^(2 alpha)

Names are imported when they are first used, so that `import levytorch` costs no more than torch itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOME = {
    "log_density": "levytorch.law",
    "score": "levytorch.law",
    "tail_probability": "levytorch.law",
    "cutting_threshold": "levytorch.law",
    "LevyStep": "levytorch.law",
    "Dynamics": "levytorch.dynamics",
    "ControlledDynamics": "levytorch.controlled",
    "transition_density": "levytorch.likelihood.exact",
    "simulate": "levytorch.simulation",
    "Trajectories": "levytorch.data",
    "Transitions": "levytorch.data",
    "Lattice": "levytorch.data.lattice",
    "recover": "levytorch.training",
    "diagnose": "levytorch.diagnostics",
    "Recovery": "levytorch.training",
    "check": "levytorch.diagnostics.jumps_check",
    "compare": "levytorch.diagnostics.compare",
    "solve_value": "levytorch.policy",
    "value_from_data": "levytorch.policy.from_data",
    "improve": "levytorch.policy.improve",
    "ControlledRecovery": "levytorch.training.controlled",
    "ContinuousRecovery": "levytorch.training.continuous",
    "ValueFunction": "levytorch.policy",
    "LevytorchError": "levytorch.errors",
    "InputError": "levytorch.errors",
    "LevytorchWarning": "levytorch.errors",
}

__all__ = [
    "ContinuousRecovery",
    "ControlledDynamics",
    "ControlledRecovery",
    "Dynamics",
    "InputError",
    "Lattice",
    "LevyStep",
    "LevytorchError",
    "LevytorchWarning",
    "Recovery",
    "Trajectories",
    "Transitions",
    "ValueFunction",
    "__version__",
    "check",
    "compare",
    "cutting_threshold",
    "diagnose",
    "improve",
    "log_density",
    "recover",
    "score",
    "simulate",
    "solve_value",
    "tail_probability",
    "transition_density",
    "value_from_data",
]

if TYPE_CHECKING:
    from levytorch.controlled import ControlledDynamics
    from levytorch.data import Trajectories, Transitions
    from levytorch.data.lattice import Lattice
    from levytorch.diagnostics import diagnose
    from levytorch.diagnostics.compare import compare
    from levytorch.diagnostics.jumps_check import check
    from levytorch.dynamics import Dynamics
    from levytorch.errors import InputError, LevytorchError, LevytorchWarning
    from levytorch.law import LevyStep, cutting_threshold, log_density, score, tail_probability
    from levytorch.likelihood.exact import transition_density
    from levytorch.policy import ValueFunction, solve_value
    from levytorch.policy.from_data import value_from_data
    from levytorch.policy.improve import improve
    from levytorch.simulation import simulate
    from levytorch.training import Recovery, recover
    from levytorch.training.continuous import ContinuousRecovery
    from levytorch.training.controlled import ControlledRecovery


def __getattr__(name: str) -> Any:
    if name in ("datasets", "distributed"):  # modules with functions of their own
        return import_module(f"levytorch.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'levytorch' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
