"""What the paper says about its experiments beside what these runs say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from benchmarks.paper.collect import COEFFICIENTS, Runs
from benchmarks.paper.tables import percent, read_rates

if TYPE_CHECKING:
    import polars as pl


class Claim(NamedTuple):
    """A statement of the paper (section), what was measured, and whether it holds here."""

    where: str
    engine: str
    paper: str
    measured: str
    holds: bool


def claims(runs: Runs) -> pl.DataFrame:
    """Every statement that these runs can be held against, for levytorch's engine and for Algorithm B.1."""
    import polars as pl

    found: list[Claim] = []
    for check in CHECKS:
        for literal in (False, True):
            way = runs.where(literal=literal)
            if len(way):
                found += check(way, "Algorithm B.1" if literal else "levytorch")
    found += _linear_bound(runs)
    return pl.DataFrame(found, schema=list(Claim._fields), orient="row")


def _error_falls(runs: Runs, engine: str) -> Iterator[Claim]:
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
            yield Claim(where, engine, said, f"{sizes[0]:,} → {sizes[-1]:,}: median {', '.join(shown)}", falls)


def _typical(runs: Runs, name: str) -> float:
    """Median error of the replicas that are no outliers."""
    return float(np.median(runs.errors(name)[~runs.outliers(*COEFFICIENTS)]))


def _unbiased_outliers(runs: Runs, engine: str) -> Iterator[Claim]:
    for experiment, where in (("unbiased_variable", "4.2"), ("censored_variable", "4.3")):
        own = runs.where(experiment=experiment, arm="unbiased")
        if not len(own):
            continue
        n = own.largest()
        part = own.where(n_trajectories=n)
        k = int(part.outliers(*COEFFICIENTS).sum())
        said = "unbiased data: some replicas are outliers"
        yield Claim(where, engine, said, f"{k} of {len(part)} at {n:,} trajectories", k > 0)
        with_V = Runs(tuple(run for run in part if "error_V" in run.metrics))
        if experiment == "censored_variable" and len(with_V):
            k = int(with_V.outliers("V").sum())
            said = "3 of 12 value functions from unbiased data are outliers (400,000 trajectories)"
            yield Claim("4.2.1", engine, said, f"{k} of {len(with_V)} at {n:,}", k > 0)


def _tcf_mends_D_f(runs: Runs, engine: str) -> Iterator[Claim]:
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
        yield Claim(where, engine, "the TCF mends D_f", measured, bool(abs(one.mean()) < abs(other.mean())))
        if len(one) > 1 and len(other) > 1:
            sds = other.std(ddof=1), one.std(ddof=1)
            said = "the TCF increases the variance of D_f"
            yield Claim(
                where, engine, said, f"sd {percent(sds[0])} → {percent(sds[1])} at {n:,}", bool(sds[1] > sds[0])
            )


def _value_improves(runs: Runs, engine: str) -> Iterator[Claim]:
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
        yield Claim(where, engine, "V improves with the TCF", measured, 2 * k > len(seeds))


def _linear_bound(runs: Runs) -> Iterator[Claim]:
    for study in runs.studies[-1:]:
        for curve in read_rates(study):
            if curve.perturbation == "noise" and curve.norm == "C0":
                said = "the error of V is linear in the error of the coefficients"
                yield Claim("4.2.2", "levytorch", said, f"slope {curve.slope:.3f}", abs(curve.slope - 1) < 0.05)


CHECKS: tuple[Callable[[Runs, str], Iterator[Claim]], ...] = (
    _error_falls, _unbiased_outliers, _tcf_mends_D_f, _value_improves,
)  # fmt: skip
