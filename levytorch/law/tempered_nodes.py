"""Nodes and constants of the contour of the tempered law; `tempered.py` holds the mathematics.

Everything that the compiled kernels and their torch twin must agree on is here. The constants were chosen by
measurement against four times as many nodes on other contours, alpha in [0.05, 0.97], A = 1 or 0, B in [1e-9, 1e6],
lam in [1e-6, 1e4]: log p within 1e-12.
"""

from __future__ import annotations

import math

import numpy as np

STEP = 0.09  # of the trapezoid rule
BLOCK = 16  # nodes that are added before the sums are looked at
N_NODES = 64 * BLOCK
KAPPA = 0.1  # size of B (k^2 + lam^2)^alpha below which the Gaussian is split off
CLEAR = 2.0  # the contour keeps CLEAR / sqrt(y^2 + 4 A) from the branch point, which costs a factor exp(CLEAR) at most
THETA = math.pi / 4.5  # angle of the asymptotes in the tail
TURN_GAUSS = 24.0  # they open when y^2 passes 24 A, or
TURN_JUMP = 100.0  # (y r)^2 passes 100 with r where the jump part has ended,
TURN_SADDLE = 4.0  # and close again when the branch point is sqrt(4) widths of the saddle away
CORE = 2.0  # weight of the jump part's own, almost Gaussian, core when 2 alpha > 1
WIDTH = 1.2  # scale of the hyperbola in units of the saddle's width
LOG_LIMIT = -32.0  # log(lam * width of the law) below which tempering is a factor exp(B lam^(2 alpha)) and no more
DECAY = 1e-19  # terms below this part of the largest are the end of the sum
SMALL = 5.0  # y r below which d > 1 has kernels of their own for small radii, r where the integrand has ended

TAU = STEP * np.arange(N_NODES)
SINH, COSH = np.sinh(TAU), np.cosh(TAU)
COSH_1 = 2.0 * np.sinh(0.5 * TAU) ** 2  # cosh - 1
WEIGHT = np.full(N_NODES, STEP / math.pi)
WEIGHT[0] *= 0.5
