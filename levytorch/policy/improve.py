"""Policy iteration in continuous time: a <- argmax of r(x, a) + L^a V, until the policy no longer changes.

    q(x, a) = r(x, a) + b_a V' + D_o,a V'' - D_f,a (-Lap)^alpha V - beta V

is the rate at which holding a for a moment gains on V (the continuous-time q-function; with tempered jumps their
operator stands for (-Lap)^alpha); V of the next policy is never smaller. With a temperature the policy
is pi ~ exp(q / temperature), which maximises the same plus temperature times the entropy of pi (the exploratory
formulation).

The best of many policies looks better than it is when V is estimated. The gain is corrected for that by a parametric
bootstrap of the whole procedure: parameters theta* drawn around the estimate choose their own policy pi*, and
V_theta*(pi*) - V_theta(pi*) is what choosing adds.

All of it happens on nodes: coefficients and rewards of all actions as tables, V of any policy by one linear solve.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.convert import real_number, real_tensor, whole_number
from levytorch.errors import InputError, NumericalError
from levytorch.policies import NumberPolicy, Policy, reward_of
from levytorch.policy.checks import check_beta, check_window, discounted_by_rate, is_line
from levytorch.policy.generator import root_of
from levytorch.policy.nodes import Local, Nodes, nodes_of

_DRAWS = 100  # of the bootstrap: the error of the correction is then a tenth of the gain's standard error
_ITERATIONS = 100
_STILL = 1e-9  # relative change of V at which iteration ends


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


@discounted_by_rate
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
    """The best policy over the actions of a fit, by policy iteration.

    Actions on a scale are chosen from a grid over the logged range (9 numbers, or 5 x 5 vectors);
    `improve(found.on([...]), ...)` chooses from others.

    Args:
        recovery: a ControlledRecovery, a ContinuousRecovery or a ControlledDynamics.
        reward: r(x), or r(x, action).
        beta: the discount rate per unit of time.
        temperature: of the entropy; 0 takes the best action everywhere.
        n_modes: resolution of V; None takes 129 on a circle, 256 on a line, and 24 per coordinate on a torus.
        window: of a state on a line, as in `solve_value`; beyond its ends V stays what it is there.
        seed: of the bootstrap that corrects the gain for having chosen the best.

    Returns:
        An Improvement: `.policy`, its value `.V`, `.q(x)`, the mean `.gain` over the policy of the data with its
        standard error `.gain_std`, and `.history`.

    Example:
        >>> from levytorch import ControlledDynamics
        >>> push = ControlledDynamics(lambda x, a: float(a) + 0 * x, 1.0, 0.5, 0.6, actions=(-1, 1))
        >>> best = improve(push, torch.cos, beta=1.0)
        >>> best.policy(torch.tensor([1.0, -1.0])).argmax(1).tolist()  # towards 0, where cos is largest
        [0, 1]
    """
    if not (hasattr(recovery, "of") and hasattr(recovery, "actions")) and not hasattr(recovery, "on"):
        raise InputError(
            f"recovery must be a system with actions, found a {type(recovery).__name__}; recover one from data with "
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
    first, limits = systems[recovery.actions[0]], _window(recovery, systems, window)

    def at_nodes() -> Nodes:
        return nodes_of(first, beta, n_modes, limits)

    nodes = at_nodes()
    problem = ControlProblem(systems, reward, beta, temperature, nodes)
    found = problem.iterate(problem.start())
    weights, behaviour = _reference(recovery, nodes)
    gain, gain_std = problem.gain(found.pi, weights, behaviour), None
    covariance = getattr(recovery, "covariance", None)
    if covariance is not None:
        head = recovery.heads[0]
        moved = at_nodes if head.learns_alpha or head.tempering_spec.learned else lambda: nodes
        added = _optimism(recovery, problem, moved, found.pi, root_of(covariance), weights, behaviour, seed)
        gain, gain_std = gain - float(added.mean()), float(added.std())
    q = problem.rates(found.c)
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


def _reference(recovery: Any, nodes: Nodes) -> tuple[Tensor, Tensor]:
    """How often states near each node were observed, (n,), and what was done there, (n, A); even without data."""
    x = nodes.x
    if not hasattr(recovery, "counts"):
        even = torch.full((len(x), len(recovery.actions)), 1 / len(recovery.actions), dtype=torch.float64)
        return nodes.share, even
    weights = nodes.share * recovery.counts.sum(0)[recovery.cell_parts.index(x)]
    return weights / weights.sum(), recovery.behaviour(x)


def _optimism(
    recovery: Any,
    problem: ControlProblem,
    nodes: Callable[[], Nodes],
    pi: Tensor,
    directions: Tensor,
    weights: Tensor,
    behaviour: Tensor,
    seed: int,
) -> Tensor:
    """gain_theta*(pi*) - gain_theta(pi*) of policies pi* that draws theta* choose, (draws,); iteration starts at pi.

    nodes: those of the parameters that the heads hold; a learned alpha or tempering moves the operator of jumps.
    """
    generator = torch.Generator().manual_seed(seed)
    heads = recovery.heads
    kept = [head.flat() for head in heads]
    sizes = [theta.numel() for theta in kept]
    added = []
    try:
        for _ in range(_DRAWS):
            noise = directions @ torch.randn(directions.shape[1], generator=generator, dtype=torch.float64)
            for head, theta, step in zip(heads, kept, torch.split(noise, sizes)):
                head.set_flat(theta + step)
            drawn = replace(problem, nodes=nodes())
            best = drawn.iterate(pi).pi
            added.append(drawn.gain(best, weights, behaviour) - problem.gain(best, weights, behaviour))
    finally:
        for head, theta in zip(heads, kept):
            head.set_flat(theta)
    return torch.tensor(added, dtype=torch.float64)


@dataclass
class Iterated:
    pi: Tensor
    c: Tensor
    history: list[float]
    converged: bool


class ActionTables(NamedTuple):
    """Coefficients and rewards of all actions at n states, (n, A) each; b one such per coordinate."""

    b: list[Tensor]
    D_o: Tensor
    D_f: Tensor
    r: Tensor

    @staticmethod
    def of(systems: dict[Any, Any], reward: Any, x: Tensor) -> ActionTables:
        b, D_o, D_f = (
            torch.stack([getattr(system, name)(x).detach() for system in systems.values()], dim=-1)
            for name in ("b", "D_o", "D_f")
        )
        if D_o.ndim > D_f.ndim:
            raise InputError(
                "D_o must be a number at every state to improve policies, found matrices; compare some by solve_value "
                "of system.under(policy)."
            )
        r = torch.stack([reward_of(reward, a, x) for a in systems], dim=1)
        return ActionTables([b] if b.ndim == 2 else list(b.unbind(1)), D_o, D_f, r)

    def q(self, at: Local, beta: float) -> Tensor:
        """r + L^a V - beta V, (n, A)."""
        q = self.r + self.D_o * at.second[:, None] - self.D_f * at.jump[:, None] - beta * at.V[:, None]
        for own, slope in zip(self.b, at.first):
            q = q + own * slope[:, None]
        return q


@dataclass
class ControlProblem:
    """Systems by action, their tables at the nodes as the parameters are now, and what is maximised."""

    systems: dict[Any, Any]
    reward: Any
    beta: float
    temperature: float
    nodes: Nodes
    tables: ActionTables = field(init=False)

    def __post_init__(self) -> None:
        self.tables = ActionTables.of(self.systems, self.reward, self.nodes.x)

    def start(self) -> Tensor:
        """All actions alike, (n, A)."""
        return torch.full_like(self.tables.r, 1 / len(self.systems))

    def value(self, pi: Tensor, entropy: bool = False) -> Tensor:
        """c of V under pi (n, A) at the nodes; with the entropy of pi as a reward where that is asked for."""
        drifts, *others = self.tables
        D_o, D_f, r = ((pi * part).sum(1, keepdim=True) for part in others)
        if entropy and self.temperature > 0:
            r = r - self.temperature * torch.special.xlogy(pi, pi).sum(1, keepdim=True)
        A = self.beta * self.nodes.phi - D_o * self.nodes.second + D_f * self.nodes.fractional
        for b, first in zip(drifts, self.nodes.first):
            A -= (pi * b).sum(1, keepdim=True) * first
        if self.nodes.scale:
            size = A.abs().amax(1, keepdim=True)
            A, r = A / size, r / size
        solved, info = torch.linalg.solve_ex(A, r)
        if int(info) or not bool(torch.isfinite(solved).all()):
            raise NumericalError(
                f"(beta - L) V = r must have one solution, found none at beta = {self.beta:g}; use another beta, or "
                "check the coefficients."
            )
        return solved[:, 0]

    def mean(self, c: Tensor) -> float:
        """Mean over the cell of the V that belongs to c."""
        return float(self.nodes.share @ (self.nodes.phi @ c))

    def iterate(self, pi: Tensor) -> Iterated:
        """Policy iteration from pi; keeps the best policy should rounding make a step worse."""
        c = self.value(pi, entropy=True)
        history = [self.mean(c)]
        for _ in range(_ITERATIONS):
            new = probabilities_from(self.tables.q(self.nodes.at_nodes(c), self.beta), self.temperature, pi)
            moved = self.value(new, entropy=True)
            level = self.mean(moved)
            if level < history[-1] - _STILL * abs(history[-1]):
                return Iterated(pi, c, history, True)
            change, size = (float((self.nodes.phi @ part).abs().max()) for part in (moved - c, moved))
            pi, c = new, moved
            history.append(level)
            if change <= _STILL * size:
                return Iterated(pi, c, history, True)
        return Iterated(pi, c, history, False)

    def gain(self, pi: Tensor, weights: Tensor, behaviour: Tensor) -> float:
        """Mean over the states that `weights` (n,) weighs of V(pi) - V(behaviour)."""
        return float(weights @ (self.nodes.phi @ (self.value(pi) - self.value(behaviour))))

    def rates(self, c: Tensor) -> Callable[[Any], Tensor]:
        """q as a function of any x."""
        dim = len(self.nodes.first)

        def q(x: Any) -> Tensor:
            at = real_tensor("x", x)
            flat = at.reshape(-1) if dim == 1 else at.reshape(-1, dim)
            found = ActionTables.of(self.systems, self.reward, flat).q(self.nodes.local(c, flat), self.beta)
            return found.reshape(*(at.shape if dim == 1 else at.shape[:-1]), -1)

        return q


def probabilities_from(q: Tensor, temperature: float, before: Tensor | None = None) -> Tensor:
    """Greedy or Boltzmann probabilities (n, A); a tie keeps the action of before, so that iteration ends."""
    if temperature > 0:
        return torch.softmax(q / temperature, dim=-1)
    best = q.argmax(-1)
    if before is not None:
        held = before.argmax(-1)
        gap = q.gather(-1, best[..., None]) - q.gather(-1, held[..., None])
        same = (gap[..., 0] <= 1e-12 * q.abs().amax(-1)) & (before.amax(-1) == 1)
        best = torch.where(same, held, best)
    return torch.nn.functional.one_hot(best, q.shape[-1]).to(q.dtype)
