"""mpmath oracle of the tempered law: log p, its first derivatives and the tail probability in d = 1, 2, 3.

The characteristic function is ``exp(-A k^2 - B ((k^2 + lam^2)^alpha - lam^(2 alpha)))``. Neither of the two contours is
that of the package: rays ``k = i s + rho exp(i theta)`` with the double-exponential rule of `oracle.py`, unsplit, from

* ``tip``:  s = lam, the branch point itself;
* ``line``: s = 0, where nothing has been gained on oscillation.

Both cancel (by hundreds of digits where the law is all but Gaussian or far out in the tail); the working precision is
raised by what is lost. The cheaper one is taken, ``evaluate(..., other=True)`` takes the other. d = 3 follows from
d = 1.

``python -m tests.law.tempered_oracle`` writes ``tempered_values.csv`` (minutes); ``read_table`` reads it back.
"""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from typing import NamedTuple

import mpmath
import numpy as np
from mpmath import mp, mpc, mpf

from tests.law.oracle import _integrate, hankel

TABLE = Path(__file__).with_name("tempered_values.csv")
GOAL = 20
PARAMETERS = ("y", "A", "B", "alpha", "lam")
FIRST = ("d_y", "d_A", "d_B", "d_alpha", "d_lam")
COLUMNS = (*PARAMETERS, "d", "log_p", *FIRST, "log_tail")


class Values(NamedTuple):
    log_p: mpf
    first: tuple[mpf, ...]
    log_tail: mpf


def _exponents(k, y, A, B, alpha, lam, at_tip):
    """The integrand's logarithm and its derivatives in (A, B, alpha, lam)."""
    rest = at_tip or k - mpc(0, 1) * lam
    u = rest * (k + mpc(0, 1) * lam)
    log_u, log_lam = mpmath.log(u), mpmath.log(lam)
    ua, eta = mpmath.exp(alpha * log_u), mpmath.exp(2 * alpha * log_lam)
    value = mpc(0, 1) * y * k - A * k * k - B * (ua - eta)
    slopes = [
        -k * k,
        eta - ua,
        -B * (ua * log_u - 2 * eta * log_lam),
        -2 * alpha * B * (lam * ua / u - eta / lam),
    ]
    return value, slopes


def _node(y, A, B, alpha, lam, tip, theta, plane):
    """Integrands of [p, p_y, p_A ... p_lam, and (d = 1) p_yy, p_yA ... p_ylam, P(|Y| > y)]."""
    turn, i = mpmath.expjpi(theta / mp.pi), mpc(0, 1)

    def node(rho, log_rho):
        r = rho * turn
        k = r + i * lam if tip else r
        value, slopes = _exponents(k, y, A, B, alpha, lam, r if tip else None)
        if plane:
            value -= i * y * k
            h0, zh1, finite = hankel(y * k)
            e = mpmath.exp(value)
            if tip:
                tail = -e * r / k * zh1
            else:  # zh1 = finite - 2 i / pi, the real part of which is noise near k = 0
                tail = -finite * e - 2 / mp.pi * e.imag if abs(y * k) < 1 else -zh1 * e
            e = e * r
            p = e * k * h0 / (2 * mp.pi)
            p_y = -e * k * zh1 / (2 * mp.pi * y)
            return [x.real for x in (p, p_y, *(p * g for g in slopes), tail)]
        e = mpmath.exp(value)
        p, tail = e * r / mp.pi, 2 * i * e * (r / k if tip else 1) / mp.pi  # r / k = 1, exactly
        first = [p * g for g in slopes]
        p_y = i * k * p
        mixed = [i * k * p_y, *(i * k * g for g in first)]
        return [x.real for x in (p, p_y, *first, *mixed, tail)]

    return node


def _loss(y, A, B, alpha, lam, tip):
    """Decimal digits that cancel on a contour from s = lam or s = 0: its height above the saddle."""
    s = lam * (1 - np.geomspace(1e-12, 1.0, 4000))
    height = -y * s + A * s * s - B * ((lam * lam - s * s) ** alpha - lam ** (2 * alpha))
    at = -y * lam + A * lam * lam + B * lam ** (2 * alpha) if tip else 0.0
    return max(0.0, at - float(height.min())) / math.log(10.0)


def _integrals(y, A, B, alpha, lam, plane, other):
    numbers = [float(v) for v in (y, A, B, alpha, lam)]
    tip = (_loss(*numbers, True) < _loss(*numbers, False)) != other
    digits = int(GOAL + 20 + _loss(*numbers, tip))
    while True:
        with mp.workdps(digits):
            reach = (60 / B + lam ** (2 * alpha)) ** (1 / (2 * alpha))
            if A:
                reach = min(reach, mpmath.sqrt(60 / A))
            turns = abs(y - (2 * A * lam if tip else 0)) * reach
            theta = mpf("0.45" if other else "0.6") * turns / (turns + 20)
            scale = min(reach / 10, mpmath.sqrt(reach / (10 * y)), 1 / y) if y else reach / 10
            closed = [mpf(0)] * (7 if plane else 12)
            if not tip:
                closed[-1] = 1 - 2 * theta / mp.pi
            values, lost = _integrate(_node(y, A, B, alpha, lam, tip, theta, plane), scale, closed, GOAL)
        if digits - lost >= GOAL + 4:
            return values
        digits = int(GOAL + 10 + lost)
        if digits > 700:
            raise ArithmeticError("the oracle loses too many digits here")


def evaluate(y, A, B, alpha, lam, d: int = 1, *, other: bool = False) -> Values:
    """Oracle at one point, y > 0 for d > 1 (floats are taken exactly)."""
    with mp.workdps(60):
        point = [mpf(v) for v in (y, A, B, alpha, lam)]
        y = point[0]
        v = _integrals(*point, d == 2, other)
        p, first, tail = v[0], v[1:6], v[-1]
        if d == 3:
            mixed = v[6:11]
            tail = tail + 2 * y * p
            p, first = -first[0] / (2 * mp.pi * y), [m / first[0] for m in mixed]
            first[0] -= 1 / y
        else:
            first = [g / p for g in first]
        return Values(mpmath.log(p), tuple(first), mpmath.log(tail))


def random_cases(n: int, seed: int) -> list[tuple[float, ...]]:
    """alpha in [0.05, 0.97], lam in [1e-3, 1e2] per width of the Gaussian (one in eight without it), B in [1e-4, 300],
    y from the center to where log p is about -200, all in a unit of length from [1e-3, 1e3]."""
    rng = np.random.default_rng(seed)
    out = []
    while len(out) < n:
        alpha = round(float(rng.uniform(0.05, 0.97)), 4)
        A = 0.0 if rng.random() < 0.125 else 1.0
        B, lam = 10.0 ** rng.uniform(-4.0, np.log10(300.0)), 10.0 ** rng.uniform(-3.0, 2.0)
        width = math.sqrt(2.0 * A + 2.0 * alpha * B * lam ** (2.0 * alpha - 2.0))
        y = width * 10.0 ** rng.uniform(-2.0, 1.3) if rng.random() < 0.7 else 10.0 ** rng.uniform(-1.0, 2.0) / lam
        s = lam * (1.0 - np.geomspace(1e-12, 1.0, 400))
        height = -y * s + A * s * s - B * ((lam * lam - s * s) ** alpha - lam ** (2.0 * alpha))
        if height.min() < -200.0:
            continue
        unit = 10.0 ** rng.uniform(-3.0, 3.0)
        out.append((y * unit, A * unit**2, B * unit ** (2.0 * alpha), alpha, lam / unit))
    return out


def deep_cases(n: int, seed: int) -> list[tuple[float, ...]]:
    """The same, with y where the exponent at the saddle, and so log p but for a logarithm, is from -100 to -200."""
    rng = np.random.default_rng(seed)
    out = []
    while len(out) < n:
        alpha = round(float(rng.uniform(0.05, 0.97)), 4)
        A = 0.0 if rng.random() < 0.125 else 1.0
        B, lam = 10.0 ** rng.uniform(-4.0, np.log10(300.0)), 10.0 ** rng.uniform(-3.0, 2.0)
        goal = -rng.uniform(100.0, 200.0)
        s = lam * (1.0 - np.geomspace(1e-12, 1.0, 400))
        flat = A * s * s - B * ((lam * lam - s * s) ** alpha - lam ** (2.0 * alpha))
        low, high = 0.0, 1e9 / lam
        for _ in range(200):
            y = 0.5 * (low + high)
            low, high = (y, high) if (flat - y * s).min() > goal else (low, y)
        unit = 10.0 ** rng.uniform(-3.0, 3.0)
        out.append((y * unit, A * unit**2, B * unit ** (2.0 * alpha), alpha, lam / unit))
    return out


def table_cases() -> list[tuple[float, ...]]:
    """The points of the committed table: 360 on a line, 40 each in the plane and in space."""
    cases = [(*c, 1) for c in random_cases(300, 1)]
    cases += [(*c, d) for d in (2, 3) for c in random_cases(40, d)]
    return cases + [(*c, 1) for c in deep_cases(60, 4)]


def read_table(path: Path = TABLE) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_table(path: Path = TABLE) -> None:
    """All rows, or those that are missing at the end of a table that was begun."""
    cases = table_cases()
    done = len(read_table(path)) if path.exists() else 0
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if not done:
            writer.writerow(COLUMNS)
        for number, (*point, d) in enumerate(cases):
            if number < done:
                continue
            v = evaluate(*point, d)
            texts = [mpmath.nstr(x, 18, min_fixed=-5, max_fixed=5) for x in (v.log_p, *v.first, v.log_tail)]
            writer.writerow([*(repr(float(x)) for x in point), d, *texts])
            file.flush()
            if sys.stderr.isatty():
                print(f"\r{number + 1} / {len(cases)}", end="", file=sys.stderr)


if __name__ == "__main__":
    write_table()
