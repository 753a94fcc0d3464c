"""How many basis functions, or how strong a penalty: by the likelihood of trajectories that were held out.

Folds are blocks of trajectories (of time where there are few trajectories). Every candidate is fitted to all data once,
from the candidate before; what leaving out a fold changes is a fraction of a standard error, and takes a chord or two.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import FourierHead, LinearHead, linear
from levytorch.data.batches import FullBatch
from levytorch.errors import InputError
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.penalty import Strength
from levytorch.training.blocks import Blocks, counted, per_pair
from levytorch.training.engines.base import maximise
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.reweighting import Reweighting
from levytorch.training.settings import FitSettings
from levytorch.training.start import starting_head

if TYPE_CHECKING:
    from levytorch.training.problem import Problem

N_FOLDS = 5
CANDIDATES = tuple(range(1, 42, 2))
SPLINES = (1, *range(4, 44, 2))
FACTORS = tuple(10.0 ** (k / 2) for k in range(4, -5, -1))  # of the evidence's strengths, from smooth to rough
# folds find their own way: a standard error of all data moves a held-out score by about one, of which hundredths matter
_TOLERANCE, _CLOSE, _NEAR = 0.03, 0.02, 0.05
_PATIENCE = 5  # candidates without a better one, after which the rest is skipped
_PAIRS_PER_PARAMETER = 5


class Fold(NamedTuple):
    """blocks: (n_blocks,) of 0 and 1, those that it holds; batch: their data."""

    blocks: Tensor
    batch: FullBatch


@dataclass
class Selection:
    """Held-out log-likelihood per pair of every candidate that was looked at.

    best: the candidate with the largest; differences: from it, with the standard error over folds.
    """

    name: str
    candidates: list[float] = field(default_factory=list)
    folds: list[Tensor] = field(default_factory=list)
    pairs: Tensor | None = None

    def add(self, candidate: float, folds: Tensor) -> None:
        """Log-likelihoods of the held-out folds (n_folds,)."""
        self.candidates.append(candidate)
        self.folds.append(folds)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and tensors."""
        return {"name": self.name, "candidates": list(self.candidates), "folds": list(self.folds), "pairs": self.pairs}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Selection:
        return cls(state["name"], list(state["candidates"]), list(state["folds"]), state["pairs"])

    def held_out(self, k: int) -> float:
        """Log-likelihood per held-out pair of a candidate, in the units of the fit."""
        assert self.pairs is not None
        return per_pair(self.folds[k], self.pairs)[0]

    @property
    def best(self) -> int:
        """Number of the best candidate; the first of equals, which is the simplest."""
        return int(torch.stack(self.folds).sum(1).argmax())

    @property
    def turned(self) -> bool:
        """Whether the score has been falling for so long that more candidates are not worth a look."""
        since_best = len(self.folds) - 1 - self.best
        if since_best >= _PATIENCE:
            return True
        fall, error = self._difference(len(self.folds) - 1)
        return since_best >= 3 and fall < -3 * error

    def _difference(self, k: int) -> tuple[float, float]:
        """To the best candidate, per pair, and its standard error from the folds."""
        assert self.pairs is not None
        return per_pair(self.folds[k] - self.folds[self.best], self.pairs)

    def summary(self) -> dict[str, Any]:
        """Plain numbers for the metrics."""
        assert self.pairs is not None
        held_out = [per_pair(scores, self.pairs) for scores in self.folds]
        differences = [self._difference(k) for k in range(len(self.folds))]
        return {
            "of": self.name,
            "candidates": self.candidates,
            "chosen": self.candidates[self.best],
            "held_out": [mean for mean, _ in held_out],
            "held_out_std": [error for _, error in held_out],
            "difference": [d for d, _ in differences],
            "difference_std": [s for _, s in differences],
            "n_folds": len(self.pairs),
            "n_pairs": float(self.pairs.sum()),
        }


class CrossValidation:
    """The choice among candidates, one of which is looked at in every step: each is fitted from the one before.

    problem: it leaves this open; blocks: all of its data; shown: the head of the candidate that was looked at last, in
    the units of the data.
    """

    name: str
    shown: LinearHead

    def __init__(self, problem: Problem, blocks: Blocks) -> None:
        self.problem, self.blocks = problem, blocks
        self.selection, self.folds = Selection(self.name), folds(blocks)

    @property
    def finished(self) -> bool:
        """Whether there is no further candidate worth a look."""
        raise NotImplementedError

    def step(self) -> float:
        """Look at one candidate; returns the mean negative log-likelihood of all data under it."""
        raise NotImplementedError

    def chosen(self) -> Problem:
        """The problem with the best candidate, which leaves this open no longer."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and tensors."""
        return {"selection": self.selection.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.selection = Selection.from_state(state["selection"])

    def closed(self, settings: FitSettings) -> Problem:
        """The problem with these settings, which have nothing of this name left open."""
        still_open = tuple(name for name in settings.left_open if name != self.name)
        selection = self.problem.selection or self.selection
        return replace(self.problem, settings=replace(settings, left_open=still_open), selection=selection)

    def fitted(self, head: LinearHead, strengths: Strength) -> tuple[Reweighting, float]:
        """The fit of a head to all data once, from where it is, and its mean negative log-likelihood."""
        likelihood = self.blocks.on_nodes(self.blocks.likelihood(head, self.law, self.problem.settings.tail))
        engine = FisherEngine(tolerance=_TOLERANCE, damping=1e-4, penalty=strengths)  # type: ignore[arg-type]
        done = maximise(engine, likelihood, self.blocks.whole)
        evaluation = done.optimizer.accepted  # type: ignore[attr-defined]
        made = Reweighting(likelihood, self.blocks, strengths, close=_CLOSE, evaluation=evaluation)
        return made, done.nll

    @property
    def law(self) -> FrozenLaw:
        head = self.problem.head
        return FrozenLaw(steady_method(self.problem.settings.density, head), head.dim)


class NumberOfFunctions(CrossValidation):
    """n_basis. A number of functions begins where the fit of the number before has ended."""

    name = "n_basis"

    def __init__(self, problem: Problem, blocks: Blocks) -> None:
        super().__init__(problem, blocks)
        self.numbers = CANDIDATES if isinstance(problem.settings.head, FourierHead) else SPLINES
        self.theta = self.best = torch.empty(0, dtype=torch.float64)  # of the last candidate, and of the best one
        self.missed, self.size = math.inf, 0  # how far first-order changes were off, for so many parameters

    def _head(self, k: int) -> LinearHead:
        """That of a candidate where its fit begins, in the units of the data."""
        settings = replace(self._with(self.numbers[k]), init="data")
        return linear(starting_head(settings, self.problem.guess, self.problem.train))

    def _with(self, n_basis: int) -> FitSettings:
        settings = self.problem.settings
        assert settings.plain is not None
        return settings.with_head({**settings.plain, "n_basis": n_basis})

    @property
    def finished(self) -> bool:
        k = len(self.selection.candidates)
        if k == len(self.numbers) or self.selection.turned:
            return True
        return self._head(k).theta.numel() * _PAIRS_PER_PARAMETER > float(self.blocks.pairs[0].sum())

    def step(self) -> float:
        k = len(self.selection.candidates)
        self.shown = self._head(k)
        head = self.shown.in_units(self.blocks.units)
        if k:
            before = self._head(k - 1)
            before.set_flat(self.theta)
            head.set_flat(padded(before, head))
        made, nll = self.fitted(head, "none")
        # what first-order changes miss grows with the number of parameters
        if made.theta.numel() <= 2 * self.size and 3 * self.missed < _NEAR:
            made.missed = self.missed
        add_held_out(made, self.folds, self.selection, self.numbers[k])
        if made.missed != self.missed:
            self.missed, self.size = made.missed, made.theta.numel()
        self.theta = made.theta + made.first_change(self.blocks.once)
        if self.selection.best == k:
            self.best = self.theta
        head.set_flat(self.theta)
        return nll

    def chosen(self) -> Problem:
        problem = self.closed(self._with(int(self.selection.candidates[self.selection.best])))
        start = self.best if problem.settings.init == "data" else None
        return replace(problem, head=starting_head(problem.settings, problem.guess, problem.train, start))

    def state_dict(self) -> dict[str, Any]:
        own = {"theta": self.theta, "best": self.best, "missed": self.missed, "size": self.size}
        return super().state_dict() | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.theta, self.best = state["theta"], state["best"]
        self.missed, self.size = float(state["missed"]), int(state["size"])
        self.shown = self._head(len(self.selection.candidates) - 1)
        self.shown.set_flat(self.theta)


class StrengthOfPenalty(CrossValidation):
    """One factor on the strengths that the evidence chooses."""

    name = "penalty"

    def __init__(self, problem: Problem, blocks: Blocks) -> None:
        super().__init__(problem, blocks)
        self.shown = copy.deepcopy(linear(problem.head))
        self.evidence: Tensor | None = None

    @property
    def finished(self) -> bool:
        return len(self.selection.candidates) == len(FACTORS) or self.selection.turned

    def step(self) -> float:
        factor = FACTORS[len(self.selection.candidates)]
        head = self.shown.in_units(self.blocks.units)
        if self.evidence is None:
            self.evidence = self._strengths(head)
        made, nll = self.fitted(head, (factor * self.evidence).tolist())
        add_held_out(made, self.folds, self.selection, factor)
        head.set_flat(made.theta + made.first_change(self.blocks.once))
        return nll

    def _strengths(self, head: LinearHead) -> Tensor:
        """Those of the evidence; the head moves to its maximum under them."""
        engine = FisherEngine(max_steps=200, tolerance=1e-3, penalty="evidence")
        likelihood = self.blocks.likelihood(head, self.law, self.problem.settings.tail)
        done = maximise(engine, likelihood, self.blocks.whole)
        penalty = engine.objective(likelihood, done.optimizer, self.blocks.whole).penalty
        assert penalty is not None
        return penalty.strengths.clone()

    def chosen(self) -> Problem:
        settings = self.problem.settings
        assert isinstance(settings.engine, FisherEngine)
        assert self.evidence is not None
        strengths = (FACTORS[self.selection.best] * self.evidence).tolist()
        problem = self.closed(replace(settings, engine=replace(settings.engine, penalty=strengths)))
        return replace(problem, head=starting_head(settings, problem.guess, problem.train, self.shown.flat()))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"theta": self.shown.flat(), "evidence": self.evidence}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.evidence = state["evidence"]
        self.shown.set_flat(state["theta"])


VALIDATIONS: tuple[type[CrossValidation], ...] = (NumberOfFunctions, StrengthOfPenalty)  # in the order of their turns
MOST_CANDIDATES = max(len(CANDIDATES), len(SPLINES)) + len(FACTORS)


def cross_validation(problem: Problem, blocks: Blocks | None) -> CrossValidation:
    """The next choice that a problem leaves to cross-validation."""
    if blocks is None:
        raise InputError(
            "cross-validation must have all of the data in blocks in one process, found none; use fewer pairs or one "
            "dt, make the lattice with n_blocks=60, or give n_basis and penalty as numbers."
        )
    if not blocks.n_blocks >= 2 * N_FOLDS:
        raise InputError(
            f"cross-validation must have at least {2 * N_FOLDS} blocks of data, found {blocks.n_blocks}; make the "
            "lattice with n_blocks=60."
        )
    settings = problem.settings
    blocks = blocks.on_a_lattice(problem.head.in_units(blocks.units), settings.data.get("lattice") or "auto")
    return next(kind for kind in VALIDATIONS if kind.name in settings.left_open)(problem, blocks)


def add_held_out(made: Reweighting, held_out: list[Fold], selection: Selection, candidate: float) -> None:
    """Adds the held-out log-likelihood of every fold under the fit to the others."""
    totals, pairs = [], []
    for blocks, batch in held_out:
        others = made.blocks.once - blocks
        if made.objective.method != "tcf" and made.missed < _NEAR:  # what one fold has shown is taken for the others
            made.head.set_flat(made.theta + made.first_change(others))
        else:
            found = made.refit(others)
            made.head.set_flat(found.theta)
            batch = batch._replace(tcf=found.tcf)
        totals.append(batch.n_main * counted(made.likelihood, made.counts, blocks).mean(batch))
        pairs.append(batch.n_main)
    selection.pairs = torch.tensor(pairs, dtype=torch.float64)
    selection.add(candidate, torch.tensor(totals, dtype=torch.float64))


def folds(blocks: Blocks) -> list[Fold]:
    """Every fifth block in each."""
    out = []
    for k in range(N_FOLDS):
        chosen = torch.zeros_like(blocks.once)
        chosen[k::N_FOLDS] = 1.0
        out.append(Fold(chosen, blocks.weighted(chosen)))
    return out


def padded(small: LinearHead, large: LinearHead) -> Tensor:
    """theta of the larger head that says what the smaller one does: new functions have coefficient zero.

    In more than one dimension functions are not in order of their number: constants alone are taken over. Splines of
    another number are others, but nearly the same waves.
    """
    theta = torch.zeros_like(large.theta.detach())
    old, at, to = small.theta.detach(), 0, 0
    for few, many in zip(small.sizes, large.sizes):
        kept = few if small.dim == 1 else 1
        theta[to : to + kept] = old[at : at + kept]
        at, to = at + few, to + many
    return theta
