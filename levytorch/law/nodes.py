"""Double-exponential nodes of the rotated-contour quadrature, and the constants of its path.

Everything that the compiled kernels (`kernels.py`) and their torch twin (`contour_torch.py`) must agree on is here.

The variable of integration is ``rho = S exp(v - exp(-v))`` (in units of the width of the law) with the trapezoid rule
in ``v = j h``. ``v - exp(-v)`` sends the algebraic singularity r^(2 alpha) at zero to a double-exponential decay, and
grows linearly upwards, where the integrand itself decays exponentially.

The step h and the rotation were chosen by measurement against a five to twelve times finer rule, alpha in [0.04, 0.98],
c = B / A^alpha in [1e-5, 1e5] and A = 0, z = y / sqrt(A) in [0, 1e5]: log p within 1e-12, its first derivatives within
1e-11 of their natural scale.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

# B L^(-2 alpha) below which the Gaussian is split off, L = sqrt(y^2 + 4 A). Above, the unsplit integrand cancels by a
# factor of ten at most; below, the split one does not have to undo a wide jump part.
LOG_SPLIT = math.log(0.1)

# Split path (the jump part is small at the scale L): units of L.
SPLIT_THETA = math.pi / 4.5  # rotation reached in the tail
SPLIT_GAUSS = 24.0  # weight of A in the rotation: the Gaussian's decay is needed while y^2 is not >> 24 A
SPLIT_CORE = 2.0  # weight of the jump part's own, almost Gaussian, core when 2 alpha > 1
SPLIT_S = 1.5

# Unsplit path (the jump part is wide): units of B^(1 / (2 alpha)).
UNSPLIT_THETA = math.pi / 5
UNSPLIT_TURN = 100.0  # rotation sets in when the square of the number of oscillations passes this
UNSPLIT_S = 1.0 / 37.0

DECAY = 38.0  # exp(-38) = 3e-17: where the integrand ends
FLOOR = 34.0  # exp(-34) relative: where it begins

STEPS = (0.08, 0.10, 0.12)
FINE, MEDIUM, COARSE = 0, 1, 2
V_MIN, V_MAX = -9.0, 400.0


@cache
def tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Grids for every step in STEPS: ``v - exp(-v)``, its exponential, ``h (1 + exp(-v))``.

    Each has shape (3, n); column ``j + offset(k)`` is v = j STEPS[k].
    """
    n = max(int((V_MAX - V_MIN) / h) + 2 for h in STEPS)
    log_w, w, jac = np.zeros((3, n)), np.zeros((3, n)), np.zeros((3, n))
    for k, h in enumerate(STEPS):
        v = (np.arange(n) - offset(k)) * h
        log_w[k] = v - np.exp(-v)
        w[k] = np.exp(log_w[k])
        jac[k] = h * (1.0 + np.exp(-v))
    return log_w, w, jac


def offset(k: int) -> int:
    """Column of v = 0 in the tables of step k."""
    return int(-V_MIN / STEPS[k])


OFFSETS = np.array([offset(k) for k in range(len(STEPS))], dtype=np.int64)
H = np.array(STEPS)
