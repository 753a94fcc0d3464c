"""What a run in d > 1 dimensions writes: numbers over the cell, fields as a table, figures of the plane, V."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from levytorch.figures import planes
from levytorch.tables import write_csv, write_json
from levytorch.training.recovery import Recovery

_POINTS = 4096


def summary(recovery: Recovery, truth: Any) -> dict[str, Any]:
    """Means over the cell, of b per component, and relative L2 errors when the truth is known."""
    x = recovery.head.grid(_POINTS)
    out: dict[str, Any] = {}
    stds = recovery.std(x) if recovery.covariance is not None else (None, None, None)
    for name, std in zip(("b", "D_o", "D_f"), stds):
        found = getattr(recovery, name)(x)
        labels = [name] if found.dim() == 1 else [f"{name}_{i + 1}" for i in range(found.shape[1])]
        for i, label in enumerate(labels):
            pick = slice(None) if found.dim() == 1 else (slice(None), i)
            out[f"mean_{label}"] = float(found[pick].mean())
            if std is not None:
                out[f"mean_std_{label}"] = float(std[pick].mean())
        if truth is not None:
            reference = getattr(truth, name)(x)
            error = float((found - reference).norm() / reference.norm().clamp_min(1e-300))
            out |= {f"error_{label}": error for label in {name, *labels}}
    if not callable(recovery.alpha):
        out["alpha"] = recovery.alpha
        if recovery.covariance is not None:
            out["alpha_std"] = recovery.alpha_std
    return out


def rows(metrics: dict[str, Any]) -> list[str]:
    """Names of the coefficients in a table of these metrics: b, or b_1, b_2, ..."""
    drift = (
        ["b"] if "mean_b" in metrics else sorted(k.removeprefix("mean_") for k in metrics if k.startswith("mean_b_"))
    )
    return [*drift, "D_o", "D_f"]


def write_fields(recovery: Recovery, truth: Any, directory: Path) -> dict[str, Callable[[], Any]]:
    """curves.csv, and what draws the figures of a plane (there is no figure of three dimensions)."""
    if recovery.dim == 2:
        fields = planes.coefficient_fields(recovery, truth)
        write_csv(directory / "curves.csv", planes.field_columns(fields))
        return {"coefficients": lambda: planes.fields(fields)[0]}
    x = recovery.head.grid(_POINTS)
    columns: dict[str, Any] = {f"x_{i + 1}": x[:, i].numpy() for i in range(recovery.dim)}
    for label, source in (("", recovery), ("_truth", truth)):
        if source is None:
            continue
        b = source.b(x)
        columns |= {f"b_{i + 1}{label}": b[:, i].numpy() for i in range(recovery.dim)}
        columns |= {f"{name}{label}": getattr(source, name)(x).numpy() for name in ("D_o", "D_f")}
    write_csv(directory / "curves.csv", columns)
    return {}


def write_value(outcome: Any, value: Any, reference: Any) -> None:
    """value.pt, V on a grid, its contours, the error."""
    directory = outcome.directory
    u, v, height = value.on_grid(96)
    x = torch.stack(torch.meshgrid(u, v, indexing="ij"), dim=-1)
    columns = {"u": x[..., 0].reshape(-1).numpy(), "v": x[..., 1].reshape(-1).numpy(), "V": height.reshape(-1).numpy()}
    if value.covariance_factor is not None:
        columns["V_std"] = value.std(x).reshape(-1).numpy()
    if reference is not None:
        columns["V_truth"] = reference(x).reshape(-1).numpy()
        difference = columns["V"] - columns["V_truth"]
        outcome.metrics["error_V"] = float(np.sqrt(np.mean(difference**2) / np.mean(columns["V_truth"] ** 2)))
    value.save(directory / "value.pt")
    write_csv(directory / "value.csv", columns)
    write_json(directory / "metrics.json", outcome.metrics)
    outcome.publish("value", lambda: planes.contours(value, reference)[0])
