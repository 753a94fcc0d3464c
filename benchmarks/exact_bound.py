"""What any smoother can make of the variable example: `python benchmarks/exact_bound.py`.

The information of a pair under the exact law at the true coefficients, dt = 1/40, states as often as under the
stationary law, turned into relative L2 errors of b, D_o and D_f with n pairs: expected ones of a penalty j^4 whose
three strengths are the best for the truth (an engine has to find them) and of one that knows the size of every harmonic
(which nobody does); and the median of the default penalty, which knows nothing, over draws of a Gaussian with that
information. `exact_fit.py slope` measures what fits reach.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from exact_fit import ALPHA, TRUTH, X, stationary
from scipy.optimize import minimize
from torch import Tensor

from levytorch.coefficients import FourierHead
from levytorch.coefficients.links import AlphaSpec
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_scores import expected_scores
from levytorch.likelihood.penalty import RoughnessPenalty, lead_to_evidence

DT, STEPS, SIZES = 1 / 40, 40, (10_000, 40_000, 100_000, 400_000)
FREE = 1e-9  # precision of the prior of a mean
_TINY = 1e-14  # information below which there is none


def true_head(n_basis: int) -> FourierHead:
    """The Fourier head that is nearest to the truth in its predictors: b itself, and D_o and D_f through softplus."""
    head = FourierHead(n_basis, alpha=AlphaSpec("fixed", ALPHA))
    b, D_o, D_f = (torch.as_tensor(c(X)) for c in (TRUTH.b, TRUTH.D_o, TRUTH.D_f))
    predictors = torch.stack([b, *(D + torch.log(-torch.expm1(-D)) for D in (D_o, D_f))], 1)
    head.set_flat(torch.linalg.lstsq(head.bases[0].matrix(X), predictors).solution.T.reshape(-1))
    return head


def information(head: FourierHead) -> Tensor:
    """Of one pair, (P, P)."""
    rows = expected_scores(ExactLaw(), head, DT)
    assert rows.scores is not None
    x, w = stationary(TRUTH)
    at = np.interp(rows.states.numpy(), x.numpy(), w.numpy(), period=2 * np.pi)
    weight = torch.from_numpy(at / at.sum())[rows.which] * rows.p
    return rows.scores.T @ (weight[:, None] * rows.scores)


class Smoother:
    """Expected relative errors of a penalised maximum of n pairs, to first order."""

    def __init__(self, head: FourierHead) -> None:
        self.theta = head.flat().detach()
        self.information = information(head)
        self.J = [J.detach() for J in head.jacobian(X)][:3]
        self.norms = [float(torch.as_tensor(c(X)).norm()) for c in (TRUTH.b, TRUTH.D_o, TRUTH.D_f)]

    def drawn(self, n: float, draws: int, head: FourierHead) -> list[float]:
        """Median errors of the default penalty, strengths and all found from a score of n pairs each."""
        root, out = torch.linalg.cholesky(self.information + _TINY * torch.eye(len(self.theta))), []
        generator, nothing = torch.Generator().manual_seed(0), torch.zeros_like(self.theta)
        for _ in range(draws):
            noise = root @ torch.randn(len(nothing), generator=generator, dtype=torch.float64) / n**0.5
            score, penalty = self.information @ self.theta + noise, RoughnessPenalty(head, "harmonics")
            for _ in range(10):  # forty updates each
                found, _ = lead_to_evidence(penalty, nothing, score, self.information, n * self.information, n)
            out.append([float((J @ (found - self.theta)).norm()) / norm for J, norm in zip(self.J, self.norms)])
        return np.median(out, 0).tolist()

    def errors(self, n: float, precision: Tensor) -> list[float]:
        """Noise and bias together."""
        C = torch.linalg.inv(n * self.information + torch.diag(precision + FREE))
        noise, bias = n * C @ self.information @ C, C @ (precision * self.theta)
        squares = (((J @ noise) * J).sum() + (J @ bias).square().sum() for J in self.J)
        return [float(s.sqrt()) / norm for s, norm in zip(squares, self.norms)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-basis", type=int, default=41)
    parser.add_argument("--draws", type=int, default=40)
    options = parser.parse_args()
    head = true_head(options.n_basis)
    smoother, harmonics = Smoother(head), head.bases[0].harmonic_numbers()
    sizes = torch.stack([part.square() for part in smoother.theta.split(options.n_basis)])
    known = torch.cat([1 / _mean_of(part, harmonics).clamp(min=1e-14) for part in sizes])
    known[torch.cat([harmonics] * 3) == 0] = 0.0

    def rough(logs: np.ndarray) -> Tensor:
        return torch.cat([np.exp(one) * harmonics**4 for one in logs])

    def best(n: int) -> list[float]:
        """With strengths for which the product of the three errors is least."""
        found = minimize(lambda logs: np.log(smoother.errors(n, rough(logs))).sum(), np.zeros(3), method="Nelder-Mead")
        return smoother.errors(n, rough(found.x))

    print("| trajectories | smoother | b | D_o | D_f |\n|---|---|---|---|---|")
    kinds = {
        "j^4, the best strengths": best,
        "every harmonic's size known": lambda n: smoother.errors(n, known),
        "harmonic by harmonic, nothing known": lambda n: smoother.drawn(n, options.draws, head),
    }
    for kind, errors in kinds.items():
        found = np.array([errors(n * STEPS) for n in SIZES])
        for n, row in zip(SIZES, found):
            print(f"| {n:,} | {kind} | " + " | ".join(f"{100 * e:.2f} %" for e in row) + " |")
        used = [SIZES.index(n) for n in (10_000, 40_000, 400_000)]
        slopes = np.polyfit(np.log(np.array(SIZES)[used]), np.log(found[used]), 1)[0]
        print(f"| slope | {kind} | " + " | ".join(f"{s:.2f}" for s in slopes) + " |")


def _mean_of(values: Tensor, harmonics: Tensor) -> Tensor:
    """Of the one or two coefficients of every harmonic."""
    return torch.stack([values[harmonics == j].mean() for j in harmonics])


if __name__ == "__main__":
    main()
