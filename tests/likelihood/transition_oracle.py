"""An oracle of the transition density whose coefficients vary within the step: characteristic functions by Galerkin.

With coefficients of period 2 pi, u_k(x) = E[exp(i k X_dt) | X_0 = x] solves the backward equation from exp(i k x), and
only the waves theta + m, theta = k modulo 1, mix. In Fourier space the generator is

    A[l, m] = b_(l-m) i xi_m - D_o,(l-m) xi_m^2 - D_f,(l-m) |xi_m|^(2 alpha),    xi_m = theta + m,

with the exact Fourier coefficients of b, D_o and D_f (the package collocates on a grid). Then

    p(dx | x) = 1/(2 pi) int_0^1 d theta sum_m exp(-i (theta + m)(x + dx)) u_(theta + m)(x),

by the double-exponential rule, because |theta|^(2 alpha) is singular at both ends. Two resolutions must agree to 1e-10
before the table is written: ``python -m tests.likelihood.transition_oracle`` (a minute).
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.linalg import expm, toeplitz

TABLE = Path(__file__).with_name("transition_variable.csv")
ALPHA, DT = 0.3, 1 / 40
COEFFICIENTS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda x: 4 * np.cos(x) + 2 * np.sin(2 * x),
    lambda x: np.exp(np.sin(x + 1) + 0.5),
    lambda x: 2 + np.exp(np.sin(2 * x) * np.cos(3 * x)),
)


def _convolution(function: Callable[[np.ndarray], np.ndarray], n: int) -> np.ndarray:
    """[l, m] -> the Fourier coefficient l - m."""
    points = 2 * np.pi * np.arange(4 * n) / (4 * n)
    hat = np.fft.fft(function(points)) / (4 * n)
    return toeplitz(hat[:n], hat[-np.arange(n)])


def density(x: np.ndarray, dx: np.ndarray, modes: int = 96, step: float = 1 / 12) -> np.ndarray:
    """p(dx | x), each of shape (N,)."""
    m = np.arange(-modes, modes)
    b, D_o, D_f = (_convolution(function, 2 * modes) for function in COEFFICIENTS)
    v = np.arange(-4.0, 4.0 + step / 2, step)
    theta = 1 / (1 + np.exp(-np.pi * np.sinh(v)))
    weight = step * np.pi * np.cosh(v) * theta * (1 - theta)
    # near 1 the distance from 1 counts: theta itself would round
    beyond = 1 / (1 + np.exp(np.pi * np.sinh(v)))
    total = np.zeros(len(x))
    for at, rest, w in zip(theta, beyond, weight):
        xi = np.where(m < 0, m + 1 - rest, m + at)
        generator = b * (1j * xi) - D_o * xi**2 - D_f * np.abs(xi) ** (2 * ALPHA)
        waves = np.exp(1j * np.outer(x, xi))
        u = waves @ expm(DT * generator)
        total += w * (u * np.exp(-1j * np.outer(x + dx, xi))).sum(1).real
    return total / (2 * np.pi)


def points() -> tuple[np.ndarray, np.ndarray]:
    """Ten states of the cell, each with steps from minus two periods to two, dense in the core."""
    x = 2 * np.pi * np.arange(10) / 10
    t = np.linspace(-1, 1, 13)
    dx = 4 * np.pi * np.sign(t) * np.abs(t) ** 2.2
    return np.repeat(x, len(dx)), np.tile(dx, len(x))


def write_table() -> None:
    """Refused unless two resolutions agree."""
    x, dx = points()
    coarse, fine = density(x, dx, 80, 1 / 10), density(x, dx, 110, 1 / 14)
    worst = np.abs(coarse / fine - 1).max()
    if worst > 1e-10:
        raise ValueError(f"two resolutions differ by {worst:.1e}")
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["x", "dx", "p"])
        writer.writerows([repr(float(a)), repr(float(s)), f"{p:.12e}"] for a, s, p in zip(x, dx, fine))
    print(f"{len(x)} values; two resolutions agree to {worst:.1e}")


if __name__ == "__main__":
    write_table()
