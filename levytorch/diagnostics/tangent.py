"""Scores of a fitted law in the head's parameters, summed without ever holding an (n, P) matrix.

A score is J(x)^T q, with q the derivatives of log p in the coefficients (of the law conditional on its region) and J
that of the coefficients in theta; J is taken at the center of a bin of x, which is a small part of the shortest wave.

Steps drawn from the law at observed states, each in the stratum of the pair it stands for, give moments under the law
itself as means over as many draws as one likes: they do not carry the noise of a small data set into the variance of
its own test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head
from levytorch.diagnostics.components import Components
from levytorch.diagnostics.sample import Region, Sample, Transform, edge_masses, transform
from levytorch.law import LevyStep
from levytorch.likelihood.frozen import FrozenLaw, coefficient_jacobian
from levytorch.likelihood.sums import StateBins
from levytorch.likelihood.tail import center_of
from levytorch.spaces.states import lengths_of

DRAWS = (20_000, 50_000)  # at least and at most; in between five per pair
_BINS = 512
_COARSE = 64  # bins of x in each of which many steps are drawn
_ROUNDS = 60
_AT_ONCE = 50_000


Values = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]  # (k, n) functions of u, x, dt and direction


@dataclass
class ScoreMoments:
    """Per pair: mean of the scores (P,), of their products (P, P), and of components times scores (k, P)."""

    score: Tensor
    information: Tensor
    cross: Tensor


class Observed(NamedTuple):
    """Of the pairs of a sample: the probability transform, log p given the region, and the mean score (P,)."""

    u: Transform
    log_p: Tensor
    score: Tensor


class Expected(NamedTuple):
    """Under the law, at the states of a sample: E[h s^T] (k, P), E[s s^T], the correlation of D_o and D_f, and the
    number of draws these are means of (None: they are integrals)."""

    cross: Tensor
    information: Tensor
    correlation: float
    draws: int | None


class Tangent:
    """Everything about the frozen law at the fitted parameters that does not depend on the steps."""

    def __init__(self, head: Head, law: FrozenLaw, region: Region, mu: Tensor, step_dt: Tensor) -> None:
        self.head, self.law, self.region = head, law, region
        waves = (getattr(head, "n_basis", 1) - 1) // 2
        self.bins = StateBins(head, step_dt, max(_BINS, 32 * waves) if head.dim == 1 else _BINS)
        self.jacobian = coefficient_jacobian(head, self.bins.x[: self.bins.n_x])
        self.center = center_of(mu, self.bins.dt, uniform_dt=step_dt.dim() == 0)
        self.kept = self._kept(region)
        self._drawn: tuple[Tensor, Transform, Tensor, Tensor] | None = None  # by `expect`: x, u, dt, scores

    def coefficients(self, x: Tensor) -> Coefficients:
        with torch.no_grad():
            return self.head(x)

    def observe(self, sample: Sample) -> Observed:
        c = self.coefficients(sample.x)
        q, log_p = self.scores(c, sample.x, sample.dx, sample.step_dt, sample.label)
        nothing = torch.zeros((0, len(sample)), dtype=torch.float64)
        score = self.moments(sample.x, q, nothing).score
        return Observed(self._transform(sample, c, sample.dx, slice(None)), log_p, score)

    def expect(self, sample: Sample, components: Components, seed: int) -> Expected:
        """Means over steps drawn from the law."""
        drawn = draw_steps(self, sample, min(max(5 * len(sample), DRAWS[0]), DRAWS[1]), seed)
        rows, c = drawn.rows, drawn.coefficients
        x, dt, label = sample.x[rows], sample.dt[rows], sample.label[rows]
        u = self._transform(sample, c, drawn.dx, rows)
        h = components.values(u.u, x, dt, u.direction)
        q, _ = self.scores(c, x, drawn.dx, sample.step_dt if sample.uniform_dt else dt, label)
        self._drawn = (x, u, dt, q)
        model = self.moments(x, q, h)
        return Expected(model.cross, model.information, _correlation(q, c), h.shape[1])

    def scores(self, c: Coefficients, x: Tensor, dx: Tensor, dt: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """d log p / d (b, D_o, D_f[, alpha]) given the region (C, n), and log p itself given the region."""
        step = self.law.score(c, dx, dt, wrt_alpha=self.head.learns_alpha)
        q, log_p = self.head.layout.scores(step, c), step.log_p
        if self.kept:
            node = self.bins.index(x, dt)
            for stratum, (log_mass, slope) in enumerate(self.kept):
                here = label == stratum
                q = torch.where(here, q - slope[:, node], q)
                log_p = torch.where(here, log_p - log_mass[node], log_p)
        return q, log_p

    def moments(self, x: Tensor, q: Tensor, h: Tensor) -> ScoreMoments:
        """Means over these pairs."""
        n, C, k, M = x.shape[0], q.shape[0], h.shape[0], self.bins.n_x
        index = self._bin(x)
        columns = [q, *(q[a] * q[a:] for a in range(C)), *(h * q[a] for a in range(C))]
        sums = torch.zeros((M, sum(c.shape[0] for c in columns)), dtype=torch.float64)
        sums.index_add_(0, index, torch.cat(columns).T.contiguous())
        sums = sums.T / n
        P = self.jacobian.shape[2]
        score = sum((sums[a] @ self.jacobian[a] for a in range(C)), torch.zeros(P, dtype=torch.float64))
        information = torch.zeros((P, P), dtype=torch.float64)
        row = C
        for a in range(C):
            for b in range(a, C):
                block = (self.jacobian[a].T * sums[row]) @ self.jacobian[b]
                information += block if a == b else block + block.T
                row += 1
        cross = torch.zeros((k, P), dtype=torch.float64)
        for a in range(C):
            cross += sums[row : row + k] @ self.jacobian[a]
            row += k
        return ScoreMoments(score, information, cross)

    def cross_by(self, sample: Sample, h: Values, group: Tensor, weight: Tensor) -> Tensor:
        """Sums of E[h s^T | x] over the pairs of each group, with weights (n,): (G, k, P); after `expect`."""
        assert self._drawn is not None
        x, u, dt, q = self._drawn
        values = h(u.u, x, dt, u.direction)
        M = self.bins.n_x
        coarse = min(_COARSE, M) if self.head.dim == 1 else M
        own, drawn = (self._bin(at) for at in (sample.x, x))
        number = torch.bincount(drawn * coarse // M, minlength=coarse).clamp(min=1)
        products = (values[:, None] * q).reshape(-1, len(x))  # (k C, n)
        means = torch.zeros((len(products), coarse), dtype=torch.float64)
        means = means.index_add_(1, drawn * coarse // M, products) / number
        at_bin = means[:, torch.arange(M) * coarse // M].reshape(len(values), len(q), M)
        G = int(group.max()) + 1
        count = torch.zeros(G * M, dtype=torch.float64).index_add_(0, group * M + own, weight).reshape(G, M)
        each = [count @ torch.einsum("cm,cmp->mp", row, self.jacobian) for row in at_bin]
        return torch.stack(each, dim=1)

    def _bin(self, x: Tensor) -> Tensor:
        """The bin of each state, whatever its dt."""
        return self.bins.index(x, self.bins.dt[:1].expand(len(x)).contiguous()) % self.bins.n_x

    def tail_odds(self, sample: Sample, strata: Region) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """log of the odds of the outer stratum (None: everything beyond the core) at the states of a sample, (n,); and
        their derivatives in theta, summed over the pairs with weights (k, n), as (k, P)."""
        core, *others = self._kept(strata)
        outer = others[0] if others else _complement(core)
        node = self.bins.index(sample.x, sample.step_dt)
        slope, M = outer[1] - core[1], self.bins.n_x

        def contract(weight: Tensor) -> Tensor:
            sums = torch.zeros((len(weight), len(self.bins)), dtype=torch.float64).index_add_(1, node, weight)
            parts = (sums[:, None] * slope).reshape(len(weight), len(slope), -1, M).sum(2)
            return torch.einsum("kcm,cmp->kp", parts, self.jacobian)

        return (outer[0] - core[0])[node], contract

    # -- private ------------------------------------------------------------------------------------------------------
    def _transform(self, sample: Sample, c: Coefficients, dx: Tensor, rows: Tensor | slice) -> Transform:
        """u of steps at some rows of the sample; masses at the edges of the region come from the bins when dt is
        even."""
        dt, center, label = sample.dt[rows], sample.center[rows], sample.label[rows]
        edges = None
        if sample.dim == 1 and sample.uniform_dt and not self.region.whole:
            at_bins = edge_masses(self.coefficients(self.bins.x), self.bins.dt, self.center, self.region)
            edges = at_bins[:, self.bins.index(sample.x[rows], dt[:1])]
        return transform(c, dx, dt, center, label, self.region, edges)

    def _kept(self, region: Region) -> list[tuple[Tensor, Tensor]]:
        """log mass of each stratum and its slopes in the coefficients, at every bin."""
        if region.whole:
            return []

        def masses(c: Coefficients) -> list[Tensor]:
            return region.log_kept(lambda t: self.law.exceedance(c, t, self.center, self.bins.dt), self.bins.dt)

        return self.head.layout.with_slopes(self.coefficients(self.bins.x), len(self.bins), masses)


def _complement(kept: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """log of the rest of a mass, and its slopes."""
    log_mass, slope = kept
    rest = (-torch.expm1(log_mass)).clamp(min=1e-300)
    return rest.log(), -slope * (log_mass.exp() / rest)


def _correlation(q: Tensor, c: Coefficients) -> float:
    """|correlation| of the estimates of a common factor of D_o and one of D_f (b and alpha free)."""
    scale = [torch.ones_like(c.D_o)] * q.shape[0]
    row = 1 if c.b.dim() == 1 else c.b.shape[1]
    scale[row], scale[row + 1] = c.D_o, c.D_f
    s = q * torch.stack(scale)
    covariance, _ = equilibrated_inverse(s @ s.T, 1e-14)
    spread = (covariance[row, row] * covariance[row + 1, row + 1]).sqrt()
    return float(covariance[row, row + 1].abs() / spread) if float(spread) > 0 else 1.0


def equilibrated_inverse(matrix: Tensor, cut: float) -> tuple[Tensor, int]:
    """The pseudo-inverse of a positive matrix after equilibration, and its rank."""
    diagonal = matrix.diagonal().clamp(min=0.0)
    scale = torch.where(diagonal > 1e-30 * diagonal.max(), diagonal.rsqrt(), 0.0)
    values, vectors = torch.linalg.eigh(matrix * scale.outer(scale))
    keep = values > cut * values.max()
    inverse = (vectors[:, keep] / values[keep]) @ vectors[:, keep].T
    return inverse * scale.outer(scale), int(keep.sum())


class Draws(NamedTuple):
    """Rows of the sample that were used, their coefficients, and a step for each."""

    rows: Tensor
    coefficients: Coefficients
    dx: Tensor


@torch.no_grad()
def draw_steps(tangent: Tangent, sample: Sample, count: int, seed: int) -> Draws:
    """`count` draws at states picked evenly from the sample.

    Rejection: a stratum that holds a share p of the law holds about that share of the pairs, so it costs about `count`
    draws in all. Pairs where the law hardly ever lands are left out.
    """
    generator = torch.Generator().manual_seed(seed)
    n = len(sample)
    repeats, rest = divmod(count, n)
    rows = torch.cat([torch.arange(n).repeat(repeats), torch.randperm(n, generator=generator)[:rest]])
    c = tangent.coefficients(sample.x[rows])
    dx = torch.empty((len(rows), *sample.x.shape[1:]), dtype=torch.float64)
    waiting = torch.arange(len(rows))
    for _ in range(_ROUNDS):
        copies = max(1, _AT_ONCE // max(len(waiting), 1))
        at = waiting.repeat_interleave(copies)
        found = _steps(c, sample.dt[rows[at]], at, sample.dim, generator)
        good = _inside(tangent.region, found, sample, rows[at])
        # of several copies the first that fits
        first = good.reshape(-1, copies).double().argmax(1) + copies * torch.arange(len(waiting))
        hit = good[first]
        dx[waiting[hit]] = found[first[hit]]
        waiting = waiting[~hit]
        if not len(waiting):
            break
    keep = torch.ones(len(rows), dtype=torch.bool)
    keep[waiting] = False
    kept = c.each(lambda v: v[keep] if v.dim() else v)
    return Draws(rows[keep], kept, dx[keep])


def _steps(c: Coefficients, dt: Tensor, at: Tensor, dim: int, generator: torch.Generator) -> Tensor:
    b, D_o, D_f, alpha = (v[at] if v.dim() else v for v in c)
    return LevyStep(b, D_o, D_f, alpha, dt, dim, c.tempering).sample(generator=generator)


def _inside(region: Region, dx: Tensor, sample: Sample, rows: Tensor) -> Tensor:
    if region.whole:
        return torch.ones(len(rows), dtype=torch.bool)
    return region.labels(lengths_of(dx - sample.center[rows]), sample.dt[rows]) == sample.label[rows]
