"""Compiled tail mass P(|Y| > u) of the tempered law: the integral of the density with another kernel."""

from __future__ import annotations

import cmath
import math

import numpy as np

from levytorch.law.kernels import hankel_scaled
from levytorch.law.paths import N_NODES as N_STABLE
from levytorch.law.paths import compiled
from levytorch.law.tail_kernels import tail_point
from levytorch.law.tempered_kernels import complex_expm1, complex_log1p, power_offset, power_parts, tempered_point
from levytorch.law.tempered_nodes import BLOCK, COSH, COSH_1, DECAY, N_NODES, SINH, WEIGHT
from levytorch.law.tempered_paths import is_limit, tempered_path


@compiled
def _gaussian_tail(u, A, dim):
    w = 0.5 * u / math.sqrt(A)
    if dim == 1:
        return math.erfc(w)
    if dim == 2:
        return math.exp(-w * w)
    return math.erfc(w) + 2.0 / math.sqrt(math.pi) * w * math.exp(-w * w)


@compiled
def tempered_tail_point(u, A, B, alpha, lam, dim, order, work, sums, stable, row, out):
    """P(|Y| > u) for u >= 0 into out[0]; with order = 1 its derivatives in (u, A, B, alpha, lam) into out[1:6]."""
    limit = is_limit(u, A, B, alpha, lam)
    out[1:6] = 0.0
    if u == 0.0 or limit:
        # lam is beyond what u resolves: what it takes from the far tail is lam^(2 alpha) of the mass there
        tail_point(u, A, B, alpha, dim, order, stable, out)
        out[5] = 0.0
        if u == 0.0 and order >= 1 and dim == 1:
            tempered_point(0.0, A, B, alpha, lam, 1, 0, work, sums, stable, row)
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
        r = complex(sigma * SINH[j] * ct, sigma * COSH_1[j] * st)
        dr = complex(sigma * COSH[j] * ct, sigma * SINH[j] * st) * WEIGHT[j]
        k = r + 1j * s
        q = r * r + 2j * s * r
        log_ratio = complex_log1p(q / u0)
        m = complex_expm1(alpha * log_ratio)
        lin = 1j * y1 * r - A * r * r
        if split:
            wave = cmath.exp(lin) * dr
            e0 = complex_expm1(-b0 * (1.0 + m))
            ex = e0 + 1.0
        else:
            wave = cmath.exp(lin - b0 * m) * dr
            e0 = ex = 1.0 + 0.0j
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
        G += _gaussian_tail(u, A, dim) * math.exp(B * eta[0].real)
    out[0] = min(max(G, 0.0), 1.0)
    if order >= 1:
        tempered_point(u, A, B, alpha, lam, dim, 1, work, sums, stable, row)
        surface = 2.0 if dim == 1 else (2.0 * math.pi * u if dim == 2 else 4.0 * math.pi * u * u)
        flow = surface * math.exp(row[0])
        out[1] = -flow
        out[2] = -flow * row[1]
        out[3] = slopes[0] * scale
        out[4] = slopes[1] * scale * B
        out[5] = slopes[2] * scale * B


@compiled
def tempered_tail_many(start, stop, u, A, B, alpha, lam, dim, order, out):
    """As tempered_many, for P(|Y| > u)."""
    row, stable, answer = np.empty(21), np.empty((5, N_STABLE)), np.empty(6)
    work, sums = np.empty((6, BLOCK)), np.empty(6)
    for i in range(start, stop):
        tempered_tail_point(
            u[i if u.size > 1 else 0],
            A[i if A.size > 1 else 0],
            B[i if B.size > 1 else 0],
            alpha[i if alpha.size > 1 else 0],
            lam[i if lam.size > 1 else 0],
            dim,
            order,
            work,
            sums,
            stable,
            row,
            answer,
        )
        for k in range(out.shape[0]):
            out[k, i] = answer[k]
