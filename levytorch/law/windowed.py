"""The paper's quadrature of the one-step law in d = 1: Algorithms E.1 - E.3, batched.

With ``A = D_o dt``, ``B = D_f dt`` and ``y = displacement - b dt`` four integrals are needed (equations D.4 - D.7),

    I_g = int_0^inf g(r) exp(-A r^2 - B r^(2 alpha)) dr,   g = cos(y r), r sin(y r), r^2 cos(y r), r^(2 alpha) cos(y r),

the first being pi p. Each is cut at r = 1: Algorithm E.1 below, Algorithm E.2 (window w_M, M doubled from 80 to 5120)
above. ``evaluate`` is Algorithm E.3 for a batch.

Where the printed algorithms are not followed to the letter:

* E.3 lacks the factor 1 / pi, and E.1's sum runs to 16.
* ``|y|`` enters E.3; the sign of y is restored in d_y.
* ``r^(2 alpha) cos(y r)`` is not smooth at 0: in E.1 the power goes into the weight, with both rules.

Choices the paper leaves open:

* Gaussian points in E.1: Gauss - Legendre. The weights that integrate Legendre polynomials of degree 0 ... 15 exactly
  follow from their moments, which a tanh-sinh rule gives, once per distinct (alpha, tau) of a call.
* Gauss - Jacobi in E.1: 16 points for each power of the series.
* Quadrature in E.2: 16-point Gauss - Legendre panels with 10 nodes per unit length, enough for y = 10.
* Convergence is tested for each integral by itself. A loop also ends when two successive values agree to the bound of
  their sums' rounding: there 1e-14 cannot be met (r^2 cos(y r) sums terms of size M^2), and doubling M only adds noise.
  The bound holds for any rounding of the last bit, and the sums have an order of their own, so that the flag does not
  depend on the processor or on the other samples of the batch.
* Force scaling multiplies y by ``lam = pi / (2 y)``. E.1's 16 points resolve ``exp(-A r^2)`` for moderate A only, so
  lam is limited to ``A lam^2 <= A_MAX``, and the scaling is also applied where A itself exceeds A_MAX. An integral that
  does not converge unscaled is scaled alone. y = 0 with A = 0 cannot be scaled.
* ``converged`` is False where any of the integrals asked for did not converge after scaling, or where p does not exceed
  its absolute error by four digits. Where p does not exceed that error at all (it may come out negative) it is replaced
  by the error and the derivatives by 0: no NaN appears.

Accuracy, against 492 values of 50 digits (alpha 0.05 ... 0.97, |y| / sqrt(A) up to 1e9, B / A^alpha 1e-5 ... 300): 422
converge, and there the error of log p is 5e-15 in the median, at most 8e-8 for 90 % and 2e-5 at worst, that of d_B
the same in relative terms. The tolerance is absolute, so far out d_y has a relative error up to 3e-3 and d_A, of order
1 / y^2 there, up to 1. Where the flag is False log p can be wrong by anything (22 was seen). For |y| <= 10 (A from 1e-4
to 100, B from 1e-3 to 30, alpha 0.1 ... 0.95) log p is within 6e-9 for B <= 1 and 5e-7 for B > 1: 16 points do not
quite resolve cos(10 r). d/dalpha is not offered: its logarithm does not follow E.3's scaling.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

POINTS = 16
TERMS = ((1e-3, 4), (1e-2, 6), (1e-1, 9), (1.0, 17))  # E.1: up to this tau, K
M_FIRST, M_LAST = 80, 5120
TOLERANCE = 1e-14
ROUNDING = 2.0**-52  # of a sum, over the sum of its terms' absolute values: what is seen
ROOM = 16  # at worst: two sums of up to 2^16 terms are compared, each folded and so rounded 16 times by at most 2^-53
Y_MAX = 10.0
A_MAX = 1.0
LAM_MAX = 1e100
RELIABLE = 1e4  # p over its absolute error
CHUNK = 2_000_000  # elements of one work array: about 200 MB in all
BLOCK = 65536  # samples


# ---------------------------------------------------------------------------------------- nodes, cached as numpy arrays
@cache
def _legendre() -> tuple[np.ndarray, np.ndarray]:
    """Gauss - Legendre points and weights on [0, 1]."""
    x, w = np.polynomial.legendre.leggauss(POINTS)
    return (x + 1) / 2, w / 2


@cache
def _moment_rule() -> tuple[np.ndarray, np.ndarray]:
    """(z, T): the weights ``w_j = sum_q weight(z_q) T[q, j]`` are exact for degree < 16 on [0, 1] against ``weight``.

    The Legendre moments m_k by a tanh-sinh rule, which bears any algebraic singularity of the weight at 0; on Gauss
    points the linear system for the weights has the solution ``w_j = omega_j sum_k (2 k + 1) P_k(x_j) m_k``.
    """
    v = np.arange(-6.0, 3.4, 1 / 32)
    # z / (1 - z) = exp(pi sinh v): z keeps its relative accuracy near 0.
    z = 1 / (1 + np.exp(-np.pi * np.sinh(v)))
    rule = np.pi * np.cosh(v) * z / (1 + np.exp(np.pi * np.sinh(v))) / 32
    x, omega = _legendre()
    k = np.arange(POINTS)
    at_z = np.polynomial.legendre.legvander(2 * z - 1, POINTS - 1)
    at_x = np.polynomial.legendre.legvander(2 * x - 1, POINTS - 1)
    return z, rule[:, None] * (at_z * (2 * k + 1)) @ at_x.T * omega


@cache
def _panels(M: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes on [1, M] and weights, with the window w_M in the weights."""
    x, w = _legendre()
    edges = np.linspace(1.0, M, M * 10 // POINTS + 1)
    width = np.diff(edges)
    z = (edges[:-1, None] + width[:, None] * x).ravel()
    s = 2 * z / M - 1
    inner = s > 0
    safe = np.where(inner, s, 0.5)
    window = np.where(inner, np.exp(-2 * np.exp(-1 / safe**2) / (1 - safe) ** 2), 1.0)
    return z, (width[:, None] * w).ravel() * window


def _jacobi(beta: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss - Jacobi points and weights for ``int_0^1 f(z) z^beta dz``, batched over beta (Golub and Welsch)."""
    k = torch.arange(1, POINTS, dtype=beta.dtype, device=beta.device)
    b = beta[..., None]
    # Three-term recurrence of the Jacobi polynomials P^(0, beta) on [-1, 1].
    diagonal = torch.cat([b / (b + 2), b * b / ((2 * k + b) * (2 * k + b + 2))], -1)
    square = 4 * k**2 * (k + b) ** 2 / ((2 * k + b) ** 2 * (2 * k + b + 1) * (2 * k + b - 1))
    matrix = torch.diag_embed(diagonal) + torch.diag_embed(square.sqrt(), 1) + torch.diag_embed(square.sqrt(), -1)
    x, vectors = torch.linalg.eigh(matrix)
    return (x + 1) / 2, vectors[..., 0, :] ** 2 / (beta + 1)[..., None]


def _tensor(array: np.ndarray, like: Tensor) -> Tensor:
    return torch.as_tensor(array, dtype=like.dtype, device=like.device)


def _pick(t: Tensor, index: Tensor) -> Tensor:
    """Rows of a per-sample tensor; a shared one (a single entry) stays as it is."""
    return t if t.numel() == 1 else t[index]


def _rows(y: Tensor | None, index: Tensor) -> Tensor | None:
    return None if y is None else y[index]


def _phase(y: Tensor | None, z: Tensor) -> Tensor:
    """y z. None stands for pi / 2 in every sample: reduced exactly, or its rounding would dominate at large z."""
    if y is None:
        return math.pi / 2 * torch.remainder(z, 4.0)
    return y.reshape(-1, *[1] * max(z.dim() - 1, 1)) * z


# -------------------------------------------------------------------------------------------------------- Algorithm E.1
def _singular(y: Tensor | None, A: Tensor, B: Tensor, alpha: Tensor, order: int) -> Tensor:
    """The integrals over [0, 1], shape (n, 4) or (n, 1). ``alpha`` may have a single entry."""
    n = len(B)
    out = B.new_empty(n, 4 if order else 1)
    for rule, mask in ((_product_rule, B > 1), (_series, B <= 1)):
        chosen = mask.nonzero()[:, 0]
        for index in chosen.split(CHUNK // (400 if alpha.numel() == 1 else 6000)):  # one alpha each: 19 rules a sample
            out[index] = rule(_rows(y, index), A[index], B[index], _pick(alpha, index), order)
    return out


def _product_rule(y: Tensor | None, A: Tensor, tau: Tensor, alpha: Tensor, order: int) -> Tensor:
    """E.1 for tau > 1: 16 points, weights from Legendre moments."""
    x = _tensor(_legendre()[0], tau)
    z, solve = (_tensor(a, tau) for a in _moment_rule())
    inverse = None
    if alpha.numel() == 1:
        tau, inverse = tau.unique(return_inverse=True)
    power = z ** (2 * alpha[:, None])
    weight = torch.exp(-tau[:, None] * power)
    w = weight @ solve
    w_power = (weight * power) @ solve if order else w
    if inverse is not None:
        w, w_power = w[inverse], w_power[inverse]
    decay = torch.exp(-A[:, None] * x * x)
    phase = _phase(y, x)
    cos = torch.cos(phase) * decay
    if not order:
        return (w * cos).sum(1, keepdim=True)
    sin = torch.sin(phase) * decay
    return torch.stack([(w * cos).sum(1), (w * x * sin).sum(1), (w * x * x * cos).sum(1), (w_power * cos).sum(1)], 1)


def _series(y: Tensor | None, A: Tensor, tau: Tensor, alpha: Tensor, order: int) -> Tensor:
    """E.1 for tau <= 1: powers of tau, each integrated by Gauss - Jacobi."""
    last = TERMS[-1][1]
    k = torch.arange(last + 2, dtype=tau.dtype, device=tau.device)
    x, w = _jacobi(2 * alpha[:, None] * k)  # (n or 1, K + 2, 16): one power more, for r^(2 alpha) cos
    thresholds = torch.tensor([t for t, _ in TERMS[:-1]], dtype=tau.dtype, device=tau.device)
    terms = torch.tensor([K for _, K in TERMS], device=tau.device)[torch.bucketize(tau, thresholds)]
    coefficient = (-tau[:, None]) ** k[:-1] / torch.exp(torch.lgamma(k[:-1] + 1))
    coefficient = torch.where(k[:-1] <= terms[:, None], coefficient, 0.0)
    decay = torch.exp(-A[:, None, None] * x * x) * w
    phase = _phase(y, x)
    cos = torch.cos(phase) * decay

    def total(moments: Tensor) -> Tensor:
        return (coefficient * moments.sum(-1)).sum(-1)

    value = total(cos[:, :-1])
    if not order:
        return value[:, None]
    sin = torch.sin(phase) * decay
    return torch.stack([value, total((x * sin)[:, :-1]), total((x * x * cos)[:, :-1]), total(cos[:, 1:])], 1)


# -------------------------------------------------------------------------------------------------------- Algorithm E.2
def _slow(y: Tensor | None, A: Tensor, B: Tensor, alpha: Tensor, order: int) -> tuple[Tensor, Tensor, Tensor]:
    """The integrals over [1, inf), whether each converged, and its absolute error (tolerance or rounding)."""
    shape = (len(B), 4 if order else 1)
    current = B.new_full(shape, math.inf)
    error = B.new_zeros(shape)
    converged = torch.zeros(shape, dtype=torch.bool, device=B.device)
    active = torch.arange(len(B), device=B.device)
    M = M_FIRST
    while M <= M_LAST and len(active):
        z, weight = (_tensor(a, B) for a in _panels(M))
        for index in active.split(max(CHUNK // len(z), 1)):
            value, size = _panel_sums(_rows(y, index), A[index], B[index], _pick(alpha, index), order, z, weight)
            previous, open_ = current[index], ~converged[index]
            rounding = ROUNDING * size
            converged[index] |= (value - previous).abs() <= (ROOM * rounding).clamp_min(TOLERANCE)
            current[index] = torch.where(open_, value, previous)
            error[index] = torch.where(open_, rounding.clamp_min(TOLERANCE), error[index])
        active = active[~converged[active].all(1)]
        M *= 2
    return current, converged, error


def _panel_sums(
    y: Tensor | None, A: Tensor, B: Tensor, alpha: Tensor, order: int, z: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Windowed integrals over [1, M] and the sums of their terms' absolute values (without the wave)."""
    power = torch.exp(2 * alpha[:, None] * z.log())
    decay = torch.exp(-A[:, None] * (z * z) - B[:, None] * power).mul_(weight)
    phase = _phase(y, z)
    cos = torch.cos(phase) * decay
    if not order:
        return _fold(cos)[:, None], _fold(decay)[:, None]
    sin = torch.sin(phase) * decay
    value = torch.stack([_fold(cos), _fold(sin * z), _fold(cos * (z * z)), _fold(cos * power)], 1)
    size = torch.stack([_fold(decay), _fold(decay * z), _fold(decay * (z * z)), _fold(decay * power)], 1)
    return value, size


def _fold(terms: Tensor) -> Tensor:
    """Sums over the last dimension, halves upon halves.

    The order is that of the additions written here, whereas ``sum`` and ``@`` choose one by processor, number of
    threads and number of rows; and each sum is rounded log2 n times, not n times.
    """
    while (n := terms.shape[-1]) > 1:
        half = n // 2
        rest = terms[..., 2 * half :]
        terms = terms[..., :half] + terms[..., half : 2 * half]
        terms = torch.cat([terms, rest], -1) if n % 2 else terms
    return terms[..., 0]


# -------------------------------------------------------------------------------------------------------- Algorithm E.3
def _integrals(
    scaled_y: Tensor | None, A: Tensor, B: Tensor, alpha: Tensor, lam: Tensor, order: int
) -> tuple[Tensor, Tensor, Tensor]:
    """E.1 + E.2 in units scaled by lam, turned back: r^h contributes ``lam^(h + 1)``."""
    scaled_A, scaled_B = A * lam**2, B * lam ** (2 * alpha)
    value, converged, error = _slow(scaled_y, scaled_A, scaled_B, alpha, order)
    value = value + _singular(scaled_y, scaled_A, scaled_B, alpha, order)
    units = [lam, lam**2, lam**3, lam ** (1 + 2 * alpha)] if order else [lam]
    unit = torch.stack(units, 1)
    return value * unit, converged, error * unit


def evaluate(
    y: Tensor, A: Tensor, B: Tensor, alpha: float | Tensor, order: int = 1
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor]:
    """log p and its derivatives in y, A and B (order = 1; None for order = 0), and where the quadrature converged.

    1-D float64 tensors of one length; alpha a number or one per sample. No checks.
    """
    shared = torch.as_tensor(alpha, dtype=B.dtype, device=B.device).reshape(-1)
    if shared.numel() > 1 and bool((shared == shared[0]).all()):
        shared = shared[:1]
    out = B.new_empty(4 if order else 1, len(B))
    converged = torch.empty(len(B), dtype=torch.bool, device=B.device)
    for index in torch.arange(len(B), device=B.device).split(BLOCK):
        out[:, index], converged[index] = _fundamental(y[index], A[index], B[index], _pick(shared, index), order)
    if not order:
        return out[0], None, None, None, converged
    return out[0], out[1], out[2], out[3], converged


def _fundamental(y: Tensor, A: Tensor, B: Tensor, alpha: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """Algorithm E.3: rows log p, d_y, d_A, d_B (order = 0: the first), and the flags."""
    magnitude = y.abs()
    n, columns = len(B), 4 if order else 1
    value = B.new_zeros(n, columns)
    error = B.new_zeros(n, columns)
    converged = torch.zeros(n, columns, dtype=torch.bool, device=B.device)

    wave = math.pi / 2 / magnitude
    lam = torch.minimum(wave, (A_MAX / A).sqrt()).clamp_max(LAM_MAX)
    scalable = (magnitude > 0) | (A > 0)
    attempts: tuple[tuple[Tensor, Tensor, Tensor | None], ...] = (  # which samples, lam, lam * y
        ((magnitude <= Y_MAX) & (A <= A_MAX), torch.ones_like(lam), magnitude),
        (scalable & (lam == wave), lam, None),
        (scalable & (lam != wave), lam, lam * magnitude),
    )
    for mask, unit, scaled_y in attempts:
        index = (mask & ~converged.all(1)).nonzero()[:, 0]
        if not len(index):
            continue
        new = _integrals(_rows(scaled_y, index), A[index], B[index], _pick(alpha, index), unit[index], order)
        done = converged[index]
        value[index] = torch.where(done, value[index], new[0])
        error[index] = torch.where(done, error[index], new[2])
        converged[index] = done | new[1]

    integral, noise = value[:, 0], error[:, 0].clamp_min(torch.finfo(B.dtype).tiny)
    lost = integral <= noise
    p = torch.where(lost, noise, integral) / math.pi
    reliable = converged.all(1) & (integral > RELIABLE * noise)
    if not order:
        return p.log()[None], reliable
    ratio = torch.where(lost[:, None], 0.0, -value[:, 1:] / integral[:, None])
    return torch.stack([p.log(), torch.sign(y) * ratio[:, 0], ratio[:, 1], ratio[:, 2]]), reliable
