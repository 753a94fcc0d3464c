"""Policy iteration in continuous time: a <- argmax of r(x, a) + L^a V, until the policy no longer changes.

    q(x, a) = r(x, a) + b_a V' + D_o,a V'' - D_f,a (-Lap)^alpha V - beta V

is the rate at which holding a for a moment gains on V (the continuous-time q-function); V of the next policy is never
smaller. With a temperature the policy is pi ~ exp(q / temperature), which maximises the same plus temperature times the
entropy of pi (the exploratory formulation).

The best of many policies looks better than it is when V is estimated. The gain is corrected for that by a parametric
bootstrap of the whole procedure: parameters theta* drawn around the estimate choose their own policy pi*, and
V_theta*(pi*) - V_theta(pi*) is what choosing adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from levytorch.convert import real_number, whole_number
from levytorch.errors import InputError
from levytorch.policies import NumberPolicy, Policy
from levytorch.policy.checks import check_beta, check_window, is_line
from levytorch.policy.iteration import ControlProblem, probabilities_from
from levytorch.policy.linear_system import root_of
from levytorch.policy.nodes import Nodes, nodes_of

_DRAWS = 100  # of the bootstrap: the error of the correction is then a tenth of the gain's standard error


@dataclass(frozen=True)
class Improvement:
    """What policy iteration has found.

    policy: pi(a | x), for `under` of what it was found for; V: its value (without the entropy of a temperature); q:
    x -> (..., n_actions), in the order of `actions`; gain: mean of V - V(behaviour) over the observed states, corrected
    for having chosen the best, with its standard error (None without a covariance); history: the mean over the cell of
    what is maximised, never falling; converged.
    """

    policy: Any
    V: Any
    q: Callable[[Any], Tensor]
    gain: float
    gain_std: float | None
    history: list[float] = field(default_factory=list)
    converged: bool = True
    actions: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        error = "" if self.gain_std is None else f" +- {self.gain_std:.2g}"
        return f"Improvement(gain={self.gain:.4g}{error}, {len(self.history)} iterations, converged={self.converged})"


def improve(
    recovery: Any,
    reward: Any,
    beta: float,
    *,
    temperature: float = 0.0,
    n_modes: int | None = None,
    window: Any = None,
    seed: int = 0,
) -> Improvement:
    """The best policy over the actions of a recovery with actions (or of a ControlledDynamics), by policy iteration.

    Args:
        reward: r(x), or r(x, action).
        temperature: of the entropy; 0 takes the best action everywhere.
        n_modes: nodes of V: 129 on a cell, 256 on a line, 24 per coordinate on a torus if None; a greedy policy jumps
            between actions, so V has kinks in its curvature.
        window: of a state on a line, as of `solve_value`; beyond its ends V stays what it is there.
        seed: of the bootstrap that corrects the gain.

    Actions on a scale are chosen from a grid over the logged range (9 numbers, 5 x 5 vectors);
    `improve(found.on([...]), ...)` chooses from others.

    >>> from levytorch import ControlledDynamics
    >>> push = ControlledDynamics(lambda x, a: float(a) + 0 * x, 1.0, 0.5, 0.6, actions=(-1, 1))
    >>> best = improve(push, torch.cos, beta=1.0)
    >>> best.policy(torch.tensor([1.0, -1.0])).argmax(1).tolist()  # towards 0, where cos is largest
    [0, 1]
    """
    if not hasattr(recovery, "actions") and not hasattr(recovery, "on"):
        raise InputError(
            f"improve needs a system with actions, found a {type(recovery).__name__}; recover one from data with "
            "actions, or build a ControlledDynamics."
        )
    beta = check_beta(beta)
    temperature = real_number("temperature", temperature, "give 0 for the best action everywhere")
    if temperature < 0:
        raise InputError(f"temperature must not be negative, found {temperature:g}; give 0 for the best action.")
    seed = whole_number("seed", seed, 0, 2**63 - 1)
    bounds = None if getattr(recovery, "actions", ()) else recovery.bounds
    if bounds is not None:
        recovery = recovery.on()
    systems = {a: recovery.of(a) for a in recovery.actions}
    _refuse_tempering(systems)
    nodes = nodes_of(systems[recovery.actions[0]], beta, n_modes, _window(recovery, systems, window))
    problem = ControlProblem.of(systems, reward, beta, temperature, nodes)
    found = problem.iterate(problem.start())
    weights, behaviour = _reference(recovery, nodes)
    gain, gain_std = problem.gain(found.pi, weights, behaviour), None
    covariance = getattr(recovery, "covariance", None)
    if covariance is not None:
        added = _optimism(recovery, problem, found.pi, root_of(covariance), weights, behaviour, seed)
        gain, gain_std = gain - float(added.mean()), float(added.std())
    q = problem.rates(systems, found.c)
    labels = tuple(recovery.actions)
    policy: Any = Policy(lambda x: probabilities_from(q(x), temperature), labels)
    if bounds is not None:
        table = torch.tensor(labels, dtype=torch.float64).reshape(len(labels), -1)
        policy = NumberPolicy(table, bounds, weights=policy)
    V = replace(nodes.value(problem.value(found.pi)), converged=found.converged)
    return Improvement(policy, V, q, gain, gain_std, found.history, found.converged, labels)


def _window(recovery: Any, systems: dict[Any, Any], window: Any) -> Any:
    """On a line: within the data of all actions together."""
    support = getattr(recovery, "support", None)
    if window is not None:
        return check_window(window, math.inf, support)
    return support if is_line(next(iter(systems.values()))) else None


def _refuse_tempering(systems: dict[Any, Any]) -> None:
    for system in systems.values():
        if float(getattr(system, "tempering", 0.0)) > 0:
            raise InputError(
                f"policies are improved where jumps are without tempering, found tempering {system.tempering:g}; "
                "compare policies by solve_value instead."
            )


def _reference(recovery: Any, nodes: Nodes) -> tuple[Tensor, Tensor]:
    """How often states near each node were observed, (n,), and what was done there, (n, A); even without data."""
    x = nodes.x
    if not hasattr(recovery, "counts"):
        even = torch.full((len(x), len(recovery.actions)), 1 / len(recovery.actions), dtype=torch.float64)
        return nodes.share, even
    weights = nodes.share * recovery.counts.sum(0)[recovery.parts.index(x)]
    return weights / weights.sum(), recovery.behaviour(x)


def _optimism(
    recovery: Any,
    problem: ControlProblem,
    pi: Tensor,
    directions: Tensor,
    weights: Tensor,
    behaviour: Tensor,
    seed: int,
) -> Tensor:
    """gain_theta*(pi*) - gain_theta(pi*) of policies pi* that draws theta* choose, (draws,); iteration starts at pi."""
    generator = torch.Generator().manual_seed(seed)
    heads, systems = recovery.heads, {a: recovery.of(a) for a in recovery.actions}
    kept = [head.flat() for head in heads]
    sizes = [theta.numel() for theta in kept]
    added = []
    try:
        for _ in range(_DRAWS):
            noise = directions @ torch.randn(directions.shape[1], generator=generator, dtype=torch.float64)
            for head, theta, step in zip(heads, kept, torch.split(noise, sizes)):
                head.set_flat(theta + step)
            drawn = ControlProblem.of(systems, problem.reward, problem.beta, problem.temperature, problem.nodes)
            best = drawn.iterate(pi).pi
            added.append(drawn.gain(best, weights, behaviour) - problem.gain(best, weights, behaviour))
    finally:
        for head, theta in zip(heads, kept):
            head.set_flat(theta)
    return torch.tensor(added, dtype=torch.float64)
