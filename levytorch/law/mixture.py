r"""The law of one step as a positive mixture of Gaussians: any dimension, any symmetric positive matrix D_o.

An isotropic 2 alpha-stable vector is a Brownian motion at a random time. With T positive alpha-stable,
E exp(-q T) = exp(-B q^alpha), the step is Gaussian with covariance 2 (D_o dt + T I) once T is given:

    p(y) = int N(y; 0, 2 (A + B^(1/alpha) e^u I)) g(u) du,      A = D_o dt,  B = D_f dt,

where g is the density of u = log T for B = 1. The trapezoid rule in a variable v turns it into a sum of positive terms:
nothing cancels, so that every tail keeps its relative accuracy, and each derivative is a weighted mean over the same
terms. Tempering by lam is the factor exp(B lam^(2 alpha) - lam^2 T).

The density of the time. With c = alpha / (1 - alpha) and K = (1 - alpha) alpha^c (Zolotarev),

    g(u) = c / pi int_0^pi z exp(-z) dt,    z = exp(-c u) A(t),
    A(t) = sin((1-alpha) t) / sin t (sin(alpha t) / sin t)^c >= A(0) = K,

and g(u) = 1/pi sum_k (-1)^(k+1) Gamma(k alpha + 1) / k! sin(k pi alpha) exp(-k alpha u), used for u >= 0. What is
tabulated is R = log g + K exp(-c u), which is smooth where g falls off faster than exponentially.

The variables. The sum runs over v = j H. For alpha < 1/2 this is u itself. For alpha >= 1/2 the left end of g is steep
in u (a width of 1/c) and its right end is not, so that u = v / c + (1 - 1/c) softplus(v - log c - SHIFT). The table of
R has another variable, in which R looks the same for all alpha: omega = c u for alpha < 1/2, and v otherwise.

The table. R is interpolated in tau = log c by polynomials on panels of width WIDTH, at nodes omega = i H / FINE, and
between these nodes by eight of them. The derivative in alpha is that of the sum: nodes, weights and table move with it.

Here stands what the compiled kernels (`mixture_kernels.py`) and the torch path (`mixture_torch.py`) share.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import bernoulli, gammaln

from levytorch.convert import Array

H = 0.25  # step of the sum in v
FINE = 4  # tabulated nodes per step
ALPHA_LOW, ALPHA_HIGH = 0.01, 0.99  # where the table ends
WIDTH = 0.7  # of a panel in tau; alpha = 1/2, where the variable of the sum changes, lies between two of them
DEGREE = 11  # of the polynomials in tau
SHIFT = 1.5
DROP = 37.0  # terms below exp(-DROP) of the largest one are left out
LEFT = 1e5  # K exp(-c u) at the left end of a table
NARROW = 0.77  # the step is at most this times the width of the integrand
LINEAR = 39.0  # alpha u beyond which log g is linear to the last digit


class Panel(NamedTuple):
    """R on one panel of tau, at omega_i = (first + i) H / FINE: R = sum_k coefficients[k, i] t^k, where
    t = (tau - middle) / (WIDTH / 2).
    """

    middle: float
    first: int
    coefficients: Array


def panel_index(alpha: Array | float) -> Array:
    """The panel of each alpha: from zero upwards for alpha >= 1/2, negative below."""
    alpha = np.asarray(alpha, dtype=np.float64)
    return np.floor((np.log(alpha) - np.log1p(-alpha)) / WIDTH).astype(np.int64)


@lru_cache(maxsize=64)
def panel(index: int) -> Panel:
    """The table of a panel, from the density of the time at Chebyshev points in tau."""
    middle = (index + 0.5) * WIDTH
    x = np.cos(np.pi * (np.arange(DEGREE + 1) + 0.5) / (DEGREE + 1))
    taus = middle + 0.5 * WIDTH * x
    ends = np.array([_ends(tau) for tau in (index * WIDTH, (index + 1) * WIDTH)])
    first, last = FINE * math.floor(ends[:, 0].min() / H), FINE * math.ceil(ends[:, 1].max() / H)
    omega = np.arange(first, last + 1) * (H / FINE)
    values = np.stack([log_time_density(time_of(omega, tau), tau) for tau in taus])
    chebyshev = np.linalg.solve(np.polynomial.chebyshev.chebvander(x, DEGREE), values)
    to_powers = np.zeros((DEGREE + 1, DEGREE + 1))
    for k in range(DEGREE + 1):
        to_powers[: k + 1, k] = np.polynomial.chebyshev.cheb2poly(np.eye(DEGREE + 1)[k])[: k + 1]
    return Panel(middle, first, np.ascontiguousarray(to_powers @ chebyshev))


def _ends(tau: float) -> tuple[float, float]:
    """omega where K exp(-c u) = LEFT, and where log g has become linear in u."""
    c = math.exp(tau)
    alpha = c / (1.0 + c)
    left = math.log1p(-alpha) + c * math.log(alpha) - math.log(LEFT)
    return left, LINEAR * (1.0 + c) if c < 1.0 else LINEAR / alpha + tau + SHIFT


def time_of(omega: Array, tau: float) -> Array:
    """u of the nodes of a table."""
    if tau < 0.0:
        return omega * math.exp(-tau)
    return omega * math.exp(-tau) - math.expm1(-tau) * np.logaddexp(0.0, omega - tau - SHIFT)


_SINC = np.array([2.0 ** (2 * n - 1) * abs(bernoulli(2 * n)[-1]) / (n * math.factorial(2 * n)) for n in range(1, 14)])
_ZOLOTAREV_END = 4.2
_N_SERIES = 600


def _log_sinc(t: Array) -> Array:
    """log(sin t / t) for 0 <= t < pi, with all digits near zero."""
    small = t < 0.6
    series = np.zeros_like(t)
    for a in _SINC[::-1]:
        series = (series + a) * t * t
    safe = np.where(small, 1.0, t)
    return np.where(small, -series, np.log(np.sin(safe) / safe))


@lru_cache(maxsize=2)
def _zolotarev_nodes(n: int) -> tuple[Array, Array, Array]:
    """t, pi - t and weights of the tanh-sinh rule on (0, pi)."""
    h = 2.0 * _ZOLOTAREV_END / n
    x = (np.arange(n + 1) - 0.5 * n) * h
    q = np.exp(-np.pi * np.sinh(x))
    return np.pi / (1.0 + q), np.pi * q / (1.0 + q), h * np.pi**2 * np.cosh(x) * q / (1.0 + q) ** 2


def log_time_density(u: Array, tau: float) -> Array:
    """R(u) = log g(u) + K exp(-c u)."""
    c = math.exp(tau)
    alpha, beta = c / (1.0 + c), 1.0 / (1.0 + c)
    log_K = math.log(beta) + c * math.log(alpha)
    out = np.empty_like(u)
    left = u < 0.0
    t, rest, weight = _zolotarev_nodes(300 if c < 1.5 else 800)
    sine = np.where(t < 2.0, _log_sinc(np.minimum(t, 2.0)), np.log(np.sin(np.minimum(rest, 2.0)) / t))
    log_ratio = _log_sinc(beta * t) + c * _log_sinc(alpha * t) - (1.0 + c) * sine
    with np.errstate(over="ignore"):
        growth = np.expm1(log_ratio)
    for rows in np.array_split(np.flatnonzero(left), max(1, left.sum() // 512)):
        log_z = log_K - c * u[rows]
        with np.errstate(over="ignore", under="ignore"):
            sums = np.exp(log_ratio - np.exp(log_z)[:, None] * growth) @ weight
        out[rows] = math.log(c / math.pi) + log_z + np.log(sums)
    k = np.arange(1, _N_SERIES)
    size = gammaln(k * alpha + 1.0) - gammaln(k + 1.0)
    # sin(k pi alpha) (-1)^(k+1) = sin(k pi (1 - alpha)), of which the smaller angle keeps its digits
    sign = np.sin(np.pi * k * beta) if beta < 0.5 else np.sin(np.pi * k * alpha) * (-1.0) ** (k + 1)
    for rows in np.array_split(np.flatnonzero(~left), max(1, (~left).sum() // 512)):
        at = u[rows]
        with np.errstate(under="ignore"):
            # the first term is taken out: it alone is left where alpha u is large
            terms = np.exp(size - size[0] - alpha * np.outer(at, k - 1)) @ sign
        out[rows] = np.log(terms / np.pi) + size[0] - alpha * at + np.exp(log_K - c * at)
    return out
