"""Tables against numbers read from the files by hand."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks.paper import tables
from benchmarks.paper.claims import claims
from benchmarks.paper.collect import collect
from benchmarks.paper.tables import markdown, percent, read_rates


def metrics_below(folder: Path) -> dict[int, dict]:
    files = folder.glob("**/metrics.json")
    return {int(file.parent.name.removeprefix("seed")): json.loads(file.read_text()) for file in files}


def row_of(table: pl.DataFrame, **wanted) -> dict:
    rows = [row for row in table.rows(named=True) if all(row[k] == v for k, v in wanted.items())]
    assert len(rows) == 1
    return rows[0]


def test_errors_and_bias(root, runs):
    table = tables.errors(runs)
    for arm, folder in (("none", "censored"), ("tcf", "tcf")):
        found = row_of(table, experiment="censored_constant", arm=arm)
        stored = list(metrics_below(root / "censored_constant" / folder).values())
        errors = [m["error_D_f"] for m in stored]
        bias = np.array([m["mean_D_f"] for m in stored]) / 3 - 1
        assert found["replicas"] == len(stored) == 3
        assert found["D_f_median"] == np.median(errors)
        assert found["D_f_mean"] == pytest.approx(np.mean(errors))
        assert found["D_f_worst"] == max(errors)
        assert found["D_f_bias"] == pytest.approx(bias.mean())
        assert found["D_f_bias_std"] == pytest.approx(bias.std(ddof=1) / np.sqrt(3))
    assert table["replicas"].sum() == len(runs)


def test_standardised_errors(root, runs):
    table = tables.calibrations(runs.where(experiment="censored_constant"))
    stored = metrics_below(root / "censored_constant" / "tcf").values()
    z = np.array([(m["mean_D_o"] - 4) / m["mean_std_D_o"] for m in stored])
    found = row_of(table, arm="tcf", coefficient="D_o")
    assert found["z_mean"] == pytest.approx(z.mean())
    assert found["z_sd"] == pytest.approx(z.std(ddof=1))
    assert found["coverage"] == np.mean(np.abs(z) < 1.96)
    pooled = tables.calibrations(runs.where(experiment="unbiased_constant"), tables.SIZELESS)
    assert row_of(pooled, alpha_true=0.3, coefficient="b")["runs"] == 6


def test_coverage_of_a_band(runs):
    part = runs.where(experiment="unbiased_variable")
    inside = []
    for record in part:
        c = record.curves
        inside.append(np.abs(c["D_f"] - c["D_f_truth"])[:-1] <= 1.959964 * c["D_f_std"][:-1])
    found = row_of(tables.calibrations(part), coefficient="D_f")
    assert found["coverage"] == pytest.approx(np.mean(inside))
    assert found["ks_p"] is None


def test_value_errors_and_who_is_better(root, runs):
    table = tables.values(runs)
    with_TCF = metrics_below(root / "censored_variable" / "tcf")
    without = metrics_below(root / "censored_variable" / "censored")
    found = row_of(table, experiment="censored_variable", arm="tcf", literal=False)
    better = sum(with_TCF[seed]["error_V"] < without[seed]["error_V"] for seed in with_TCF)
    assert (found["better_than_none"], found["compared"]) == (better, 3)
    assert found["V_median"] == np.median([m["error_V"] for m in with_TCF.values()])
    assert row_of(table, experiment="censored_variable", arm="none")["better_than_none"] is None
    record = next(iter(runs.where(experiment="censored_variable", arm="none", seed=0)))
    V, truth = record.values["V"][:-1], record.values["V_truth"][:-1]
    assert found["V_shape_median"] <= found["V_median"] + 1e-12
    own = record.shape_error()
    assert own == pytest.approx(np.std(V - truth) / np.std(truth))


def test_rates_need_two_sizes(runs):
    table = tables.rates(runs)
    assert table["experiment"].unique().to_list() == ["unbiased_constant"]
    assert table["sizes"].to_list() == [2, 2]


def test_slopes_of_the_error_bound_are_those_of_the_study(root):
    stored = json.loads((root / "rate_study" / "rates.json").read_text())["noise"]
    found = {curve.norm: curve.slope for curve in read_rates(root / "rate_study")}
    assert found["C0"] == pytest.approx(stored["slope_C0"], rel=1e-6)
    assert found["C2"] == pytest.approx(stored["slope_C2"], rel=1e-6)


def test_claims_say_what_was_measured(root, runs):
    table = claims(runs)
    row = next(r for r in table.rows(named=True) if r["where"] == "4.4" and "corrects" in r["paper"])
    bias = {
        folder: np.mean([m["mean_D_f"] / 3 - 1 for m in metrics_below(root / "censored_constant" / folder).values()])
        for folder in ("censored", "tcf")
    }
    assert row["holds"] == (abs(bias["tcf"]) < abs(bias["censored"]))
    for value in bias.values():
        assert percent(value, signed=True) in row["measured"]
    assert {r["where"] for r in table.rows(named=True)} >= {"4.1", "4.2", "4.3", "4.4", "4.5", "4.2.1", "4.2.2"}


def test_the_spread_of_estimates_is_held_against_the_paper(root, runs):
    row = next(r for r in claims(runs).rows(named=True) if "alpha = 0.3: the standard deviation" in r["paper"])
    spread = []
    for n in (100, 300):
        stored = metrics_below(root / "unbiased_constant" / "alpha0.3" / f"n{n}").values()
        spread.append(np.std([m["mean_b"] / 5 - 1 for m in stored], ddof=1))
    assert f"b {percent(spread[0])} → {percent(spread[1])}" in row["measured"]
    assert (row["engine"], row["law"]) == ("fisher", "frozen")


def test_prices_are_held_against_the_paper(price_runs):
    found = collect(price_runs)
    table = claims(found).rows(named=True)
    told = [row for row in table if row["paper"] == "first 6000 transitions: the TCF lowers the error of V"]
    assert [row["engine"] for row in told] == ["evidence", "Algorithm B.1"]
    assert {row["law"] for row in told} == {"frozen"}
    errors = {
        tail: np.mean([r.metrics["empirical"]["relative_l2"] for r in found.where(literal=True, tail=tail)])
        for tail in ("none", "tcf")
    }
    assert told[1]["measured"] == f"{errors['none']:.2%} → {errors['tcf']:.2%}".replace("%", " %")
    assert told[1]["holds"] == (errors["tcf"] < errors["none"])
    assert any("classical RL" in row["paper"] for row in table)


def test_both_norms_of_the_error_bound_are_told(runs):
    (row,) = (r for r in claims(runs).rows(named=True) if r["where"] == "4.2.2")
    assert row["measured"].startswith("slope over eps <= 0.03: C0 ")
    assert ", C2 " in row["measured"]


def test_markdown_leaves_out_what_says_nothing():
    table = pl.DataFrame(
        {"arm": ["tcf", "tcf"], "dt": [0.1, 0.1], "D_f_median": [0.123, None], "n_trajectories": [1000, 40000]}
    )
    assert markdown(table, keep=("arm",)).splitlines() == [
        "| arm | D_f median | trajectories |",
        "|---|---:|---:|",
        "| with TCF | 12.3 % | 1,000 |",
        "| with TCF | – | 40,000 |",
    ]
    assert "dt" in markdown(table)
    assert "dt" in markdown(table[:1], keep=("arm",))  # one row: nothing can be told to be the same everywhere


@pytest.mark.parametrize(("share", "text"), [(0.5, "50.0 %"), (1.234, "123 %"), (0.0004, "0.04 %"), (0.0999, "9.99 %")])
def test_percent(share, text):
    assert percent(share) == text
