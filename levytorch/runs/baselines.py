"""What one would use instead of the model, on the data of an evaluation: the estimates that V stands beside."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from levytorch.data import Transitions
from levytorch.errors import InputError, NumericalError
from levytorch.policy.data_value import DataValue, LineDataValue
from levytorch.policy.from_data import prepare
from levytorch.policy.reference import Function, coverage, relative_l2
from levytorch.runs.reading import Run

log = logging.getLogger("levytorch.evaluate")
ALONE, WITH_MODEL = ("lstd", "phibe", "brownian"), ("hybrid", "corrected")
_POINTS = 401


def baselines_of(
    runs: Sequence[Run], transitions: Transitions, reward: Callable[..., Any], beta: float
) -> dict[str, DataValue | LineDataValue]:
    """V of the data by its name: without a model, and with that of a single run. What cannot be had is told."""
    recovery = runs[0].recovery
    start = time.perf_counter()
    try:
        asked = prepare(transitions, reward, beta, recovery)
    except InputError as error:
        log.info(f"no baselines from the data: {error}")
        return {}
    found: dict[str, DataValue | LineDataValue] = {}
    for method in (*ALONE, *(WITH_MODEL if len(runs) == 1 else ())):
        try:
            V = asked.value(method)
        except (InputError, NumericalError) as error:
            log.info(f"no baseline {method}: {error}")
            continue
        found[V.name] = V
    log.info(f"baselines from {len(transitions):,} pairs in {time.perf_counter() - start:.1f} s")
    return found


def numbers(
    found: Mapping[str, DataValue | LineDataValue], reference: Function | None, low: float, high: float
) -> dict[str, dict[str, Any]]:
    """What metrics.json says of each: the error, the share of the reference within its 95 % band, the note, and the
    mean of V over the interval beside the (root mean square of the) standard error of V there.
    """
    x = torch.linspace(low, high, _POINTS, dtype=torch.float64)
    out: dict[str, dict[str, Any]] = {}
    for name, V in found.items():
        error = covered = None
        if reference is not None:
            error = relative_l2(V, reference, low, high)
            covered = coverage(reference(x), V(x), 1.96 * V.std(x))
        level = {"mean": float(V(x).mean()), "std": float(V.std(x).square().mean().sqrt())}
        out[name] = {"method": V.method, "relative_l2": error, "coverage": covered, "note": V.note, "V": level}
    return out
