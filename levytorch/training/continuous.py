"""recover for continuous actions: coefficients of (x, a) over the logged range, and the closed loop of any policy."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from levytorch import files
from levytorch.coefficients import LinearHead
from levytorch.coefficients.head import Coefficients, Head
from levytorch.coefficients.inputs import ActionHead, Averaged
from levytorch.controlled import ControlledDynamics, grid_of_actions
from levytorch.convert import listed, path_of, real_array, real_tensor, whole_number
from levytorch.data import Transitions
from levytorch.errors import InputError
from levytorch.policies import NumberPolicy, Policy
from levytorch.training.controlled import CellParts, ClosedLoop, ControlledRecovery, CountedActions, EvenBins
from levytorch.training.fit import Fit
from levytorch.training.recovery import ArrayLike, Recovery
from levytorch.training.settings import FitSettings
from levytorch.training.stored import stored_covariance, stored_head, stored_metrics, stored_theta

FORMAT = "levytorch.continuous.1"
_BINS = {1: 8, 2: 4}  # of the action, per coordinate, for counts
_PARTS = {1: 16, 2: 64}  # of the cell, for counts of pairs: with bins of the action beside them


def action_bins(bounds: Sequence[tuple[float, float]]) -> EvenBins:
    """Of the logged range."""
    return EvenBins(bounds, [_BINS[len(bounds)]] * len(bounds), [False] * len(bounds))


@dataclass
class ContinuousRecovery(CountedActions):
    """The coefficients of (x, a), with a an action on a scale: a number or a vector of two. `recover` returns it.

    Ask it for a coefficient under an action (`found.b(x, a)`), and for the closed loop of a policy
    (`found.under(policy)`), which goes into `solve_value`. Actions outside the logged range `bounds` are refused.

    Args:
        recovery: the fit of the head of rows (x, a).
        counts: (bins, parts), pairs per bin of the action and part of the cell.
        places: (bins, m), the mean action of each bin.

    Example:
        >>> from levytorch import ControlledDynamics, recover, simulate
        >>> logs = simulate(ControlledDynamics.named("thrust"), "uniform", 50, 40, 1 / 40, seed=0).transitions()
        >>> found = recover(logs, alpha=0.75, n_basis=1, period=None)
        >>> bool(found.b(0.0, 1.0) > found.b(0.0, -1.0))
        True
    """

    recovery: Recovery
    counts: Tensor
    places: Tensor

    def __post_init__(self) -> None:
        one = self.recovery
        self.covariance, self.metrics = one.covariance, one.metrics
        self.log_likelihood, self.converged = one.log_likelihood, one.converged

    @classmethod
    def of(cls, recovery: Recovery, pairs: Transitions) -> ContinuousRecovery:
        """The recovery from the fit of these pairs, whose inputs are their actions."""
        head, action = recovery.head, pairs.inputs
        assert isinstance(head, ActionHead)
        assert action is not None
        bins = action_bins(head.action_bounds)
        index = bins.index(action)
        counts = CellParts(head, _PARTS[head.dim]).counts(pairs.x, index, bins.count)
        places = torch.zeros((bins.count, action.shape[1]), dtype=torch.float64).index_add_(0, index, action)
        empty = counts.sum(1) == 0
        places = torch.where(empty[:, None], bins.middles(), places / counts.sum(1).clamp(min=1)[:, None])
        return cls(recovery, counts, places)

    @property
    def one(self) -> Recovery:
        return self.recovery

    @property
    def head(self) -> ActionHead:  # type: ignore[override]
        """The head of rows (x, a)."""
        return cast(ActionHead, self.recovery.head)

    @property
    def support(self) -> tuple[float, float] | None:
        return self.recovery.support

    @property
    def bounds(self) -> tuple[tuple[float, float], ...]:
        return self.head.action_bounds

    @property
    def action_range(self) -> Any:
        """(low, high) of the logged actions; of vectors one such pair per coordinate."""
        return self.bounds[0] if len(self.bounds) == 1 else self.bounds

    # -- coefficients -------------------------------------------------------------------------------------------------
    @torch.no_grad()
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
        """The drift at x while an action is held."""
        return self.coefficients(x, action).b

    def D_o(self, x: ArrayLike, action: ArrayLike) -> Tensor:
        """The ordinary diffusion at x while an action is held."""
        return self.coefficients(x, action).D_o

    def D_f(self, x: ArrayLike, action: ArrayLike) -> Tensor:
        """The fractional diffusion at x while an action is held."""
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
        plain = self.head.of_states[0]
        return f"{plain.config()['name']} ({plain.n_basis}) x polynomial ({self.head.n_action})"

    @property
    def n_parameters(self) -> float:
        return self.recovery.n_parameters

    # -- policies -----------------------------------------------------------------------------------------------------
    @property
    def behaviour(self) -> NumberPolicy:
        """The policy that made the data: the mean actions of bins, by how often each was chosen around x."""
        return NumberPolicy(self.places, self.bounds, weights=self._logged())

    def policy(self, given: Any) -> NumberPolicy:
        """A policy from any accepted form (`NumberPolicy`); "behaviour" is that of the data."""
        if isinstance(given, str) and given == "behaviour":
            return self.behaviour
        return NumberPolicy(given, self.bounds)

    def under(self, policy: Any) -> ClosedLoop:
        """The closed loop of a policy x -> action, one action, "uniform" or "behaviour": a Recovery for `solve_value`.

        Actions outside the logged range are refused, because a polynomial does not extrapolate.
        """
        pi = self.policy(policy)
        thin = self._told_extrapolation(pi, "with actions near its own")
        loop = self._loop(pi)
        loop.metrics["extrapolated"] = thin
        return loop

    def _loop(self, pi: NumberPolicy) -> ClosedLoop:
        head = Averaged.over_actions(self.head, pi.components)
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
        """The same system with a few of its actions (a grid of them if none are given), for randomised policies,
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
        """Write plain tensors and numbers; the file is complete or absent."""
        target = path_of(path)
        numbers = {"log_likelihood": self.log_likelihood, "converged": self.converged, "metrics": self.metrics}
        tensors = {"theta": self.head.flat(), "covariance": self.covariance, "counts": self.counts}
        files.save_tensors(
            {"format": FORMAT, "head": self.head.config(), "places": self.places, **tensors, **numbers}, target
        )
        return target

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> ContinuousRecovery:
        """From what `save` wrote; inconsistent content is refused."""
        plain = content["head"]
        theta = stored_theta(content["theta"])
        of_states = stored_head(plain["of_states"], theta.numel())
        bounds = real_array("bounds", plain["bounds"])
        sound = isinstance(of_states, LinearHead) and bounds.ndim == 2 and bounds.shape[1] == 2 and len(bounds) in _BINS
        sound = sound and bool(np.isfinite(bounds).all()) and bool((bounds[:, 0] < bounds[:, 1]).all())
        if not sound or content["format"] != FORMAT:
            raise InputError(
                "the parts of a ContinuousRecovery must belong together, found parts of different fits; fit again."
            )
        n_action = whole_number("n_action", plain["n_action"], 2, 12)
        head = ActionHead(cast(LinearHead, of_states), n_action, [(low, high) for low, high in bounds.tolist()])
        counts, places = (real_tensor(k, content[k]) for k in ("counts", "places"))
        m, P = len(bounds), head.flat().numel()
        sound = theta.shape == (P,) and places.shape == (len(counts), m) and len(counts) == _BINS[m] ** m
        sound = sound and counts.ndim == 2 and bool((counts >= 0).all()) and bool(0 < counts.sum() < math.inf)
        if not sound or not bool(torch.isfinite(places).all()):
            raise InputError(
                "the parts of a ContinuousRecovery must belong together, found parts of different fits; fit again."
            )
        head.set_flat(theta)
        covariance = stored_covariance(content["covariance"], P)
        numbers = float(content["log_likelihood"]), bool(content["converged"]), stored_metrics(content["metrics"])
        return cls(Recovery(head, 0.0, *numbers[:2], covariance, numbers[2]), counts, places)

    def __repr__(self) -> str:
        text = " x ".join(f"[{low:g}, {high:g}]" for low, high in self.bounds)
        return f"ContinuousRecovery({self.nobs:,} pairs, actions in {text}, converged={self.converged})"


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
        return Averaged.over_actions(
            self.of_pairs, NumberPolicy(table, self.of_pairs.action_bounds, weights=pi).components
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        raise InputError(
            "a fit of actions on a scale must be saved as a whole, found a part of it; save its ContinuousRecovery."
        )


# -- the fit -----------------------------------------------------------------------------------------------------------
def recover_continuous(transitions: Transitions, settings: FitSettings, n_action: int = 3) -> ContinuousRecovery:
    """A fit of all pairs, whose inputs are the actions; n_action: polynomials of the action, 3 for a parabola."""
    n_action = whole_number("n_action", n_action, 2, 12, "3 is a parabola")
    fit = Fit.of(transitions, replace(settings, n_action=n_action))
    recovery = fit.run(settings.progress)
    assert fit.problem is not None
    return ContinuousRecovery.of(recovery, fit.problem.pairs)
