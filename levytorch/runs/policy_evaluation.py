"""evaluate.py on a run with actions: several policies, one table, one figure, differences with their errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from levytorch.controlled import ControlledDynamics
from levytorch.data import Trajectories
from levytorch.errors import ConfigError
from levytorch.figures.base import draw
from levytorch.figures.base import write as write_figure
from levytorch.files import write_json
from levytorch.policy.checks import check_beta, check_window
from levytorch.policy.named import check_policies
from levytorch.policy.rewards import RewardContext, build_reward
from levytorch.runs import page
from levytorch.runs.directory import write_marker
from levytorch.runs.policies import PolicyResult, evaluate_policies
from levytorch.runs.reading import Run
from levytorch.runs.report import units_of
from levytorch.runs.tensorboard import write_image

log = logging.getLogger("levytorch.evaluate")


def evaluate(settings: Mapping[str, Any], runs: Sequence[Run]) -> PolicyResult:
    """V of the policies on the one run; refuses settings that are for runs without actions."""
    if len(runs) > 1:
        raise ConfigError(
            f"policies are compared on one run, found {len(runs)} of which some have actions; evaluate them one by one."
        )
    (run,) = runs
    recovery, beta = run.recovery, check_beta(settings["beta"])
    if settings["rates"]["enabled"]:
        raise ConfigError("rates.enabled is a study of its own, found it with a run with actions; leave one out.")
    transitions = None
    if settings["data"]["path"] is not None:
        given = {key: value for key, value in settings["data"]["options"].items() if value is not None}
        transitions = Trajectories.from_file(settings["data"]["path"], **given).transitions()
        if transitions.action is None:
            raise ConfigError(
                "data.path must have actions as the run has, found none; name them: data.options.action=."
            )
    actions = tuple(getattr(recovery, "actions", ()))
    context = RewardContext(recovery.period, recovery.origin, beta, None, transitions, recovery.dim, actions)
    reward = build_reward(settings["reward"], context)
    window = settings["window"]
    if window is not None and recovery.period is not None:
        raise ConfigError(f"window is for a state on a line, found {window} and a period; leave it out.")
    if window is not None:
        support = (recovery.metrics["x_min"], recovery.metrics["x_max"]) if not actions else recovery.support
        window = None if window == "data" else check_window(window, float("inf"), support)
    truth = run.truth()
    known = truth if isinstance(truth, ControlledDynamics) else None
    policies = check_policies(settings.get("policy"))
    return evaluate_policies(recovery, policies, reward, beta, known, window=window, n_modes=settings["n_modes"])


def write(settings: Mapping[str, Any], runs: Sequence[Run], out: Path) -> None:
    """Everything into one directory: metrics.json, policies.csv, policy_values.csv, values/, figures/, the page."""
    result = evaluate(settings, runs)
    write_marker(out, settings)
    metrics = result.metrics()
    write_json(out / "metrics.json", metrics)
    result.write(out)
    told = result.text()
    log.info(told)
    figures = {name: make() for name, make in result.drawings(units_of(runs[0].config.get("data") or {})).items()}
    drawn = {name: draw(fig) for name, fig in figures.items()}
    formats = ("png", "pdf") if settings["figures"]["format"] == "pdf" else ("png",)
    for name, fig in figures.items():
        write_figure(drawn[name], fig, out / "figures" / name, formats)
    if settings["tensorboard"]:
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(out / "tensorboard")) as writer:
            for name, one in drawn.items():
                write_image(writer, f"evaluation/{name}", one)
            for number, row in enumerate(metrics["policies"]):
                writer.add_scalar("evaluation/mean_V", row["mean V"], number)
    page.write_evaluation(out, settings, None, {name: one.png for name, one in drawn.items()}, told)
