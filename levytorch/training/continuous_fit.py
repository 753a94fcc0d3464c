"""The fit behind a ContinuousRecovery: Fisher scoring over all pairs (x, a), with or without smoothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import LinearHead
from levytorch.coefficients.action import ActionHead
from levytorch.coefficients.build import LINEAR
from levytorch.coefficients.init import initial_guess
from levytorch.convert import whole_number
from levytorch.data import Transitions
from levytorch.data.batches import Batch, FullBatch
from levytorch.errors import InputError
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import covariance
from levytorch.training.boundary import judge_tempering
from levytorch.training.continuous import ActionBins, ContinuousRecovery
from levytorch.training.controlled import Parts
from levytorch.training.engines import build_engine
from levytorch.training.engines.base import maximise
from levytorch.training.line import on_the_line
from levytorch.training.problem import settings_for, starting_head
from levytorch.training.settings import FitSettings
from levytorch.training.start import groups_of

# bins of states and of actions, for products of scores, by how many of each there are
_SIDES = {(1, 1): (64, 16), (1, 2): (32, 8, 8), (2, 1): (16, 16, 8), (2, 2): (10, 10, 5, 5)}

_PARTS = {1: 16, 2: 64}  # of the cell, for counts of pairs: with bins of the action beside them


def recover_continuous(transitions: Transitions, settings: FitSettings, n_action: int = 3) -> ContinuousRecovery:
    """Fisher scoring over all pairs; n_action: polynomials of the action, 3 for a parabola."""
    _check(transitions, settings)
    n_action = whole_number("n_action", n_action, 2, 12, "3 is a parabola")
    settings = settings_for(transitions, settings)
    if settings.head.period is None:
        kept, settings = on_the_line(transitions, settings)
        assert isinstance(kept, Transitions)
        transitions = kept
    action = _columns(transitions)
    head, engine = _head(transitions, action, settings, n_action), build_engine(settings.engine)
    states = torch.cat([transitions.x.reshape(len(action), -1), action], dim=-1)
    n = len(transitions)
    one = torch.ones((), dtype=torch.float64).expand(n)
    batch = FullBatch(Batch(states, transitions.dx, transitions.dt, one), None, n, 0)
    law = FrozenLaw(steady_method(settings.density, head), head.dim)
    likelihood = Likelihood(head, law, bins=PairBins(head, float(transitions.median_dt)))
    done = maximise(engine, likelihood, batch, seed=settings.seed, progress=settings.progress)
    objective = engine.objective(likelihood, done.optimizer, batch)
    ev = objective.evaluate()
    metrics: dict[str, Any] = {"steps": done.steps, "law": "frozen", "n_main": n}
    if transitions.dim == 1:
        metrics |= {"x_min": float(transitions.x.min()), "x_max": float(transitions.x.max())}
    bins = ActionBins(head.action_bounds)
    index = bins.index(action)
    counts = Parts(head, _PARTS[head.dim]).counts(transitions.x, index, bins.count)
    places = torch.zeros((bins.count, action.shape[1]), dtype=torch.float64).index_add_(0, index, action)
    empty = counts.sum(1) == 0
    places = torch.where(empty[:, None], _middles(head), places / counts.sum(1).clamp(min=1)[:, None])
    found, cov = objective.n * objective.value(ev, penalised=False), covariance(objective, ev)
    if head.tempering_spec.learned:
        told, cov = judge_tempering(objective, ev, cov)
        metrics |= told
    return ContinuousRecovery(head, cov, counts, places, found, done.converged, metrics)


def _columns(transitions: Transitions) -> Tensor:
    """The actions, (n, m)."""
    action = transitions.action
    assert isinstance(action, Tensor)
    return action.reshape(len(transitions), -1)


def _check(transitions: Transitions, settings: FitSettings) -> None:
    found = None
    if transitions.dim > 2:
        found = f"{transitions.dim} coordinates"
    elif settings.tail.active:
        found = f"tail.method {settings.tail.method}"
    elif settings.law not in ("frozen", "auto"):
        found = f"law {settings.law}"
    elif settings.plain is None or settings.plain["name"] not in LINEAR or settings.engine["name"] != "fisher":
        found = "another head or engine"
    elif settings.alpha.mode == "function":
        found = 'alpha="function"'
    elif settings.head.known:
        found = "a known D_o or D_f"
    elif settings.left_open:
        found = f"{settings.left_open[0]} left open"
    if found is not None:
        raise InputError(
            "continuous actions are fitted in one and two dimensions, with linear heads, engine fisher or evidence, "
            f"the frozen law and no treatment of tails, found {found}; group the actions into a few labels for others."
        )


def _head(transitions: Transitions, action: Tensor, settings: FitSettings, n_action: int) -> ActionHead:
    groups = groups_of(transitions, settings) if settings.alpha.learned else None
    guess = initial_guess(
        *(transitions.dx, transitions.dt, transitions.mu, settings.alpha, settings.tempering),
        uniform_dt=transitions.uniform_dt,
        groups=groups,
    )
    guess = replace(guess, profile=None)  # of states alone, where coefficients depend on actions too
    of_states = starting_head(replace(settings, units="data", init="data"), guess)
    assert isinstance(of_states, LinearHead)
    low, high = action.amin(0), action.amax(0)
    if not bool((high > low).all()):
        raise InputError(
            f"every number of an action must vary, found {low.tolist()} to {high.tolist()}; leave out what does not."
        )
    head = ActionHead(of_states, n_action, list(zip(low.tolist(), high.tolist())))
    if len(transitions) < head.theta.numel():
        raise InputError(
            f"at least {head.theta.numel()} pairs are needed for as many parameters, found {len(transitions)}; use "
            f"fewer functions than n_basis = {of_states.n_basis} with n_action = {n_action}."
        )
    guess.apply(head)
    return head


def _middles(head: ActionHead) -> Tensor:
    """The middle of every bin of the action, (bins, m)."""
    bins = ActionBins(head.action_bounds)
    unit = (torch.arange(bins.side, dtype=torch.float64) + 0.5) / bins.side
    axes = [low + (high - low) * unit for low, high in head.action_bounds]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(bins.count, -1)


class PairBins:
    """Bins of (x, a), as StateBins are of states: where products of scores are summed."""

    n_groups = 1

    def __init__(self, head: ActionHead, dt: float) -> None:
        self.sides = _SIDES[head.dim, len(head.action_bounds)]
        self.bounds, self.periodic = (*head.bounds, *head.action_bounds), [head.period is not None] * head.dim
        self.periodic += [False] * len(head.action_bounds)
        units = [(torch.arange(side, dtype=torch.float64) + 0.5) / side for side in self.sides]
        axes = [low + (high - low) * unit for (low, high), unit in zip(self.bounds, units)]
        self.x = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, head.columns)
        self.n_x = len(self.x)
        self.dt = torch.full((len(self.x),), dt, dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.x)

    def index(self, x: Tensor, dt: Tensor) -> Tensor:
        """Node of each pair: (n,) int64."""
        out = torch.zeros(len(x), dtype=torch.int64)
        for column, (low, high), side, wraps in zip(x.T, self.bounds, self.sides, self.periodic):
            place = (column - low) * (side / (high - low))
            place = torch.remainder(place, side) if wraps else place
            out = out * side + place.to(torch.int64).clamp(0, side - 1)
        return out
