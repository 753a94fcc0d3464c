"""Compiled tail mass P(|Y| > u), stable and tempered: the integral of the density with another kernel."""

from __future__ import annotations

import cmath
import math

import numpy as np

from levytorch.law.contour_kernels import (
    LOG_KAPPA_MIN,
    SCRATCH,
    compiled,
    contour_node,
    contour_path,
    density_point,
    hankel_scaled,
    pick,
)
from levytorch.law.tempered import DECAY, N_NODES
from levytorch.law.tempered_kernels import power_offset, power_parts, tempered_node, tempered_point
from levytorch.law.tempered_line import is_limit, tempered_path


@compiled
def _gaussian_tail(w, dim):
    """P(|G| > w) of a Gaussian whose coordinates have the variance 1 / 2."""
    if dim == 1:
        return math.erfc(w)
    if dim == 2:
        return math.exp(-w * w)
    return math.erfc(w) + 2.0 / math.sqrt(math.pi) * w * math.exp(-w * w)


@compiled
def _flow(u, log_p, dim):
    """-d/du of the tail mass: the density over the sphere of radius u."""
    surface = 2.0 if dim == 1 else (2.0 * math.pi * u if dim == 2 else 4.0 * math.pi * u * u)
    return surface * math.exp(log_p)


@compiled
def tail_point(u, A, B, alpha, dim, order, work, out):
    """P(|Y| > u) for u >= 0, into out[0]; with order = 1 its derivatives in (u, A, B, alpha) into out[1:5]."""
    row = np.empty(15)
    if u == 0.0:
        out[0] = 1.0
        if order >= 1:
            out[1:5] = 0.0
            if dim == 1:
                density_point(0.0, A, B, alpha, 1, 0, work, row)
                out[1] = -_flow(u, row[0], dim)
        return
    split, log_unit, y, A1, B1, theta, S, k, j0, j1 = contour_path(u, A, B, alpha, dim, 0.0, True)
    turn, turn_x = cmath.rect(1.0, theta), cmath.rect(1.0, 2.0 * alpha * theta)
    log_S = math.log(S)
    G = GB = Ga = 0.0
    for j in range(j0, j1 + 1):
        r, ell, x, g, e0, ex = contour_node(split, y, A1, B1, alpha, theta, turn, turn_x, S, log_S, k, j)
        z = y * r
        if dim == 1:
            g *= 2j / math.pi
        elif dim == 2:
            g *= -z * hankel_scaled(z)[1]
        else:
            g *= (1j + z) * 2.0 / math.pi
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
            G += _gaussian_tail(0.5 * y / math.sqrt(A1), dim)
    else:
        G += 1.0 - 2.0 * theta / math.pi  # the arc around the pole at r = 0
    out[0] = min(max(G, 0.0), 1.0)
    if order >= 1:
        density_point(u, A, B, alpha, dim, 1, work, row)
        flow = _flow(u, row[0], dim)
        out[1] = -flow
        out[2] = -flow * row[1]
        out[3] = GB * scale / B
        out[4] = Ga * scale


@compiled
def tail_many(start, stop, u, A, B, alpha, dim, order, out):
    """As density_many, for P(|Y| > u)."""
    row, work = np.empty(5), np.empty(SCRATCH)
    for i in range(start, stop):
        tail_point(pick(u, i), pick(A, i), pick(B, i), pick(alpha, i), dim, order, work, row)
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
            out[1] = -_flow(u, row[0], dim)
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
        G += _gaussian_tail(0.5 * u / math.sqrt(A), dim) * math.exp(B * eta[0].real)
    out[0] = min(max(G, 0.0), 1.0)
    if order >= 1:
        tempered_point(u, A, B, alpha, lam, dim, 1, work, row)
        flow = _flow(u, row[0], dim)
        out[1] = -flow
        out[2] = -flow * row[1]
        out[3] = slopes[0] * scale
        out[4] = slopes[1] * scale * B
        out[5] = slopes[2] * scale * B


@compiled
def tempered_tail_many(start, stop, u, A, B, alpha, lam, dim, order, out):
    """As tempered_many, for P(|Y| > u)."""
    row, answer, work = np.empty(21), np.empty(6), np.empty(SCRATCH)
    for i in range(start, stop):
        at = pick(u, i), pick(A, i), pick(B, i), pick(alpha, i), pick(lam, i)
        tempered_tail_point(*at, dim, order, work, row, answer)
        for k in range(out.shape[0]):
            out[k, i] = answer[k]
