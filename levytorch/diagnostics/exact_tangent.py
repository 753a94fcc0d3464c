"""The exact law of a step at the fitted parameters: what the tests of a fit ask of it.

Scores follow the coefficients along the step. Under the law they are wanted to a percent or so, for which a coarser
grid than the likelihood's is enough; the likelihood itself, its gradient and the probability transform are computed as
in the fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head, LinearHead
from levytorch.coefficients.padded import on_a_cell
from levytorch.diagnostics.components import TAILS, Components
from levytorch.diagnostics.sample import Region, Sample, conditional
from levytorch.diagnostics.tangent import Expected, Observed, Values
from levytorch.likelihood.exact import AtOneHead, ExactLaw, beside
from levytorch.likelihood.exact_rule import SIZES, Rule
from levytorch.likelihood.exact_step import ExactStep
from levytorch.likelihood.frozen import coefficient_jacobian
from levytorch.likelihood.objective import separability
from levytorch.likelihood.sums import StateBins

_STATES = 96  # even ones of the cell, at which moments under the law are taken
_COARSE = 0.62  # points of the grid for scores, of those that log p needs
_TAIL_NODES = 12
_SMOOTH = 256  # even ones at which masses are taken, which are as smooth along x as the coefficients
_FINE = 64  # times as many, between which they are straight lines
_SAME = 1e-6  # relative difference below which two dt are one
_PER_RARE, _PER_PANEL, _PANELS = 3, 6, 8  # nodes beyond the rarest levels and between them, and in the middle
_FARTHEST = 1e13  # periods: beyond it scores have long settled
_ROUNDS, _CLOSE = 40, 1e-9  # of the secant method, and where it ends, in log mass


class ScoreNodes(NamedTuple):
    """Steps that stand for the law of one dt: state, probability v in its stratum, weight (all sum to one), and score
    given the stratum (n, P)."""

    x: Tensor
    v: Tensor
    weight: Tensor
    scores: Tensor


class _Steps(NamedTuple):
    """Scores at even states and given probabilities (strata, M, J, P), and those of the masses of the strata
    (strata, M, P)."""

    scores: Tensor
    slopes: Tensor


class ExactTangent:
    """Answers for the exact law as `Tangent` does for the frozen one."""

    def __init__(self, head: Head, region: Region, mu: Tensor, *, uniform_dt: bool) -> None:
        self.fitted = head  # on a line `head` is padded to a cell
        self.head, self.region, self.mu, self.uniform = on_a_cell(head), region, mu, uniform_dt
        self.law = ExactLaw()
        self._graphs: dict[float, AtOneHead] = {}
        self._made: dict[float, _Steps] = {}

    @cached_property
    def jacobian(self) -> Tensor:
        """As that of `Tangent`."""
        bins = StateBins(self.head, torch.ones((), dtype=torch.float64))
        return coefficient_jacobian(self.head, bins.x)

    def coefficients(self, x: Tensor) -> Coefficients:
        with torch.no_grad():
            return self.head(x)

    def center(self, dt: float) -> Tensor:
        return self.mu if self.uniform else self.mu * dt

    def observe(self, sample: Sample) -> Observed:
        """Probability transforms, log p given the region, and the mean score, of the pairs themselves."""
        dt = rounded(sample.dt)
        lower, upper, log_p = (torch.empty(len(sample), dtype=torch.float64) for _ in range(3))
        edges = torch.zeros((4, len(sample)), dtype=torch.float64)
        score = torch.zeros(self.head.flat().numel(), dtype=torch.float64)
        for value in torch.unique(dt).tolist():
            rows = torch.nonzero(dt == value).reshape(-1)
            x, dx = sample.x[rows], sample.dx[rows]
            own, total = self._likelihood(x, dx, value, sample.label[rows])
            log_p[rows], score = own, score + total / len(sample)
            with torch.no_grad():
                step = self.law.step(self.head, value)
                lower[rows], upper[rows] = step.lower(x, dx), step.upper(x, dx)
                if not self.region.whole:
                    at_states = torch.stack(self._edges(even_states(self.head, _SMOOTH), value))
                    edges[:, rows] = smooth_between(self.head, at_states, x)
        u = conditional(lower, upper, edges, sample.dx, sample.center, sample.label, self.region)
        return Observed(u, log_p, score)

    def mean_score(self, x: Tensor, dx: Tensor, dt: float, label: Tensor) -> Tensor:
        """(P,) of pairs of one dt, given their strata."""
        return self._likelihood(x, dx, dt, label)[1] / len(x)

    def expect(self, sample: Sample, components: Components, seed: int) -> Expected:
        """Moments under the law at the sample's states; nothing is drawn."""
        P = self.head.flat().numel()
        information = torch.zeros((P, P), dtype=torch.float64)
        cross = torch.zeros((len(components.groups), P), dtype=torch.float64)
        dt = rounded(sample.dt)
        for value in torch.unique(dt).tolist():
            rows = dt == value
            share = float(rows.sum()) / len(sample)
            nodes = self.nodes(sample.x[rows], sample.label[rows], value)
            h = components.values(nodes.v, nodes.x, torch.full_like(nodes.x, value), None)
            weighted = (share * nodes.weight)[:, None] * nodes.scores
            cross += h @ weighted
            information += nodes.scores.T @ weighted
        correlation = separability(information, self.head) if isinstance(self.head, LinearHead) else 0.0
        return Expected(cross, information, correlation, None)

    def nodes(self, x: Tensor, label: Tensor, dt: float) -> ScoreNodes:
        """The law at the states of some pairs of one dt, with their shares of the strata."""
        made = self._made.get(dt) or self._steps(dt)[0]
        v, w = probability_nodes()
        strata, M, J, P = made.scores.shape
        shares = torch.stack([_spread(self.head, x[label == s], M) for s in range(strata)]) / len(x)
        weight = (shares[:, :, None] * w).reshape(-1)
        states = even_states(self.head, M).repeat_interleave(J).repeat(strata)
        scores = (made.scores - made.slopes[:, :, None, :]).reshape(-1, P)
        return ScoreNodes(states, v.repeat(strata * M), weight, scores)

    def cross_by(self, sample: Sample, h: Values, group: Tensor, weight: Tensor) -> Tensor:
        """As that of `Tangent`."""
        dt, G = rounded(sample.dt), int(group.max()) + 1
        v, w = probability_nodes()
        total: Tensor | None = None
        for value in torch.unique(dt).tolist():
            made = self._made.get(value) or self._steps(value)[0]
            strata, M, J = made.scores.shape[:3]
            states = even_states(self.head, M).repeat_interleave(J)
            values = h(v.repeat(M), states, torch.full_like(states, value), None).reshape(-1, M, J)
            for stratum in range(strata):
                scores = made.scores[stratum] - made.slopes[stratum][:, None]
                means = torch.einsum("kmj,mjp,j->kmp", values, scores, w)
                rows = torch.nonzero((dt == value) & (sample.label == stratum)).reshape(-1)
                count = torch.zeros(G * M, dtype=torch.float64)
                for node, share in beside(self.head, sample.x[rows], M):
                    count.index_add_(0, group[rows] * M + node, weight[rows] * share)
                part = torch.einsum("gm,kmp->gkp", count.reshape(G, M), means)
                total = part if total is None else total + part
        assert total is not None
        return total

    def tail_odds(self, sample: Sample, strata: Region) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """As that of `Tangent`."""
        dt, log_odds = rounded(sample.dt), torch.empty(len(sample), dtype=torch.float64)
        parameters = list(self.head.parameters())
        made: list[tuple[Tensor, Tensor]] = []  # rows, and the odds at even states with their graph
        for value in torch.unique(dt).tolist():
            rows = torch.nonzero(dt == value).reshape(-1)
            with torch.enable_grad():
                odds = self._log_odds(value, strata)
            made.append((rows, odds))
            log_odds[rows] = smooth_between(self.head, odds.detach(), sample.x[rows])

        def contract(weight: Tensor) -> Tensor:
            total = torch.zeros((len(weight), self.head.flat().numel()), dtype=torch.float64)
            for rows, odds in made:
                at = torch.zeros((len(weight), len(odds)), dtype=torch.float64)
                for node, share in beside(self.head, sample.x[rows], len(odds)):
                    at.index_add_(1, node, weight[:, rows] * share)
                for k, each in enumerate(at):
                    parts = torch.autograd.grad(odds, parameters, each, allow_unused=True, retain_graph=True)
                    total[k] += _flat(parameters, parts)
            return total

        return log_odds, contract

    def _log_odds(self, dt: float, strata: Region) -> Tensor:
        """Of the outer stratum against the core, at even states."""
        law = self._graphs.setdefault(dt, AtOneHead(self.law))
        states, center = even_states(self.head, _SMOOTH), self.center(dt)
        time = torch.full_like(states, dt)
        beyond = lambda threshold: law.mass_beyond(self.head, threshold, center, states, time)  # noqa: E731
        core, *outer = strata.log_kept(beyond, time)
        return (outer[0] if outer else torch.log((-torch.expm1(core)).clamp(min=1e-300))) - core

    def single_scores(self, x: Tensor, dx: Tensor, dt: float) -> Tensor:
        """(n, P) of pairs of one dt in the core, given that they lie in it; `nodes` is then free."""
        made, scores = self._steps(dt, x, dx)
        return scores - _between(self.head, made.slopes[0], x)

    @torch.no_grad()
    def _steps(self, dt: float, *pairs: Tensor) -> tuple[_Steps, Tensor]:
        """Steps at given probabilities and their scores, and the scores of some pairs (x, dx) in the same go."""
        step = self.law.step(self.head, dt)
        strata = 1 if self.region.outer is None else 2
        states = even_states(self.head, _STATES)
        v, w = probability_nodes()
        edges = self._edges(states, dt)
        dx = torch.cat([steps_at(step, states, v, edges, s).reshape(-1) for s in range(strata)])
        at = states.repeat_interleave(len(v))
        n = len(dx)
        x_all, dx_all = at.repeat(strata), dx
        if pairs:
            x_all, dx_all = torch.cat([x_all, pairs[0]]), torch.cat([dx, pairs[1]])
        scores = ExactLaw(rules={dt: coarser(self.law.rule(self.head, dt))}).scores(self.head, x_all, dx_all, dt)
        scores, single = scores[:n].reshape(strata, len(states), len(v), -1), scores[n:]
        slopes = torch.zeros((strata, len(states), scores.shape[-1]), dtype=torch.float64)
        if not self.region.whole:
            slopes = torch.einsum("j,smjp->smp", w, scores)  # given its stratum a score has mean zero under the law
        self._made[dt] = made = _Steps(scores, slopes)
        return made, single

    def _edges(self, states: Tensor, dt: float) -> Edges:
        """Masses beyond the edges of the region at some states."""
        center, time = self.center(dt).expand_as(states), torch.full_like(states, dt)
        return edges_at(self.law.step(self.head, dt), self.region, states, center, time)

    def _likelihood(self, x: Tensor, dx: Tensor, dt: float, label: Tensor) -> tuple[Tensor, Tensor]:
        """log p of pairs of one dt given their strata (n,), and the sum of their scores (P,)."""
        law = self._graphs.setdefault(dt, AtOneHead(self.law))  # tables with their graph, for all questions
        parameters = list(self.head.parameters())
        with torch.enable_grad():
            log_p = law.step(self.head, dt).log_density(x, dx)
            states = even_states(self.head, _SMOOTH)
            time = torch.full_like(states, dt)
            center = self.center(dt)
            beyond = lambda threshold: law.mass_beyond(self.head, threshold, center, states, time)  # noqa: E731
            for stratum, kept in enumerate(self.region.log_kept(beyond, time)):
                log_p = log_p - torch.where(label == stratum, smooth_between(self.head, kept, x), 0.0)
            parts = torch.autograd.grad(log_p.sum(), parameters, allow_unused=True, retain_graph=True)
        return log_p.detach(), _flat(parameters, parts)


def _flat(parameters: list[torch.nn.Parameter], gradients: tuple[Tensor | None, ...]) -> Tensor:
    """Gradients as one vector, zero where a parameter has none."""
    parts = [(torch.zeros_like(q) if g is None else g).reshape(-1) for q, g in zip(parameters, gradients)]
    return torch.cat(parts)


def rounded(dt: Tensor) -> Tensor:
    """dt (n,) with values that differ by rounding alone made equal."""
    values, place = torch.unique(dt, return_inverse=True)
    new = torch.cat([torch.ones(1, dtype=torch.bool), values.diff() > _SAME * values[1:]])
    return values[new][torch.cumsum(new, 0) - 1][place]


def coarser(rule: Rule) -> Rule:
    """A rule for scores."""
    n = next(size for size in SIZES if size >= min(_COARSE * rule.n, SIZES[-1]))
    return replace(rule, n=n, tail=min(rule.tail, _TAIL_NODES), rough=True)


def even_states(head: Head, count: int) -> Tensor:
    return float(head.origin) + float(head.period) / count * torch.arange(count, dtype=torch.float64)


def _spread(head: Head, x: Tensor, count: int) -> Tensor:
    """How many states lie at each of the even ones: (count,)."""
    out = torch.zeros(count, dtype=torch.float64)
    for node, share in beside(head, x, count):
        out.index_add_(0, node, share)
    return out


def _between(head: Head, values: Tensor, x: Tensor) -> Tensor:
    """Values at the even states (count, P), at others (n, P)."""
    out = torch.zeros((len(x), values.shape[1]), dtype=torch.float64)
    for node, share in beside(head, x, len(values)):
        out += values[node] * share[:, None]
    return out


def smooth_between(head: Head, values: Tensor, x: Tensor) -> Tensor:
    """Smooth functions (..., count) at the even states, at others (..., n): their Fourier series on a fine grid."""
    count = values.shape[-1]
    fine = _FINE * torch.fft.irfft(torch.fft.rfft(values), n=_FINE * count)
    (left, share), (right, rest) = beside(head, x, _FINE * count)
    return fine[..., left] * share + fine[..., right] * rest


# -- steps at given probabilities --------------------------------------------------------------------------------------


class Masses(NamedTuple):
    """Of what lies below and above, P(dx < a) and P(dx > a), each with its digits when it is tiny."""

    lower: Tensor
    upper: Tensor


class Edges(NamedTuple):
    """Masses outside the core on the left and on the right, and outside of its outer stratum."""

    left: Tensor
    right: Tensor
    far_left: Tensor
    far_right: Tensor


def probability_nodes() -> tuple[Tensor, Tensor]:
    """v in (0, 1) and weights that sum to one."""
    side = [0.0, *sorted(level / 2 for level in TAILS)]
    middle = np.linspace(side[-1], 1 - side[-1], _PANELS + 1)
    edges = [*side[:-1], *middle, *(1 - e for e in reversed(side[:-1]))]
    nodes, weights = [], []
    for low, high in pairwise(edges):
        rare = min(low, 1 - high) < side[-1] - 1e-12
        t, w = np.polynomial.legendre.leggauss(_PER_RARE if rare else _PER_PANEL)
        nodes.append(low + (high - low) * (t + 1) / 2)
        weights.append((high - low) * w / 2)
    return torch.from_numpy(np.concatenate(nodes)), torch.from_numpy(np.concatenate(weights))


@torch.no_grad()
def edges_at(step: ExactStep, region: Region, x: Tensor, center: Tensor, dt: Tensor) -> Edges:
    """At states x with the center of dx there; zeros where the region has no edge."""
    zero = torch.zeros_like(x)
    inner, outer = region.thresholds(dt)
    near = far = (zero, zero)
    if inner is not None:
        near = step.lower(x, center - inner), step.upper(x, center + inner)
    if outer is not None:
        far = step.lower(x, center - outer), step.upper(x, center + outer)
    return Edges(*near, *far)


@torch.no_grad()
def steps_at(step: ExactStep, states: Tensor, v: Tensor, edges: Edges, stratum: int) -> Tensor:
    """dx (M, J) with P(step < dx | stratum) = v (J,) at states (M,); edges: there.

    A ladder of dx brackets every one of them, and the secant method in asinh dx and log mass, both nearly straight
    lines in the tail, closes in.
    """
    goal = _goals(v, Edges(*(e[:, None] for e in edges)), stratum)
    mirrored = goal.upper < goal.lower  # the smaller of the two masses has the digits
    target = torch.where(mirrored, goal.upper, goal.lower).clamp(min=1e-300).log()
    sign = torch.where(mirrored, -1.0, 1.0).to(target)
    unit = 0.1 * step.period
    x = states[:, None].expand_as(target)

    def off(z: Tensor) -> Tensor:
        """Of log mass, growing with z = asinh(dx / unit)."""
        dx, mass = unit * torch.sinh(z), torch.empty_like(z)
        mass[~mirrored] = step.lower(x[~mirrored], dx[~mirrored])
        mass[mirrored] = step.upper(x[mirrored], dx[mirrored])
        return sign * (mass.clamp(min=1e-300).log() - target)

    low, high, f_low, f_high = _bracket(step, states, unit, mirrored, target)
    z, before = (low + high) / 2, torch.zeros_like(target)
    for _ in range(_ROUNDS):
        gap = f_high - f_low
        z = torch.where(gap > 0, (low * f_high - high * f_low) / gap.clamp(min=1e-300), (low + high) / 2)
        z = torch.minimum(torch.maximum(z, low), high)
        f = off(z)
        if float(f.abs().max()) < _CLOSE:
            break
        short, side = f < 0, f.sign()
        half = torch.where(side == before, 0.5, 1.0)  # of the end that stays for the second time (Illinois)
        f_high, f_low = torch.where(short, half * f_high, f), torch.where(short, f, half * f_low)
        low, high, before = torch.where(short, z, low), torch.where(short, high, z), side
    return unit * torch.sinh(z)


def _goals(v: Tensor, edges: Edges, stratum: int) -> Masses:
    """Masses below and above the steps with probabilities v (J,) of a stratum, (M, J)."""
    if stratum == 0:
        kept = 1 - edges.left - edges.right
        return Masses(edges.left + v * kept, edges.right + (1 - v) * kept)
    left, right = edges.left - edges.far_left, edges.right - edges.far_right
    mass = v * (left + right)
    below = mass < left
    lower, upper = edges.far_left + mass, edges.far_right + (1 - v) * (left + right)
    return Masses(torch.where(below, lower, 1 - upper), torch.where(below, 1 - lower, upper))


def _bracket(
    step: ExactStep, states: Tensor, unit: float, mirrored: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two rungs of a ladder of z around every goal, and how far log mass is off at them."""
    end = float(np.arcsinh(_FARTHEST * step.period / unit))
    side = torch.cat([torch.arange(0.0, 4.0, 0.125), torch.linspace(4.0, end, 32)]).double()
    ladder = torch.cat([-side.flip(0)[:-1], side])
    x, dx = (t.reshape(-1) for t in torch.broadcast_tensors(states[:, None], unit * torch.sinh(ladder)))
    masses = [mass(x, dx).reshape(len(states), -1).clamp(min=1e-300).log() for mass in (step.lower, step.upper)]
    growing = [masses[0], -masses[1]]
    found = []
    for rungs, wanted in zip(growing, (target, -target)):
        rungs = torch.cummax(rungs, dim=1).values.contiguous()
        above = torch.searchsorted(rungs, wanted.contiguous()).clamp(1, len(ladder) - 1)
        found.append([ladder[above - 1], ladder[above], *(rungs.gather(1, i) - wanted for i in (above - 1, above))])
    return tuple(torch.where(mirrored, b, a) for a, b in zip(*found))  # type: ignore[return-value]
