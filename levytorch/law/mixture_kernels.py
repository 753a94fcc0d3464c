"""Compiled passes over steps by the mixture of Gaussians (`mixture.py`): log p and all first derivatives.

One sample at a time, vectorised over the terms of its sum. A coarse scan of the exponents finds the terms that matter;
where tempering makes the integrand narrow, the sum runs over finer nodes. Terms are written to scratch rows by loops
without sums in them, which LLVM vectorises, and are then summed by functions that may reorder additions (the
exponential must not: it splits numbers into high and low parts).
"""

from __future__ import annotations

import math

import numpy as np

from levytorch.law.compiled import cached_njit
from levytorch.law.contour_kernels import DONE, compiled, pick
from levytorch.law.mixture import DROP, FINE, LEFT, NARROW, SHIFT, WIDTH, H
from levytorch.law.vector_math import fast_exp, fast_log, inlined

summing = cached_njit(nogil=True, error_model="numpy", fastmath={"contract", "nsz", "arcp", "reassoc"})

STRIDE = 4  # nodes of the sum per node of the scan
LARGEST = 690.0  # of a logarithm
WIDE = 4.0  # curvature of a tempered exponent below which nodes of the step H are close enough
LOG_4_PI = math.log(4.0 * math.pi)
# rows of the nodes of one alpha: u, its derivative in tau, log of the weight, its derivative in tau
TIME, TIME_TAU, WEIGHT, WEIGHT_TAU = 0, 1, 2, 3
# scratch rows of one sample; the reciprocals 1 / (l_k + s) follow from RECIPROCAL on, one row per eigenvalue
S, E, P, XS, T_TAU, W_TAU, RECIPROCAL = 0, 1, 2, 3, 4, 5, 6


@summing
def _sum(w, a, n):
    total = 0.0
    for j in range(n):
        total += w[a, j]
    return total


@summing
def _dot(w, a, b, n):
    total = 0.0
    for j in range(n):
        total += w[a, j] * w[b, j]
    return total


@summing
def _triple(w, a, b, c, n):
    total = 0.0
    for j in range(n):
        total += w[a, j] * w[b, j] * w[c, j]
    return total


@compiled
def table_at(t, coefficients, rows):
    """R and its derivative in tau at the nodes of the table, into rows[0] and rows[1]."""
    degree, n = coefficients.shape[0] - 1, coefficients.shape[1]
    for i in range(n):
        value, slope = coefficients[degree, i], 0.0
        for k in range(degree - 1, -1, -1):
            slope = slope * t + value
            value = value * t + coefficients[k, i]
        rows[0, i], rows[1, i] = value, slope * (2.0 / WIDTH)


LAGRANGE = np.array([(-1.0) ** (7 - k) / (math.factorial(k) * math.factorial(7 - k)) for k in range(8)])


@compiled
def table_between(at, rows):
    """R, its derivative in tau and that in omega at the position `at` of the table (in nodes), by eight of them."""
    i = min(max(math.floor(at) - 3, 0), rows.shape[1] - 8)
    f = at - i
    value, by_tau, by_omega = 0.0, 0.0, 0.0
    before, before_f = 1.0, 0.0  # the product of f - m over m < k, and its derivative in f
    for k in range(8):
        after, after_f = 1.0, 0.0
        for m in range(k + 1, 8):
            after_f = after_f * (f - m) + after
            after *= f - m
        weight = LAGRANGE[k] * before * after
        value += weight * rows[0, i + k]
        by_tau += weight * rows[1, i + k]
        by_omega += LAGRANGE[k] * (before_f * after + before * after_f) * rows[0, i + k]
        before_f = before_f * (f - k) + before
        before *= f - k
    return value, by_tau, by_omega * (FINE / H)


@inlined
def _stretched(v, tau, ic):
    """u, du/dtau, du/dv and the derivative in tau of its logarithm, for alpha >= 1/2."""
    far = v - tau - SHIFT
    e = math.exp(-abs(far))
    soft = max(far, 0.0) + math.log1p(e)
    sigma = 1.0 / (1.0 + e) if far >= 0.0 else e / (1.0 + e)
    slope = ic + (1.0 - ic) * sigma
    u = v * ic + (1.0 - ic) * soft
    u_tau = -v * ic + ic * soft - (1.0 - ic) * sigma
    return u, u_tau, slope, (ic * sigma - ic - (1.0 - ic) * sigma * (1.0 - sigma)) / slope


@compiled
def node_at(v, tau, first, rows):
    """u, du/dtau, log(u'(v) g(u)) and its derivative in tau at one v, and u'(v); first: omega of the table's first
    node, in nodes.
    """
    c = math.exp(tau)
    ic = 1.0 / c
    alpha, beta = 1.0 / (1.0 + ic), 1.0 / (1.0 + c)
    log_alpha = -math.log1p(ic)
    log_K = c * log_alpha - math.log1p(c)  # its derivative in tau is c log alpha
    n = rows.shape[1]
    if c < 1.0:
        omega, omega_tau, u, u_tau, slope, log_slope_tau = v * c, v * c, v, 0.0, 1.0, 0.0
    else:
        omega, omega_tau = v, 0.0
        u, u_tau, slope, log_slope_tau = _stretched(v, tau, ic)
    log_x, log_x_tau = log_K - c * u, c * (log_alpha - u - u_tau)  # x = K exp(-c u)
    x = math.exp(min(log_x, LARGEST))
    position = omega * (FINE / H) - first
    if position > n - 1:  # log g is linear in u
        R, R_tau, _ = table_between(n - 1.0, rows)
        end = (first + n - 1) * (H / FINE)
        beyond = (omega - end) * ic if c < 1.0 else omega - end
        R -= alpha * beyond
        R_tau -= alpha * beta * beyond
        if c < 1.0:
            R_tau -= alpha * end * ic  # at fixed omega u moves with tau, at fixed v it does not
    elif position < 0.0:  # R = log(x) / 2 + constant + constant / x
        R, R_tau, R_omega = table_between(0.0, rows)
        v_end = first * (H / FINE)
        u_end = v_end * ic if c < 1.0 else _stretched(v_end, tau, ic)[0]
        log_x_end = log_K - c * u_end
        bend = (R_omega + 0.5) * math.exp(log_x_end - log_x)
        R += 0.5 * (log_x - log_x_end) + bend - (R_omega + 0.5)
        R_tau += (0.5 - bend) * (log_x_tau - c * log_alpha)
    else:
        R, R_tau, R_omega = table_between(position, rows)
        R_tau += R_omega * omega_tau
    return u, u_tau, math.log(slope) + R - x, log_slope_tau + R_tau - x * log_x_tau, slope


@compiled
def fill_nodes(tau, middle, first, coefficients, rows, nodes, v_first):
    """The nodes v = (v_first + j) H of one alpha into `nodes` (4, n): u, du/dtau, log of the weight, its derivative."""
    table_at((tau - middle) * (2.0 / WIDTH), coefficients, rows)
    log_h = math.log(H)
    for j in range(nodes.shape[1]):
        u, u_tau, weight, weight_tau, _ = node_at((v_first + j) * H, tau, first, rows)
        nodes[TIME, j], nodes[TIME_TAU, j], nodes[WEIGHT, j], nodes[WEIGHT_TAU, j] = (
            u,
            u_tau,
            log_h + weight,
            weight_tau,
        )


@compiled
def node_range(tau, first, n, dim):
    """First node v / H and number of nodes of one alpha that untempered sums in `dim` dimensions can need."""
    c = math.exp(tau)
    power = 0.5 * dim / c
    x_end = power + 2.0 * DROP + math.sqrt(2.0 * DROP * power)  # of K exp(-c u), beside exp(-dim u / 2)
    left = -math.log1p(c) - c * math.log1p(1.0 / c) - math.log(min(x_end, LEFT))
    right = (first + n - 1) * (H / FINE)
    if c < 1.0:
        left, right = left / c, right / c
    low = math.floor(left / H)
    return low, math.floor(right / H) - low


@compiled
def eigen(A, l, Q):
    """Eigenvalues l and eigenvectors, the columns of Q, of a symmetric matrix A, which is destroyed (Jacobi)."""
    d = A.shape[0]
    for i in range(d):
        for j in range(d):
            Q[i, j] = 1.0 if i == j else 0.0
    for _ in range(60):
        off, size = 0.0, 0.0
        for i in range(d):
            size = max(size, abs(A[i, i]))
            for j in range(i + 1, d):
                off = max(off, abs(A[i, j]))
        if off <= 1e-17 * size or off == 0.0:
            break
        for p in range(d):
            for q in range(p + 1, d):
                if A[p, q] == 0.0:
                    continue
                theta = 0.5 * (A[q, q] - A[p, p]) / A[p, q]
                t = (1.0 if theta >= 0.0 else -1.0) / (abs(theta) + math.sqrt(1.0 + theta * theta))
                co = 1.0 / math.sqrt(1.0 + t * t)
                si = t * co
                for k in range(d):
                    a, b = A[k, p], A[k, q]
                    A[k, p], A[k, q] = co * a - si * b, si * a + co * b
                for k in range(d):
                    a, b = A[p, k], A[q, k]
                    A[p, k], A[q, k] = co * a - si * b, si * a + co * b
                for k in range(d):
                    a, b = Q[k, p], Q[k, q]
                    Q[k, p], Q[k, q] = co * a - si * b, si * a + co * b
    for i in range(d):
        l[i] = A[i, i]


@compiled
def scan(nodes, n_scan, log_s, alpha, lam2, half, l, z2, w):
    """Exponents of every STRIDE-th term into w[E], with the determinant: (largest, its index).

    Nodes beyond the last one continue linearly.
    """
    n, groups = nodes.shape[1], l.shape[0]
    last = n - 1
    inside = min(n_scan, last // STRIDE + 1)
    for i in range(inside):
        w[S, i], w[E, i] = log_s + nodes[TIME, STRIDE * i], nodes[WEIGHT, STRIDE * i]
    for i in range(inside, n_scan):
        beyond = H * (STRIDE * i - last)
        w[S, i], w[E, i] = log_s + nodes[TIME, last] + beyond, nodes[WEIGHT, last] - alpha * beyond
    for i in range(n_scan):
        s = fast_exp(w[S, i])
        w[S, i] = s
        w[E, i] -= lam2 * s
    for g in range(groups):
        l_g, z_g = l[g], 0.25 * z2[g]
        for i in range(n_scan):
            c = max(l_g + w[S, i], 1e-300)
            w[E, i] -= half * fast_log(c) + z_g / c
    best = 0
    for i in range(1, n_scan):
        if w[E, i] > w[E, best]:
            best = i
    return w[E, best], best


@compiled
def _stable_nodes(nodes, low, m, log_s, alpha, with_alpha, w):
    """The nodes low ... low + m - 1 of an untempered or widely tempered sum: s and the logarithms of weights into S, E,
    T_TAU and W_TAU.
    """
    n = nodes.shape[1]
    inside = max(0, min(n - low, m))
    for j in range(inside):
        w[S, j] = fast_exp(log_s + nodes[TIME, low + j])
    for j in range(inside):
        w[E, j] = nodes[WEIGHT, low + j]
    for j in range(inside, m):
        beyond = H * (low + j - n + 1)
        w[S, j], w[E, j] = fast_exp(log_s + nodes[TIME, n - 1] + beyond), nodes[WEIGHT, n - 1] - alpha * beyond
    if with_alpha:
        for j in range(inside):
            w[T_TAU, j] = nodes[TIME_TAU, low + j]
        for j in range(inside):
            w[W_TAU, j] = nodes[WEIGHT_TAU, low + j]
        for j in range(inside, m):
            beyond = H * (low + j - n + 1)
            w[T_TAU, j] = nodes[TIME_TAU, n - 1]
            w[W_TAU, j] = nodes[WEIGHT_TAU, n - 1] - alpha * (1.0 - alpha) * beyond


@compiled
def _window(w, n, best, drop):
    """First and last node of the scan, whose largest is `best`, that is not below it by more than `drop`."""
    least, low, high = w[E, best] - drop, 0, n - 1
    while w[E, low] <= least:
        low += 1
    while w[E, high] <= least:
        high -= 1
    return low, high


@compiled
def _terms(w, n, l, z2, lam2, dim, peak, peak_amplitude):
    """From s and the logarithm of the weight of n nodes, in rows S and E, to the terms: P, their part XS of the
    derivative in log s, the reciprocals.
    """
    groups = l.shape[0]
    for g in range(groups):
        l_g, z_g, row = l[g], 0.25 * z2[g], RECIPROCAL + g
        for j in range(n):
            q = 1.0 / max(l_g + w[S, j], 1e-300)
            w[row, j] = q
            w[E, j] -= z_g * q
    if lam2 > 0.0:
        for j in range(n):
            w[E, j] -= lam2 * w[S, j]
    if groups == 1 and dim == 2:
        for j in range(n):
            w[P, j] = w[RECIPROCAL, j]
    elif groups == 1 and dim == 3:
        for j in range(n):
            w[P, j] = w[RECIPROCAL, j] * math.sqrt(w[RECIPROCAL, j])
    elif groups == 2:
        for j in range(n):
            w[P, j] = math.sqrt(w[RECIPROCAL, j] * w[RECIPROCAL + 1, j])
    else:
        half = 0.5 * dim / groups
        for j in range(n):
            w[P, j] = 1.0
        for g in range(groups):
            row = RECIPROCAL + g
            for j in range(n):
                w[E, j] += half * fast_log(w[row, j])
    for j in range(n):
        w[P, j] *= peak_amplitude * fast_exp(w[E, j] - peak)
    for j in range(n):
        w[XS, j] = -lam2
    for g in range(groups):
        row, m, z_g = RECIPROCAL + g, 0.5 * dim / groups, 0.25 * z2[g]
        for j in range(n):
            q = w[row, j]
            w[XS, j] += q * (z_g * q - m)
    for j in range(n):
        w[XS, j] *= w[S, j]


@compiled
def mixture_step(
    start, stop, x, b, D_o, D_f, alpha, dt, lam, middle, first, coefficients, order, log_p, by_b, by_D_o, by_D_f,
    by_alpha, by_lam,
):  # fmt: skip
    """Steps start ... stop - 1, whose alpha lie in one panel (middle, first, coefficients).

    x, b: (n or 1, d); D_o: (n or 1, d, d), or (n or 1, 1, 1) for a multiple of the identity; D_f, alpha, dt, lam:
    (n or 1,). order 0: log_p alone; 1: also by_b (n, d), by_D_o as D_o, by_D_f; 2: also by_alpha and by_lam. Returns
    the first bad index, or DONE.
    """
    d, groups = x.shape[1], D_o.shape[1]
    half = 0.5 * d / groups
    table = np.empty((2, coefficients.shape[1]))
    l, z, z2, y = np.empty(groups), np.empty(d), np.empty(groups), np.empty(d)
    matrix, Q, gradient = np.empty((groups, groups)), np.empty((groups, groups)), np.empty((groups, groups))
    nodes = np.empty((4, 1))
    w = np.empty((RECIPROCAL + groups, 256))
    tau, v_first, n, whole = math.nan, 0, 0, 0
    for i in range(start, stop):
        t, rate, a = pick(dt, i), pick(lam, i), pick(alpha, i)
        B = pick(D_f, i) * t
        x_i, b_i, D_i = x[i if x.shape[0] > 1 else 0], b[i if b.shape[0] > 1 else 0], D_o[i if D_o.shape[0] > 1 else 0]
        square = 0.0
        for k in range(d):
            y[k] = x_i[k] - b_i[k] * t
            square += y[k] * y[k]
        good = (square < math.inf) & (B > 0.0) & (B < math.inf) & (t > 0.0) & (rate >= 0.0) & (rate < math.inf)
        if not (good and 0.0 < a < 1.0):
            return i
        if groups == 1:
            l[0], z2[0] = D_i[0, 0] * t, square
        else:
            for j in range(groups):
                for k in range(groups):
                    matrix[j, k] = 0.5 * (D_i[j, k] + D_i[k, j]) * t
            eigen(matrix, l, Q)
            for k in range(groups):
                z[k] = 0.0
                for j in range(groups):
                    z[k] += Q[j, k] * y[j]
                z2[k] = z[k] * z[k]
        l_max = 0.0
        for k in range(groups):
            l_max = max(l_max, l[k])
        for k in range(groups):
            if not -1e-10 * l_max <= l[k] < math.inf:  # rounding may leave a zero eigenvalue below zero
                return i
            l[k] = max(l[k], 0.0)
        log_B = math.log(B)
        log_scale = log_B / a  # of the times
        log_unit = log_scale
        if max(l_max, square) > 0.0:
            log_unit = max(log_unit, math.log(max(l_max, square)))
        inverse = math.exp(min(-log_unit, LARGEST))
        for k in range(groups):
            l[k] *= inverse
            z2[k] *= inverse
        log_s = log_scale - log_unit
        lam2 = rate * rate * math.exp(min(log_unit, LARGEST))
        # exp(-lam^2 s) makes the left end of g matter: B lam^(2 alpha) = kappa lies at K exp(-c u) = (1 - alpha) kappa
        kappa = 0.0 if rate == 0.0 else math.exp(log_B + 2.0 * a * math.log(rate))
        new_tau = math.log(a) - math.log1p(-a)
        end = 36.0 / (a + 0.5 * d) + 5.0 - log_s  # u where the Gaussian factor has decayed
        end = end if new_tau < 0.0 else max(end, 0.0) + new_tau + SHIFT  # the same in v
        if new_tau != tau or (n < whole and int(end / H) - v_first + 3 * STRIDE > n):
            tau = new_tau
            v_first, whole = node_range(tau, first, coefficients.shape[1], d)
            n = whole if alpha.size == 1 else min(whole, max(8, int(end / H) - v_first + 6 * STRIDE))
            if nodes.shape[1] != n:
                nodes = np.empty((4, n))
            fill_nodes(tau, middle, first, coefficients, table, nodes, v_first)
        n_scan = max(2, int((end - v_first * H) / (STRIDE * H)) + 2)
        if n_scan > w.shape[1]:
            w = np.empty((w.shape[0], 2 * n_scan))
        c = a / (1.0 - a)
        if kappa * min(c, 1.0 / c) + rate * math.sqrt(square) < WIDE:
            peak, best = scan(nodes, n_scan, log_s, a, lam2, half, l, z2, w)
            low, high = _window(w, n_scan, best, DROP)
            amplitude = 0.0
            for g in range(groups):
                amplitude += half * math.log(max(l[g] + w[S, best], 1e-300))
            low, high = STRIDE * max(low - 1, 0), STRIDE * (high + 1)
            m = high - low + 1
            if m > w.shape[1]:
                w = np.empty((w.shape[0], 2 * m))
            _stable_nodes(nodes, low, m, log_s, a, order == 2, w)
        else:
            w, m, peak, amplitude = narrow(tau, first, table, log_s, lam2, half, l, z2, kappa, end, w)
        in_exponent = groups > 2 or (groups == 1 and d != 2 and d != 3)
        if in_exponent:
            _terms(w, m, l, z2, lam2, d, peak, 1.0)
        else:
            _terms(w, m, l, z2, lam2, d, peak + amplitude, math.exp(amplitude))
        total = _sum(w, P, m)
        log_p[i] = peak + math.log(total) + kappa - 0.5 * d * (LOG_4_PI + log_unit)
        if order == 0:
            continue
        norm = 1.0 / total
        if groups == 1:
            first_moment = _dot(w, P, RECIPROCAL, m) * norm * inverse
            second_moment = _triple(w, P, RECIPROCAL, RECIPROCAL, m) * norm * inverse
            for k in range(d):
                by_b[i, k] = 0.5 * t * first_moment * y[k] if y[k] != 0.0 else 0.0
            by_D_o[i, 0, 0] = -0.5 * d * t * first_moment
            if z2[0] > 0.0:
                by_D_o[i, 0, 0] += 0.25 * t * z2[0] * second_moment
        else:
            for k in range(d):
                moment = _dot(w, P, RECIPROCAL + k, m) * norm * inverse
                by_b[i, k] = 0.5 * t * moment * z[k] if z[k] != 0.0 else 0.0  # along the eigenvectors, for now
                gradient[k, k] = -0.5 * moment
            for j in range(d):
                z_j = z[j] * inverse
                for k in range(j, d):
                    if z[j] == 0.0 or z[k] == 0.0:
                        gradient[j, k] = gradient[k, j] = gradient[j, j] if j == k else 0.0
                        continue
                    moment = 0.25 * z_j * (z[k] * inverse) * (_triple(w, P, RECIPROCAL + j, RECIPROCAL + k, m) * norm)
                    if j == k:
                        gradient[j, j] += moment
                    else:
                        gradient[j, k] = gradient[k, j] = moment
            for j in range(d):
                y[j] = 0.0
                for k in range(d):
                    y[j] += Q[j, k] * by_b[i, k]
            for j in range(d):
                by_b[i, j] = y[j]
            for j in range(d):
                for k in range(d):
                    matrix[j, k] = 0.0
                    for h in range(d):
                        matrix[j, k] += Q[j, h] * gradient[h, k]
            for j in range(d):
                for k in range(d):
                    value = 0.0
                    for h in range(d):
                        value += matrix[j, h] * Q[k, h]
                    by_D_o[i, j, k] = t * value
        by_scale = _dot(w, P, XS, m) * norm  # d log p / d log s
        by_D_f[i] = t * (by_scale / a + kappa) / B
        if order == 2:
            by_tau = (_dot(w, P, W_TAU, m) + _triple(w, P, XS, T_TAU, m)) * norm - by_scale * log_B * (1.0 - a) / a
            by_alpha[i] = by_tau / (a * (1.0 - a))
            if rate > 0.0:
                by_alpha[i] += 2.0 * kappa * math.log(rate)
                mean_time = _dot(w, P, S, m) * norm * math.exp(min(log_unit, LARGEST))
                by_lam[i] = 2.0 * a * kappa / rate - 2.0 * rate * mean_time
            else:
                by_lam[i] = 0.0 if a > 0.5 else (B if a == 0.5 else 1e300)
    return DONE


@compiled
def narrow(tau, first, table, log_s, lam2, half, l, z2, kappa, end, w):
    """The nodes of a tempered sum, as fine as the integrand is narrow: (w, number, largest exponent, log of the
    amplitude at its node), with S, E, T_TAU and W_TAU of the nodes in w.
    """
    c = math.exp(tau)
    beta = 1.0 / (1.0 + c)
    step = STRIDE * H
    # the left end, where K exp(-c u) is well above that of the tempered maximum
    power = half * l.shape[0] / c
    x_end = 2.0 * (beta * kappa + power) + 4.0 * DROP + math.sqrt(8.0 * DROP * (beta * kappa + power))
    left = -math.log1p(c) - c * math.log1p(1.0 / c) - math.log(x_end)
    left = left / c if c < 1.0 else left
    n_scan = max(2, int((end - left) / step) + 3)
    if n_scan > w.shape[1]:
        w = np.empty((w.shape[0], 2 * n_scan))
    peak, best = -math.inf, 0
    for i in range(n_scan):
        u, _, weight, _, slope = node_at(left + i * step, tau, first, table)
        s = math.exp(min(max(log_s + u, -LARGEST), LARGEST))
        value, bend = weight - lam2 * s, lam2 * s
        x = math.exp(min(-math.log1p(c) - c * math.log1p(1.0 / c) - c * u, LARGEST))
        bend += min(c * c * x, c * lam2 * s)
        for g in range(l.shape[0]):
            r = max(l[g] + s, 1e-300)
            value -= half * math.log(r) + 0.25 * z2[g] / r
            bend += 0.25 * z2[g] * s / (r * r) * abs(2.0 * s / r - 1.0)
        w[E, i], w[P, i] = value, bend * slope * slope
        if value > peak:
            peak, best = value, i
    # nodes near which the integrand may reach exp(-DROP) of its largest term
    low, high, sharpest = best, best, 0.0
    for i in range(n_scan):
        if w[E, i] + 0.125 * w[P, i] * step * step > peak - DROP:
            low, high, sharpest = min(low, i), max(high, i), max(sharpest, w[P, i])
    h = H
    while h * math.sqrt(sharpest) > NARROW and h > 1e-7:
        h *= 0.5
    v_low = left + (low - 1) * step
    m = int((high - low + 2) * step / h) + 1
    if m > w.shape[1]:
        w = np.empty((w.shape[0], 2 * m))
    log_h = math.log(h)
    peak, amplitude = -math.inf, 0.0
    for j in range(m):
        u, u_tau, weight, weight_tau, _ = node_at(v_low + j * h, tau, first, table)
        s = math.exp(min(max(log_s + u, -LARGEST), LARGEST))
        w[S, j], w[E, j], w[T_TAU, j], w[W_TAU, j] = s, log_h + weight, u_tau, weight_tau
        value, volume = log_h + weight - lam2 * s, 0.0
        for g in range(l.shape[0]):
            r = max(l[g] + s, 1e-300)
            volume += half * math.log(r)
            value -= 0.25 * z2[g] / r
        if value - volume > peak:
            peak, amplitude = value - volume, volume
    return w, m, peak, amplitude
