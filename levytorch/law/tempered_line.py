"""Compiled density of the tempered law on a line, with first derivatives; `tempered.py` holds the mathematics.

The nodes are taken in blocks; the terms of a block are stored and then added, with elementary functions of our own, so
that LLVM vectorises the first loop. The sum ends with the first block whose last term is negligible.
"""

from __future__ import annotations

import math

import numpy as np

from levytorch.law.kernels import density_point
from levytorch.law.paths import N_NODES as N_STABLE
from levytorch.law.paths import compiled
from levytorch.law.step_kernels import DONE
from levytorch.law.tempered_nodes import BLOCK, COSH, COSH_1, DECAY, N_NODES, SINH, WEIGHT
from levytorch.law.tempered_paths import is_limit, tempered_path
from levytorch.law.vector_math import fast_angle, fast_exp, fast_exp_expm1, fast_log1p, fast_sincos


@compiled
def _split_sums(y1, A, b0, alpha, s, u0, theta, sigma, work, sums):
    """Sums of g expm1(-x), i r g expm1(-x), -(k^2 + s^2) g expm1(-x), and of v, v log(u / u0), v u0 / u with
    v = g exp(-x) (u / u0)^alpha; g = exp(i y1 r - A r^2) dr / pi, x = b0 (u / u0)^alpha."""
    ct, st = math.cos(theta), math.sin(theta)
    i0 = 1.0 / u0
    largest = 0.0
    sums[:] = 0.0
    for first in range(0, N_NODES, BLOCK):
        for i in range(BLOCK):
            j = first + i
            rr, ri = sigma * SINH[j] * ct, sigma * COSH_1[j] * st
            dr, di = sigma * COSH[j] * ct, sigma * SINH[j] * st
            qr, qi = rr * rr - ri * ri - 2.0 * s * ri, 2.0 * rr * (ri + s)  # k^2 + s^2
            wr, wi = qr * i0, qi * i0
            lr = 0.5 * fast_log1p(2.0 * wr + wr * wr + wi * wi)
            li = fast_angle(wi, 1.0 + wr)
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
        for k in range(6):
            for i in range(BLOCK):
                sums[k] += work[k, i]
        last = abs(work[0, BLOCK - 1]) + abs(work[0, BLOCK - 2]) + abs(work[2, BLOCK - 1]) * sigma * sigma
        largest = max(largest, abs(work[0, 0]), abs(work[0, BLOCK // 2]))
        if last < DECAY * largest:
            break


@compiled
def _unsplit_sums(y1, A, b0, alpha, s, u0, theta, sigma, work, sums):
    """Sums of f, i r f, -(k^2 + s^2) f, e f, (1 + e) log(u / u0) f and (e - w) / (1 + w) f, where 1 + w = u / u0,
    e = (1 + w)^alpha - 1 and f = exp(i y1 r - A r^2 - b0 e) dr / pi."""
    ct, st = math.cos(theta), math.sin(theta)
    i0 = 1.0 / u0
    largest = 0.0
    sums[:] = 0.0
    for first in range(0, N_NODES, BLOCK):
        for i in range(BLOCK):
            j = first + i
            rr, ri = sigma * SINH[j] * ct, sigma * COSH_1[j] * st
            dr, di = sigma * COSH[j] * ct, sigma * SINH[j] * st
            qr, qi = rr * rr - ri * ri - 2.0 * s * ri, 2.0 * rr * (ri + s)
            wr, wi = qr * i0, qi * i0
            lr = 0.5 * fast_log1p(2.0 * wr + wr * wr + wi * wi)
            li = fast_angle(wi, 1.0 + wr)
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
        for k in range(6):
            for i in range(BLOCK):
                sums[k] += work[k, i]
        last = abs(work[0, BLOCK - 1]) + abs(work[0, BLOCK - 2]) + abs(work[2, BLOCK - 1]) * sigma * sigma
        largest = max(largest, abs(work[0, 0]), abs(work[0, BLOCK // 2]))
        if last < DECAY * largest:
            break


@compiled
def tempered_line(y, A, B, alpha, lam, work, sums, stable, out):
    """log p and its derivatives in (y, A, B, alpha, lam) at y >= 0 into out[0:6].

    work: (6, BLOCK); sums: (6,); stable: (5, N_STABLE), scratch of the limit.
    """
    eta = lam ** (2.0 * alpha)
    if is_limit(y, A, B, alpha, lam):
        density_point(y, A, B, alpha, 1, 1, stable, out)
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
    """As step_kernels.contour_step with tempering: rows log p[, d/db, d/dD_o, d/dD_f, d/dalpha, d/dlam]."""
    row, stable = np.empty(15), np.empty((5, N_STABLE))
    work, sums = np.empty((6, BLOCK)), np.empty(6)
    for i in range(start, stop):
        t = dt[i if dt.size > 1 else 0]
        y = x[i if x.size > 1 else 0] - b[i if b.size > 1 else 0] * t
        A = D_o[i if D_o.size > 1 else 0] * t
        B = D_f[i if D_f.size > 1 else 0] * t
        index = alpha[i if alpha.size > 1 else 0]
        rate = lam[i if lam.size > 1 else 0]
        good = math.isfinite(y) and 0.0 <= A < math.inf and 0.0 < B < math.inf and 0.0 < index < 1.0 and t > 0.0
        if not (good and 0.0 <= rate < math.inf):
            return i
        tempered_line(abs(y), A, B, index, rate, work, sums, stable, row)
        row[1] *= -t if y >= 0.0 else t
        row[2] *= t
        row[3] *= t
        for k in range(len(out)):
            out[k][i] = row[k]
    return DONE
