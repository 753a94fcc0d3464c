"""The passes of the filter for noisy observations (`filter`), compiled.

log p(dx | x, dt) is a table over (dt, x, asinh(dx / scale)), read by cubic polynomials. A pair from y to y + dy has
local nodes y + s z_j at its begin and y + dy + s z_k at its end: as the z are even, dx takes 2 K - 1 values only. The
table is therefore first interpolated along dx, for the rows beside y (a patch), and then along x.

Weights of pairs of nodes are brought back onto the table by the transposed interpolation: what a pass leaves there is a
weighted batch of transitions between nodes of the table.
"""

from __future__ import annotations

import math

import numpy as np

from levytorch.law.contour_kernels import compiled
from levytorch.law.vector_math import fast_exp, inlined

POINTS = 4  # of the stencils
# what `place` holds: the grid along x (its begin, step, number of nodes, whether it repeats, ends of the states), and
# along dx (scale, begin, step)
ORIGIN, STEP, NODES, PERIODIC, LOW, HIGH, SCALE, U_LOW, U_STEP = range(9)


@inlined
def _cubic(t, weights, row):
    """Weights of the four nodes -1, 0, 1, 2 at t."""
    weights[row, 0] = -t * (t - 1.0) * (t - 2.0) / 6.0
    weights[row, 1] = (t + 1.0) * (t - 1.0) * (t - 2.0) / 2.0
    weights[row, 2] = -(t + 1.0) * t * (t - 2.0) / 2.0
    weights[row, 3] = (t + 1.0) * t * (t - 1.0) / 6.0


@compiled
def _stencils(x, dx, s, z, n_y, place, ix, wx, iy, wy):
    """First nodes and weights along x for every z, and along dx for every difference; returns the number of rows."""
    K = z.size
    n_x = int(place[NODES])
    h = z[1] - z[0] if K > 1 else 0.0
    periodic = place[PERIODIC] > 0.0
    middle = (x - place[ORIGIN]) / place[STEP]
    if periodic:
        middle -= n_x * math.floor(middle / n_x)
    for j in range(K):
        if periodic:
            at = middle + s * z[j] / place[STEP]
            first = math.floor(at) - 1
        else:
            state = min(max(x + s * z[j], place[LOW]), place[HIGH])
            at = (state - place[ORIGIN]) / place[STEP]
            first = min(max(math.floor(at) - 1, 0), n_x - POINTS)
        ix[j] = first
        _cubic(at - first - 1.0, wx, j)
    for d in range(2 * K - 1):
        u = math.asinh((dx + s * h * (d - K + 1)) / place[SCALE])
        at = (u - place[U_LOW]) / place[U_STEP]
        first = min(max(math.floor(at) - 1, 0), n_y - POINTS)
        iy[d] = first
        _cubic(at - first - 1.0, wy, d)
    return ix[K - 1] + POINTS - ix[0]


@compiled
def _log_p(sheet, shares, table, place, rows, ix, wx, iy, wy, patch, out):
    """log p from every node to every node, (K, K); returns the largest."""
    K = ix.size
    D, n_x = 2 * K - 1, int(place[NODES])
    for r in range(rows):
        row = (ix[0] + r) % n_x
        for d in range(D):
            total = 0.0
            for q in range(shares.size):
                values = table[sheet + q, row]
                at = iy[d]
                total += shares[q] * (
                    wy[d, 0] * values[at]
                    + wy[d, 1] * values[at + 1]
                    + wy[d, 2] * values[at + 2]
                    + wy[d, 3] * values[at + 3]
                )
            patch[r, d] = total
    largest = -math.inf
    for j in range(K):
        r, shift = ix[j] - ix[0], K - 1 - j
        a, b, c, e = wx[j, 0], wx[j, 1], wx[j, 2], wx[j, 3]
        for k in range(K):
            d = shift + k
            value = a * patch[r, d] + b * patch[r + 1, d] + c * patch[r + 2, d] + e * patch[r + 3, d]
            out[j, k] = value
            largest = max(largest, value)
    for j in range(K):
        for k in range(K):
            out[j, k] = fast_exp(out[j, k] - largest)
    return largest


@compiled
def most_rows(x, dx, s, z, n_y, place):
    """The largest number of rows that the nodes of one state touch."""
    K = z.size
    ix, iy = np.empty(K, dtype=np.int64), np.empty(2 * K - 1, dtype=np.int64)
    wx, wy = np.empty((K, POINTS)), np.empty((2 * K - 1, POINTS))
    most = 0
    for i in range(x.size):
        most = max(most, _stencils(x[i], dx[i], s, z, n_y, place, ix, wx, iy, wy))
    return most


@compiled
def mark(x, dx, sheets, n_sheets, s, z, n_y, place, needed):
    """needed[sheet, row, column]: which nodes of the table are read for a noise up to s."""
    K, n_x = z.size, int(place[NODES])
    ix, iy = np.empty(K, dtype=np.int64), np.empty(2 * K - 1, dtype=np.int64)
    wx, wy = np.empty((K, POINTS)), np.empty((2 * K - 1, POINTS))
    for i in range(x.size):
        rows = _stencils(x[i], dx[i], s, z, n_y, place, ix, wx, iy, wy)
        for q in range(n_sheets):
            for r in range(rows):
                line = needed[sheets[i] + q, (ix[0] + r) % n_x]
                for column in range(iy[0], iy[2 * K - 2] + POINTS):
                    line[column] = True


@compiled
def smooth(start, stop, begins, ends, x, dx, sheets, shares, table, s, z, prior, place, rows, weights_wanted, steps):
    """Chains start ... stop - 1: log-likelihood, sum of z^2 - 1 of all states, and weights of the table's nodes.

    steps (n,): log p of every observation given those before, written here.
    """
    K, n_y = z.size, table.shape[2]
    D = 2 * K - 1
    ix, iy = np.empty(K, dtype=np.int64), np.empty(D, dtype=np.int64)
    wx, wy = np.empty((K, POINTS)), np.empty((D, POINTS))
    patch, back, P = np.empty((rows, D)), np.empty((rows, D)), np.empty((K, K))
    out = np.zeros(table.shape) if weights_wanted else np.zeros((1, 1, 1))
    log_p, squares = 0.0, 0.0
    n_x = int(place[NODES])
    for chain in range(start, stop):
        lo, hi = begins[chain], ends[chain]
        m = hi - lo
        a, scale = np.empty((m + 1, K)), np.empty(m)
        a[0] = prior
        for n in range(m):
            i = lo + n
            used = _stencils(x[i], dx[i], s, z, n_y, place, ix, wx, iy, wy)
            largest = _log_p(sheets[i], shares[i], table, place, used, ix, wx, iy, wy, patch, P)
            total = 0.0
            for k in range(K):
                a[n + 1, k] = 0.0
            for j in range(K):
                for k in range(K):
                    a[n + 1, k] += a[n, j] * P[j, k]
            for k in range(K):
                a[n + 1, k] *= prior[k]
                total += a[n + 1, k]
            for k in range(K):
                a[n + 1, k] /= total
            scale[n] = total
            steps[i] = math.log(total) + largest
            log_p += steps[i]
        if not weights_wanted:
            continue
        later, before = np.ones(K), np.empty(K)
        for k in range(K):
            squares += a[m, k] * (z[k] * z[k] - 1.0)
        for n in range(m - 1, -1, -1):
            i = lo + n
            used = _stencils(x[i], dx[i], s, z, n_y, place, ix, wx, iy, wy)
            _log_p(sheets[i], shares[i], table, place, used, ix, wx, iy, wy, patch, P)
            for r in range(used):
                for d in range(D):
                    back[r, d] = 0.0
            for k in range(K):
                later[k] *= prior[k] / scale[n]
            for j in range(K):
                r, shift, sum_j = ix[j] - ix[0], K - 1 - j, 0.0
                wa, wb, wc, we = wx[j, 0], wx[j, 1], wx[j, 2], wx[j, 3]
                own = a[n, j]
                for k in range(K):
                    pk = P[j, k] * later[k]
                    sum_j += pk
                    w, d = own * pk, shift + k
                    back[r, d] += wa * w
                    back[r + 1, d] += wb * w
                    back[r + 2, d] += wc * w
                    back[r + 3, d] += we * w
                before[j] = sum_j
                squares += own * sum_j * (z[j] * z[j] - 1.0)
            for k in range(K):
                later[k] = before[k]
            for q in range(shares.shape[1]):
                part = shares[i, q]
                for r in range(used):
                    line = out[sheets[i] + q, (ix[0] + r) % n_x]
                    for d in range(D):
                        w, at = part * back[r, d], iy[d]
                        line[at] += wy[d, 0] * w
                        line[at + 1] += wy[d, 1] * w
                        line[at + 2] += wy[d, 2] * w
                        line[at + 3] += wy[d, 3] * w
    return log_p, squares, out


@compiled
def scores(
    start, stop, begins, ends, x, dx, sheets, shares, table, number, fields, loads, parts, P, s, z, prior, place, rows
):
    """Sum of the outer products of the scores of single observations given those before, (P + 1, P + 1), and of the
    scores, (P + 1,); the last parameter is log s.

    fields[number[sheet, row, column]]: d log p in C predictors; loads[row, c]: how predictor c moves with the
    parameters parts[c, 0] ... parts[c, 1]. The mean of the summed scores of the path given the present state is carried
    forward, T[k] <- sum_j P(j | k) (T[j] + d log p_jk).
    """
    K, n_y, C = z.size, table.shape[2], fields.shape[1]
    D, n_x = 2 * K - 1, int(place[NODES])
    ix, iy = np.empty(K, dtype=np.int64), np.empty(D, dtype=np.int64)
    wx, wy = np.empty((K, POINTS)), np.empty((D, POINTS))
    patch, p = np.empty((rows, D)), np.empty((K, K))
    F, M = np.empty((rows, D, C)), np.empty((rows, C))
    a, after = np.empty(K), np.empty(K)
    T, moved = np.empty((K, P + 1)), np.empty((K, P + 1))
    mean, last, step = np.empty(P + 1), np.empty(P + 1), np.empty(P + 1)
    outer, gradient = np.zeros((P + 1, P + 1)), np.zeros(P + 1)
    for chain in range(start, stop):
        a[:] = prior
        T[:] = 0.0
        for k in range(K):
            T[k, P] = z[k] * z[k] - 1.0
        last[:] = 0.0
        for k in range(K):
            last[P] += a[k] * T[k, P]
        gradient[P] += last[P]
        for i in range(begins[chain], ends[chain]):
            used = _stencils(x[i], dx[i], s, z, n_y, place, ix, wx, iy, wy)
            _log_p(sheets[i], shares[i], table, place, used, ix, wx, iy, wy, patch, p)
            F[:used] = 0.0
            for q in range(shares.shape[1]):
                for r in range(used):
                    row = (ix[0] + r) % n_x
                    for d in range(D):
                        for b in range(POINTS):
                            w = shares[i, q] * wy[d, b]
                            source = number[sheets[i] + q, row, iy[d] + b]
                            for c in range(C):
                                F[r, d, c] += w * fields[source, c]
            total = 0.0
            for k in range(K):
                weight = 0.0
                for j in range(K):
                    weight += a[j] * p[j, k]
                after[k] = prior[k] * weight
                total += after[k]
                for c in range(P + 1):
                    moved[k, c] = 0.0
                M[:used] = 0.0
                for j in range(K):
                    B = a[j] * p[j, k] / weight
                    if B < 1e-12:
                        continue
                    for c in range(P + 1):
                        moved[k, c] += B * T[j, c]
                    r, d = ix[j] - ix[0], K - 1 - j + k
                    for e in range(POINTS):
                        w = B * wx[j, e]
                        for c in range(C):
                            M[r + e, c] += w * F[r + e, d, c]
                for r in range(used):
                    row = (ix[0] + r) % n_x
                    for c in range(C):
                        w, first = M[r, c], parts[c, 0]
                        if w != 0.0:
                            for e in range(parts[c, 1] - first):
                                moved[k, first + e] += w * loads[row, c, e]
                moved[k, P] += z[k] * z[k] - 1.0
            for c in range(P + 1):
                mean[c] = 0.0
            for k in range(K):
                a[k] = after[k] / total
                for c in range(P + 1):
                    T[k, c] = moved[k, c]
                    mean[c] += a[k] * moved[k, c]
            for c in range(P + 1):
                step[c] = mean[c] - last[c]
                last[c] = mean[c]
                gradient[c] += step[c]
            for c in range(P + 1):
                own = step[c]
                for e in range(P + 1):
                    outer[c, e] += own * step[e]
    return outer, gradient


@compiled
def draw(start, stop, begins, ends, x, dx, sheets, shares, table, s, z, prior, place, rows, uniforms, states):
    """Paths of the states given the observations: z of every pair's begin and, where a chain ends, of its end.

    uniforms: (n + number of chains,) random numbers; states: likewise, a chain's numbers one after the other.
    """
    K, n_y = z.size, table.shape[2]
    D = 2 * K - 1
    ix, iy = np.empty(K, dtype=np.int64), np.empty(D, dtype=np.int64)
    wx, wy = np.empty((K, POINTS)), np.empty((D, POINTS))
    patch, P, chosen = np.empty((rows, D)), np.empty((K, K)), np.empty(K)
    for chain in range(start, stop):
        lo, hi = begins[chain], ends[chain]
        m = hi - lo
        a = np.empty((m + 1, K))
        a[0] = prior
        for n in range(m):
            i = lo + n
            used = _stencils(x[i], dx[i], s, z, n_y, place, ix, wx, iy, wy)
            _log_p(sheets[i], shares[i], table, place, used, ix, wx, iy, wy, patch, P)
            total = 0.0
            for k in range(K):
                value = 0.0
                for j in range(K):
                    value += a[n, j] * P[j, k]
                a[n + 1, k] = value * prior[k]
                total += a[n + 1, k]
            for k in range(K):
                a[n + 1, k] /= total
        later = 0
        for n in range(m, -1, -1):
            if n == m:
                chosen[:] = a[m]
            else:
                i = lo + n
                used = _stencils(x[i], dx[i], s, z, n_y, place, ix, wx, iy, wy)
                _log_p(sheets[i], shares[i], table, place, used, ix, wx, iy, wy, patch, P)
                for j in range(K):
                    chosen[j] = a[n, j] * P[j, later]
            total = 0.0
            for j in range(K):
                total += chosen[j]
            left, at = uniforms[lo + chain + n] * total, 0
            while at < K - 1 and left > chosen[at]:
                left -= chosen[at]
                at += 1
            later = at
            within = left / chosen[at] if chosen[at] > 0.0 else 0.5
            states[lo + chain + n] = z[at] + (min(max(within, 0.0), 1.0) - 0.5) * (z[1] - z[0])
