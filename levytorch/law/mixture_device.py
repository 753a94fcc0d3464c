"""log p on devices without compiled kernels: the mixture of Gaussians of `mixture.py`, in any dimension, d = 1 too.

No value is read on the way, so that nothing waits for a device and a compiler sees one graph: every sample gets the
same number of nodes, and where they lie is found on the device. Arguments are not checked for the same reason. Accurate
to 1e-9 in log p for alpha >= 0.1, to 1e-5 for 0.05 (`tests/law/test_device.py`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from levytorch.law.arguments import Step
from levytorch.law.mixture import ALPHA_HIGH, ALPHA_LOW, DROP, FINE, SHIFT, WIDTH, H, panel, panel_index
from levytorch.law.mixture_torch import LARGEST, lagrange, left_end, log_sum, spectrum, tempered

NODES = 384  # of a sum
_LOOKS, _SCAN = 3, 128  # at the exponents, each at so many nodes of what the one before has left
_TERMS = 1 << 22  # held at a time


class Tables(NamedTuple):
    """R of all panels, see `mixture.Panel`, filled up to one size: (panels, degree + 1, size)."""

    coefficients: Tensor
    first: Tensor
    last: Tensor


def log_density(step: Step, dim: int, matrix: bool) -> Tensor:
    """log p of the broadcast shape; displacement and b are vectors for dim > 1, D_o a number or a matrix."""
    x, b, D_o, D_f, alpha, dt = step[:6]
    y = x - b * (dt.unsqueeze(-1) if dim > 1 else dt)
    A, B = D_o * (dt[..., None, None] if matrix else dt), D_f * dt
    samples = [y[..., 0] if dim > 1 else y, A[..., 0, 0] if matrix else A, B, alpha, *step.rate]
    shape = torch.broadcast_shapes(*(t.shape for t in samples))
    y = y.expand(*shape, dim).reshape(-1, dim) if dim > 1 else y.expand(shape).reshape(-1, 1)
    A = 0.5 * (A + A.mT) if matrix else A  # whose lower half alone is read
    A = A.expand(*shape, dim, dim).reshape(-1, dim, dim) if matrix else A.expand(shape).reshape(-1)
    B = B.expand(shape).reshape(-1)
    rate = [lam.expand(shape).reshape(-1) for lam in step.rate]
    alpha = alpha.reshape(1) if alpha.numel() == 1 else alpha.expand(shape).reshape(-1)
    size, pieces = _TERMS // NODES, []
    for low in range(0, len(y), size):
        rows = slice(low, low + size)
        own = alpha if len(alpha) == 1 else alpha[rows]
        pieces.append(_log_p(y[rows], A[rows], B[rows], own, *(lam[rows] for lam in rate)))
    return torch.cat(pieces).reshape(shape) if pieces else y.new_zeros(shape)


def _log_p(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor | None = None) -> Tensor:
    """(n,) of y (n, d), A (n,) or (n, d, d), B (n,), alpha (1,) or (n,), lam (n,) or None."""
    tables = _kept(y.device) if type(y.detach()) is Tensor else _made(y.device)
    low, high = _window(y, A, B, alpha, lam, tables)
    h = (high - low) / (NODES - 1)
    v = low[:, None] + h[:, None] * torch.arange(NODES, dtype=y.dtype, device=y.device)
    u, weight = _nodes(v, alpha, tables)
    return log_sum(u, torch.log(h)[:, None] + weight, y, A, B, alpha, lam)


@torch.no_grad()
def _window(
    y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor | None, tables: Tables
) -> tuple[Tensor, Tensor]:
    """Between which v the terms of every sample are not negligible, (n,) each."""
    d, (l, z2) = y.shape[1], spectrum(y, A)
    c, log_scale = alpha / (1.0 - alpha), torch.log(B) / alpha
    kappa = torch.zeros_like(B) if lam is None else B * lam ** (2.0 * alpha)
    size = torch.maximum(l.amax(1), z2.sum(1)).clamp_min(1e-300).log()
    below = alpha < 0.5
    high = 36.0 / (alpha + 0.5 * d) + 5.0 + (size - log_scale).clamp_min(0.0)
    high = torch.where(below, high, high + torch.log(c) + SHIFT)
    low = left_end(alpha, kappa, d)
    low = torch.where(below, low / c, low)
    part = torch.linspace(0.0, 1.0, _SCAN, dtype=y.dtype, device=y.device)
    index = torch.arange(_SCAN, device=y.device)
    for _ in range(_LOOKS):
        u, value = _nodes(low[:, None] + (high - low)[:, None] * part, alpha, tables)
        s, value = tempered(u, value, B, alpha, lam)
        for k in range(l.shape[1]):
            r = l[:, k, None] + s
            value = value - 0.5 * d / l.shape[1] * torch.log(r) - 0.25 * z2[:, k, None] / r
        near = value > value.amax(1, keepdim=True) - DROP
        first = (torch.where(near, index, _SCAN).amin(1) - 1).clamp_min(0)
        last = (torch.where(near, index, -1).amax(1) + 1).clamp_max(_SCAN - 1)
        step = (high - low) / (_SCAN - 1)
        low, high = low + first * step, low + last * step
    return low, high


def _nodes(v: Tensor, alpha: Tensor, tables: Tables) -> tuple[Tensor, Tensor]:
    """u and log(u'(v) g(u)) at v (n, m): what `mixture_torch.nodes` computes for one panel."""
    tau = torch.log(alpha) - torch.log1p(-alpha)
    number = torch.floor(tau.detach() / WIDTH)
    middle = (number + 0.5) * WIDTH
    own = (number - _NUMBERS[0]).clamp(0, len(_NUMBERS) - 1).long()
    tau, middle, below = tau[:, None], middle[:, None], (number < 0)[:, None]
    c = torch.exp(tau)
    log_K = -torch.log1p(c) - c * torch.log1p(1.0 / c)
    share, bent = -torch.expm1(-tau), v - tau - SHIFT
    above = v / c + share * torch.nn.functional.softplus(bent, threshold=1e9)
    omega, u = torch.where(below, v * c, v), torch.where(below, v, above)
    slope = torch.where(below, torch.ones_like(v), 1.0 / c + share * torch.sigmoid(bent))
    last = tables.last[own][:, None]
    position = omega * (FINE / H) - tables.first[own][:, None]
    held = torch.minimum(position.clamp_min(0.0), last)
    base = torch.minimum((held.detach().floor() - 3.0).clamp_min(0.0), last - 7.0)
    t = (tau - middle) * (2.0 / WIDTH)
    index, rows = base.long(), _polynomials(t, own, tables)
    R = torch.zeros_like(held)
    for k, weight in enumerate(lagrange(held - base)):
        R = R + weight * (rows[0][index + k] if len(rows) == 1 else torch.gather(rows, 1, index + k))
    beyond = (position - last).clamp_min(0.0) * (H / FINE)
    R = R - c / (1.0 + c) * torch.where(below, beyond / c, beyond)
    R = R - 0.5 * position.clamp_max(0.0) * (H / FINE)  # to the left R is log(x) / 2 and a constant
    return u, torch.log(slope) + R - torch.exp((log_K - c * u).clamp_max(LARGEST))


def _polynomials(t: Tensor, own: Tensor, tables: Tables) -> Tensor:
    """R at all nodes of the tables, (1, size) of one alpha or (n, size)."""
    value = tables.coefficients[own, -1]
    for k in range(tables.coefficients.shape[1] - 2, -1, -1):
        value = value * t + tables.coefficients[own, k]
    return value


_NUMBERS = range(int(panel_index(ALPHA_LOW)), int(panel_index(ALPHA_HIGH)) + 1)


def _made(device: torch.device) -> Tables:
    panels = [panel(k) for k in _NUMBERS]
    size = max(one.coefficients.shape[1] for one in panels)
    filled = [np.pad(one.coefficients, ((0, 0), (0, size - one.coefficients.shape[1]))) for one in panels]
    first, last = [one.first for one in panels], [one.coefficients.shape[1] - 1 for one in panels]

    def there(values: object) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.float64)).to(device)

    return Tables(there(np.stack(filled)), there(first), there(last))


@lru_cache(maxsize=4)
def _kept(device: torch.device) -> Tables:
    return _made(device)
