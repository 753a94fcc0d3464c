"""Least-squares Fourier fits: of empirical values (the reference and the model-free baseline of section 4.3) and of
logged rewards.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from levytorch.coefficients.basis import FourierBasis
from levytorch.errors import InputError, LevytorchWarning

_CHUNK = 65536
_RCOND = 1e-10  # singular values below this, relative to the largest, are left out


@dataclass(frozen=True)
class FourierSeries:
    """sum_m c_m phi_m(x), fitted to the data in `support`.

    `condition` is that of the fit, `rms` the size of what it leaves over.
    """

    coefficients: Tensor
    basis: FourierBasis
    support: tuple[float, float]
    condition: float
    rms: float

    def __call__(self, x: Tensor | np.ndarray | float) -> Tensor:
        at = torch.as_tensor(x, dtype=torch.float64)
        if at.numel() <= _CHUNK:
            return self.basis.matrix(at) @ self.coefficients
        return torch.cat(
            [self.basis.matrix(part) @ self.coefficients for part in at.reshape(-1).split(_CHUNK)]
        ).reshape(at.shape)


def fit_fourier(x: Tensor | np.ndarray, y: Tensor | np.ndarray, basis: FourierBasis) -> FourierSeries:
    """The Fourier series that fits y at x best in the mean square; of several, the one with the smallest coefficients.

    One pass in chunks (a QR factorisation that is updated), so that a million points need no (n, n_modes) matrix.
    """
    x, y = (torch.as_tensor(a, dtype=torch.float64).detach().reshape(-1) for a in (x, y))
    if x.shape != y.shape or x.numel() == 0:
        raise InputError(
            f"x and y must have one value per point, found {x.numel()} and {y.numel()}; give them in pairs."
        )
    if not bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise InputError("x and y must be finite, found NaN or infinite values among them; remove those points.")
    n = basis.n_modes
    R = torch.zeros((0, n + 1), dtype=torch.float64)
    for part_x, part_y in zip(x.split(_CHUNK), y.split(_CHUNK)):
        block = torch.cat([basis.matrix(part_x), part_y[:, None]], dim=1)
        R = torch.linalg.qr(torch.cat([R, block]), mode="r").R
    A, z = R[:, :n], R[:, n]
    U, s, Vh = torch.linalg.svd(A, full_matrices=False)
    keep = s > _RCOND * s[0]
    condition = float(s[0] / s[-1]) if len(s) == n and float(s[-1]) > 0 else float("inf")
    if not bool(keep.all()) or len(s) < n:
        warnings.warn(
            f"The {n} Fourier functions are not determined by these points (condition number {condition:.2g}); "
            "the smallest of the best fits is used: fewer functions are safer.",
            LevytorchWarning,
            stacklevel=2,
        )
    c = Vh[keep].T @ ((U[:, keep].T @ z) / s[keep])
    rms = float((A @ c - z).norm() / x.numel() ** 0.5)
    return FourierSeries(c, basis, (float(x.min()), float(x.max())), condition, rms)
