"""Policy evaluation from the command line: `python evaluate.py run=<run directory or glob>` (see conf/evaluate.yaml).

A run directory is read as data: nothing named in it is imported or executed. Results go to a new directory.
"""

from __future__ import annotations

import logging
import math
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from levytorch.atomic import temporary_directory
from levytorch.dynamics import Dynamics
from levytorch.errors import ConfigError, LevytorchError, LevytorchWarning
from levytorch.interrupts import Interrupted, interruptible
from levytorch.runs.evaluation_settings import newest

OmegaConf.register_new_resolver("newest", newest, replace=True)  # conf/experiment/value_error.yaml
log = logging.getLogger("levytorch.evaluate")


def run_evaluation(settings: dict[str, Any]) -> Path:
    """Everything but hydra: checks, solves, writes, and puts the directory in place when complete; returns it."""
    from levytorch.runs import evaluation_report as report
    from levytorch.runs.evaluation_settings import check_settings

    check_settings(settings)
    if settings["run"] is None and not settings["rates"]["enabled"]:
        raise ConfigError("run must name a run directory or a glob, but is not given; add run=outputs/<date>/<time>.")
    target = report.planned_output(None if settings["out"] is None else str(settings["out"]))
    result, support = evaluate(settings) if settings["run"] is not None else (None, None)
    studies = study_rates(settings) if settings["rates"]["enabled"] else []
    with temporary_directory(target) as written:
        write_results(settings, result, support, studies, written)
        out = report.publish(written, target)
    log.info(f"written to {out}")
    return out


def write_results(settings: dict[str, Any], result: Any, support: Any, studies: list[Any], out: Path) -> None:
    """Everything into one directory, which becomes visible when it is complete."""
    from levytorch.runs import evaluation_report as report

    report.write_marker(out, settings)
    figures: dict[str, Any] = {}
    if result is not None:
        figures |= report.write_evaluation(result, out, support=support)
        log.info(report.table(result.metrics))
    if studies:
        figures |= report.write_rates(studies, out)
        for study in studies:
            log.info(f"{study.perturbation}: slope {study.slope_c0:.4f} in C^0, {study.slope_c2:.4f} in discrete C^2")
    if settings["tensorboard"]:
        report.write_tensorboard(figures, None if result is None else result.metrics, out)


def evaluate(settings: dict[str, Any]) -> tuple[Any, tuple[float, float] | None]:
    """The evaluation, and the range of the data that the model-free baseline has seen (None without data)."""
    from levytorch.policy.basis import FourierBasis
    from levytorch.policy.checks import check_beta
    from levytorch.policy.reference import empirical_reference
    from levytorch.policy.rewards import RewardContext, build_reward
    from levytorch.runs.directories import load_runs
    from levytorch.runs.evaluation import evaluate_runs, true_reference
    from levytorch.runs.evaluation_settings import texts

    beta = check_beta(settings["beta"])
    runs = load_runs(texts(settings, "run"))
    truth = true_dynamics(settings["truth"], runs)
    period, origin = runs[0].recovery.period, runs[0].recovery.origin
    data = settings["data"]
    trajectories: Any = None
    transitions: Any = None
    observed = support = None
    if data["path"] is not None:
        from levytorch.data import Trajectories

        check_scale(data["options"], runs)
        given = {key: value for key, value in data["options"].items() if value is not None}
        trajectories = Trajectories.from_file(data["path"], **given)
        transitions = trajectories.transitions()
    reward = build_reward(settings["reward"], RewardContext(period, origin, beta, truth, transitions))
    window = data_window(settings["window"], transitions, [run.recovery.support for run in runs])
    reference = None
    basis = FourierBasis(data["n_basis"], period, origin)
    if truth is not None:
        reference = true_reference(truth, reward, beta, window, settings["tolerance"])
    elif trajectories is not None:
        options = {"n_terms": data["n_terms"], "horizon": data["horizon"], "linear": data["linear"]}
        reference = empirical_reference(trajectories, reward, beta, basis, **options)
        observed = observed_points(data, trajectories, transitions)
        seen = transitions.x if observed is None else torch.as_tensor(trajectories.x)[observed]
        if float(seen.max() - seen.min()) < period:
            support = (float(seen.min()), float(seen.max()))
    result = evaluate_runs(
        runs,
        reward,
        beta,
        n_modes=settings["n_modes"],
        window=window,
        tolerance=settings["tolerance"],
        group_by=settings["group_by"],
        reference=reference,
        observed=observed,
        crl_basis=basis,
    )
    return result, support


def check_scale(options: dict[str, Any], runs: list[Any]) -> None:
    """Refuse data that is measured otherwise than what the runs were trained on: beta and V belong to their units."""
    for run in runs:
        for name, value in (run.scale() or {}).items():
            found = options[name]
            if found != value and (found or value):
                raise ConfigError(
                    f"data.options.{name} must be that of the runs, {str(value).lower()}, but is {str(found).lower()}; "
                    f"add data.options.{name}={str(value).lower()}."
                )


def true_dynamics(truth: dict[str, Any], runs: list[Any]) -> Dynamics | None:
    """The true system: named on the command line, or the one that all runs name in their configuration."""
    known = [run.truth() for run in runs]
    if truth["name"] is not None:
        alphas = {system.alpha for system in known if system is not None}
        own = alphas.pop() if len(alphas) == 1 else 0.3
        return Dynamics.named(str(truth["name"]), alpha=own if truth["alpha"] is None else truth["alpha"])
    named = {repr(system) for system in known}
    if len(named) > 1:
        raise ConfigError(
            "The runs must have one true system, but theirs differ; evaluate them apart or give truth.name=."
        )
    return known[0]


def data_window(
    window: Any, transitions: Any, supports: list[tuple[float, float] | None]
) -> tuple[float, float] | None:
    """The window as two numbers; within the data when there is data.

    "data" without data is what all runs were trained on: every recovery knows the range of its own.
    """
    from levytorch.policy.checks import check_window

    span = None if transitions is None else (float(transitions.x.min()), float(transitions.x.max()))
    if window == "data":
        return common_support(supports) if span is None else span
    return None if window is None else check_window(window, math.inf, span)


def common_support(supports: list[tuple[float, float] | None]) -> tuple[float, float]:
    """The range that lies within the data of every run."""
    known = [support for support in supports if support is not None]
    if len(known) < len(supports):
        raise ConfigError(
            "window=data needs the range of the data, but a run does not know it; name its data with data.path=, or "
            "give window=[low,high]."
        )
    low, high = max(low for low, _ in known), min(high for _, high in known)
    if not low < high:
        raise ConfigError(
            "window=data needs a range that the data of all runs share, but there is none; evaluate the runs apart, or "
            "give window=[low,high]."
        )
    return low, high


def observed_points(data: dict[str, Any], trajectories: Any, transitions: Any) -> torch.Tensor | None:
    """Numbers of the points whose values CRL may see: where the first transitions, or random ones, begin.

    None: there is no CRL.
    """
    from levytorch.data.pairing import first_points

    n = len(transitions)
    if data["first"] is not None and data["random"] is not None:
        raise ConfigError("Either data.first or data.random was expected, but both are given; leave one out.")
    wanted = data["first"] if data["first"] is not None else data["random"]
    if wanted is None:
        return None
    if wanted > n:
        raise ConfigError(f"data.first or data.random must not exceed {n} transitions, but is {wanted}; lower it.")
    points = torch.from_numpy(first_points(trajectories, transitions))
    if data["first"] is not None:
        return points[:wanted]
    return points[torch.randperm(n, generator=torch.Generator().manual_seed(data["seed"]))[:wanted]]


def study_rates(settings: dict[str, Any]) -> list[Any]:
    """The error-bound study for every kind of perturbation."""
    from levytorch.policy.rates import rate_study
    from levytorch.runs.evaluation_settings import texts

    rates = settings["rates"]
    dynamics = Dynamics.named(rates["system"], alpha=rates["alpha"])
    studies = []
    for perturbation in texts(settings, "rates.perturbations"):
        start = time.perf_counter()
        studies.append(
            rate_study(
                dynamics,
                rates["eps"],
                beta=settings["beta"],
                n_trials=rates["n_trials"],
                n_modes=rates["n_modes"],
                perturbation=perturbation,
                seed=rates["seed"],
            )
        )
        solves = len(rates["eps"]) * rates["n_trials"]
        log.info(f"{perturbation}: {solves} solves in {time.perf_counter() - start:.1f} s")
    return studies


@contextmanager
def told_once() -> Iterator[None]:
    """Own warnings as sentences of the log, each once, without the place in the code that they come from."""
    told: set[str] = set()
    with warnings.catch_warnings():
        warnings.simplefilter("always", LevytorchWarning)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, LevytorchWarning):
                others(message, category, *place, **more)
            elif str(message) not in told:
                told.add(str(message))
                log.warning(str(message))

        warnings.showwarning = show
        yield


@hydra.main(version_base="1.3", config_path="conf", config_name="evaluate")
def main(config: DictConfig) -> None:
    try:
        settings: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        with interruptible(), told_once():
            run_evaluation(settings)
    except Interrupted as stop:
        print(f"evaluate: stopped by {stop.name}; nothing was written", file=sys.stderr)
        raise
    except (LevytorchError, OmegaConfBaseException) as error:
        # one sentence, not a traceback: the input is at fault, not the program
        sys.exit(f"evaluate: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
