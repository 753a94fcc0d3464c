"""Every figure: panels, curves, labels and the numbers in them."""

import json
import shutil

import numpy as np
import pytest

from benchmarks.paper.collect import collect
from benchmarks.paper.figures import FIGURES, bound_figure, figure, moving_average
from levytorch.errors import InputError
from levytorch.untrusted import read_csv

PANELS = {
    "comparison": 6, "landscape": 4, "adaptive": 3, "unbiased_constant": 3, "unbiased_variable": 4,
    "censored_variable": 2, "censored_constant": 2, "policy_error": 2, "learning_history": 2,
}  # fmt: skip


def draw(name, runs):
    fig, axes = FIGURES[name].of(runs)
    return fig, list(np.ravel(np.asarray(axes, dtype=object)))


def labels(ax):
    return ax.get_legend_handles_labels()[1]


def line(ax, label):
    return next(one for one in ax.get_lines() if one.get_label() == label)


@pytest.fixture(scope="module")
def drawn(runs):
    return {name: draw(name, runs) for name in PANELS}


@pytest.mark.long
@pytest.mark.parametrize("name", PANELS)
def test_every_figure_has_its_panels_and_titles(drawn, name):
    fig, axes = drawn[name]
    assert len(axes) == PANELS[name]
    assert all(ax.get_title() for ax in axes)
    assert all(ax.get_figure() is fig for ax in axes)


def test_comparison_draws_every_replica_and_the_truth(drawn, runs):
    _, axes = drawn["comparison"]
    own = axes[:3]
    assert [ax.get_title().split("\n")[0] for ax in own] == [
        "unbiased data", "censored, with TCF", "censored, without TCF",
    ]  # fmt: skip
    for ax, arm in zip(own, ("unbiased", "tcf", "none")):
        part = runs.where(experiment="censored_variable", arm=arm, literal=False)
        curves = [one for one in ax.get_lines() if len(one.get_xdata()) > 0]
        assert len(curves) == len(part) + 1
        for record, one in zip(part, curves):
            np.testing.assert_array_equal(one.get_ydata(), record.curves["D_f"])
        x = curves[-1].get_xdata()
        np.testing.assert_allclose(line(ax, "truth").get_ydata(), 2 + np.exp(np.sin(2 * x) * np.cos(3 * x)))
    assert "Algorithm B.1" in axes[4].get_title()
    assert [ax.get_visible() for ax in axes[3:]] == [False, True, False]  # no such runs of the other arms


def test_landscape_marks_truth_and_minimiser(drawn):
    _, axes = drawn["landscape"]
    dots = [line(ax, "minimiser").get_xydata()[0] for ax in axes]
    for ax in axes:
        np.testing.assert_array_equal(line(ax, "truth").get_xydata(), [[4.0, 3.0]])
        assert line(ax, "truth").get_color() == "white"
    D_f = [dot[1] for dot in dots]
    assert D_f == sorted(D_f)  # a larger TCF asks for heavier tails
    assert "fixed point" in axes[2].get_title()


def test_adaptive_staircase_goes_from_the_uncorrected_fit_to_the_crossing(drawn):
    _, axes = drawn["adaptive"]
    for ax in (axes[0], axes[2]):
        stairs = line(ax, "rounds").get_xydata()
        assert stairs[0, 0] == 0.0
        assert np.all((np.diff(stairs[:, 0]) == 0) | (np.diff(stairs[:, 1]) == 0))
        assert stairs[-1, 0] == pytest.approx(stairs[-2, 0])


def test_boxes_of_constants_have_a_colour_per_alpha(drawn, runs):
    _, axes = drawn["unbiased_constant"]
    for ax, name in zip(axes, ("b", "D_o", "D_f")):
        assert set(labels(ax)) >= {r"$\alpha$ = 0.3", r"$\alpha$ = 0.6"}
        points = np.concatenate([one.get_ydata() for one in ax.get_lines() if one.get_marker() == "."])
        expected = [r.metrics[f"error_{name}"] for r in runs.where(experiment="unbiased_constant")]
        np.testing.assert_allclose(np.sort(points), 100 * np.sort(expected))


def test_variable_curves_are_mean_and_sd_of_the_replicas(drawn, runs):
    _, axes = drawn["unbiased_variable"]
    part = runs.where(experiment="unbiased_variable")
    assert "0 of 6 removed" in axes[0].get_title()
    for ax, name in zip(axes[1:], ("b", "D_o", "D_f")):
        curves = np.array([record.curves[name] for record in part])
        np.testing.assert_allclose(line(ax, "recovered").get_ydata(), curves.mean(0))
        edge = np.concatenate([path.vertices[:, 1] for path in ax.collections[0].get_paths()])
        assert edge.max() == pytest.approx((curves.mean(0) + curves.std(0, ddof=1)).max())


def test_an_outlier_is_drawn_apart_and_left_out_of_the_band(runs, root, tmp_path):
    shutil.copytree(root / "unbiased_variable", tmp_path / "runs")
    wild = tmp_path / "runs" / "n200" / "seed5"
    metrics = json.loads((wild / "metrics.json").read_text())
    (wild / "metrics.json").write_text(json.dumps(metrics | {"error_D_f": 40.0}))
    _, axes = draw("unbiased_variable", collect(tmp_path / "runs"))
    assert "1 of 6 removed" in axes[0].get_title()
    assert "1 outlier" in labels(axes[3])
    curves = [r.curves["D_f"] for r in runs.where(experiment="unbiased_variable") if r.path.name != "seed5"]
    np.testing.assert_allclose(line(axes[3], "recovered").get_ydata(), np.mean(curves, axis=0))


def test_censored_figures_compare_the_arms(drawn, runs):
    _, (boxes, curves) = drawn["censored_variable"]
    assert labels(boxes) == ["unbiased data", "without TCF", "with TCF", "conditional"]
    part = runs.where(experiment="censored_variable", arm="none")
    mean = np.mean([record.curves["D_f"] for record in part], axis=0)
    np.testing.assert_allclose(line(curves, "without TCF").get_ydata(), mean)
    _, (left, right) = drawn["censored_constant"]
    assert ("4.4" in left.get_title(), "4.5" in right.get_title()) == (True, True)
    assert labels(left) == ["without TCF", "with TCF"]
    points = np.concatenate([one.get_ydata() for one in left.get_lines() if one.get_marker() == "."])
    own = runs.where(experiment="censored_constant")
    expected = [100 * (record.metrics["mean_D_f"] / 3 - 1) for record in own]
    np.testing.assert_allclose(np.sort(points), np.sort(expected), atol=1e-9)


def test_policy_error_has_values_and_errors(drawn, runs):
    _, (values, errors) = drawn["policy_error"]
    part = runs.where(experiment="censored_variable", arm="tcf", literal=False)
    mean = np.mean([record.values["V"] for record in part], axis=0)
    np.testing.assert_allclose(line(values, "with TCF").get_ydata(), mean)
    x = line(values, "truth").get_xdata()
    np.testing.assert_allclose(line(values, "truth").get_ydata(), np.cos(2 * x) ** 3, atol=1e-4)
    assert [text.get_text() for text in errors.get_xticklabels()] == [
        "unbiased data", "without TCF", "with TCF", "conditional", "with TCF\n(B.1)",
    ]  # fmt: skip


def test_the_bound_is_drawn_in_both_norms(runs):
    _, axes = bound_figure(runs)
    for ax in axes:
        assert any(label.startswith("noise: slope") for label in labels(ax))


def test_history_and_its_moving_average(drawn, runs):
    _, (left, right) = drawn["learning_history"]
    record = next(iter(runs.where(experiment="learning_history")))
    history = read_csv(record.path / "history.csv", ("step",))
    raw = [one.get_ydata() for one in right.get_lines()]
    np.testing.assert_array_equal(raw[0], history["mean/D_f"])
    np.testing.assert_allclose(raw[1], moving_average(history["step"], history["mean/D_f"], 20))
    assert len(left.patches) == 1
    assert len(labels(left)) == 3


def test_moving_average_is_the_mean_over_the_last_steps():
    step = np.arange(10.0, 101.0, 10.0)
    values = np.random.default_rng(0).standard_normal(10)
    found = moving_average(step, values, 30)
    expected = [values[max(0, i - 2) : i + 1].mean() for i in range(10)]
    np.testing.assert_allclose(found, expected)


def test_figures_refuse_runs_they_are_not_made_of(runs):
    with pytest.raises(InputError, match="Figure 10 needs runs with engine=adam"):
        FIGURES["learning_history"].draw(runs.where(experiment="censored_constant"))
    with pytest.raises(InputError, match="must have one dynamics"):
        FIGURES["unbiased_variable"].draw(runs.where(arm="unbiased"))


def test_a_figure_is_found_by_name_and_by_number():
    assert set(PANELS) | {"btc", "btc_adam"} == set(FIGURES)  # figure 9: test_prices.py
    assert figure("6") is figure("censored_variable")
    assert figure("9") is figure("btc")
    with pytest.raises(ValueError, match="one of comparison"):
        figure("twelve")
