"""recover for continuous actions: coefficients of (x, a) over the logged range, and the closed loop of any policy.

All pairs are fitted at once, by the samples, under the frozen or the simulated law: a lattice has no room for further
coordinates.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from levytorch import files
from levytorch.coefficients import LinearHead
from levytorch.coefficients.action import ActionHead, HeldHead
from levytorch.coefficients.build import LINEAR
from levytorch.coefficients.head import Coefficients, Head
from levytorch.coefficients.init import initial_guess
from levytorch.controlled import ControlledDynamics, grid_of_actions
from levytorch.convert import listed, path_of, real_array, real_tensor, whole_number
from levytorch.data import Transitions
from levytorch.data.batches import Batch, FullBatch
from levytorch.errors import InputError
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import covariance
from levytorch.policies import NumberPolicy, Policy
from levytorch.training.controlled import CellParts, ClosedLoop, ControlledRecovery, CountedActions, EvenBins
from levytorch.training.engines.base import maximise
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.phases.simulated import simulated_root
from levytorch.training.prepare import settings_for
from levytorch.training.recovery import ArrayLike, OfHead, Recovery
from levytorch.training.report import judge_tempering
from levytorch.training.settings import FitSettings
from levytorch.training.start import groups_of, on_the_line, starting_head
from levytorch.training.stored import stored_covariance, stored_head, stored_metrics, stored_theta

FORMAT = "levytorch.continuous.1"
_BINS = {1: 8, 2: 4}  # of the action, per coordinate, for counts
# bins of states and of actions, for products of scores, by how many of each there are
_SIDES = {(1, 1): (64, 16), (1, 2): (32, 8, 8), (2, 1): (16, 16, 8), (2, 2): (10, 10, 5, 5)}
_PARTS = {1: 16, 2: 64}  # of the cell, for counts of pairs: with bins of the action beside them


def action_bins(bounds: Sequence[tuple[float, float]]) -> EvenBins:
    """Of the logged range."""
    return EvenBins(bounds, [_BINS[len(bounds)]] * len(bounds), [False] * len(bounds))


@dataclass
class ContinuousRecovery(CountedActions, OfHead):
    """b(x, a), D_o(x, a), D_f(x, a) for a, a number or a vector of two, in the logged range `bounds`.

    counts (bins, parts): pairs per bin of the action and part of the cell; places (bins, m): the mean action of each.
    """

    head: ActionHead
    covariance: Tensor | None
    counts: Tensor
    places: Tensor
    log_likelihood: float
    converged: bool
    metrics: dict[str, Any] = field(default_factory=dict)

    @property
    def bounds(self) -> tuple[tuple[float, float], ...]:
        return self.head.action_bounds

    @property
    def action_range(self) -> Any:
        """(low, high) of the logged actions; of vectors one such pair per coordinate."""
        return self.bounds[0] if len(self.bounds) == 1 else self.bounds

    @property
    def alpha(self) -> float:
        return float(self.head(self.head.grid(4)).alpha)

    @property
    def alpha_std(self) -> float:
        return cast(float, Recovery(self.head, covariance=self.covariance, metrics=self.metrics).alpha_std)

    @property
    def tempering(self) -> float:
        return float(self.head(self.head.grid(4)).tempering)

    @property
    def tempering_std(self) -> float:
        return Recovery(self.head, covariance=self.covariance).tempering_std

    # -- coefficients -------------------------------------------------------------------------------------------------
    def coefficients(self, x: ArrayLike, action: ArrayLike) -> Coefficients:
        """All four at x and action, which broadcast; vectors have their own last axis."""
        states, held = real_tensor("x", x), self._inside(action)
        shape = states.shape if self.dim == 1 else states.shape[:-1]
        shape = torch.broadcast_shapes(shape, held.shape[:-1])
        own = () if self.dim == 1 else (self.dim,)
        full, m = torch.Size((*shape, *own)), held.shape[-1]
        rows = states.expand(full).reshape(-1, self.dim)
        c = self.head(torch.cat([rows, held.expand(*shape, m).reshape(-1, m)], dim=-1))
        return Coefficients(c.b.reshape(full), c.D_o.reshape(shape), c.D_f.reshape(shape), c.alpha, c.tempering)

    def _inside(self, action: Any) -> Tensor:
        return NumberPolicy("uniform", self.bounds).inside(action)

    def b(self, x: ArrayLike, action: ArrayLike) -> Tensor:
        return self.coefficients(x, action).b

    def D_o(self, x: ArrayLike, action: ArrayLike) -> Tensor:
        return self.coefficients(x, action).D_o

    def D_f(self, x: ArrayLike, action: ArrayLike) -> Tensor:
        return self.coefficients(x, action).D_f

    def std(self, x: ArrayLike, action: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Pointwise standard errors of b, D_o, D_f while one action is held."""
        return self._loop(self.policy(action)).std(x)

    @property
    def heads(self) -> list[Head]:
        return [self.head]

    def held_actions(self) -> dict[str, Any]:
        rows = [tuple(low + share * (high - low) for low, high in self.bounds) for share in (0.0, 0.5, 1.0)]
        return {", ".join(f"{v:.3g}" for v in row): row[0] if len(row) == 1 else row for row in rows}

    def pairs_of_actions(self) -> dict[str, int]:
        return dict.fromkeys(self.held_actions(), 0)

    def model_in_words(self) -> str:
        plain = self.head.of_states
        return f"{plain['name']} ({plain['n_basis']}) x polynomial ({self.head.n_action})"

    @property
    def n_parameters(self) -> float:
        return float(self.metrics.get("parameters", self.head.flat().numel()))

    # -- policies -----------------------------------------------------------------------------------------------------
    @property
    def cell_parts(self) -> CellParts:
        return CellParts(self.head, self.counts.shape[1])

    @property
    def behaviour(self) -> NumberPolicy:
        """The policy that made the data: the mean actions of bins, by how often each was chosen around x."""
        return NumberPolicy(self.places, self.bounds, weights=self._logged())

    def policy(self, given: Any) -> NumberPolicy:
        """A policy from whatever describes one (`NumberPolicy`); "behaviour" is that of the data."""
        if isinstance(given, str) and given == "behaviour":
            return self.behaviour
        return NumberPolicy(given, self.bounds)

    def under(self, policy: Any) -> ClosedLoop:
        """The closed loop of a policy x -> action, one action, "uniform" or "behaviour": a Recovery for `solve_value`.

        Actions outside of the logged range are refused: a polynomial says nothing there.
        """
        pi = self.policy(policy)
        thin = self._told_extrapolation(pi, "with actions near its own")
        loop = self._loop(pi)
        loop.metrics["extrapolated"] = thin
        return loop

    def _loop(self, pi: NumberPolicy) -> ClosedLoop:
        head = HeldHead(self.head, pi.components)
        head(head.grid(64))  # refuses now what it would refuse later
        return ClosedLoop(
            head,
            log_likelihood=self.log_likelihood,
            converged=self.converged,
            covariance=self.covariance,
            metrics={key: self.metrics[key] for key in ("x_min", "x_max", "law") if key in self.metrics},
            policy=pi,
        )

    def nearby(self, policy: Any) -> tuple[Tensor, Tensor]:
        actions, weights = self.policy(policy).components(self.centers())
        bins = action_bins(self.bounds)
        index = torch.stack([bins.index(a) for a in actions], dim=1)
        return self.counts.T.gather(1, index), weights

    def on(self, actions: Sequence[Any] | None = None) -> ActionsOfRange:
        """The same system with a few of its actions (a grid of them where none are given), for randomised policies,
        `rank` and `improve`.
        """
        m = len(self.bounds)
        chosen = (
            grid_of_actions(self.bounds) if actions is None else listed("actions", actions, "give some to choose from")
        )
        table = self._inside(list(chosen)).reshape(-1, m)
        rows = table.tolist()
        labels = tuple(row[0] if m == 1 else tuple(row) for row in rows)
        if len(set(labels)) < 2:
            raise InputError(f"actions must be two or more different ones, found {labels}; name every action once.")
        low, high = (torch.tensor(end, dtype=torch.float64) for end in zip(*self.bounds))
        nearest = torch.cdist((self.places - low) / (high - low), (table - low) / (high - low)).argmin(1)
        counts = torch.zeros((len(labels), self.counts.shape[1]), dtype=torch.float64)
        counts.index_add_(0, nearest, self.counts)
        found = tuple(self._loop(self.policy(row)) for row in rows)
        return ActionsOfRange(labels, found, self.covariance, counts, dict(self.metrics), self.head)

    # -- elsewhere ----------------------------------------------------------------------------------------------------
    def dynamics(self) -> ControlledDynamics:
        """The recovered system, ready for simulation."""
        one = Recovery(self._loop(self.policy(0.5 * (self.places.amin(0) + self.places.amax(0)))).head).dynamics()
        shared: dict[str, Any] = {"period": one.period, "dim": one.dim, "origin": one.origin, "window": one.window}
        shared |= {"action_range": list(self.bounds), "tempering": one.tempering}
        return ControlledDynamics(self.b, self.D_o, self.D_f, self.alpha, **shared)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write plain tensors and numbers; the file appears whole or not at all."""
        target = path_of(path)
        numbers = {"log_likelihood": self.log_likelihood, "converged": self.converged, "metrics": self.metrics}
        tensors = {"theta": self.head.flat(), "covariance": self.covariance, "counts": self.counts}
        files.save_tensors(
            {"format": FORMAT, "head": self.head.config(), "places": self.places, **tensors, **numbers}, target
        )
        return target

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> ContinuousRecovery:
        """What `save` wrote; refuses what does not go together."""
        plain = content["head"]
        theta = stored_theta(content["theta"])
        of_states = stored_head(plain["of_states"], theta.numel())
        bounds = real_array("bounds", plain["bounds"])
        sound = isinstance(of_states, LinearHead) and bounds.ndim == 2 and bounds.shape[1] == 2 and len(bounds) in _BINS
        sound = sound and bool(np.isfinite(bounds).all()) and bool((bounds[:, 0] < bounds[:, 1]).all())
        if not sound or content["format"] != FORMAT:
            raise InputError("the parts of a ContinuousRecovery must belong together, found others; fit again.")
        n_action = whole_number("n_action", plain["n_action"], 2, 12)
        head = ActionHead(cast(LinearHead, of_states), n_action, [(low, high) for low, high in bounds.tolist()])
        counts, places = (real_tensor(k, content[k]) for k in ("counts", "places"))
        m, P = len(bounds), head.flat().numel()
        sound = theta.shape == (P,) and places.shape == (len(counts), m) and len(counts) == _BINS[m] ** m
        sound = sound and counts.ndim == 2 and bool((counts >= 0).all()) and bool(0 < counts.sum() < math.inf)
        if not sound or not bool(torch.isfinite(places).all()):
            raise InputError("the parts of a ContinuousRecovery must belong together, found others; fit again.")
        head.set_flat(theta)
        covariance = stored_covariance(content["covariance"], P)
        numbers = float(content["log_likelihood"]), bool(content["converged"]), stored_metrics(content["metrics"])
        return cls(head, covariance, counts, places, *numbers)

    def __repr__(self) -> str:
        told = " x ".join(f"[{low:g}, {high:g}]" for low, high in self.bounds)
        return f"ContinuousRecovery({self.nobs:,} pairs, actions in {told}, converged={self.converged})"


@dataclass
class ActionsOfRange(ControlledRecovery):
    """Some actions of a scale, whose coefficients are those of one head: `covariance` is of its parameters."""

    of_pairs: Any = None

    @property
    def heads(self) -> list[Head]:
        return [self.of_pairs]

    @property
    def log_likelihood(self) -> float:
        return self.recoveries[0].log_likelihood

    def _averaged(self, pi: Policy) -> Head:
        table = torch.tensor(self.actions, dtype=torch.float64).reshape(len(self.actions), -1)
        return HeldHead(self.of_pairs, NumberPolicy(table, self.of_pairs.action_bounds, weights=pi).components)

    def save(self, path: str | os.PathLike[str]) -> Path:
        raise InputError("actions of a scale must be saved with their recovery, found some alone; save that.")


# -- the fit -----------------------------------------------------------------------------------------------------------


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
    head, engine = _head(transitions, action, settings, n_action), settings.engine
    units, n = head.units, len(transitions)
    # in units in which a step is of order one, as every fit; the two heads share their parameters
    pairs, own = transitions.in_units(units.length, units.time), head.in_units(units)
    states = torch.cat([pairs.x.reshape(len(action), -1), action], dim=-1)
    one = torch.ones((), dtype=torch.float64).expand(n)
    batch = FullBatch(Batch(states, pairs.dx, pairs.dt, one), None, n, 0)
    law = FrozenLaw(steady_method(settings.density, own), head.dim)
    likelihood = Likelihood(own, law, bins=PairBins(own, float(pairs.median_dt)))
    done = maximise(engine, likelihood, batch, seed=settings.seed, progress=settings.progress)
    objective = engine.objective(likelihood, done.optimizer, batch)
    metrics: dict[str, Any] = {"steps": done.steps, "law": "frozen", "n_main": n, "seed": settings.seed}
    metrics |= {"engine": engine.name, "tail_method": "none", "tcf": 0.0}
    if settings.law == "simulated" and not own.is_constant:
        rounds = simulated_root(likelihood, engine, batch, objective.penalty, settings.seed)
        objective, done = rounds.objective, rounds.done
        metrics |= {"law": "simulated"} | rounds.facts()
    ev = objective.evaluate()
    if transitions.dim == 1:
        metrics |= {"x_min": float(transitions.x.min()), "x_max": float(transitions.x.max())}
    bins = action_bins(head.action_bounds)
    index = bins.index(action)
    counts = CellParts(head, _PARTS[head.dim]).counts(transitions.x, index, bins.count)
    places = torch.zeros((bins.count, action.shape[1]), dtype=torch.float64).index_add_(0, index, action)
    empty = counts.sum(1) == 0
    places = torch.where(empty[:, None], bins.middles(), places / counts.sum(1).clamp(min=1)[:, None])
    found, cov = objective.n * objective.value(ev, penalised=False), objective.covariance_of_law()
    cov = covariance(objective, ev) if cov is None else cov
    found -= n * head.dim * units.log_length
    if cov is not None and objective.penalty is not None:
        cov = objective.penalty.widened(cov, ev.theta, objective.penalised_information(ev))
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
    elif settings.law not in ("frozen", "simulated", "auto"):
        found = f"law {settings.law}"
    elif settings.plain is None or settings.plain["name"] not in LINEAR:
        found = f"a {type(settings.head).__name__}"
    elif not isinstance(settings.engine, FisherEngine):
        found = f"engine {settings.engine.name}"
    elif settings.alpha.mode == "function":
        found = 'alpha="function"'
    elif settings.head.known:
        found = "a known D_o or D_f"
    elif settings.left_open:
        found = f"{settings.left_open[0]} left open"
    elif settings.memory is not None:
        found = "a memory"
    if found is not None:
        raise InputError(
            "continuous actions must be fitted in one or two dimensions, with linear heads, engine fisher or "
            f"evidence, law frozen or simulated and no treatment of tails, found {found}; group the actions into "
            "labels for others."
        )


def _head(transitions: Transitions, action: Tensor, settings: FitSettings, n_action: int) -> ActionHead:
    groups = groups_of(transitions, settings) if settings.alpha.learned else None
    guess = initial_guess(
        *(transitions.dx, transitions.dt, transitions.mu, settings.alpha, settings.tempering),
        uniform_dt=transitions.uniform_dt,
        groups=groups,
    )
    guess = replace(guess, profile=None)  # of states alone, where coefficients depend on actions too
    of_states = starting_head(replace(settings, units="data", init="data"), guess, transitions)
    assert isinstance(of_states, LinearHead)
    low, high = action.amin(0), action.amax(0)
    if not bool((high > low).all()):
        raise InputError(
            f"every number of an action must vary, found {low.tolist()} to {high.tolist()}; leave out what does not."
        )
    head = ActionHead(of_states, n_action, list(zip(low.tolist(), high.tolist())))
    if len(transitions) < head.theta.numel():
        raise InputError(
            f"transitions must hold at least {head.theta.numel()} pairs, as many as parameters, found "
            f"{len(transitions)}; use fewer functions than n_basis = {of_states.n_basis} with n_action = {n_action}."
        )
    guess.apply(head)
    return head


class PairBins:
    """Bins of (x, a), as StateBins are of states: where products of scores are summed."""

    n_groups = 1

    def __init__(self, head: ActionHead, dt: float) -> None:
        m = len(head.action_bounds)
        wraps = [head.period is not None] * head.dim + [False] * m
        self.bins = EvenBins((*head.bounds, *head.action_bounds), _SIDES[head.dim, m], wraps)
        self.x, self.n_x = self.bins.middles(), self.bins.count
        self.dt = torch.full((self.n_x,), dt, dtype=torch.float64)

    def __len__(self) -> int:
        return self.n_x

    def index(self, x: Tensor, dt: Tensor) -> Tensor:
        """Node of each pair: (n,) int64."""
        return self.bins.index(x)
