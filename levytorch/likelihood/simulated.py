"""The frozen law's score, centered by simulated steps of the same head: law "simulated".

    U(theta) = mean over the pairs of s(x, dx)  -  mean over the same states of [ s(x, dx_fine) - s(x, dx_frozen) ]

s is the score of the law that freezes the coefficients over a step. dx_fine is a simulated step that follows them along
it, dx_frozen one that holds them, from the same uniform numbers (`simulation.coupled`). The mean of s(x, dx_frozen) is
zero, so that it changes nothing but the variance. At the true coefficients U is zero on average however long the steps
are: its root has no bias from dt, in any dimension and for any head. It is `likelihood.corrected` with a simulated
expectation.

Where tails are lost the expectation is conditional on what was kept, stratum by stratum (within CT, between CT and
TRT). The frozen law's own masses and their derivatives are known; simulated steps add what the two laws differ by, to
the mass of a stratum and to the sum of the scores within it separately.

In one dimension s alone does not hold all that a pair tells of coefficients that vary along the step. With `windows`
the equation is made of s and of s times two windows around the center of the step (`likelihood.windows`), each less
its expectation; what follows holds for all of them together.

The estimating equation has the slope -A and the variance B per pair (`corrected.Information`). A is the covariance of s
with the score of the whole path, since the mean of that given (x, dx) is the score of the law that follows the
coefficients. For the frozen step the same covariance is Cov(s, s), which is taken from the data; simulations are needed
only for the difference, again with coupled steps. B is Cov(s, s) and the variance of the simulated part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head, LinearHead
from levytorch.coefficients.kernels import GRID, interpolate
from levytorch.data.batches import Batch, FullBatch
from levytorch.likelihood.corrected import Information
from levytorch.likelihood.frozen import (
    FrozenLaw,
    StepScore,
    coefficient_jacobian,
    predictor_jacobian,
    sweep,
    to_predictors,
)
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import symmetric_inverse
from levytorch.likelihood.sums import ScoreSums, assemble, project
from levytorch.likelihood.tail import TailMasses, tail_correction_factor
from levytorch.likelihood.windows import COUNT, NEGLIGIBLE, Repeated, Windows, products_in_predictors
from levytorch.simulation.coupled import CoupledSteps, Field, Substep, coupled_steps, coupled_substeps
from levytorch.spaces.states import lengths_of

SUBSTEPS = 8  # of second weak order
SHARE = 0.032  # of the variance of an estimate that simulations may make up: 1.6 % of its standard error
FEWEST, PILOT, MOST = 1 << 14, 1 << 16, 1 << 24  # simulated steps: at least, for a first look, at most
_PATHS = 1 << 16  # simulated paths for the slope of the equation, at least
_PATHS_EACH = 1 << 11  # and for every statistic where there are several: weights made from the slope carry its noise
PRODUCTS = 1 << 18  # simulated steps at most, of which products are taken where tails are lost
_NOISY = 1 << 15  # simulated steps, of which the variance of the simulated part is taken
_PAIRS = 1000  # for every statistic: with fewer they gain little, and their weights are noise
_PRIOR = 0.1  # of the precision of the penalty, in the variance of the equation
_NARROWEST = 0.5  # of the width of a window, where thresholds are close
_RARE = 16  # times as many are looked through for those that end in the tail
_CHUNK = 1 << 13  # paths at a time
_BLOCK = 1 << 19  # simulated steps at a time
_NODES = 1024  # per cell, from which coefficients of a head that is not linear are interpolated
_COARSE = 64  # bins of states in which the strata of lost tails are compared
_SMALLEST = 0.2  # of the frozen law's mass of a stratum: simulations do not make it smaller
_FEW = 200.0  # simulated steps in a stratum and bin, below which its mass follows that of the others
_GRID = {1: 64, 2: 256}  # states at which shares of the variance are compared


def coefficient_field(head: Head) -> Field:
    """The coefficients of a head without gradients, for simulations: interpolated from a table in one dimension."""
    if head.dim == 1 and head.columns == 1 and not head.is_constant and getattr(head, "periodic", True):
        ((origin, period),) = head.extents
        nodes = max(GRID, 128 * max(head.sizes)) if isinstance(head, LinearHead) else _NODES
        x = origin + period / nodes * torch.arange(nodes, dtype=torch.float64)
        with torch.no_grad():
            c = head(x)
        varies = c.alpha.dim() > 0
        table = torch.stack([c.b, c.D_o, c.D_f, *([c.alpha] if varies else [])])

        def from_table(at: Tensor) -> Coefficients:
            rows = interpolate(head.clamped(at).contiguous(), origin, period, table, positive=True)
            return Coefficients(rows[0], rows[1], rows[2], rows[3] if varies else c.alpha, c.tempering)

        return from_table

    def direct(at: Tensor) -> Coefficients:
        with torch.no_grad():
            c: Coefficients = head(inside(head, at))
            return c

    return direct


def inside(head: Head, x: Tensor) -> Tensor:
    """States whose coefficients a head knows: beyond the window of a line those at its ends are used."""
    return head.clamped(x) if x.dim() == 1 or x.shape[1] == head.dim else x


@dataclass(frozen=True)
class States:
    """The states (n,), (n, d) or (n, columns) of the data with their dt (n,) and numbers of pairs."""

    x: Tensor
    dt: Tensor
    counts: Tensor
    total: float

    def sample(self, n: int) -> tuple[Tensor, Tensor]:
        """n states, evenly spread over the pairs, and their dt."""
        places = (torch.arange(n, dtype=torch.float64) + 0.5) * (self.total / n)
        ends = self.counts.cumsum(0)
        rows = torch.searchsorted(ends, places, right=True).clamp(max=len(ends) - 1)
        return self.x[rows], self.dt[rows]


def states_of(batch: FullBatch) -> States:
    """The states of a full batch; the nodes of a lattice that share a state are one."""
    main = batch.main
    x, dt, counts = main.x, main.dt.expand(main.x.shape[0]), main.weight.to(torch.float64)
    if x.dim() == 1 and bool((counts < 0).any()):  # a lattice: interpolation has made weights of both signs
        both = torch.stack([x, dt], dim=1)
        nodes, which = torch.unique(both, dim=0, return_inverse=True)
        counts = torch.zeros(len(nodes), dtype=torch.float64).index_add_(0, which, counts).clamp(min=0.0)
        x, dt = nodes[:, 0].contiguous(), nodes[:, 1].contiguous()
    return States(x, dt, counts, float(counts.sum()))


def windows_of(objective: FullBatchObjective) -> Windows | None:
    """The statistics beside s; None where s is used alone: several dimensions, inputs, too few pairs, or thresholds
    within the core of the step.
    """
    head, masses = objective.head, objective.masses
    if head.dim > 1 or head.columns > 1 or objective.n < _PAIRS * COUNT * head.theta.numel():
        return None
    windows = Windows(objective.law)
    if masses is None or objective.method == "none":
        return windows
    with torch.no_grad():
        c, dt = head(objective.bins.x), objective.bins.dt
    threshold = masses.TRT if masses.CT is None else masses.CT
    assert threshold is not None
    room = (threshold - (c.b * dt - masses.center(dt)).abs()) / NEGLIGIBLE
    widest, wanted = float(room.min()), float(windows.width(c, dt).max())
    return replace(windows, widest=widest) if widest > _NARROWEST * wanted else None


class DifferenceLaw(FrozenLaw):
    """Scores of the frozen law at dx_fine minus those at dx_frozen, the two columns of dx (n, 2) or (n, 2, d)."""

    def __init__(self, law: FrozenLaw) -> None:
        super().__init__(law.method, law.dim)

    def score(self, c: Coefficients, dx: Tensor, dt: Tensor, wrt_alpha: bool = False) -> StepScore:
        fine, frozen = (super(DifferenceLaw, self).score(c, dx[:, k].contiguous(), dt, wrt_alpha) for k in (0, 1))
        parts: Any = (None if one is None or two is None else one - two for one, two in zip(fine, frozen))
        return StepScore(*parts)


Kept = Callable[[Tensor, Tensor, Tensor], Tensor]  # (dx, dt, bin of the state) -> whether a pair lies in a region


class Region(NamedTuple):
    """One region of |dx - mu| in which pairs were kept, and how many of them there are in every bin of states."""

    name: str
    counts: Tensor
    kept: Kept


def regions(masses: TailMasses, *, split: bool) -> list[Region]:
    """Within CT and between CT and TRT where these are treated apart (split), or all that was kept."""
    CT, TRT = masses.CT, masses.TRT

    def within(threshold: Tensor | None) -> Kept:
        def kept(dx: Tensor, dt: Tensor, node: Tensor) -> Tensor:
            if threshold is None:
                return torch.ones(len(dx), dtype=torch.bool)
            y = dx - masses.center(dt)
            return lengths_of(y) < threshold[node]

        return kept

    if CT is None or not split:
        return [Region("main", masses.counts, within(TRT if CT is None else CT))]
    in_CT, in_TRT, tail = within(CT), within(TRT), masses.tail_counts

    def between(dx: Tensor, dt: Tensor, node: Tensor) -> Tensor:
        return in_TRT(dx, dt, node) & ~in_CT(dx, dt, node)

    return [Region("core", masses.counts - tail, in_CT), Region("tail", tail, between)]


@dataclass
class Stratum:
    """A region with the sums over its pairs.

    mass (M,): that of the frozen law; slopes (K C, M): the means of the statistics in it, of s the slopes of the
    logarithm of the mass, in the predictors; rates (K, C, M): in the coefficients.
    """

    name: str
    sums: ScoreSums
    counts: Tensor
    mass: Tensor
    rates: Tensor
    slopes: Tensor
    kept: Kept


@dataclass
class SimulatedScore:
    """The centered score of a frozen law's objective and its information, by simulated steps.

    n_simulated: simulated steps; substeps: of each; seed: of their random numbers, the same at every evaluation.
    windows: the statistics beside s; pairs: those that the objective's lattice stands for, where they are at hand.
    """

    objective: FullBatchObjective
    seed: int = 0
    n_simulated: int = 0
    substeps: int = SUBSTEPS
    windows: Windows | None = None
    pairs: FullBatch | None = None
    states: States = field(init=False)
    noise: Tensor | None = None  # (K P, K P) variance of the simulated part times the number of pairs
    R_theta: float | None = None

    def __post_init__(self) -> None:
        self.states = states_of(self.objective.batch)
        if not self.n_simulated:
            self.n_simulated = int(min(max(self.states.total, FEWEST), PILOT))

    @property
    def head(self) -> LinearHead:
        return self.objective.head

    @property
    def count(self) -> int:
        """K: statistics for each parameter."""
        return 1 if self.windows is None else COUNT

    # -- the score ----------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def centered(self) -> tuple[Tensor, Evaluation]:
        """U (K P,) at the parameters of the head, and the evaluation; R_theta and the TCF are the simulated law's."""
        ev = self.objective.evaluate()
        strata = self.strata(ev, products=False)
        return (self._conditional(ev, strata) if strata else self._whole(ev)), ev

    def _steps(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """x, dt, dx_fine and dx_frozen of the simulated steps, some at a time."""
        x, dt = self.states.sample(self.n_simulated)
        field = coefficient_field(self.head)
        for low in range(0, len(x), _BLOCK):
            part, h = x[low : low + _BLOCK], dt[low : low + _BLOCK]
            steps = coupled_steps(field, part, h, self.substeps, dim=self.head.dim, seed=self.seed, first=low)
            yield part, h, steps.fine, steps.frozen

    def _whole(self, ev: Evaluation) -> Tensor:
        objective, n = self.objective, self.objective.n
        if self.windows is not None:
            simulated = sum(
                (self.windows.differences(self.head, objective.bins, *some) for some in self._steps()),
                start=torch.zeros(self.count * len(ev.theta), dtype=torch.float64),
            )
            self.noise = self._variance_of_differences(self.windows) * n / self.n_simulated
            return self._statistics(ev, centered=True).gradient / n - simulated / self.n_simulated
        law = DifferenceLaw(objective.law)
        one = torch.ones(1, dtype=torch.float64)
        C, M = ev.main.first.shape
        gradient, second = torch.zeros_like(ev.theta), torch.zeros((C, C, M), dtype=torch.float64)
        for x, dt, fine, frozen in self._steps():
            batch = Batch(x, torch.stack([fine, frozen], dim=1), dt, one.expand(len(x)))
            sums = sweep(self.head, law, batch, objective.bins)
            gradient += sums.gradient
            second += sums.second
        # per pair: a mean of n_simulated numbers has their variance over n_simulated
        self.noise = assemble(self.head, second, objective.design) * n / self.n_simulated**2
        return ev.main.gradient / n - gradient / self.n_simulated

    def _statistics(self, ev: Evaluation, *, centered: bool, products: bool = False, tail: bool = False) -> ScoreSums:
        """Sums of all statistics over all pairs, or those of the tail pool; without windows the scores at hand."""
        own = ev.tail if tail else ev.main
        assert own is not None
        if self.windows is None:
            return own
        pairs = self.objective.batch if self.pairs is None else self.pairs
        batch = pairs.tail if tail else pairs.main
        assert batch is not None
        found = self.windows.sums(self.head, batch, self.objective.bins, centered=centered, products=products)
        rows = len(found.first)
        second = torch.zeros((rows, rows, 0), dtype=torch.float64) if found.second is None else found.second
        return ScoreSums(own.n, own.log_p, found.gradient, found.first, second)

    def _variance_of_differences(self, windows: Windows) -> Tensor:
        """(K P, K P) mean products of statistics of coupled steps, fine minus frozen."""
        x, dt = self.states.sample(_NOISY)
        total = torch.zeros((), dtype=torch.float64)
        steps = coupled_steps(coefficient_field(self.head), x, dt, self.substeps, dim=self.head.dim, seed=self.seed)
        for low in range(0, _NOISY, _CHUNK):
            rows = slice(low, low + _CHUNK)
            start = rows_at(self.head, x[rows])
            fine, frozen = (start.statistics(windows, dx[rows], dt[rows]) for dx in steps)
            total = total + (fine - frozen).T @ (fine - frozen)
        return total / _NOISY

    # -- lost tails ---------------------------------------------------------------------------------------------------
    def strata(self, ev: Evaluation, *, products: bool = True) -> list[Stratum]:
        """The regions in which pairs were kept; none where all were. products: of the statistics are wanted."""
        objective, masses = self.objective, self.objective.masses
        if masses is None or objective.method == "none":
            return []
        chain = self.head.chain(self.head.theta.detach(), objective.design)
        core, middle, *rates = masses.log_kept_slopes(self.head, chain.coefficients)
        if self.windows is not None:  # they are nothing in the tails
            expected = self.windows.expected(self.head, chain.coefficients, objective.bins.dt)[1:]
            rates = [torch.cat([rates[0][None], expected / core.exp()]), torch.cat([rates[1][None], 0.0 * expected])]
        by_core, by_middle = ((by, to_predictors(by, chain).reshape(-1, len(core))) for by in rates)
        frozen = {"main": (core.exp(), *by_core), "core": (core.exp(), *by_core), "tail": (middle.exp(), *by_middle)}
        main = self._statistics(ev, centered=False, products=products)
        sums = {"main": main}
        if ev.tail is not None:
            tail = self._statistics(ev, centered=False, products=products, tail=True)
            sums |= {"core": main - tail, "tail": tail}
        split = ev.tail is not None and not (objective.method == "conditional" and objective.region == "TRT")
        return [Stratum(r.name, sums[r.name], r.counts, *frozen[r.name], r.kept) for r in regions(masses, split=split)]

    def weight(self, stratum: Stratum) -> float:
        """What a pair of the stratum weighs in the equation, times the number of all pairs."""
        if self.objective.method != "tcf" or stratum.name == "main" or self.R_theta is None:
            return 1.0
        share = 1.0 - self.R_theta if stratum.name == "core" else self.R_theta
        return share * self.objective.n / float(stratum.counts.sum())

    def _conditional(self, ev: Evaluation, strata: list[Stratum]) -> Tensor:
        objective, bins, n = self.objective, self.objective.bins, self.objective.n
        head, masses = self.head, objective.masses
        assert masses is not None
        chain = head.chain(head.theta.detach(), objective.design)
        C, M, rows = head.n_predictors, len(bins), self.count * head.n_predictors
        jacobian = predictor_jacobian(chain, C, M)

        def in_predictors(sums: Tensor) -> Tensor:
            return to_predictors(sums.reshape(self.count, C, M), chain).reshape(rows, M)

        number = torch.zeros(M, dtype=torch.float64)
        found = [torch.zeros((1 + rows, M), dtype=torch.float64) for _ in strata]
        spread = [torch.zeros((rows * rows, M), dtype=torch.float64) for _ in strata]
        stride = max(1, self.n_simulated // PRODUCTS)
        field = coefficient_field(head)
        for x, dt, fine, frozen in self._steps():
            node, c = bins.index(x, dt), field(x)
            number += torch.bincount(node, minlength=M)
            scores = [self._rows(c, dx, dt) for dx in (fine, frozen)]
            for stratum, total, products in zip(strata, found, spread):
                kept = [stratum.kept(dx, dt, node).to(torch.float64) for dx in (fine, frozen)]
                difference = kept[0] - kept[1]
                sums = scores[0] * kept[0] - scores[1] * kept[1]
                total.index_add_(1, node, torch.cat([difference[None], sums]))
                # a step says (s - mean) / mass about the mean of its stratum, fine minus frozen
                some = node[::stride]
                own = sums[:, ::stride] - stratum.rates.reshape(rows, M)[:, some] * difference[::stride]
                own /= stratum.mass[some].clamp(min=1e-300)
                products.index_add_(1, some, stride * (own.unsqueeze(0) * own.unsqueeze(1)).flatten(0, 1))
        coarse = bins.coarser(head, _COARSE)
        of_bin = coarse.index(bins.x, bins.dt)

        def gathered(values: Tensor) -> Tensor:
            return torch.zeros((*values.shape[:-1], len(coarse)), dtype=torch.float64).index_add_(-1, of_bin, values)

        means = []
        for stratum, total, products in zip(strata, found, spread):
            p = stratum.mass * number
            known, mean = gathered(p), _ratio(gathered(p * stratum.slopes), gathered(p))
            more = gathered(total[0])
            change = gathered(in_predictors(total[1:])) - mean * more
            changed = _ratio(change, known * (1.0 + _pooled(more, known)).clamp(min=_SMALLEST))
            products = products_in_predictors(products.reshape(rows, rows, M), jacobian)
            means.append((changed, _ratio(known + more, gathered(number)), products))
        if objective.method == "tcf":
            self.R_theta = float((masses.share * (1.0 - means[0][1][of_bin])).sum())
            ev.R_theta = self.R_theta
            ev.tcf = tail_correction_factor(self.R_theta, masses.R_sample)
        repeated, design = self._repeated()
        U = torch.zeros(self.count * len(ev.theta), dtype=torch.float64)
        noise = torch.zeros((rows, rows, M), dtype=torch.float64)
        simulated = gathered(number)
        for stratum, (changed, _, products) in zip(strata, means):
            scale = self.weight(stratum)
            mean = stratum.slopes + changed[:, of_bin]
            U += scale / n * (stratum.sums.gradient - project(repeated, mean * stratum.counts, design))
            noise += (scale * _ratio(gathered(stratum.counts), simulated)[of_bin]) ** 2 * products
        self.noise = assemble(repeated, noise, design) / n
        return U

    def _rows(self, c: Coefficients, dx: Tensor, dt: Tensor) -> Tensor:
        """The statistics of steps, (K C, n) in the coefficients."""
        if self.windows is not None:
            return self.windows.statistics(self.head, c, dx, dt).flatten(0, 1)
        return self.head.layout.scores(self.objective.law.score(c, dx, dt, wrt_alpha=self.head.learns_alpha), c)

    def _repeated(self) -> tuple[Any, list[Tensor]]:
        """The head and its design at the bins, once for each statistic."""
        if self.windows is None:
            return self.head, list(self.objective.design)
        return Repeated(self.head, self.count), list(self.objective.design) * self.count

    # -- the information ----------------------------------------------------------------------------------------------
    @torch.no_grad()
    def information(self, ev: Evaluation) -> Information:
        """Slope and variance of the equation at an evaluation of `centered`, per pair."""
        return self.with_noise(*self.slope_and_variance(ev))

    def with_noise(self, slope: Tensor, variance: Tensor) -> Information:
        """The information, with the variance of what is simulated.

        Of what the data says nothing about, the variance of the few pairs there is chance, and its inverse without
        bounds. A part of the penalty's precision is added to it, which is small beside what the data does determine.
        """
        if self.noise is not None:
            variance = variance + self.noise
        precision = self.objective.precision().repeat(self.count)
        variance = variance + torch.diag(_PRIOR * precision / self.objective.n)
        return Information(slope, variance, slope.T @ symmetric_inverse(variance) @ slope)

    @torch.no_grad()
    def slope_and_variance(self, ev: Evaluation) -> tuple[Tensor, Tensor]:
        """A (K P, P) and B (K P, K P) of the pairs, at an evaluation of `centered`."""
        n, strata = self.objective.n, self.strata(ev)
        whole = ev.main if strata else self._statistics(ev, centered=True, products=True)
        slope, variance = whole.second / n, whole.second / n
        if strata:
            slope, variance = (torch.zeros_like(strata[0].sums.second) for _ in range(2))
        for stratum in strata:
            scale, q, s = self.weight(stratum), stratum.slopes, stratum.sums
            outer = q.unsqueeze(1) * s.first.unsqueeze(0)
            within = s.second - outer - outer.transpose(0, 1) + q.unsqueeze(1) * q.unsqueeze(0) * stratum.counts
            slope += scale * within / n
            variance += scale**2 * within / n
        repeated, design = self._repeated()
        A = assemble(repeated, slope, design)[:, : len(ev.theta)] + self._difference(strata)
        return A, assemble(repeated, variance, design)

    def _difference(self, strata: list[Stratum]) -> Tensor:
        """Cov(f, path score - s) of fine steps minus the same of frozen ones, (K P, P) per pair, f the statistics."""
        head, objective = self.head, self.objective
        P = head.flat().numel()
        n_paths = _PATHS if self.windows is None else max(_PATHS, _PATHS_EACH * self.count * P)
        x, dt = self.states.sample(n_paths)
        items = torch.arange(len(x))
        total = torch.zeros((self.count * P, P), dtype=torch.float64)
        if not strata:
            for paths in self._paths(x, dt, items):
                for one in (paths.fine, paths.frozen):
                    total += one.sign * one.statistics.T @ (one.path - one.score)
            return total / n_paths
        # few steps end in the tail: they are looked for among many, and their paths made again from their streams
        many, many_dt = self.states.sample(_PATHS * _RARE)
        many_items = torch.arange(len(many))
        field = coefficient_field(head)
        steps = coupled_steps(field, many, many_dt, SUBSTEPS, **self._streams())
        for stratum in strata:
            if stratum.name != "tail":
                own = coupled_steps(field, x, dt, SUBSTEPS, **self._streams())
                total += self._within(stratum, x, dt, items, own)
                continue
            node = objective.bins.index(many, many_dt)
            used = stratum.kept(steps.fine, many_dt, node) | stratum.kept(steps.frozen, many_dt, node)
            found = CoupledSteps(steps.fine[used], steps.frozen[used])
            total += self._within(stratum, many[used], many_dt[used], many_items[used], found)
        return total

    def _streams(self) -> dict[str, Any]:
        """Of the paths, which follow Euler's rule."""
        return {"dim": self.head.dim, "seed": self.seed, "extrapolate": False}

    def _paths(self, x: Tensor, dt: Tensor, items: Tensor) -> Iterator[_Paths]:
        coefficients = coefficient_field(self.head)
        for low in range(0, len(x), _CHUNK):
            rows = slice(low, low + _CHUNK)
            steps = coupled_substeps(coefficients, x[rows], dt[rows], SUBSTEPS, items[rows], **self._streams())
            yield _paths(self.head, self.objective.law, self.windows, steps, x[rows], dt[rows])

    def _within(self, stratum: Stratum, x: Tensor, dt: Tensor, items: Tensor, steps: CoupledSteps) -> Tensor:
        """The same covariances within a stratum, of paths from some states, which end in these steps."""
        objective = self.objective
        coarse = objective.bins.coarser(self.head, _COARSE)
        of_bin = coarse.index(objective.bins.x, objective.bins.dt)
        node = objective.bins.index(x, dt)
        pairs = torch.zeros(len(coarse), dtype=torch.float64).index_add_(0, of_bin, stratum.counts)
        kept = [stratum.kept(dx, dt, node) for dx in steps]
        numbers = [torch.bincount(of_bin[node[mask]], minlength=len(coarse)).to(torch.float64) for mask in kept]
        weights = [self.weight(stratum) * pairs / (k - 1.0).clamp(min=1.0) / objective.n for k in numbers]
        P = self.head.flat().numel()
        total = torch.zeros((self.count * P, P), dtype=torch.float64)
        sums = [[torch.zeros((len(coarse), size), dtype=torch.float64) for size in total.shape] for _ in steps]
        for chunk, paths in enumerate(self._paths(x, dt, items)):
            rows = slice(chunk * _CHUNK, (chunk + 1) * _CHUNK)
            for one, mask, weight, (of_f, of_rest) in zip((paths.fine, paths.frozen), kept, weights, sums):
                used = mask[rows]
                at, f, rest = of_bin[node[rows][used]], one.statistics[used], (one.path - one.score)[used]
                total += one.sign * f.T @ (weight[at][:, None] * rest)
                of_f.index_add_(0, at, f)
                of_rest.index_add_(0, at, rest)
        for sign, number, weight, (of_f, of_rest) in zip((1.0, -1.0), numbers, weights, sums):
            total -= sign * of_f.T @ ((weight / number.clamp(min=1.0))[:, None] * of_rest)
        return total

    # -- how many simulations -----------------------------------------------------------------------------------------
    def share(self, information: Information, precision: Tensor) -> float:
        """The largest part of the variance of a coefficient, at any state, that the simulations make up."""
        n, noise = self.objective.n, self.noise
        assert noise is not None
        turn = information.slope.T @ symmetric_inverse(information.variance)
        inverse = symmetric_inverse(n * turn @ information.slope + torch.diag(precision))
        influence = n * inverse @ turn
        whole, simulated = inverse, influence @ (noise / n) @ influence.T
        most = 0.0
        for J in self.head.jacobian(self.head.grid(_GRID.get(self.head.dim, 512))):
            J = J.reshape(-1, J.shape[-1])
            variance = ((J @ whole) * J).sum(-1)
            part = ((J @ simulated) * J).sum(-1)
            used = variance > 0
            if bool(used.any()):
                most = max(most, float((part[used] / variance[used]).max()))
        return most

    def enough(self, share: float) -> int:
        """How many simulated steps make up SHARE of the variance at most, from the share of the present number."""
        odds = [part / (1.0 - min(part, 0.999)) for part in (share, SHARE)]
        return int(min(max(self.n_simulated * odds[0] / odds[1], FEWEST), MOST))


@dataclass
class _Side:
    """Simulated steps of one kind: scores (n, P) of the whole step and of the path of substeps, and statistics (n, K P)
    of the whole step.
    """

    sign: float
    statistics: Tensor
    score: Tensor
    path: Tensor


@dataclass
class _Paths:
    fine: _Side
    frozen: _Side


def _paths(
    head: Head, law: FrozenLaw, windows: Windows | None, substeps: Iterator[Substep], x: Tensor, dt: Tensor
) -> _Paths:
    """Coupled paths by Euler's rule, whose substeps have the scores of the frozen law over their part of dt."""
    h = dt / SUBSTEPS
    start = rows_at(head, x)
    zero = torch.zeros((), dtype=torch.float64)
    moved, followed, held = [zero, zero], zero, zero
    for i, one in enumerate(substeps):
        here = start if i == 0 else rows_at(head, one.x)
        moved = [moved[0] + one.fine, moved[1] + one.frozen]
        followed = followed + here.scores(law, one.fine, h)
        held = held + start.by_row(law, one.frozen, h)  # all of them from one state
    sides = []
    for sign, dx, path in zip((1.0, -1.0), moved, (followed, start.to_theta(held))):
        score = start.scores(law, dx, dt)
        sides.append(_Side(sign, score if windows is None else start.statistics(windows, dx, dt), score, path))
    return _Paths(*sides)


@dataclass
class RowsAt:
    """Coefficients of a head at states, and the scores of steps from there in its parameters."""

    head: Head
    coefficients: Coefficients
    to_theta: Callable[[Tensor], Tensor]  # d log p / d c (C, n) -> (n, P)

    def scores(self, law: FrozenLaw, dx: Tensor, dt: Tensor) -> Tensor:
        """d log p / d theta of steps dx over dt, (n, P)."""
        return self.to_theta(self.by_row(law, dx, dt))

    def by_row(self, law: FrozenLaw, dx: Tensor, dt: Tensor) -> Tensor:
        """d log p / d row of the layout, (C, n)."""
        step = law.score(self.coefficients, dx, dt, wrt_alpha=self.head.learns_alpha)
        return self.head.layout.scores(step, self.coefficients)

    def statistics(self, windows: Windows, dx: Tensor, dt: Tensor) -> Tensor:
        """Statistics of such steps less their expectations under the frozen law, (n, K P)."""
        rows = windows.statistics(self.head, self.coefficients, dx, dt)
        rows -= windows.expected(self.head, self.coefficients, dt)
        return torch.cat([self.to_theta(part) for part in rows], dim=1)


def rows_at(head: Head, x: Tensor) -> RowsAt:
    """What `RowsAt` holds, at states x."""
    x = inside(head, x)
    if isinstance(head, LinearHead):
        design = head.design(x)
        chain = head.chain(head.theta.detach(), design)

        def linear(scores: Tensor) -> Tensor:
            out = torch.zeros((head.theta.numel(), x.shape[0]), dtype=torch.float64)
            for row, (q, phi) in enumerate(zip(to_predictors(scores, chain), design)):
                out[head.part(row)] += q * phi
            return out.T

        return RowsAt(head, chain.coefficients, linear)
    jacobian = coefficient_jacobian(head, x)
    with torch.no_grad():
        return RowsAt(head, head(x), lambda scores: torch.einsum("cn,cnp->np", scores, jacobian))


def _pooled(more: Tensor, known: Tensor) -> Tensor:
    """more / known in every bin, drawn towards that of all bins where there are few simulated steps: a denominator that
    moves with its numerator would bias their ratio.
    """
    whole = more.sum() / known.sum().clamp(min=1e-300)
    return (more + _FEW * whole) / (known + _FEW)


def _ratio(values: Tensor, by: Tensor) -> Tensor:
    return torch.where(by > 0, values / by.clamp(min=1e-300), 0.0)


# -- simulated pairs as parts of a batch -------------------------------------------------------------------------------


@dataclass
class SimulatedPairs:
    """Simulated pairs beside those of the data, for engines that maximise: fine ones with negative weights, frozen ones
    with positive ones. Their displacements are numbers, so that the gradient of such a batch is the centered score.

    In every region of lost tails fine and frozen steps have the weight of its data, each kind by its own number of kept
    steps: per bin of states in a full batch, altogether in a mini-batch.
    """

    likelihood: Likelihood
    seed: int = 0
    substeps: int = SUBSTEPS
    R_theta: float | None = None  # of the last full batch

    @torch.no_grad()
    def append(self, batch: Batch, step: int) -> Batch:
        """A mini-batch with a simulated pair of either kind for each of its own."""
        likelihood, head = self.likelihood, self.likelihood.head
        x, dt, first = batch.x, batch.dt.expand(len(batch.x)), likelihood.ranks.rank << 32
        masses = likelihood.masses if likelihood.tail.active else None
        parts: list[Region] = []
        if masses is not None:
            parts = regions(masses, split=self._split(masses))
            node = masses.bins.index(x, dt)
            own = [part.kept(batch.dx, dt, node) for part in parts]
            x, dt, node = x[own[0]], dt[own[0]], node[own[0]]  # the tail pool has more than its share of a batch
        steps = coupled_steps(
            coefficient_field(head), x, dt, self.substeps, dim=head.dim, seed=self.seed, round=step, first=first
        )
        if masses is None:
            weights = -batch.weight, batch.weight
        else:
            group = torch.zeros(len(x), dtype=torch.int64)
            totals = [batch.weight[mask].sum().reshape(1) for mask in own]
            weights = _by_region(parts, totals, group, node, dt, steps.fine, steps.frozen)
        return _joined(batch, x, dt, steps.fine, steps.frozen, weights)

    @torch.no_grad()
    def full_batch(self, batch: FullBatch, n_simulated: int) -> FullBatch:
        """A full batch with simulated pairs at the head as it is."""
        likelihood, head = self.likelihood, self.likelihood.head
        states = states_of(batch)
        x, dt = states.sample(n_simulated)
        field = coefficient_field(head)
        fine, frozen = coupled_steps(field, x, dt, self.substeps, dim=head.dim, seed=self.seed)
        masses = likelihood.masses if likelihood.tail.active else None
        if masses is None:
            one = torch.full((len(x),), states.total / n_simulated, dtype=torch.float64)
            return batch._replace(main=_joined(batch.main, x, dt, fine, frozen, (-one, one)))
        node = masses.bins.index(x, dt)
        coarse = masses.bins.coarser(head, _COARSE)
        of_bin = coarse.index(masses.bins.x, masses.bins.dt)
        parts = regions(masses, split=self._split(masses))
        totals = [torch.zeros(len(coarse), dtype=torch.float64).index_add_(0, of_bin, p.counts) for p in parts]
        weights = _by_region(parts, totals, of_bin[node], node, dt, fine, frozen)
        main = _joined(batch.main, x, dt, fine, frozen, weights)
        tail = batch.tail
        if tail is not None and len(parts) > 1:
            again = _by_region(parts[1:], totals[1:], of_bin[node], node, dt, fine, frozen)
            tail = _joined(tail, x, dt, fine, frozen, again)
        if masses.CT is not None:
            core = parts[0].kept
            more = core(frozen, dt, node).to(torch.float64) - core(fine, dt, node).to(torch.float64)
            self.R_theta = masses.R_theta(head) + float(more.mean())
        return batch._replace(main=main, tail=tail)

    def _split(self, masses: TailMasses) -> bool:
        tail = self.likelihood.tail
        return bool(masses.tail_counts.any()) and not (tail.method == "conditional" and tail.conditions_on == "TRT")

    @torch.no_grad()
    def noise(self, batch: FullBatch) -> float:
        """Variance of a difference of coupled scores over that of a score, the largest of the coefficients."""
        head, law = self.likelihood.head, self.likelihood.law
        assert isinstance(law, FrozenLaw)
        x, dt = states_of(batch).sample(FEWEST)
        field = coefficient_field(head)
        fine, frozen = coupled_steps(field, x, dt, self.substeps, dim=head.dim, seed=self.seed)
        c = head(inside(head, x))
        steps = (law.score(c, dx, dt, wrt_alpha=head.learns_alpha) for dx in (fine, frozen))
        one, two = (head.layout.scores(step, c) for step in steps)
        return float(((one - two).square().mean(1) / two.square().mean(1).clamp(min=1e-300)).max())


def _by_region(
    parts: list[Region],
    totals: list[Tensor],
    group: Tensor,
    node: Tensor,
    dt: Tensor,
    fine: Tensor,
    frozen: Tensor,
) -> tuple[Tensor, Tensor]:
    """Weights of fine and frozen steps: in every group and region minus and plus the total there."""
    out = [torch.zeros(len(group), dtype=torch.float64) for _ in range(2)]
    for part, total in zip(parts, totals):
        kept = [part.kept(dx, dt, node).to(torch.float64) for dx in (fine, frozen)]
        number = [torch.zeros(len(total), dtype=torch.float64).index_add_(0, group, mask) for mask in kept]
        share = torch.where((number[0] > 0) & (number[1] > 0), total, 0.0)
        for weight, mask, count, sign in zip(out, kept, number, (-1.0, 1.0)):
            weight += sign * mask * (share / count.clamp(min=1.0))[group]
    return out[0], out[1]


def _joined(batch: Batch, x: Tensor, dt: Tensor, fine: Tensor, frozen: Tensor, weights: tuple[Tensor, Tensor]) -> Batch:
    """Pairs of the data and simulated ones; those without weight are left out."""
    used = [torch.nonzero(w).reshape(-1) for w in weights]
    return Batch(
        torch.cat([batch.x, *(x[rows] for rows in used)]),
        torch.cat([batch.dx, fine[used[0]], frozen[used[1]]]),
        torch.cat([batch.dt.expand(len(batch.x)), *(dt[rows] for rows in used)]),
        torch.cat([batch.weight.expand(len(batch.x)).to(torch.float64), *(w[r] for w, r in zip(weights, used))]),
    )
