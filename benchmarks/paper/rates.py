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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import FourierBasis
from levytorch.convert import choice, whole_number
from levytorch.dynamics import Dynamics
from levytorch.errors import InputError, LevytorchWarning
from levytorch.figures import base
from levytorch.figures.base import OTHERS, panels
from levytorch.files import write_csv, write_json
from levytorch.policy.checks import check_beta, circle_of, coefficients_at
from levytorch.policy.generator import resolvent_coefficients
from levytorch.policy.reward_functions import CosinePower, Manufactured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    exact = resolvent_coefficients(basis, at.b, at.D_o, at.D_f, at.alpha, reward, beta, at.jumps)
    draw = PERTURBATIONS[perturbation]
    generator = torch.Generator().manual_seed(seed)
    c0, c2 = torch.empty((2, len(sizes), n_trials), dtype=torch.float64)
    invalid = 0.0
    for i, size in enumerate(sizes):
        for start in range(0, n_trials, _BATCH):
            n = min(_BATCH, n_trials - start)
            b, D_o, D_f = (f + size * draw(basis, n, generator) for f in (at.b, at.D_o, at.D_f))
            invalid = max(invalid, float(((D_o <= 0) | (D_f < 0)).any(-1).to(torch.float64).mean()))
            found = resolvent_coefficients(basis, b, D_o, D_f, at.alpha, reward, beta, at.jumps)
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


def figure(studies: Sequence[RateStudy], *, axes: Sequence[Axes] | None = None) -> tuple[Figure, list[Axes]]:
    """Error of V against the size eps of the perturbation, log-log: C^0 (left), discrete C^2 (right); Theorem 3.1."""
    fig, axs = panels(axes, 2, width=4.4, height=3.6, margins={})
    for ax, norm, title in zip(axs, ("c0", "c2"), ("$C^0$", "discrete $C^2$")):
        for number, study in enumerate(studies):
            eps, errors = np.asarray(study.eps), np.asarray(getattr(study, f"error_{norm}"))
            order = np.argsort(eps)
            low, high = np.quantile(errors, [0.05, 0.95], axis=1)
            color = OTHERS[number % len(OTHERS)]
            label = f"{study.perturbation}: slope {getattr(study, f'slope_{norm}'):.3f}"
            ax.plot(eps[order], errors.mean(1)[order], "o-", color=color, markersize=4, linewidth=1.2, label=label)
            ax.fill_between(eps[order], low[order], high[order], color=color, alpha=0.15, linewidth=0)
        ends = np.array([min(float(s.eps.min()) for s in studies), max(float(s.eps.max()) for s in studies)])
        level = min(float(getattr(s, f"error_{norm}").mean(1)[s.eps.argmin()] / s.eps.min()) for s in studies)
        guide = 0.4 * level * ends
        ax.plot(ends, guide, color="black", linestyle="--", linewidth=0.8, label="slope 1")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel(r"perturbation $\epsilon$")
        ax.set_ylabel(rf"$\|\hat V - V\|$ in {title}")
        ax.legend(frameon=False, fontsize="small")
    return fig, axs


def write_rates(studies: Sequence[RateStudy], out: Path) -> None:
    """The error-bound study: rates.csv (mean and quantiles per eps), slopes in rates.json, the log-log figure."""
    columns: dict[str, list[Any]] = {name: [] for name in ("perturbation", "eps", "norm", "mean", "q05", "q95")}
    for study in studies:
        for norm, errors in (("C0", study.error_c0), ("C2", study.error_c2)):
            for eps, row in zip(study.eps.tolist(), errors.numpy()):
                low, high = np.quantile(row, [0.05, 0.95])
                for name, value in zip(columns, (study.perturbation, eps, norm, float(row.mean()), low, high)):
                    columns[name].append(value)
    write_csv(out / "rates.csv", columns)
    write_json(
        out / "rates.json",
        {
            study.perturbation: {
                "slope_C0": study.slope_c0,
                "slope_C2": study.slope_c2,
                "n_modes": study.n_modes,
                "n_trials": study.error_c0.shape[1],
                "slope_up_to_eps": FIT_BELOW,
                **({"correlation_of_noise": CORRELATION} if study.perturbation == "noise" else {}),
            }
            for study in studies
        },
    )
    base.save(figure(studies)[0], out / "figures" / "rates")


SYSTEM, ALPHA, BETA = "asymptotic", 0.3, 0.1
EPS = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)


def study(out: Path, n_trials: int = 10_000, n_modes: int = 64, eps: Sequence[float] = EPS) -> Path:
    """Section 4.2.2, right panel of figure 8: the error of V against the error eps of the coefficients.

    Open in the paper: alpha (0.3, as in its other tests), the values of eps, the basis of V (64 Fourier modes), how
    smooth the noise is (a Gaussian process, correlated over 0.05 of the period, b, D_o and D_f apart: the theorem's
    norm is then finite and the level does not depend on the grid; white draws every collocation point by itself),
    whether N(0, eps) means a standard deviation of eps (it does here: the slope is then that of the theorem), which eps
    the slope is taken over (0.03 and less), the norm (both C^0 and a discrete C^2, that of the theorem but for gamma).
    """
    dynamics, studies = Dynamics.named(SYSTEM, alpha=ALPHA), []
    for kind in PERTURBATIONS:
        found = rate_study(dynamics, eps, beta=BETA, n_trials=n_trials, n_modes=n_modes, perturbation=kind)
        where = f"over eps <= {FIT_BELOW:g}"
        print(f"{kind}: slope {where} {found.slope_c0:.4f} in C^0, {found.slope_c2:.4f} in C^2")
        studies.append(found)
    out.mkdir(parents=True, exist_ok=True)
    write_rates(studies, out)
    return out
