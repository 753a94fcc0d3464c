"""Compiled second derivatives of the tempered law on a line, and its tail mass.

One node at a time in complex arithmetic; `tempered_line.py` has the mathematics, the density and its first derivatives,
and is faster.
"""

from __future__ import annotations

import cmath
import math

import numpy as np

from levytorch.law.contour_kernels import (
    SCRATCH,
    compiled,
    complex_expm1,
    density_point,
    pick,
    tail_point,
)
from levytorch.law.tempered_line import (
    COSH,
    COSH_1,
    DECAY,
    N_NODES,
    SINH,
    STABLE_ROWS,
    WEIGHT,
    is_limit,
    tempered_line,
    tempered_path,
    tempering_slope_of_limit,
)
from levytorch.law.vector_math import inlined


@compiled
def power_parts(u, log_u, alpha, lam, at):
    """u^alpha and its derivatives in alpha, lam, then alpha alpha, alpha lam, lam lam, where du/dlam = 2 lam."""
    ua = cmath.exp(alpha * log_u)
    ub = ua / u
    at[0] = ua
    at[1] = ua * log_u
    at[2] = 2.0 * alpha * lam * ub
    at[3] = ua * log_u * log_u
    at[4] = 2.0 * lam * ub * (1.0 + alpha * log_u)
    at[5] = 2.0 * alpha * ub + 4.0 * alpha * (alpha - 1.0) * lam * lam * ub / u


@compiled
def power_offset(eta, base, alpha, s, lam):
    """lam^(2 alpha) - (lam^2 - s^2)^alpha of the two powers, without cancellation where s is small."""
    if s < 0.5 * lam:
        return -eta * math.expm1(alpha * math.log1p(-((s / lam) ** 2)))
    return eta - base


@compiled
def complex_log1p(w):
    size = 0.5 * math.log1p(2.0 * w.real + w.real * w.real + w.imag * w.imag)
    return complex(size, math.atan2(w.imag, 1.0 + w.real))


@inlined
def tempered_node(split, s, u0, y1, A, b0, alpha, ct, st, sigma, j):
    """Node j: r, k = r + i s, q = k^2 + s^2, log(u / u0) and m = (u / u0)^alpha - 1 of u = k^2 + lam^2, and wave e0,
    the integrand, with ex, what e0 is without its -1: on the split path e0 = expm1(-x), otherwise both are 1.
    """
    r = complex(sigma * SINH[j] * ct, sigma * COSH_1[j] * st)
    dr = complex(sigma * COSH[j] * ct, sigma * SINH[j] * st) * WEIGHT[j]
    q = r * r + 2j * s * r
    log_ratio = complex_log1p(q / u0)
    m = complex_expm1(alpha * log_ratio)
    exponent = 1j * y1 * r - A * r * r
    e0 = ex = 1.0 + 0.0j
    if split:
        e0 = complex_expm1(-b0 * (1.0 + m))
        ex = e0 + 1.0
    else:
        exponent -= b0 * m
    return r, r + 1j * s, q, log_ratio, m, cmath.exp(exponent) * dr, e0, ex


@compiled
def _limit(y, A, B, alpha, lam, work, out):
    """The stable law times exp(B lam^(2 alpha))."""
    row = np.empty(15)
    density_point(y, A, B, alpha, 2, work, row)
    eta = lam ** (2.0 * alpha)
    out[0] = row[0] + B * eta
    for i in range(1, 21):
        out[i] = 0.0
    for i in range(1, 15):
        out[STABLE_ROWS[i]] = row[i]
    out[5] = tempering_slope_of_limit(B, alpha, lam)
    if lam == 0.0:
        return
    log = 2.0 * math.log(lam)
    out[3] += eta
    out[4] += B * eta * log
    slope = 2.0 * alpha * eta / lam
    out[16] += eta * log
    out[17] += slope
    out[18] += B * eta * log * log
    out[19] += B * (slope * log + 2.0 * eta / lam)
    out[20] += B * slope * (2.0 * alpha - 1.0) / lam


@compiled
def tempered_point(y, A, B, alpha, lam, order, work, out):
    """log p and its derivatives at y >= 0, into out.

    out[0] = log p; out[1:6] = first derivatives in (y, A, B, alpha, lam) when order >= 1; out[6:21] = second
    derivatives, the upper triangle by rows, when order = 2. work: scratch.
    """
    if order < 2:
        tempered_line(y, A, B, alpha, lam, work, out)
        return
    if is_limit(y, A, B, alpha, lam):
        _limit(y, A, B, alpha, lam, work, out)
        return
    split, s, d, theta, sigma = tempered_path(y, A, B, alpha, lam, False)
    u0, y1 = d * (2.0 * lam - d), y - 2.0 * A * s
    log_u0 = math.log(u0)
    at, base, eta_parts = np.empty(6, np.complex128), np.empty(6, np.complex128), np.empty(6, np.complex128)
    power_parts(complex(u0, 0.0), complex(log_u0, 0.0), alpha, lam, base)
    power_parts(complex(lam * lam, 0.0), complex(2.0 * math.log(lam), 0.0), alpha, lam, eta_parts)
    b0 = B * base[0].real
    ct, st = math.cos(theta), math.sin(theta)
    P = PY = 0.0
    first, second, mixed = np.zeros(4), np.zeros((4, 4)), np.zeros(4)  # of (A, B, alpha, lam); mixed with y
    g, gg = np.zeros(4, np.complex128), np.zeros((4, 4), np.complex128)
    largest, quiet = 0.0, 0
    for j in range(N_NODES):
        r, _, q, log_ratio, m, k0, e0, ex = tempered_node(split, s, u0, y1, A, b0, alpha, ct, st, sigma, j)
        k1 = 1j * r * k0
        f = k0 * e0
        P += f.real
        PY += (k1 * e0).real
        size = (abs(k0) * abs(e0) + abs(k1) * abs(e0) * sigma) * (1.0 + abs(r) / sigma)
        largest = max(largest, size)
        quiet = quiet + 1 if size < DECAY * largest else 0
        if quiet == 4:
            break
        power_parts(u0 + q, log_u0 + log_ratio, alpha, lam, at)
        if not split:
            at[0] = base[0] * m
            for i in range(1, 6):
                at[i] -= base[i]
        g[0] = -q
        g[1] = -at[0]
        g[2] = -B * at[1]
        g[3] = -B * at[2]
        first[0] += (g[0] * f).real
        for i in range(1, 4):
            first[i] += (g[i] * k0 * ex).real
        gg[1, 2], gg[1, 3] = -at[1], -at[2]
        gg[2, 2], gg[2, 3], gg[3, 3] = -B * at[3], -B * at[4], -B * at[5]
        mixed[0] += (g[0] * k1 * e0).real
        second[0, 0] += (g[0] * g[0] * f).real
        for i in range(1, 4):
            mixed[i] += (g[i] * k1 * ex).real
            second[0, i] += (g[0] * g[i] * k0 * ex).real
            for n in range(i, 4):
                second[i, n] += ((g[i] * g[n] + gg[i, n]) * k0 * ex).real
    if split and A > 0.0:
        G = math.exp(-0.25 * y1 * y1 / A - 0.5 * math.log(4.0 * math.pi * A))
        gA = 0.25 * y1 * y1 / (A * A) + y1 * s / A - 0.5 / A
        P += G
        gy = -0.5 * y1 / A
        PY += G * gy
        first[0] += G * gA
        second[0, 0] += G * (gA * gA - 0.5 * y * y / (A * A * A) + 0.5 / (A * A))
        mixed[0] += G * (gy * gA + 0.5 * y / (A * A))
    # the factor exp(C), C = -y s + A s^2 - B O, taken out of the sums
    offset = np.empty(6)
    for i in range(6):
        offset[i] = -eta_parts[i].real if split else (base[i] - eta_parts[i]).real
    if not split:
        offset[0] = -power_offset(eta_parts[0].real, base[0].real, alpha, s, lam)
    out[0] = math.log(P) - y * s + A * s * s - B * offset[0]
    iP = 1.0 / P
    for i in range(4):
        first[i] *= iP
    slope = PY * iP
    out[1] = slope - s
    out[2] = first[0] + s * s
    out[3] = first[1] - offset[0]
    out[4] = first[2] - B * offset[1]
    out[5] = first[3] - B * offset[2]
    out[6] = out[2] - out[1] * out[1]
    at_row = 11
    for i in range(4):
        out[7 + i] = mixed[i] * iP - slope * first[i]
        for n in range(i, 4):
            out[at_row] = second[i, n] * iP - first[i] * first[n]
            at_row += 1
    out[16] -= offset[1]
    out[17] -= offset[2]
    out[18] -= B * offset[3]
    out[19] -= B * offset[4]
    out[20] -= B * offset[5]


@compiled
def density_many(start, stop, y, A, B, alpha, lam, order, out):
    """Columns start:stop of out (m, n) from 1-D inputs; inputs of length one are shared by all."""
    row, work = np.empty(21), np.empty(SCRATCH)
    for i in range(start, stop):
        tempered_point(pick(y, i), pick(A, i), pick(B, i), pick(alpha, i), pick(lam, i), order, work, row)
        for k in range(out.shape[0]):
            out[k, i] = row[k]


@compiled
def tempered_tail_point(u, A, B, alpha, lam, order, work, row, out):
    """P(|Y| > u) for u >= 0 into out[0]; with order = 1 its derivatives in (u, A, B, alpha, lam) into out[1:6]."""
    out[1:6] = 0.0
    if u == 0.0 or is_limit(u, A, B, alpha, lam):
        # lam is beyond what u resolves: what it takes from the far tail is lam^(2 alpha) of the mass there
        tail_point(u, A, B, alpha, order, work, out)
        if u == 0.0 and order >= 1:
            tempered_point(0.0, A, B, alpha, lam, 0, work, row)
            out[1] = -2.0 * math.exp(row[0])
        return
    split, s, d, theta, sigma = tempered_path(u, A, B, alpha, lam, True)
    u0, y1 = d * (2.0 * lam - d), u - 2.0 * A * s
    log_u0 = math.log(u0)
    at, base, eta = np.empty(6, np.complex128), np.empty(6, np.complex128), np.empty(6, np.complex128)
    power_parts(complex(u0, 0.0), complex(log_u0, 0.0), alpha, lam, base)
    power_parts(complex(lam * lam, 0.0), complex(2.0 * math.log(lam), 0.0), alpha, lam, eta)
    b0 = B * base[0].real
    ct, st = math.cos(theta), math.sin(theta)
    G, slopes = 0.0, np.zeros(3)
    largest, quiet = 0.0, 0
    for j in range(N_NODES):
        _, k, q, log_ratio, _, wave, e0, ex = tempered_node(split, s, u0, y1, A, b0, alpha, ct, st, sigma, j)
        wave *= 2j / k
        G += (wave * e0).real
        size = abs(wave) * abs(e0)
        largest = max(largest, size)
        quiet = quiet + 1 if size < DECAY * largest else 0
        if quiet == 4:
            break
        if order >= 1:
            power_parts(u0 + q, log_u0 + log_ratio, alpha, lam, at)
            for i in range(3):
                # relative to lam^(2 alpha), so that only the difference is integrated where the two cancel
                slopes[i] -= ((at[i] - eta[i]) * wave * ex).real
    offset = eta[0].real if split else power_offset(eta[0].real, base[0].real, alpha, s, lam)
    scale = math.exp(-u * s + A * s * s + B * offset)
    G *= scale
    if split and A > 0.0:
        G += math.erfc(0.5 * u / math.sqrt(A)) * math.exp(B * eta[0].real)
    out[0] = min(max(G, 0.0), 1.0)
    if order >= 1:
        tempered_point(u, A, B, alpha, lam, 1, work, row)
        flow = 2.0 * math.exp(row[0])
        out[1] = -flow
        out[2] = -flow * row[1]
        out[3] = slopes[0] * scale
        out[4] = slopes[1] * scale * B
        out[5] = slopes[2] * scale * B


@compiled
def tail_many(start, stop, u, A, B, alpha, lam, order, out):
    """As density_many, for P(|Y| > u)."""
    row, answer, work = np.empty(21), np.empty(6), np.empty(SCRATCH)
    for i in range(start, stop):
        at = pick(u, i), pick(A, i), pick(B, i), pick(alpha, i), pick(lam, i)
        tempered_tail_point(*at, order, work, row, answer)
        for k in range(out.shape[0]):
            out[k, i] = answer[k]
