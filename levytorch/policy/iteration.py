"""Policy iteration on nodes: coefficients and rewards of all actions as tables, V of any policy by one linear solve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levytorch.convert import real_tensor
from levytorch.errors import NumericalError
from levytorch.policies import reward_of
from levytorch.policy.nodes import Local, Nodes

_ITERATIONS = 100
_STILL = 1e-9  # relative change of V at which iteration ends


@dataclass
class Found:
    pi: Tensor
    c: Tensor
    history: list[float]
    converged: bool


@dataclass(frozen=True)
class ControlProblem:
    """Coefficients and rewards of all actions at the nodes, (n, A) each; b one such per coordinate."""

    nodes: Nodes
    b: list[Tensor]
    D_o: Tensor
    D_f: Tensor
    r: Tensor
    reward: Any
    beta: float
    temperature: float

    @staticmethod
    def of(systems: dict[Any, Any], reward: Any, beta: float, temperature: float, nodes: Nodes) -> ControlProblem:
        x = nodes.x
        b, D_o, D_f = (
            torch.stack([getattr(system, name)(x).detach() for system in systems.values()], dim=-1)
            for name in ("b", "D_o", "D_f")
        )
        r = torch.stack([reward_of(reward, a, x) for a in systems], dim=1)
        drift = [b] if b.ndim == 2 else list(b.unbind(1))
        return ControlProblem(nodes, drift, D_o, D_f, r, reward, beta, temperature)

    def start(self) -> Tensor:
        """All actions alike, (n, A)."""
        return torch.full_like(self.r, 1 / self.r.shape[1])

    def value(self, pi: Tensor, entropy: bool = False) -> Tensor:
        """c of V under pi (n, A) at the nodes; with the entropy of pi as a reward where that is asked for."""
        D_o, D_f, r = ((pi * part).sum(1, keepdim=True) for part in (self.D_o, self.D_f, self.r))
        if entropy and self.temperature > 0:
            r = r - self.temperature * torch.special.xlogy(pi, pi).sum(1, keepdim=True)
        A = self.beta * self.nodes.phi - D_o * self.nodes.second + D_f * self.nodes.fractional
        for b, first in zip(self.b, self.nodes.first):
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

    def advantage(self, c: Tensor) -> Tensor:
        """q at the nodes, (n, A)."""
        return _q(self.r, self.b, self.D_o, self.D_f, self.nodes.at_nodes(c), self.beta)

    def mean(self, c: Tensor) -> float:
        """Mean over the cell of the V that belongs to c."""
        return float(self.nodes.share @ (self.nodes.phi @ c))

    def iterate(self, pi: Tensor) -> Found:
        """Policy iteration from pi; keeps the best policy should rounding make a step worse."""
        c = self.value(pi, entropy=True)
        history = [self.mean(c)]
        for _ in range(_ITERATIONS):
            new = probabilities_from(self.advantage(c), self.temperature, pi)
            moved = self.value(new, entropy=True)
            level = self.mean(moved)
            if level < history[-1] - _STILL * abs(history[-1]):
                return Found(pi, c, history, True)
            change, size = (float((self.nodes.phi @ part).abs().max()) for part in (moved - c, moved))
            pi, c = new, moved
            history.append(level)
            if change <= _STILL * size:
                return Found(pi, c, history, True)
        return Found(pi, c, history, False)

    def gain(self, pi: Tensor, weights: Tensor, behaviour: Tensor) -> float:
        """Mean over the states that `weights` (n,) weighs of V(pi) - V(behaviour)."""
        return float(weights @ (self.nodes.phi @ (self.value(pi) - self.value(behaviour))))

    def rates(self, systems: dict[Any, Any], c: Tensor) -> Callable[[Any], Tensor]:
        """q as a function of any x."""

        def q(x: Any) -> Tensor:
            at = real_tensor("x", x)
            dim = len(self.b)
            flat = at.reshape(-1) if dim == 1 else at.reshape(-1, dim)
            b, D_o, D_f = (
                torch.stack([getattr(s, name)(flat).detach() for s in systems.values()], dim=-1)
                for name in ("b", "D_o", "D_f")
            )
            drift = [b] if dim == 1 else list(b.unbind(1))
            r = torch.stack([reward_of(self.reward, a, flat) for a in systems], dim=1)
            found = _q(r, drift, D_o, D_f, self.nodes.local(c, flat), self.beta)
            return found.reshape(*(at.shape if dim == 1 else at.shape[:-1]), -1)

        return q


def _q(r: Tensor, b: list[Tensor], D_o: Tensor, D_f: Tensor, at: Local, beta: float) -> Tensor:
    """r + L^a V - beta V, (n, A)."""
    q = r + D_o * at.second[:, None] - D_f * at.jump[:, None] - beta * at.V[:, None]
    for own, slope in zip(b, at.first):
        q = q + own * slope[:, None]
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
