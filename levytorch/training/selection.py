"""How many basis functions, or how strong a penalty: by the likelihood of trajectories that were held out.

Folds are blocks of trajectories (of time where there are few trajectories). Every candidate is fitted to all data once,
from the candidate before; what leaving out a fold changes is a fraction of a standard error, and takes a chord or two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import FourierHead, LinearHead
from levytorch.data.batches import FullBatch
from levytorch.errors import InputError
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.penalty import Strength
from levytorch.training.blocks import Blocks, counted, per_pair, quick
from levytorch.training.engines.base import maximise
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.reweighting import Reweighting
from levytorch.training.settings import FitSettings
from levytorch.training.start import starting_head

if TYPE_CHECKING:
    from levytorch.training.prepare import Problem

N_FOLDS = 5
CANDIDATES = tuple(range(1, 42, 2))
SPLINES = (1, *range(4, 44, 2))
FACTORS = tuple(10.0 ** (k / 2) for k in range(4, -5, -1))  # of the evidence's strengths, from smooth to rough
# folds find their own way: a standard error of all data moves a held-out score by about one, of which hundredths matter
_TOLERANCE, _CLOSE, _NEAR = 0.03, 0.02, 0.05
_PATIENCE = 5  # candidates without a better one, after which the rest is not looked at
_PAIRS_PER_PARAMETER = 5


class Fold(NamedTuple):
    """held: (n_blocks,) of 0 and 1, its blocks; batch: their data."""

    held: Tensor
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

    @property
    def best(self) -> int:
        """Number of the best candidate; the first of equals, which is the simplest."""
        return int(torch.stack(self.folds).sum(1).argmax())

    @property
    def turned(self) -> bool:
        """Whether the score has been falling for so long that more candidates are not worth a look."""
        behind = len(self.folds) - 1 - self.best
        if behind >= _PATIENCE:
            return True
        fall, error = self._difference(len(self.folds) - 1)
        return behind >= 3 and fall < -3 * error

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


def select(problem: Problem, blocks: Blocks | None) -> Problem:
    """The problem with nothing left open: n_basis and the penalty chosen where they were left to the data."""
    settings, chosen = problem.settings, None
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
    blocks = quick(blocks, problem.head.in_units(blocks.units), settings.data.get("lattice") or "auto")
    if "n_basis" in settings.left_open:
        chosen, theta = _n_basis(problem, blocks)
        settings = _with(settings, int(chosen.candidates[chosen.best]))
        start = theta if settings.init == "data" else None
        problem = replace(problem, settings=settings, head=starting_head(settings, problem.guess, start))
    if "penalty" in settings.left_open:
        strengths, by_penalty = _penalty(problem, blocks)
        assert isinstance(settings.engine, FisherEngine)
        settings = replace(settings, engine=replace(settings.engine, penalty=strengths))
        chosen, problem = chosen or by_penalty, replace(problem, settings=settings)
    return replace(problem, settings=replace(settings, left_open=()), selection=chosen)


def _with(settings: FitSettings, n_basis: int) -> FitSettings:
    assert settings.plain is not None
    return settings.with_head({**settings.plain, "n_basis": n_basis})


def _n_basis(problem: Problem, blocks: Blocks) -> tuple[Selection, Tensor]:
    settings, selection = problem.settings, Selection("n_basis")
    held_out = folds(blocks)
    thetas: list[Tensor] = []
    before: LinearHead | None = None
    shown, size = math.inf, 0  # how far first-order changes were off, and for how many parameters: it grows with them
    for K in CANDIDATES if isinstance(problem.head, FourierHead) else SPLINES:
        head = starting_head(replace(_with(settings, K), init="data"), problem.guess).in_units(blocks.units)
        assert isinstance(head, LinearHead)
        if before is not None:
            if head.theta.numel() * _PAIRS_PER_PARAMETER > float(blocks.pairs[0].sum()):
                break
            head.set_flat(padded(before, head))
        made = _fitted(head, problem, blocks, "none")
        if made.theta.numel() <= 2 * size and 3 * shown < _NEAR:
            made.missed = shown
        add_held_out(made, held_out, selection, K)
        if made.missed != shown:
            shown, size = made.missed, made.theta.numel()
        before = made.head
        theta = made.theta + made.first_change(blocks.once)
        before.set_flat(theta)
        thetas.append(theta)
        if selection.turned:
            break
    return selection, thetas[selection.best]


def _penalty(problem: Problem, blocks: Blocks) -> tuple[list[float], Selection]:
    """One factor on the strengths of the evidence."""
    head = problem.head.in_units(blocks.units)
    assert isinstance(head, LinearHead)
    engine = FisherEngine(max_steps=200, tolerance=1e-3, penalty="evidence")
    likelihood = blocks.likelihood(head, _law(problem), problem.settings.tail)
    done = maximise(engine, likelihood, blocks.whole)
    own = engine.objective(likelihood, done.optimizer, blocks.whole).penalty
    assert own is not None
    selection, evidence, held_out = Selection("penalty"), own.strengths.clone(), folds(blocks)
    for factor in FACTORS:
        made = _fitted(head, problem, blocks, (factor * evidence).tolist())
        add_held_out(made, held_out, selection, factor)
        head.set_flat(made.theta + made.first_change(blocks.once))
        if selection.turned:
            break
    return (FACTORS[selection.best] * evidence).tolist(), selection


def _law(problem: Problem) -> FrozenLaw:
    return FrozenLaw(steady_method(problem.settings.density, problem.head), problem.head.dim)


def _fitted(head: LinearHead, problem: Problem, blocks: Blocks, strengths: Strength) -> Reweighting:
    """The fit of a head to all data once, from where it is."""
    likelihood = blocks.on_nodes(blocks.likelihood(head, _law(problem), problem.settings.tail))
    engine = FisherEngine(tolerance=_TOLERANCE, damping=1e-4, penalty=strengths)  # type: ignore[arg-type]
    done = maximise(engine, likelihood, blocks.whole)
    evaluation = done.optimizer.accepted  # type: ignore[attr-defined]
    return Reweighting(likelihood, blocks, strengths, close=_CLOSE, evaluation=evaluation)


def add_held_out(made: Reweighting, held_out: list[Fold], selection: Selection, candidate: float) -> None:
    """Adds the held-out log-likelihood of every fold under the fit to the others."""
    totals, pairs = [], []
    for held, batch in held_out:
        others = made.blocks.once - held
        if made.objective.method != "tcf" and made.missed < _NEAR:  # what one fold has shown is taken for the others
            made.head.set_flat(made.theta + made.first_change(others))
        else:
            found = made.refit(others)
            made.head.set_flat(found.theta)
            batch = batch._replace(tcf=found.tcf)
        totals.append(batch.n_main * counted(made.likelihood, made.counts, held).mean(batch))
        pairs.append(batch.n_main)
    selection.pairs = torch.tensor(pairs, dtype=torch.float64)
    selection.add(candidate, torch.tensor(totals, dtype=torch.float64))


def folds(blocks: Blocks) -> list[Fold]:
    """Every fifth block in each."""
    out = []
    for k in range(N_FOLDS):
        held = torch.zeros_like(blocks.once)
        held[k::N_FOLDS] = 1.0
        out.append(Fold(held, blocks.weighted(held)))
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
