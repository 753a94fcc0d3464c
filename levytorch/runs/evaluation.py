"""Evaluate one or many recoveries: V of each, bands per group, errors against the truth or the empirical reference; and
beside them what one would use instead of the model, on the data of the evaluation.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.errors import InputError, NumericalError
from levytorch.figures.values import FEWEST_FOR_A_BAND, Band
from levytorch.policy.checks import is_line
from levytorch.policy.empirical import crl_baseline, trivial_baseline
from levytorch.policy.estimation import DataValue
from levytorch.policy.from_data import prepare
from levytorch.policy.reference import Function, Reference, coverage, relative_l2
from levytorch.policy.solver import solve_value
from levytorch.policy.value import ValueFunction
from levytorch.runs.reading import Run
from levytorch.spaces.basis import FourierBasis

log = logging.getLogger("levytorch.evaluate")
ALONE, WITH_MODEL = ("lstd", "phibe", "brownian"), ("hybrid", "corrected")
_POINTS = 400  # at which the curves of an evaluation are written and drawn


@dataclass(frozen=True)
class EvaluatedRuns:
    """Value functions of all runs and what is reported about them."""

    runs: Sequence[Run]
    values: Sequence[ValueFunction]
    labels: Sequence[str]
    x: Tensor
    interval: tuple[float, float]
    reference: Reference | None
    baselines: Mapping[str, Function]
    from_data: Mapping[str, DataValue] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    def bands(self) -> list[Band]:
        """One band per group: mean +- sd over replicas (the figure shows a few one by one), or a single run with its
        95 % band.
        """
        bands = []
        for label in group_order(self.labels):
            members = [V for V, own in zip(self.values, self.labels) if own == label]
            mean, spread, name = _band(members, self.x)
            curves = [V(self.x).numpy() for V in members]
            bands.append(Band(label, mean.numpy(), None if spread is None else spread.numpy(), name, curves))
        return bands

    def curves(self) -> dict[str, np.ndarray[Any, Any]]:
        """The numbers behind the figures, column by column."""
        table = {"x": self.x.numpy()}
        if self.reference is not None:
            table["reference"] = self.reference.curve(self.x).numpy()
        for name, curve in self.baselines.items():
            table[name] = curve(self.x).numpy()
        for name, other in self.from_data.items():
            table[name], table[f"{name} std"] = other(self.x).numpy(), other.std(self.x).numpy()
        for band in self.bands():
            key = band.label.replace(" ", "_")
            table[f"{key}_mean"] = band.center
            if band.half_width is not None:
                table[f"{key}_{'sd' if band.band_label == 'mean ± sd' else 'half_width_95'}"] = band.half_width
        for number, V in enumerate(self.values):
            table[f"run{number}"] = V(self.x).numpy()
        return table


def group_order(labels: Sequence[str]) -> list[str]:
    """Every label once: with TCF before the rest, numbers by size, everything else by name."""

    def key(label: str) -> tuple[bool, float, str]:
        try:
            number = float(label.rpartition(" = ")[2])
        except ValueError:
            number = math.inf
        return label != "with TCF", number, label

    return sorted(set(labels), key=key)


def _band(values: Sequence[ValueFunction], x: Tensor) -> tuple[Tensor, Tensor | None, str]:
    if len(values) > 1:
        curves = torch.stack([V(x) for V in values])
        return curves.mean(0), curves.std(0), "mean ± sd"
    V = values[0]
    if V.covariance_factor is None:
        return V(x), None, ""
    return V(x), 1.96 * V.std(x), "95 % band"


def true_reference(
    truth: Any,
    reward: Callable[[Tensor], Any],
    beta: float,
    window: tuple[float, float] | None,
    tolerance: float,
) -> Reference:
    """V of the true system: on the whole cell, where its coefficients are known, also when runs are solved on a window.

    The equation on a window alone does not determine V. Only a reward that is not known elsewhere leaves no choice.
    """
    if is_line(truth):
        return Reference(solve_value(truth, reward, beta, window=window, tolerance=tolerance), "true V")
    try:
        return Reference(solve_value(truth, reward, beta, tolerance=tolerance), "true V")
    except InputError:
        if window is None:
            raise
    V = solve_value(truth, reward, beta, window=window, tolerance=tolerance)
    return Reference(V, "true system on the window")


def evaluate_runs(
    runs: Sequence[Run],
    reward: Callable[[Tensor], Any],
    beta: float,
    *,
    n_modes: int | None = None,
    window: tuple[float, float] | None = None,
    tolerance: float = 1e-6,
    group_by: str = "tail",
    reference: Reference | None = None,
    observed: Tensor | None = None,
    crl_basis: FourierBasis | None = None,
    from_data: Mapping[str, DataValue] | None = None,
) -> EvaluatedRuns:
    """Solve V for every run and compare.

    group_by: "tail" (with and without TCF) or a dotted key of the runs' configuration. observed: numbers of the
    observations that the model-free baseline CRL may see (empirical reference only); without them there is no CRL.
    from_data: estimates of the same V by other methods.
    """
    if not runs:
        raise InputError("run must name at least one run, found none; check the run pattern.")
    labels = [run.tail_label if group_by == "tail" else _label(run, group_by) for run in runs]
    values = [
        solve_value(run.recovery, reward, beta, n_modes=n_modes, window=window, tolerance=tolerance) for run in runs
    ]
    first = values[0]
    low, high = window or first.window or (first.origin, first.origin + first.period)
    if reference is not None and reference.values is not None:
        # A fit to data says nothing where there is none
        low, high = max(low, float(reference.values.x.min())), min(high, float(reference.values.x.max()))
        if not low < high:
            raise InputError(
                "window must lie within the data, found no value that starts in it; choose another, or a "
                "shorter horizon."
            )
    x = torch.linspace(low, high, _POINTS + 1, dtype=torch.float64)
    baselines: dict[str, Function] = {"trivial": trivial_baseline(reward, beta)}
    # Without a choice of observations CRL would be the reference itself
    if reference is not None and reference.values is not None and observed is not None:
        basis = crl_basis or FourierBasis(11, first.period, first.origin)
        baselines["CRL"] = crl_baseline(reference.values, basis, observed)
    result = EvaluatedRuns(runs, values, labels, x, (low, high), reference, baselines, from_data or {})
    result.metrics.update(_metrics(result, beta))
    return result


def baselines_of(
    runs: Sequence[Run], transitions: Transitions, reward: Callable[..., Any], beta: float
) -> dict[str, DataValue]:
    """V of the data by its name: without a model, and with that of a single run. What is impossible is logged."""
    recovery = runs[0].recovery
    start = time.perf_counter()
    try:
        asked = prepare(transitions, reward, beta, recovery)
    except InputError as error:
        log.info(f"no baselines from the data: {error}")
        return {}
    found: dict[str, DataValue] = {}
    for method in (*ALONE, *(WITH_MODEL if len(runs) == 1 else ())):
        try:
            V = asked.value(method)
        except (InputError, NumericalError) as error:
            log.info(f"no baseline {method}: {error}")
            continue
        found[V.name] = V
    log.info(f"baselines from {len(transitions):,} pairs in {time.perf_counter() - start:.1f} s")
    return found


def _label(run: Run, key: str) -> str:
    absent = object()
    value = run.setting(key, absent)
    if value is absent:
        raise InputError(
            f"group_by must be a key of every run's configuration, found no {key} in {run.path}; give one."
        )
    return f"{key} = {value}"


def _metrics(result: EvaluatedRuns, beta: float) -> dict[str, Any]:
    reference = result.reference

    def error_of(V: Function) -> float | None:
        return None if reference is None else relative_l2(V, reference.curve, *result.interval)

    errors = [error_of(V) for V in result.values]
    groups: dict[str, Any] = {}
    for label in group_order(result.labels):
        members = [i for i, own in enumerate(result.labels) if own == label]
        values, own = [result.values[i] for i in members], np.array([errors[i] for i in members], dtype=float)
        groups[label] = {
            "runs": len(members),
            "relative_l2_mean": float(own.mean()),
            "relative_l2_sd": float(own.std(ddof=1)) if len(own) > 1 else None,
            "relative_l2_of_mean": error_of(_mean(values)),
            "coverage": _coverage(result, values),
            "V": _level(values, result.x),
        }
    beside: dict[str, dict[str, Any]] = {}
    for name, other in result.from_data.items():
        covered = None
        if reference is not None:
            covered = coverage(reference.curve(result.x), other(result.x), 1.96 * other.std(result.x))
        beside[name] = {"method": other.method, "relative_l2": error_of(other), "coverage": covered}
        beside[name] |= {"note": other.note, "V": _level([other], result.x)}
    return {
        "beta": beta,
        "interval": list(result.interval),
        "reference": None if reference is None else reference.label,
        "groups": groups,
        "baselines": {name: error_of(curve) for name, curve in result.baselines.items()},
        "from_data": beside,
        "runs": [
            {
                "path": str(run.path),
                "group": label,
                "relative_l2": error,
                "n_modes": V.n_modes,
                "residual": getattr(V, "residual", None),  # of a series in the cell
                "condition": getattr(V, "condition", None),
                "change": V.change,
                "converged": V.converged,
                "recovery_converged": bool(run.recovery.converged),
                "tcf": float(run.recovery.tcf),
            }
            for run, label, V, error in zip(result.runs, result.labels, result.values, errors)
        ],
    }


def _mean(values: Sequence[Function]) -> Function:
    return lambda x: torch.stack([V(x) for V in values]).mean(0)


def _level(values: Sequence[Any], x: Tensor) -> dict[str, float | None]:
    """The mean of V over x, and its standard error there (root mean square): that of a single run, or from replicas."""
    curves = torch.stack([V(x) for V in values])
    if len(values) > 1:
        std = curves.std(0) / len(values) ** 0.5
    else:
        std = None if values[0].covariance_factor is None else values[0].std(x)
    return {"mean": float(curves.mean()), "std": None if std is None else float(std.square().mean().sqrt())}


def _coverage(result: EvaluatedRuns, values: Sequence[ValueFunction]) -> float | None:
    """Fraction of the empirical values (or of the points of the true curve) within the group's band, if it has one."""
    if result.reference is None or 1 < len(values) < FEWEST_FOR_A_BAND:
        return None
    empirical = result.reference.values
    low, high = result.interval
    if empirical is None:
        x, target = result.x, result.reference.curve(result.x)
    else:
        inside = (empirical.x >= low) & (empirical.x <= high)
        x, target = empirical.x[inside], empirical.V[inside]
    if len(x) == 0:
        return None
    center, half_width, _ = _band(values, x)
    return None if half_width is None else coverage(target, center, half_width)
