"""Independent mpmath oracle of the one-step law: log p, its derivatives and the tail probability in d = 1, 2, 3.

The law has the characteristic function ``exp(-A |k|^2 - B |k|^(2 alpha))``. Everything is an integral over the ray
``r = rho exp(i theta)`` of ``K(y r) exp(-A r^2) E(r)`` times powers of r and log r, with K the outgoing wave of the
dimension (``exp(i z)`` in d = 1, Hankel functions in d = 2) and

* ``split``:   ``E = expm1(-B r^(2 alpha))``, the Gaussian being added in closed form (tails), or
* ``unsplit``: ``E = exp(-B r^(2 alpha))`` (center; the only choice at A = 0, y = 0).

The integral over rho uses the double-exponential substitution ``rho = s exp(v - exp(-v))`` and the trapezoid rule, the
step being halved until *every* integral repeats to 16 digits; the trapezoid error squares at each halving, so the last
value has about 30. The working precision is raised by the digits that cancel, inside the integrals and in forming
second derivatives of log p (in the far tail p is proportional to B, and a mixed derivative with B is a tiny remainder).
``evaluate(..., other=True)`` takes the other representation and another angle, which share neither nodes nor integrand:
the tests compare the two. d = 3 follows from ``p_3 = -p_1' / (2 pi y)`` and
``P(|Y|_3 > u) = 2 u p_1(u) + P(|Y|_1 > u)``.

``python -m tests.law.oracle`` writes ``reference_values.csv`` (minutes); ``read_table`` reads it back.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import mpmath
import numpy as np
from mpmath import mp, mpc, mpf

TABLE = Path(__file__).with_name("reference_values.csv")
GOAL = 24  # decimal digits
PARAMETERS = ("y", "A", "B", "alpha")
FIRST = ("d_y", "d_A", "d_B", "d_alpha")
PAIRS = [(i, j) for i in range(4) for j in range(i, 4)]
SECOND = tuple(f"h_{PARAMETERS[i]}{PARAMETERS[j]}" for i, j in PAIRS)
COLUMNS = ("y", "A", "B", "alpha", "d", "log_p", *FIRST, *SECOND, "log_tail")


@dataclass(frozen=True)
class Values:
    """log p, its gradient and Hessian in (y, A, B, alpha), and log P(|Y| > y). The Hessian is None for d > 1."""

    log_p: mpf
    first: tuple[mpf, ...]
    second: tuple[mpf, ...] | None
    log_tail: mpf


# ----------------------------------------------------------------------------------------------------------- quadrature
Node = Callable[[mpf, mpf], list[mpf]]  # (rho, log rho) -> real integrands times rho


def _sweep(node: Node, scale: mpf, points: Sequence[mpf] | range, value_at: Callable[[int], mpf]) -> tuple[list, list]:
    """Sum the integrands over ``v = value_at(k)``, k in ``points``, until three successive terms are negligible."""
    total: list = []
    size: list = []
    negligible, quiet = mp.eps, 0
    log_scale = mpmath.log(scale)
    for k in points:
        v = value_at(k)
        e = mpmath.exp(-v)
        log_rho = log_scale + v - e
        terms = [t * (1 + e) for t in node(mpmath.exp(log_rho), log_rho)]
        total = [a + t for a, t in zip(total, terms)] if total else terms
        size = [a + abs(t) for a, t in zip(size, terms)] if size else [abs(t) for t in terms]
        quiet = quiet + 1 if all(abs(t) <= negligible * a for t, a in zip(terms, size)) else 0
        if quiet == 3:
            break
    return total, size


def _integrate(node: Node, scale: mpf, closed: Sequence[mpf], goal: int) -> tuple[list[mpf], mpf]:
    """``closed + int_0^inf node d rho / rho`` for all integrands, and the decimal digits lost by cancellation."""
    h = mpf(1) / 4
    limit, tolerance = 10**6, mpf(10) ** (-goal * 2 // 3)  # halving h squares the error
    up, up_size = _sweep(node, scale, range(limit), lambda k: h * k)
    down, down_size = _sweep(node, scale, range(1, limit), lambda k: -h * k)
    sums = [a + b for a, b in zip(up, down)]
    sizes = [a + b for a, b in zip(up_size, down_size)]
    previous = [c + h * s for c, s in zip(closed, sums)]
    while True:
        # The midpoints of the present grid: the next grid is the union of both.
        step = h
        up, up_size = _sweep(node, scale, range(limit), lambda k: step * (k + mpf(1) / 2))  # noqa: B023
        down, down_size = _sweep(node, scale, range(limit), lambda k: -step * (k + mpf(1) / 2))  # noqa: B023
        sums = [s + a + b for s, a, b in zip(sums, up, down)]
        sizes = [s + a + b for s, a, b in zip(sizes, up_size, down_size)]
        h = h / 2
        current = [c + h * s for c, s in zip(closed, sums)]
        floor = [h * s * mp.eps * 10**4 for s in sizes]  # rounding noise: a value near it asks for more digits
        if all(abs(a - b) <= max(tolerance * abs(a), f) for a, b, f in zip(current, previous, floor)):
            break
        if h < mpf(2) ** -11:
            raise ArithmeticError("the oracle's quadrature did not converge")
        previous = current
    lost = max(
        mpmath.log10(max(h * s, abs(c)) / max(abs(a), f)) for s, c, a, f in zip(sizes, closed, current, floor) if a or f
    )
    return current, lost


def hankel(z: mpc) -> tuple[mpc, mpc, mpc]:
    """``H_0(z)``, ``z H_1(z)`` (first kind) and its finite part ``z H_1(z) + 2 i / pi``, for Re z > 0, Im z >= 0.

    Power or asymptotic series. Near z = 0 the real part of ``z H_1`` is noise unless taken from the finite part.
    """
    if abs(z) > 1.25 * mp.dps + 5:
        out = []
        for order in (0, 1):
            term, total, k = mpc(1), mpc(1), 0
            while abs(term) > mp.eps:
                k += 1
                term = term * (4 * order * order - (2 * k - 1) ** 2) * mpc(0, 1) / (8 * k * z)
                total += term
            phase = z - mp.pi * (2 * order + 1) / 4
            out.append(mpmath.sqrt(2 / (mp.pi * z)) * mpmath.exp(mpc(0, 1) * phase) * total)
        return out[0], z * out[1], z * out[1] + mpc(0, 2) / mp.pi
    with mp.workdps(mp.dps + int(0.87 * float(z.imag)) + int(0.44 * float(abs(z))) + 10):
        q = -z * z / 4
        term0, harmonic = mpc(1), mpf(0)
        j0, y0, j1, y1 = mpc(0), mpc(0), mpc(0), mpc(0)
        k = 0
        while True:
            term1 = term0 / (k + 1)
            j0 += term0
            y0 += harmonic * term0
            j1 += term1
            y1 += (2 * harmonic + mpf(1) / (k + 1)) * term1
            if abs(term0) * (1 + harmonic) < mp.eps and k > 2:
                break
            k += 1
            harmonic += mpf(1) / k
            term0 = term0 * q / (k * k)
        log = mpmath.log(z / 2) + mp.euler
        y_0 = 2 / mp.pi * (log * j0 - y0)
        y_1 = (2 * log * j1 - y1) / mp.pi
        h0, finite = j0 + mpc(0, 1) * y_0, (j1 + mpc(0, 1) * y_1) * z * z / 2
        h1 = finite - mpc(0, 2) / mp.pi
    return +h0, +h1, +finite


# -------------------------------------------------------------------------------------------------------- the integrals
def _factors(r, log_r, A, B, alpha):
    power = mpmath.exp(2 * alpha * log_r)
    return power, mpmath.exp(-A * r * r), mpmath.exp(-B * power), mpmath.expm1(-B * power)


def _line(y, A, B, alpha, split, theta):
    """d = 1: integrands of [p, p_i (4), p_ij (10), P(|Y| > y)], in the order of PARAMETERS and PAIRS."""
    turn, i = mpmath.expjpi(theta / mp.pi), mpc(0, 1)

    def node(rho, log_rho):
        r, log_r = rho * turn, mpc(log_rho, theta)
        power, gauss, jump, jump_m1 = _factors(r, log_r, A, B, alpha)
        wave = mpmath.exp(i * y * r) * gauss
        e, f = wave * (jump_m1 if split else jump), wave * jump
        w, r2 = power * log_r, r * r
        f_w, f_p = f * w, f * power
        c = r / mp.pi
        out = [
            e,
            i * r * e,
            -r2 * e,
            -f_p,
            -2 * B * f_w,
            -r2 * e,
            -i * r * r2 * e,
            -i * r * f_p,
            -2 * B * i * r * f_w,
            r2 * r2 * e,
            r2 * f_p,
            2 * B * r2 * f_w,
            power * f_p,
            2 * (B * power - 1) * f_w,
            4 * B * (B * power - 1) * f_w * log_r,
        ]
        return [(c * o).real for o in out] + [-2 / mp.pi * e.imag]

    return node


def _line_closed(y, A, split, theta):
    """The part of the same integrals known in closed form: the Gaussian (split) or the arc at the origin (unsplit)."""
    zero = mpf(0)
    if not split:
        return [zero] * 15 + [1 - 2 * theta / mp.pi]
    if A == 0:
        return [zero] * 16
    g = mpmath.exp(-y * y / (4 * A)) / mpmath.sqrt(4 * mp.pi * A)
    u, v = -y / (2 * A), y * y / (4 * A * A) - 1 / (2 * A)
    second = [g * v, g * (u * v + y / (2 * A * A)), zero, zero, g * (v * v - y * y / (2 * A**3) + 1 / (2 * A * A))]
    return [g, g * u, g * v, zero, zero, *second, *([zero] * 5), mpmath.erfc(y / (2 * mpmath.sqrt(A)))]


def _plane(y, A, B, alpha, split, theta):
    """d = 2: integrands of [p, p_y, p_A, p_B, p_alpha, P(|Y| > y)]."""
    turn = mpmath.expjpi(theta / mp.pi)

    def node(rho, log_rho):
        r, log_r = rho * turn, mpc(log_rho, theta)
        power, gauss, jump, jump_m1 = _factors(r, log_r, A, B, alpha)
        h0, h1, finite = hankel(y * r) if y else (mpc(1), mpc(0), mpc(0))
        e, f = gauss * (jump_m1 if split else jump), gauss * jump
        c = r * r / (2 * mp.pi)
        out = [e * h0, -r * r * e * h0, -power * f * h0, -2 * B * power * log_r * f * h0]
        p, p_A, p_B, p_alpha = [(c * o).real for o in out]
        p_y = -(c * h1 * e).real / y if y else mpf(0)
        tail = -(finite * e).real - 2 / mp.pi * e.imag if abs(y * r) < 1 else -(h1 * e).real
        return [p, p_y, p_A, p_B, p_alpha, tail]

    return node


def _plane_closed(y, A, split, theta):
    zero = mpf(0)
    if not split:
        return [zero] * 5 + [1 - (2 * theta / mp.pi if y else zero)]
    if A == 0:
        return [zero] * 6
    e = mpmath.exp(-y * y / (4 * A))
    g = e / (4 * mp.pi * A)
    return [g, -y / (2 * A) * g, g * (y * y / (4 * A * A) - 1 / A), zero, zero, e]


def _integrals(y, A, B, alpha, plane: bool, other: bool, goal: int) -> list[mpf]:
    """All integrals of one case; ``other`` takes the other representation (when there is one) and another angle."""
    digits = goal + 21
    while True:
        with mp.workdps(digits):
            length = mpmath.sqrt(y * y + 4 * A)
            strength = B * length ** (-2 * alpha) if length else mpmath.inf
            split = strength < 1
            if (
                other and 1e-8 < strength < 30
            ):  # beyond, the wrong representation cancels too much: the other angle only
                split = not split
            reach = (60 / B) ** (1 / (2 * alpha))
            if A:
                reach = min(reach, mpmath.sqrt(60 / A))
            # Near the center the waves do not decay: keep to the real axis. Far out turn by (less than) pi / 4.
            s = y * reach
            theta = mpf("0.45" if other else "0.6") * s / (s + 20)
            scale = reach / 10 if not split else (mpf("1.3") if other else mpf(1)) / length
            if y:
                scale = min(scale, 1 / y) if split else min(scale, mpmath.sqrt(scale / y))
            build, closed = (_plane, _plane_closed) if plane else (_line, _line_closed)
            values, lost = _integrate(build(y, A, B, alpha, split, theta), scale, closed(y, A, split, theta), goal)
        if digits - lost >= goal + 8:
            return values
        digits = int(goal + 19 + lost)
        if digits > 500:
            raise ArithmeticError("the oracle loses too many digits here")


def evaluate(y, A, B, alpha, d: int = 1, *, other: bool = False) -> Values:
    """Oracle at one point (floats are taken exactly). ``y`` may be negative in d = 1."""
    goal = GOAL
    while True:
        with mp.workdps(goal + 36):
            point = mpf(y), mpf(A), mpf(B), mpf(alpha)
            integrals = _integrals(abs(point[0]), *point[1:], d == 2, other, goal)
            values, lost = (_from_line, _from_plane, _from_space)[d - 1](point[0], integrals)
        if lost <= goal - GOAL + 2:
            return values
        goal = int(GOAL + lost + 1)


def _lost(result: mpf, subtrahend: mpf) -> float:
    """Decimal digits cancelled in ``result = minuend - subtrahend``."""
    return float(mpmath.log10(abs(subtrahend / result))) if result and subtrahend else 0.0


def _from_plane(y, integrals) -> tuple[Values, float]:
    p, *grad, tail = integrals
    return Values(mpmath.log(p), tuple(g / p for g in grad), None, mpmath.log(tail)), 0.0


def _from_space(y, integrals) -> tuple[Values, float]:
    p, grad, hess, tail = integrals[0], integrals[1:5], dict(zip(PAIRS, integrals[5:15])), integrals[15]
    if y == 0:  # -p_1' / (2 pi y) -> -p_1'' / (2 pi), and p_1'' = dp_1 / dA
        p_3, first, lost = -grad[1] / (2 * mp.pi), [mpf(0), *(hess[1, k] / grad[1] for k in (1, 2, 3))], 0.0
    else:
        p_3, first = -grad[0] / (2 * mp.pi * y), [hess[0, k] / grad[0] for k in range(4)]
        first[0] -= 1 / y
        lost = _lost(first[0], 1 / y)
    return Values(mpmath.log(p_3), tuple(first), None, mpmath.log(2 * y * p + tail)), lost


def _from_line(y, integrals) -> tuple[Values, float]:
    p, grad, hess, tail = integrals[0], integrals[1:5], integrals[5:15], integrals[15]
    first = [g / p for g in grad]
    second = [h / p - first[i] * first[j] for h, (i, j) in zip(hess, PAIRS)]
    lost = max(_lost(h, first[i] * first[j]) for h, (i, j) in zip(second, PAIRS))
    if y < 0:
        first[0] = -first[0]
        second = [-h if (i == 0) != (j == 0) else h for h, (i, j) in zip(second, PAIRS)]
    return Values(mpmath.log(p), tuple(first), tuple(second), mpmath.log(tail)), lost


# ------------------------------------------------------------------------------------------------------ cases and table
class Cases(NamedTuple):
    """float64 arrays of equal length."""

    y: np.ndarray
    A: np.ndarray
    B: np.ndarray
    alpha: np.ndarray


def random_cases(n: int, seed: int) -> Cases:
    """Cases over the whole domain, 0 <= y <= 1e12.

    alpha in [0.05, 0.97] (one in four at an edge or near 1/2), A over eight decades or 0 (one in twelve),
    c = B / A^alpha in [1e-5, 300], y in units of either width, or 0 (one in twelve).
    """
    rng = np.random.default_rng(seed)
    edges = np.array([0.05, 0.25, 0.4995, 0.5, 0.5005, 0.5125, 0.75, 0.97])
    alpha = np.where(rng.random(n) < 0.25, rng.choice(edges, n), np.round(rng.uniform(0.05, 0.97, n), 4))
    A = 10 ** rng.uniform(-6, 2, n)
    c = 10 ** rng.uniform(-5, np.log10(300), n)
    B = c * A**alpha
    gauss, jump = np.sqrt(A), np.exp(np.log(B) / (2 * alpha))
    y = np.where(rng.random(n) < 0.6, gauss * 10 ** rng.uniform(-2, 9, n), jump * 10 ** rng.uniform(-2, 4, n))
    # The jump width spans 1e-60 ... 1e25 at small alpha: keep y where displacements live.
    y = np.clip(y, 1e-3 * gauss, 1e12)
    A = np.where(rng.random(n) < 1 / 12, 0.0, A)
    y = np.where(rng.random(n) < 1 / 12, 0.0, y)
    return Cases(y, A, B, alpha)


def edge_cases() -> list[tuple[float, float, float, float]]:
    """Hand-picked (y, A, B, alpha)."""
    cases = []
    for alpha in (0.05, 0.4995, 0.5005, 0.5125, 0.97):
        for c in (1e-5, 1.0, 300.0):
            cases += [(y, 1.0, c, alpha) for y in (0.0, 0.7, 30.0, 1e12)]
        cases += [(y, 0.0, 1.0, alpha) for y in (0.0, 1e-3, 2.0, 1e12)]
    cases += [(6.0, 0.25, 1e-9, 0.3), (1e-8, 0.1, 0.075, 0.3), (-2.5, 0.1, 0.075, 0.3), (-1e5, 0.1, 0.075, 0.5)]
    return cases


def table_cases() -> list[tuple[float, float, float, float, int]]:
    """The points of the committed table."""
    edges = edge_cases()
    cases = [(*e, 1) for e in edges]
    cases += [(*map(float, c), 1) for c in zip(*random_cases(200, 1))]
    for d in (2, 3):
        cases += [(*e, d) for e in edges[:: (3 if d == 2 else 2)] if e[0] >= 0]
        cases += [(*map(float, c), d) for c in zip(*random_cases(60, d))]
    return cases


def read_table(path: Path = TABLE) -> list[dict[str, str]]:
    """Rows of the committed table as strings with 20 digits (empty where a column does not apply)."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_table(path: Path = TABLE) -> None:
    """Compute every row with the main representation and write the table."""
    cases = table_cases()
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for number, (y, A, B, alpha, d) in enumerate(cases):
            v = evaluate(y, A, B, alpha, d)
            second = v.second if v.second is not None else [None] * len(SECOND)
            numbers = [v.log_p, *v.first, *second, v.log_tail]
            texts = ["" if x is None else mpmath.nstr(x, 20, min_fixed=-5, max_fixed=5) for x in numbers]
            writer.writerow([repr(y), repr(A), repr(B), repr(alpha), d, *texts])
            if sys.stderr.isatty():
                print(f"\r{number + 1} / {len(cases)}", end="", file=sys.stderr)


if __name__ == "__main__":
    write_table()
