"""p-values: of chi-squared, and in words."""

from __future__ import annotations

import math

from scipy.special import chdtrc, chdtri

SMALLEST = 1e-12  # below it no test that rests on large samples means what it says


def p_text(p: float, sign: str = "=") -> str:
    """A p-value as a sentence would have it: never zero, and no digits that mean nothing."""
    if p < SMALLEST:
        return f"p < {SMALLEST:.0e}"
    return f"p {sign} {p:.2g}" if p >= 1e-3 else f"p {sign} {p:.0e}"


def chi_squared_sf(statistic: float, df: int) -> float:
    """P(chi-squared with df degrees of freedom > statistic); scipy.stats, which has it too, takes half a second."""
    return float(chdtrc(df, statistic)) if df > 0 and statistic >= 0 else math.nan


def chi_squared_isf(p: float, df: int) -> float:
    """What chi-squared exceeds with probability p."""
    return float(chdtri(df, p))
