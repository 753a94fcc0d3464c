"""The error-bound study (Theorem 3.1, section 4.2.2): how ||V^ - V|| depends on an error eps in the coefficients.

b, D_o and D_f are perturbed independently, by

    noise      a Gaussian process of standard deviation eps at every x, covariance exp(-d^2 / (2 l^2)) over a distance d
    gaussian   a Gaussian-shaped bump of height eps, random sign, place and width
    wedge      the same with a wedge
    white      independent numbers of standard deviation eps at every collocation point

The theorem says ||V^ - V|| <= C eps in C^(2, gamma) for perturbations whose C^(0, gamma) norm is eps: a slope of 1 in a
log-log plot. The first three are functions that do not know of the grid they are looked at on, so that C does not
depend on it either. White noise has no Hoelder norm: the finer the grid, the faster it averages out.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import FourierBasis
from levytorch.convert import choice, whole_number
from levytorch.errors import InputError, LevytorchWarning
from levytorch.policy.checks import check_beta, circle_of, coefficients_at
from levytorch.policy.generator import resolvent_coefficients
from levytorch.policy.reward_functions import CosinePower, Manufactured

_BATCH = 2048
FIT_BELOW = 0.03  # eps up to which the error is linear in it
CORRELATION = 0.05  # l of the noise, as a share of the period
_CUT = 6.5  # standard deviations of the noise's spectrum: what lies beyond is 1e-9 of it


@dataclass(frozen=True)
class RateStudy:
    """Errors of every trial, (n_eps, n_trials), in C^0 and the discrete C^2 norm, and the slopes of their means."""

    eps: Tensor
    error_c0: Tensor
    error_c2: Tensor
    slope_c0: float
    slope_c2: float
    n_modes: int
    perturbation: str


def _noise(basis: FourierBasis, n: int, generator: torch.Generator) -> Tensor:
    """A periodic process of unit variance by its Fourier series; the same functions on every grid."""
    scale = 2 * math.pi * CORRELATION  # l in units in which the modes are whole numbers
    waves = math.ceil(_CUT / scale)
    m = torch.arange(waves + 1, dtype=torch.float64)
    power = torch.exp(-0.5 * (m * scale) ** 2)
    power[1:] *= 2
    amplitude = (power / power.sum()).sqrt()
    phase = 2 * math.pi * torch.outer(m, basis.points() - basis.origin) / basis.period
    z = torch.randn((2, n, waves + 1), generator=generator, dtype=torch.float64) * amplitude
    return z[0] @ phase.cos() + z[1] @ phase.sin()


def _white(basis: FourierBasis, n: int, generator: torch.Generator) -> Tensor:
    return torch.randn((n, basis.n_modes), generator=generator, dtype=torch.float64)


def _bump(shape: Callable[[Tensor], Tensor]) -> Callable[[FourierBasis, int, torch.Generator], Tensor]:
    def draw(basis: FourierBasis, n: int, generator: torch.Generator) -> Tensor:
        u = torch.rand((3, n, 1), generator=generator, dtype=torch.float64)
        distance = torch.remainder(basis.points() - basis.origin - u[0] * basis.period + basis.period / 2, basis.period)
        width = basis.period * (0.05 + 0.1 * u[1])
        return torch.where(u[2] < 0.5, -1.0, 1.0) * shape((distance - basis.period / 2) / width)

    return draw


PERTURBATIONS: dict[str, Callable[[FourierBasis, int, torch.Generator], Tensor]] = {
    "noise": _noise,
    "gaussian": _bump(lambda s: torch.exp(-0.5 * s**2)),
    "wedge": _bump(lambda s: (1 - s.abs()).clamp_min(0)),
    "white": _white,
}


def rate_study(
    dynamics: Any,
    eps: Sequence[float],
    *,
    beta: float = 0.1,
    V: Callable[[Tensor], Tensor] | None = None,
    n_trials: int = 10_000,
    n_modes: int = 64,
    perturbation: str = "noise",
    seed: int = 0,
) -> RateStudy:
    """Solve `n_trials` perturbed problems per eps in batches. V: the manufactured solution, by default cos^3(2x).

    Slopes are fitted over eps <= 0.03 (`FIT_BELOW`), where the dependence is linear; larger ones show where it stops
    being so.
    """
    circle = circle_of(dynamics)
    period, origin = circle.period, circle.origin
    beta = check_beta(beta)
    try:
        sizes = torch.as_tensor(eps, dtype=torch.float64).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        sizes = torch.empty(0)
    if sizes.numel() < 2 or not bool(((sizes > 0) & torch.isfinite(sizes)).all()):
        raise InputError(f"eps must be two or more positive numbers, found {eps!r}; give the sizes to be tried.")
    if len(torch.unique(sizes[sizes <= FIT_BELOW])) < 2:
        raise InputError(
            f"eps must have two different sizes of at most {FIT_BELOW:g} for a slope, found {eps!r}; add smaller ones."
        )
    n_trials = whole_number("n_trials", n_trials, 1, remedy="give the number of trials per eps")
    choice("perturbation", perturbation, tuple(PERTURBATIONS))
    basis = FourierBasis(n_modes, period, origin)
    x = basis.points()
    at = coefficients_at(dynamics, x)
    reward = Manufactured(V or CosinePower(period=period), dynamics, beta)(x)
    exact = resolvent_coefficients(basis, at.b, at.D_o, at.D_f, at.alpha, reward, beta, float(at.tempering))
    draw = PERTURBATIONS[perturbation]
    generator = torch.Generator().manual_seed(seed)
    c0, c2 = torch.empty((2, len(sizes), n_trials), dtype=torch.float64)
    invalid = 0.0
    for i, size in enumerate(sizes):
        for start in range(0, n_trials, _BATCH):
            n = min(_BATCH, n_trials - start)
            b, D_o, D_f = (f + size * draw(basis, n, generator) for f in (at.b, at.D_o, at.D_f))
            invalid = max(invalid, float(((D_o <= 0) | (D_f < 0)).any(-1).to(torch.float64).mean()))
            found = resolvent_coefficients(basis, b, D_o, D_f, at.alpha, reward, beta, float(at.tempering))
            error = found - exact
            c0[i, start : start + n] = c0_norm(basis, error)
            c2[i, start : start + n] = c2_norm(basis, error)
    if invalid > 0:
        warnings.warn(
            f"up to {invalid:.1%} of the perturbed D_o or D_f are not positive at the largest eps = "
            f"{float(sizes.max()):g}; choose smaller ones if the theorem is to apply.",
            LevytorchWarning,
            stacklevel=2,
        )
    small = sizes <= FIT_BELOW
    slopes = [fit_slope(sizes[small], errors[small].mean(-1)) for errors in (c0, c2)]
    return RateStudy(sizes, c0, c2, slopes[0], slopes[1], n_modes, perturbation)


def fit_slope(eps: Tensor, errors: Tensor) -> float:
    """Least-squares slope of log(error) over log(eps)."""
    u, v = eps.log(), errors.log()
    u = u - u.mean()
    return float((u * (v - v.mean())).sum() / (u**2).sum())


def c0_norm(basis: FourierBasis, coefficients: Tensor) -> Tensor:
    """max |V| over the collocation points, for coefficients (..., n)."""
    return (coefficients @ basis.matrix(basis.points()).T).abs().amax(-1)


def c2_norm(basis: FourierBasis, coefficients: Tensor) -> Tensor:
    """max |V| + max |V'| + max |V''| over the collocation points: the discrete C^2 norm, for coefficients (..., n)."""
    x = basis.points()
    return torch.stack([(coefficients @ basis.matrix(x, order).T).abs().amax(-1) for order in (0, 1, 2)]).sum(0)
