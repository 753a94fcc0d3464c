"""The value function of a run, in one and two dimensions: policy/ computes it, figures/ draws it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from levytorch.figures import planes
from levytorch.figures.coefficients import observed_parts
from levytorch.figures.values import Band, value_bands
from levytorch.files import write_json
from levytorch.policy.checks import is_line
from levytorch.policy.metrics import relative_error
from levytorch.policy.rewards import RewardContext, build_reward, check_reward_with_data
from levytorch.policy.solver import solve_value
from levytorch.runs.empirical import add_empirical_value, check_series
from levytorch.runs.report import Columns, Outcome, write_value

log = logging.getLogger("levytorch.train")


def check_value_data(config: Mapping[str, Any], data: Any) -> None:
    """Refuse, before the fit, what the value function at its end could not be computed from."""
    if config["beta"] is None:
        return
    if config["empirical"] is not None:
        check_series(data, config)
    elif data.transitions.dim <= 2:
        check_reward_with_data(config["reward"], data.transitions.dim, data.transitions)


def add_value(outcome: Outcome, config: Mapping[str, Any]) -> None:
    """V of the recovered dynamics into the run directory, when a reward can be made from what is known."""
    recovery, truth, beta = outcome.recovery, outcome.source.dynamics, config["beta"]
    if beta is None:
        return
    if config["empirical"] is not None:
        add_empirical_value(outcome, config)
        return
    if (truth is None or is_line(truth)) and config["reward"]["name"] == "manufactured":
        log.info(
            "no value function: a manufactured reward needs a known system on a cell; choose one with reward=... "
            "(docs/policy.md)"
        )
        return
    if recovery.dim > 2:
        log.info("no value function: solve_value works in one and two dimensions")
        return
    transitions, dim = outcome.source.transitions, recovery.dim
    context = RewardContext(recovery.period, recovery.origin, beta, truth, transitions, dim)
    reward = build_reward(config["reward"], context)
    V = solve_value(recovery, reward, beta)
    same = {"window": V.window} if V.period is None else {}  # on a line V depends on where its window ends
    V_truth = None if truth is None else solve_value(truth, reward, beta, **same)
    curves = write_value(outcome.directory / "value", V, {} if V_truth is None else {"V_truth": V_truth})
    if "V_truth" in curves:
        outcome.metrics["error_V"] = relative_error(curves["V"], curves["V_truth"])
        if "V_std" in curves:  # the size of error that the data leads one to expect, in the same norm
            outcome.metrics["std_V"] = relative_error(curves["V_truth"] + curves["V_std"], curves["V_truth"])
    write_json(outcome.directory / "metrics.json", outcome.metrics)
    outcome.publish("value", lambda: _draw(V, V_truth, curves, outcome))


def _draw(V: Any, V_truth: Any, curves: Columns, outcome: Outcome) -> Any:
    if "u" in curves:
        return planes.contours(V, V_truth, units=outcome.units)[0]
    width = 1.96 * curves["V_std"] if "V_std" in curves else None
    band = Band("recovered", curves["V"], width, "95 % band")
    return value_bands(
        curves["x"],
        [band],
        reference=curves.get("V_truth"),
        reference_label="truth",
        observed=observed_parts(outcome.recovery.support, V.origin, V.period),
        units=outcome.units,
    )[0]
