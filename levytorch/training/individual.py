"""One fit per trajectory, in one call, with a table: do individuals differ by more than their errors?"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import chdtrc

from levytorch.convert import path_of
from levytorch.data import Trajectories, Transitions
from levytorch.errors import InputError, LevytorchError
from levytorch.files import write_csv
from levytorch.training.api import recover
from levytorch.training.recovery import Recovery

_NAMES = ("b", "D_o", "D_f", "alpha")
_SOME = 2000  # states of a trajectory over which coefficients are averaged


@dataclass
class Individual:
    """Means of b, D_o, D_f and alpha over the states of one trajectory, and their standard errors (NaN: none)."""

    name: Any
    pairs: int
    mean: dict[str, float]
    std: dict[str, float]
    log_likelihood: float
    converged: bool


@dataclass
class Individuals(Mapping[Any, Recovery]):
    """Recoveries by the name of their trajectory; refused: those that could not be fitted, and why."""

    recoveries: dict[Any, Recovery]
    rows: list[Individual]
    refused: dict[Any, str] = field(default_factory=dict)

    def __getitem__(self, name: Any) -> Recovery:
        return self.recoveries[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.recoveries)

    def __len__(self) -> int:
        return len(self.recoveries)

    def same(self, name: str) -> tuple[float, float]:
        """The mean of b, D_o, D_f or alpha over all, weighted by its precision, and p of that all have the same."""
        known = [(row.mean[name], row.std[name]) for row in self.rows if 0 < row.std[name] < math.inf]
        if len(known) < 2:
            return (known[0][0] if known else math.nan), math.nan
        weight = sum(1 / s**2 for _, s in known)
        mean = sum(m / s**2 for m, s in known) / weight
        return mean, float(chdtrc(len(known) - 1, sum(((m - mean) / s) ** 2 for m, s in known)))

    def columns(self) -> dict[str, list[Any]]:
        """The table, column by column."""
        out: dict[str, list[Any]] = {"id": [row.name for row in self.rows], "pairs": [row.pairs for row in self.rows]}
        for name in _NAMES:
            out[name] = [row.mean[name] for row in self.rows]
            out[f"{name}_std"] = [row.std[name] for row in self.rows]
        out["log_likelihood_per_pair"] = [row.log_likelihood / row.pairs for row in self.rows]
        out["converged"] = [int(row.converged) for row in self.rows]
        return out

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the table."""
        target = path_of(path)
        write_csv(target, self.columns())
        return target

    def __str__(self) -> str:
        width = max([2, *(len(str(row.name)) for row in self.rows)])
        head = f"{'id':<{width}}{'pairs':>10}" + "".join(f"{name:>12}{'+-':>10}" for name in _NAMES)
        lines = [head]
        for row in self.rows:
            cells = "".join(f"{row.mean[name]:>12.4g}{row.std[name]:>10.2g}" for name in _NAMES)
            lines.append(f"{row.name!s:<{width}}{row.pairs:>10,}{cells}" + ("" if row.converged else "  not converged"))
        tests = [(name, *self.same(name)) for name in _NAMES]
        alike = ", ".join(f"{name} {mean:.4g} (p = {p:.2g})" for name, mean, p in tests if math.isfinite(p))
        if alike:
            lines.append(f"the same for all: {alike}")
        return "\n".join([*lines, *(f"{name!s:<{width}}  refused: {why}" for name, why in self.refused.items())])


def recover_each(data: Trajectories | Transitions, **options: Any) -> Individuals:
    """`recover` for every trajectory by itself; options: those of `recover`.

    Trajectories that cannot be fitted (too few pairs) are in `refused`. `print` shows the table, `to_csv` writes it.

    >>> from levytorch import Dynamics, simulate
    >>> found = recover_each(simulate(Dynamics.named("constant"), 2, 2000, 1 / 40, seed=1), alpha=0.3, n_basis=1)
    >>> len(found), found.same("D_o")[1] > 1e-4
    (2, True)
    """
    transitions = data.transitions() if isinstance(data, Trajectories) else data
    if not isinstance(transitions, Transitions):
        raise InputError(f"data must be Trajectories or Transitions, found {type(data).__name__}; pass one of these.")
    names = data.ids if isinstance(data, Trajectories) else None
    found = Individuals({}, [])
    for k in transitions.membership.occurring().tolist():
        pairs = transitions[torch.from_numpy(transitions.membership.among(np.array([k])))]
        name = names[k] if names is not None else k
        try:
            recovery = recover(pairs, **options)
        except LevytorchError as error:
            found.refused[name] = str(error)
            continue
        found.recoveries[name] = recovery
        found.rows.append(_row(name, recovery, pairs))
    if not found.rows:
        raise InputError(
            f"at least one trajectory must be fitted, found none of {len(found.refused)} (the first: "
            f"{next(iter(found.refused.values()))}); use longer ones, or fit all together."
        )
    return found


def _row(name: Any, recovery: Recovery, pairs: Transitions) -> Individual:
    if not isinstance(recovery, Recovery):
        raise InputError("data must have no actions for one fit per trajectory, found some; pass actions=None.")
    x = pairs.x[:: max(1, len(pairs) // _SOME)]
    values = recovery.coefficients(x)
    mean = {key: float(getattr(values, key).mean()) for key in _NAMES}
    std = dict.fromkeys(_NAMES, math.nan)
    full = recovery.with_boundary()
    if full.covariance is not None:
        for key, J in zip(_NAMES, full.jacobian(x)):
            slope = J.reshape(-1, J.shape[-1]).mean(0)
            std[key] = float((slope @ full.covariance @ slope).clamp(min=0.0).sqrt())
        for key, found in (recovery.metrics.get("at_zero", {}) | recovery.metrics.get("near_zero", {})).items():
            std[key] = math.inf if math.isinf(found["std"]) else std[key]
        if not callable(recovery.alpha_std):
            std["alpha"] = recovery.alpha_std  # infinite where the data says nothing about it
    return Individual(name, len(pairs), mean, std, recovery.log_likelihood, recovery.converged)
