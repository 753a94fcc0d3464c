"""The value function of a run, in one and two dimensions: policy/ computes it, figures/ draws it.
Beside it what a run adds to its directory whose V is compared with its own file (the settings `empirical`).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from levytorch.coefficients import Head
from levytorch.convert import choice, known_keys, shown, switch, whole_number
from levytorch.data import Transitions
from levytorch.data.sources import selected
from levytorch.errors import ConfigError, LevytorchWarning, within_configuration
from levytorch.figures import planes
from levytorch.figures.coefficients import observed_parts
from levytorch.figures.values import Band, value_bands
from levytorch.files import replacing, write_json
from levytorch.policy.checks import check_window, is_line
from levytorch.policy.empirical import GAPS, empirical_values
from levytorch.policy.reference import (
    Bootstrap,
    EmpiricalComparison,
    block_bootstrap,
    compare_with_data,
    relative_error,
)
from levytorch.policy.rewards import RewardContext, build_reward, check_reward_with_data
from levytorch.policy.solver import solve_value
from levytorch.runs.report import Columns, Outcome, noted_doubts, write_value
from levytorch.spaces import StateSpace, coordinates
from levytorch.spaces.basis import FourierBasis
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.fit import fitted

STORED = 40_000  # empirical values kept for figures and for the coverage of bands over runs
SHOWN = 5000  # of these as dots in the figure
SUMS = {"n_terms": None, "horizon": None, "linear": False, "gaps": "end"}  # of the discounted values
# n_basis: of their Fourier fit and of CRL; n_modes, window: of V
DEFAULTS = SUMS | {"n_basis": 11, "n_modes": None, "window": "data"}
NAMES = {"trivial": "r / beta", "crl": "CRL"}  # of what V stands beside
BOOTSTRAP = {"replicas": 0, "block": 240}  # refits for the band of V; consecutive transitions that stay together
_REFERENCE = 1e-5  # relative tolerance of a true V
log = logging.getLogger("levytorch.train")


def options_of(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings `empirical`, checked and complete; None: V is not compared with the data."""
    given = config["empirical"]
    if given is None:
        return None
    if not isinstance(given, Mapping) or not isinstance(given.get("bootstrap", {}), Mapping):
        raise ConfigError(f"empirical must be a group of settings, found {shown(given)}; see docs/btc.md.")
    known_keys("the settings of empirical", given, (*DEFAULTS, "bootstrap"), ConfigError)
    known_keys("the settings of empirical.bootstrap", given.get("bootstrap", {}), tuple(BOOTSTRAP), ConfigError)
    options = {**DEFAULTS, **given, "bootstrap": {**BOOTSTRAP, **given.get("bootstrap", {})}}
    with within_configuration("empirical: "):
        for name in ("n_terms", "n_modes", "n_basis"):
            if options[name] is not None or name == "n_basis":
                whole_number(f"empirical.{name}", options[name], 1)
        switch("empirical.linear", options["linear"])
        choice("empirical.gaps", options["gaps"], GAPS)
        for name, least in (("replicas", 0), ("block", 1)):
            whole_number(f"empirical.bootstrap.{name}", options["bootstrap"][name], least)
        if options["window"] != "data":
            options["window"] = check_window(options["window"], float(config["coefficients"]["period"]), None)
    if options["bootstrap"]["replicas"] == 1:
        raise ConfigError("empirical.bootstrap.replicas must be 0 (none) or at least 2, found 1; a band needs two.")
    if config["coefficients"].get("period") is None:
        raise ConfigError(
            "coefficients.period must be given for empirical values, found null; give one that is a little wider than "
            "the data, or empirical=null."
        )
    if config["beta"] is None:
        raise ConfigError(
            "beta must be given for empirical values, found null; give a discount rate, or empirical=null."
        )
    return options


def check_series(source: Any, config: Mapping[str, Any]) -> None:
    """Refuse, before the fit, data that has no values to compare with: no trajectories, or none as long as asked."""
    options = options_of(config)
    if options is None:
        return
    if source.trajectories is None or source.trajectories.dim != 1:
        raise ConfigError(
            "data must have one-dimensional trajectories for empirical values, found a source without them; use "
            "data=file, or empirical=null."
        )
    reward = _reward(source, config, float(config["coefficients"]["period"]), 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)  # told when the values are used
        empirical_values(source.trajectories, reward, float(config["beta"]), **_sums(options))


def add_empirical_value(outcome: Outcome, config: Mapping[str, Any]) -> None:
    """value.pt, value.csv, empirical.npz, the figure, and `empirical` in metrics.json."""
    options = options_of(config)
    assert options is not None
    recovery, directory = outcome.recovery, outcome.directory
    reward = _reward(outcome.source, config, recovery.period, recovery.origin)
    comparison = _compare(outcome, config, options, reward)

    def solve(found: Any) -> Any:
        # the window may reach beyond the data: how V extrapolates is what is looked at
        window, n_modes = comparison.interval, options["n_modes"]
        return solve_value(found, reward, float(config["beta"]), n_modes=n_modes, window=window, beyond_data=True)

    V = solve(recovery)
    bootstrap = _bootstrap(outcome, config, options["bootstrap"], solve)
    beside = {} if bootstrap is None else {"V_bootstrap_sd": bootstrap.std}
    curves = write_value(directory / "value", V, beside | comparison.curves())
    outcome.metrics["empirical"] = comparison.numbers(V, bootstrap)
    samples = _store_values(directory, comparison)
    outcome.publish("value", lambda: _figure(curves, samples, comparison))
    log.info(comparison_sentence(outcome.metrics["empirical"]))


def _reward(source: Any, config: Mapping[str, Any], period: float, origin: float) -> Any:
    context = RewardContext(period, origin, float(config["beta"]), source.dynamics, source.transitions)
    return build_reward(config["reward"], context)


def _sums(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in SUMS}


def _compare(
    outcome: Outcome, config: Mapping[str, Any], options: Mapping[str, Any], reward: Any
) -> EmpiricalComparison:
    trajectories, data = outcome.source.trajectories, config["data"]
    assert trajectories is not None
    pairs = trajectories.transitions()
    return compare_with_data(
        trajectories,
        reward,
        float(config["beta"]),
        FourierBasis(options["n_basis"], outcome.recovery.period, outcome.recovery.origin),
        chosen=selected(len(pairs), data.get("first"), data.get("sample"), data.get("sample_seed", 0), pairs.stored),
        window=None if options["window"] == "data" else options["window"],
        **_sums(options),
    )


def _bootstrap(outcome: Outcome, config: Mapping[str, Any], wanted: Mapping[str, int], solve: Any) -> Bootstrap | None:
    """Refits with the penalty's strengths of the fit itself; none for adam, whose band is that of its random starts."""
    settings = outcome.settings
    if settings is None or not wanted["replicas"] or not settings.engine.full_batch:
        return None
    recovery = outcome.recovery
    settings = replace(settings, progress=False)
    if recovery.metrics.get("penalty_strengths") and isinstance(settings.engine, FisherEngine):
        strengths = list(recovery.metrics["penalty_strengths"])
        settings = replace(settings, engine=replace(settings.engine, penalty=strengths))
    if recovery.metrics.get("region") == "TRT":  # decided once, by the fit itself; where CT plays TRT's part, it is CT
        kept = replace(settings.tail, CT=None, TRT=recovery.metrics["TRT"], region="TRT")
        settings = replace(settings, tail=kept)
    pairs = outcome.source.transitions
    assert isinstance(pairs, Transitions)  # checked beforehand: there are trajectories
    return block_bootstrap(
        pairs,
        lambda data: fitted(data, settings, start=recovery.theta),
        solve,
        replicas=wanted["replicas"],
        block=wanted["block"],
        seed=config["seed"],
        progress=config["trainer"]["progress"],
    )


def _store_values(directory: Path, comparison: EmpiricalComparison) -> dict[str, Any]:
    """A random part of the empirical values, the first SHOWN of them for the figure."""
    order = torch.randperm(len(comparison.values.x), generator=torch.Generator().manual_seed(0))[:STORED]
    samples: dict[str, Any] = {
        "x": comparison.values.x[order].numpy(),
        "V": comparison.values.V[order].numpy(),
        "V_exact": comparison.exact.V[order].numpy(),
    }
    with replacing(directory / "empirical.npz") as temporary, temporary.open("wb") as stream:
        np.savez_compressed(stream, **samples)
    return samples


def _figure(curves: Mapping[str, Any], samples: Mapping[str, Any], comparison: EmpiricalComparison) -> Any:
    bands = [Band("recovered", curves["V"], curves.get("V_std"), "± sd")]
    if "V_bootstrap_sd" in curves:
        bands.append(Band("recovered", curves["V"], curves["V_bootstrap_sd"], "± block bootstrap sd"))
    return value_bands(
        curves["x"],
        bands,
        reference=curves["reference"],
        reference_label="empirical reference",
        baselines={label: curves[name] for name, label in NAMES.items() if name in curves},
        samples=(samples["x"][:SHOWN], samples["V"][:SHOWN]),
        support=comparison.seen,
    )[0]


def comparison_sentence(numbers: Mapping[str, Any]) -> str:
    """What a terminal shows."""
    low, high = numbers["interval"]
    baselines = [f"{NAMES[name]} {errors['relative_l2']:.2%}" for name, errors in numbers["baselines"].items()]
    bands = [
        f"{label} {numbers[key]:.2%}"
        for key, label in (("coverage_std", "± sd"), ("coverage_bootstrap", "± block bootstrap sd"))
        if key in numbers
    ]
    return (
        f"V against the empirical reference on [{low:,.0f}, {high:,.0f}]: relative L2 error "
        f"{numbers['relative_l2']:.2%} ({numbers['relative_l2_exact']:.2%} against exactly discounted sums); "
        f"{', '.join(baselines)}; coverage {', '.join(bands) or 'unknown'}"
    )


def check_value_data(config: Mapping[str, Any], data: Any, head: Head) -> None:
    """Refuse, before the fit, what the value function at its end could not be computed from."""
    if config["beta"] is None:
        return
    truth = data.dynamics
    if truth is not None and not is_line(truth) and head.period is None:
        raise ConfigError(
            f"coefficients must have a period for a system on a cell, found those of a line ({type(head).__name__}), "
            "for which the value function of that system cannot be compared; use coefficients=spline or "
            "coefficients=fourier with its period, a system on a line, or beta=null."
        )
    if config["empirical"] is not None:
        check_series(data, config)
    elif data.transitions.dim <= 2:
        check_reward_with_data(config["reward"], data.transitions.dim, data.transitions)


def add_value(outcome: Outcome, config: Mapping[str, Any]) -> None:
    """V of the recovered dynamics into the run directory, when a reward can be made from what is known."""
    if config["beta"] is None:
        return
    with noted_doubts() as doubts:
        if config["empirical"] is not None:
            add_empirical_value(outcome, config)
        else:
            add_solved_value(outcome, config)
    outcome.note(doubts)
    write_json(outcome.directory / "metrics.json", outcome.metrics)


def add_solved_value(outcome: Outcome, config: Mapping[str, Any]) -> None:
    """value.pt, value.csv, the figure, and what metrics.json says of V; nothing where no V can be drawn."""
    recovery, truth, beta = outcome.recovery, outcome.source.dynamics, config["beta"]
    if (truth is None or is_line(truth)) and config["reward"]["name"] == "manufactured":
        log.info(
            "no value function: no reward was chosen; reward=cosine_power and others are in docs/policy.md"
            if truth is None
            else "no value function: a manufactured reward needs a known system on a cell; choose one with reward=..."
        )
        return
    if recovery.dim > 2:
        log.info("no value function: train.py draws V in one and two dimensions; solve_value works in more")
        return
    transitions, dim = outcome.source.transitions, recovery.dim
    context = RewardContext(recovery.period, recovery.origin, beta, truth, transitions, dim)
    reward = build_reward(config["reward"], context)
    V = solve_value(recovery, reward, beta)
    # on a line V depends on where its window ends
    same: dict[str, Any] = {} if V.space.repeats else {"window": windows_of(V.space)}
    # beside errors of some per cent, a reference that is right to a hundred-thousandth is exact
    V_truth = None if truth is None else solve_value(truth, reward, beta, tolerance=_REFERENCE, **same)
    curves = write_value(outcome.directory / "value", V, {} if V_truth is None else {"V_truth": V_truth})
    if "V_truth" in curves:
        outcome.metrics["error_V"] = relative_error(curves["V"], curves["V_truth"])
        if "V_std" in curves:  # the size of error that the data leads one to expect, in the same norm
            outcome.metrics["std_V"] = relative_error(curves["V_truth"] + curves["V_std"], curves["V_truth"])
    if "V_std" in curves and "u" not in curves:
        outcome.metrics |= level_and_shape(V, curves)
    outcome.publish("value", lambda: _draw(V, V_truth, curves, outcome))


def windows_of(space: StateSpace) -> Any:
    """The window as `solve_value` takes it: None for coordinates with a period."""
    windows = [None if part.repeats else part.ends for part in coordinates(space)]
    return windows[0] if space.dim == 1 else windows


def level_and_shape(V: Any, curves: Columns) -> dict[str, float]:
    """Standard errors (and errors, where the truth is known) of the mean of V and of V without its mean.

    All are relative to the root mean square of V, or of the true V. At a small beta the level is the stationary mean of
    the reward over beta, which a data set may leave open while it determines the shape.
    """
    deviations = V.deviations(torch.as_tensor(curves["x"]))
    truth = curves.get("V_truth")
    size = float(np.sqrt(np.mean((curves["V"] if truth is None else truth) ** 2)))
    level = deviations.mean(0)
    shape = (deviations - level).norm(dim=-1)
    found = {"level_std_V": float(level.norm()) / size, "shape_std_V": float(shape.square().mean().sqrt()) / size}
    if truth is not None:
        error = curves["V"] - truth
        found |= {"level_error_V": abs(float(error.mean())) / size, "shape_error_V": float(error.std()) / size}
    return found


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
        period=V.period,
        units=outcome.units,
    )[0]
