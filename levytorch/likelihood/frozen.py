"""The frozen law, and what training needs from any law: log p of a transition, given the coefficient *functions*.

The frozen law evaluates the functions at x and holds them over the step. Laws that follow the coefficients along the
step need the functions themselves, which is why they are what the interface takes.

`sweep` is one pass over weighted transitions for a linear head: log-likelihood, gradient, products of scores per bin of
states. An (n, 3K) design matrix is never held. Coefficients come from a fine grid over the cell, scores go back onto it
(`coefficients.kernels`); the chain rule through links and basis is applied once per node, not once per sample, and the
Fisher matrix is put together from score products in coarser bins, Phi_bins^T diag(.) Phi_bins.

In d > 1 dimensions a fine grid over the cell would have 4096^d nodes. For tensor-product heads (`tensor_sweep`) the
basis is evaluated chunk by chunk, the gradient is exact, and products of scores in the predictors go into the state
bins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head, LinearHead
from levytorch.coefficients.head import Chain
from levytorch.coefficients.kernels import GRID, interpolate, scatter
from levytorch.coefficients.layout import NO_TEMPERING, scalar_size
from levytorch.coefficients.tangent import TangentHead
from levytorch.data.batches import Batch
from levytorch.errors import NumericalError
from levytorch.law import StepScore as StepScore  # re-exported: engines see laws through this module only
from levytorch.law import log_density, score, tail_probability
from levytorch.likelihood.laws import Capability, Law
from levytorch.likelihood.sums import CHUNK, ScoreSums, StateBins, slices, where

CoefficientFunctions = Callable[[Tensor], Coefficients]
_NUMBERS = 1 << 20  # basis values held at once


class FrozenLaw(Law):
    """Coefficients frozen at the start of the step (equation 3.1)."""

    name = "frozen"
    supports = Capability(scores=True)

    def __init__(self, method: str = "auto", dim: int = 1) -> None:
        self.method, self.dim = method, dim

    def log_prob(self, coefficients: CoefficientFunctions, x: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
        """log p(x -> x + dx over dt); differentiable in whatever the coefficient functions depend on."""
        c = coefficients(x)
        return log_density(dx, *c[:4], dt, dim=self.dim, method=self.method, tempering=rate(c))

    def score(self, c: Coefficients, dx: Tensor, dt: Tensor, wrt_alpha: bool = False) -> StepScore:
        """log p and its derivatives in the coefficients, one pass, no autograd: what Fisher scoring asks for."""
        lam = rate(c)
        return score(dx, *c[:4], dt, dim=self.dim, method=self.method, wrt_alpha=wrt_alpha, tempering=lam)

    def exceedance(self, c: Coefficients, threshold: Tensor, center: Tensor, dt: Tensor) -> Tensor:
        """P(|dx - center| > threshold) at given coefficients; differentiable in them."""
        return tail_probability(threshold, center, *c[:4], dt, dim=self.dim, tempering=rate(c))

    def mass_beyond(
        self, coefficients: CoefficientFunctions, threshold: Tensor, center: Tensor, x: Tensor, dt: Tensor
    ) -> Tensor:
        """P(|dx - center| > threshold | x); differentiable as log_prob is."""
        return self.exceedance(coefficients(x), threshold, center, dt)


def rate(c: Coefficients) -> Tensor | float:
    """The tempering as the law takes it: the number zero if there is none, for which the law has its tables.

    Values are not read from other devices, which would have to be waited for.
    """
    lam = c.tempering
    if lam is NO_TEMPERING:
        return 0.0
    return lam if lam.requires_grad or lam.device.type != "cpu" or bool((lam > 0).any()) else 0.0


def steady_method(density: str, head: Head) -> str:
    """How log p is computed throughout a fit: one method from the first step to the last, whatever the batch."""
    if density != "auto":
        return density
    return "contour" if head.learns_alpha or head.tempered else "table"


def coefficient_jacobian(head: Head, x: Tensor) -> Tensor:
    """d row / d theta at states, (C, n, P), for the rows of the head's layout."""
    with torch.no_grad():
        c = head(x)
    return head.layout.jacobian(c, head.jacobian(x), head.tempering_slope())


@torch.no_grad()
def sweep(
    head: LinearHead, law: FrozenLaw, batch: Batch, bins: StateBins, *, hessian: bool = False, quick: bool = False
) -> ScoreSums:
    """Sums over all pairs of the batch, each times its weight, at the head's current parameters.

    hessian: second derivatives too; quick: those from one side, right to 1e-6 and in half the time.
    """
    if head.dim > 1 or head.columns > head.dim:
        return tensor_sweep(head, law, batch, bins, hessian=hessian)
    theta = head.theta.detach()
    C, M, names = head.n_predictors, len(bins), head.layout.names
    cell = CellTable(head, bins, batch.x)
    seen, n, log_p = 0, 0.0, torch.zeros((), dtype=torch.float64)
    nodes = torch.zeros((C, cell.size), dtype=torch.float64)
    first = torch.zeros((C, M), dtype=torch.float64)
    second = torch.zeros((C, C, M), dtype=torch.float64)
    curved = torch.zeros((C, C, M), dtype=torch.float64)
    for x, dx, dt, weight in slices(batch):
        at, c = cell.at(x)
        step = law.score(c, dx, dt, wrt_alpha=head.learns_alpha)
        part = float((step.log_p.numpy() * weight.numpy()).sum())
        if not math.isfinite(part):
            raise NumericalError(where(step.log_p, seen, x, dx))
        scores = [getattr(step, name) for name in names]
        moved = cell.scatter(at, scores, bins, dt, weight)
        for total, more in zip((nodes, first, second), moved):
            total += more
        if hessian:
            target = (bins.n_x, bins.group(dt, x.shape[0]), bins.n_groups, weight)
            curved += _second_derivatives(law, c, scores if quick else None, dx, dt, at, head, bins, cell.size, target)
        log_p += part
        seen += x.shape[0]
        n += float(weight.expand(x.shape[0]).sum())
    at_bins = head.chain(theta, head.design(bins.x))
    gradient = head.gathered(to_predictors(nodes, cell.chain), cell.design)
    jacobian = predictor_jacobian(at_bins, C, M)
    products = torch.einsum("ian,ijn,jbn->abn", jacobian, second, jacobian)
    bent = None
    if hessian:
        bent = torch.einsum("ian,ijn,jbn->abn", jacobian, curved, jacobian) + link_curvature(at_bins, first, C, M)
    return ScoreSums(n, log_p, gradient, to_predictors(first, at_bins), products, bent)


class CellTable:
    """The coefficients of a head in one dimension on a fine grid over the cell, from which they are interpolated.

    size: nodes; design, chain: of the head there.
    """

    def __init__(self, head: LinearHead, bins: StateBins, x: Tensor) -> None:
        """x: the states that will be asked for."""
        self.head, self.size = head, nodes_per_cell(head, bins, x)
        ((self.origin, self.period),) = bins.extents
        nodes = self.origin + self.period / self.size * torch.arange(self.size, dtype=torch.float64)
        self.design = head.design(nodes)
        self.chain = head.chain(head.theta.detach(), self.design)
        c = self.chain.coefficients
        self._alpha_varies = c.alpha.dim() > 0
        self._table = torch.stack([*c[:3], *([c.alpha] if self._alpha_varies else [])])

    def at(self, x: Tensor) -> tuple[Tensor, Coefficients]:
        """States brought to where the head knows its coefficients, and these."""
        at, known = self.head.clamped(x).contiguous(), self.chain.coefficients
        rows = interpolate(at, self.origin, self.period, self._table, positive=True)
        alpha = rows[3] if self._alpha_varies else known.alpha
        return at, Coefficients(rows[0], rows[1], rows[2], alpha, known.tempering)

    def scatter(
        self, at: Tensor, rows: list[Tensor], bins: StateBins, dt: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """`coefficients.kernels.scatter` of rows at such states: onto the grid, and their moments in bins."""
        target = (bins.n_x, bins.group(dt, len(at)), bins.n_groups, weight)
        return scatter(at, self.origin, self.period, rows, self.size, *target)


def nodes_per_cell(head: LinearHead, bins: StateBins, x: Tensor) -> int:
    """Nodes per cell: a multiple of the bins, fine enough for the shortest wave; where all states are centers of bins,
    these are nodes, and nothing is interpolated.
    """
    if head.is_constant:
        return 4
    if bins.are_states(x):
        return 2 * bins.n_x
    finest = GRID if isinstance(head, TangentHead) else max(GRID, 128 * max(head.sizes))
    return bins.n_x * -(-finest // bins.n_x)


def to_predictors(sums: Tensor, chain: Chain) -> Tensor:
    """Sums (..., C, n) of d log p / d c -> of d log p / d eta = d log p / d c * d c / d eta, in the predictors."""
    out = sums * chain.slope
    if chain.D_f_alpha.dim():
        D_f, alpha = chain.layout.row("D_f"), chain.layout.row("alpha")
        out[..., alpha, :] += sums[..., D_f, :] * chain.D_f_alpha * chain.slope[alpha]
    return out


def predictor_jacobian(chain: Chain, C: int, M: int) -> Tensor:
    """d c_i / d eta_j at every bin: diagonal, but for D_f, whose unit depends on alpha."""
    jacobian = torch.zeros((C, C, M), dtype=torch.float64)
    for row in range(C):
        jacobian[row, row] = chain.slope[row]
    if chain.D_f_alpha.dim():
        alpha = chain.layout.row("alpha")
        jacobian[chain.layout.row("D_f"), alpha] = chain.D_f_alpha * chain.slope[alpha]
    return jacobian


def link_curvature(chain: Chain, first: Tensor, C: int, M: int) -> Tensor:
    """sum_c (d log p / d c) d2 c / d eta d eta at every bin."""
    out = torch.zeros((C, C, M), dtype=torch.float64)
    for row in range(C):
        out[row, row] = first[row] * chain.curvature[row]
    if chain.D_f_alpha.dim():
        f, a = chain.layout.row("D_f"), chain.layout.row("alpha")
        ratio = chain.D_f_alpha / chain.coefficients.D_f  # 2 log(length): D_f scales as exp(ratio * alpha)
        out[f, a] = out[a, f] = first[f] * ratio * chain.slope[f] * chain.slope[a]
        bend = ratio * chain.D_f_alpha * chain.slope[a] ** 2 + chain.D_f_alpha * chain.curvature[a]
        out[a, a] += first[f] * bend
    return out


def _second_derivatives(
    law: FrozenLaw,
    c: Coefficients,
    scores: list[Tensor] | None,
    dx: Tensor,
    dt: Tensor,
    x: Tensor,
    head: LinearHead,
    bins: StateBins,
    grid: int,
    target: tuple[int, Tensor, int, Tensor],
) -> Tensor:
    """Second derivatives of log p in the coefficients, summed per bin.

    Differences of the analytic scores in the coefficients themselves, a few further scores whatever the number of
    parameters: central ones with relative steps of 1e-4, which leave about 1e-8, or (scores: at the coefficients) one
    further score per coefficient with steps of 1e-7.
    """
    ((origin, period),) = bins.extents
    width = (c.D_o / dt).sqrt() if bool((c.D_o > 0).all()) else torch.full_like(c.D_o, head.units.b)
    size = 1e-4 if scores is None else 1e-7
    sizes = {"b": width, "D_o": c.D_o, "D_f": c.D_f, "alpha": torch.ones_like(c.alpha), "tempering": c.tempering}
    names = head.layout.names

    def scores_at(name: str, change: Tensor) -> list[Tensor]:
        shifted = c._replace(**{name: getattr(c, name) + change})
        step = law.score(shifted, dx, dt, wrt_alpha=head.learns_alpha)
        return [getattr(step, other) for other in names]

    out = torch.zeros((len(names), len(names), target[0] * target[2]), dtype=torch.float64)
    for row, name in enumerate(names):
        if not head.sizes[row]:
            continue  # known
        change = size * sizes[name]
        before = scores_at(name, -change) if scores is None else scores
        apart = (2 if scores is None else 1) * change.numpy()
        pairs = zip(scores_at(name, change), before)
        changes = [torch.from_numpy((high.numpy() - low.numpy()) / apart) for high, low in pairs]
        out[row] = scatter(x, origin, period, changes, grid, *target)[1]
    return 0.5 * (out + out.transpose(0, 1))


@torch.no_grad()
def tensor_sweep(
    head: LinearHead, law: FrozenLaw, batch: Batch, bins: StateBins, *, hessian: bool = False
) -> ScoreSums:
    """Sums over all pairs at the head's current parameters; see `sweep`."""
    theta = head.theta.detach()
    C, M = head.n_predictors, len(bins)
    seen, n, log_p = 0, 0.0, torch.zeros((), dtype=torch.float64)
    gradient = torch.zeros((), dtype=torch.float64)
    upper = torch.triu_indices(C, C)
    packed = torch.zeros((M, C + (2 if hessian else 1) * upper.shape[1]), dtype=torch.float64)
    constant = head.is_constant and head.columns <= head.dim
    one = head.design(torch.zeros((1, head.dim), dtype=torch.float64)) if constant else None
    size = CHUNK if constant else head.most_states(_NUMBERS)
    for x, dx, dt, weight in slices(batch, size):
        design = one or head.design(x)
        chain = head.chain(theta, design)
        step = law.score(chain.coefficients, dx, dt, wrt_alpha=head.learns_alpha)
        part = float((weight * step.log_p).sum())
        if not math.isfinite(part):
            raise NumericalError(where(step.log_p, seen, x, dx))
        q = to_predictors(head.layout.scores(step, chain.coefficients), chain)
        columns = [q, q[upper[0]] * q[upper[1]]]
        if hessian:
            columns.append(_curvature(head, law, theta, design, chain, dx, dt)[upper[0], upper[1]])
        moments = torch.cat(columns) * weight
        if M == 1:
            packed[0] += moments.sum(1)
        else:
            packed.index_add_(0, bins.index(x, dt), moments.T)
        q = q * weight
        gradient = gradient + head.gathered(q if not constant else q.sum(1, keepdim=True), design)
        log_p += part
        seen += x.shape[0]
        n += float(weight.expand(x.shape[0]).sum())
    second = _square(packed[:, C : C + upper.shape[1]], upper, C)
    bent = _square(packed[:, C + upper.shape[1] :], upper, C) if hessian else None
    return ScoreSums(n, log_p, gradient, packed[:, :C].T.contiguous(), second, bent)


def _curvature(
    head: LinearHead, law: FrozenLaw, theta: Tensor, design: Sequence[Tensor], chain: Chain, dx: Tensor, dt: Tensor
) -> Tensor:
    """d2 log p / d eta d eta of every pair, (C, C, n): central differences of the analytic scores."""
    out = []
    for row, size in enumerate(_sizes(head, chain, dt)):
        moved = []
        # a relative step of the coefficient itself, brought to the predictor
        width = 1e-4 * size
        for sign in (1.0, -1.0):
            at = head.chain(theta, design, row, sign * width)
            step = law.score(at.coefficients, dx, dt, wrt_alpha=head.learns_alpha)
            moved.append(to_predictors(head.layout.scores(step, at.coefficients), at))
        out.append((moved[0] - moved[1]) / (2 * width))
    bent = torch.stack(out)
    return 0.5 * (bent + bent.transpose(0, 1))


def _sizes(head: LinearHead, chain: Chain, dt: Tensor) -> list[Tensor]:
    """How far every predictor has to go for its coefficient to change by about its own size, (n,) or 0-d each."""
    c, layout = chain.coefficients, chain.layout
    ordinary = scalar_size(c.D_o)
    spread = (ordinary / dt).sqrt() if bool((ordinary > 0).all()) else torch.full_like(ordinary, head.units.b)
    sizes = {"b": spread, "D_o": ordinary**layout.noise.power, "D_f": c.D_f}
    one = torch.ones((), dtype=torch.float64)
    return [
        sizes[name] / chain.slope[row].clamp(min=1e-12) if name in sizes else one
        for row, name in enumerate(layout.names)
    ]


def _square(packed: Tensor, upper: Tensor, C: int) -> Tensor:
    out = torch.empty((C, C, packed.shape[0]), dtype=packed.dtype)
    out[upper[0], upper[1]] = packed.T
    out[upper[1], upper[0]] = packed.T
    return out
