"""The least error that pairs a step h apart allow for: the Cramer-Rao bound, from the information of the law itself.

Information of one pair that starts at x about (b, D_o, D_f, alpha) is the mean of the products of scores over the law
of the step; with b, Sigma^2 and sigma as sums of Legendre polynomials and a = 2 alpha, that of n pairs which start
evenly is a matrix of all their coefficients, and its inverse the least covariance of an estimate without bias. A method
that is told more, which terms are zero, say, may be better; one that is told less cannot be as good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from levytorch import log_density, score

_STATES, _STEPS, _FAR = 80, 4001, 1e7
Array = NDArray[np.float64]
Curve = Callable[[Array], Array]


def least_errors(
    b: Curve, Sigma2: Curve, sigma: Curve, a: float, h: float, n: int, ends: tuple[float, float], sizes: Sequence[int]
) -> list[float]:
    """Of a itself; of sigma, Sigma^2 and b relative, in L2 on the interval (root mean squares). sizes: functions of b,
    Sigma^2 and sigma.
    """
    nodes, weights = np.polynomial.legendre.leggauss(_STATES)
    x, share = 0.5 * (ends[0] + ends[1] + (ends[1] - ends[0]) * nodes), weights / 2
    curves = {"b": b(x), "Sigma2": Sigma2(x), "sigma": sigma(x)}
    phi = {name: np.polynomial.legendre.legvander(nodes, k - 1) for name, k in zip(curves, sizes)}
    last = np.cumsum([0, *sizes])
    place = {name: slice(low, high) for name, low, high in zip(curves, last, last[1:])}
    # derivatives of (b, D_o, D_f, alpha): D_o = Sigma^2 / 2, D_f = sigma^a
    J = np.zeros((_STATES, 4, last[-1] + 1))
    s = curves["sigma"]
    J[:, 0, place["b"]], J[:, 1, place["Sigma2"]] = phi["b"], phi["Sigma2"] / 2
    J[:, 2, place["sigma"]] = (a * s ** (a - 1))[:, None] * phi["sigma"]
    J[:, 2, -1], J[:, 3, -1] = s**a * np.log(s), 0.5
    own = information(curves["b"], curves["Sigma2"] / 2, s**a, a / 2, h)
    covariance = np.linalg.inv(n * np.einsum("x,xip,xij,xjq->pq", share, J, own, J))
    out = [float(np.sqrt(covariance[-1, -1]))]
    for name in ("sigma", "Sigma2", "b"):
        part = covariance[place[name], place[name]]
        square = share @ np.einsum("xi,ij,xj->x", phi[name], part, phi[name])
        out.append(float(np.sqrt(square / (share @ curves[name] ** 2))))
    return out


def information(b: Array, D_o: Array, D_f: Array, alpha: float, h: float) -> Array:
    """(m, 4, 4): of one pair about (b, D_o, D_f, alpha), at m states."""
    width = np.sqrt(2 * D_o * h)[:, None]
    reach, s = np.arcsinh(_FAR / width), np.linspace(-1, 1, _STEPS)
    y = width * np.sinh(reach * s)
    at = [torch.from_numpy(np.broadcast_to(v[:, None], y.shape).copy()) for v in (b, D_o, D_f)]
    dx = torch.from_numpy(y + b[:, None] * h)
    p = log_density(dx, *at, alpha, h).exp().numpy() * width * np.cosh(reach * s) * reach * (s[1] - s[0])
    found = score(dx, *at, alpha, h, wrt_alpha=True)
    rows = np.stack([part.numpy() for part in (found.b, found.D_o, found.D_f, found.alpha)])
    return np.einsum("ixy,jxy,xy->xij", rows, rows, p)
