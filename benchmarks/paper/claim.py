"""One statement of the paper, and which engine and law it is held against."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.paper.collect import Runs


class Claim(NamedTuple):
    """A statement of the paper (section), what was measured with which engine and law, and whether it holds here."""

    where: str
    engine: str
    law: str
    paper: str
    measured: str
    holds: bool


def way(runs: Runs, literal: bool) -> tuple[str, str]:
    """Engine and law of some runs, as the table shows them."""
    engines = sorted({str(run.metrics.get("engine")) for run in runs})
    return "Algorithm B.1" if literal else ", ".join(engines), ", ".join(sorted({run.law for run in runs}))
