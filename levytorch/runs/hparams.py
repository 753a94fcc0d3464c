"""What TensorBoard's hparams table shows of a run: few columns, the ones that tell runs apart first.

The table opens with five settings and five results, in the order of their names; .hydra/config.yaml and metrics.json
have everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

# column -> where it stands in the configuration; the first that exists
SETTINGS: dict[str, tuple[str, ...]] = {
    "1 engine": ("engine.name",),
    "2 tail": ("tail.method",),
    "3 n_basis": ("coefficients.n_basis", "coefficients.width"),
    "4 alpha": ("alpha",),
    "5 seed": ("seed",),
    "arm": ("arm",),
    "coefficients": ("coefficients.name",),
    "data": ("data.path", "dynamics.name"),
    "density": ("density.method",),
    "dt": ("data.dt",),
    "experiment": ("experiment",),
    "lr": ("engine.lr",),
    "max_steps": ("engine.max_steps",),
    "n_trajectories": ("data.n_trajectories",),
    "period": ("coefficients.period",),
}
# column -> field of metrics.json; log_likelihood is per pair, or runs of different sizes could not be compared
RESULTS: dict[str, str] = {
    "error_b": "error_b",
    "error_D_o": "error_D_o",
    "error_D_f": "error_D_f",
    "log_likelihood_per_pair": "log_likelihood",
    "converged": "converged",
    "alpha": "alpha",
    "tcf": "tcf",
    "mean_b": "mean_b",
    "mean_D_o": "mean_D_o",
    "mean_D_f": "mean_D_f",
    "steps": "steps",
    "seconds": "seconds",
}


def settings_row(config: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of SETTINGS that this configuration has."""
    row = {}
    for column, keys in SETTINGS.items():
        for key in keys:
            value = _at(config, key)
            if value is not None:
                row[column] = value if isinstance(value, (int, float, str, bool)) else str(value)
                break
    return row


def results_row(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The columns of RESULTS that this run has, as finite numbers under final/."""
    row = {}
    for column, key in RESULTS.items():
        value = metrics.get(key)
        if isinstance(value, (int, float)) and math.isfinite(value):
            pairs = metrics.get("n_main", 1) if column == "log_likelihood_per_pair" else 1
            row[f"final/{column}"] = float(value) / pairs
    return row


def _at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
