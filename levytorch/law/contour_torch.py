"""The contour quadrature of `contour.py` by torch operations: any device, and the CPU when numba is missing.

The same path, nodes and sums as `contour_kernels.py`, a chunk of samples against all nodes at a time; the two are
tested against each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from levytorch.law.contour import (
    DECAY,
    FLOOR,
    LOG_KAPPA_MIN,
    LOG_SPLIT,
    SPLIT_CORE,
    SPLIT_GAUSS,
    SPLIT_S,
    SPLIT_THETA,
    STEPS,
    UNSPLIT_S,
    UNSPLIT_THETA,
    UNSPLIT_TURN,
)
from levytorch.law.waves import bessel_small_torch, hankel_scaled_torch

CHUNK = 2**17  # samples x nodes held at a time
_ROWS = {0: 1, 1: 5, 2: 15}


class ContourPath(NamedTuple):
    """Contour of each sample: in units of exp(log_unit), rotated by theta, v from v0 to v1."""

    split: Tensor
    log_unit: Tensor
    y: Tensor
    A: Tensor
    B: Tensor
    theta: Tensor
    log_S: Tensor
    v0: Tensor
    v1: Tensor
    h: Tensor


def density(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, *, dim: int, order: int) -> Tensor:
    """As `quadrature.density`."""
    path = _path(*_same(y, A, B, alpha), dim + 2.0 * order, 1.0, fine=dim > 1 or order == 2)
    return _chunked(_density, path, *_same(y, A, B, alpha), dim, order)


def tail(u: Tensor, A: Tensor, B: Tensor, alpha: Tensor, *, dim: int, order: int) -> Tensor:
    """As `quadrature.tail`."""
    path = _path(*_same(u, A, B, alpha), float(dim), 0.0, fine=True)
    return _chunked(_tail, path, *_same(u, A, B, alpha), dim, order)


def _same(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y, A, B, alpha = (t.detach() for t in torch.broadcast_tensors(y, A, B, alpha))
    return y, A, B, alpha


def _chunked(
    function: Callable[..., Tensor],
    path: ContourPath,
    y: Tensor,
    A: Tensor,
    B: Tensor,
    alpha: Tensor,
    dim: int,
    order: int,
) -> Tensor:
    out = y.new_empty((_ROWS[order], len(y)))
    nodes = torch.ceil((path.v1 - path.v0) / path.h).long() + 1
    # samples that need about as many nodes are summed together
    by_need = torch.argsort(nodes)
    start = 0
    while start < len(y):
        size = max(1, CHUNK // int(nodes[by_need[min(start + CHUNK // 64, len(y) - 1)]]))
        index = by_need[start : start + size]
        n_nodes = int(nodes[index].max())
        part = ContourPath(*(t[index] for t in path))
        out[:, index] = function(part, A[index], B[index], alpha[index], n_nodes, dim, order, y[index])
        start += size
    return out


def real_sum(values: Tensor) -> Tensor:
    return values.real.nan_to_num(0.0).sum(-1)


def complex_expm1(z: Tensor) -> Tensor:
    """Without cancellation."""
    v = 2.0 * torch.sin(0.5 * z.imag) ** 2
    return torch.complex(torch.expm1(z.real) * (1.0 - v) - v, torch.exp(z.real) * torch.sin(z.imag))


def _limit(m: Tensor | float) -> Tensor:
    m = torch.as_tensor(m, dtype=torch.float64)
    return m + DECAY + torch.sqrt(2.0 * DECAY * m)


def _path(
    y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, power: float, floor_power: float, *, fine: bool
) -> ContourPath:
    inf = math.inf
    log_B = torch.log(B)
    L = torch.hypot(y, 2.0 * torch.sqrt(A))
    log_L = torch.where(L > 0, torch.log(L), -1e300)
    log_kappa = log_B - 2.0 * alpha * log_L
    split = log_kappa < LOG_SPLIT

    kappa = torch.exp(log_kappa.clamp(LOG_KAPPA_MIN, 0.0))
    safe_L = L.clamp_min(1e-300)
    y1, A1 = y / safe_L, (torch.sqrt(A) / safe_L) ** 2
    core = SPLIT_CORE * (2.0 * alpha - 1.0).clamp_min(0.0) * kappa ** (1.0 / alpha)
    theta = SPLIT_THETA * y1 * y1 / (y1 * y1 + SPLIT_GAUSS * A1 + core).clamp_min(1e-300)
    limit, limit_gauss = _limit(power).to(y), _limit(0.5 * power).to(y)
    log_r = torch.minimum(
        torch.log(limit / (y1 * torch.sin(theta))),
        0.5 * torch.log(limit_gauss / (A1 * torch.cos(2.0 * theta))),
    )
    begin = FLOOR / (floor_power + 2.0 * alpha)
    h = torch.where(alpha < 0.55, STEPS[1], STEPS[0]).to(y)
    log_S = torch.full_like(y, math.log(SPLIT_S))

    log_s = log_B / (2.0 * alpha)
    y2 = torch.exp((torch.log(y) - log_s).clamp_max(50.0))
    A2 = torch.exp((torch.log(A) - 2.0 * log_s).clamp_max(100.0))
    log_x = torch.log(_limit(power / (2.0 * alpha)))
    log_turn = torch.minimum(torch.log(37.0 + power / (2.0 * alpha)) / (2.0 * alpha), 0.5 * torch.log(37.0 / A2))
    turns = (y2 * torch.exp(log_turn.clamp_max(600.0))).clamp_max(1e150) ** 2
    theta2 = UNSPLIT_THETA * turns / (turns + UNSPLIT_TURN)
    log_r2 = torch.minimum(
        torch.minimum(
            (log_x - torch.log(torch.cos(2.0 * alpha * theta2))) / (2.0 * alpha),
            0.5 * torch.log(limit_gauss / (A2 * torch.cos(2.0 * theta2))),
        ),
        torch.log(limit / (y2 * torch.sin(theta2))).nan_to_num(inf),
    )
    log_r2 = log_r2.clamp_max(390.0)
    log_peak = (-torch.log(2.0 * alpha) / (2.0 * alpha)).clamp_max(380.0) + math.log(0.1)
    log_S2 = torch.minimum(log_peak.clamp_min(0.0), log_r2 + math.log(UNSPLIT_S))
    vanishes = torch.full_like(alpha, floor_power) if floor_power > 0 else (2.0 * alpha).clamp_max(1.0)
    begin2 = FLOOR / vanishes + log_S2.clamp_min(0.0)
    h2 = torch.where(log_kappa > 0, torch.where(alpha < 0.35, STEPS[1], STEPS[2]), STEPS[0]).to(y)

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(split, a, b)

    begin, log_r, log_S = pick(begin, begin2), pick(log_r, log_r2), pick(log_S, log_S2)
    h = torch.full_like(y, STEPS[0]) if fine else pick(h, h2)
    v0 = -torch.log((begin - torch.log(begin)).clamp_min(1.0))
    v1 = (log_r - log_S).clamp_min(0.0)
    v1 = v1 + torch.exp(-v1)
    one = torch.ones_like(B)
    return ContourPath(
        split, pick(log_L, log_s), pick(y1, y2), pick(A1, A2), pick(kappa, one), pick(theta, theta2), log_S, v0, v1, h
    )


class _Nodes(NamedTuple):
    r: Tensor  # complex nodes
    weight: Tensor  # d rho / rho
    exponential: Tensor  # exp(i y r - A r^2)
    e0: Tensor  # expm1(-x) on the split path, exp(-x) on the other
    ex: Tensor  # exp(-x)
    x: Tensor  # B r^(2 alpha)
    ell: Tensor  # log r in physical units
    rho: Tensor


def _nodes(path: ContourPath, alpha: Tensor, n: int) -> _Nodes:
    col = ContourPath(*(t.unsqueeze(-1) for t in path))
    a = alpha.unsqueeze(-1)
    t = torch.linspace(0.0, 1.0, n, dtype=torch.float64, device=alpha.device)
    v = col.v0 + (col.v1 - col.v0) * t
    weight = (col.v1 - col.v0) / (n - 1) * (1.0 + torch.exp(-v))
    log_rho = col.log_S + v - torch.exp(-v)
    rho = torch.exp(log_rho)
    r = torch.polar(rho, col.theta.expand_as(rho))
    exponential = torch.exp(1j * col.y * r - col.A * r * r)
    x = torch.polar(col.B * torch.exp(2.0 * a * log_rho), (2.0 * a * col.theta).expand_as(rho))
    ex = torch.exp(-x)
    e0 = torch.where(col.split, complex_expm1(-x), ex)
    ell = torch.complex(log_rho - col.log_unit, col.theta.expand_as(rho))
    return _Nodes(r, weight, exponential, e0, ex, x, ell, rho)


def _radial_kernels(dim: int, path: ContourPath, node: _Nodes) -> tuple[Tensor, Tensor]:
    """h_d(z) r^d and h_{d+2}(z) r^(d+2), exp(i z - A r^2) and d rho / rho included (d = 1: i r h_1 r)."""
    z = path.y.unsqueeze(-1) * node.r
    g = node.exponential * node.weight * node.r
    if dim == 1:
        k0 = g / math.pi
        return k0, 1j * node.r * k0
    if dim == 2:
        h0, h1 = hankel_scaled_torch(z)
        k0 = g * node.r * h0 / (2.0 * math.pi)
        k1 = g * node.r**3 * h1 / (4.0 * math.pi**2 * z)
    else:
        k0 = g * node.r**2 * (-1j) / (2.0 * math.pi**2 * z)
        k1 = k0 * node.r**2 * (1.0 - 1j * z) / (2.0 * math.pi * z * z)
    return k0, k1


def _density(path: ContourPath, A: Tensor, B: Tensor, alpha: Tensor, n: int, dim: int, order: int, _: Tensor) -> Tensor:
    small = torch.zeros_like(path.split)
    if dim > 1:
        small = (path.y * torch.exp(path.log_S + path.v1) < 2.0) | (path.theta < 1e-9)
        path = path._replace(theta=torch.where(small, 0.0, path.theta))
    node = _nodes(path, alpha, n)
    if dim > 1 and bool(small.any()):
        away = path._replace(y=torch.where(small, 1.0, path.y))
        k0, k1 = _radial_kernels(dim, away, node)
        z = path.y.unsqueeze(-1) * node.rho
        c0, c1 = bessel_small_torch(dim, z.clamp_max(12.0))
        bare = node.exponential * torch.exp(-1j * z) * node.weight * node.rho**dim
        bare = torch.where(z > 12.0, 0.0, bare)
        here = small.unsqueeze(-1)
        k0, k1 = torch.where(here, bare * c0, k0), torch.where(here, bare * c1 * node.rho**2, k1)
    else:
        k0, k1 = _radial_kernels(dim, path, node)

    f = k0 * node.e0
    sums = [real_sum(f)]
    if order >= 1:
        rr, x, ell = node.r * node.r, node.x, node.ell
        k0x = k0 * node.ex * x
        sums += [real_sum(k1 * node.e0), -real_sum(rr * f), -real_sum(k0x), -2.0 * real_sum(k0x * ell)]
    if order == 2:
        k1x = k1 * node.ex * x
        sums += [
            -real_sum(rr * k1 * node.e0),
            -real_sum(k1x),
            -2.0 * real_sum(k1x * ell),
            real_sum(rr * rr * f),
            real_sum(rr * k0x),
            2.0 * real_sum(rr * k0x * ell),
            real_sum(x * k0x),
            -2.0 * real_sum(ell * k0x * (1.0 - x)),
            -4.0 * real_sum(ell * ell * k0x * (1.0 - x)),
        ]
    sums, top = _add_gaussian(path, B, alpha, dim, sums)
    return _logarithmic(path, B, dim, sums, top)


def _add_gaussian(
    path: ContourPath, B: Tensor, alpha: Tensor, dim: int, sums: list[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Add the closed form of the split path, with a common factor exp(top) taken out."""
    jump = (torch.log(B) - 2.0 * alpha * path.log_unit - LOG_KAPPA_MIN).clamp_max(0.0)
    with_gauss = path.split & (path.A > 0)
    A, y, half = torch.where(with_gauss, path.A, 1.0), path.y, 0.5 * dim
    u = 0.25 * y * y / A
    log_G = -u - half * torch.log(4.0 * math.pi * A)
    top = torch.maximum(log_G, jump + torch.log(sums[0].abs()))
    top = torch.where(with_gauss, top, torch.where(path.split, jump, 0.0))
    G = torch.where(with_gauss, torch.exp(log_G - top), 0.0)
    scale = torch.where(path.split, torch.exp(jump - top), 1.0)
    gA = (u - half) / A
    gy = -0.5 * y / A if dim == 1 else 1.0 / (4.0 * math.pi * A)  # of p, or p_{d+2} / p
    gyA = gy * (gA - 1.0 / A)
    extra = [torch.ones_like(G), gy, gA, None, None, gyA, None, None, gA * gA + (half - 2.0 * u) / (A * A)]
    out = []
    for k, value in enumerate(sums):
        factor = extra[k] if k < len(extra) else None
        out.append(value * scale if factor is None else value * scale + G * factor)
    return out, top


def _logarithmic(path: ContourPath, B: Tensor, dim: int, sums: list[Tensor], top: Tensor) -> Tensor:
    """From sums over p to log p and derivatives of log p in physical units."""
    rows = [torch.log(sums[0]) + top - dim * path.log_unit]
    if len(sums) == 1:
        return torch.stack(rows)
    inverse = 1.0 / sums[0]
    iU = torch.exp((-path.log_unit).clamp_max(300.0))
    iA, iB = iU * iU, 1.0 / B
    over_y = torch.zeros_like(iU) if dim == 1 else -2.0 * math.pi * sums[1]
    ly = (sums[1] if dim == 1 else path.y * over_y) * inverse
    lA, lB, la = (s * inverse for s in sums[2:5])
    rows += [ly * iU, lA * iA, lB * iB, la]
    if len(sums) > 5:
        turn = 1.0 if dim == 1 else -2.0 * math.pi * path.y
        yA, yB, ya = (s * inverse * turn for s in sums[5:8])
        AA, AB, Aa, BB, Ba, aa = (s * inverse for s in sums[8:])
        yy = lA - (dim - 1.0) * over_y * inverse
        rows += [
            (yy - ly * ly) * iU * iU,
            (yA - ly * lA) * iU * iA,
            (yB - ly * lB) * iU * iB,
            (ya - ly * la) * iU,
            (AA - lA * lA) * iA * iA,
            (AB - lA * lB) * iA * iB,
            (Aa - lA * la) * iA,
            (BB - lB * lB) * iB * iB,
            (Ba - lB * la) * iB,
            aa - la * la,
        ]
    return torch.stack(rows)


def _tail(path: ContourPath, A: Tensor, B: Tensor, alpha: Tensor, n: int, dim: int, order: int, u: Tensor) -> Tensor:
    node = _nodes(path, alpha, n)
    z = path.y.unsqueeze(-1) * node.r
    g = node.exponential * node.weight
    if dim == 1:
        g = g * 2j / math.pi
    elif dim == 2:
        g = -g * z * hankel_scaled_torch(z)[1]
    else:
        g = g * (1j + z) * 2.0 / math.pi

    gx = g * node.ex * node.x
    jump = (torch.log(B) - 2.0 * alpha * path.log_unit - LOG_KAPPA_MIN).clamp_max(0.0)
    scale = torch.where(path.split, torch.exp(jump), 1.0)
    gauss = gaussian_tail(path.y, path.A, dim)
    mass = real_sum(g * node.e0) * scale + torch.where(path.split, gauss, 1.0 - 2.0 * path.theta / math.pi)
    at_zero = u == 0
    rows = [torch.where(at_zero, 1.0, mass.clamp(0.0, 1.0))]
    if order >= 1:
        slopes = density(u, A, B, alpha, dim=dim, order=1)
        flow = flow_out(u, slopes[0], dim)
        more = (-flow * slopes[1], -real_sum(gx) * scale / B, -2.0 * real_sum(gx * node.ell) * scale)
        rows += [-flow, *(torch.where(at_zero, 0.0, v) for v in more)]
    return torch.stack(rows)


def gaussian_tail(u: Tensor, A: Tensor, dim: int) -> Tensor:
    """P(|Y| > u) of a Gaussian whose coordinates have the variance 2 A; 0 for A = 0."""
    w = 0.5 * u / torch.sqrt(torch.where(A > 0, A, 1.0))
    mass = torch.exp(-w * w) if dim == 2 else torch.erfc(w)
    if dim == 3:
        mass = mass + 2.0 / math.sqrt(math.pi) * w * torch.exp(-w * w)
    return torch.where(A > 0, mass, 0.0)


def flow_out(u: Tensor, log_p: Tensor, dim: int) -> Tensor:
    """-d/du of the tail mass: the density over the sphere of radius u."""
    return {1: torch.full_like(u, 2.0), 2: 2.0 * math.pi * u, 3: 4.0 * math.pi * u * u}[dim] * torch.exp(log_p)
