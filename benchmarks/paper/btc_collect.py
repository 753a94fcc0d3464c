"""Finished Bitcoin runs below a directory, sorted by experiment, engine, treatment of tails and number of functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.paper.btc_checks import (
    check_config,
    check_metrics,
    check_panel,
    read_curves,
    read_metrics,
    read_samples,
)
from benchmarks.paper.btc_values import value_of
from levytorch.errors import InputError
from levytorch.plain_files import LARGEST
from levytorch.runs.directories import load_run

Array = NDArray[np.float64]
EXPERIMENTS = {"btc_first6000": "first 6000 transitions", "btc_random60000": "random 60,000 transitions"}
ARMS = {"tcf": "with TCF", "none": "without TCF", "conditional": "conditional likelihood"}


@dataclass(frozen=True)
class BtcRun:
    """One run: its settings, its numbers, and V on the grid of its panel."""

    path: Path
    config: Mapping[str, Any]
    metrics: Mapping[str, Any]
    V: Array
    alpha: float

    @property
    def key(self) -> tuple[bool, str, int]:
        """(adam, tail method, number of basis functions)."""
        adam = self.metrics.get("engine") == "adam"
        return adam, str(self.metrics["tail_method"]), int(self.config["coefficients"]["n_basis"])


@dataclass(frozen=True)
class Panel:
    """One experiment: the curves V is compared with, the empirical values, and all runs."""

    experiment: str
    curves: dict[str, Array]
    samples: tuple[Array, Array]
    seen: tuple[float, float]
    baselines: Mapping[str, Any]
    runs: list[BtcRun] = field(default_factory=list)

    def group(self, adam: bool, tail: str, n_basis: int) -> list[BtcRun]:
        return [run for run in self.runs if run.key == (adam, tail, n_basis)]

    @property
    def n_basis(self) -> int:
        return max(run.key[2] for run in self.runs)

    def error(self, V: Array, reference: str = "reference") -> float:
        """Relative L2 error on the grid (trapezoidal ends)."""
        weight = np.ones_like(V)
        weight[[0, -1]] = 0.5
        size = np.sqrt((weight * self.curves[reference] ** 2).sum())
        return float(np.sqrt((weight * (V - self.curves[reference]) ** 2).sum()) / size)

    def coverage(self, center: Array, width: Array) -> float:
        """Fraction of the stored empirical values within the band."""
        x, V = self.samples
        at = [np.interp(x, self.curves["x"], curve) for curve in (center, width)]
        return float(np.mean(np.abs(V - at[0]) <= at[1]))


def panels(root: Path) -> list[Panel]:
    """A panel per experiment of which `root` holds a finished run with empirical values."""
    found: dict[str, list[tuple[Path, Mapping[str, Any], Mapping[str, Any]]]] = {}
    for file in sorted(root.rglob("recovery.pt")):
        place = file.parent
        if not (place / "metrics.json").is_file() or not (place / ".hydra" / "config.yaml").is_file():
            continue
        if not any(part.startswith("btc") for part in place.parts):
            with (place / ".hydra" / "config.yaml").open("rb") as stream:
                head = stream.read(LARGEST)
            if b"experiment: btc" not in head:
                continue
        run = load_run(place)
        name = run.config.get("experiment")
        if name in EXPERIMENTS and isinstance(run.config.get("empirical"), Mapping):
            metrics = read_metrics(place)
            found.setdefault(str(name), []).append((place, run.config, metrics))
    return [_panel(name, found[name]) for name in EXPERIMENTS if name in found and _complete(found[name])]


def _complete(rows: Sequence[tuple[Path, Mapping[str, Any], Mapping[str, Any]]]) -> list[Path]:
    return [path for path, _, m in rows if "empirical" in m and (path / "empirical.npz").is_file()]


def _panel(name: str, rows: Sequence[tuple[Path, Mapping[str, Any], Mapping[str, Any]]]) -> Panel:
    """The curves come from the first complete run: all runs of an experiment share the file of prices."""
    first = _complete(rows)[0]
    metrics = next(m for path, _, m in rows if path == first)
    seen = check_panel(first, metrics)
    curves = read_curves(first)
    panel = Panel(name, curves, read_samples(first), seen, metrics["empirical"]["baselines"])
    x = torch.from_numpy(curves["x"])
    for path, config, metrics in rows:
        adam, compared = metrics.get("engine") == "adam", path in _complete(rows)
        if not adam and not compared:
            continue  # fitted, but not yet compared
        check_config(path, config)
        check_metrics(path, metrics, not adam)
        recovery = load_run(path).recovery
        if not isinstance(recovery.alpha, float):
            raise InputError(f"{path} must have one alpha, found a function of x; run the experiment again.")
        V = value_of(recovery, config, (float(x[0]), float(x[-1])))
        panel.runs.append(BtcRun(path, config, metrics, V(x).numpy(), recovery.alpha))
    return panel
