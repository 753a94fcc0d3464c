"""The quadrature of `tempered.py` by torch operations: any device, and the CPU when numba is missing.

The same contour and sums as the compiled kernels, all samples against a block of nodes at a time; the two are tested
against each other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from levytorch.law import contour_torch
from levytorch.law.contour_torch import complex_expm1, flow_out, gaussian_tail, real_sum
from levytorch.law.tempered import (
    CLEAR,
    CORE,
    COSH,
    COSH_1,
    DECAY,
    KAPPA,
    LOG_LIMIT,
    N_NODES,
    SINH,
    SMALL,
    STABLE_ROWS,
    THETA,
    TURN_GAUSS,
    TURN_JUMP,
    TURN_SADDLE,
    WEIGHT,
    WIDTH,
)
from levytorch.law.waves import EULER, hankel_scaled_torch

CHUNK = 4096  # samples at a time
NODES = 16  # nodes at a time


class TemperedPath(NamedTuple):
    split: Tensor
    s: Tensor
    d: Tensor
    theta: Tensor
    sigma: Tensor


def limit(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor) -> Tensor:
    """Where lam is so small that the law is the stable one times exp(B lam^(2 alpha))."""
    log_width = torch.maximum(torch.log(torch.maximum(y, 2.0 * torch.sqrt(A))), torch.log(B) / (2.0 * alpha))
    return (lam == 0) | (torch.log(lam) + log_width < LOG_LIMIT)


def jump_end(A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor) -> Tensor:
    log_r = torch.log(37.0 / B + lam ** (2.0 * alpha)) / (2.0 * alpha)
    return torch.exp(torch.minimum(log_r, 0.5 * torch.log(37.0 / A)).clamp_max(300.0))


def _saddle(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor, nearest: Tensor) -> Tensor:
    flat = y / (2.0 * A + 2.0 * alpha * B * lam ** (2.0 * alpha - 2.0))
    d = torch.maximum(nearest, lam - flat)
    moving = torch.ones_like(d, dtype=torch.bool)
    for _ in range(200):
        s, u = lam - d, d * (2.0 * lam - d)
        pull = 2.0 * alpha * B * u ** (alpha - 1.0)
        excess = 2.0 * A * s + pull * s - y
        curvature = 2.0 * A + pull * (1.0 + 2.0 * (1.0 - alpha) * s * s / u)
        moving &= (excess > 0) & (excess * excess > 1e-3 * curvature) & (d < lam)
        if not bool(moving.any()):
            break
        d = torch.where(moving, torch.minimum(d + excess / curvature, lam), d)
    return d


def path(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor, floor: bool) -> TemperedPath:
    """As `tempered_line.tempered_path`."""
    root = 2.0 * torch.sqrt(A)
    nearest = torch.minimum(CLEAR / torch.hypot((y - 2.0 * A * lam).clamp_min(0.0), root), lam)
    d = torch.where((A > 0) & (y < 2.0 * A * (lam - nearest)), lam - y / (2.0 * A).clamp_min(1e-300), nearest)
    inverse = 1.0 / torch.hypot(y - 2.0 * A * (lam - d), root)
    kappa = B * ((d + inverse) * (2.0 * lam - d + inverse)) ** alpha
    split = kappa < KAPPA
    d = torch.where(split, d, _saddle(y, A, B, alpha, lam, nearest))
    s, u = lam - d, d * (2.0 * lam - d)
    jump = 2.0 * alpha * B * u ** (alpha - 1.0) * (1.0 + 2.0 * (1.0 - alpha) * s * s / u)
    curvature = 2.0 * A + torch.where(split, 0.0, jump)
    width = 1.0 / torch.sqrt(curvature)
    if floor:
        d = torch.minimum(d, lam - torch.minimum(0.5 * lam, width))
    s = lam - d
    y1 = (y - 2.0 * A * s).clamp_min(0.0)
    square = y1 * y1
    core = CORE * (2.0 * alpha - 1.0).clamp_min(0.0) * kappa ** (1.0 / alpha) * square
    turns = ((y1 * jump_end(A, B, alpha, lam)) ** 2).clamp_max(1e300)
    opened = torch.where(split, square / (square + TURN_GAUSS * A + core), turns / (turns + TURN_JUMP))
    closed = torch.where(split, 1.0, 1.0 + d * d * curvature / TURN_SADDLE)
    theta = torch.where(y1 > 0, THETA * opened / closed, 0.0)
    sigma = torch.minimum(d, WIDTH * width)
    return TemperedPath(split, s, d, theta, torch.minimum(sigma, s) if floor else sigma)


def _log1p(w: Tensor) -> Tensor:
    size = 0.5 * torch.log1p(2.0 * w.real + w.real * w.real + w.imag * w.imag)
    return torch.complex(size, torch.atan2(w.imag, 1.0 + w.real))


def _powers(u: Tensor, log_u: Tensor, alpha: Tensor, lam: Tensor) -> list[Tensor]:
    ua = torch.exp(alpha * log_u)
    ub = ua / u
    last = 2.0 * alpha * ub + 4.0 * alpha * (alpha - 1.0) * lam * lam * ub / u
    cross = 2.0 * lam * ub * (1.0 + alpha * log_u)
    return [ua, ua * log_u, 2.0 * alpha * lam * ub, ua * log_u * log_u, cross, last]


def _power_offset(eta: Tensor, base: Tensor, alpha: Tensor, s: Tensor, lam: Tensor) -> Tensor:
    ratio = (s / lam).clamp_max(0.5)
    return torch.where(s < 0.5 * lam, -eta * torch.expm1(alpha * torch.log1p(-ratio * ratio)), eta - base)


def _finite_part(z: Tensor) -> Tensor:
    q, term = -0.25 * z * z, torch.ones_like(z)
    j1, y1, harmonic = term, (1.0 - 2.0 * EULER) * term, 0.0
    for k in range(1, 24):
        term = term * q / (k * (k + 1.0))
        harmonic += 1.0 / k
        j1, y1 = j1 + term, y1 + term * (2.0 * harmonic + 1.0 / (k + 1.0) - 2.0 * EULER)
    return 0.5 * j1 + 1j / math.pi * (torch.log(0.5 * z) * j1 - 0.5 * y1)


def _waves(dim: int, k: Tensor, y: Tensor, r: Tensor, small: Tensor) -> tuple[Tensor, Tensor]:
    if dim == 1:
        return torch.ones_like(r), 1j * r
    z = y * k
    if dim == 2:
        h0, h1 = hankel_scaled_torch(z)
        cube = k * k * k / (4.0 * math.pi)
        back = torch.exp(-1j * torch.where(small, z, 0.0))
        near = z.abs() < 2.0
        finite = torch.where(near, _finite_part(torch.where(near, z, 1.0)), 0.0)
        rest = torch.where(near, finite * back, h1 / z + 2j / (math.pi * z * z) * back)
        return 0.5 * k * h0, cube * torch.where(small, rest, h1 / z)
    x = torch.where(small, z.real, 1.0)
    safe = torch.where(x.abs() < 0.5, 1.0, x)
    q = x * x
    c0 = 1.0 - q / 6.0 * (1.0 - q / 20.0 * (1.0 - q / 42.0 * (1.0 - q / 72.0 * (1.0 - q / 110.0))))
    c1 = (1.0 - q / 10.0 * (1.0 - q / 28.0 * (1.0 - q / 54.0 * (1.0 - q / 88.0 * (1.0 - q / 130.0))))) / 3.0
    ratio = torch.sin(safe) / safe
    near = x.abs() < 0.5
    c0, c1 = torch.where(near, c0, ratio), torch.where(near, c1, (ratio - torch.cos(safe)) / (safe * safe))
    back, kk = torch.exp(-1j * x), k.real * k.real
    y = torch.where(small, 1.0, y)
    first = -1j * k / (2.0 * math.pi * y)
    second = first * (1.0 - 1j * z) / (2.0 * math.pi * y * y)
    return (
        torch.where(small, back * (0.5 / math.pi * kk * c0), first),
        torch.where(small, back * (0.25 / math.pi**2 * kk * kk * c1), second),
    )


class _Block(NamedTuple):
    r: Tensor
    k: Tensor
    q: Tensor  # k^2 + s^2
    wave: Tensor  # exponential times dr / pi
    e0: Tensor
    ex: Tensor
    m: Tensor  # (u / u0)^alpha - 1
    log_ratio: Tensor


def _block(p: TemperedPath, A: Tensor, alpha: Tensor, b0: Tensor, u0: Tensor, y1: Tensor, first: int) -> _Block:
    def nodes(table) -> Tensor:
        return torch.as_tensor(table[first : first + NODES], device=A.device)

    ct, st = torch.cos(p.theta), torch.sin(p.theta)
    r = torch.complex(p.sigma * nodes(SINH) * ct, p.sigma * nodes(COSH_1) * st)
    dr = torch.complex(p.sigma * nodes(COSH) * ct, p.sigma * nodes(SINH) * st) * nodes(WEIGHT)
    q = r * r + 2j * p.s * r
    log_ratio = _log1p(q / u0)
    m = complex_expm1(alpha * log_ratio)
    lin = 1j * y1 * r - A * r * r
    wave = torch.exp(torch.where(p.split, lin, lin - b0 * m)) * dr
    e0 = torch.where(p.split, complex_expm1(-b0 * (1.0 + m)), 1.0)
    return _Block(r, r + 1j * p.s, q, wave, e0, torch.where(p.split, e0 + 1.0, 1.0), m, log_ratio)


def _columns(*tensors: Tensor) -> list[Tensor]:
    return [t.unsqueeze(-1) for t in tensors]


def density(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor, *, dim: int, order: int) -> Tensor:
    """As `quadrature.density`."""
    y, A, B, alpha, lam = (t.detach() for t in torch.broadcast_tensors(y, A, B, alpha, lam))
    out = y.new_empty(((1, 6, 21)[order], len(y)))
    at_limit = limit(y, A, B, alpha, lam)
    for chosen, function in ((at_limit, _limit), (~at_limit, _density)):
        rows = chosen.nonzero()[:, 0]
        for part in rows.split(CHUNK) if len(rows) else ():
            out[:, part] = function(y[part], A[part], B[part], alpha[part], lam[part], dim, order)
    return out


def _limit(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor, dim: int, order: int) -> Tensor:
    stable = contour_torch.density(y, A, B, alpha, dim=dim, order=order)
    out = y.new_zeros(((1, 6, 21)[order], len(y)))
    out[STABLE_ROWS[: len(stable)]] = stable
    eta, log, safe = lam ** (2.0 * alpha), 2.0 * torch.log(lam.clamp_min(1e-300)), lam.clamp_min(1e-300)
    out[0] += B * eta
    if order >= 1:
        at_zero = torch.where(alpha > 0.5, 0.0, torch.where(alpha == 0.5, B, 1e300))
        out[3] += eta
        out[4] += B * eta * log
        out[5] = torch.where(lam > 0, 2.0 * alpha * B * safe ** (2.0 * alpha - 1.0), at_zero)
    if order == 2:
        slope = 2.0 * alpha * eta / safe
        out[16] += eta * log
        out[17] += slope
        out[18] += B * eta * log * log
        out[19] += B * (slope * log + 2.0 * eta / safe)
        out[20] += B * slope * (2.0 * alpha - 1.0) / safe
    return out


def _density(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor, dim: int, order: int) -> Tensor:
    end = jump_end(A, B, alpha, lam)
    small = (y * end < SMALL) if dim > 1 else torch.zeros_like(y, dtype=torch.bool)
    if dim == 2:
        y = torch.where(small, torch.maximum(y, 1e-20 / end), y)
    p = path(torch.where(small, 0.0, y), A, B, alpha, lam, dim == 2)
    p = p._replace(theta=torch.where(small, 0.0, p.theta))
    if dim == 3:
        p = p._replace(s=torch.where(small, 0.0, p.s), d=torch.where(small, lam, p.d))
    u0, y1 = p.d * (2.0 * lam - p.d), y - 2.0 * A * p.s
    base = _powers(u0, torch.log(u0), alpha, lam)
    eta = _powers(lam * lam, 2.0 * torch.log(lam), alpha, lam)
    b0 = B * base[0]
    cp, cu0, cy1 = TemperedPath(*_columns(*p)), u0.unsqueeze(-1), y1.unsqueeze(-1)
    cy, cA, cB, ca, cl, cb0, csmall = _columns(y, A, B, alpha, lam, b0, small)
    n_sums = {0: 2, 1: 6, 2: 20}[order]
    sums = [torch.zeros_like(y) for _ in range(n_sums)]
    largest = torch.zeros_like(y)
    for start in range(0, N_NODES, NODES):
        node = _block(cp, cA, ca, cb0, cu0, cy1, start)
        k0, k1 = (w * node.wave for w in _waves(dim, node.k, cy, node.r, csmall))
        f, f1 = k0 * node.e0, k1 * node.e0
        terms = [f, f1]
        if order >= 1:
            at = _powers(cu0 + node.q, torch.log(cu0) + node.log_ratio, ca, cl)
            shift = [torch.where(cp.split, a, a - c.unsqueeze(-1)) for a, c in zip(at, base)]
            shift[0] = torch.where(cp.split, at[0], base[0].unsqueeze(-1) * node.m)
            g = [-node.q, -shift[0], -cB * shift[1], -cB * shift[2]]
            k0x = k0 * node.ex
            terms += [g[0] * f, *(v * k0x for v in g[1:])]
        if order == 2:
            zero = torch.zeros_like(k0)
            gg = {(1, 2): -shift[1], (1, 3): -shift[2]}
            gg |= {(2, 2): -cB * shift[3], (2, 3): -cB * shift[4], (3, 3): -cB * shift[5]}
            k1x = k1 * node.ex
            terms += [g[0] * f1, *(v * k1x for v in g[1:])]
            terms += [g[0] * g[0] * f, *(g[0] * v * k0x for v in g[1:])]
            terms += [(g[i] * g[n] + gg.get((i, n), zero)) * k0x for i in range(1, 4) for n in range(i, 4)]
        sums = [s + real_sum(t) for s, t in zip(sums, terms)]
        size = (f.abs() + f1.abs() * cp.sigma) * (1.0 + node.r.abs() / cp.sigma if order == 2 else 1.0)
        size = size.nan_to_num(0.0)
        largest = torch.maximum(largest, size.max(-1).values)
        if bool((size[:, -2:].sum(-1) < DECAY * largest).all()):
            break
    if order == 0:
        sums += [torch.zeros_like(y)] * 4
    _add_gaussian(sums, p, y, y1, A, dim, order)
    offset = [torch.where(p.split, -e, b - e) for b, e in zip(base, eta)]
    offset[0] = torch.where(p.split, -eta[0], -_power_offset(eta[0], base[0], alpha, p.s, lam))
    return _logarithmic(sums, p.s, y, A, B, offset, dim, order)


def _add_gaussian(sums: list[Tensor], p: TemperedPath, y: Tensor, y1: Tensor, A: Tensor, dim: int, order: int) -> None:
    half = 0.5 * dim
    with_gauss = p.split & (A > 0)
    A = torch.where(with_gauss, A, 1.0)
    G = torch.where(with_gauss, torch.exp(-0.25 * y1 * y1 / A - half * torch.log(4.0 * math.pi * A)), 0.0)
    gA = 0.25 * y1 * y1 / (A * A) + y1 * p.s / A - half / A
    gy = -0.5 * y1 / A if dim == 1 else 1.0 / (4.0 * math.pi * A)
    sums[0] = sums[0] + G
    sums[1] = sums[1] + G * gy
    sums[2] = sums[2] + G * gA
    if order == 2:
        sums[6] = sums[6] + G * (gy * gA + 0.5 * y / (A * A) if dim == 1 else gy * (gA - 1.0 / A))
        sums[10] = sums[10] + G * (gA * gA - 0.5 * y * y / A**3 + half / (A * A))


def _logarithmic(
    sums: list[Tensor], s: Tensor, y: Tensor, A: Tensor, B: Tensor, offset: list[Tensor], dim: int, order: int
) -> Tensor:
    rows = [torch.log(sums[0]) - y * s + A * s * s - B * offset[0]]
    if order == 0:
        return torch.stack(rows)
    iP = 1.0 / sums[0]
    first = [v * iP for v in sums[2:6]]
    over_y = torch.zeros_like(y) if dim == 1 else -2.0 * math.pi * sums[1] * iP
    rows.append(sums[1] * iP - s if dim == 1 else y * over_y)
    rows += [first[0] + s * s, first[1] - offset[0], first[2] - B * offset[1], first[3] - B * offset[2]]
    if order == 1:
        return torch.stack(rows)
    slope, turn = (sums[1] * iP, 1.0) if dim == 1 else (rows[1], -2.0 * math.pi * y)
    rows.append(rows[2] - (dim - 1.0) * over_y - rows[1] ** 2)
    rows += [turn * m * iP - slope * f for m, f in zip(sums[6:10], first)]
    pairs = [(i, n) for i in range(4) for n in range(i, 4)]
    rows += [v * iP - first[i] * first[n] for v, (i, n) in zip(sums[10:], pairs)]
    for row, value in ((16, offset[1]), (17, offset[2]), (18, B * offset[3]), (19, B * offset[4]), (20, B * offset[5])):
        rows[row] = rows[row] - value
    return torch.stack(rows)


def tail(u: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor, *, dim: int, order: int) -> Tensor:
    """As `quadrature.tail`."""
    u, A, B, alpha, lam = (t.detach() for t in torch.broadcast_tensors(u, A, B, alpha, lam))
    out = u.new_zeros((6 if order else 1, len(u)))
    stable = (u == 0) | limit(u, A, B, alpha, lam)
    rows = stable.nonzero()[:, 0]
    if len(rows):
        part = contour_torch.tail(u[rows], A[rows], B[rows], alpha[rows], dim=dim, order=order)
        out[: len(part), rows] = part
        zero = rows[u[rows] == 0]
        if order and dim == 1 and len(zero):
            log_p = density(*(t[zero] for t in (u, A, B, alpha, lam)), dim=1, order=0)[0]
            out[1, zero] = -2.0 * torch.exp(log_p)
    rest = (~stable).nonzero()[:, 0]
    for part in rest.split(CHUNK) if len(rest) else ():
        out[:, part] = _tail(u[part], A[part], B[part], alpha[part], lam[part], dim, order)
    return out


def _tail(u: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor, dim: int, order: int) -> Tensor:
    p = path(u, A, B, alpha, lam, True)
    u0, y1 = p.d * (2.0 * lam - p.d), u - 2.0 * A * p.s
    base0 = u0**alpha
    eta = _powers(lam * lam, 2.0 * torch.log(lam), alpha, lam)
    cp = TemperedPath(*_columns(*p))
    cu, cA, ca, cl, cb0, cu0, cy1 = _columns(u, A, alpha, lam, B * base0, u0, y1)
    G, slopes, largest = torch.zeros_like(u), [torch.zeros_like(u)] * 3, torch.zeros_like(u)
    for start in range(0, N_NODES, NODES):
        node = _block(cp, cA, ca, cb0, cu0, cy1, start)
        z = cu * node.k
        if dim == 1:
            wave = node.wave * 2j / node.k
        elif dim == 2:
            wave = -math.pi * cu * hankel_scaled_torch(z)[1] * node.wave
        else:
            wave = 2.0 * (1j + z) / node.k * node.wave
        G = G + real_sum(wave * node.e0)
        if order:
            at = _powers(cu0 + node.q, torch.log(cu0) + node.log_ratio, ca, cl)
            slopes = [s - real_sum((a - e.unsqueeze(-1)) * wave * node.ex) for s, a, e in zip(slopes, at, eta)]
        size = (wave * node.e0).abs().nan_to_num(0.0)
        largest = torch.maximum(largest, size.max(-1).values)
        if bool((size[:, -2:].sum(-1) < DECAY * largest).all()):
            break
    offset = torch.where(p.split, eta[0], _power_offset(eta[0], base0, alpha, p.s, lam))
    scale = torch.exp(-u * p.s + A * p.s * p.s + B * offset)
    factor = torch.where(p.split, torch.exp(torch.where(p.split, B * eta[0], 0.0)), 0.0)
    rows = [(G * scale + gaussian_tail(u, A, dim) * factor).clamp(0.0, 1.0)]
    if order:
        found = density(u, A, B, alpha, lam, dim=dim, order=1)
        flow = flow_out(u, found[0], dim)
        rows += [-flow, -flow * found[1], slopes[0] * scale, slopes[1] * scale * B, slopes[2] * scale * B]
    return torch.stack(rows)
