"""Policies by name, for configuration files: what conf/policy/*.yaml and the settings `policy` say.

Nothing is evaluated from strings: `callable` imports a function by its dotted path, and only one's own command line can
name it, never a run directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import known_keys, real_number, shown
from levytorch.errors import ConfigError
from levytorch.policies import NumberPolicy, Policy
from levytorch.policy.improve import Improvement, improve
from levytorch.policy.rewards import import_callable
from levytorch.untrusted import read_csv

# kind -> its options
KINDS: dict[str, frozenset[str]] = {
    "behaviour": frozenset(),
    "uniform": frozenset(),
    "action": frozenset({"action"}),
    "probabilities": frozenset({"probabilities"}),
    "tabulated": frozenset({"path", "x"}),
    "callable": frozenset({"path"}),
    "improved": frozenset({"temperature", "actions"}),
}
_NEEDED = {"action": "action", "probabilities": "probabilities", "tabulated": "path", "callable": "path"}


def check_policies(policies: Any) -> dict[str, dict[str, Any]]:
    """{name: {"kind": one of KINDS, and its options}}, before any work; options that are null are left out."""
    if policies is None:
        return {}
    if not isinstance(policies, Mapping):
        raise ConfigError(
            f"policy must be one or more options of conf/policy, found {shown(policies)}; give policy=behaviour, or "
            "policy=[behaviour,uniform,improved]."
        )
    found: dict[str, dict[str, Any]] = {}
    for name, given in policies.items():
        if given is None or given is False:
            continue
        kind = given.get("kind") if isinstance(given, Mapping) else given
        if not isinstance(given, Mapping) or not isinstance(kind, str) or kind not in KINDS:
            raise ConfigError(f"policy.{name}.kind must be one of {', '.join(KINDS)}, found {shown(kind)}; choose one.")
        options = {str(key): value for key, value in given.items() if key != "kind" and value is not None}
        known_keys(f"the options of policy.{name}", options, KINDS[kind], ConfigError)
        needed = _NEEDED.get(kind)
        if needed is not None and needed not in options:
            raise ConfigError(f"policy.{name}.{needed} must be given, found none; add policy.{name}.{needed}=...")
        if kind == "callable":
            import_callable(str(options["path"]), f"policy.{name}.path")
        if kind == "improved":
            value = real_number(f"policy.{name}.temperature", options.get("temperature", 0.0))
            if value < 0:
                raise ConfigError(f"policy.{name}.temperature must not be negative, found {value:g}; 0 is the best.")
        found[str(name)] = {"kind": kind, **options}
    return found


def build_policy(name: str, config: Mapping[str, Any], recovery: Any, reward: Any, beta: float, **options: Any) -> Any:
    """The policy that checked settings name, for `recovery.under`; an Improvement where it is one that was found.

    options: of `improve`, window and n_modes.
    """
    kind = config["kind"]
    if kind in ("behaviour", "uniform"):
        return kind
    if kind == "action":
        given = config["action"]
        return tuple(given) if isinstance(given, list) else given
    if kind == "probabilities":
        given = config["probabilities"]
        return dict(given) if isinstance(given, Mapping) else given
    if kind == "callable":
        return import_callable(str(config["path"]), f"policy.{name}.path")
    if kind == "tabulated":
        return tabulated(Path(str(config["path"])), str(config.get("x", "x")), recovery)
    options["temperature"] = float(config.get("temperature", 0.0))
    if config.get("actions") is None:
        return improve(recovery, reward, beta, **options)
    if not hasattr(recovery, "on"):
        raise ConfigError(
            f"policy.{name}.actions must be left out where actions are labels, found {shown(config['actions'])}; "
            "remove it."
        )
    best = improve(recovery.on(config["actions"]), reward, beta, **options)
    table = torch.tensor(best.actions, dtype=torch.float64).reshape(len(best.actions), -1)
    return replace(best, policy=NumberPolicy(table, recovery.bounds, weights=best.policy))


def policy_of(given: Any) -> Any:
    """What `under` takes."""
    return given.policy if isinstance(given, Improvement) else given


def tabulated(path: Path, x: str, recovery: Any) -> Any:
    """A policy from a table: a column of states, and one called action (the nearest state counts), or one column per
    action with its probability (linear between states). On a scale the actions are linear between states.
    """
    labels = getattr(recovery, "actions", ())
    table = read_csv(path, (x,), texts=("action",) if labels else ())
    states = table.pop(x)
    if not table or len(states) == 0 or not np.isfinite(states).all() or not (np.diff(states) > 0).all():
        raise ConfigError(
            f"{path} must have a column {x} that rises and those of the policy, found others; sort and complete it."
        )
    period = None if recovery.period is None else float(np.atleast_1d(recovery.period)[0])

    def between(values: Any) -> Any:
        return lambda at: torch.from_numpy(np.interp(at.numpy(), states, values, period=period))

    columns = {name: between(values) for name, values in table.items() if name != "action" or not labels}
    if not labels:
        parts = list(columns.values())
        return lambda at: parts[0](at) if len(parts) == 1 else torch.stack([part(at) for part in parts], dim=-1)
    if list(table) == ["action"]:
        return _nearest(states, _labels_of(table["action"], labels), labels, period)
    names = [str(label) for label in labels]
    if "action" in table or set(columns) - set(names):
        raise ConfigError(
            f"{path}: columns must be action alone, or those of the actions {shown(labels)}, found {', '.join(table)}; "
            "rename them."
        )
    never = lambda at: torch.zeros_like(at)  # noqa: E731
    return lambda at: torch.stack([columns.get(name, never)(at) for name in names], dim=-1)


def _labels_of(column: Any, labels: tuple[Any, ...]) -> list[Any]:
    """A column of a table as labels: text, or numbers as the data has them."""
    names = {str(label): label for label in labels}
    out = []
    for cell in column:
        text = str(cell).strip()
        if text not in names:
            with_number = [label for label in labels if not isinstance(label, str) and _same(text, label)]
            if not with_number:
                raise ConfigError(
                    f"a tabulated policy must use the actions {shown(labels)}, found {shown(text)}; the data have no "
                    "others."
                )
            out.append(with_number[0])
        else:
            out.append(names[text])
    return out


def _same(text: str, label: Any) -> bool:
    try:
        return float(text) == float(label)
    except ValueError:
        return False


def _nearest(states: Any, chosen: list[Any], labels: tuple[Any, ...], period: float | None) -> Policy:
    codes = torch.tensor([labels.index(a) for a in chosen])
    rows = torch.nn.functional.one_hot(codes, len(labels)).to(torch.float64)
    at_states = torch.tensor(states, dtype=torch.float64)

    def policy(x: Tensor) -> Tensor:
        gap = x.reshape(-1, 1) - at_states
        if period is not None:
            gap = torch.remainder(gap + period / 2, period) - period / 2
        return rows[gap.abs().argmin(1)]

    return Policy(policy, labels)
