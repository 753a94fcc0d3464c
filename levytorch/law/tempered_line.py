"""The law of one step on a line with tempered jumps: quadrature on a hyperbola, value and derivatives.

Jumps beyond 1 / lam are exponentially rare. With A = D_o dt, B = D_f dt, y = |displacement - b dt|,

    p(y) = 1/pi Re int exp(i y k - A k^2 - B ((k^2 + lam^2)^alpha - lam^(2 alpha))) dk

lam = 0 is the stable law. For lam > 0 the integrand is analytic but for the cuts from +-i lam outwards, so that the
line may be lifted to pass the imaginary axis at any 0 <= s < lam, and its ends may be turned upwards:

    k = i s + sigma (sinh(tau + i theta) - i sin(theta)),

a hyperbola, on which the trapezoid rule in tau converges exponentially: there is no end point and nothing is singular.

- s is the saddle, y = 2 A s + 2 alpha B s (lam^2 - s^2)^(alpha - 1), but keeps 2 / sqrt(y^2 + 4 A) from the branch
  point (y counted beyond 2 A lam), which costs a factor e^2 at most. exp(-y s + ...) is taken out, hence the relative
  accuracy far into the exponential tail.
- split, when B (k^2 + lam^2)^alpha < 0.1 where it matters: the Gaussian is taken out in closed form and the rest
  carries expm1(-B (k^2 + lam^2)^alpha); s is then y / 2A, as near to the branch point. Unsplit otherwise, relative to
  the value at i s: B lam^(2 alpha) may be a million.
- theta opens where waves outlive the decay of the integrand, sigma is the width of the saddle or the distance to the
  branch point. Small lam costs nodes (26 per decade), not digits; when lam times the width of the law is below 1e-14,
  the law is the stable one times exp(B lam^(2 alpha)).

The same nodes give all derivatives. Where lam -> 0, d log p / d lam ~ lam^(2 alpha - 1) diverges for alpha < 1/2: learn
lam^(2 alpha). Accuracy (300 points by mpmath, alpha in [0.05, 0.97], log p down to -165): log p within 1e-13.

The constants of the compiled kernels were chosen by measurement against four times as many nodes on other contours,
alpha in [0.05, 0.97], A = 1 or 0, B in [1e-9, 1e6], lam in [1e-6, 1e4]: log p within 1e-12.

Compiled density with first derivatives: first the contour of a sample, then its nodes in blocks; the terms of a block
are stored and then added, with elementary functions of our own, so that LLVM vectorises the first loop. The sum ends
with the first block whose last term is negligible.
"""

from __future__ import annotations

import math

import numpy as np

from levytorch.law.contour_kernels import DONE, SCRATCH, chain_step, compiled, density_point, pick, valid_step
from levytorch.law.vector_math import fast_angle, fast_exp, fast_exp_expm1, fast_log1p, fast_sincos, inlined

STEP = 0.09  # of the trapezoid rule
BLOCK = 16  # nodes that are added before the sums are looked at
N_NODES = 64 * BLOCK
KAPPA = 0.1  # size of B (k^2 + lam^2)^alpha below which the Gaussian is split off
CLEAR = 2.0  # the contour keeps CLEAR / sqrt(y^2 + 4 A) from the branch point, which costs a factor exp(CLEAR) at most
THETA = math.pi / 4.5  # angle of the asymptotes in the tail
TURN_GAUSS = 24.0  # they open when y^2 passes 24 A, or
TURN_JUMP = 100.0  # (y r)^2 passes 100 with r where the jump part has ended,
TURN_SADDLE = 4.0  # and close again when the branch point is sqrt(4) widths of the saddle away
CORE = 2.0  # weight of the jump part's own, almost Gaussian, core when 2 alpha > 1
WIDTH = 1.2  # scale of the hyperbola in units of the saddle's width
LOG_LIMIT = -32.0  # log(lam * width of the law) below which tempering is a factor exp(B lam^(2 alpha)) and no more
DECAY = 1e-19  # terms below this part of the largest are the end of the sum

TAU = STEP * np.arange(N_NODES)
SINH, COSH = np.sinh(TAU), np.cosh(TAU)
COSH_1 = 2.0 * np.sinh(0.5 * TAU) ** 2  # cosh - 1
WEIGHT = np.full(N_NODES, STEP / math.pi)
WEIGHT[0] *= 0.5

# where the stable law's derivatives stand among those of the tempered one: (y, A, B, alpha, lam), upper triangle
STABLE_ROWS = np.array([0, 1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 15, 16, 18])


@compiled
def is_limit(y, A, B, alpha, lam):
    """Whether lam is so small that the law is the stable one times exp(B lam^(2 alpha))."""
    width = max(y, 2.0 * math.sqrt(A))
    log_width = max(math.log(width) if width > 0.0 else -1e300, math.log(B) / (2.0 * alpha))
    return lam == 0.0 or math.log(lam) + log_width < LOG_LIMIT


@compiled
def _saddle(y, A, B, alpha, lam, nearest):
    """Distance d = lam - s of the saddle from the branch point, y = 2 A s + 2 alpha B s (lam^2 - s^2)^(alpha - 1).

    At least `nearest`. Newton's method from beyond the saddle, where it cannot overshoot (the right side is convex in
    s), until the saddle is a small part of its own width away.
    """
    flat = y / (2.0 * A + 2.0 * alpha * B * lam ** (2.0 * alpha - 2.0))  # the saddle lies below this
    d = max(nearest, lam - flat) if flat < lam else nearest
    for _ in range(200):
        s, u = lam - d, d * (2.0 * lam - d)
        pull = 2.0 * alpha * B * u ** (alpha - 1.0)
        excess = 2.0 * A * s + pull * s - y
        curvature = 2.0 * A + pull * (1.0 + 2.0 * (1.0 - alpha) * s * s / u)
        # below zero the saddle is nearer to the branch point than allowed
        if excess < 0.0 or excess * excess <= 1e-3 * curvature or d >= lam:
            break
        d = min(d + excess / curvature, lam)
    return d


@compiled
def jump_end(A, B, alpha, lam):
    """r where the integrand has ended."""
    log_r = math.log(37.0 / B + lam ** (2.0 * alpha)) / (2.0 * alpha)
    if A > 0.0:
        log_r = min(log_r, 0.5 * math.log(37.0 / A))
    return math.exp(min(log_r, 300.0))


@compiled
def tempered_path(y, A, B, alpha, lam, floor):
    """The contour k = i s + sigma (sinh(tau + i theta) - i sin(theta)) of one sample.

    Returns (split, s, d, theta, sigma), d = lam - s. With `floor` the contour also keeps away from k = 0, where tail
    masses have a pole and the wave of the plane a logarithm.
    """
    beyond = max(y - 2.0 * A * lam, 0.0)
    size = math.hypot(beyond, 2.0 * math.sqrt(A))
    nearest = min(CLEAR / size, lam) if size > 0.0 else lam
    d = nearest
    if A > 0.0 and y < 2.0 * A * (lam - nearest):
        d = lam - y / (2.0 * A)
    y1 = y - 2.0 * A * (lam - d)
    size = math.hypot(y1, 2.0 * math.sqrt(A))
    split, kappa = False, math.inf
    if size > 0.0:
        kappa = B * ((d + 1.0 / size) * (2.0 * lam - d + 1.0 / size)) ** alpha
        split = kappa < KAPPA
    curvature = 2.0 * A
    if not split:
        d = _saddle(y, A, B, alpha, lam, nearest)
        s, u = lam - d, d * (2.0 * lam - d)
        y1 = y - 2.0 * A * s
        curvature += 2.0 * alpha * B * u ** (alpha - 1.0) * (1.0 + 2.0 * (1.0 - alpha) * s * s / u)
    if floor:
        high = min(0.5 * lam, 1.0 / math.sqrt(curvature)) if curvature > 0.0 else 0.5 * lam
        if lam - d < high:
            d = lam - high
            y1 = y - 2.0 * A * high
    s = lam - d
    if y1 <= 0.0:
        theta = 0.0
    elif split:
        core = CORE * (2.0 * alpha - 1.0) * (kappa ** (1.0 / alpha)) * y1 * y1 if alpha > 0.5 else 0.0
        theta = THETA * y1 * y1 / (y1 * y1 + TURN_GAUSS * A + core)
    else:
        turns = y1 * jump_end(A, B, alpha, lam)
        turns = turns * turns
        theta = THETA * turns / (turns + TURN_JUMP) if turns < 1e300 else THETA
        theta /= 1.0 + d * d * curvature / TURN_SADDLE
    sigma = min(d, WIDTH / math.sqrt(curvature)) if curvature > 0.0 else d
    if floor:
        sigma = min(sigma, s)
    return split, s, d, theta, sigma


@inlined
def _line_node(j, ct, st, sigma, s, inverse_u0):
    """Real and imaginary parts at node j: r, dr / dtau, q = k^2 + s^2, w = q / u0, log(1 + w)."""
    rr, ri = sigma * SINH[j] * ct, sigma * COSH_1[j] * st
    dr, di = sigma * COSH[j] * ct, sigma * SINH[j] * st
    qr, qi = rr * rr - ri * ri - 2.0 * s * ri, 2.0 * rr * (ri + s)
    wr, wi = qr * inverse_u0, qi * inverse_u0
    lr = 0.5 * fast_log1p(2.0 * wr + wr * wr + wi * wi)
    return rr, ri, dr, di, qr, qi, wr, wi, lr, fast_angle(wi, 1.0 + wr)


@inlined
def _add_block(work, sums, sigma, largest):
    """The largest term so far, and whether the sums have ended."""
    for k in range(6):
        for i in range(BLOCK):
            sums[k] += work[k, i]
    last = abs(work[0, BLOCK - 1]) + abs(work[0, BLOCK - 2]) + abs(work[2, BLOCK - 1]) * sigma * sigma
    largest = max(largest, abs(work[0, 0]), abs(work[0, BLOCK // 2]))
    return largest, last < DECAY * largest


@compiled
def _split_sums(y1, A, b0, alpha, s, u0, theta, sigma, work, sums):
    """Sums of g expm1(-x), i r g expm1(-x), -(k^2 + s^2) g expm1(-x), and of v, v log(u / u0), v u0 / u with
    v = g exp(-x) (u / u0)^alpha; g = exp(i y1 r - A r^2) dr / pi, x = b0 (u / u0)^alpha."""
    ct, st = math.cos(theta), math.sin(theta)
    inverse_u0, largest = 1.0 / u0, 0.0
    sums[:] = 0.0
    for first in range(0, N_NODES, BLOCK):
        for i in range(BLOCK):
            j = first + i
            rr, ri, dr, di, qr, qi, wr, wi, lr, li = _line_node(j, ct, st, sigma, s, inverse_u0)
            size = fast_exp(alpha * lr)
            sp, cp = fast_sincos(alpha * li)
            pr, pi = size * cp, size * sp
            xr, xi = b0 * pr, b0 * pi
            e, m = fast_exp_expm1(-xr)
            sh, ch = fast_sincos(0.5 * xi)
            v = 2.0 * sh * sh
            er, ei = e * (1.0 - v), -2.0 * e * sh * ch
            e0 = m * (1.0 - v) - v
            mag = fast_exp(-y1 * ri - A * (rr * rr - ri * ri)) * WEIGHT[j]
            sp, cp = fast_sincos(y1 * rr - 2.0 * A * rr * ri)
            gr, gi = mag * (cp * dr - sp * di), mag * (cp * di + sp * dr)
            fr, fi = gr * e0 - gi * ei, gr * ei + gi * e0
            hr, hi = gr * er - gi * ei, gr * ei + gi * er
            vr, vi = hr * pr - hi * pi, hr * pi + hi * pr
            inverse = 1.0 / ((1.0 + wr) * (1.0 + wr) + wi * wi)
            work[0, i] = fr
            work[1, i] = -(fr * ri + fi * rr)
            work[2, i] = fi * qi - fr * qr
            work[3, i] = vr
            work[4, i] = vr * lr - vi * li
            work[5, i] = (vr * (1.0 + wr) + vi * wi) * inverse
        largest, ended = _add_block(work, sums, sigma, largest)
        if ended:
            break


@compiled
def _unsplit_sums(y1, A, b0, alpha, s, u0, theta, sigma, work, sums):
    """Sums of f, i r f, -(k^2 + s^2) f, e f, (1 + e) log(u / u0) f and (e - w) / (1 + w) f, where 1 + w = u / u0,
    e = (1 + w)^alpha - 1 and f = exp(i y1 r - A r^2 - b0 e) dr / pi."""
    ct, st = math.cos(theta), math.sin(theta)
    inverse_u0, largest = 1.0 / u0, 0.0
    sums[:] = 0.0
    for first in range(0, N_NODES, BLOCK):
        for i in range(BLOCK):
            j = first + i
            rr, ri, dr, di, qr, qi, wr, wi, lr, li = _line_node(j, ct, st, sigma, s, inverse_u0)
            size, m = fast_exp_expm1(alpha * lr)
            sh, ch = fast_sincos(0.5 * alpha * li)
            v = 2.0 * sh * sh
            er, ei = m * (1.0 - v) - v, 2.0 * size * sh * ch
            mag = fast_exp(-y1 * ri - A * (rr * rr - ri * ri) - b0 * er) * WEIGHT[j]
            sp, cp = fast_sincos(y1 * rr - 2.0 * A * rr * ri - b0 * ei)
            fr, fi = mag * (cp * dr - sp * di), mag * (cp * di + sp * dr)
            inverse = 1.0 / ((1.0 + wr) * (1.0 + wr) + wi * wi)
            tr, ti = er - wr, ei - wi
            nr, ni = (tr * (1.0 + wr) + ti * wi) * inverse, (ti * (1.0 + wr) - tr * wi) * inverse
            br, bi = (1.0 + er) * lr - ei * li, (1.0 + er) * li + ei * lr
            work[0, i] = fr
            work[1, i] = -(fr * ri + fi * rr)
            work[2, i] = fi * qi - fr * qr
            work[3, i] = fr * er - fi * ei
            work[4, i] = fr * br - fi * bi
            work[5, i] = fr * nr - fi * ni
        largest, ended = _add_block(work, sums, sigma, largest)
        if ended:
            break


@compiled
def tempered_line(y, A, B, alpha, lam, work, out):
    """log p and its derivatives in (y, A, B, alpha, lam) at y >= 0 into out[0:6]; work: scratch."""
    eta = lam ** (2.0 * alpha)
    if is_limit(y, A, B, alpha, lam):
        density_point(y, A, B, alpha, 1, work, out)
        if lam > 0.0:
            out[0] += B * eta
            out[3] += eta
            out[4] += 2.0 * B * eta * math.log(lam)
        out[5] = tempering_slope_of_limit(B, alpha, lam)
        return
    split, s, d, theta, sigma = tempered_path(y, A, B, alpha, lam, False)
    u0, y1 = d * (2.0 * lam - d), y - 2.0 * A * s
    u0a, log_u0 = u0**alpha, math.log(u0)
    b0 = B * u0a
    sums = work[0, BLOCK : BLOCK + 6]  # beside the terms of a block
    if split:
        _split_sums(y1, A, b0, alpha, s, u0, theta, sigma, work, sums)
        P, Py, PA = sums[0], sums[1], sums[2]
        if A > 0.0:
            G = math.exp(-0.25 * y1 * y1 / A) / math.sqrt(4.0 * math.pi * A)
            P += G
            Py -= G * 0.5 * y1 / A
            PA += G * (0.25 * y1 * y1 / (A * A) + y1 * s / A - 0.5 / A)
        iP = 1.0 / P
        out[0] = math.log(P) + B * eta - y * s + A * s * s
        out[3] = eta - u0a * sums[3] * iP
        out[4] = 2.0 * B * eta * math.log(lam) - b0 * (sums[4] + log_u0 * sums[3]) * iP
        out[5] = 2.0 * alpha * B * (eta / lam - lam * u0a / u0 * sums[5] * iP)
    else:
        _unsplit_sums(y1, A, b0, alpha, s, u0, theta, sigma, work, sums)
        P, Py, PA = sums[0], sums[1], sums[2]
        iP = 1.0 / P
        ratio = s / lam
        g = math.log1p(-ratio * ratio) if ratio < 0.5 else math.log(u0 / (lam * lam))
        e = math.expm1(alpha * g)  # u0^alpha = eta (1 + e)
        out[0] = math.log(P) - B * eta * e - y * s + A * s * s
        out[3] = -eta * e - u0a * sums[3] * iP
        const = eta * (2.0 * e * math.log(lam) + (1.0 + e) * g)
        out[4] = -B * const - b0 * (sums[4] + log_u0 * sums[3]) * iP
        out[5] = -2.0 * alpha * B * (eta / lam * math.expm1((alpha - 1.0) * g) + lam * u0a / u0 * sums[5] * iP)
    out[1] = Py * iP - s
    out[2] = PA * iP + s * s


@compiled
def tempering_slope_of_limit(B, alpha, lam):
    """d/dlam of B lam^(2 alpha); at lam = 0 and alpha < 1/2, where it is infinite, the largest number."""
    if lam > 0.0:
        return 2.0 * alpha * B * lam ** (2.0 * alpha - 1.0)
    if alpha == 0.5:
        return B
    return 0.0 if alpha > 0.5 else 1e300


@compiled
def tempered_step(start, stop, x, b, D_o, D_f, alpha, dt, lam, out):
    """As step_kernels.contour_step with tempering: rows log p, d/db, d/dD_o, d/dD_f, d/dalpha, d/dlam."""
    row, work = np.empty(15), np.empty(SCRATCH)
    for i in range(start, stop):
        t, rate = pick(dt, i), pick(lam, i)
        y, A, B = pick(x, i) - pick(b, i) * t, pick(D_o, i) * t, pick(D_f, i) * t
        if not (valid_step(y, A, B, pick(alpha, i), t) and 0.0 <= rate < math.inf):
            return i
        tempered_line(abs(y), A, B, pick(alpha, i), rate, work, row)
        chain_step(row, y, t)
        for k in range(len(out)):
            out[k][i] = row[k]
    return DONE
