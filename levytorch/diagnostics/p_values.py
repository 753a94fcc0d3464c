"""p-values in words."""

from __future__ import annotations

SMALLEST = 1e-12  # below it no test that rests on large samples means what it says


def p_text(p: float, sign: str = "=") -> str:
    """A p-value as a sentence would have it: never zero, and no digits that mean nothing."""
    if p < SMALLEST:
        return f"p < {SMALLEST:.0e}"
    return f"p {sign} {p:.2g}" if p >= 1e-3 else f"p {sign} {p:.0e}"
