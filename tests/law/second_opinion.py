"""A second oracle of the one-step law that shares nothing with `oracle.py`: the real axis, and series for far tails.

Center and shoulder: the Fourier integral itself, ``p_1 = 1/pi int cos(y r) E dr`` and ``p_2 = 1/(2 pi) int r J_0(y r) E
dr`` with ``E = exp(-A r^2 - B r^(2 alpha))``, cut at the zeros of the wave and summed piece by piece. Far tail: the
double series in 1/y, used only where its smallest term is below the digits that are kept. Derivatives are central
differences with 50 digits.

``python -m tests.law.second_opinion`` writes ``second_opinion.csv`` (minutes).
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from pathlib import Path

import mpmath
import numpy as np
from mpmath import mp, mpf

TABLE = Path(__file__).with_name("second_opinion.csv")
COLUMNS = ("y", "A", "B", "alpha", "d", "log_p", "d_y", "d_A", "d_B", "d_alpha")
DIGITS = 50
KEPT = 20
STEP = mpf(10) ** -14  # relative: differences of fourth order lose 14 digits and err by 1e-56


def by_axis(y: mpf, A: mpf, B: mpf, alpha: mpf, d: int) -> mpf:
    """log p from the integral along the real axis."""
    last = min(mpmath.sqrt(120 / A), (120 / B) ** (1 / (2 * alpha)))
    wave = mpmath.pi / y if y else last
    count = int(mpmath.ceil(last / wave))
    if count > 400:
        raise ValueError("too many waves: use the series")

    def integrand(r: mpf) -> mpf:
        decay = mpmath.exp(-A * r * r - B * r ** (2 * alpha)) if r else mpf(1)
        return decay * (mpmath.cos(y * r) if d == 1 else r * mpmath.besselj(0, y * r))

    # r = s^4 takes the branch point at 0 far enough for the double-exponential rule of the first pieces
    edges = [mpf(0), *(min(wave * k / 4, last) for k in (1, 2, 4)), *(min(wave * k, last) for k in range(2, count + 1))]
    edges = sorted(set(edges) | {last})
    total = mpf(0)
    for low, high in itertools.pairwise(edges):
        a, b = low ** mpf("0.25"), high ** mpf("0.25")
        total += mpmath.quad(lambda s: 4 * s**3 * integrand(s**4), [a, (a + b) / 2, b], method="tanh-sinh")
    return mpmath.log(total / (mpmath.pi if d == 1 else 2 * mpmath.pi))


def by_series(y: mpf, A: mpf, B: mpf, alpha: mpf, d: int) -> mpf:
    """log p from the asymptotic series in 1/y; ValueError where it cannot give the digits."""
    if d != 1:
        raise ValueError("in one dimension only")
    total, negligible = mpf(0), mpf(10) ** -(DIGITS - 8)
    for n in range(1, 200):
        front = (-1) ** (n + 1) * B**n * mpmath.sinpi(alpha * n) / mpmath.factorial(n)
        power = 2 * alpha * n + 1
        inner, m, before = mpf(0), 0, mpf("inf")
        while True:
            term = A**m / mpmath.factorial(m) * mpmath.gamma(2 * m + power) / y ** (2 * m + power)
            if term > before:
                raise ValueError("the series ends too early: use the axis")
            inner, before, m = inner + term, term, m + 1
            if term < negligible * inner:
                break
        total += front * inner
        if B**n / mpmath.factorial(n) * inner < negligible * total:
            return mpmath.log(total / mpmath.pi)
    raise ValueError("the series does not settle")


def values(y: float, A: float, B: float, alpha: float, d: int, method: Callable[..., mpf]) -> list[mpf]:
    """log p and its derivatives in y, A, B, alpha."""
    with mp.workdps(DIGITS):
        at = [mpf(v) for v in (y, A, B, alpha)]
        found = [method(*at, d)]
        for k in range(4):
            if at[k] == 0:
                found.append(mpf(0))  # p is even in y
                continue
            h = STEP * at[k]

            def moved(times: int, k: int = k, h: mpf = h) -> mpf:
                return method(*(v + times * h if i == k else v for i, v in enumerate(at)), d)

            found.append((8 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / (12 * h))
        return found


def points() -> list[tuple[float, float, float, float, int, Callable[..., mpf]]]:
    """alpha from 0.1 to 0.95; y / sqrt(A) from 0 to 12 on the axis, from 1e3 to 1e9 by series."""
    rng = np.random.default_rng(17)
    out: list[tuple[float, float, float, float, int, Callable[..., mpf]]] = []
    for d, count in ((1, 36), (2, 10)):
        for k in range(count):
            alpha, A = round(float(rng.uniform(0.1, 0.95)), 4), float(f"{10 ** rng.uniform(-3, 2):.4g}")
            B = float(f"{10 ** rng.uniform(-3, 1.5) * A**alpha:.4g}")
            y = float(f"{rng.uniform(0, 12) * A**0.5:.5g}") if k else 0.0
            out.append((y, A, B, alpha, d, by_axis))
    for _ in range(24):
        alpha, A = round(float(rng.uniform(0.1, 0.95)), 4), float(f"{10 ** rng.uniform(-3, 2):.4g}")
        B = float(f"{10 ** rng.uniform(-4, -1) * A**alpha:.4g}")
        out.append((float(f"{10 ** rng.uniform(3, 9) * A**0.5:.5g}"), A, B, alpha, 1, by_series))
    return out


def read_table(d: int) -> list[dict[str, str]]:
    """The rows of one dimension."""
    with TABLE.open(newline="") as file:
        return [row for row in csv.DictReader(file) if int(row["d"]) == d]


def write_table() -> None:
    """Compute every point anew."""
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for y, A, B, alpha, d, method in points():
            found = values(y, A, B, alpha, d, method)
            writer.writerow([y, A, B, alpha, d, *(mpmath.nstr(v, KEPT) for v in found)])
            file.flush()


if __name__ == "__main__":
    write_table()
