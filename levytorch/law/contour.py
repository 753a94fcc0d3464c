"""The law of one step on a line by quadrature on a rotated contour: any alpha, value and derivatives.

With A = D_o dt, B = D_f dt, y = |displacement - b dt| (paper, Appendix D):

    p(y) = 1/pi Re int exp(i y r - A r^2 - B r^(2 alpha)) dr.

The half line is rotated by theta, which turns oscillation into decay and keeps *relative* accuracy in the tail. Two
paths:

- split, when B L^(-2 alpha) < 0.1 with L = sqrt(y^2 + 4 A): the Gaussian is taken out in closed form and the rest
  carries expm1(-B r^(2 alpha)), so that a tail of 1e-300 keeps its digits;
- unsplit otherwise, in units of B^(1 / (2 alpha)).

All derivatives come from the same nodes: d/dy from i r, d/dA from -r^2, d/dB from
-r^(2 alpha), d/dalpha from -2 B r^(2 alpha) log r, and their products for second derivatives.

Accuracy (measured against 50-digit values, alpha in [0.05, 0.97], y up to 1e12): log p within 1e-13, first derivatives
within 1e-11 of their natural scale.

The variable of integration is ``rho = S exp(v - exp(-v))`` (in units of the width of the law) with the trapezoid rule
in ``v = j h``. ``v - exp(-v)`` sends the algebraic singularity r^(2 alpha) at zero to a double-exponential decay, and
grows linearly upwards, where the integrand itself decays exponentially.

The step h and the rotation were chosen by measurement against a five to twelve times finer rule, alpha in [0.04, 0.98],
c = B / A^alpha in [1e-5, 1e5] and A = 0, z = y / sqrt(A) in [0, 1e5]: log p within 1e-12, its first derivatives within
1e-11 of their natural scale.

The constants of the compiled kernels (`contour_kernels.py`) stand here.
"""

from __future__ import annotations

import math

# B L^(-2 alpha) below which the Gaussian is split off, L = sqrt(y^2 + 4 A). Above, the unsplit integrand cancels by a
# factor of ten at most; below, the split one does not have to undo a wide jump part.
LOG_SPLIT = math.log(0.1)
LOG_KAPPA_MIN = -660.0  # of B L^(-2 alpha): below, it is a factor of the sums, which is taken out

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

STEPS = (0.08, 0.10, 0.12)  # fine, medium, coarse
