"""Coefficients of a state and a continuous action, products of functions of x and low polynomials of a; and the closed
loop of a policy, over actions on a scale or over heads of single actions.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from levytorch.coefficients.basis import Basis
from levytorch.coefficients.fourier import LinearHead
from levytorch.coefficients.head import Coefficients, Head

Bounds = tuple[tuple[float, float], ...]


class ActionBasis:
    """phi_k(x) P_j(u), u = a scaled to [-1, 1] over the logged range; x and a are the columns of a state (n, dim + m).

    P_j are Legendre's polynomials, for a vector their products of total degree below n_action.
    """

    def __init__(self, states: Basis, n_action: int, bounds: Bounds, dim: int) -> None:
        self.states, self.n_action, self.dim = states, n_action, dim
        self.low, self.high = (torch.tensor(end, dtype=torch.float64) for end in zip(*bounds))
        powers = itertools.product(range(n_action), repeat=len(bounds))
        self.powers = sorted((p for p in powers if sum(p) < n_action), key=sum)  # the constant is first

    @property
    def size(self) -> int:
        return self.states.size * len(self.powers)

    def rows(self, x: Tensor) -> Tensor:
        """(n, dim + m) -> (K, n); the constant is first."""
        phi = self.states.rows(x[:, 0].contiguous() if self.dim == 1 else x[:, : self.dim].contiguous())
        u = 2 * (x[:, self.dim :] - self.low) / (self.high - self.low) - 1
        P = [torch.ones_like(u), u]
        for j in range(1, self.n_action - 1):  # Legendre
            P.append(((2 * j + 1) * u * P[j] - j * P[j - 1]) / (j + 1))
        products = [torch.stack([P[j][:, i] for i, j in enumerate(power)]).prod(0) for power in self.powers]
        return (phi.unsqueeze(1) * torch.stack(products)).reshape(self.size, -1)

    def harmonic_numbers(self) -> Tensor:
        """What a roughness penalty weighs: waves in x; a polynomial is smooth by itself."""
        return self.states.harmonic_numbers().repeat_interleave(len(self.powers))

    def in_units(self, length: float) -> ActionBasis:
        """The same functions of states that are measured in units of this length; actions keep their own."""
        new = copy.copy(self)
        new.states = self.states.in_units(length)
        return new


class ActionHead(LinearHead):
    """b, D_o, D_f of (x, a), linear predictors over an ActionBasis; states are rows (x, a).

    of_states: a head of x alone, whose functions, cell, units, alpha and tempering these are.
    """

    def __init__(self, of_states: LinearHead, n_action: int, bounds: Sequence[tuple[float, float]]) -> None:
        self.n_action, self.action_bounds = n_action, tuple((float(low), float(high)) for low, high in bounds)
        self.columns = of_states.dim + len(self.action_bounds)

        def products(states: Basis) -> ActionBasis:
            return ActionBasis(states, n_action, self.action_bounds, of_states.dim)

        basis = products(of_states.basis)
        drift = basis if of_states.drift is of_states.basis else products(of_states.drift)
        same = of_states.positivity_link, of_states.alpha_spec, of_states.units, of_states.dim
        more: dict[str, Any] = {"drift": drift, "tempering": of_states.tempering_spec, "noise": of_states.noise.name}
        super().__init__(basis, of_states.alpha_basis, *same, **more)
        self.period, self.origin, self.window = of_states.period, of_states.origin, of_states.window
        self.of_states = of_states.config()

    def states(self, x: Tensor) -> Tensor:
        return x.to(torch.float64).reshape(-1, self.columns)

    def grid(self, n: int) -> Tensor:
        side = max(2, round(n ** (1 / self.columns)))
        unit = (torch.arange(side, dtype=torch.float64) + 0.5) / side
        axes = [low + (high - low) * unit for low, high in (*self.bounds, *self.action_bounds)]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, self.columns)

    def forward(self, x: Tensor) -> Coefficients:
        """Without gradients: these heads are fitted by scoring, through `chain`."""
        with torch.no_grad():
            return self.chain(self.theta, self.design(self.states(x))).coefficients

    def config(self) -> dict[str, Any]:
        bounds = [list(pair) for pair in self.action_bounds]
        return {"of_states": self.of_states, "n_action": self.n_action, "bounds": bounds}


WeightedActions = Callable[[Tensor], tuple[Tensor, Tensor]]


class HeldHead(Head):
    """The coefficients of an ActionHead under a policy: a head of x alone, same parameters.

    components: x -> actions (K, n, m) and their probabilities (n, K), over which the coefficients are averaged.
    """

    def __init__(self, head: ActionHead, components: WeightedActions) -> None:
        super().__init__()
        self.of_pairs, self.components = head, components
        self.period, self.origin, self.dim, self.window = head.period, head.origin, head.dim, head.window
        self.alpha_spec, self.tempering_spec = head.alpha_spec, head.tempering_spec

    def tempering_slope(self) -> Tensor:
        return self.of_pairs.tempering_slope()

    def forward(self, x: Tensor) -> Coefficients:
        actions, weights = self.components(x)
        c = self.of_pairs(torch.cat([self._pairs(x, a) for a in actions]))
        K = len(actions)

        def mean(values: Tensor) -> Tensor:
            by_action = values.reshape(K, len(x), *values.shape[1:])
            return (by_action * weights.T.reshape(K, len(x), *[1] * (values.dim() - 1))).sum(0)

        return Coefficients(mean(c.b), mean(c.D_o), mean(c.D_f), c.alpha, c.tempering)

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        actions, weights = self.components(x)
        total: list[Any] = [0.0] * 4
        for a, w in zip(actions, weights.T):
            for k, J in enumerate(self.of_pairs.jacobian(self._pairs(x, a))):
                total[k] = total[k] + w.reshape(-1, *[1] * (J.dim() - 1)) * J
        return total[0], total[1], total[2], total[3]

    def _pairs(self, x: Tensor, action: Tensor) -> Tensor:
        return torch.cat([x.unsqueeze(-1) if x.ndim == 1 else x, action], dim=-1)


class MixtureHead(Head):
    """sum_a weight_a(x) c_a(x) for b, D_o and D_f; the heads share their cell, alpha and tempering.

    weights: a function of n states, (n, n_heads). The parameters are those of all heads, one head after the other.
    """

    def __init__(self, heads: Sequence[Head], weights: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.heads = tuple(heads)
        self.registered = nn.ModuleList(heads)  # whose parameters are this head's
        self.weights = weights
        first = heads[0]
        self.period, self.origin, self.dim, self.window = first.period, first.origin, first.dim, first.window
        self.alpha_spec, self.tempering_spec = first.alpha_spec, first.tempering_spec

    def tempering_slope(self) -> Tensor:
        """As of alpha below, the first head speaks for all."""
        first, *others = (head.tempering_slope() for head in self.heads)
        return torch.cat([first, *(torch.zeros_like(slope) for slope in others)])

    def forward(self, x: Tensor) -> Coefficients:
        w = self.weights(x)
        each = [head(x) for head in self.heads]
        stacked = [torch.stack(c, dim=-1) for c in zip(*(one[:3] for one in each))]
        b, D_o, D_f = ((c * w.reshape(len(w), *[1] * (c.dim() - 2), -1)).sum(-1) for c in stacked)
        return Coefficients(b, D_o, D_f, each[0].alpha, each[0].tempering)

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        w = self.weights(x)
        jacobians = [head.jacobian(x) for head in self.heads]
        shaped = [[w[:, i].reshape(-1, *[1] * (J.dim() - 1)) * J for i, J in enumerate(c)] for c in zip(*jacobians)]
        # all heads hold the same alpha, and a covariance that says so: the first speaks for all
        alpha = [jacobians[0][3], *(torch.zeros_like(J[3]) for J in jacobians[1:])]
        b, D_o, D_f = (torch.cat(rows, dim=-1) for rows in shaped[:3])
        return b, D_o, D_f, torch.cat(alpha, dim=-1)
