"""The data of a run, simulated once more from its configuration; only levytorch's own simulator is ever called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.paper.collect import Record
from levytorch.data import Transitions
from levytorch.dynamics import SYSTEMS, Dynamics
from levytorch.errors import InputError
from levytorch.runs.directories import SIMULATED

_NUMBERS = ("n_trajectories", "n_steps", "dt", "substeps", "x0", "seed", "burn_in", "chains", "proposal_scale", "reach")
_CENSOR = ("TRT", "CT", "drop_tail", "seed")


def true_dynamics(record: Record) -> Dynamics:
    """The system the run's data came from: one of the paper's, by its name."""
    name, alpha = record.setting("dynamics.name"), record.setting("dynamics.alpha", 0.3)
    if record.setting("data._target_", SIMULATED[0]) not in SIMULATED or name not in SYSTEMS or not _number(alpha):
        raise InputError(
            f"the data of {record.path} must have been simulated from one of {', '.join(SYSTEMS)}, but is not; "
            "give another run."
        )
    return Dynamics.named(name, alpha=float(alpha))


def transitions_of(record: Record) -> Transitions:
    """The transitions the run was fitted to, censored as it says."""
    from levytorch.simulation import Simulated

    dynamics = true_dynamics(record)
    options: dict[str, Any] = {}
    for key in (*_NUMBERS, "thinning"):
        value = record.setting(f"data.{key}")
        if value is not None:
            options[key] = _checked(record, f"data.{key}", value)
    options["sampler"] = str(record.setting("data.sampler", "euler"))
    censor = record.setting("data.censor")
    if isinstance(censor, Mapping):
        names = [key for key in _CENSOR if record.setting(f"data.censor.{key}") is not None]
        options["censor"] = {
            key: _checked(record, f"data.censor.{key}", record.setting(f"data.censor.{key}")) for key in names
        }
    return Simulated(dynamics, **options)().transitions


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checked(record: Record, key: str, value: Any) -> Any:
    if not _number(value):
        raise InputError(f"{key} of {record.path} must be a number, but is {value!r}; give another run.")
    return value
