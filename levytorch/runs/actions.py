"""A training run on data with actions: one fit per action, each in a directory of its own, then the policies.

actions/<i>/ of the run directory is a run of its own for the i-th label, with checkpoints, figures and diagnostics. A
resumed run takes those that are done as they are and goes on with the others, to the same numbers.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from levytorch.controlled import ControlledDynamics
from levytorch.data import SourceData, Transitions
from levytorch.errors import ConfigError, InputError, LevytorchWarning, printable
from levytorch.figures import policies as plots
from levytorch.figures.policies import Curve
from levytorch.files import write_csv, write_json
from levytorch.policy.named import check_policies
from levytorch.policy.rewards import RewardContext, build_reward, check_reward_with_data
from levytorch.ranks import processes
from levytorch.runs import resume, terminal
from levytorch.runs.policies import evaluate_policies
from levytorch.runs.report import Outcome, noted_doubts, units_of
from levytorch.runs.settings import Prepared
from levytorch.runs.tensorboard import log_results
from levytorch.training.by_action import (
    by_action,
    check_shared,
    common_settings,
    recovery_of_actions,
)
from levytorch.training.continuous import recover_continuous
from levytorch.training.fit_report import FitReport
from levytorch.training.recovery import Recovery
from levytorch.untrusted import read_json

log = logging.getLogger("levytorch.train")
DONE = "done.json"  # in actions/<i>: this action is finished
_POINTS = 401


def has_actions(config: Mapping[str, Any], data: SourceData) -> bool:
    """Whether the run fits action by action; where there is a modulation the column is its covariate."""
    pairs = data.transitions
    if config["actions"] is None or config["coefficients"].get("modulation") is not None:
        return False
    return isinstance(pairs, Transitions) and pairs.action is not None


def alike(data: SourceData) -> SourceData:
    """Data whose actions are not looked at: the system is then the closed loop of what made it."""
    if not isinstance(data.dynamics, ControlledDynamics):
        return data
    return data._replace(dynamics=data.dynamics.under(data.policy))


def check_run_with_actions(prepared: Prepared, data: SourceData) -> None:
    """Refuse, before any fit, what data with actions cannot be fitted with or evaluated from."""
    config, pairs = prepared.config, data.transitions
    assert isinstance(pairs, Transitions)
    if processes(config["trainer"]):
        raise ConfigError("data with actions must be fitted by one process, found several; leave trainer.devices at 1.")
    if config["empirical"] is not None:
        raise ConfigError("empirical must be left out of data with actions, found it given; use empirical=null.")
    if pairs.actions:
        check_shared(config["shared"], prepared.fit)
    if config["beta"] is not None and config["reward"]["name"] != "manufactured":
        check_reward_with_data(config["reward"], pairs.dim, pairs)
        _reward(config, data, period=config["coefficients"].get("period"))


def train_by_action(prepared: Prepared, data: SourceData, directory: Path, *, resumed: bool, fit_one: Any) -> Outcome:
    """Fits, report, policies; fit_one: what fits one action (`training.fit_and_report`)."""
    config, pairs = prepared.config, data.transitions
    assert isinstance(pairs, Transitions)
    check_run_with_actions(prepared, data)
    began = time.perf_counter()
    opening = terminal.opening(pairs, prepared.fit, config)
    labels = ", ".join(printable(str(a), lines=False) for a in pairs.actions)
    log.info(f"{opening}; actions {labels or 'on a scale'}")
    truth = data.dynamics if isinstance(data.dynamics, ControlledDynamics) else None
    with noted_doubts() as doubts:
        if pairs.actions:
            kept, own = common_settings(pairs, prepared.fit)
            found = [
                _one(
                    prepared, own, directory / "actions" / str(i), action, part, truth, resumed=resumed, fit_one=fit_one
                )
                for i, (action, part) in enumerate(by_action(kept))
            ]
            recovery: Any = recovery_of_actions(kept, found, check_shared(config["shared"], prepared.fit), prepared.fit)
        else:
            recovery = recover_continuous(pairs, prepared.fit, config["n_action"])
    recovery.save(directory / "recovery.pt")
    seconds = time.perf_counter() - began
    report = FitReport.of(recovery, truth=truth)
    metrics: dict[str, Any] = {
        **report.metrics(),
        **{"actions": list(getattr(recovery, "actions", ())), "action_range": getattr(recovery, "action_range", None)},
        **{"log_likelihood": recovery.log_likelihood, "converged": recovery.converged},
        **{"seconds": seconds, "seconds_of": {"fit": seconds}, "opening": opening, "seed": config["seed"]},
    }
    for name in ("b", "D_o", "D_f"):
        errors = [row[name]["error"] for row in metrics["by_action"].values() if "error" in row[name]]
        if errors:
            metrics[f"error_{name}"] = sum(errors) / len(errors)
    outcome = Outcome(
        *(recovery, data, report, metrics, directory, prepared.loggers, prepared.figure_formats),
        units=units_of(config["data"]),
    )
    outcome.note(doubts)
    _report(outcome, truth)
    _policies(outcome, config, truth)
    write_json(directory / "metrics.json", metrics)
    log_results(outcome.loggers, config, metrics)
    return outcome


def _one(
    prepared: Prepared,
    settings: Any,
    directory: Path,
    action: Any,
    pairs: Transitions,
    truth: Any,
    *,
    resumed: bool,
    fit_one: Any,
) -> Recovery:
    """The fit of one action, or what an interrupted run has left of it."""
    done = directory / DONE
    if resumed and done.is_file():
        if read_json(done) != {"action": action, "pairs": len(pairs)}:
            raise ConfigError(
                f"{directory} must hold the fit of action {action} to {len(pairs)} pairs, found another; the data has "
                "changed, so start a new run."
            )
        log.info(f"action {action}: done before")
        return Recovery.load(directory)
    log.info(f"action {action}:")
    callbacks, loggers = prepared.rebuild(directory)
    own = replace(prepared, fit=settings, callbacks=callbacks, loggers=loggers)
    source = SourceData(pairs, None if truth is None else truth.of(action))
    checkpoint = resume.checkpoint(directory) if resumed else None
    try:
        outcome = fit_one(own, source, directory, checkpoint=checkpoint)
    except InputError as error:
        raise InputError(f"action {action}, of {len(pairs)} pairs: {error}") from error
    for line in terminal.closing(outcome).splitlines():
        log.info(line)
    for doubt in outcome.metrics["warnings"]:
        warnings.warn(f"action {action}: {doubt}", LevytorchWarning, stacklevel=1)
    write_json(directory / "metrics.json", outcome.metrics)
    write_json(done, {"action": action, "pairs": len(pairs)})
    return outcome.recovery


# -- what is written --------------------------------------------------------------------------------------------------
def _report(outcome: Outcome, truth: Any) -> None:
    """curves.csv and the figure of all actions together, in one dimension; in the plane each action has its own."""
    recovery = outcome.recovery
    if recovery.dim > 1:
        return
    low, high = recovery.cell_parts.bounds[0]
    x = torch.linspace(low, high, _POINTS, dtype=torch.float64)
    columns: dict[str, Any] = {"x": x.numpy()}
    curves: dict[str, dict[str, Curve]] = {}
    for label, action in recovery.held_actions().items():
        pairs = recovery.cell_parts.between(recovery.effective_pairs(action).clamp(max=1e12)[:, None])(x)[:, 0].numpy()
        stds = recovery.std(x, action) if recovery.covariance is not None else (None, None, None)
        curves[label] = {}
        for name, std in zip(("b", "D_o", "D_f"), stds):
            known = None if truth is None else getattr(truth.of(action), name)(x).numpy()
            values = getattr(recovery, name)(x, action).numpy()
            curves[label][name] = Curve(values, None if std is None else std.numpy(), known, pairs)
            for suffix, column in zip(("", "_std", "_truth"), curves[label][name]):
                if column is not None:
                    columns[f"{name} of {label}{suffix}"] = column
        columns[f"pairs of {label}"] = pairs
    write_csv(outcome.directory / "curves.csv", columns)
    outcome.publish("coefficients", lambda: plots.action_coefficients(x.numpy(), curves, units=outcome.units)[0])


def _reward(config: Mapping[str, Any], data: SourceData, period: Any, origin: Any = 0.0) -> Any:
    pairs = data.transitions
    assert isinstance(pairs, Transitions)
    if pairs.dim > 1 and period is not None and not isinstance(period, list | tuple):
        period = (period,) * pairs.dim
        origin = origin if isinstance(origin, list | tuple) else (origin,) * pairs.dim
    context = RewardContext(period, origin, float(config["beta"]), None, pairs, pairs.dim, tuple(pairs.actions))
    return build_reward(config["reward"], context)


def _policies(outcome: Outcome, config: Mapping[str, Any], truth: Any) -> None:
    """V of the policies that the settings name, into the run directory."""
    recovery = outcome.recovery
    if config["beta"] is None:
        return
    if config["reward"]["name"] == "manufactured":
        log.info(
            "no value functions: no reward was chosen for them; reward=cosine_power and others are in docs/policy.md"
        )
        return
    if recovery.dim > 2 or (recovery.dim > 1 and recovery.period is None):
        log.info("no value functions: they are solved on a circle, a line and a torus")
        return
    began = time.perf_counter()
    reward = _reward(config, outcome.source, recovery.period, recovery.origin)
    with noted_doubts() as doubts:
        result = evaluate_policies(recovery, check_policies(config.get("policy")), reward, float(config["beta"]), truth)
    outcome.note(doubts)
    outcome.metrics["values"] = {**result.metrics(), "text": result.text().splitlines()}
    result.write(outcome.directory)
    outcome.took("value", time.perf_counter() - began)
    for name, draw in result.drawings(outcome.units).items():
        outcome.publish(name, draw)
