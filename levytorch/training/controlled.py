"""ControlledRecovery: the coefficients of every action, and the closed loop of any policy over them.

Pairs of every action are counted in parts of the cell of a state, or of its window on a line, which says where a policy
rests on few of them.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from levytorch import files
from levytorch.coefficients import Head
from levytorch.coefficients.inputs import Averaged
from levytorch.controlled import ControlledDynamics
from levytorch.convert import path_of, shown
from levytorch.dynamics import Dynamics
from levytorch.errors import InputError, LevytorchWarning, printable, reason
from levytorch.policies import Policy, index_among
from levytorch.training.fit_report import Estimate, Reported, coefficient_rows, head_in_words
from levytorch.training.inputs import FittedMemory
from levytorch.training.recovery import ArrayLike, Recovery
from levytorch.training.stored import stored_covariance, stored_metrics
from levytorch.untrusted import load_tensors

FEW = 50  # pairs of an action in a part of the cell, below which its coefficients are extrapolated there
ALARM = 0.05  # share of a policy's choices, at observed states, that may rest on fewer
_COUNT = {1: 64, 2: 256, 3: 512}  # parts, by dimension
FORMAT = "levytorch.controlled.1"


class EvenBins:
    """Equal bins of vectors of numbers, so many of each (`sides`). wraps: numbers that are periodic; of the others what
    lies beyond the bounds belongs to the bin at that end.
    """

    def __init__(self, bounds: Sequence[tuple[float, float]], sides: Sequence[int], wraps: Sequence[bool]) -> None:
        self.bounds, self.sides, self.wraps = tuple(bounds), tuple(sides), tuple(wraps)
        self.count = math.prod(self.sides)

    def middles(self) -> Tensor:
        """The middle of every bin, (count, k)."""
        units = [(torch.arange(side, dtype=torch.float64) + 0.5) / side for side in self.sides]
        axes = [low + (high - low) * unit for (low, high), unit in zip(self.bounds, units)]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(self.count, -1)

    def index(self, x: Tensor) -> Tensor:
        """The bin of each of n vectors (n, k), or numbers (n,): (n,) int64."""
        out = torch.zeros(len(x), dtype=torch.int64)
        for column, (low, high), side, wraps in zip(x.reshape(len(x), -1).T, self.bounds, self.sides, self.wraps):
            at = (column - low) * (side / (high - low))
            at = torch.remainder(at, side) if wraps else at.clamp(0, side - 1)
            out = out * side + at.to(torch.int64).clamp(0, side - 1)
        return out


class CellParts(EvenBins):
    """`count` equal parts of the cell of a head, or of its window on a line, as many per coordinate."""

    def __init__(self, head: Any, count: int | None = None) -> None:
        self.dim = head.dim
        side = round((count or _COUNT[self.dim]) ** (1 / self.dim))
        super().__init__(head.bounds, [side] * self.dim, [period is not None for period in head.periods])

    def centers(self) -> Tensor:
        """The middle of every part, (count,) or (count, d)."""
        return self.middles()[:, 0] if self.dim == 1 else self.middles()

    def counts(self, x: Tensor, codes: Tensor, n_actions: int) -> Tensor:
        """Pairs of every action in every part, (n_actions, count)."""
        index = codes * self.count + self.index(x)
        found = torch.bincount(index, minlength=n_actions * self.count)
        return found.reshape(n_actions, self.count).to(torch.float64)

    def between(self, values: Tensor) -> Callable[[Tensor], Tensor]:
        """Values (count, A) at the centers as a function of the state: linear between them in one dimension, else by
        part.
        """

        def function(x: Tensor) -> Tensor:
            if self.dim > 1:
                return values[self.index(x)]
            ((low, high),), (side,), (wraps,) = self.bounds, self.sides, self.wraps
            at = (x - low) * (side / (high - low)) - 0.5
            at = torch.remainder(at, side) if wraps else at.clamp(0, side - 1)
            left = torch.floor(at)
            share = (at - left).unsqueeze(1)
            first = left.to(torch.int64).clamp(max=side - 1)
            second = (first + 1) % side if wraps else (first + 1).clamp(max=side - 1)
            return (1 - share) * values[first] + share * values[second]

        return function


class CountedActions(Reported):
    """What recoveries with actions share. counts: (A, parts), pairs per action (or bin) and part of the cell."""

    counts: Tensor
    heads: Any
    b: Any
    D_o: Any
    D_f: Any
    std: Any

    @property
    def one(self) -> Recovery:
        """One recovery, which has the cell, the alpha and the tempering that all share."""
        raise NotImplementedError

    @property
    def head(self) -> Head:  # type: ignore[override]
        return self.one.head

    @property
    def alpha(self) -> Any:
        return self.one.alpha

    @property
    def alpha_std(self) -> Any:
        return self.one.alpha_std

    @property
    def tempering(self) -> float:
        return self.one.tempering

    @property
    def tempering_std(self) -> float:
        return self.one.tempering_std

    @property
    def cell_parts(self) -> CellParts:
        """The parts of the cell, or of the window on a line, that `counts` counts."""
        return CellParts(self.head, self.counts.shape[1])

    def nearby(self, policy: Any) -> tuple[Tensor, Tensor]:
        """Pairs with the actions of a policy, or near them, in each part of the cell, (parts, K), and how often the
        policy takes these, (parts, K).
        """
        raise NotImplementedError

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> Self:
        """From what `save` wrote; inconsistent content is refused."""
        raise NotImplementedError

    def centers(self) -> Tensor:
        """The middle of every part of the cell that `counts` counts."""
        return self.cell_parts.centers()

    def held_actions(self) -> dict[str, Any]:
        """The actions that the report shows, by name: all labels, or the ends and the middle of a scale."""
        raise NotImplementedError

    def coefficient_estimates(self, level: float, truth: Any) -> list[Estimate]:
        x, weight, rows = self.centers(), self.counts.sum(0), []
        x, weight = x[weight > 0], weight[weight > 0]
        for name, action in self.held_actions().items():
            found = (self.b(x, action), self.D_o(x, action), self.D_f(x, action))
            stds = self.std(x, action) if self.covariance is not None else None
            own = None if truth is None else truth.of(action)
            true = None if own is None else (own.b(x), own.D_o(x), own.D_f(x))
            rows += coefficient_rows(self.heads[0], found, stds, true, level=level, weight=weight, action=name)
        return rows

    @property
    def nobs(self) -> int:
        return int(self.counts.sum())

    def effective_pairs(self, policy: Any) -> Tensor:
        """The effective number of pairs that support a policy in each state bin, (parts,): 1 / sum_k w_k^2 / n_k."""
        pairs, weights = self.nearby(policy)
        return 1.0 / (weights.square() / pairs.clamp(min=1e-300)).sum(1)

    def extrapolated(self, policy: Any) -> float:
        """Share of a policy's choices, over the observed states, with few pairs nearby."""
        pairs, weights = self.nearby(policy)
        seen = self.counts.sum(0) / self.counts.sum()
        return float((seen.unsqueeze(1) * weights * (pairs < FEW)).sum())

    def _told_extrapolation(self, policy: Any, kind: str) -> float:
        """The same, with a warning where it is much; kind: of the pairs that are nearby."""
        thin = self.extrapolated(policy)
        if thin > ALARM:
            warnings.warn(
                f"{100 * thin:.0f} % of the policy's actions at observed states are supported by fewer than {FEW} "
                f"pairs {kind}: V extrapolates there; see .effective_pairs, or compare policies closer to "
                "that of the data.",
                LevytorchWarning,
                stacklevel=3,
            )
        return thin

    def _logged(self) -> Callable[[Tensor], Tensor]:
        """How often each action, or bin of actions, was chosen around x: a function of n states, (n, A)."""
        # one pair, divided among all, beside what was seen, so that it is defined where nothing was
        share = self.counts.sum(1) / self.counts.sum()
        counts = self.counts + share.unsqueeze(1)
        return self.cell_parts.between((counts / counts.sum(0)).T)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote, or the recovery of a run directory; nothing in the file is executed."""
        file = path_of(path)
        file = file / "recovery.pt" if file.is_dir() else file
        try:
            return cls.from_content(load_tensors(file))
        except Exception as error:  # pickle, zip, torch and I/O errors of foreign files have no common base
            raise InputError(
                f"{file} must be a file of {cls.__name__}.save, found something else ({reason(error)}); save it again."
            ) from error


@dataclass(repr=False)
class ClosedLoop(Recovery):
    """A Recovery of the system under a policy: a head that averages those of the actions."""

    policy: Any = None
    of_actions: FittedMemory | None = None  # the memory that they share

    @property
    def memory(self) -> FittedMemory | None:
        return self.of_actions

    def dynamics(self) -> Dynamics:
        loop = super().dynamics()
        loop.policy = self.policy  # averages rewards that depend on the action
        return loop


@dataclass
class ControlledRecovery(CountedActions):
    """The coefficients of every labelled action, with their errors. `recover` returns it for data with actions.

    Ask it for a coefficient under an action (`found.b(x, action)`), for one action (`found.of(action)`), and for the
    closed loop of a policy (`found.under(policy)`), which goes into `solve_value`.

    Args:
        actions: the labels.
        recoveries: one Recovery per action.
        covariance: of the parameters of all actions, one action after the other; None without errors.
        counts: (A, parts), pairs per action and part of the cell.
        metrics: plain numbers and strings about the fit.

    Example:
        >>> from levytorch import ControlledDynamics, recover, simulate
        >>> logs = simulate(ControlledDynamics.named("pushes"), "uniform", 100, 40, 1 / 40, seed=0).transitions()
        >>> found = recover(logs, alpha=0.6, n_basis=1, law="frozen")
        >>> found.actions, bool(found.b(0.0, 1) > found.b(0.0, -1))
        ((-1, 0, 1), True)
    """

    actions: tuple[Any, ...]
    recoveries: tuple[Recovery, ...]
    covariance: Tensor | None
    counts: Tensor
    metrics: dict[str, Any] = field(default_factory=dict)

    # -- coefficients of an action ------------------------------------------------------------------------------------
    def of(self, action: Any) -> Recovery:
        """The recovery of the system while one action is held."""
        return self.recoveries[self._index(action)]

    def b(self, x: ArrayLike, action: Any) -> Tensor:
        """The drift at x while an action is held."""
        return self.of(action).b(x)

    def D_o(self, x: ArrayLike, action: Any) -> Tensor:
        """The ordinary diffusion at x while an action is held."""
        return self.of(action).D_o(x)

    def D_f(self, x: ArrayLike, action: Any) -> Tensor:
        """The fractional diffusion at x while an action is held."""
        return self.of(action).D_f(x)

    def std(self, x: ArrayLike, action: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Pointwise standard errors of b, D_o, D_f of one action."""
        return self.of(action).std(x)

    @property
    def one(self) -> Recovery:
        return self.recoveries[0]

    @property
    def converged(self) -> bool:
        return all(found.converged for found in self.recoveries)

    @property
    def log_likelihood(self) -> float:
        """Of all pairs, minus the loss from shared coefficients in its quadratic approximation."""
        return sum(found.log_likelihood for found in self.recoveries) - 0.5 * self.metrics.get("shared/chi2", 0.0)

    @property
    def support(self) -> tuple[float, float] | None:
        """The range of the states of all actions; None in more than one dimension."""
        ranges = [found.support for found in self.recoveries]
        known = [pair for pair in ranges if pair is not None]
        return (min(low for low, _ in known), max(high for _, high in known)) if len(known) == len(ranges) else None

    @property
    def heads(self) -> list[Head]:
        """The heads whose parameters `covariance` describes, in its order."""
        return [found.head for found in self.recoveries]

    def held_actions(self) -> dict[str, Any]:
        return {printable(str(action), lines=False): action for action in self.actions}

    def pairs_of_actions(self) -> dict[str, int]:
        return dict(zip(self.held_actions(), map(int, self.counts.sum(1))))

    def model_in_words(self) -> str:
        return head_in_words(self.head)

    @property
    def n_parameters(self) -> float:
        shared = self.metrics.get("shared/freedom", 0)
        if self.memory is not None and not math.isnan(self.memory.half_lives_std[0]):
            shared += (len(self.recoveries) - 1) * len(self.memory.half_lives)
        return sum(found.n_parameters for found in self.recoveries) - shared

    @property
    def memory(self) -> FittedMemory | None:
        """The memory of the sizes of past steps, which all actions share."""
        return self.one.memory

    def _index(self, action: Any) -> int:
        index = index_among(action, self.actions)
        if index is None:
            raise InputError(
                f"action must be one of those in the data, {shown(self.actions)}, found {shown(action)}; nothing is "
                "known of others."
            )
        return index

    # -- policies -----------------------------------------------------------------------------------------------------
    @property
    def behaviour(self) -> Policy:
        """The policy that made the data, by counts of actions in parts of the cell."""
        return Policy(self._logged(), self.actions)

    def policy(self, given: Any) -> Policy:
        """A policy from any accepted form; "behaviour" is that of the data."""
        if isinstance(given, str) and given == "behaviour" and given not in self.actions:
            return self.behaviour
        return Policy(given, self.actions)

    def under(self, policy: Any) -> ClosedLoop:
        """The closed loop of a policy: a Recovery for `solve_value`, whose errors are those of all actions together.

        policy: x -> probabilities [..., n_actions] in the order of `actions`, or x -> action; an action; "behaviour".
        """
        pi = self.policy(policy)
        thin = self._told_extrapolation(pi, "of its action nearby")
        metrics = {k: v for k, v in self.recoveries[0].metrics.items() if k in ("law", "dt", "memory")}
        if self.support is not None:
            metrics["x_min"], metrics["x_max"] = self.support
        metrics["extrapolated"] = thin
        return ClosedLoop(
            self._averaged(pi),
            log_likelihood=self.log_likelihood,
            converged=self.converged,
            covariance=self.covariance,
            metrics=metrics,
            policy=pi,
            of_actions=self.memory,
        )

    def _averaged(self, pi: Policy) -> Head:
        return Averaged.over_labels(self.heads, pi)

    def nearby(self, policy: Any) -> tuple[Tensor, Tensor]:
        return self.counts.T, self.policy(policy)(self.centers())

    # -- elsewhere ----------------------------------------------------------------------------------------------------
    def dynamics(self) -> ControlledDynamics:
        """The recovered system, ready for simulation."""
        one = self.recoveries[0].dynamics()
        shared: dict[str, Any] = {"period": one.period, "dim": one.dim, "origin": one.origin, "window": one.window}
        shared |= {"actions": self.actions, "tempering": one.tempering}
        return ControlledDynamics(self.b, self.D_o, self.D_f, float(self.alpha), **shared)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write plain tensors and numbers; the file is complete or absent."""
        target = path_of(path)
        content = {
            "format": FORMAT,
            "actions": list(self.actions),
            "recoveries": [found.content() for found in self.recoveries],
            "covariance": self.covariance,
            "counts": self.counts,
            "metrics": self.metrics,
        }
        files.save_tensors(content, target)
        return target

    @classmethod
    def from_content(cls, content: dict[str, Any]) -> ControlledRecovery:
        """From what `save` wrote; inconsistent content is refused."""
        recoveries = tuple(Recovery.from_content(part) for part in content["recoveries"])
        actions, counts, covariance = tuple(content["actions"]), content["counts"], content["covariance"]
        size = sum(found.theta.numel() for found in recoveries)
        covariance = stored_covariance(covariance, size)
        sound = len(actions) == len(recoveries) == len(counts) and isinstance(counts, Tensor) and counts.ndim == 2
        sound &= all(isinstance(a, int | float | str) for a in actions) and len(set(actions)) == len(actions) > 0
        sound = sound and bool(torch.isfinite(counts).all()) and bool((counts >= 0).all()) and bool(counts.sum() > 0)
        sound = sound and len({(one.dim, str(one.period)) for one in recoveries}) == 1
        if not sound or content["format"] != FORMAT:
            raise InputError(
                "the parts of a ControlledRecovery must belong together, found parts of different fits; fit again."
            )
        return cls(actions, recoveries, covariance, counts.to(torch.float64), stored_metrics(content["metrics"]))

    def __repr__(self) -> str:
        labels = [printable(str(a), lines=False) for a in self.actions]
        pairs = ", ".join(f"{label}: {n:,.0f}" for label, n in zip(labels, self.counts.sum(1).tolist()))
        jumps = f"alpha={self.alpha:.4g}" + (f", tempering={self.tempering:.4g}" if self.tempered else "")
        return f"ControlledRecovery(pairs of actions {{{pairs}}}, {jumps}, converged={self.converged})"
