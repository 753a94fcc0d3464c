"""The law of one step on a line by quadrature on a rotated contour: any alpha, value and derivatives.

With A = D_o dt, B = D_f dt, y = |displacement - b dt| (paper, Appendix D):

    p(y) = 1/pi Re int exp(i y r - A r^2 - B r^(2 alpha)) dr.

The half line is rotated by theta, which turns oscillation into decay and keeps *relative* accuracy in the tail. Two
paths:

- split, when B L^(-2 alpha) < 0.1 with L = sqrt(y^2 + 4 A): the Gaussian is taken out in closed form and the rest
  carries expm1(-B r^(2 alpha)), so that a tail of 1e-300 keeps its digits;
- unsplit otherwise, in units of B^(1 / (2 alpha)).

All derivatives come from the same nodes: d/dy from i r, d/dA from -r^2, d/dB from
-r^(2 alpha), d/dalpha from -2 B r^(2 alpha) log r, and their products for second derivatives.

Accuracy (measured against 50-digit values, alpha in [0.05, 0.97], y up to 1e12): log p within 1e-13, first derivatives
within 1e-11 of their natural scale.

The variable of integration is ``rho = S exp(v - exp(-v))`` (in units of the width of the law) with the trapezoid rule
in ``v = j h``. ``v - exp(-v)`` sends the algebraic singularity r^(2 alpha) at zero to a double-exponential decay, and
grows linearly upwards, where the integrand itself decays exponentially.

The step h and the rotation were chosen by measurement against a five to twelve times finer rule, alpha in [0.04, 0.98],
c = B / A^alpha in [1e-5, 1e5] and A = 0, z = y / sqrt(A) in [0, 1e5]: log p within 1e-12, its first derivatives within
1e-11 of their natural scale.

Compiled density and tail mass: one sample at a time, scalars only, the GIL released; `threads.in_blocks` spreads the
samples over the cores.
"""

from __future__ import annotations

import cmath
import math

import numpy as np

from levytorch.law.compiled import cached_njit
from levytorch.law.vector_math import fast_exp, fast_exp_expm1, fast_sincos, inlined

compiled = cached_njit(nogil=True, error_model="numpy", fastmath={"contract", "nsz", "arcp"})

# B L^(-2 alpha) below which the Gaussian is split off, L = sqrt(y^2 + 4 A). Above, the unsplit integrand cancels by a
# factor of ten at most; below, the split one does not have to undo a wide jump part.
LOG_SPLIT = math.log(0.1)
LOG_KAPPA_MIN = -660.0  # of B L^(-2 alpha): below, it is a factor of the sums, which is taken out

# Split path (the jump part is small at the scale L): units of L.
SPLIT_THETA = math.pi / 4.5  # rotation reached in the tail
SPLIT_GAUSS = 24.0  # weight of A in the rotation: the Gaussian's decay is needed while y^2 is not >> 24 A
SPLIT_CORE = 2.0  # weight of the jump part's own, almost Gaussian, core when 2 alpha > 1
SPLIT_S = 1.5

# Unsplit path (the jump part is wide): units of B^(1 / (2 alpha)).
UNSPLIT_THETA = math.pi / 5
UNSPLIT_TURN = 100.0  # rotation sets in when the square of the number of oscillations passes this
UNSPLIT_S = 1.0 / 37.0

DECAY = 38.0  # exp(-38) = 3e-17: where the integrand ends
FLOOR = 34.0  # exp(-34) relative: where it begins

STEPS = (0.08, 0.10, 0.12)  # fine, medium, coarse

HUGE = 1e300
DONE = -1  # what a pass over steps returns where none of them is bad
FINE, MEDIUM, COARSE = 0, 1, 2
V_MIN, V_MAX = -9.0, 400.0
H = np.array(STEPS)
OFFSETS = (-V_MIN / H).astype(np.int64)  # columns of v = 0
N_NODES = int((V_MAX - V_MIN) / min(STEPS)) + 2
# for every step h: v - exp(-v), its exponential, h (1 + exp(-v)); column j + offset is v = j h
_V = (np.arange(N_NODES) - OFFSETS[:, None]) * H[:, None]
LOG_W = _V - np.exp(-_V)
W = np.exp(LOG_W)
JAC = H[:, None] * (1.0 + np.exp(-_V))
FLAT_LOG_W, FLAT_W, FLAT_JAC = LOG_W.ravel(), W.ravel(), JAC.ravel()
SCRATCH = (6, N_NODES)  # of one sample: terms of five sums, and the sums


@compiled
def _limit(m):
    """Where x - m log x has risen by DECAY above its minimum: the end of x^m exp(-x), generously."""
    return m + DECAY + math.sqrt(2.0 * DECAY * m)


@compiled
def contour_path(y, A, B, alpha, power, floor_power, fine):
    """The contour of one sample.

    Returns (split, log_unit, y, A, B, theta, S, k, j0, j1): the law in units of exp(log_unit), the rotation, the
    scale of the nodes, the table of nodes and the range to sum over. `power`: the largest power of r in the sums plus
    one; `floor_power`: the power of rho with which the integrand vanishes at zero, beside dr/r and r^(2 alpha);
    `fine`: the smallest step.
    """
    L = math.hypot(y, 2.0 * math.sqrt(A))
    log_B = math.log(B)
    log_L = math.log(L) if L > 0.0 else -1e300
    log_kappa = log_B - 2.0 * alpha * log_L
    if log_kappa < LOG_SPLIT:
        kappa = math.exp(max(log_kappa, LOG_KAPPA_MIN))
        y1 = y / L
        root = math.sqrt(A) / L
        A1 = root * root
        core = SPLIT_CORE * (2.0 * alpha - 1.0) * kappa ** (1.0 / alpha) if alpha > 0.5 else 0.0
        theta = SPLIT_THETA * y1 * y1 / (y1 * y1 + SPLIT_GAUSS * A1 + core)
        r_max = HUGE
        if y1 * theta > 0.0:
            r_max = min(r_max, _limit(power) / (y1 * math.sin(theta)))
        if A1 > 0.0:
            r_max = min(r_max, math.sqrt(_limit(0.5 * power) / (A1 * math.cos(2.0 * theta))))
        S = SPLIT_S
        k = MEDIUM if alpha < 0.55 else FINE
        begin = FLOOR / (floor_power + 2.0 * alpha)
        split = True
        log_unit = log_L
        B1 = kappa
    else:
        log_unit = log_B / (2.0 * alpha)
        y1 = math.exp(math.log(y) - log_unit) if y > 0.0 else 0.0
        A1 = math.exp(math.log(A) - 2.0 * log_unit) if A > 0.0 else 0.0
        B1 = 1.0
        x_max = _limit(power / (2.0 * alpha))
        log_turn = math.log(37.0 + power / (2.0 * alpha)) / (2.0 * alpha)
        if A1 > 0.0:
            log_turn = min(log_turn, 0.5 * math.log(37.0 / A1))
        turns = min(y1 * math.exp(min(log_turn, 600.0)), 1e150) ** 2
        theta = UNSPLIT_THETA * turns / (turns + UNSPLIT_TURN)
        log_r = math.log(x_max / math.cos(2.0 * alpha * theta)) / (2.0 * alpha)
        if A1 > 0.0:
            log_r = min(log_r, 0.5 * math.log(_limit(0.5 * power) / (A1 * math.cos(2.0 * theta))))
        if y1 * theta > 0.0:
            log_r = min(log_r, math.log(_limit(power) / (y1 * math.sin(theta))))
        r_max = math.exp(min(log_r, 390.0))
        peak = math.exp(min(-math.log(2.0 * alpha) / (2.0 * alpha), 380.0))
        S = min(max(1.0, 0.1 * peak), r_max * UNSPLIT_S)
        k = (MEDIUM if alpha < 0.35 else COARSE) if log_kappa > 0.0 else FINE
        begin = FLOOR / (floor_power if floor_power > 0.0 else min(2.0 * alpha, 1.0)) + math.log(max(S, 1.0))
        split = False
    if fine:
        k = FINE
    j0 = math.floor(-math.log(max(begin - math.log(begin), 1.0)) / H[k]) + OFFSETS[k]
    v1 = math.log(max(r_max / S, 1.0))
    j1 = math.ceil((v1 + math.exp(-v1)) / H[k]) + OFFSETS[k]  # v - exp(-v) = v1, almost
    return split, log_unit, y1, A1, B1, theta, S, k, max(j0, 0), min(j1, N_NODES - 1)


@compiled
def _line_sums(split, log_unit, y, A, B, alpha, theta, S, k, j0, j1, work):
    """d = 1: the sums P, P_y, P_A, B P_B, P_alpha over the nodes, into work[5].

    The terms are stored and then added, and the elementary functions are our own: LLVM vectorises the first loop.
    """
    w0, w1, w2, w3, w4 = work[0], work[1], work[2], work[3], work[4]
    ct, st = math.cos(theta), math.sin(theta)
    c2, s2 = math.cos(2.0 * theta), math.sin(2.0 * theta)
    ca, sa = math.cos(2.0 * alpha * theta), math.sin(2.0 * alpha * theta)
    log_S = math.log(S)
    first, n = k * N_NODES + j0, j1 + 1 - j0
    for i in range(n):
        rho = S * FLAT_W[first + i]
        log_rho = log_S + FLAT_LOG_W[first + i]
        rho2 = rho * rho
        x = B * fast_exp(2.0 * alpha * log_rho)
        xr, xi = x * ca, x * sa
        # exp(-x) and expm1(-x) in the complex plane, without cancellation in either
        e, a = fast_exp_expm1(-xr)
        s, c = fast_sincos(0.5 * xi)
        v = 2.0 * s * s
        er, ei = e * (1.0 - v), -2.0 * e * s * c
        e0 = a * (1.0 - v) - v if split else er
        # exp(i y r - A r^2) dr
        mag = fast_exp(-y * rho * st - A * rho2 * c2) * rho * FLAT_JAC[first + i]
        sp, cp = fast_sincos(y * rho * ct - A * rho2 * s2 + theta)
        gr, gi = mag * cp, mag * sp
        fr, fi = gr * e0 - gi * ei, gr * ei + gi * e0
        hr, hi = gr * er - gi * ei, gr * ei + gi * er
        kr, ki = hr * xr - hi * xi, hr * xi + hi * xr
        w0[i] = fr
        w1[i] = rho * (fr * st + fi * ct)
        w2[i] = rho2 * (fr * c2 - fi * s2)
        w3[i] = kr
        w4[i] = kr * (log_rho - log_unit) - ki * theta
    P = PY = PA = PB = Pa = 0.0
    for i in range(n):
        P += w0[i]
        PY -= w1[i]
        PA -= w2[i]
        PB -= w3[i]
        Pa -= w4[i]
    scale = 1.0 / math.pi
    sums = work[5]
    sums[0], sums[1], sums[2], sums[3], sums[4] = P * scale, PY * scale, PA * scale, PB * scale, 2.0 * Pa * scale


@inlined
def complex_expm1(z):
    half = math.sin(0.5 * z.imag)
    v = 2.0 * half * half
    return complex(math.expm1(z.real) * (1.0 - v) - v, math.exp(z.real) * math.sin(z.imag))


@inlined
def contour_node(split, y, A, B, alpha, theta, turn, turn_x, S, log_S, k, j):
    """Node j: r, log r, x = B r^(2 alpha), and wave e0, the integrand over 1 / r, with ex, what e0 is without its -1.

    turn, turn_x: exp(i theta), exp(2 i alpha theta). On the split path e0 = expm1(-x) and ex = exp(-x); otherwise wave
    carries exp(-x), and both are 1.
    """
    log_rho = log_S + LOG_W[k, j]
    r = S * W[k, j] * turn
    x = B * math.exp(2.0 * alpha * log_rho) * turn_x
    exponent = 1j * y * r - A * r * r
    e0 = ex = complex(1.0, 0.0)
    if split:
        e0 = complex_expm1(-x)
        ex = e0 + 1.0
    else:
        exponent -= x
    return r, complex(log_rho, theta), x, cmath.exp(exponent) * JAC[k, j], e0, ex


@compiled
def _second_sums(split, log_unit, y, A, B, alpha, theta, S, k, j0, j1, sums):
    """Sums over the nodes: P, P_y, P_A, B P_B, P_alpha, then y A, y B, y alpha, A A, A B, A alpha, B B, B alpha,
    alpha alpha.
    """
    turn, turn_x = cmath.rect(1.0, theta), cmath.rect(1.0, 2.0 * alpha * theta)
    log_S = math.log(S)
    for j in range(j0, j1 + 1):
        r, ell, x, g, e0, ex = contour_node(split, y, A, B, alpha, theta, turn, turn_x, S, log_S, k, j)
        rr = r * r
        k0 = g * r / math.pi
        k1 = 1j * r * k0
        f = k0 * e0
        ell -= log_unit
        k0x, k1x = k0 * ex * x, k1 * ex * x
        sums[0] += f.real
        sums[1] += (k1 * e0).real
        sums[2] -= (rr * f).real
        sums[3] -= k0x.real
        sums[4] -= 2.0 * (k0x * ell).real
        sums[5] -= (rr * k1 * e0).real
        sums[6] -= k1x.real
        sums[7] -= 2.0 * (k1x * ell).real
        sums[8] += (rr * rr * f).real
        sums[9] += (rr * k0x).real
        sums[10] += 2.0 * (rr * k0x * ell).real
        sums[11] += (x * k0x).real
        sums[12] -= 2.0 * (ell * k0x * (1.0 - x)).real
        sums[13] -= 4.0 * (ell * ell * k0x * (1.0 - x)).real


@compiled
def density_point(y, A, B, alpha, order, work, out):
    """log p and derivatives at y >= 0, into out.

    out[0] = log p; out[1:5] = first derivatives of log p in (y, A, B, alpha) when order >= 1; out[5:15] = second
    derivatives (yy, yA, yB, ya, AA, AB, Aa, BB, Ba, aa) when order = 2. work: scratch.
    """
    split, log_unit, y1, A1, B1, theta, S, k, j0, j1 = contour_path(y, A, B, alpha, 1.0 + 2.0 * order, 1.0, order == 2)
    sums, n_sums = work[5], 14 if order == 2 else 5
    if order < 2:
        _line_sums(split, log_unit, y1, A1, B1, alpha, theta, S, k, j0, j1, work)
    else:
        sums[:n_sums] = 0.0
        _second_sums(split, log_unit, y1, A1, B1, alpha, theta, S, k, j0, j1, sums)
    # the Gaussian part, in the same units, with a common factor exp(top) taken out
    top = 0.0
    if split:
        top = min(math.log(B) - 2.0 * alpha * log_unit - LOG_KAPPA_MIN, 0.0)
        if A1 > 0.0:
            u = 0.25 * y1 * y1 / A1
            log_G = -u - 0.5 * math.log(4.0 * math.pi * A1)
            log_J = top + (math.log(abs(sums[0])) if sums[0] != 0.0 else -HUGE)
            scale = math.exp(top - max(log_G, log_J))
            for i in range(n_sums):
                sums[i] *= scale
            top = max(log_G, log_J)
            G = math.exp(log_G - top)
            gA, gy = (u - 0.5) / A1, -0.5 * y1 / A1
            sums[0] += G
            sums[1] += G * gy
            sums[2] += G * gA
            if order == 2:
                sums[5] += G * gy * (gA - 1.0 / A1)
                sums[8] += G * (gA * gA + (0.5 - 2.0 * u) / (A1 * A1))
    out[0] = math.log(sums[0]) + top - log_unit
    if order == 0:
        return
    iP, iU = 1.0 / sums[0], math.exp(min(-log_unit, 300.0))
    slope = (sums[1] * iP, sums[2] * iP, sums[3] * iP, sums[4] * iP)
    unit = (iU, iU * iU, 1.0 / B, 1.0)
    for i in range(4):
        out[1 + i] = slope[i] * unit[i]
    if order == 2:
        sums[4] = sums[2]  # P_yy: with it sums[4:14] is the upper triangle
        row = 4
        for i in range(4):
            for j in range(i, 4):
                out[row + 1] = (sums[row] * iP - slope[i] * slope[j]) * unit[i] * unit[j]
                row += 1


@inlined
def pick(values, i):
    """Entry i, or the only one."""
    return values[i if values.size > 1 else 0]


@compiled
def density_many(start, stop, y, A, B, alpha, order, out):
    """Columns start:stop of out (m, n) from 1-D inputs; inputs of length one are shared by all."""
    row, work = np.empty(15), np.empty(SCRATCH)
    for i in range(start, stop):
        density_point(pick(y, i), pick(A, i), pick(B, i), pick(alpha, i), order, work, row)
        for k in range(out.shape[0]):
            out[k, i] = row[k]


@compiled
def tail_point(u, A, B, alpha, order, work, out):
    """P(|Y| > u) for u >= 0, into out[0]; with order = 1 its derivatives in (u, A, B, alpha) into out[1:5]."""
    row = np.empty(15)
    if u == 0.0:
        out[0] = 1.0
        if order >= 1:
            out[1:5] = 0.0
            density_point(0.0, A, B, alpha, 0, work, row)
            out[1] = -2.0 * math.exp(row[0])
        return
    split, log_unit, y, A1, B1, theta, S, k, j0, j1 = contour_path(u, A, B, alpha, 1.0, 0.0, True)
    turn, turn_x = cmath.rect(1.0, theta), cmath.rect(1.0, 2.0 * alpha * theta)
    log_S = math.log(S)
    G = GB = Ga = 0.0
    for j in range(j0, j1 + 1):
        _, ell, x, g, e0, ex = contour_node(split, y, A1, B1, alpha, theta, turn, turn_x, S, log_S, k, j)
        g *= 2j / math.pi
        G += (g * e0).real
        if order >= 1:
            gx = g * ex * x
            GB -= gx.real
            Ga -= 2.0 * (gx * (ell - log_unit)).real
    scale = 1.0
    if split:
        scale = math.exp(min(math.log(B) - 2.0 * alpha * log_unit - LOG_KAPPA_MIN, 0.0))
        G *= scale
        if A1 > 0.0:
            G += math.erfc(0.5 * y / math.sqrt(A1))
    else:
        G += 1.0 - 2.0 * theta / math.pi  # the arc around the pole at r = 0
    out[0] = min(max(G, 0.0), 1.0)
    if order >= 1:
        density_point(u, A, B, alpha, 1, work, row)
        flow = 2.0 * math.exp(row[0])
        out[1] = -flow
        out[2] = -flow * row[1]
        out[3] = GB * scale / B
        out[4] = Ga * scale


@compiled
def tail_many(start, stop, u, A, B, alpha, order, out):
    """As density_many, for P(|Y| > u)."""
    row, work = np.empty(5), np.empty(SCRATCH)
    for i in range(start, stop):
        tail_point(pick(u, i), pick(A, i), pick(B, i), pick(alpha, i), order, work, row)
        for k in range(out.shape[0]):
            out[k, i] = row[k]


@compiled
def valid_step(y, A, B, alpha, dt):
    """Whether a step can be evaluated. Checked on the way: a pass of its own would cost more than a small batch."""
    return math.isfinite(y) and 0.0 <= A < math.inf and 0.0 < B < math.inf and 0.0 < alpha < 1.0 and dt > 0.0


@inlined
def chain_step(row, y, t):
    """From derivatives in |y|, A, B to those in b, D_o, D_f."""
    row[1] *= -t if y >= 0.0 else t
    row[2] *= t
    row[3] *= t
