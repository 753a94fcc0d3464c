"""What a Bitcoin run must hold before it is drawn: its directory may come from somebody else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper.plain import read_csv
from levytorch.convert import shown
from levytorch.data.numpy_files import load_arrays
from levytorch.errors import InputError
from levytorch.plain_files import read_json

Array = NDArray[np.float64]
CURVES = ("x", "reference", "reference_exact", "crl", "trivial")
_REWARD = "cosine_power"  # the experiments' own; another could name a file to read or a function to import
_ERRORS = ("relative_l2", "relative_l2_exact")
_OPTIONAL = ("coverage_std", "coverage_bootstrap")


def read_metrics(directory: Path) -> Mapping[str, Any]:
    """metrics.json as a mapping."""
    metrics = read_json(directory / "metrics.json")
    if not isinstance(metrics, Mapping):
        raise _refusal(directory / "metrics.json", "a mapping", metrics)
    return metrics


def check_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Refuse settings from which V could not be computed, or not without importing or reading something else."""
    file = directory / ".hydra" / "config.yaml"
    for key in ("coefficients.period", "beta"):
        if not math.isfinite(number(file, config, key)):
            raise _refusal(file, f"a finite number {key}", _at(config, key))
    for key in ("coefficients.n_basis", "empirical.n_modes"):
        if type(value := _at(config, key)) is not int:
            raise _refusal(file, f"a whole number {key}", value)
    reward = config.get("reward")
    if not isinstance(reward, Mapping) or reward.get("name") != _REWARD:
        raise _refusal(file, f"reward.name={_REWARD}", _at(config, "reward.name"))
    for key, value in reward.items():
        if key != "name" and value is not None:
            number(file, reward, str(key))


def check_metrics(directory: Path, metrics: Mapping[str, Any], compared: bool) -> None:
    """Refuse a metrics.json without the numbers of the table; `compared`: with those of the comparison."""
    file = directory / "metrics.json"
    number(file, metrics, "tcf")
    if not isinstance(metrics.get("tail_method"), str):
        raise _refusal(file, "tail_method", metrics.get("tail_method"))
    if not compared:
        return
    for name in _ERRORS:
        number(file, metrics, f"empirical.{name}")
    own = metrics["empirical"]
    for name in _OPTIONAL:
        if own.get(name) is not None:
            number(file, own, name)
    if "bootstrap" in own:
        number(file, own, "bootstrap.relative_l2_sd")


def check_panel(directory: Path, metrics: Mapping[str, Any]) -> tuple[float, float]:
    """The prices seen, from a run whose numbers of the baselines are those of the panel."""
    file = directory / "metrics.json"
    for baseline in ("crl", "trivial"):
        for name in _ERRORS:
            number(file, metrics, f"empirical.baselines.{baseline}.{name}")
    seen = _at(metrics, "empirical.seen")
    if not isinstance(seen, list) or len(seen) != 2 or not all(_is_number(end) and math.isfinite(end) for end in seen):
        raise _refusal(file, "two prices empirical.seen", seen)
    return float(seen[0]), float(seen[1])


def read_curves(directory: Path) -> dict[str, Array]:
    """The curves of value.csv on a grid that rises."""
    file = directory / "value.csv"
    table = read_csv(file, CURVES)
    curves = {name: np.array(table[name]) for name in CURVES}  # torch wants memory that may be written to
    x = curves["x"]
    finite = all(np.isfinite(curve).all() for curve in curves.values())
    if len(x) < 2 or not finite or (np.diff(x) <= 0).any():
        raise InputError(f"{file} must have finite curves on rising x, found others; run the experiment again.")
    return curves


def read_samples(directory: Path) -> tuple[Array, Array]:
    """x and V of empirical.npz, whose declared sizes are compared with what is there."""
    file = directory / "empirical.npz"
    arrays = load_arrays(file)
    x, V = arrays.get("x"), arrays.get("V")
    if x is None or V is None or x.dtype.kind != "f" or V.dtype.kind != "f":
        raise InputError(f"{file} must have numbers x and V, found {', '.join(arrays) or 'nothing'}; run it again.")
    if x.ndim != 1 or x.shape != V.shape or not len(x) or not (np.isfinite(x).all() and np.isfinite(V).all()):
        raise InputError(f"{file} must have one finite V per x, found shapes {x.shape} and {V.shape}; run it again.")
    return x.astype(np.float64), V.astype(np.float64)


def number(file: Path, content: Mapping[str, Any], key: str) -> float:
    """The number of a dotted key; NaN is one, for a result that could not be computed."""
    value = _at(content, key)
    if not _is_number(value):
        raise _refusal(file, f"a number {key}", value)
    return float(value)


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float)


def _at(content: Any, key: str) -> Any:
    for part in key.split("."):
        content = content.get(part) if isinstance(content, Mapping) else None
    return content


def _refusal(file: Path, wanted: str, found: Any) -> InputError:
    return InputError(f"{file} must have {wanted}, found {shown(found)}; run the experiment again.")
