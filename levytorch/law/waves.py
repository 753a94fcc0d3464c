"""Waves of the law in d > 1: Hankel functions H_0 and H_1 of the first kind, and real kernels for small arguments.

H_0 and H_1 are for the two-dimensional law, in the sector 0 <= arg z <= pi/4, both divided by exp(i z): the ascending
series for |z| <= 6, an exponentially convergent trapezoid rule on H_nu(z) ~ int exp(i z u) (u^2 - 1)^(-1/2) du along
the path of steepest descent up to 20, the asymptotic series beyond (DLMF 10.8, 10.9.10, 10.17). Accurate to 1e-13
relative to |H| at the origin of each piece.
"""

from __future__ import annotations

import cmath
import math

import numpy as np

EULER = 0.5772156649015328606
SERIES_END = 6.0
ASYMPTOTIC_START = 20.0
N_SERIES = 34
N_ASYMPTOTIC = 22
DESCENT_STEP = 0.35
N_DESCENT = 17


def asymptotic_coefficients(order: int) -> np.ndarray:
    """i^k a_k(order) of DLMF 10.17.1, k = 0 ... N_ASYMPTOTIC - 1."""
    a = np.ones(N_ASYMPTOTIC, dtype=np.complex128)
    for k in range(1, N_ASYMPTOTIC):
        a[k] = a[k - 1] * 1j * (4 * order * order - (2 * k - 1) ** 2) / (8.0 * k)
    return a


A0, A1 = asymptotic_coefficients(0), asymptotic_coefficients(1)
DESCENT_S2 = ((np.arange(N_DESCENT) + 0.5) * DESCENT_STEP) ** 2
DESCENT_W = DESCENT_STEP * np.exp(-DESCENT_S2)


def hankel_scaled(z: complex) -> tuple[complex, complex]:
    """(H_0(z), H_1(z)) / exp(i z). Plain Python that numba compiles; z != 0."""
    size = abs(z)
    if size <= SERIES_END:
        q = -0.25 * z * z
        term = 1.0 + 0.0j  # q^k / (k!)^2
        j0, y0 = term, 0.0 * term
        j1, y1 = term, (1.0 - 2.0 * EULER) * term  # sums of term / (k + 1), weighted with psi(k + 1) + psi(k + 2)
        harmonic = 0.0
        for k in range(1, N_SERIES):
            term = term * q / (k * k)
            harmonic += 1.0 / k
            j0 += term
            y0 -= term * harmonic
            t1 = term / (k + 1.0)
            j1 += t1
            y1 += t1 * (2.0 * harmonic + 1.0 / (k + 1.0) - 2.0 * EULER)
            if abs(term) < 1e-19:
                break
        log_half = cmath.log(0.5 * z)
        j1 = 0.5 * z * j1
        y0 = (2.0 / math.pi) * ((log_half + EULER) * j0 + y0)
        y1 = -2.0 / (math.pi * z) + (2.0 / math.pi) * log_half * j1 - (0.5 / math.pi) * z * y1
        unit = cmath.exp(-1j * z)
        return (j0 + 1j * y0) * unit, (j1 + 1j * y1) * unit
    if size < ASYMPTOTIC_START:
        i_over_z = 1j / z
        root = cmath.sqrt(i_over_z)
        sum0 = 0.0 + 0.0j
        sum1 = 0.0 + 0.0j
        for k in range(N_DESCENT):
            t = i_over_z * DESCENT_S2[k]
            w = DESCENT_W[k] / cmath.sqrt(2.0 + t)
            sum0 += w
            sum1 += w * (1.0 + t)
        scale = (4.0 / math.pi) * root
        return -1j * scale * sum0, -scale * sum1
    inverse = 1.0 / z
    sum0 = 0.0 + 0.0j
    sum1 = 0.0 + 0.0j
    for k in range(N_ASYMPTOTIC - 1, -1, -1):
        sum0 = sum0 * inverse + A0[k]
        sum1 = sum1 * inverse + A1[k]
    scale = cmath.sqrt(2.0 / math.pi * inverse) * cmath.exp(-0.25j * math.pi)
    return scale * sum0, -1j * scale * sum1


def bessel_small(dim: int, z: float) -> tuple[float, float]:
    """Real kernels c_d(z), c_{d+2}(z) of p_d = int r^(d-1) c_d(y r) phi dr for small z, by their power series.

    Plain Python that numba compiles.
    """
    q = -0.25 * z * z
    half = 0.5 * dim
    term0 = 2.0 / (math.gamma(half) * (4.0 * math.pi) ** half)
    term1 = 2.0 / (math.gamma(half + 1.0) * (4.0 * math.pi) ** (half + 1.0))
    sum0, sum1 = term0, term1
    for k in range(1, 60):
        term0 *= q / (k * (k + half - 1.0))
        term1 *= q / (k * (k + half))
        sum0 += term0
        sum1 += term1
        if abs(term0) < 1e-18 * abs(sum0):
            break
    return sum0, sum1
