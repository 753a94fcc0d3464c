"""Heads whose coefficients depend on more than the state: rows (x, inputs), where inputs are further columns of a pair.

Two kinds of them: an action on a scale, on which all coefficients depend (`ActionHead`), and covariates that multiply
D_o and D_f (`levytorch.coefficients.clock`). `Averaged` is the closed loop of a policy over any heads of actions.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from levytorch.coefficients.fourier import LinearHead
from levytorch.coefficients.head import Coefficients, Head, Units
from levytorch.spaces.basis import Basis

Bounds = tuple[tuple[float, float], ...]
# of a head of x alone: what a fit may have changed in the head that was made of it
_OF_STATES = ("known", "alpha_spec", "tempering_spec", "alpha_basis", "units", "scale", "period", "origin", "window")


class HeadOfInputs(LinearHead):
    """A linear head of rows (x, inputs). For x alone it gives the coefficients at a reference of its inputs.

    of_states: a head of x alone, whose functions, cell, units, alpha and tempering these are; basis, drift: where they
    are functions of the inputs, too.
    """

    def __init__(
        self, of_states: LinearHead, n_inputs: int, basis: Basis | None = None, drift: Basis | None = None
    ) -> None:
        super().__init__(
            basis or of_states.basis,
            of_states.alpha_basis,
            of_states.dim,
            drift or of_states.drift,
            **of_states.options,
        )
        self.n_basis, self.n_basis_alpha = of_states.n_basis, of_states.n_basis_alpha
        self.period, self.origin, self.window = of_states.period, of_states.origin, of_states.window
        self.scale, self.columns = of_states.scale, of_states.dim + n_inputs
        self.of_states = (of_states,)  # in a tuple: its parameters are not those of this head

    @property
    def bins_beside_inputs(self) -> int:
        """The number that stands for bins of states, where each is divided into cells of the inputs."""
        return 64 if self.dim == 1 else 16

    def in_units(self, units: Units) -> Any:
        new = super().in_units(units)
        new.of_states = (self.of_states[0].in_units(units),)
        return new

    def state_head(self) -> LinearHead:
        """The head of x alone with what the fit has made of its cell, links and known constants; its parameters are at
        their start.
        """
        out = copy.deepcopy(self.of_states[0])
        for name in _OF_STATES:
            setattr(out, name, getattr(self, name))
        return out

    def has_inputs(self, x: Tensor) -> bool:
        """Whether states are rows (x, inputs)."""
        return x.dim() == 2 and x.shape[1] == self.columns

    def states(self, x: Tensor) -> Tensor:
        return x if self.has_inputs(x) else super().states(x)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """States of x alone and, where they are there, the inputs."""
        if not self.has_inputs(x):
            return x, None
        return (x[:, 0].contiguous() if self.dim == 1 else x[:, : self.dim].contiguous()), x[:, self.dim :]


# -- actions on a scale ------------------------------------------------------------------------------------------------
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


class ActionHead(HeadOfInputs):
    """b, D_o, D_f of (x, a), linear predictors over an ActionBasis. For x alone: with the action in the middle."""

    def __init__(self, of_states: LinearHead, n_action: int, bounds: Sequence[tuple[float, float]]) -> None:
        self.n_action, self.action_bounds = n_action, tuple((float(low), float(high)) for low, high in bounds)
        self.middle = torch.tensor(self.action_bounds, dtype=torch.float64).mean(1)

        def products(states: Basis) -> ActionBasis:
            return ActionBasis(states, n_action, self.action_bounds, of_states.dim)

        basis = products(of_states.basis)
        drift = basis if of_states.drift is of_states.basis else products(of_states.drift)
        super().__init__(of_states, len(self.action_bounds), basis, drift)

    @property
    def bins_beside_inputs(self) -> int:
        return 64 if self.dim == 1 else 36  # all coefficients are products of functions of x and of the action

    def grid(self, n: int) -> Tensor:
        """About n rows (x, a) spread evenly over the cell and the range of the action."""
        side = max(2, round(n ** (1 / self.columns)))
        unit = (torch.arange(side, dtype=torch.float64) + 0.5) / side
        axes = [low + (high - low) * unit for low, high in (*self.bounds, *self.action_bounds)]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, self.columns)

    def design(self, x: Tensor) -> list[Tensor]:
        if not self.has_inputs(x):
            x = torch.cat([x.reshape(len(x), -1), self.middle.expand(len(x), -1)], dim=1)
        return super().design(x)

    def forward(self, x: Tensor) -> Coefficients:
        states = self.states(x)
        return self.of_design(self.design(states), states.shape[:1])

    def config(self) -> dict[str, Any]:
        bounds = [list(pair) for pair in self.action_bounds]
        return {"of_states": self.state_head().config(), "n_action": self.n_action, "bounds": bounds}


# -- closed loops ------------------------------------------------------------------------------------------------------
class Choice:
    """What a policy may do at n states: the number of a head, the states it is asked for, and how often, (n,)."""

    __slots__ = ("head", "states", "weight")

    def __init__(self, head: int, states: Tensor, weight: Tensor) -> None:
        self.head, self.states, self.weight = head, states, weight


class Averaged(Head):
    """Coefficients under a policy: b, D_o and D_f of some heads, averaged over what the policy chooses.

    heads: share their cell, alpha and tempering; the parameters are those of all of them, one head after the other.
    choices: of n states of x alone; the weights of all of them sum to one.
    """

    def __init__(self, heads: Sequence[Head], choices: Callable[[Tensor], Sequence[Choice]]) -> None:
        super().__init__()
        self.heads, self.choices = nn.ModuleList(heads), choices
        first = heads[0]
        self.period, self.origin, self.dim, self.window = first.period, first.origin, first.dim, first.window
        self.alpha_spec, self.tempering_spec = first.alpha_spec, first.tempering_spec

    @classmethod
    def over_actions(cls, head: ActionHead, components: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Averaged:
        """components: x -> actions (K, n, m) and their probabilities (n, K)."""

        def choices(x: Tensor) -> list[Choice]:
            actions, weights = components(x)
            states = x.reshape(len(x), -1)
            return [Choice(0, torch.cat([states, a], dim=1), w) for a, w in zip(actions, weights.T)]

        return cls([head], choices)

    @classmethod
    def over_labels(cls, heads: Sequence[Head], weights: Callable[[Tensor], Tensor]) -> Averaged:
        """weights: a function of n states, (n, n_heads)."""
        return cls(heads, lambda x: [Choice(i, x, w) for i, w in enumerate(weights(x).T)])

    def tempering_slope(self) -> Tensor:
        """All heads have the same tempering, and a covariance that says so: the first speaks for all."""
        first, *others = (head.tempering_slope() for head in self.heads)  # type: ignore[operator]
        return torch.cat([first, *(torch.zeros_like(slope) for slope in others)])

    def forward(self, x: Tensor) -> Coefficients:
        chosen = self.choices(x)
        each = [self.heads[one.head](one.states) for one in chosen]
        b, D_o, D_f = (
            sum((_per_state(one.weight, value) * value for one, value in zip(chosen, values)), start=torch.zeros(()))
            for values in zip(*(c[:3] for c in each))
        )
        return Coefficients(b, D_o, D_f, each[0].alpha, each[0].tempering)

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sizes = [sum(p.numel() for p in head.parameters()) for head in self.heads]
        ends = [0, *itertools.accumulate(sizes)]
        total: list[Tensor] = []
        for one in self.choices(x):
            found = self.heads[one.head].jacobian(one.states)  # type: ignore[operator]
            total = total or [J.new_zeros((*J.shape[:-1], ends[-1])) for J in found]
            for sums, J in zip(total, found):
                sums[..., ends[one.head] : ends[one.head + 1]] += _per_state(one.weight, J) * J
        b, D_o, D_f, alpha = total
        return b, D_o, D_f, alpha


def _per_state(weight: Tensor, values: Tensor) -> Tensor:
    """Weights (n,) that multiply values (n, ...)."""
    return weight.reshape(-1, *[1] * (values.dim() - 1))
