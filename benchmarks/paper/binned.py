"""The tail-corrected objective of constant coefficients on pairs counted in narrow bins of dx (Figures 2 and 3).

The law of one step with constant coefficients knows dx alone, so that counts in bins of dx stand for the pairs; with
bins of 1/100 of the Gaussian's width the objective is exact to about 1e-6 per pair, and 1e4 bins replace 1e6 pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.data.pools import make_pools
from levytorch.errors import InputError
from levytorch.law import log_density, tail_probability
from levytorch.likelihood.masses import tail_correction_factor

Array = np.ndarray[Any, Any]
_WIDTHS = 100  # bins per standard deviation of the Gaussian part


@dataclass(frozen=True)
class BinnedPairs:
    """Mean dx of every bin, and the shares of the main and of the tail pool in it; b and alpha are held fixed."""

    dx: Tensor
    main: Tensor
    tail: Tensor
    R_sample: float
    mu: float
    CT: float
    dt: float
    b: float
    alpha: float

    def means(self, D_o: Tensor, D_f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean log p of both pools at every (D_o, D_f), each of the arguments' shape."""
        log_p = log_density(
            self.dx, self.b, D_o.unsqueeze(-1), D_f.unsqueeze(-1), self.alpha, self.dt, method="table"
        )  # (..., bins)
        return log_p @ self.main, log_p @ self.tail

    def objective(self, D_o: Tensor, D_f: Tensor, TCF: float) -> Tensor:
        """Negative log-likelihood per pair, (1 - TCF) times the main pool's plus TCF times the tail pool's."""
        main, tail = self.means(D_o, D_f)
        return -((1 - TCF) * main + TCF * tail)

    def minimiser(self, TCF: float, start: tuple[float, float]) -> tuple[float, float]:
        """(D_o, D_f) at which the objective of this TCF is smallest."""
        from scipy.optimize import minimize

        def value_and_gradient(u: Array) -> tuple[float, Array]:
            theta = torch.tensor(u, dtype=torch.float64, requires_grad=True)
            D = theta.exp()
            value = self.objective(D[0], D[1], TCF)
            (gradient,) = torch.autograd.grad(value, theta)
            return float(value.detach()), gradient.numpy()

        found = minimize(
            value_and_gradient, np.log(start), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 200}
        )
        D_o, D_f = np.exp(found.x)
        return float(D_o), float(D_f)

    def next_TCF(self, D_o: float, D_f: float) -> float:
        """Algorithm E.6: the TCF that these coefficients ask for."""
        R_theta = float(tail_probability(self.CT, self.mu, self.b, D_o, D_f, self.alpha, self.dt))
        return tail_correction_factor(R_theta, self.R_sample)


def binned_pairs(
    transitions: Transitions, *, b: float, D_o: float, alpha: float, CT: float, TRT: float | None
) -> BinnedPairs:
    """Count the pairs of both pools; D_o sets the width of the bins."""
    if transitions.dim != 1 or not transitions.uniform_dt:
        raise InputError("pairs are counted in bins for one dimension and one dt only; draw this for such a run.")
    pools = make_pools(transitions, CT, TRT)
    dt, mu = float(pools.main.dt[0]), float(pools.mu)
    dx = pools.main.dx.numpy()
    width = np.sqrt(2 * D_o * dt) / _WIDTHS
    place = np.floor((dx - mu) / width).astype(np.int64)
    kinds, where = np.unique(place, return_inverse=True)
    main = np.bincount(where, minlength=len(kinds)).astype(float)
    centers = np.bincount(where, weights=dx, minlength=len(kinds)) / main
    tail = np.bincount(where[pools.tail.numpy()], minlength=len(kinds)).astype(float)
    as_tensor = torch.from_numpy
    used = float(pools.threshold)
    return BinnedPairs(
        as_tensor(centers), as_tensor(main / main.sum()), as_tensor(tail / max(1.0, tail.sum())), pools.R_sample,
        mu, used, dt, b, alpha,
    )  # fmt: skip
