"""What data often is without its owner having said so: angles in degrees, and numbers that were rounded to a grid."""

from __future__ import annotations

import numpy as np

from levytorch.convert import Array
from levytorch.data.transitions import Transitions

_SOME = 50_000  # pairs that are looked at
_COARSE = 0.1  # of a usual step: a grid that small steps feel
_FULL = 0.9  # of a turn: what angles that go round cover
_WRAP = 0.9  # of a turn: a step so long is none


def remarks(t: Transitions) -> list[str]:
    """One sentence per peculiarity of the data, with what to do about it."""
    every = max(1, len(t) // _SOME)
    x, dx = (v[::every].reshape(-1, t.dim).numpy() for v in (t.x, t.dx))
    out = []
    for k in range(t.dim):
        name = "x" if t.dim == 1 else f"x{k + 1}"
        if in_degrees(x[:, k], dx[:, k]):
            out.append(
                f"{name} looks like an angle in degrees that is wrapped at a full turn; pass period=360, or convert it "
                "to radians."
            )
        grid = rounded_to(dx[:, k])
        if grid is not None:
            usual = float(np.median(np.abs(dx[:, k] - np.median(dx[:, k]))))
            size = f"{grid / usual:.0%} of a usual step" if usual > 0 else "more than a usual step"
            out.append(
                f"{name} is rounded to multiples of {grid:.4g}, {size}, which adds to D_o and hides small jumps; use "
                "longer steps, or data with more digits."
            )
    return out


def in_degrees(x: Array, dx: Array) -> bool:
    """Whether states fill a range of 360, from 0 or from -180 on, and some steps lead from one end to the other."""
    low, high = float(x.min()), float(x.max())
    within = (low >= 0.0 and high <= 360.0) or (low >= -180.0 and high <= 180.0)
    if not within or high - low < _FULL * 360.0:
        return False
    wraps = np.abs(dx) > _WRAP * 360.0
    return bool(wraps.any()) and float(wraps.mean()) < 0.2


def rounded_to(dx: Array) -> float | None:
    """The grid that all steps are multiples of, where it is coarse beside a usual step; None where there is none."""
    sizes = np.unique(np.abs(dx))
    sizes = sizes[sizes > 0]
    if len(dx) < 100 or len(sizes) < 2 or len(sizes) > len(dx) // 4:
        return None
    grid = float(sizes[0])
    small = sizes[sizes < 1e4 * grid]
    if grid <= 1e-9 * float(sizes[-1]) or (np.abs(small / grid - np.round(small / grid)) > 1e-3).mean() > 1e-3:
        return None
    usual = float(np.median(np.abs(dx - np.median(dx))))
    return grid if grid > _COARSE * usual else None
