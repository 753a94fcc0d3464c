"""The base cells of the table: uniform in z near the center, in log z far out, and in log c."""

from __future__ import annotations

import math

Z_SWITCH = 12.0
LOG_Z_SWITCH = math.log(Z_SWITCH)
PER_Z = 2.0  # base cells per unit of z
N_NEAR = int(Z_SWITCH * PER_Z)
N_FAR = 30  # up to z = 12 e^30 = 1.3e14
N_U = N_NEAR + N_FAR
S_MIN, S_MAX = -40.0, 14.0
N_S = int(S_MAX - S_MIN)
MAX_LEVEL = 4
EMPTY, OUTSIDE = -1, -2  # instead of the first cell of a column: not built yet, cannot be held
