"""Compiled mass outside of a ball around any point, with a matrix D_o (`balls.py`), and all its first derivatives.

One sample at a time: for every direction a loop over the times of the mixture, without sums in it, which LLVM
vectorises. In the coordinates of the eigenvectors of A, with q_p = 1 / (l_p + s), the direction e has
a = sum_p e_p^2 q_p, and its share of the mass is f = a^(-d/2) (prod_p q_p)^(1/2) Q(d/2, R^2 a / 4).
"""

from __future__ import annotations

import math

import numpy as np

from levytorch.law.contour_kernels import compiled
from levytorch.law.mixture_kernels import eigen, summing
from levytorch.law.vector_math import fast_exp

LARGEST = 600.0  # of the logarithm of a time
# scratch rows of one sample
S, W, ROOT, F, X, E, BY_R, RECIPROCAL = 0, 1, 2, 3, 4, 5, 6, 7
N_ROWS = RECIPROCAL


@summing
def _dot(w, a, b, n):
    total = 0.0
    for j in range(n):
        total += w[a, j] * w[b, j]
    return total


@compiled
def _tail(d, w, n):
    """Q(d/2, x) into row E, x^(d/2 - 1) exp(-x) / Gamma(d/2) into row BY_R, for x in row X."""
    if d == 2:
        for j in range(n):
            w[E, j] = fast_exp(-min(w[X, j], 740.0))
            w[BY_R, j] = w[E, j]
        return
    gamma = math.gamma(0.5 * d)
    for j in range(n):
        x = min(w[X, j], 740.0)
        decay = math.exp(-x)
        if d % 2 == 0:
            order, tail, term = 1.0, decay, x * decay
        else:
            order, tail, term = 0.5, math.erfc(math.sqrt(x)), math.sqrt(x) * decay / math.gamma(1.5)
        while order < 0.5 * d:  # Q(a + 1, x) = Q(a, x) + x^a exp(-x) / Gamma(a + 1)
            tail += term
            order += 1.0
            term *= x / order
        w[E, j] = tail
        w[BY_R, j] = x ** (0.5 * d - 1.0) * decay / gamma


@compiled
def _times(u, weight, B, alpha, rate, w):
    """The times s and their probabilities into rows S and W, for nodes u and the logarithms of their weights."""
    log_s, kappa, rate2 = math.log(B) / alpha, 0.0, rate * rate
    if rate > 0.0:
        kappa = B * rate ** (2.0 * alpha)
    for j in range(len(u)):
        s = math.exp(min(max(log_s + u[j], -LARGEST), LARGEST))
        w[S, j] = s
        w[W, j] = math.exp(weight[j] + kappa - rate2 * s)


@compiled
def inside(
    start, stop, c, shift, A, B, alpha, rate, e, share, u, weight, u_alpha, weight_alpha, grad,
    mass, by_c, by_shift, by_A, by_B, by_alpha, by_rate,
):  # fmt: skip
    """P(|Y - shift| > c), where |shift| < c, and with `grad` its derivatives, for the samples start ... stop - 1.

    c, B, alpha, rate (n,), shift (n, d), A (n, d, d); directions e (k, d) and their shares of the mean; nodes u of the
    random time, the logarithms of their weights and the derivatives of both in alpha, (1 or n, m).
    """
    d, n_e, m = shift.shape[1], len(share), u.shape[1]
    l, Q, matrix, total = np.empty(d), np.empty((d, d)), np.empty((d, d)), np.empty((d, d))
    turned = np.empty(d)
    w = np.empty((N_ROWS + d + (d * (d + 1)) // 2, m))
    pairs = RECIPROCAL + d
    for i in range(start, stop):
        k_u = i if u.shape[0] > 1 else 0
        _times(u[k_u], weight[k_u], B[i], alpha[i], rate[i], w)
        matrix[:] = A[i]
        eigen(matrix, l, Q)
        for j in range(m):
            w[ROOT, j] = 1.0
        for p in range(d):
            l_p = max(l[p], 0.0)
            for j in range(m):
                w[RECIPROCAL + p, j] = 1.0 / max(l_p + w[S, j], 1e-300)
                w[ROOT, j] *= math.sqrt(w[RECIPROCAL + p, j])
        w[F, :] = 0.0
        w[pairs:, :] = 0.0
        square = 0.0
        for p in range(d):
            square += shift[i, p] * shift[i, p]
        by_c[i] = 0.0
        by_shift[i] = 0.0
        for k in range(n_e):
            along = 0.0
            for p in range(d):
                along += shift[i, p] * e[k, p]
                turned[p] = 0.0
                for q in range(d):
                    turned[p] += Q[q, p] * e[k, q]
            root = math.sqrt(max(c[i] * c[i] - (square - along * along), 1e-280))
            R = along + root
            by_R = _along(d, R, turned, share[k], pairs, grad, w, m)
            if grad:
                by_c[i] += by_R * c[i] / root
                for p in range(d):
                    by_shift[i, p] += by_R * (e[k, p] + (along * e[k, p] - shift[i, p]) / root)
        mass[i] = _dot(w, F, W, m)
        if grad:
            _by_law(d, B[i], alpha[i], rate[i], u_alpha[k_u], weight_alpha[k_u], pairs, w, m, i, matrix, by_B,
                    by_alpha, by_rate)  # fmt: skip
            for p in range(d):  # back from the eigenvectors
                for q in range(d):
                    total[p, q] = 0.0
                    for h in range(d):
                        total[p, q] += Q[p, h] * matrix[h, q]
            for p in range(d):
                for q in range(d):
                    by_A[i, p, q] = 0.0
                    for h in range(d):
                        by_A[i, p, q] += total[p, h] * Q[q, h]


@compiled
def _along(d, R, e, share, pairs, grad, w, m):
    """Add the part of one direction to F and, with `grad`, share * e_p e_q df/da to the rows of pairs; returns the
    derivative of the mass in R.
    """
    for j in range(m):
        w[X, j] = 0.0
    for p in range(d):
        e2 = e[p] * e[p]
        for j in range(m):
            w[X, j] += e2 * w[RECIPROCAL + p, j]
    scale = 0.25 * R * R
    for j in range(m):
        w[X, j] *= scale
    _tail(d, w, m)
    # a^(-d/2) (prod q)^(1/2), with x = a R^2 / 4
    if d == 2:
        for j in range(m):
            w[X, j] = scale / w[X, j]  # 1 / a
        for j in range(m):
            w[E, j] *= share * w[X, j] * w[ROOT, j]
            w[BY_R, j] *= share * w[X, j] * w[ROOT, j]
    else:
        for j in range(m):
            w[X, j] = scale / w[X, j]
        for j in range(m):
            size = share * w[X, j] ** (0.5 * d) * w[ROOT, j]
            w[E, j] *= size
            w[BY_R, j] *= size
    for j in range(m):
        w[F, j] += w[E, j]
    if not grad:
        return 0.0
    # df/da = -(d/2 f + size x^(d/2) exp(-x) / Gamma(d/2)) / a, into row E
    for j in range(m):
        w[E, j] = -(0.5 * d * w[E, j] * w[X, j] + scale * w[BY_R, j])
    row = pairs
    for p in range(d):
        for q in range(p, d):
            both = e[p] * e[q]
            for j in range(m):
                w[row, j] += both * w[E, j]
            row += 1
    # df/dR = -size R a / 2 x^(d/2 - 1) exp(-x) / Gamma(d/2)
    for j in range(m):
        w[BY_R, j] *= -0.5 * R / w[X, j]
    return _dot(w, BY_R, W, m)


@compiled
def _by_law(d, B, alpha, rate, u_alpha, weight_alpha, pairs, w, m, i, matrix, by_B, by_alpha, by_rate):
    """The derivatives in B, alpha and rate, and in A, in the coordinates of its eigenvectors, into `matrix`."""
    # row X: the derivative in s
    for j in range(m):
        w[X, j] = 0.0
    row = pairs
    for p in range(d):
        for q in range(p, d):
            total = 0.0
            for j in range(m):
                by_C = -w[row, j] * w[RECIPROCAL + p, j] * w[RECIPROCAL + q, j]
                if p == q:
                    by_C -= 0.5 * w[F, j] * w[RECIPROCAL + p, j]
                    w[X, j] += by_C
                total += w[W, j] * by_C
            matrix[p, q] = matrix[q, p] = total
            row += 1
    log_B, rate2 = math.log(B), rate * rate
    power, kappa_alpha, kappa_rate = 0.0, 0.0, 0.0
    if rate > 0.0:
        power = rate ** (2.0 * alpha)
        kappa_alpha, kappa_rate = 2.0 * B * power * math.log(rate), 2.0 * alpha * B * power / rate
    in_B, in_alpha, in_rate = 0.0, 0.0, 0.0
    for j in range(m):
        s, p = w[S, j], w[W, j]
        slope = w[X, j] - rate2 * w[F, j]  # of weight times f in s, over the weight
        s_alpha = s * (u_alpha[j] - log_B / (alpha * alpha))
        in_B += p * (slope * s / (alpha * B) + power * w[F, j])
        in_alpha += p * (slope * s_alpha + (weight_alpha[j] + kappa_alpha) * w[F, j])
        in_rate += p * w[F, j] * (kappa_rate - 2.0 * rate * s)
    by_B[i], by_alpha[i], by_rate[i] = in_B, in_alpha, in_rate
