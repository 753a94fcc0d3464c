"""The value function of a run, in one and two dimensions: policy/ computes it, figures/ draws it, this writes it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from levytorch.figures import planes
from levytorch.figures.coefficients import observed_parts
from levytorch.figures.values import Band, value_bands
from levytorch.files import write_csv, write_json
from levytorch.policy.plane_rewards import build_plane_reward, check_plane_reward
from levytorch.policy.rewards import RewardContext, build_reward, check_logged_reward
from levytorch.policy.solver import solve_value
from levytorch.runs.report import Outcome, relative_error

log = logging.getLogger("levytorch.train")
Columns = dict[str, np.ndarray[Any, Any]]


def check_data(config: Mapping[str, Any], data: Any) -> None:
    """Refuse, before the fit, what the value function at its end could not be computed from."""
    if config["beta"] is None:
        return
    if config["empirical"] is not None:
        from benchmarks.paper.btc_values import check_series

        check_series(data.trajectories)
    elif data.transitions.dim == 2:
        check_plane_reward(config["reward"])
    elif data.transitions.dim == 1:
        check_logged_reward(config["reward"], data.transitions)


def add_value(outcome: Outcome, config: Mapping[str, Any]) -> None:
    """V of the recovered dynamics into the run directory, when a reward can be made from what is known."""
    recovery, truth, beta = outcome.recovery, outcome.source.dynamics, config["beta"]
    if beta is None:
        return
    if config["empirical"] is not None:
        from benchmarks.paper.btc_run import add_empirical_value

        add_empirical_value(outcome, config)
        return
    if truth is None and config["reward"]["name"] == "manufactured":
        log.info(
            "no value function: a manufactured reward needs a known system; choose one with reward=... (docs/policy.md)"
        )
        return
    if recovery.dim > 2:
        log.info("no value function: solve_value works in one and two dimensions")
        return
    if recovery.dim == 2:
        reward = build_plane_reward(config["reward"], recovery, truth, beta)
    else:
        context = RewardContext(recovery.period, recovery.origin, beta, truth, outcome.source.transitions)
        reward = build_reward(config["reward"], context)
    V = solve_value(recovery, reward, beta)
    V_truth = None if truth is None else solve_value(truth, reward, beta)
    curves = write_value(outcome.directory / "value", V, V_truth)
    if "V_truth" in curves:
        outcome.metrics["error_V"] = relative_error(curves["V"], curves["V_truth"])
    write_json(outcome.directory / "metrics.json", outcome.metrics)
    outcome.publish("value", lambda: _draw(V, V_truth, curves, recovery.support))


def write_value(stem: Path, V: Any, V_truth: Any = None) -> Columns:
    """<stem>.pt and, on a grid, <stem>.csv with standard errors and the truth where they are known; returns the latter.

    The grid is the cell (the window, where V has one), or 96 x 96 points of the plane.
    """
    if len(np.atleast_1d(V.period)) == 2:
        u, v, _ = V.on_grid(96)
        x = torch.stack(torch.meshgrid(u, v, indexing="ij"), dim=-1)
        columns = {"u": x[..., 0], "v": x[..., 1]}
    else:
        low, high = V.window or (V.origin, V.origin + V.period)
        x = torch.linspace(low, high, 401, dtype=torch.float64)
        columns = {"x": x}
    columns["V"] = V(x)
    if V.covariance_factor is not None:
        columns["V_std"] = V.std(x)
    if V_truth is not None:
        columns["V_truth"] = V_truth(x)
    curves = {name: column.reshape(-1).numpy() for name, column in columns.items()}
    V.save(stem.with_name(f"{stem.name}.pt"))
    write_csv(stem.with_name(f"{stem.name}.csv"), curves)
    return curves


def _draw(V: Any, V_truth: Any, curves: Columns, support: Any) -> Any:
    if "u" in curves:
        return planes.contours(V, V_truth)[0]
    width = 1.96 * curves["V_std"] if "V_std" in curves else None
    band = Band("recovered", curves["V"], width, "95 % band")
    return value_bands(
        curves["x"],
        [band],
        reference=curves.get("V_truth"),
        reference_label="truth",
        observed=observed_parts(support, V.origin, V.period),
    )[0]
