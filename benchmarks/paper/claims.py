"""What the paper says about its experiments beside what these runs say, per engine and law.

Section 4.3, prices: four comparisons, two sets of data, two engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.paper import prices
from benchmarks.paper.collect import COEFFICIENTS, Runs
from benchmarks.paper.tables import FIT_BELOW, groups, percent, read_rates

if TYPE_CHECKING:
    import polars as pl

PRICES = "4.3 (prices)"
ACCURATE = 0.01  # a median error of D_f up to which estimates count as accurate


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


def claims(runs: Runs, more: Sequence[Claim] = ()) -> pl.DataFrame:
    """Every statement that these runs can be held against, per engine and law, and `more` of them, by section."""
    import polars as pl

    found: list[Claim] = []
    for check in CHECKS:
        for key, own in groups(runs, ("literal",)):
            found += check(own, key["literal"])
    found += price_claims(runs)
    found += _linear_bound(runs)
    ordered = sorted([*found, *more], key=lambda claim: section_order(claim.where))
    return pl.DataFrame(ordered, schema=list(Claim._fields), orient="row")


def section_order(where: str) -> tuple[str, ...]:
    """Examples 4.1 ... 4.5 first, then the sections on V, prices last."""
    place = "3" if "prices" in where else "2" if where.startswith("4.2.") else "1"
    return place, where


def _error_falls(runs: Runs, literal: bool) -> Iterator[Claim]:
    for experiment, where in (("unbiased_constant", "4.1"), ("unbiased_variable", "4.2")):
        for alpha in runs.where(experiment=experiment, arm="unbiased").unique("alpha_true"):
            own = runs.where(experiment=experiment, arm="unbiased", alpha_true=alpha)
            sizes = own.unique("n_trajectories")
            if len(sizes) < 2:
                continue
            ends = [own.where(n_trajectories=n) for n in (sizes[0], sizes[-1])]
            falls, shown = True, []
            for name in COEFFICIENTS:
                first, last = (_typical(part, name) for part in ends)
                falls &= last < first
                shown.append(f"{name} {percent(first)} → {percent(last)}")
            said = f"alpha = {alpha:g}: the error decreases with the number of trajectories"
            said += " (outliers removed)" if experiment == "unbiased_variable" else ""
            measured = f"{sizes[0]:,} → {sizes[-1]:,}: median {', '.join(shown)}"
            yield Claim(where, *way(own, literal), said, measured, falls)
            if experiment == "unbiased_constant":
                yield _spread_grows(ends, sizes, alpha, literal)


def _spread_grows(ends: list[Runs], sizes: list[int], alpha: float, literal: bool) -> Claim:
    """Standard deviation of the estimates over the replicas, at the smallest and the largest size."""
    shown, rises = [], False
    for name in COEFFICIENTS:
        first, last = (np.std([run.signed_error(name) for run in part], ddof=1) for part in ends)
        rises |= bool(last > first)
        shown.append(f"{name} {percent(float(first))} → {percent(float(last))}")
    said = f"alpha = {alpha:g}: the standard deviation of the estimates slightly increases with their number"
    measured = f"{sizes[0]:,} → {sizes[-1]:,}: sd {', '.join(shown)}"
    return Claim("4.1", *way(ends[-1], literal), said, measured, rises)


def _typical(runs: Runs, name: str) -> float:
    """Median error of the replicas that are no outliers."""
    return float(np.median(runs.errors(name)[~runs.outliers(*COEFFICIENTS)]))


def _unbiased_outliers(runs: Runs, literal: bool) -> Iterator[Claim]:
    for experiment, where in (("unbiased_variable", "4.2"), ("censored_variable", "4.3")):
        own = runs.where(experiment=experiment, arm="unbiased")
        if not len(own):
            continue
        n = own.largest()
        part = own.where(n_trajectories=n)
        k = int(part.outliers(*COEFFICIENTS).sum())
        said = "unbiased data: some replicas are outliers"
        yield Claim(where, *way(part, literal), said, f"{k} of {len(part)} at {n:,} trajectories", k > 0)
        with_V = Runs(tuple(run for run in part if "error_V" in run.metrics))
        if experiment == "censored_variable" and len(with_V):
            k = int(with_V.outliers("V").sum())
            said = "3 of 12 value functions from unbiased data are outliers (400,000 trajectories)"
            yield Claim("4.2.1", *way(with_V, literal), said, f"{k} of {len(with_V)} at {n:,}", k > 0)


def _tcf_corrects_D_f(runs: Runs, literal: bool) -> Iterator[Claim]:
    for experiment, where in (("censored_variable", "4.3"), ("censored_constant", "4.4"), ("censored_mcmc", "4.5")):
        own = runs.where(experiment=experiment, reach=None)
        with_TCF, without = own.where(arm="tcf"), own.where(arm="none")
        common = set(with_TCF.unique("n_trajectories")) & set(without.unique("n_trajectories"))
        if not common:
            continue
        n = max(common)
        one, other = (
            np.array([run.signed_error("D_f") for run in part.where(n_trajectories=n)]) for part in (with_TCF, without)
        )
        measured = f"bias {percent(other.mean(), signed=True)} → {percent(one.mean(), signed=True)} at {n:,}"
        how = way(own, literal)
        yield Claim(where, *how, "the TCF corrects D_f", measured, bool(abs(one.mean()) < abs(other.mean())))
        if len(one) > 1 and len(other) > 1:
            sds = other.std(ddof=1), one.std(ddof=1)
            said = "the TCF increases the variance of D_f"
            measured = f"sd {percent(sds[0])} → {percent(sds[1])} at {n:,}"
            yield Claim(where, *how, said, measured, bool(sds[1] > sds[0]))


def _b_and_D_o_with_the_TCF(runs: Runs, literal: bool) -> Iterator[Claim]:
    """ "Largely unaffected": neither median error changes by more than half of the larger one."""
    own = runs.where(experiment="censored_variable", reach=None)
    with_TCF, without = own.where(arm="tcf"), own.where(arm="none")
    common = set(with_TCF.unique("n_trajectories")) & set(without.unique("n_trajectories"))
    if not common:
        return
    n, holds, shown = max(common), True, []
    for name in ("b", "D_o"):
        before, after = (float(np.median(part.where(n_trajectories=n).errors(name))) for part in (without, with_TCF))
        holds &= abs(after - before) <= 0.5 * max(before, after)
        shown.append(f"{name} {percent(before)} → {percent(after)}")
    said = "the TCF leaves b and D_o largely unaffected"
    yield Claim("4.3", *way(own, literal), said, f"median error {', '.join(shown)} at {n:,}", holds)


def _sizes_needed(runs: Runs, literal: bool) -> Iterator[Claim]:
    """The first number of trajectories with a median error of D_f of at most 1 %, in Examples 4.4 and 4.5."""
    needed: dict[str, int | None] = {}
    shown = []
    for experiment, where in (("censored_constant", "4.4"), ("censored_mcmc", "4.5")):
        own = runs.where(experiment=experiment, arm="tcf", reach=None)
        sizes = own.unique("n_trajectories")
        if not len(own) or len(sizes) < 2:
            return
        medians = {n: float(np.median(own.where(n_trajectories=n).errors("D_f"))) for n in sizes}
        first = next((n for n in sizes if medians[n] <= ACCURATE), None)
        needed[where] = first
        last = f"not up to {sizes[-1]:,} ({percent(medians[sizes[-1]])})"
        shown.append(f"{where} {last if first is None else f'from {first:,}'}")
    said = "the number of trajectories needed for accurate estimates differs between 4.4 and 4.5"
    measured = f"median error of D_f with the TCF within 1 %: {', '.join(shown)}"
    how = way(runs.where(experiment=["censored_constant", "censored_mcmc"], arm="tcf"), literal)
    yield Claim("4.5", *how, said, measured, needed["4.4"] != needed["4.5"])


def _value_improves(runs: Runs, literal: bool) -> Iterator[Claim]:
    for experiment in ("censored_variable", "censored_constant"):
        own = runs.where(experiment=experiment, arm=["tcf", "none"])
        if len(own.unique("arm")) < 2:
            continue
        n = own.largest()
        by: dict[str, dict[int, float]] = {
            arm: {r.setting("seed"): r.number("error_V") for r in own.where(arm=arm, n_trajectories=n)}
            for arm in ("tcf", "none")
        }
        seeds = [s for s in by["tcf"] if s in by["none"] and np.isfinite(by["tcf"][s] + by["none"][s])]
        if not seeds:
            continue
        k = sum(by["tcf"][s] < by["none"][s] for s in seeds)
        median = {arm: float(np.median([by[arm][s] for s in seeds])) for arm in by}
        measured = (
            f"better in {k} of {len(seeds)} replicas at {n:,}; median error {percent(median['none'])} → "
            f"{percent(median['tcf'])}"
        )
        where = f"4.2.1 ({'4.3' if experiment == 'censored_variable' else '4.4'})"
        yield Claim(where, *way(own, literal), "V improves with the TCF", measured, 2 * k > len(seeds))


def _linear_bound(runs: Runs) -> Iterator[Claim]:
    """Theorem 3.1 bounds the C^(2, gamma) norm; the figure of the paper does not say which norm it shows."""
    for study in runs.studies[-1:]:
        slopes = {curve.norm: curve.slope for curve in read_rates(study) if curve.perturbation == "noise"}
        if slopes:
            said = "the error of V is linear in the error of the coefficients"
            shown = ", ".join(f"{norm} {slope:.3f}" for norm, slope in slopes.items())
            measured = f"slope over eps <= {FIT_BELOW:g}: {shown}"
            holds = all(abs(slope - 1) < 0.05 for slope in slopes.values())
            yield Claim("4.2.2", "collocation", "–", said, measured, holds)


CHECKS: tuple[Callable[[Runs, bool], Iterator[Claim]], ...] = (
    _error_falls, _unbiased_outliers, _tcf_corrects_D_f, _b_and_D_o_with_the_TCF, _sizes_needed, _value_improves,
)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """Relative L2 error of V, its standard deviation (starts or bootstrap) and the coverage of the band."""

    error: float
    sd: float | None
    coverage: float | None


def price_claims(runs: Runs) -> Iterator[Claim]:
    """Per set of transitions and engine: whether the TCF lowers the error and its spread, and raises the coverage."""
    panels = prices.panels(runs)
    for panel in panels:
        for literal in (False, True):
            found = {tail: panel.group(literal, tail) for tail in ("none", "tcf")}
            if all(len(part) for part in found.values()):
                how = way(Runs(tuple(run for part in found.values() for run in part)), literal)
                estimates = {tail: estimate(panel, part, literal) for tail, part in found.items()}
                yield from compare(prices.EXPERIMENTS[panel.experiment], how, estimates["none"], estimates["tcf"])
        if panel.experiment == "btc_first6000":
            error = prices.number(panel.first, "baselines.crl.relative_l2")
            yield crl_claim(error)
    yield from _more_prices_are_better({panel.experiment: panel for panel in panels})


def _more_prices_are_better(panels: dict[str, prices.Panel]) -> Iterator[Claim]:
    """Random 60,000 transitions against the first 6000, per engine and tail treatment."""
    if not {"btc_first6000", "btc_random60000"} <= set(panels):
        return
    for literal in (False, True):
        for tail, label in (("tcf", "with TCF"), ("none", "without TCF")):
            few, many = (panels[name].group(literal, tail) for name in ("btc_first6000", "btc_random60000"))
            if len(few) and len(many):
                one = estimate(panels["btc_first6000"], few, literal).error
                two = estimate(panels["btc_random60000"], many, literal).error
                said = f"random 60,000 transitions give a smaller error of V than the first 6000, {label}"
                shown = f"{one:.2%} → {two:.2%}".replace("%", " %")
                yield Claim(PRICES, *way(many, literal), said, shown, two < one)


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
    yield Claim(PRICES, *how, f"{data}: the TCF lowers the error of V", shown, tcf.error < without.error)
    for said, one, other, holds in (
        ("the TCF lowers the spread of that error", without.sd, tcf.sd, lambda a, b: b < a),
        ("the TCF raises the coverage of the band", without.coverage, tcf.coverage, lambda a, b: b > a),
    ):
        if one is not None and other is not None:
            shown = f"{one:.2%} → {other:.2%}".replace("%", " %")
            yield Claim(PRICES, *how, f"{data}: {said}", shown, holds(one, other))


def crl_claim(error: float) -> Claim:
    """The model-free fit to what was seen, outside of it."""
    said = "first 6000 transitions: classical RL has large errors outside the observed prices"
    measured = f"{100 * error:.2f} %" if error < 10 else f"{100 * error:.1e} %"
    return Claim(PRICES, "least squares", "–", said, measured, error > 1)
