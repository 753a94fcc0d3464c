"""Figures return what they drew, accept axes and save both formats."""

import numpy as np
import pytest

from levytorch import Dynamics
from levytorch.diagnostics.components import p_text
from levytorch.figures import AxisNames, base, diagnostics, new_axes, save, values
from levytorch.figures import coefficients as plots
from tests.training.problems import ALPHA, constant
from tests.training.problems import frozen_recover as recover


@pytest.fixture(scope="module")
def found():
    return recover(constant(5000, 1), alpha=ALPHA, n_basis=3)


def test_coefficients_with_truth_and_band(found, tmp_path):
    curves = plots.coefficient_curves(found, Dynamics.named("constant", alpha=ALPHA), n=51)
    assert set(curves) == {"x", *(f"{k}{s}" for k in ("b", "D_o", "D_f") for s in ("", "_std", "_truth"))}
    fig, axes = plots.coefficients(curves)
    assert len(axes) == 3
    np.testing.assert_allclose(axes[1].lines[0].get_ydata(), found.D_o(curves["x"]))
    written = save(fig, tmp_path / "figures" / "coefficients")
    assert sorted(p.suffix for p in written) == [".pdf", ".png"]
    assert all(p.stat().st_size > 1000 for p in written)
    assert len(list((tmp_path / "figures").iterdir())) == 2


def test_given_axes_are_used(found):
    fig, grid = new_axes(1, 3)
    drawn, axes = plots.coefficients(plots.coefficient_curves(found, n=21), axes=grid[0])
    assert drawn is fig
    assert all(a is b for a, b in zip(axes, grid[0]))


def test_history(found):
    _, axes = plots.history(found.history, truth={"b": 5.0, "D_o": 4.0, "D_f": 3.0})
    np.testing.assert_allclose(axes[1].lines[0].get_ydata(), [e["train/nll"] for e in found.history])


def entries(n=6, **more):
    """A fit whose likelihood hardly moves: what makes matplotlib print an offset."""
    means = {"mean/b": 1.0, "mean/D_o": 2.0, "mean/D_f": 3.0}
    return [{"step": i, "train/nll": -1.0709 - 1e-5 * i, "tail/TCF": 0.0, **means, **more} for i in range(n)]


def test_history_without_a_tcf_has_no_panel_for_it():
    fig, axes = plots.history(entries())
    assert [ax.get_title() for ax in fig.axes] == ["mean coefficients", "negative log-likelihood per pair"]
    assert len(axes) == 2
    fig, grid = new_axes(1, 3)
    plots.history(entries(), axes=grid[0])
    assert [ax.get_visible() for ax in grid[0]] == [True, True, False]


@pytest.mark.parametrize("more", [{"tail/TCF": 0.1}, {"tail/R_theta": 0.1}])
def test_history_with_a_tcf_shows_it_even_when_it_is_zero(more):
    _, axes = plots.history(entries(**more))
    assert axes[2].get_title() == "TCF"
    np.testing.assert_allclose(axes[2].lines[0].get_ydata(), more.get("tail/TCF", 0.0))


def test_history_has_no_offset_in_the_place_of_the_title():
    fig, axes = plots.history(entries())
    fig.canvas.draw()
    assert axes[1].yaxis.get_offset_text().get_text() == ""
    assert any("1.0709" in label.get_text() for label in axes[1].get_yticklabels())


def flat(n=101, std=1.3e-3, **wild):
    """Flat curves with a wide band over the cell [50, 150); `wild` replaces columns."""
    x = np.linspace(50.0, 150.0, n)
    columns = {"x": x}
    for name, level in (("b", 2.6e-4), ("D_o", 3e-3), ("D_f", 6e-3)):
        columns |= {name: np.full(n, level), f"{name}_std": np.full(n, std)}
    return plots.Curves(columns | wild)


def assert_inside(ax, low, high):
    bottom, top = ax.get_ylim()
    assert bottom <= low
    assert high < top
    assert top - bottom < 3 * (high - min(low, 0.0))  # room, not a desert


def test_the_band_of_a_flat_curve_is_inside_the_panel():
    curves = flat()
    _, axes = plots.coefficients(curves)
    for ax, name in zip(axes, ("b", "D_o", "D_f")):
        half = 1.96 * 1.3e-3
        assert_inside(ax, curves[name][0] - half if name == "b" else 0.0, curves[name][0] + half)


def test_what_happens_outside_the_data_does_not_set_the_scale():
    x = flat()["x"]
    outside = np.abs(x - 100.0) > 5.0
    curves = flat(b=np.where(outside, 100.0, 2.6e-4), b_std=np.where(outside, 1e4, 1.3e-3))
    curves.observed = ((95.0, 105.0),)
    _, axes = plots.coefficients(curves)
    assert_inside(axes[0], 2.6e-4 - 1.96 * 1.3e-3, 2.6e-4 + 1.96 * 1.3e-3)
    assert axes[0].get_xlim() == pytest.approx((93.5, 106.5))  # the data and a little beyond, not the cell


def test_a_spike_of_the_band_does_not_set_the_scale():
    spike = np.full(101, 1.3e-3)
    spike[3] = 1e5
    _, axes = plots.coefficients(flat(b_std=spike))
    assert axes[0].get_ylim()[1] < 0.1


def test_a_range_narrower_than_the_grid_still_sets_the_scale():
    curves = flat()
    curves.observed = ((100.2, 100.3),)
    _, axes = plots.coefficients(curves)
    assert_inside(axes[2], 0.0, 6e-3 + 1.96 * 1.3e-3)


def test_the_range_of_the_data_is_marked_when_it_is_less_than_the_cell():
    curves = flat()
    labels = lambda: [text.get_text() for text in plots.coefficients(curves)[1][0].get_legend().get_texts()]  # noqa: E731
    assert "range of the data" not in labels()
    curves.observed = ((50.0, 60.0), (140.0, 150.0))
    assert labels().count("range of the data") == 1


@pytest.mark.parametrize(
    ("support", "parts"),
    [
        (None, ()),
        ((95.0, 105.0), ((95.0, 105.0),)),
        ((295.0, 305.0), ((95.0, 105.0),)),  # two periods further on
        ((-60.0, -40.0), ((50.0, 60.0), (140.0, 150.0))),  # across the end of the cell
        ((0.0, 300.0), ()),
        ((50.001, 149.999), ()),
    ],
)
def test_the_range_of_the_data_folded_into_the_cell(support, parts):
    assert plots.observed_parts(support, 50.0, 100.0) == parts


def test_the_curves_of_a_recovery_know_the_range_of_its_data():
    data = constant(3000, 1)
    whole = recover(data, alpha=ALPHA, n_basis=1)
    part = recover(data, alpha=ALPHA, n_basis=1, period=40.0)
    assert plots.coefficient_curves(whole, n=11).observed == ()
    assert plots.coefficient_curves(part, n=11).observed == (part.support,)


def test_the_band_of_the_step_size_figure_is_inside_the_panels():
    n, std = 50, 1e-3
    arrays = {"x": np.linspace(95.0, 105.0, n), "p_value": np.array(0.3)}
    for name, level in (("b", 2.6e-4), ("D_o", 6e-3), ("D_f", 5e-3)):
        arrays |= {
            f"{name}_dt": np.full(n, level),
            f"{name}_2dt": np.full(n, 1.01 * level),
            f"{name}_std": np.full(n, std),
        }
    _, axes = diagnostics.step_size(arrays)
    for ax, name in zip(axes, ("b", "D_o", "D_f")):
        level = arrays[f"{name}_dt"][0]
        assert_inside(ax, level - 1.96 * std, level + 1.96 * std)


def test_data_across_the_end_of_the_cell_or_everywhere_shows_all_of_it():
    x = flat()["x"]
    assert plots.limits_along(x, ()) == (50.0, 150.0)
    assert plots.limits_along(x, ((50.0, 60.0), (140.0, 150.0))) == (50.0, 150.0)
    assert plots.limits_along(x, ((51.0, 149.0),)) == (50.0, 150.0)  # no further than the cell


def test_the_strip_is_the_histogram_of_the_folded_states(found):
    states = np.array([0.1, 0.1 + 2 * np.pi, 0.1 - 4 * np.pi, 3.0])
    curves = plots.coefficient_curves(found, n=11, states=states)
    edges, heights = curves.density
    shares = {int(np.searchsorted(edges, x) - 1): h for x, h in ((0.1, 1.0), (3.0, 1 / 3))}
    assert {int(k): pytest.approx(heights[k]) for k in np.flatnonzero(heights)} == shares
    labels = [text.get_text() for text in plots.coefficients(curves)[1][0].get_legend().get_texts()]
    assert labels == ["recovered", "95 % band", "observed states"]


@pytest.mark.parametrize(
    ("units", "x", "drift"),
    [
        (AxisNames(), "x", r"$b(x)$"),
        (AxisNames("close", "h"), "close", r"$b(x)$  (close per h)"),
        (AxisNames("", "day"), "x", r"$b(x)$  (x per day)"),
        (AxisNames("in $ or $", "h"), r"in \$ or \$", r"$b(x)$  (in \$ or \$ per h)"),
    ],
)
def test_axes_have_the_names_and_units_of_the_data(units, x, drift):
    fig, axes = plots.coefficients(flat(), units=units)
    assert axes[0].get_xlabel() == x
    assert axes[0].get_ylabel() == drift
    fig.canvas.draw()  # a name from a file is no formula


def test_one_drawing_serves_the_file_and_whoever_wants_the_pixels(found, tmp_path):
    from PIL import Image

    fig, _ = plots.coefficients(plots.coefficient_curves(found, n=11))
    drawn = base.draw(fig)
    (file,) = base.write(drawn, fig, tmp_path / "one", ("png",))
    assert file.read_bytes() == drawn.png
    with Image.open(file) as image:
        assert image.size == (drawn.width, drawn.height)
        shown = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(shown, np.asarray(fig.canvas.buffer_rgba())[..., :3])


def test_a_color_means_one_thing(found):
    """What was recovered has one color in every figure of a run, and nothing else has it."""
    from matplotlib.colors import same_color

    arrays = {"x": np.linspace(0, 6, 5), "p_value": np.array(0.3)}
    for name in ("b", "D_o", "D_f"):
        arrays |= {f"{name}_{kind}": np.ones(5) for kind in ("dt", "2dt", "std")}
    _, coefficient_axes = plots.coefficients(plots.coefficient_curves(found, n=11))
    _, step_axes = diagnostics.step_size(arrays)
    _, (value,) = values.value_bands(np.linspace(0, 6, 5), [values.Band("recovered", np.ones(5))])
    for ax in (*coefficient_axes, *step_axes, value):
        assert same_color(ax.lines[0].get_color(), base.RECOVERED)
    assert values.group_colors(["with TCF", "without TCF", "conditional"]) == list(base.ARMS.values())
    meanings = [base.RECOVERED, base.DATA, base.CHANCE["color"], *base.ARMS.values(), *base.OTHERS]
    assert len(set(meanings)) == len(meanings)


def test_no_p_value_is_zero():
    assert [p_text(p) for p in (0.0, 1e-200, 2e-5, 0.042)] == ["p < 1e-12", "p < 1e-12", "p = 2e-05", "p = 0.042"]
    assert p_text(0.5, "<=") == "p <= 0.5"


def test_numbers_of_a_logarithmic_axis():
    texts = {0.0: "0", 1.0: "1", 0.01: "0.01", 1e-5: "10⁻⁵", 2e6: "2×10⁶", -10.0: "−10", -1e5: "−10⁵", 1e12: "10¹²"}
    assert {x: base.power_text(x) for x in texts} == texts
    fig, axes = new_axes(1, 1)
    ax = axes[0, 0]
    ax.plot([1e-6, 1.0], [1.0, 2.0])
    ax.set_xscale("log")
    base.tidy(ax)
    fig.canvas.draw()
    shown = [label.get_text() for label in ax.get_xticklabels()]
    assert "10⁻⁴" in shown
    assert not any("$" in text for text in shown)
