"""Do the steps repeat themselves from one period of the state to the next?

Pairs in the lower and in the upper half of the periods that x runs through are compared at the same place of the
period: how many steps lie above the common median, and how many are larger than usual. Under a periodic system the
numbers of each bin are hypergeometric, whatever the law of a step is.
"""

from __future__ import annotations

from scipy.special import chdtrc
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.data import Transitions

_BINS = 32  # of a period
_MOST = 50_000
_SURE = 1e-4


def cells_differ(head: Head, transitions: Transitions) -> bool:
    """Whether steps one period apart clearly differ, in any coordinate; the head has a period."""
    stride = max(1, len(transitions) // _MOST)
    x, dx, dt = (v[::stride] for v in (transitions.x, transitions.dx, transitions.dt))
    x, dx = x.reshape(len(x), -1), dx.reshape(len(x), -1) / (dt / dt.mean()).sqrt()[:, None]
    columns = zip(x.T, dx.T, head.bounds)
    return any(_p_value((column - low) / (high - low), step) < _SURE for column, step, (low, high) in columns)


def _p_value(turns: Tensor, dx: Tensor) -> float:
    """turns: states in periods."""
    cell = turns.floor()
    upper = cell > cell.median()
    if not bool(upper.any()):
        upper = cell >= cell.median()
    place = ((turns - cell) * _BINS).long().clamp(max=_BINS - 1)
    statistic, df = 0.0, 0
    for bin_ in range(_BINS):
        here = place == bin_
        step, above = dx[here], upper[here].double()
        n, m = len(step), float(above.sum())
        if min(m, n - m) < 5:
            continue
        away = step - step.median()
        for mark in (away > 0, away.abs() > away.abs().median()):
            share = float(mark.double().mean())
            variance = share * (1 - share) * m * (n - m) / (n - 1)
            if variance > 0:
                statistic += (float(above[mark].sum()) - share * m) ** 2 / variance
                df += 1
    return float(chdtrc(df, statistic)) if df else 1.0
