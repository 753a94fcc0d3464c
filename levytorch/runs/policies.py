"""Policies of a run with actions, evaluated: what train.py does at its end and evaluate.py on demand,
with several policies in one table and one figure, and differences with their errors.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from levytorch.controlled import ControlledDynamics
from levytorch.data import Trajectories
from levytorch.errors import ConfigError
from levytorch.figures import AxisNames, planes, policies
from levytorch.figures.policies import Curve
from levytorch.files import write_csv, write_json
from levytorch.policies import Policy
from levytorch.policy.checks import check_window
from levytorch.policy.improve import Improvement
from levytorch.policy.named import build_policy, check_policies, policy_of
from levytorch.policy.ranking import Ranking, rank
from levytorch.policy.reference import relative_error
from levytorch.policy.rewards import RewardContext, build_reward
from levytorch.policy.solver import solve_value
from levytorch.runs.page import Shown
from levytorch.runs.reading import Run
from levytorch.runs.report import units_of, value_grid

_TOLERANCE = 1e-5  # of V: the behaviour policy, linear between parts of the cell, has kinks
_SIDE = 64  # states per coordinate of the plane
ONE = {"behaviour": {"kind": "behaviour"}}  # what is evaluated where no policy is named


@dataclass(frozen=True)
class PolicyResult:
    """V of every policy, what was improved, and V of the true system where that is known."""

    recovery: Any
    table: Ranking
    policies: dict[str, Any]
    improved: dict[str, Improvement]
    truths: dict[str, Any]
    beta: float
    x: Tensor = field(repr=False)

    def metrics(self) -> dict[str, Any]:
        """Plain numbers for metrics.json."""
        out: dict[str, Any] = {"beta": self.beta, "reference": self.table.reference, "policies": self.table.rows()}
        out["differences"] = [
            {"first": one, "second": other, "difference": gap, "std": error}
            for one, other in itertools.combinations(self.table.order, 2)
            for gap, error in [self.table.gap(one, other)]
        ]
        for row in out["policies"]:
            V = self.table.values[row["policy"]]
            row["converged"] = bool(V.converged)
            if row["policy"] in self.truths:
                row["relative_l2"] = relative_error(V(self.x), self.truths[row["policy"]](self.x))
        out["improved"] = {
            name: {
                **{"gain": best.gain, "gain_std": best.gain_std, "converged": best.converged},
                **{"iterations": len(best.history), "history": best.history},
            }
            for name, best in self.improved.items()
        }
        return out

    def text(self) -> str:
        """What a terminal shows."""
        numbers = self.metrics()
        lines = [f"policies, means of V over the observed states, beta = {self.beta:g}", str(self.table)]
        lines += [
            f"{row['first']} - {row['second']}: {row['difference']:.4g} +- {row['std']:.2g}"
            for row in numbers["differences"]
        ]
        errors = [f"{r['policy']} {r['relative_l2']:.2%}" for r in numbers["policies"] if "relative_l2" in r]
        if errors:
            lines.append("relative L2 error of V: " + ", ".join(errors))
        for name, best in self.improved.items():
            error = "" if best.gain_std is None else f" +- {best.gain_std:.2g}"
            lines.append(
                f"{name}: gain over the behaviour {best.gain:.4g}{error}, corrected for having chosen the best; "
                f"{len(best.history)} iterations, {'converged' if best.converged else 'NOT converged'}"
            )
        return "\n".join(lines)

    # -- numbers and figures ------------------------------------------------------------------------------------------
    def curves(self) -> dict[str, Curve]:
        """V of every policy on the grid, and the effective number of pairs that support it around each state."""
        found = {}
        for name, V in self.table.values.items():
            std = None if V.covariance_factor is None else V.std(self.x).numpy()
            truth = self.truths.get(name)
            known = None if truth is None else truth(self.x).numpy()
            found[name] = Curve(V(self.x).numpy(), std, known, self._pairs(name))
        return found

    @property
    def _states(self) -> Tensor:
        """x in a row, (n,) or (n, 2)."""
        return self.x if self.recovery.dim == 1 else self.x.reshape(-1, self.recovery.dim)

    def _pairs(self, name: str) -> Any:
        pairs = self.recovery.effective_pairs(self.policies[name]).clamp(max=1e12)
        found = self.recovery.cell_parts.between(pairs[:, None])(self._states)[:, 0]
        return found.reshape(self.x.shape[:2] if self.recovery.dim == 2 else self.x.shape).numpy()

    def write(self, directory: Path) -> None:
        """policies.csv (the table), policy_values.csv (the numbers behind the figures), values/policy<i>.pt."""
        rows = self.table.rows()
        write_csv(directory / "policies.csv", {key: [row[key] for row in rows] for key in rows[0]})
        columns: dict[str, Any] = {"x": self.x.numpy()}
        if self.recovery.dim == 2:
            columns = {"u": self.x[..., 0].reshape(-1).numpy(), "v": self.x[..., 1].reshape(-1).numpy()}
        for name, curve in self.curves().items():
            for suffix, values in zip(("", "_std", "_truth", "_pairs"), curve):
                if values is not None:
                    columns[f"{name}{suffix}"] = np.asarray(values).reshape(-1)
        write_csv(directory / "policy_values.csv", columns)
        for number, V in enumerate(self.table.values.values()):
            V.save(directory / "values" / f"policy{number}.pt")

    def drawings(self, units: AxisNames | None = None) -> dict[str, Callable[[], Any]]:
        """Name of a figure -> what draws it."""
        found: dict[str, Callable[[], Any]] = {}
        if self.recovery.dim == 1:
            x, curves = self.x.numpy(), self.curves()
            found["value"] = lambda: policies.policy_values(x, curves, units=units)[0]
        else:
            found |= {f"value_{_word(name)}": self._map(name, units) for name in self.table.values}
        for name in self.policies:
            draw = self._policy(name, units)
            if draw is not None:
                found[f"policy_{_word(name)}"] = draw
        return found

    def _map(self, name: str, units: AxisNames | None) -> Callable[[], Any]:
        return lambda: planes.contours(self.table.values[name], self.truths.get(name), units=units)[0]

    def _policy(self, name: str, units: AxisNames | None) -> Callable[[], Any] | None:
        """What draws a policy over the state; None where it is the same everywhere."""
        pi = self.recovery.policy(self.policies[name])
        rows, pairs = pi(self._states), self._pairs(name)
        table = rows.reshape(len(rows), -1).numpy()
        if np.ptp(table, axis=0).max() <= 1e-9:
            return None
        labels = getattr(self.recovery, "actions", ())
        if self.recovery.dim == 2:
            if not isinstance(pi, Policy):
                return None
            u, v = self.x[:, 0, 0].numpy(), self.x[0, :, 1].numpy()
            grid = table.reshape(len(u), len(v), -1)
            return lambda: policies.policy_map(u, v, grid, labels, pairs, units=units)[0]
        x = self.x.numpy()
        if isinstance(pi, Policy):
            return lambda: policies.policy_over_state(x, table, labels, pairs, units=units)[0]
        return lambda: policies.action_over_state(x, table, pairs, units=units)[0]


def evaluate_policies(
    recovery: Any,
    settings: Mapping[str, Mapping[str, Any]],
    reward: Any,
    beta: float,
    truth: Any = None,
    *,
    window: Any = None,
    n_modes: int | None = None,
) -> PolicyResult:
    """V of the policies of checked settings on a recovery with actions; of the behaviour where there are none."""
    on_line = {"window": window} if recovery.period is None else {}
    given = {
        name: build_policy(name, config, recovery, reward, beta, **on_line)
        for name, config in (settings or ONE).items()
    }
    chosen = {name: recovery.policy(policy_of(one)) for name, one in given.items()}
    options = {"n_modes": n_modes, "tolerance": _TOLERANCE, **on_line}
    table = rank(recovery, chosen, reward, beta, **options)
    improved = {name: one for name, one in given.items() if isinstance(one, Improvement)}
    first = next(iter(table.values.values()))
    truths = {}
    if truth is not None and tuple(truth.actions) == tuple(getattr(recovery, "actions", ())):
        same = {"window": first.window} if recovery.period is None else {}
        truths = {
            name: solve_value(truth.under(pi), reward, beta, n_modes=table.values[name].n_modes, **same)
            for name, pi in chosen.items()
        }
    return PolicyResult(recovery, table, chosen, improved, truths, beta, value_grid(first, _SIDE))


def _word(name: str) -> str:
    return re.sub(r"\W+", "_", name) or "policy"


def policies_of_runs(settings: Mapping[str, Any], runs: Sequence[Run]) -> PolicyResult:
    """V of the policies on the one run; refuses settings that are for runs without actions."""
    if len(runs) > 1:
        raise ConfigError(
            f"run must name one run to compare policies on, found {len(runs)} of which some have actions; evaluate "
            "them one by one."
        )
    (run,) = runs
    recovery, beta = run.recovery, float(settings["beta"])
    transitions = None
    if settings["data"]["path"] is not None:
        given = {key: value for key, value in settings["data"]["options"].items() if value is not None}
        transitions = Trajectories.from_file(settings["data"]["path"], **given).transitions()
        if transitions.action is None:
            raise ConfigError(
                "data.path must have actions like the run, found none; name their column: data.options.action=."
            )
    actions = tuple(getattr(recovery, "actions", ()))
    context = RewardContext(recovery.period, recovery.origin, beta, None, transitions, recovery.dim, actions)
    reward = build_reward(settings["reward"], context)
    window = settings["window"]
    if window is not None and recovery.period is not None:
        raise ConfigError(f"window must be left out beside a period, found {window}; remove it.")
    if window is not None:
        support = (recovery.metrics["x_min"], recovery.metrics["x_max"]) if not actions else recovery.support
        window = None if window == "data" else check_window(window, float("inf"), support)
    truth = run.truth()
    known = truth if isinstance(truth, ControlledDynamics) else None
    policies = check_policies(settings.get("policy"))
    return evaluate_policies(recovery, policies, reward, beta, known, window=window, n_modes=settings["n_modes"])


def write_policies(settings: Mapping[str, Any], runs: Sequence[Run], out: Path) -> Shown:
    """The numbers into one directory: metrics.json, policies.csv, policy_values.csv, values/."""
    result = policies_of_runs(settings, runs)
    metrics = result.metrics()
    write_json(out / "metrics.json", metrics)
    result.write(out)
    figures = {name: make() for name, make in result.drawings(units_of(runs[0].config.get("data") or {})).items()}
    scalars = [("mean_V", row["mean V"], number) for number, row in enumerate(metrics["policies"])]
    return Shown(figures, [result.text()], scalars)
