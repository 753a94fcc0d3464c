"""Compiled tail mass P(|Y| > u): the contour integral of the density with another kernel."""

from __future__ import annotations

import math

import numpy as np

from levytorch.law.kernels import density_point, hankel_scaled
from levytorch.law.paths import JAC, LOG_W, N_NODES, W, compiled, contour_path


@compiled
def tail_point(u, A, B, alpha, dim, order, work, out):
    """P(|Y| > u) for u >= 0, into out[0]; with order = 1 its derivatives in (u, A, B, alpha) into out[1:5]."""
    if u == 0.0:
        out[0] = 1.0
        if order >= 1:
            out[1:5] = 0.0
            if dim == 1:
                row = np.empty(15)
                density_point(0.0, A, B, alpha, 1, 0, work, row)
                out[1] = -2.0 * math.exp(row[0])
        return
    split, log_unit, y1, A1, B1, theta, S, k, j0, j1 = contour_path(u, A, B, alpha, dim, 0.0, True)
    ct, st = math.cos(theta), math.sin(theta)
    c2, s2 = math.cos(2.0 * theta), math.sin(2.0 * theta)
    ca, sa = math.cos(2.0 * alpha * theta), math.sin(2.0 * alpha * theta)
    turn = complex(ct, st)
    log_S = math.log(S)
    G = GB = Ga = 0.0
    for j in range(j0, j1 + 1):
        rho = S * W[k, j]
        log_rho = log_S + LOG_W[k, j]
        rho2 = A1 * rho * rho
        x_abs = B1 * math.exp(2.0 * alpha * log_rho)
        xr, xi = x_abs * ca, x_abs * sa
        mag, phase = math.exp(-y1 * rho * st - rho2 * c2), y1 * rho * ct - rho2 * s2
        a = math.expm1(-xr)
        s, c = math.sin(0.5 * xi), math.cos(0.5 * xi)
        v = 2.0 * s * s
        e0 = complex(a * (1.0 - v) - v, -(1.0 + a) * 2.0 * s * c)
        ex = e0 + 1.0
        if not split:
            e0 = ex
        g = (mag * JAC[k, j]) * complex(math.cos(phase), math.sin(phase))
        z = y1 * rho * turn
        if dim == 1:
            g = g * 2j / math.pi
        elif dim == 2:
            g = -g * z * hankel_scaled(z)[1]
        else:
            g = g * (1j + z) * 2.0 / math.pi
        G += (g * e0).real
        if order >= 1:
            gx = g * ex * complex(xr, xi)
            GB -= gx.real
            Ga -= 2.0 * (gx * complex(log_rho - log_unit, theta)).real
    scale = 1.0
    if not split:
        G += 1.0 - 2.0 * theta / math.pi  # the arc around the pole at r = 0
    if split:
        log_kappa = math.log(B) - 2.0 * alpha * log_unit
        if log_kappa < -660.0:
            scale = math.exp(log_kappa + 660.0)
        G *= scale
        if A1 > 0.0:
            w = 0.5 * y1 / math.sqrt(A1)
            if dim == 1:
                G += math.erfc(w)
            elif dim == 2:
                G += math.exp(-w * w)
            else:
                G += math.erfc(w) + 2.0 / math.sqrt(math.pi) * w * math.exp(-w * w)
    out[0] = min(max(G, 0.0), 1.0)
    if order >= 1:
        row = np.empty(15)
        density_point(u, A, B, alpha, dim, 1, work, row)
        surface = 2.0 if dim == 1 else (2.0 * math.pi * u if dim == 2 else 4.0 * math.pi * u * u)
        flow = surface * math.exp(row[0])
        out[1] = -flow
        out[2] = -flow * row[1]
        out[3] = GB * scale / B
        out[4] = Ga * scale


@compiled
def tail_many(start, stop, u, A, B, alpha, dim, order, out):
    """As density_many, for P(|Y| > u)."""
    row, work = np.empty(5), np.empty((5, N_NODES))
    for i in range(start, stop):
        tail_point(
            u[i if u.size > 1 else 0],
            A[i if A.size > 1 else 0],
            B[i if B.size > 1 else 0],
            alpha[i if alpha.size > 1 else 0],
            dim,
            order,
            work,
            row,
        )
        for k in range(out.shape[0]):
            out[k, i] = row[k]
