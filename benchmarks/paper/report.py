"""Everything an experiment shows, written into a directory: figures (PNG, PDF), tables (CSV) and their text."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.paper.claims import claims
from benchmarks.paper.collect import Runs
from benchmarks.paper.registry import Entry, figures_of
from benchmarks.paper.show import KEEP, markdown
from benchmarks.paper.tables import all_tables
from levytorch.atomic import replacing
from levytorch.errors import InputError
from levytorch.figures import save

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger("benchmarks.paper")


def write_figures(runs: Runs, entries: dict[str, Entry], directory: Path) -> list[Path]:
    """One figure per entry as <directory>/<name>.png and .pdf; one that these runs are not enough for is skipped."""
    written: list[Path] = []
    for name, entry in entries.items():
        try:
            fig, _ = entry.load()(runs_of(entry, runs))
        except InputError as error:
            log.warning(f"no figure {name}: {error}")
            continue
        written += save(fig, directory / name)
    return written


def runs_of(entry: Entry, runs: Runs) -> Runs:
    """The runs of the experiments a figure is made of; all of them when none says that it is of these."""
    named = runs.where(experiment=list(entry.experiments))
    return named if len(named) else runs


def write_tables(runs: Runs, directory: Path) -> str:
    """All tables as <directory>/<name>.csv; returns them as text, the paper's statements first."""
    text = []
    tables = all_tables(runs)
    stated = claims(runs)
    if len(stated):
        tables = {"paper": stated, **tables}
    for name, table in tables.items():
        write_csv(table, directory / f"{name}.csv")
        text.append(f"{name}\n\n{markdown(table, keep=KEEP)}\n")
    return "\n".join(text)


def write_csv(table: pl.DataFrame, path: Path) -> None:
    """Whole or not at all."""
    with replacing(path) as temporary:
        table.write_csv(temporary)


def write_report(runs: Runs, directory: Path) -> str:
    """The figures and tables of the experiments these runs belong to; returns the tables as text."""
    write_figures(runs, figures_of(runs.unique("experiment")), directory / "figures")
    return write_tables(runs, directory / "tables")
