"""The mixture of Gaussians of `mixture.py` by torch operations: any device, differentiable as often as one likes.

The same nodes, weights and sums as the compiled kernels, which come here for second derivatives; the two are tested
against each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from levytorch.convert import Array
from levytorch.law.mixture import DROP, FINE, NARROW, SHIFT, WIDTH, H, Panel, panel, panel_index

SCAN = 1.0  # step of the coarse look at the exponents
STRETCH = 64.0  # of v, whose nodes are kept together
TERMS = 1 << 18  # held at a time
LARGEST = 600.0  # of the logarithm of a time
_LAGRANGE = [(-1.0) ** (7 - k) / (math.factorial(k) * math.factorial(7 - k)) for k in range(8)]


def log_density(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor | None) -> Tensor:
    """log p (n,) of steps y (n, d): A (n,) or (n, d, d), B (n,), alpha (1,) or (n,), lam (n,) or None."""
    pieces, places = [], []
    for rows, table in _panels(alpha, len(y)):
        own: Any = _rows(rows, y, A, B, alpha, lam)
        with torch.no_grad():
            spread = spectrum(*own[:2])
        for part, v, h in plan(spread[0], spread[1], y.shape[1], own[2], own[3], own[4], table):
            at = part if rows is None else rows[part]
            y_, A_, B_, alpha_, lam_ = _rows(at, y, A, B, alpha, lam)
            u, weight, _ = nodes(v, alpha_, table)
            pieces.append(log_sum(u, math.log(h) + weight, y_, A_, B_, alpha_, lam_))
            places.append(at)
    return torch.cat(pieces)[torch.argsort(torch.cat(places))]


def over_times(
    function: Callable[[Tensor, Tensor], Tensor],
    l: Tensor,
    square: Tensor,
    B: Tensor,
    alpha: Tensor,
    lam: Tensor | None,
) -> Tensor:
    """The mean over the random time s of function(s (n, m), rows (n,)), a number in [0, 1]: (n,).

    The function falls off no slower than exp(-square / (4 (l + s))) where that is small.
    """
    pieces, places = [], []
    for rows, table in _panels(alpha, len(l)):
        own: list[Any] = list(_rows(rows, l, l, B, alpha, lam)[2:])
        some = (l, square) if rows is None else (l[rows], square[rows])
        if bool((own[1].detach() == own[1].detach()[0]).all()):
            own[1] = own[1][:1]
        for part, v, h in plan(some[0][:, None], some[1][:, None], 0, own[0], own[1], own[2], table):
            at = part if rows is None else rows[part]
            _, _, B_, alpha_, lam_ = _rows(at, l, l, B, alpha, lam)
            s, weight = _weights(B_, alpha_, lam_, table, v, h)
            pieces.append((weight * function(s, at)).sum(1))
            places.append(at)
    return torch.cat(pieces)[torch.argsort(torch.cat(places))]


@torch.no_grad()
def shared_times(
    l: Tensor, square: Tensor, B: Tensor, alpha: Tensor, lam: Tensor | None
) -> Iterator[tuple[Tensor, list[Array]]]:
    """Rows of samples that share nodes of the random time, as in `over_times`: u, the logarithms of the weights, and
    the derivatives of both in alpha, (1, m), or (rows, m) where alpha differs.
    """
    for rows, table in _panels(alpha, len(l)):
        own: list[Any] = list(_rows(rows, l, l, B, alpha, lam)[2:])
        some = (l, square) if rows is None else (l[rows], square[rows])
        same = bool((own[1] == own[1][0]).all())
        given = own[1][:1] if same else own[1]
        for part, v, h in plan(some[0][:, None], some[1][:, None], 0, own[0], given, own[2], table):
            if same:
                u, weight, *slopes = _nodes_between(v, h, float(given))
            else:
                a = own[1][part]
                found: Any = torch.func.jvp(partial(_u_and_weight, v, table), (a,), (torch.ones_like(a),))
                (u, weight), slopes = found
            columns = [t.reshape(-1, len(v)).contiguous().numpy() for t in (u, math.log(h) + weight, *slopes)]
            yield (part if rows is None else rows[part]), columns


def _moving_nodes(v: Tensor, h: float, alpha: Tensor, table: Panel) -> tuple[Tensor, Tensor]:
    """u and the logarithm of the weight; where all alpha are the same the nodes are computed once, and each sample
    keeps its own first derivative in alpha.
    """
    if bool((alpha.detach() != alpha.detach()[0]).any()):
        return nodes(v, alpha, table)[:2]
    u, weight, u_slope, weight_slope = _nodes_between(v, h, float(alpha.detach()[0]))
    if not (torch.is_grad_enabled() and alpha.requires_grad):
        return u, weight
    change = (alpha - alpha.detach())[:, None]
    return u + u_slope * change, weight + weight_slope * change


def _nodes_between(v: Tensor, h: float, alpha: float) -> list[Tensor]:
    """u, the logarithm of the weight and their derivatives in one alpha at the nodes v, a step h apart."""
    low, high = (STRETCH * math.floor(float(end) / STRETCH) for end in (v[0], v[-1] + STRETCH))
    first = round((float(v[0]) - low) / h)  # nodes begin at whole numbers
    return [t[first : first + len(v)] for t in _nodes_of(alpha, h, low, high)]


@lru_cache(maxsize=16)
def _nodes_of(alpha: float, h: float, low: float, high: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """u, the logarithm of the weight and their derivatives in alpha at the nodes from low to high, of one alpha."""
    table = panel(int(panel_index(alpha)))
    v = low + h * torch.arange(round((high - low) / h), dtype=torch.float64)
    one = torch.tensor([alpha], dtype=torch.float64)
    with torch.no_grad():
        found: Any = torch.func.jvp(partial(_u_and_weight, v, table), (one,), (torch.ones_like(one),))
    return *found[0], *found[1]


def _u_and_weight(v: Tensor, table: Panel, alpha: Tensor) -> tuple[Tensor, Tensor]:
    return nodes(v, alpha, table)[:2]


def _weights(B: Tensor, alpha: Tensor, lam: Tensor | None, table: Panel, v: Tensor, h: float) -> tuple[Tensor, Tensor]:
    """Times s (n, m) and their probabilities."""
    u, weight = _moving_nodes(v, h, alpha, table)
    s, weight = tempered(u, math.log(h) + weight, B, alpha, lam)
    return s, torch.exp(weight).expand_as(s)


def _panels(alpha: Tensor, n: int) -> list[tuple[Tensor | None, Panel]]:
    """The samples of each panel of alpha; None for all of them."""
    index = panel_index(alpha.detach().cpu().numpy())
    found = np.unique(index).tolist()
    if len(found) == 1:
        return [(None, panel(found[0]))]
    where = torch.as_tensor(index, device=alpha.device)
    return [((where == k).nonzero()[:, 0], panel(k)) for k in found]


def _rows(
    rows: Tensor | None, y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    if rows is None:
        return y, A, B, alpha, lam
    return y[rows], A[rows], B[rows], alpha if len(alpha) == 1 else alpha[rows], None if lam is None else lam[rows]


def nodes(v: Tensor, alpha: Tensor, table: Panel) -> tuple[Tensor, Tensor, Tensor]:
    """u, log(u'(v) g(u)) and u'(v): (m,) for one alpha, else (n, m); v: (m,)."""
    tau = torch.log(alpha) - torch.log1p(-alpha)
    tau = tau[0] if len(tau) == 1 else tau[:, None]
    c, below = torch.exp(tau), table.middle < 0
    log_K = -torch.log1p(c) - c * torch.log1p(1.0 / c)
    v = v.expand(torch.broadcast_shapes(v.shape, tau.shape))
    if below:
        omega, u, slope = v * c, v, torch.ones_like(v)
    else:
        share = -torch.expm1(-tau)
        omega, u = v, v / c + share * torch.nn.functional.softplus(v - tau - SHIFT, threshold=1e9)
        slope = 1.0 / c + share * torch.sigmoid(v - tau - SHIFT)
    log_x = log_K - c * u
    coefficients = torch.as_tensor(table.coefficients, dtype=v.dtype, device=v.device)
    last = coefficients.shape[1] - 1
    position = omega * (FINE / H) - table.first
    held = position.clamp(0.0, float(last))
    base = (held.detach().floor().long() - 3).clamp(0, last - 7)
    f, t = held - base, (tau - table.middle) * (2.0 / WIDTH)
    powers = torch.stack([t**k for k in range(len(coefficients))], dim=-1)  # (p,) or (n, 1, p)
    rows = powers @ coefficients if tau.dim() == 0 else None
    R = torch.zeros_like(held)
    for k, weight in enumerate(lagrange(f)):
        if rows is None:
            value = torch.zeros_like(held)
            for row in coefficients.flip(0):
                value = value * t + row[base + k]
        else:
            value = rows[base + k]
        R = R + weight * value
    beyond = (position - last).clamp_min(0.0) * (H / FINE)
    R = R - c / (1.0 + c) * (beyond / c if below else beyond)
    # to the left R is log(x) / 2 and a constant
    R = R - 0.5 * position.clamp_max(0.0) * (H / FINE)
    return u, torch.log(slope) + R - torch.exp(log_x.clamp_max(LARGEST)), slope


def lagrange(f: Tensor) -> Iterator[Tensor]:
    """The weights of the values at 0, 1, ..., 7 in the polynomial through them, at f."""
    for k, weight in enumerate(_LAGRANGE):
        out = torch.full_like(f, weight)
        for m in range(8):
            if m != k:
                out = out * (f - m)
        yield out


def left_end(alpha: Tensor, kappa: Tensor, d: int) -> Tensor:
    """K exp(-c u) has outgrown all else to the left of this, which is c u for alpha < 1/2 and v otherwise."""
    c = alpha / (1.0 - alpha)
    power = (1.0 - alpha) * kappa + 0.5 * d / c
    root = torch.sqrt(8.0 * DROP * power)
    return torch.log1p(-alpha) + c * torch.log(alpha) - torch.log(2.0 * power + 4.0 * DROP + root)


@torch.no_grad()
def plan(
    l: Tensor, z2: Tensor, d: int, B: Tensor, alpha: Tensor, lam: Tensor | None, table: Panel
) -> list[tuple[Tensor, Tensor, float]]:
    """Samples, nodes v and their step, such that the samples share the nodes.

    l, z2: (n, groups); the terms are exp(-z2 / (4 (l + s))) over the root of the product of (l + s), d of them in all.
    """
    n, groups = l.shape
    a = alpha.expand(n)
    c = a / (1.0 - a)
    log_scale = torch.log(B) / a
    kappa = B.new_zeros(n) if lam is None else B * lam ** (2.0 * a)
    size = torch.maximum(l.amax(1), z2.sum(1)).clamp_min(1e-300).log()
    end = 36.0 / (a + 0.5 * d) + 5.0 + (size - log_scale).clamp_min(0.0)
    left = left_end(a, kappa, d)
    if table.middle < 0:
        left = left / c
    else:
        end = end + torch.log(c) + SHIFT
    out = []
    v_all = torch.arange(math.floor(float(left.min())), math.ceil(float(end.max())) + SCAN, SCAN).to(B)
    step = max(1, TERMS // (len(v_all) * (groups + 8)))
    for low in range(0, n, step):
        rows = slice(low, low + step)
        u, value, slope = nodes(v_all, alpha if len(alpha) == 1 else alpha[rows], table)
        s = torch.exp((log_scale[rows, None] + u).clamp(-LARGEST, LARGEST))
        value, bend = value.expand_as(s).clone(), torch.zeros_like(s)
        if lam is not None:
            pull = (lam[rows, None] ** 2) * s
            x = (1.0 - a) * a**c if len(alpha) == 1 else ((1.0 - a) * a**c)[rows]
            x = x[: s.shape[0], None] * torch.exp((-c[rows, None] * u).clamp_max(LARGEST))
            value -= pull
            bend += pull + torch.minimum(c[rows, None] ** 2 * x, c[rows, None] * pull)
        for g in range(groups):
            r = l[rows, g, None] + s
            value -= 0.5 * d / groups * torch.log(r) + 0.25 * z2[rows, g, None] / r
            if lam is not None:
                bend += 0.25 * z2[rows, g, None] * s / (r * r) * (2.0 * s / r - 1.0).abs()
        bend = bend * slope * slope
        near = value + 0.125 * bend * SCAN**2 > value.amax(1, keepdim=True) - DROP
        index = torch.arange(len(v_all), device=B.device)
        start = torch.where(near, index, len(v_all)).amin(1)
        stop = torch.where(near, index, -1).amax(1)
        sharp = torch.where(near, bend, 0.0).amax(1)
        level = torch.ceil(torch.log2((H / NARROW) * sharp.clamp_min(1e-9).sqrt())).clamp(0, 22).long()
        for k in level.unique().tolist():
            chosen = (level == k).nonzero()[:, 0]
            chosen = chosen[torch.argsort(start[chosen])]
            h = H / 2**k
            while len(chosen):
                first = int(start[chosen[0]])
                count = int((int(stop[chosen].max()) - first + 2) * SCAN / h) + 1
                some = chosen[: max(1, TERMS // count)]
                first, final = int(start[some].min()), int(stop[some].max())
                count = int((final - first + 2) * SCAN / h) + 1
                out.append((some + low, float(v_all[first]) - SCAN + h * torch.arange(count).to(B), h))
                chosen = chosen[len(some) :]
    return out


def spectrum(y: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of A and squared components of y along its eigenvectors; one of each where A is a number."""
    if A.dim() == 1:
        return A[:, None], (y * y).sum(1, keepdim=True)
    l, Q = torch.linalg.eigh(A)
    z = (Q.transpose(1, 2) @ y[..., None])[..., 0]
    return l.clamp_min(0.0), z * z


def log_sum(
    u: Tensor, log_weight: Tensor, y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor | None
) -> Tensor:
    """log p (n,) from the nodes u and the logarithms of their weights, (m,) or (n, m)."""
    s, log_weight = tempered(u, log_weight, B, alpha, lam)
    log_det, square = gaussian(y, A, s)
    constant = 0.5 * y.shape[1] * math.log(4.0 * math.pi)
    return torch.logsumexp(log_weight - 0.5 * log_det - 0.25 * square, 1) - constant


def tempered(u: Tensor, log_weight: Tensor, B: Tensor, alpha: Tensor, lam: Tensor | None) -> tuple[Tensor, Tensor]:
    """Times s (n, m) and the logarithms of their weights."""
    s = torch.exp(((torch.log(B) / alpha)[:, None] + u).clamp(-LARGEST, LARGEST))
    if lam is None:
        return s, log_weight
    kappa = B * torch.exp(2.0 * alpha * torch.log(lam.clamp_min(1e-300)))
    return s, log_weight + kappa[:, None] - (lam * lam)[:, None] * s


def gaussian(y: Tensor, A: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """log det C and y^T C^-1 y of C = A + s I, (n, m) each, for s (n, m)."""
    d = y.shape[1]
    if A.dim() == 1:
        r = (A[:, None] + s).clamp_min(1e-300)
        return d * torch.log(r), (y * y).sum(1, keepdim=True) / r
    # C = L D L^T by hand: a few elementwise operations per entry
    D: list[Tensor] = []
    L: dict[tuple[int, int], Tensor] = {}
    w: list[Tensor] = []
    log_det, square = torch.zeros_like(s), torch.zeros_like(s)
    for j in range(d):
        for i in range(j, d):
            entry = A[:, i, j, None] + (s if i == j else torch.zeros_like(s))
            for k in range(j):
                entry = entry - L[i, k] * L[j, k] * D[k]
            if i == j:
                D.append(entry.clamp_min(1e-300))
            else:
                L[i, j] = entry / D[j]
        along = y[:, j, None].expand_as(s)
        for k in range(j):
            along = along - L[j, k] * w[k]
        w.append(along)
        log_det = log_det + torch.log(D[j])
        square = square + along * along / D[j]
    return log_det, square
