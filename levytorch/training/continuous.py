"""recover for continuous actions: coefficients of (x, a) over the logged range, and the closed loop of x -> a.

All pairs are fitted at once, by the samples and under the frozen law: a lattice has no room for a third coordinate.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients.action import ActionHead, HeldHead
from levytorch.coefficients.head import Coefficients, Head, Units, known_constants
from levytorch.coefficients.init import initial_guess
from levytorch.convert import answer_of, real_tensor, shown, whole_number
from levytorch.data import Transitions
from levytorch.data.batches import Batch, FullBatch
from levytorch.errors import InputError
from levytorch.likelihood.covariance import covariance
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.likelihood import Likelihood
from levytorch.training.controlled import ControlledRecovery, bin_index
from levytorch.training.engines import build_engine
from levytorch.training.loop import maximise
from levytorch.training.recovery import ArrayLike, Recovery
from levytorch.training.settings import FitSettings

_BINS = 64  # of the cell, for counts
_SIDE = (64, 16)  # bins of states and of actions, for products of scores
_SLACK = 1e-9  # of the range: rounding at its ends


@dataclass
class ContinuousRecovery:
    """b(x, a), D_o(x, a), D_f(x, a) for a in the logged range `action_range`."""

    head: ActionHead
    covariance: Tensor | None
    actions_seen: Tensor  # (n,) some of the logged (x, a), for counts
    states_seen: Tensor
    n: int
    log_likelihood: float
    converged: bool
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def action_range(self) -> tuple[float, float]:
        return self.head.low, self.head.high

    @property
    def alpha(self) -> float:
        return float(self.head(self.head.grid(4)).alpha)

    def coefficients(self, x: ArrayLike, action: ArrayLike) -> Coefficients:
        """All four at x and action, which broadcast."""
        at, a = torch.broadcast_tensors(real_tensor("x", x), self._inside(action))
        c = self.head(torch.stack([at.reshape(-1), a.reshape(-1)], dim=-1))
        b, D_o, D_f = (value.reshape(at.shape) for value in c[:3])
        return Coefficients(b, D_o, D_f, c.alpha)

    def b(self, x: ArrayLike, action: ArrayLike) -> Tensor:
        return self.coefficients(x, action).b

    def D_o(self, x: ArrayLike, action: ArrayLike) -> Tensor:
        return self.coefficients(x, action).D_o

    def D_f(self, x: ArrayLike, action: ArrayLike) -> Tensor:
        return self.coefficients(x, action).D_f

    def std(self, x: ArrayLike, action: float) -> tuple[Tensor, Tensor, Tensor]:
        """Pointwise standard errors of b, D_o, D_f while one action is held."""
        return self.under(action).std(x)

    def under(self, policy: Any) -> Recovery:
        """The closed loop of a policy x -> action (a function, or one number): a Recovery for `solve_value`.

        Actions outside of the logged range are refused: a polynomial says nothing there.
        """
        if callable(policy):
            head = HeldHead(self.head, lambda x: self._inside(answer_of("policy", policy, x)))
        else:
            constant = self._inside(policy)
            head = HeldHead(self.head, lambda x: constant)
        head(head.grid(64))  # refuses now what it would refuse later
        return Recovery(
            head,
            log_likelihood=self.log_likelihood,
            converged=self.converged,
            covariance=self.covariance,
            metrics={key: self.metrics[key] for key in ("x_min", "x_max") if key in self.metrics},
        )

    def on(self, actions: Sequence[float]) -> ControlledRecovery:
        """The same system with a few of its actions, for randomised policies, `rank` and `improve`."""
        values = tuple(float(a) for a in actions)
        found = tuple(self.under(a) for a in values)
        joint = None if self.covariance is None else self.covariance.repeat(len(values), len(values))
        edges = torch.tensor([(a + b) / 2 for a, b in itertools.pairwise(values)], dtype=torch.float64)
        index = bin_index(self.states_seen, _BINS, self.head.period, self.head.origin, 1)
        nearest = torch.bucketize(self.actions_seen, edges)
        counts = torch.bincount(nearest * _BINS + index, minlength=len(values) * _BINS).reshape(len(values), _BINS)
        share = self.n / len(self.states_seen)
        return ControlledRecovery(values, found, joint, share * counts.to(torch.float64), dict(self.metrics))

    def _inside(self, action: Any) -> Tensor:
        a = real_tensor("action", action, "give numbers").detach()
        low, high = self.action_range
        slack = _SLACK * (high - low)
        if not bool(((a >= low - slack) & (a <= high + slack)).all()):
            worst = float(a.reshape(-1)[(a - (low + high) / 2).abs().argmax()])
            raise InputError(
                f"actions must lie in the logged range [{low:g}, {high:g}], found {worst:g}; nothing is known beyond."
            )
        return a

    def __repr__(self) -> str:
        low, high = self.action_range
        return f"ContinuousRecovery({self.n:,} pairs, actions in [{low:g}, {high:g}], converged={self.converged})"


def recover_continuous(transitions: Transitions, settings: FitSettings, n_action: int = 3) -> ContinuousRecovery:
    """Fisher scoring over all pairs; n_action: polynomials of the action, 3 for a parabola."""
    head, engine = _checked(transitions, settings, n_action), build_engine(settings.engine)
    action = transitions.action
    assert isinstance(action, Tensor)
    states = torch.stack([transitions.x, action], dim=-1)
    n = len(transitions)
    one = torch.ones((), dtype=torch.float64).expand(n)
    batch = FullBatch(Batch(states, transitions.dx, transitions.dt, one), None, n, 0)
    law = FrozenLaw(steady_method(settings.density, head))
    likelihood = Likelihood(head, law, bins=ActionBins(head, float(transitions.median_dt)))
    done = maximise(engine, likelihood, batch, seed=settings.seed, progress=settings.progress)
    objective = engine.objective(likelihood, done.optimizer, batch)
    ev = objective.evaluate()
    some = slice(None, None, max(1, n // 1_000_000))
    return ContinuousRecovery(
        head,
        covariance(objective, ev),
        action[some].clone(),
        transitions.x[some].clone(),
        n,
        objective.n * objective.value(ev, penalised=False),
        done.converged,
        {"x_min": float(transitions.x.min()), "x_max": float(transitions.x.max()), "steps": done.steps},
    )


def _checked(transitions: Transitions, settings: FitSettings, n_action: int) -> ActionHead:
    found = None
    if transitions.dim > 1:
        found = f"{transitions.dim} coordinates"
    elif settings.tail.active:
        found = f"tail.method {settings.tail.method}"
    elif settings.law not in ("frozen", "auto"):
        found = f"law {settings.law}"
    elif isinstance(settings.head, Head) or settings.head["name"] != "fourier" or settings.engine["name"] != "fisher":
        found = "another head or engine"
    elif settings.alpha.mode == "function":
        found = 'alpha="function"'
    elif known_constants(settings.head):
        found = "a known D_o or D_f"
    if found is not None:
        raise InputError(
            "continuous actions are fitted in one dimension, with Fourier heads, engine fisher or evidence, the frozen "
            f"law and no treatment of tails, found {found}; group the actions into a few labels for the others."
        )
    assert not isinstance(settings.head, Head)
    n_action = whole_number("n_action", n_action, 2, 12, "3 is a parabola")
    action = transitions.action
    assert isinstance(action, Tensor)
    guess = initial_guess(
        transitions.dx, transitions.dt, transitions.mu, settings.alpha, uniform_dt=transitions.uniform_dt
    )
    given = settings.head
    head = ActionHead(
        given["n_basis"],
        n_action,
        float(action.min()),
        float(action.max()),
        period=given["period"],
        origin=given.get("origin", 0.0),
        positivity_link=given.get("positivity", "softplus"),
        alpha=settings.alpha if not settings.alpha.learned else type(settings.alpha)("constant", guess.alpha),
        units=Units(guess.units.length, guess.units.time),
    )
    if len(transitions) < head.theta.numel():
        raise InputError(
            f"at least {head.theta.numel()} pairs are needed for as many parameters, found {len(transitions)}; use "
            f"fewer functions than n_basis = {shown(given['n_basis'])} times n_action = {n_action}."
        )
    guess.apply(head)
    return head


class ActionBins:
    """Bins of (x, a), as StateBins are of states: where products of scores are summed."""

    n_groups = 1

    def __init__(self, head: ActionHead, dt: float) -> None:
        self.head, self.n_x = head, _SIDE[0] * _SIDE[1]
        units = [(torch.arange(side, dtype=torch.float64) + 0.5) / side for side in _SIDE]
        axes = (head.origin + head.period * units[0], head.low + (head.high - head.low) * units[1])
        self.x = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, 2)
        self.dt = torch.full((len(self.x),), dt, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.x)

    def index(self, x: Tensor, dt: Tensor) -> Tensor:
        """Node of each pair: (n,) int64."""
        head = self.head
        column = torch.remainder(x[:, 0] - head.origin, head.period) * (_SIDE[0] / head.period)
        row = (x[:, 1] - head.low) * (_SIDE[1] / (head.high - head.low))
        first, second = (v.to(torch.int64).clamp(0, side - 1) for v, side in zip((column, row), _SIDE))
        return first * _SIDE[1] + second
