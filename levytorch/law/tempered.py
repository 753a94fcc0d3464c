"""The law of one step on a line with tempered jumps: quadrature on a hyperbola, value and derivatives.

Jumps beyond 1 / lam are exponentially rare. With A = D_o dt, B = D_f dt, y = |displacement - b dt|,

    p(y) = 1/pi Re int exp(i y k - A k^2 - B ((k^2 + lam^2)^alpha - lam^(2 alpha))) dk

lam = 0 is the stable law. For lam > 0 the integrand is analytic but for the cuts from +-i lam outwards, so that the
line may be lifted to pass the imaginary axis at any 0 <= s < lam, and its ends may be turned upwards:

    k = i s + sigma (sinh(tau + i theta) - i sin(theta)),

a hyperbola, on which the trapezoid rule in tau converges exponentially: there is no end point and nothing is singular.

- s is the saddle, y = 2 A s + 2 alpha B s (lam^2 - s^2)^(alpha - 1), but keeps 2 / sqrt(y^2 + 4 A) from the branch
  point (y counted beyond 2 A lam), which costs a factor e^2 at most. exp(-y s + ...) is taken out, hence the relative
  accuracy far into the exponential tail.
- split, when B (k^2 + lam^2)^alpha < 0.1 where it matters: the Gaussian is taken out in closed form and the rest
  carries expm1(-B (k^2 + lam^2)^alpha); s is then y / 2A, as near to the branch point. Unsplit otherwise, relative to
  the value at i s: B lam^(2 alpha) may be a million.
- theta opens where waves outlive the decay of the integrand, sigma is the width of the saddle or the distance to the
  branch point. Small lam costs nodes (26 per decade), not digits; when lam times the width of the law is below 1e-14,
  the law is the stable one times exp(B lam^(2 alpha)).

The same nodes give all derivatives. Where lam -> 0, d log p / d lam ~ lam^(2 alpha - 1) diverges for alpha < 1/2: learn
lam^(2 alpha). Accuracy (300 points by mpmath, alpha in [0.05, 0.97], log p down to -165): log p within 1e-13.

The constants of the compiled kernels were chosen by measurement against four times as many nodes on other contours,
alpha in [0.05, 0.97], A = 1 or 0, B in [1e-9, 1e6], lam in [1e-6, 1e4]: log p within 1e-12.
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

TAU = STEP * np.arange(N_NODES)
SINH, COSH = np.sinh(TAU), np.cosh(TAU)
COSH_1 = 2.0 * np.sinh(0.5 * TAU) ** 2  # cosh - 1
WEIGHT = np.full(N_NODES, STEP / math.pi)
WEIGHT[0] *= 0.5

# where the stable law's derivatives stand among those of the tempered one: (y, A, B, alpha, lam), upper triangle
STABLE_ROWS = np.array([0, 1, 2, 3, 4, 6, 7, 8, 9, 11, 12, 13, 15, 16, 18])
