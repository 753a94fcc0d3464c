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

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import FourierBasis
from levytorch.convert import real_number, real_tensor, whole_number
from levytorch.errors import InputError
from levytorch.policies import Policy, reward_of
from levytorch.policy.checks import cell_of, check_beta
from levytorch.policy.generator import Operators, operators
from levytorch.policy.linear_system import root_of
from levytorch.policy.value import ValueFunction

_ITERATIONS = 100
_STILL = 1e-9  # relative change of V at which iteration ends
_DRAWS = 100  # of the bootstrap: the error of the correction is then a tenth of the gain's standard error


@dataclass(frozen=True)
class Improvement:
    """What policy iteration has found.

    policy: pi(a | x); V: its value (without the entropy of a temperature); q: x -> (..., n_actions); gain: mean of
    V - V(behaviour) over the observed states, corrected for having chosen the best, with its standard error (None
    without a covariance); history: the mean over the cell of what is maximised, never falling; converged.
    """

    policy: Policy
    V: ValueFunction
    q: Callable[[Any], Tensor]
    gain: float
    gain_std: float | None
    history: list[float] = field(default_factory=list)
    converged: bool = True

    def __repr__(self) -> str:
        error = "" if self.gain_std is None else f" +- {self.gain_std:.2g}"
        return f"Improvement(gain={self.gain:.4g}{error}, {len(self.history)} iterations, converged={self.converged})"


def improve(
    recovery: Any, reward: Any, beta: float, *, temperature: float = 0.0, n_modes: int = 129, seed: int = 0
) -> Improvement:
    """The best policy over the actions of a ControlledRecovery (or ControlledDynamics), by policy iteration.

    Args:
        reward: r(x), or r(x, action).
        temperature: of the entropy; 0 takes the best action everywhere.
        n_modes: collocation points of V; a greedy policy jumps between actions, so V has kinks in its curvature.
        seed: of the bootstrap that corrects the gain.

    >>> from levytorch import ControlledDynamics
    >>> push = ControlledDynamics(lambda x, a: float(a) + 0 * x, 1.0, 0.5, 0.6, actions=(-1, 1))
    >>> best = improve(push, torch.cos, beta=1.0)
    >>> best.policy(torch.tensor([1.0, -1.0])).argmax(1).tolist()  # towards 0, where cos is largest
    [0, 1]
    """
    if not hasattr(recovery, "actions"):
        raise InputError(
            f"improve needs a system with actions, found a {type(recovery).__name__}; recover one from data with "
            "actions, or build a ControlledDynamics."
        )
    beta = check_beta(beta)
    temperature = real_number("temperature", temperature, "give 0 for the best action everywhere")
    if temperature < 0:
        raise InputError(f"temperature must not be negative, found {temperature:g}; give 0 for the best action.")
    seed = whole_number("seed", seed, 0, 2**63 - 1)
    period, origin = cell_of(recovery.of(recovery.actions[0]))
    basis = FourierBasis(whole_number("n_modes", n_modes, 3, 2049, "give an odd number"), period, origin)
    problem = _Problem.of(recovery, reward, beta, temperature, basis)
    found = problem.iterate(problem.start())
    weights, behaviour = _reference(recovery, basis)
    gain, gain_std = problem.gain(found.pi, weights, behaviour), None
    covariance = getattr(recovery, "covariance", None)
    if covariance is not None:
        added = _optimism(recovery, problem, root_of(covariance), weights, behaviour, seed)
        gain, gain_std = gain - float(added.mean()), float(added.std())
    q = problem.rates(recovery, found.c)
    policy = Policy(lambda x: _choose(q(x), temperature), recovery.actions)
    V = ValueFunction(problem.value(found.pi), period, origin, beta, converged=found.converged)
    return Improvement(policy, V, q, gain, gain_std, found.history, found.converged)


@dataclass
class _Found:
    pi: Tensor
    c: Tensor
    history: list[float]
    converged: bool


@dataclass(frozen=True)
class _Problem:
    """Coefficients and rewards of all actions at the collocation points, (n, A) each."""

    basis: FourierBasis
    ops: Operators
    b: Tensor
    D_o: Tensor
    D_f: Tensor
    r: Tensor
    reward: Any
    beta: float
    temperature: float

    @staticmethod
    def of(recovery: Any, reward: Any, beta: float, temperature: float, basis: FourierBasis) -> _Problem:
        x = basis.points()
        systems = [recovery.of(a) for a in recovery.actions]
        alpha = torch.as_tensor(float(systems[0].alpha), dtype=torch.float64)
        b, D_o, D_f = (
            torch.stack([getattr(system, name)(x).detach() for system in systems], dim=1)
            for name in ("b", "D_o", "D_f")
        )
        r = torch.stack([reward_of(reward, a, x) for a in recovery.actions], dim=1)
        return _Problem(basis, operators(basis, x, alpha), b, D_o, D_f, r, reward, beta, temperature)

    def start(self) -> Tensor:
        """All actions alike, (n, A)."""
        return torch.full_like(self.r, 1 / self.r.shape[1])

    def value(self, pi: Tensor, entropy: bool = False) -> Tensor:
        """Fourier coefficients of V of a policy at the points."""
        b, D_o, D_f, r = ((pi * part).sum(1, keepdim=True) for part in (self.b, self.D_o, self.D_f, self.r))
        if entropy and self.temperature > 0:
            r = r - self.temperature * torch.special.xlogy(pi, pi).sum(1, keepdim=True)
        A = self.beta * self.ops.phi - b * self.ops.first - D_o * self.ops.second + D_f * self.ops.fractional
        return torch.linalg.solve(A, r)[:, 0]

    def advantage(self, c: Tensor) -> Tensor:
        """q at the points, (n, A)."""
        V, first, second, jump = ((part @ c).unsqueeze(1) for part in self.ops)
        return self.r + self.b * first + self.D_o * second - self.D_f * jump - self.beta * V

    def iterate(self, pi: Tensor) -> _Found:
        """Policy iteration from pi; keeps the best policy should rounding make a step worse."""
        c = self.value(pi, entropy=True)
        history = [float(c[0])]
        for _ in range(_ITERATIONS):
            new = _choose(self.advantage(c), self.temperature, pi)
            moved = self.value(new, entropy=True)
            if float(moved[0]) < history[-1] - _STILL * abs(history[-1]):
                return _Found(pi, c, history, True)
            change, size = (float((self.ops.phi @ part).abs().max()) for part in (moved - c, moved))
            pi, c = new, moved
            history.append(float(c[0]))
            if change <= _STILL * size:
                return _Found(pi, c, history, True)
        return _Found(pi, c, history, False)

    def gain(self, pi: Tensor, weights: Tensor, behaviour: Tensor) -> float:
        """Mean over the states that `weights` (n,) weighs of V(pi) - V(behaviour)."""
        return float(weights @ (self.ops.phi @ (self.value(pi) - self.value(behaviour))))

    def rates(self, recovery: Any, c: Tensor) -> Callable[[Any], Tensor]:
        """q as a function of any x."""
        V = ValueFunction(c, self.basis.period, self.basis.origin, self.beta)
        systems = {a: recovery.of(a) for a in recovery.actions}
        alpha = float(next(iter(systems.values())).alpha)

        def q(x: Any) -> Tensor:
            at = real_tensor("x", x)
            first, second = V.derivative(at), V.derivative(at, 2)
            jump, level = V.fractional_laplacian(at, alpha), self.beta * V(at)
            flat = at.reshape(-1)
            of_actions = [
                reward_of(self.reward, a, flat).reshape(at.shape)
                + s.b(at) * first + s.D_o(at) * second - s.D_f(at) * jump - level
                for a, s in systems.items()
            ]  # fmt: skip
            return torch.stack(of_actions, dim=-1)

        return q


def _choose(q: Tensor, temperature: float, before: Tensor | None = None) -> Tensor:
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


def _reference(recovery: Any, basis: FourierBasis) -> tuple[Tensor, Tensor]:
    """How often states near each point were observed, (n,), and what was done there, (n, A); even without data."""
    x = basis.points()
    if not hasattr(recovery, "counts"):
        even = torch.full((len(x), len(recovery.actions)), 1 / len(recovery.actions), dtype=torch.float64)
        return torch.full((len(x),), 1 / len(x), dtype=torch.float64), even
    seen = recovery.counts.sum(0)
    part = torch.remainder(x - basis.origin, basis.period) * (len(seen) / basis.period)
    weights = seen[part.to(torch.int64).clamp(max=len(seen) - 1)]
    return weights / weights.sum(), recovery.behaviour(x)


def _optimism(
    recovery: Any, problem: _Problem, directions: Tensor, weights: Tensor, behaviour: Tensor, seed: int
) -> Tensor:
    """gain_theta*(pi*) - gain_theta(pi*) of policies pi* that draws theta* choose, (draws,)."""
    generator = torch.Generator().manual_seed(seed)
    heads = [found.head for found in recovery.recoveries]
    kept = [head.flat() for head in heads]
    sizes = [theta.numel() for theta in kept]
    added = []
    try:
        for _ in range(_DRAWS):
            noise = directions @ torch.randn(directions.shape[1], generator=generator, dtype=torch.float64)
            for head, theta, step in zip(heads, kept, torch.split(noise, sizes)):
                head.set_flat(theta + step)
            drawn = _Problem.of(recovery, problem.reward, problem.beta, problem.temperature, problem.basis)
            pi = drawn.iterate(behaviour).pi
            added.append(drawn.gain(pi, weights, behaviour) - problem.gain(pi, weights, behaviour))
    finally:
        for head, theta in zip(heads, kept):
            head.set_flat(theta)
    return torch.tensor(added, dtype=torch.float64)
