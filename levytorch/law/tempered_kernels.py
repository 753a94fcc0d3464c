"""Compiled density of the tempered law in d = 1, 2, 3 with second derivatives, and its tail mass.

`tempered.py` holds the mathematics. One node at a time in complex arithmetic; `tempered_line.py` is faster where it
applies: d = 1, first derivatives.
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
    flow_out,
    gaussian_tail,
    hankel_scaled,
    pick,
    tail_point,
)
from levytorch.law.tempered import COSH, COSH_1, DECAY, N_NODES, SINH, SMALL, STABLE_ROWS, WEIGHT
from levytorch.law.tempered_line import is_limit, jump_end, tempered_line, tempered_path, tempering_slope_of_limit
from levytorch.law.vector_math import inlined
from levytorch.law.waves import EULER


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
def _finite_part(z):
    """(H_1(z) + 2 i / (pi z)) / z by its series, for small |z|."""
    q = -0.25 * z * z
    term = 1.0 + 0.0j
    j1, y1 = term, (1.0 - 2.0 * EULER) * term
    harmonic = 0.0
    for k in range(1, 40):
        term = term * q / (k * (k + 1.0))
        harmonic += 1.0 / k
        j1 += term
        y1 += term * (2.0 * harmonic + 1.0 / (k + 1.0) - 2.0 * EULER)
        if abs(term) < 1e-19:
            break
    log_half = cmath.log(0.5 * z)
    return 0.5 * j1 + 1j * ((1.0 / math.pi) * log_half * j1 - (0.5 / math.pi) * y1)


@compiled
def _waves(dim, k, y, r, small):
    """Kernels of p_d and of p_{d+2} without exp(i y k) (d = 1: of p and of dp/dy, and i r for the latter)."""
    if dim == 1:
        one = 1.0 + 0.0j
        return one, 1j * r
    z = y * k
    if dim == 2:
        h0, h1 = hankel_scaled(z)
        first = 0.5 * k * h0
        if small:  # without the pole of H_1, whose integral is imaginary
            if abs(z) < 2.0:
                rest = _finite_part(z) * cmath.exp(-1j * z)
            else:
                rest = h1 / z + 2j / (math.pi * z * z) * cmath.exp(-1j * z)
            return first, k * k * k * rest / (4.0 * math.pi)
        return first, k * k * k * h1 / (4.0 * math.pi * z)
    if small:  # the real kernels, on the real line
        x = z.real
        back = complex(math.cos(x), -math.sin(x))
        if abs(x) < 0.5:
            q = x * x
            c0 = 1.0 - q / 6.0 * (1.0 - q / 20.0 * (1.0 - q / 42.0 * (1.0 - q / 72.0 * (1.0 - q / 110.0))))
            c1 = 1.0 - q / 10.0 * (1.0 - q / 28.0 * (1.0 - q / 54.0 * (1.0 - q / 88.0 * (1.0 - q / 130.0))))
            c1 /= 3.0
        else:
            c0 = math.sin(x) / x
            c1 = (c0 - math.cos(x)) / (x * x)
        kk = k.real * k.real
        return back * (0.5 / math.pi * kk * c0), back * (0.25 / (math.pi * math.pi) * kk * kk * c1)
    first = -1j * k / (2.0 * math.pi * y)
    return first, first * (1.0 - 1j * z) / (2.0 * math.pi * y * y)


@compiled
def _limit(y, A, B, alpha, lam, dim, order, work, out):
    """The stable law times exp(B lam^(2 alpha))."""
    row = np.empty(15)
    density_point(y, A, B, alpha, dim, order, work, row)
    eta = lam ** (2.0 * alpha)
    out[0] = row[0] + B * eta
    if order == 0:
        return
    for i in range(1, 6 if order == 1 else 21):
        out[i] = 0.0
    for i in range(1, 5 if order == 1 else 15):
        out[STABLE_ROWS[i]] = row[i]
    out[5] = tempering_slope_of_limit(B, alpha, lam)
    if lam == 0.0:
        return
    log = 2.0 * math.log(lam)
    out[3] += eta
    out[4] += B * eta * log
    if order == 2:
        slope = 2.0 * alpha * eta / lam
        out[16] += eta * log
        out[17] += slope
        out[18] += B * eta * log * log
        out[19] += B * (slope * log + 2.0 * eta / lam)
        out[20] += B * slope * (2.0 * alpha - 1.0) / lam


@compiled
def tempered_point(y, A, B, alpha, lam, dim, order, work, out):
    """log p and its derivatives at radius y >= 0, into out.

    out[0] = log p; out[1:6] = first derivatives in (y, A, B, alpha, lam) when order >= 1; out[6:21] = second
    derivatives, the upper triangle by rows, when order = 2. work: scratch.
    """
    if dim == 1 and order < 2:
        tempered_line(y, A, B, alpha, lam, work, out)
        return
    if is_limit(y, A, B, alpha, lam):
        _limit(y, A, B, alpha, lam, dim, order, work, out)
        return
    small = dim > 1 and y * jump_end(A, B, alpha, lam) < SMALL
    if small and dim == 2:
        y = max(y, 1e-20 * math.exp(min(max(-math.log(jump_end(A, B, alpha, lam)), -300.0), 300.0)))
    # on the real line for the real kernels of d = 3, off k = 0 for the logarithm of d = 2
    split, s, d, theta, sigma = tempered_path(0.0 if small else y, A, B, alpha, lam, dim == 2)
    if small:
        theta = 0.0
        if dim == 3:
            s, d = 0.0, lam
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
        r, k, q, log_ratio, m, wave, e0, ex = tempered_node(split, s, u0, y1, A, b0, alpha, ct, st, sigma, j)
        k0, k1 = _waves(dim, k, y, r, small)
        k0 *= wave
        k1 *= wave
        f = k0 * e0
        P += f.real
        PY += (k1 * e0).real
        size = abs(k0) * abs(e0) + abs(k1) * abs(e0) * sigma
        if order == 2:
            size *= 1.0 + abs(r) / sigma
        largest = max(largest, size)
        quiet = quiet + 1 if size < DECAY * largest else 0
        if quiet == 4:
            break
        if order == 0:
            continue
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
        if order == 2:
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
        half = 0.5 * dim
        G = math.exp(-0.25 * y1 * y1 / A - half * math.log(4.0 * math.pi * A))
        gA = 0.25 * y1 * y1 / (A * A) + y1 * s / A - half / A
        P += G
        gy = -0.5 * y1 / A if dim == 1 else 1.0 / (4.0 * math.pi * A)
        PY += G * gy
        first[0] += G * gA
        second[0, 0] += G * (gA * gA - 0.5 * y * y / (A * A * A) + half / (A * A))
        mixed[0] += G * (gy * gA + 0.5 * y / (A * A) if dim == 1 else gy * (gA - 1.0 / A))
    # the factor exp(C), C = -y s + A s^2 - B O, taken out of the sums
    offset = np.empty(6)
    for i in range(6):
        offset[i] = -eta_parts[i].real if split else (base[i] - eta_parts[i]).real
    if not split:
        offset[0] = -power_offset(eta_parts[0].real, base[0].real, alpha, s, lam)
    out[0] = math.log(P) - y * s + A * s * s - B * offset[0]
    if order == 0:
        return
    iP = 1.0 / P
    for i in range(4):
        first[i] *= iP
    out[1] = PY * iP - s if dim == 1 else -2.0 * math.pi * y * PY * iP
    out[2] = first[0] + s * s
    out[3] = first[1] - offset[0]
    out[4] = first[2] - B * offset[1]
    out[5] = first[3] - B * offset[2]
    if order == 2:
        slope = PY * iP if dim == 1 else out[1]
        turn = 1.0 if dim == 1 else -2.0 * math.pi * y
        over_y = 0.0 if dim == 1 else -2.0 * math.pi * PY * iP
        out[6] = out[2] - (dim - 1.0) * over_y - out[1] * out[1]
        at_row = 11
        for i in range(4):
            out[7 + i] = turn * mixed[i] * iP - slope * first[i]
            for n in range(i, 4):
                out[at_row] = second[i, n] * iP - first[i] * first[n]
                at_row += 1
        out[16] -= offset[1]
        out[17] -= offset[2]
        out[18] -= B * offset[3]
        out[19] -= B * offset[4]
        out[20] -= B * offset[5]


@compiled
def density_many(start, stop, y, A, B, alpha, lam, dim, order, out):
    """Columns start:stop of out (m, n) from 1-D inputs; inputs of length one are shared by all."""
    row, work = np.empty(21), np.empty(SCRATCH)
    for i in range(start, stop):
        tempered_point(pick(y, i), pick(A, i), pick(B, i), pick(alpha, i), pick(lam, i), dim, order, work, row)
        for k in range(out.shape[0]):
            out[k, i] = row[k]


@compiled
def tempered_tail_point(u, A, B, alpha, lam, dim, order, work, row, out):
    """P(|Y| > u) for u >= 0 into out[0]; with order = 1 its derivatives in (u, A, B, alpha, lam) into out[1:6]."""
    out[1:6] = 0.0
    if u == 0.0 or is_limit(u, A, B, alpha, lam):
        # lam is beyond what u resolves: what it takes from the far tail is lam^(2 alpha) of the mass there
        tail_point(u, A, B, alpha, dim, order, work, out)
        if u == 0.0 and order >= 1 and dim == 1:
            tempered_point(0.0, A, B, alpha, lam, 1, 0, work, row)
            out[1] = -flow_out(u, row[0], dim)
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
        z = u * k
        if dim == 1:
            wave *= 2j / k
        elif dim == 2:
            wave *= -math.pi * u * hankel_scaled(z)[1]
        else:
            wave *= 2.0 * (1j + z) / k
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
        G += gaussian_tail(0.5 * u / math.sqrt(A), dim) * math.exp(B * eta[0].real)
    out[0] = min(max(G, 0.0), 1.0)
    if order >= 1:
        tempered_point(u, A, B, alpha, lam, dim, 1, work, row)
        flow = flow_out(u, row[0], dim)
        out[1] = -flow
        out[2] = -flow * row[1]
        out[3] = slopes[0] * scale
        out[4] = slopes[1] * scale * B
        out[5] = slopes[2] * scale * B


@compiled
def tail_many(start, stop, u, A, B, alpha, lam, dim, order, out):
    """As density_many, for P(|Y| > u)."""
    row, answer, work = np.empty(21), np.empty(6), np.empty(SCRATCH)
    for i in range(start, stop):
        at = pick(u, i), pick(A, i), pick(B, i), pick(alpha, i), pick(lam, i)
        tempered_tail_point(*at, dim, order, work, row, answer)
        for k in range(out.shape[0]):
            out[k, i] = answer[k]
