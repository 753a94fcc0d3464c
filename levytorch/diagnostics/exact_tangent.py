"""The exact law of a step at the fitted parameters: what the tests of a fit ask of it.

Scores follow the coefficients along the step. Under the law they are wanted to a percent or so, for which a coarser
grid than the likelihood's is enough; the likelihood itself, its gradient and the probability transform are computed as
in the fit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head, LinearHead
from levytorch.coefficients.padded import on_a_cell
from levytorch.diagnostics.components import Components
from levytorch.diagnostics.exact_quantiles import Edges, edges_at, probability_nodes, steps_at
from levytorch.diagnostics.sample import Region, Sample
from levytorch.diagnostics.tangent import Expected, Observed, coefficient_jacobian
from levytorch.diagnostics.transform import conditional
from levytorch.likelihood.exact import AtOneHead, ExactLaw
from levytorch.likelihood.exact_rule import SIZES, Rule
from levytorch.likelihood.objective import separability
from levytorch.likelihood.sums import StateBins

_STATES = 96  # even ones of the cell, at which moments under the law are taken
_COARSE = 0.62  # points of the grid for scores, of those that log p needs
_TAIL_NODES = 12
_SMOOTH = 256  # even ones at which masses are taken, which are as smooth along x as the coefficients
_FINE = 64  # times as many, between which they are straight lines
_SAME = 1e-6  # relative difference below which two dt are one


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
        self.head, self.region, self.mu, self.uniform = on_a_cell(head), region, mu, uniform_dt
        self.law = ExactLaw()
        self._graphs: dict[float, AtOneHead] = {}
        self._made: dict[float, _Steps] = {}

    @cached_property
    def jacobian(self) -> Tensor:
        """As that of `Tangent`."""
        return coefficient_jacobian(self.head, StateBins(self.head, torch.ones((), dtype=torch.float64)))

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

    def expect(self, sample: Sample, components: Components, known: Tensor, seed: int, draws: int | None) -> Expected:
        """Moments under the law at the sample's states; nothing is drawn."""
        P = self.head.flat().numel()
        information = torch.zeros((P, P), dtype=torch.float64)
        cross = torch.zeros((known.shape[0], P), dtype=torch.float64)
        dt = rounded(sample.dt)
        for value in torch.unique(dt).tolist():
            rows = dt == value
            share = float(rows.sum()) / len(sample)
            nodes = self.nodes(sample.x[rows], sample.label[rows], value)
            h = components.values(nodes.v, nodes.x, torch.full_like(nodes.x, value), None)
            weighted = (share * nodes.weight)[:, None] * nodes.scores
            cross += h @ weighted
            information += nodes.scores.T @ weighted
        correlation = separability(information, self.head.starts) if isinstance(self.head, LinearHead) else 0.0
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
            for stratum, kept in enumerate(exact_log_kept(law, self.head, self.region, states, self.center(dt), time)):
                log_p = log_p - torch.where(label == stratum, smooth_between(self.head, kept, x), 0.0)
            parts = torch.autograd.grad(log_p.sum(), parameters, allow_unused=True, retain_graph=True)
        score = [(torch.zeros_like(q) if g is None else g).reshape(-1) for q, g in zip(parameters, parts)]
        return log_p.detach(), torch.cat(score)


def exact_log_kept(law: ExactLaw, head: Head, region: Region, x: Tensor, center: Tensor, dt: Tensor) -> list[Tensor]:
    """log of the mass of each stratum at states x, (n,) each; differentiable as the law is."""
    inner, outer = region.thresholds(dt)
    if inner is None:
        return []
    beyond = law.mass_beyond(head, inner, center, x, dt)
    kept = [torch.log1p(-beyond.clamp(max=1 - 1e-15))]
    if outer is not None:
        kept.append(torch.log((beyond - law.mass_beyond(head, outer, center, x, dt)).clamp(min=1e-300)))
    return kept


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


def _place(head: Head, x: Tensor, count: int) -> list[tuple[Tensor, Tensor]]:
    """Of each state the two even ones beside it and its shares of them."""
    position = torch.remainder(x - float(head.origin), float(head.period)) * (count / float(head.period))
    left = position.floor()
    node = left.to(torch.int64)
    return [(node % count, 1 - (position - left)), ((node + 1) % count, position - left)]


def _spread(head: Head, x: Tensor, count: int) -> Tensor:
    """How many states lie at each of the even ones: (count,)."""
    out = torch.zeros(count, dtype=torch.float64)
    for node, share in _place(head, x, count):
        out.index_add_(0, node, share)
    return out


def _between(head: Head, values: Tensor, x: Tensor) -> Tensor:
    """Values at the even states (count, P), at others (n, P)."""
    out = torch.zeros((len(x), values.shape[1]), dtype=torch.float64)
    for node, share in _place(head, x, len(values)):
        out += values[node] * share[:, None]
    return out


def smooth_between(head: Head, values: Tensor, x: Tensor) -> Tensor:
    """Smooth functions (..., count) at the even states, at others (..., n): their Fourier series on a fine grid."""
    count = values.shape[-1]
    fine = _FINE * torch.fft.irfft(torch.fft.rfft(values), n=_FINE * count)
    (left, share), (right, rest) = _place(head, x, _FINE * count)
    return fine[..., left] * share + fine[..., right] * rest
