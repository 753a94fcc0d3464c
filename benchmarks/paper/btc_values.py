"""What V is compared with in section 4.3: discounted empirical values, their Fourier reference, CRL and r / beta."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients.basis import FourierBasis
from levytorch.data.sources import selected
from levytorch.errors import ConfigError
from levytorch.policy.empirical import EmpiricalValues, crl_baseline, empirical_values, reference_curve
from levytorch.policy.metrics import relative_l2
from levytorch.policy.rewards import RewardContext, build_reward
from levytorch.policy.solver import solve_value

Function = Callable[[Tensor], Tensor]
KEYS = {"n_terms", "n_basis", "n_modes", "window", "bootstrap"}


@dataclass(frozen=True)
class Comparison:
    """The empirical values of all prices and the curves made of them.

    The paper's sum dt sum_j exp(-beta j dt) r_j exceeds the integral that V is by beta dt / 2 (0.75 % here) whatever
    the prices do; `exact` integrates the discount exactly and is free of that.
    """

    values: EmpiricalValues
    exact: EmpiricalValues
    reference: Function
    reference_exact: Function
    crl: Function
    trivial: Function
    interval: tuple[float, float]
    seen: tuple[float, float]

    def errors(self, V: Function) -> dict[str, float]:
        """Relative L2 errors on all prices, against either reference, and on the prices seen."""
        return {
            "relative_l2": relative_l2(V, self.reference, *self.interval),
            "relative_l2_exact": relative_l2(V, self.reference_exact, *self.interval),
            "relative_l2_seen": relative_l2(V, self.reference, *self.seen),
        }


def check_settings(config: Mapping[str, Any]) -> None:
    """Refuse what cannot be compared, before any work."""
    empirical = config["empirical"]
    if not isinstance(empirical, Mapping) or set(empirical) != KEYS:
        raise ConfigError(
            f"empirical must have the keys {', '.join(sorted(KEYS))}, found {empirical!r}; see docs/btc.md."
        )
    for key in ("n_terms", "n_basis", "n_modes"):
        value = empirical[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(
                f"empirical.{key} must be a positive whole number, found {value!r}; give one, such as 11."
            )
    window = empirical["window"]
    if window != "data" and not (isinstance(window, list) and len(window) == 2 and window[0] < window[1]):
        raise ConfigError(f"empirical.window must be data or [low, high], found {window!r}; give one of these.")
    bootstrap = empirical["bootstrap"]
    if not isinstance(bootstrap, Mapping) or set(bootstrap) != {"replicas", "block"}:
        raise ConfigError(f"empirical.bootstrap must have replicas and block, found {bootstrap!r}; give both.")
    for key in ("replicas", "block"):
        value = bootstrap[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < (0 if key == "replicas" else 1):
            raise ConfigError(
                f"empirical.bootstrap.{key} must be a whole number, found {value!r}; give one, such as 40."
            )
    if bootstrap["replicas"] == 1:
        raise ConfigError("empirical.bootstrap.replicas must be 0 (none) or at least 2, found 1; a band needs two.")
    if config["data"].get("_target_") != "levytorch.data.sources.FromFile":
        raise ConfigError("empirical values need data=file, found another source; give a file with data.path=.")


def reward_of(config: Mapping[str, Any]) -> Callable[[Tensor], Any]:
    context = RewardContext(float(config["coefficients"]["period"]), 0.0, float(config["beta"]), None, None)
    return build_reward(config["reward"], context)


def check_series(trajectories: Any) -> None:
    """Refuse data whose transitions are not numbered as its points are."""
    gaps = trajectories is not None and len(trajectories.transitions()) != len(trajectories.x) - 1
    if trajectories is None or len(trajectories) != 1 or gaps:
        raise ConfigError(
            "one series without gaps was expected for empirical values, found several or gaps; give expected_dt to see "
            "where."
        )


def compare_with(config: Mapping[str, Any], trajectories: Any) -> Comparison:
    """Empirical values of all trajectories of the file, and the curves."""
    empirical, data = config["empirical"], config["data"]
    beta, reward = float(config["beta"]), reward_of(config)
    basis = FourierBasis(empirical["n_basis"], float(config["coefficients"]["period"]))
    values, exact = (
        empirical_values(trajectories, reward, beta, n_terms=empirical["n_terms"], exact=exact)
        for exact in (False, True)
    )
    transitions = trajectories.transitions()
    chosen = selected(len(transitions), data.get("first"), data.get("sample"), data.get("sample_seed", 0))
    rows = torch.arange(len(transitions)) if chosen is None else torch.nonzero(chosen)[:, 0]
    x = transitions.x[rows]
    low, high = float(values.x.min()), float(values.x.max())
    if empirical["window"] != "data":
        low, high = (float(end) for end in empirical["window"])
    return Comparison(
        values,
        exact,
        reference_curve(values, basis),
        reference_curve(exact, basis),
        crl_baseline(values, basis, rows),
        lambda at: torch.as_tensor(reward(at)) / beta,
        (low, high),
        (float(x.min()), float(x.max())),
    )


def value_of(recovery: Any, config: Mapping[str, Any], interval: tuple[float, float]) -> Any:
    """V by least squares of the residual over the interval."""
    empirical = config["empirical"]
    return solve_value(
        recovery,
        reward_of(config),
        float(config["beta"]),
        n_modes=empirical["n_modes"],
        window=interval,
        beyond_data=True,
    )
