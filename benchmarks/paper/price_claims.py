"""What section 4.3 says about prices beside what these runs say: four comparisons, two sets of data, two engines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.paper import prices
from benchmarks.paper.claim import Claim, way
from benchmarks.paper.collect import Runs

WHERE = "section 4.3 (prices)"


@dataclass(frozen=True)
class Estimate:
    """Relative L2 error of V, its standard deviation (starts or bootstrap) and the coverage of the band."""

    error: float
    sd: float | None
    coverage: float | None


def price_claims(runs: Runs) -> Iterator[Claim]:
    """Per set of transitions and engine: whether the TCF lowers the error and its spread, and raises the coverage."""
    for panel in prices.panels(runs):
        for literal in (False, True):
            found = {tail: panel.group(literal, tail) for tail in ("none", "tcf")}
            if all(len(part) for part in found.values()):
                how = way(Runs(tuple(run for part in found.values() for run in part)), literal)
                estimates = {tail: estimate(panel, part, literal) for tail, part in found.items()}
                yield from compare(prices.EXPERIMENTS[panel.experiment], how, estimates["none"], estimates["tcf"])
        if panel.experiment == "btc_first6000":
            error = prices.number(panel.first, "baselines.crl.relative_l2")
            yield crl_claim(error)


def estimate(panel: prices.Panel, runs: Runs, literal: bool) -> Estimate:
    """Of random starts their mean and spread; of a full-batch fit its own error and the spread of its bootstrap."""
    if literal:
        errors = np.array([prices.number(run, "relative_l2") for run in runs])
        if len(errors) < 2:
            return Estimate(float(errors.mean()), None, None)
        mean, sd = prices.mean_and_sd(runs)
        return Estimate(float(errors.mean()), float(errors.std(ddof=1)), panel.coverage(mean, sd))
    run = runs.records[0]
    return Estimate(
        prices.number(run, "relative_l2"),
        prices.optional(run, "bootstrap.relative_l2_sd"),
        prices.optional(run, "coverage_bootstrap") or prices.optional(run, "coverage_std"),
    )


def compare(data: str, how: tuple[str, str], without: Estimate, tcf: Estimate) -> Iterator[Claim]:
    """The statements about one set of transitions."""
    shown = f"{without.error:.2%} → {tcf.error:.2%}".replace("%", " %")
    yield Claim(WHERE, *how, f"{data}: the TCF lowers the error of V", shown, tcf.error < without.error)
    for said, one, other, holds in (
        ("the TCF lowers the spread of that error", without.sd, tcf.sd, lambda a, b: b < a),
        ("the TCF raises the coverage of the band", without.coverage, tcf.coverage, lambda a, b: b > a),
    ):
        if one is not None and other is not None:
            shown = f"{one:.2%} → {other:.2%}".replace("%", " %")
            yield Claim(WHERE, *how, f"{data}: {said}", shown, holds(one, other))


def crl_claim(error: float) -> Claim:
    """The model-free fit to what was seen, outside of it."""
    said = "first 6000 transitions: classical RL has large errors outside of the prices seen"
    measured = f"{100 * error:.2f} %" if error < 10 else f"{100 * error:.1e} %"
    return Claim(WHERE, "least squares", "–", said, measured, error > 1)
