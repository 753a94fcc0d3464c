"""Compiled density of the contour quadrature; `contour.py` holds the mathematics, `contour_torch.py` the torch twin.

One sample at a time, scalars only, the GIL released: `threads.run` spreads the samples over the cores.
"""

from __future__ import annotations

import math

import numpy as np

from levytorch.law import hankel
from levytorch.law.paths import HUGE, JAC, LOG_W, N_NODES, W, compiled, contour_path
from levytorch.law.vector_math import fast_exp, fast_exp_expm1, fast_sincos

FLAT_LOG_W, FLAT_W, FLAT_JAC = LOG_W.ravel(), W.ravel(), JAC.ravel()

hankel_scaled = compiled(hankel.hankel_scaled)


@compiled
def _bessel_small(dim, z):
    """Real kernels c_d(z), c_{d+2}(z) of p_d = int r^(d-1) c_d(y r) phi dr for small z, by their power series."""
    q = -0.25 * z * z
    half = 0.5 * dim
    term0 = 2.0 / (math.gamma(half) * (4.0 * math.pi) ** half)
    term1 = 2.0 / (math.gamma(half + 1.0) * (4.0 * math.pi) ** (half + 1.0))
    sum0, sum1 = term0, term1
    for k in range(1, 60):
        term0 *= q / (k * (k + half - 1.0))
        term1 *= q / (k * (k + half))
        sum0 += term0
        sum1 += term1
        if abs(term0) < 1e-18 * abs(sum0):
            break
    return sum0, sum1


@compiled
def _line_sums(split, log_unit, y, A, B, alpha, theta, S, k, j0, j1, work):
    """d = 1: the sums P, P_y, P_A, B P_B, P_alpha over the nodes.

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
    return P * scale, PY * scale, PA * scale, PB * scale, 2.0 * Pa * scale


@compiled
def density_point(y, A, B, alpha, dim, order, work, out):
    """log p and derivatives at radius y >= 0, into out.

    out[0] = log p; out[1:5] = first derivatives of log p in (y, A, B, alpha) when order >= 1; out[5:15] = second
    derivatives (yy, yA, yB, ya, AA, AB, Aa, BB, Ba, aa) when order = 2. For dim > 1 y is the radius. work:
    (5, N_NODES).
    """
    fine = dim > 1 or order == 2
    split, log_unit, y1, A1, B1, theta, S, k, j0, j1 = contour_path(y, A, B, alpha, dim + 2.0 * order, 1.0, fine)
    small = False
    if dim > 1:
        r_top = S * W[k, j1]
        if y1 * r_top < 2.0 or theta < 1e-9:
            small, theta = True, 0.0
    ct, st = math.cos(theta), math.sin(theta)
    c2, s2 = math.cos(2.0 * theta), math.sin(2.0 * theta)
    ca, sa = math.cos(2.0 * alpha * theta), math.sin(2.0 * alpha * theta)
    turn = complex(ct, st)
    log_S = math.log(S)
    two_alpha = 2.0 * alpha
    P = PY = PA = PB = Pa = 0.0
    PyA = PyB = Pya = PAA = PAB = PAa = PBB = PBa = Paa = 0.0
    if dim == 1 and order < 2:
        P, PY, PA, PB, Pa = _line_sums(split, log_unit, y1, A1, B1, alpha, theta, S, k, j0, j1, work)
        j1 = j0 - 1  # nothing is left to sum
    for j in range(j0, j1 + 1):
        rho = S * W[k, j]
        log_rho = log_S + LOG_W[k, j]
        rho2 = A1 * rho * rho
        damp = -y1 * rho * st - rho2 * c2
        x_abs = B1 * math.exp(two_alpha * log_rho)
        xr, xi = x_abs * ca, x_abs * sa
        if split:
            a = math.expm1(-xr)
            s, c = math.sin(0.5 * xi), math.cos(0.5 * xi)
            v = 2.0 * s * s
            e0 = complex(a * (1.0 - v) - v, -(1.0 + a) * 2.0 * s * c)
            ex = e0 + 1.0
            mag, phase = math.exp(damp), y1 * rho * ct - rho2 * s2
        else:
            # one exponential for the whole integrand
            e0 = complex(1.0, 0.0)
            ex = e0
            mag, phase = math.exp(damp - xr), y1 * rho * ct - rho2 * s2 - xi
        g = (mag * rho * JAC[k, j]) * complex(math.cos(phase), math.sin(phase)) * turn
        r = rho * turn
        if dim == 1:
            k0 = g / math.pi
            k1 = 1j * r * k0
        elif small:
            z = y1 * rho
            if z > 12.0:  # cannot matter: the integrand has ended
                continue
            c0, c1 = _bessel_small(dim, z)
            g = g * complex(math.cos(z), -math.sin(z))  # without exp(i z)
            scale = g * rho ** (dim - 1)
            k0, k1 = scale * c0, scale * c1 * rho * rho
        elif dim == 2:
            z = y1 * r
            h0, h1 = hankel_scaled(z)
            k0 = g * r * h0 / (2.0 * math.pi)
            k1 = g * r * r * r * h1 / (4.0 * math.pi * math.pi * z)
        else:
            z = y1 * r
            k0 = g * r * r * (-1j) / (2.0 * math.pi * math.pi * z)
            k1 = k0 * r * r * (-(1j * z - 1.0)) / (2.0 * math.pi * z * z)
        f = k0 * e0
        P += f.real
        if order == 0:
            continue
        rr = r * r
        x = complex(xr, xi)
        ell = complex(log_rho - log_unit, theta)
        k0x = k0 * ex * x
        PY += (k1 * e0).real
        PA -= (rr * f).real
        PB -= k0x.real
        Pa -= 2.0 * (k0x * ell).real
        if order == 2:
            k1x = k1 * ex * x
            PyA -= (rr * k1 * e0).real
            PyB -= k1x.real
            Pya -= 2.0 * (k1x * ell).real
            PAA += (rr * rr * f).real
            PAB += (rr * k0x).real
            PAa += 2.0 * (rr * k0x * ell).real
            PBB += (x * k0x).real
            PBa -= 2.0 * (ell * k0x * (1.0 - x)).real
            Paa -= 4.0 * (ell * ell * k0x * (1.0 - x)).real
    # the Gaussian part, in the same units, with a common factor exp(top) taken out
    top = 0.0
    if split:
        log_kappa = math.log(B) - two_alpha * log_unit
        jump = min(log_kappa + 660.0, 0.0)
        if A1 > 0.0:
            u = 0.25 * y1 * y1 / A1
            log_G = -u - 0.5 * dim * math.log(4.0 * math.pi * A1)
            log_J = jump + (math.log(abs(P)) if P != 0.0 else -HUGE)
            top = max(log_G, log_J)
            G = math.exp(log_G - top)
            scale = math.exp(jump - top)
            half = 0.5 * dim
            gA = (u - half) / A1
            P = P * scale + G
            if order >= 1:
                PA = PA * scale + G * gA
                PB *= scale
                Pa *= scale
                PY = PY * scale + (G * (-0.5 * y1 / A1) if dim == 1 else G / (4.0 * math.pi * A1))
            if order == 2:
                gAA = gA * gA + (half - 2.0 * u) / (A1 * A1)
                PAA = PAA * scale + G * gAA
                if dim == 1:
                    gy = -0.5 * y1 / A1
                    PyA = PyA * scale + G * (gy * gA + 0.5 * y1 / (A1 * A1))
                else:
                    PyA = PyA * scale + G / (4.0 * math.pi * A1) * (gA - 1.0 / A1)
                PyB *= scale
                Pya *= scale
                PAB *= scale
                PAa *= scale
                PBB *= scale
                PBa *= scale
                Paa *= scale
        else:
            top = jump
    out[0] = math.log(P) + top - dim * log_unit
    if order == 0:
        return
    iP = 1.0 / P
    iU = math.exp(min(-log_unit, 300.0))
    iB = 1.0 / B
    iA = iU * iU
    if dim > 1:  # so far PY is p_{d+2}: d/dy p_d = -2 pi y p_{d+2}
        over_y = -2.0 * math.pi * PY
        PY = y1 * over_y
    else:
        over_y = 0.0
    out[1] = PY * iP * iU
    out[2] = PA * iP * iA
    out[3] = PB * iP * iB
    out[4] = Pa * iP
    if order == 2:
        if dim > 1:
            factor = -2.0 * math.pi * y1
            PyA *= factor
            PyB *= factor
            Pya *= factor
        Pyy = PA - (dim - 1.0) * over_y
        ly, lA, lB, la = PY * iP, PA * iP, PB * iP, Pa * iP
        out[5] = (Pyy * iP - ly * ly) * iU * iU
        out[6] = (PyA * iP - ly * lA) * iU * iA
        out[7] = (PyB * iP - ly * lB) * iU * iB
        out[8] = (Pya * iP - ly * la) * iU
        out[9] = (PAA * iP - lA * lA) * iA * iA
        out[10] = (PAB * iP - lA * lB) * iA * iB
        out[11] = (PAa * iP - lA * la) * iA
        out[12] = (PBB * iP - lB * lB) * iB * iB
        out[13] = (PBa * iP - lB * la) * iB
        out[14] = Paa * iP - la * la


@compiled
def density_many(start, stop, y, A, B, alpha, dim, order, out):
    """Columns start:stop of out (m, n) from 1-D inputs; inputs of length one are shared by all."""
    row, work = np.empty(15), np.empty((5, N_NODES))
    for i in range(start, stop):
        density_point(
            y[i if y.size > 1 else 0],
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
