"""What a saved recovery may hold: sizes and numbers are checked before they are believed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import Head, build_head
from levytorch.coefficients.clock import Modulation
from levytorch.coefficients.head import KNOWABLE
from levytorch.convert import number_within, real_tensor, shown
from levytorch.data.memory import Memory
from levytorch.data.thresholds import threshold_from
from levytorch.errors import InputError

INDEFINITE = 1e-4  # smallest eigenvalue of the correlations, below zero, that rounding may explain
_SMALL = 1000  # functions that cost nothing, whatever the file holds
_SMALLEST_ALPHA, _LARGEST_UNIT = 1e-6, 1e30
_LONGEST = 100  # letters of the name of a law
_METHODS = ("none", "tcf", "conditional")


def stored_head(config: Any, n_parameters: int) -> Head:
    """The head that a file describes, built only if it is no larger than its parameters in the file."""
    if not isinstance(config, Mapping):
        raise InputError(f"head must be a mapping of settings, found {shown(config)}; fit again.")
    width, depth = (config.get(key, 1) if isinstance(config.get(key, 1), int) else 1 for key in ("width", "depth"))
    sizes = [config.get(key, 1) for key in ("n_basis", "n_basis_alpha", "degree", "n_features")]
    largest = max((size for size in sizes if isinstance(size, int)), default=1)
    if (depth - 1) * width * max(width, 1) > n_parameters or largest > max(n_parameters, _SMALL):
        raise InputError(
            f"the head must have the {n_parameters} parameters that the file holds, found one with more; fit again."
        )
    number_within("alpha of the head", config.get("alpha", 0.5), f"[{_SMALLEST_ALPHA}, 1)", "fit again")
    for unit in ("length", "time"):
        number_within(
            f"{unit} of the head", config.get(unit, 1.0), f"[{1 / _LARGEST_UNIT}, {_LARGEST_UNIT}]", "fit again"
        )
    if config.get("name") == "mlp":  # files that were written before there was a choice
        config = {"activation": "tanh", **config}
    return build_head(config)


def stored_theta(theta: Any) -> Tensor:
    """One finite number per parameter."""
    values = real_tensor("theta", theta)
    if values.ndim != 1 or not bool(torch.isfinite(values).all()):
        raise InputError("theta must be one finite number per parameter of the head, found others; fit again.")
    return values


def stored_covariance(covariance: Any, n_parameters: int) -> Tensor | None:
    """A symmetric matrix of finite numbers without negative variances, or None."""
    if covariance is None:
        return None
    values = real_tensor("covariance", covariance)
    if values.shape != (n_parameters, n_parameters) or not bool(torch.isfinite(values).all()):
        raise InputError("covariance must have a finite row and column per parameter, found others; fit again.")
    scale = values.diagonal().clamp(min=0.0).sqrt()
    scale = torch.where(scale > 0, scale, 1.0)
    correlation = values / scale / scale.unsqueeze(1)
    symmetric = bool((correlation - correlation.T).abs().max() <= INDEFINITE) if n_parameters else True
    lifted = 0.5 * (correlation + correlation.T) + INDEFINITE * torch.eye(n_parameters, dtype=torch.float64)
    if not symmetric or bool(torch.linalg.cholesky_ex(lifted).info):
        raise InputError(
            "covariance must be symmetric and have no negative variances, found another matrix; fit again."
        )
    return values


def stored_metrics(metrics: Any) -> dict[str, Any]:
    """Metrics, of which those that are computed with are what a fit writes."""
    if not isinstance(metrics, Mapping) or not all(isinstance(key, str) for key in metrics):
        raise InputError(f"metrics must be named values, found {shown(metrics)}; fit again.")
    for key, sound in _METRICS.items():
        value = metrics.get(key)
        missing = value is None and (key not in metrics or key not in _ALWAYS)
        if not missing and not sound(value):
            raise InputError(f"metrics must be those of a fit, found {key} = {shown(value)}; fit again.")
    low, high = metrics.get("x_min"), metrics.get("x_max")
    if ("x_min" in metrics or "x_max" in metrics) and (low is None or high is None or low > high):
        raise InputError("metrics must have a range of states from x_min to x_max, found another; fit again.")
    return dict(metrics)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    return _number(value) and math.isfinite(value)


def _positive(value: Any) -> bool:
    return _finite(value) and value > 0


def _count(value: Any) -> bool:
    return _finite(value) and 0 <= value < 2**53


def _strengths(value: Any) -> bool:
    given = value if isinstance(value, list | tuple) else [value]
    return isinstance(value, str) or all(_number(one) and one >= 0 for one in given)


def _states(value: Any) -> bool:
    """Numbers, or rows of as many numbers each."""
    if not isinstance(value, list) or not 0 < len(value) <= 4096:
        return False
    if len({isinstance(row, list) for row in value}) > 1:
        return False
    rows = [row if isinstance(row, list) else [row] for row in value]
    return all(len(row) == len(rows[0]) <= 3 and all(map(_finite, row)) for row in rows)


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) and name in KNOWABLE for name in value)


def _counts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) and _count(n) for key, n in value.items())


def _at_zero(value: Any) -> bool:
    """What boundary.include_vanished writes of coefficients that have vanished, or are near zero."""
    if not isinstance(value, Mapping) or not _names(list(value)):
        return False
    return all(
        isinstance(one, Mapping)
        and all(_number(one.get(key)) and one[key] >= 0 for key in ("std", "upper"))
        and _number(one.get("missing", 0.0))
        and isinstance(one.get("moves"), list)
        and all(map(_finite, one["moves"]))
        for one in value.values()
    )


def _threshold(value: Any) -> bool:
    try:
        return isinstance(value, Mapping) and threshold_from(value) is not None
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
        return False


def _modulation(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    try:
        found = Modulation.from_plain(value)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError):
        return False
    n = found.clock.size
    shape = (n, n) if found.covariance is None else tuple(found.covariance.shape)
    return shape == (n, n) and len(found.clock.slopes) == n and _positive(found.period)


def _memory(value: Any) -> bool:
    try:
        rule, profile = Memory.from_plain(value["rule"]), value["profile"]
        return profile is None or len([float(one) for one in profile["std"]]) == len(rule.half_lives)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError):
        return False


def _observation_noise(value: Any) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("learned"), bool):
        return False
    return all(_number(value.get(key)) and value[key] >= 0 for key in ("value", "std")) and (
        value["value"] > 0 or _number(value.get("upper"))
    )


_METRICS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("x_min", "x_max", "shared/chi2", "parameters"), _finite),
    **dict.fromkeys(("CT", "TRT"), _positive),
    **dict.fromkeys(("n_main", "n_tail", "CT_halvings", "steps"), _count),
    **dict.fromkeys(("alpha_at_bound", "tempering_upper"), _number),
    "seed": lambda value: isinstance(value, int),
    "vanishing": _names,
    "left_out": _counts,
    "at_zero": _at_zero,
    "near_zero": _at_zero,
    "mu": lambda value: all(map(_number, value if isinstance(value, list | tuple) else [value])),  # one per coordinate
    **dict.fromkeys(("D_o_D_f_correlation", "tempering_z", "missing_between_CT_and_TRT_z"), _number),
    "left_out_of_series": lambda value: isinstance(value, list | tuple) and all(map(_count, value)),
    "penalty_strengths": _strengths,
    "states": _states,
    "CT_of_dt": _threshold,
    "modulation": _modulation,
    "memory": _memory,
    "drift": lambda value: value == "mean",
    "observation_noise": _observation_noise,
    "law": lambda value: (
        isinstance(value, str) and len(value) <= _LONGEST
    ),  # the name may be that of a law of the user's own
    "tail_method": lambda value: isinstance(value, str) and value in _METHODS,
    **dict.fromkeys(
        ("not_converged", "remedy", "region", "engine", "law_reason"), lambda value: isinstance(value, str)
    ),
}
# metrics that are never None
_ALWAYS = {"law", "states", "n_main", "steps", "parameters", "engine", "vanishing", "at_zero", "left_out_of_series"}
