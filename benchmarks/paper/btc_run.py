"""What a Bitcoin run adds to its directory: V, its bands, the empirical values it is judged by, and the numbers."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.paper.btc_values import Comparison, compare_with, value_of
from levytorch.atomic import replacing
from levytorch.errors import LevytorchWarning
from levytorch.figures.values import Band, value_bands
from levytorch.policy.bootstrap import Bootstrap, block_bootstrap
from levytorch.policy.metrics import coverage
from levytorch.runs.run import settings_of
from levytorch.tables import write_csv, write_json
from levytorch.training.fit import fit

log = logging.getLogger("levytorch.train")
STORED = 40_000  # empirical values kept for the figures and for the coverage of bands over runs
SHOWN = 5000  # the paper's number of orange dots
POINTS = 401


def add_empirical_value(outcome: Any, config: Mapping[str, Any]) -> None:
    """value.pt, value.csv, empirical.npz, the figure, and `empirical` in metrics.json."""
    recovery, directory = outcome.recovery, outcome.directory
    comparison = compare_with(config, outcome.source.trajectories)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LevytorchWarning)
        V = value_of(recovery, config, comparison.interval)
        bootstrap = _bootstrap(outcome, config, comparison)
    for doubt in dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, LevytorchWarning)):
        log.warning(doubt)
        outcome.metrics["warnings"].append(doubt)
    curves = _curves(V, bootstrap, comparison)
    outcome.metrics["empirical"] = _numbers(V, bootstrap, comparison)
    V.save(directory / "value.pt")
    write_csv(directory / "value.csv", curves)
    _store_values(directory, comparison)
    write_json(directory / "metrics.json", outcome.metrics)
    outcome.publish("value", lambda: _figure(curves, comparison))
    log.info(summary(outcome.metrics["empirical"]))


def _bootstrap(outcome: Any, config: Mapping[str, Any], comparison: Comparison) -> Bootstrap | None:
    """Refits with the penalty's strengths of the fit itself; none for adam, whose band is that of its random starts."""
    wanted = config["empirical"]["bootstrap"]
    settings = settings_of(config)
    if not wanted["replicas"] or settings.engine["name"] == "adam":
        return None
    recovery = outcome.recovery
    engine = dict(settings.engine)
    if recovery.metrics.get("penalty_strengths"):
        engine["penalty"] = list(recovery.metrics["penalty_strengths"])
    settings = replace(settings, engine=engine, progress=False)
    if recovery.metrics.get("region") == "TRT":  # decided once, by the fit itself; where CT plays TRT's part, it is CT
        kept = replace(settings.tail, CT=None, TRT=recovery.metrics["TRT"], region="TRT")
        settings = replace(settings, tail=kept)
    return block_bootstrap(
        outcome.source.transitions,
        lambda data: fit(data, settings, start=recovery.theta).recovery,
        lambda found: value_of(found, config, comparison.interval),
        replicas=wanted["replicas"],
        block=wanted["block"],
        seed=config["seed"],
        progress=config["trainer"]["progress"],
    )


def _curves(V: Any, bootstrap: Bootstrap | None, comparison: Comparison) -> dict[str, Any]:
    x = torch.linspace(*comparison.interval, POINTS, dtype=torch.float64)
    curves = {"x": x.numpy(), "V": V(x).numpy()}
    if V.covariance_factor is not None:
        curves["V_std"] = V.std(x).numpy()
    if bootstrap is not None:
        curves["V_bootstrap_sd"] = bootstrap.std(x).numpy()
    for name in ("reference", "reference_exact", "crl", "trivial"):
        curves[name] = getattr(comparison, name)(x).numpy()
    return curves


def _numbers(V: Any, bootstrap: Bootstrap | None, comparison: Comparison) -> dict[str, Any]:
    inside = (comparison.values.x >= comparison.interval[0]) & (comparison.values.x <= comparison.interval[1])
    x, target = comparison.values.x[inside], comparison.values.V[inside]
    out: dict[str, Any] = {
        **comparison.errors(V),
        "interval": list(comparison.interval),
        "seen": list(comparison.seen),
        "n_values": int(inside.sum()),
        "n_modes": V.n_modes,
        "residual": V.residual,
        "condition": V.condition,
        "baselines": {name: comparison.errors(getattr(comparison, name)) for name in ("trivial", "crl")},
    }
    if V.covariance_factor is not None:
        out["coverage_std"] = band_coverage(V, V.std, x, target)
        out["coverage_of_reference_std"] = _of_reference(V, V.std, comparison)
    if bootstrap is not None:
        errors = [comparison.errors(replica)["relative_l2"] for replica in bootstrap.values]
        out["coverage_bootstrap"] = band_coverage(V, bootstrap.std, x, target)
        out["coverage_of_reference_bootstrap"] = _of_reference(V, bootstrap.std, comparison)
        out["bootstrap"] = {
            "kind": "block bootstrap: blocks of consecutive transitions, refitted",
            "replicas": len(bootstrap.values),
            "block": bootstrap.block,
            "failed": bootstrap.failed,
            "unconverged": bootstrap.unconverged,
            "relative_l2_mean": float(np.mean(errors)),
            "relative_l2_sd": float(np.std(errors, ddof=1)),
            "alpha_sd": float(np.std([float(r.alpha) for r in bootstrap.recoveries], ddof=1)),
            "tcf_sd": float(np.std([r.tcf for r in bootstrap.recoveries], ddof=1)),
        }
    return out


def band_coverage(V: Any, std: Any, x: Tensor, target: Tensor) -> float:
    """Fraction of the targets within V +- one standard deviation, both interpolated on a fine grid."""
    grid = torch.linspace(float(x.min()), float(x.max()), 2001, dtype=torch.float64)
    center, width = (torch.from_numpy(np.interp(x.numpy(), grid.numpy(), f(grid).numpy())) for f in (V, std))
    return coverage(target, center, width)


def _of_reference(V: Any, std: Any, comparison: Comparison) -> float:
    """Share of the interval on which the exactly discounted reference lies within the band: what V estimates."""
    x = torch.linspace(*comparison.interval, 2001, dtype=torch.float64)
    return band_coverage(V, std, x, comparison.reference_exact(x))


def _store_values(directory: Any, comparison: Comparison) -> None:
    """A random part of the empirical values, the first SHOWN of them for the figure."""
    order = torch.randperm(len(comparison.values.x), generator=torch.Generator().manual_seed(0))[:STORED]
    with replacing(directory / "empirical.npz") as temporary, temporary.open("wb") as stream:
        np.savez_compressed(
            stream,
            x=comparison.values.x[order].numpy(),
            V=comparison.values.V[order].numpy(),
            V_exact=comparison.exact.V[order].numpy(),
        )


def _figure(curves: Mapping[str, Any], comparison: Comparison) -> Any:
    order = torch.randperm(len(comparison.values.x), generator=torch.Generator().manual_seed(0))[:SHOWN]
    bands = [Band("recovered", curves["V"], curves.get("V_std"), "± sd")]
    if "V_bootstrap_sd" in curves:
        bands.append(Band("recovered", curves["V"], curves["V_bootstrap_sd"], "± block bootstrap sd"))
    return value_bands(
        curves["x"],
        bands,
        reference=curves["reference"],
        reference_label="empirical reference",
        baselines={"r / beta": curves["trivial"], "CRL": curves["crl"]},
        samples=(comparison.values.x[order].numpy(), comparison.values.V[order].numpy()),
        support=comparison.seen,
    )[0]


def summary(numbers: Mapping[str, Any]) -> str:
    """What a terminal shows."""
    low, high = numbers["interval"]
    trivial, crl = (numbers["baselines"][name]["relative_l2"] for name in ("trivial", "crl"))
    bands = [
        f"{label} {numbers[key]:.2%}"
        for key, label in (("coverage_std", "± sd"), ("coverage_bootstrap", "± block bootstrap sd"))
        if key in numbers
    ]
    return (
        f"V against the empirical reference on [{low:,.0f}, {high:,.0f}]: relative L2 error "
        f"{numbers['relative_l2']:.2%} ({numbers['relative_l2_exact']:.2%} against exactly discounted sums); "
        f"r / beta {trivial:.2%}, CRL {crl:.2%}; coverage {', '.join(bands) or 'unknown'}"
    )
