"""Euler-Maruyama with tempered jumps: dX = b h + sqrt(2 D_o h + 2 T) G, T the tempered stable time of D_f h.

With constants one step is exact, whatever its length, and substeps are not taken. Blocks of a fixed number of
trajectories have random streams of their own, so that the numbers do not depend on the number of threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from levytorch.dynamics import Dynamics
from levytorch.errors import NumericalError
from levytorch.law.tempered_sampling import tempered_time

Array = np.ndarray
BLOCK = 4096  # trajectories


def tempered_euler(dynamics: Dynamics, x0: Array, n_steps: int, dt: float, substeps: int, seed: int) -> Array:
    """(n, n_steps + 1, d) states."""
    n, d = x0.shape
    out = np.empty((n, n_steps + 1, d))
    out[:, 0] = x0
    if dynamics.is_constant:
        substeps = 1
    with ThreadPoolExecutor(max(1, torch.get_num_threads())) as pool:
        jobs = [
            pool.submit(_block, dynamics, out[i : i + BLOCK], dt / substeps, substeps, seed, i)
            for i in range(0, n, BLOCK)
        ]
        for job in jobs:
            job.result()
    if not np.isfinite(out[:, -1]).all():
        raise NumericalError(
            "states must stay within float64, found an infinite one; choose a shorter dt or a larger tempering."
        )
    return out


@torch.no_grad()
def _block(dynamics: Dynamics, part: Array, h: float, substeps: int, seed: int, first: int) -> None:
    generator = torch.Generator().manual_seed((seed * 1_000_003 + first) % (2**63))
    d = dynamics.dim
    x = torch.from_numpy(part[:, 0].copy()).reshape(-1) if d == 1 else torch.from_numpy(part[:, 0].copy())
    lam = torch.full((len(part),), dynamics.tempering, dtype=torch.float64)
    for step in range(1, part.shape[1]):
        for _ in range(substeps):
            inside = dynamics.wrap(x)
            b, D_o, D_f, alpha = (c.inside(inside) for c in (dynamics.b, dynamics.D_o, dynamics.D_f, dynamics.alpha_at))
            jumps = D_f > 0
            time = tempered_time(alpha, torch.where(jumps, D_f * h, 1.0), torch.where(jumps, lam, 0.0), generator)
            spread = torch.sqrt(2.0 * (D_o * h + torch.where(jumps, time, 0.0)))
            gauss = torch.randn(x.shape, generator=generator, dtype=torch.float64)
            x = x + b * h + (spread if d == 1 else spread.unsqueeze(-1)) * gauss
        part[:, step] = x.reshape(len(part), d).numpy()
