"""One pass over transitions for a Fourier head: log-likelihood, exact gradient, products of scores per state bin.

An (n, 3K) design matrix is never held: basis rows live for one chunk, the gradient is a matrix product with them, and
the Fisher matrix is put together afterwards from score products in bins, Phi_bins^T diag(.) Phi_bins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, FourierHead
from levytorch.coefficients.fourier import Chain
from levytorch.coefficients.kernels import bin_sums
from levytorch.errors import NumericalError
from levytorch.training.law import FrozenLaw, StepScore
from levytorch.training.states import StateBins

Pairs = tuple[Tensor, Tensor, Tensor]  # x, dx, dt of some pairs; dt may be 0-d
CHUNK = 1 << 15  # basis rows of a chunk stay in the second- and third-level caches


@dataclass
class Sums:
    """Sums over pairs (not means): they add over chunks, pools and processes.

    first (C, M) and second (C, C, M): scores in the predictors and their products, per bin; `hessian` likewise holds
    second derivatives of log p in the predictors, when asked for.
    """

    n: int
    log_p: Tensor
    gradient: Tensor
    first: Tensor
    second: Tensor
    hessian: Tensor | None = None

    def __sub__(self, other: Sums) -> Sums:
        hessian = None if self.hessian is None or other.hessian is None else self.hessian - other.hessian
        return Sums(
            self.n - other.n,
            self.log_p - other.log_p,
            self.gradient - other.gradient,
            self.first - other.first,
            self.second - other.second,
            hessian,
        )


def slices(x: Tensor, dx: Tensor, dt: Tensor, chunk: int = CHUNK) -> Iterable[Pairs]:
    """Views of consecutive pairs."""
    for lo in range(0, x.shape[0], chunk):
        yield x[lo : lo + chunk], dx[lo : lo + chunk], dt if dt.dim() == 0 else dt[lo : lo + chunk]


def sweep(head: FourierHead, law: FrozenLaw, pairs: Iterable[Pairs], bins: StateBins, *, hessian: bool = False) -> Sums:
    """Sums over all pairs at the head's current parameters."""
    theta = head.theta.detach()
    C, M = head.n_predictors, len(bins)
    total = Sums(
        0,
        torch.zeros((), dtype=torch.float64),
        torch.zeros_like(theta),
        torch.zeros((C, M), dtype=torch.float64),
        torch.zeros((C, C, M), dtype=torch.float64),
        torch.zeros((C, C, M), dtype=torch.float64) if hessian else None,
    )
    K = head.n_basis
    with torch.no_grad():
        for x, dx, dt in pairs:
            design = head.design(x)
            chain = head.chain(theta, design)
            step = law.score(chain.coefficients, dx, dt, wrt_alpha=C == 4)
            log_p = step.log_p.sum()
            if not torch.isfinite(log_p):
                raise NumericalError(_where(step.log_p, total.n, x, dx))
            scores = predictor_scores(step, chain)
            total.log_p += log_p
            total.gradient[: 3 * K] += (scores[:3] @ design[0].T).reshape(-1)
            if C == 4:
                total.gradient[3 * K :] += design[3] @ scores[3]
            index = bins.index(x, dt)
            first, second = bin_sums(index, scores, M)
            total.first += first
            total.second += second
            if total.hessian is not None:
                total.hessian += _hessian_sums(law, chain, step, dx, dt, index, M)
            total.n += x.shape[0]
    return total


def predictor_scores(step: StepScore, chain: Chain) -> Tensor:
    """Scores in the predictors (C, n): d log p / d eta = d log p / d c * d c / d eta."""
    scores = torch.empty_like(chain.slope)
    for row, part in enumerate((step.b, step.D_o, step.D_f)):
        torch.mul(part, chain.slope[row], out=scores[row])
    if scores.shape[0] == 4:
        torch.mul(step.alpha + step.D_f * chain.D_f_alpha, chain.slope[3], out=scores[3])
    return scores


def _hessian_sums(
    law: FrozenLaw, chain: Chain, step: StepScore, dx: Tensor, dt: Tensor, index: Tensor, M: int
) -> Tensor:
    """Second derivatives of log p in the predictors, summed per bin.

    Central differences of the analytic scores in the coefficients themselves: six further scores per pair whatever the
    number of parameters. Relative steps of 1e-4 leave about 1e-8.
    """
    c = chain.coefficients
    C = chain.slope.shape[0]
    wrt_alpha = C == 4
    alpha = c.alpha
    drift_step = 1e-4 * (c.D_o / dt).sqrt()
    values = [c.b, c.D_o, c.D_f, alpha]
    steps: list[Tensor] = [drift_step, 1e-4 * c.D_o, 1e-4 * c.D_f, 1e-4 * torch.ones_like(alpha)]
    second = torch.empty((C, C, dx.shape[0]), dtype=torch.float64)
    for row in range(C):
        moved = []
        for sign in (1.0, -1.0):
            shifted = list(values)
            shifted[row] = values[row] + sign * steps[row]
            moved.append(law.score(Coefficients(*shifted), dx, dt, wrt_alpha=wrt_alpha))
        for column, name in enumerate(("b", "D_o", "D_f", "alpha")[:C]):
            second[row, column] = (getattr(moved[0], name) - getattr(moved[1], name)) / (2 * steps[row])
    second = 0.5 * (second + second.transpose(0, 1))
    first = [step.b, step.D_o, step.D_f] + ([step.alpha] if wrt_alpha else [])
    out = torch.zeros((C, C, M), dtype=torch.float64)
    # c = c(eta): b, D_o, D_f, alpha by their links, D_f through its unit on alpha as well
    jacobian = torch.zeros((C, C, dx.shape[0]), dtype=torch.float64)  # d c_i / d eta_j
    for row in range(C):
        jacobian[row, row] = chain.slope[row]
    curve = [chain.curvature[row] for row in range(C)]
    cross = None
    if wrt_alpha:
        jacobian[2, 3] = chain.D_f_alpha * chain.slope[3]
        ratio = chain.D_f_alpha / c.D_f  # 2 log(length): D_f scales as exp(ratio * alpha)
        cross = first[2] * ratio * chain.slope[2] * chain.slope[3]
        bend = ratio * chain.D_f_alpha * chain.slope[3] ** 2 + chain.D_f_alpha * chain.curvature[3]
    in_eta = torch.einsum("ian,ijn,jbn->abn", jacobian, second, jacobian)
    for row in range(C):
        in_eta[row, row] += first[row] * curve[row]
    if cross is not None:
        in_eta[2, 3] += cross
        in_eta[3, 2] += cross
        in_eta[3, 3] += first[2] * bend
    for i in range(C):
        for j in range(C):
            out[i, j] = torch.bincount(index, weights=in_eta[i, j], minlength=M)
    return out


def _where(log_p: Tensor, offset: int, x: Tensor, dx: Tensor) -> str:
    bad = int(torch.nonzero(~torch.isfinite(log_p))[0])
    return (
        f"log p must be finite, found {float(log_p[bad])} at pair {offset + bad} "
        f"(x = {float(x[bad]):.6g}, dx = {float(dx[bad]):.6g}); check that pair or remove it."
    )


def assemble(head: FourierHead, per_bin: Tensor, design: list[Tensor]) -> Tensor:
    """(P, P) matrix Phi^T diag(.) Phi from per-bin (C, C, M) sums."""
    P = head.theta.numel()
    out = torch.zeros((P, P), dtype=torch.float64)
    starts = [0]
    for size in head.sizes:
        starts.append(starts[-1] + size)
    for i in range(len(head.sizes)):
        for j in range(len(head.sizes)):
            block = (design[i] * per_bin[i, j]) @ design[j].T
            out[starts[i] : starts[i + 1], starts[j] : starts[j + 1]] = block
    return out


def project(head: FourierHead, per_bin: Tensor, design: list[Tensor]) -> Tensor:
    """(P,) vector Phi^T v from per-bin (C, M) sums."""
    return torch.cat([design[i] @ per_bin[i] for i in range(len(head.sizes))])
