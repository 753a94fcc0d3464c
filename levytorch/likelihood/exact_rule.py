"""How finely the exact law of a step is computed: grid points, quadrature nodes, and where the core meets the tail.

Everything here is in units where the period is 2 pi, with the step multiplied into the coefficients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients import Coefficients
from levytorch.errors import InputError

TOLERANCE = 1e-5  # of log p where p is smallest, at the seam; elsewhere a fit has two or three digits more
CUT = 32.0  # what the turned contour leaves out at the seam is e^{-32} of the peak
SEAM = 1.5  # the seam lies at this multiple of where the Brownian part falls below e^{-32}
STEEP, STEEPEST = 6.0, 16.0  # lam times the seam: where the seam comes nearer for it, and where it cannot
FARTHEST_SEAM = 80 * math.pi
PROBES = 512  # points at which the coefficients are looked at
# odd, products of small primes, about a tenth apart: a small change of the coefficients rarely changes the grid
SIZES = (33, 39, 45, 55, 65, 75, 81, 91, 99, 105, 117, 135, 147, 165, 175, 195, 225, 245, 275, 297, 315, 351, 399)
BROADEST = {True: 135, False: 195}  # where no grid would hold all modes (kinks): for a fit, and below 1e-7


@dataclass(frozen=True)
class Rule:
    """n grid points, `core` nodes in s with k = s^power / 2, `tail` nodes in tau^gamma on either side.

    seam: |y| where the core ends; reach: the largest tau; growth, drift: e^{growth tau^2 +- drift tau} is taken out of
    the tail's integrand before it is interpolated. tempered: jumps have an end, and tau begins at the branch point;
    rough: tables from which three digits are to be read.
    """

    n: int
    core: int
    power: int
    tail: int
    seam: float
    reach: float
    growth: float
    drift: float
    tempered: bool = False
    rough: bool = False

    def finer(self) -> Rule:
        """A rule to compare with: a grid a third finer, more nodes, and the seam elsewhere."""
        n = next((s for s in SIZES if s >= 1.3 * self.n), 2 * int(0.65 * self.n) + 1)
        seam = 1.15 * self.seam
        return replace(self, n=n, core=self.core + 10, tail=self.tail + 6, seam=seam, reach=0.9 * self.reach)

    @property
    def refine_x(self) -> int:
        """Points of the table of the core per grid point; at a given dx it varies as the coefficients do."""
        return max(1, round((130 if self.rough else 260) / self.n))

    @property
    def refine_y(self) -> int:
        """The same along dx."""
        return 4 if self.rough else 8

    @property
    def refine_tail(self) -> int:
        return 2 if self.n < 150 and not self.rough else 1

    def core_nodes(self) -> tuple[Tensor, Tensor]:
        """k in (0, 1/2) and weights: |k|^(2 alpha) is singular at 0, where the power of s crowds the nodes."""
        s, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(self.core))
        s, w = (s + 1) / 2, w / 2
        return s**self.power / 2, w * self.power * s ** (self.power - 1) / 2

    def tail_nodes(self, alpha: Tensor) -> Tensor:
        """tau (N,), Chebyshev in tau^gamma; they move with alpha, and so does the gradient."""
        u = chebyshev(self.tail).to(alpha.device)
        return self.reach * u ** (1 / gamma(alpha, self.tempered))


def chebyshev(n: int) -> Tensor:
    """Chebyshev points (0, 1), from the right."""
    return (1 + torch.cos(math.pi * (torch.arange(n, dtype=torch.float64) + 0.5) / n)) / 2


def gamma(alpha: Tensor, tempered: bool = False) -> Tensor:
    """The power of tau in which the tail's integrand is smooth: it is a function of tau^(2 alpha) and tau.

    Tempered, near the branch point, it is one of tau^alpha.
    """
    if tempered:
        return alpha if float(alpha.detach()) <= 0.5 else alpha / 2
    if float(alpha.detach()) < 0.22:
        return 2 * alpha
    return torch.clamp(alpha, max=0.5)


def choose_rule(c: Coefficients, tolerance: float) -> Rule:
    """The rule for coefficients at PROBES points of the cell; refuses steps that are too short for a grid.

    tolerance: of log p. e^{-decay} is what the grid leaves out of p, and log p is wanted where p is 1e-5 of its peak;
    where a tempering lam makes it smaller still, the seam comes nearer and the grid finer.
    """
    b, D_o, D_f, alpha = (v.detach() for v in c)
    lam = float(c.tempering)
    least, most = float(D_o.min()), float(D_o.max())
    shift = float(b.abs().max())
    seam = shift + SEAM * math.sqrt(4 * CUT * most)
    if lam * seam > STEEPEST:
        raise InputError(
            f"tempering must be at most {STEEPEST / seam:.3g} for the exact law, in units where the period is 2 pi, "
            f"found {lam:.3g}: jumps are then not longer than the diffusion; use the frozen law."
        )
    seam = max(seam, min(2 * math.pi, STEEP / lam if lam > 0 else math.inf))
    decay = 11.0 - math.log(tolerance) + lam * seam
    need = 2 * math.sqrt(decay / least) if least > 0 else math.inf
    if not need <= SIZES[-1]:
        raise InputError(
            f"D_o dt must be at least {4 * decay / SIZES[-1] ** 2:.2g} everywhere, in units where the period is 2 pi, "
            f"for the exact law, found {least:.2g}; use the frozen law for steps this short."
        )
    need = max(need, min(2 * _half_width(b, D_o, D_f, float(alpha), decay, tolerance), BROADEST[tolerance > 1e-7]))
    n = next(size for size in SIZES if size >= need)
    if not seam <= FARTHEST_SEAM:
        raise InputError(
            f"a step without jumps must stay within {FARTHEST_SEAM / (4 * math.pi):.0f} periods for the exact law, "
            f"found b dt up to {shift:.3g} and D_o dt up to {most:.3g} in units where the period is 2 pi; use shorter "
            "steps or a longer period."
        )
    q, cut = seam - shift, CUT + lam * (seam - shift)
    reach = 2 * cut / (q + math.sqrt(max(q * q - 4 * cut * most, 0.0)))  # solves reach q - most reach^2 = cut
    return Rule(
        n=n,
        core=12 + math.ceil(0.65 * max(seam, 2 * math.pi) + 0.5 * lam * seam),
        power=4 if float(alpha) < 0.25 else 3,
        tail=24 if not lam else 32,
        seam=seam,
        reach=reach - lam,
        growth=(least + most) / 2,
        drift=float(b.min() + b.max()) / 2,
        tempered=lam > 0,
    )


def _half_width(b: Tensor, D_o: Tensor, D_f: Tensor, alpha: float, decay: float, tolerance: float) -> float:
    """The highest mode that the grid must hold.

    Modes decay like e^{-D_o m^2}, but a coefficient with a wave of number j and relative size a lifts what is at m to
    m + j at the price of a: beyond m = rate / 2 D_o, where that is cheaper, the decay is e^{-rate m}, with
    rate = min_j log(1/a_j) / j. (The factor on a is measured: it places the error at the tolerance for rough and smooth
    coefficients, short and long steps alike.)
    """
    least = float(D_o.min())
    bound = math.sqrt(decay / least)
    waves = [torch.fft.rfft(v)[1:].abs() / v.shape[0] for v in (D_o, b, D_f)]
    a = 0.3 / float(D_o.mean()) * (waves[0] + waves[1] / bound + waves[2] * bound ** (2 * alpha - 2))
    j = torch.arange(1, a.shape[0] + 1, dtype=torch.float64, device=a.device)
    heard = a > 0.1 * tolerance
    if not bool(heard.any()):
        return bound
    rate = max(float((-a[heard].log() / j[heard]).min()), 1e-3)
    return decay / rate + rate / (4 * least) if rate < 2 * least * bound else bound
