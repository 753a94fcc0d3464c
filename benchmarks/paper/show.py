"""Tables as Markdown, readable in a terminal as well: shares as per cent, columns that say nothing left out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from benchmarks.paper.style import arm_label

if TYPE_CHECKING:
    import polars as pl

_SHARES = ("_median", "_mean", "_worst", "_bias", "_bias_std", "coverage")
KEEP = ("arm", "n_trajectories", "coefficient", "holds")  # columns that tables of runs always show
_NAMES = {"n_trajectories": "trajectories", "alpha_true": "alpha", "literal": "engine"}


def markdown(table: pl.DataFrame, *, keep: tuple[str, ...] | None = None) -> str:
    """A Markdown table; with `keep`, other columns of one value only are dropped, and empty ones always."""
    columns = list(table.columns)
    if keep is not None and len(table) > 1:
        columns = [name for name in columns if name in keep or table[name].n_unique() > 1]
        columns = [name for name in columns if table[name].null_count() < len(table)]
    lines = ["| " + " | ".join(_NAMES.get(name, name.replace("_", " ")) for name in columns) + " |"]
    lines[0] = lines[0].replace("D o", "D_o").replace("D f", "D_f")
    right = [table[name].dtype.is_numeric() for name in columns]
    lines.append("|" + "|".join("---:" if numeric else "---" for numeric in right) + "|")
    rows = table.select(columns).rows(named=True)
    lines += ["| " + " | ".join(cell(name, value) for name, value in row.items()) + " |" for row in rows]
    return "\n".join(lines)


def cell(column: str, value: Any) -> str:
    """A value as text: what the column means decides how."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if column == "arm":
        return arm_label(str(value))
    if column == "literal":
        return "Algorithm B.1" if value else "levytorch"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if column.endswith(_SHARES) and not column.startswith("z_"):
            return percent(value, signed=column.endswith("_bias"))
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def percent(share: float, *, signed: bool = False) -> str:
    """Three significant digits at most, two decimals at most."""
    value = 100 * share
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:{'+' if signed else ''}.{digits}f} %"
