"""What a recovery says of itself: summary, intervals, criteria, frames, plots, and one convention for averages."""

import math
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

from levytorch import Dynamics, Recovery, Trajectories, Transitions, recover, simulate
from levytorch.errors import InputError
from levytorch.training.fit_report import LOCATION, WIDTH, FitReport
from levytorch.training.outcome import observed_states


@pytest.fixture(scope="module")
def data():
    return simulate(Dynamics.named("variable"), 300, 40, 1 / 40, seed=1).transitions()


@pytest.fixture(scope="module")
def found(data):
    return recover(data, alpha="learn", n_basis=5, engine="fisher", law="frozen", seed=3)


def test_the_table(found):
    text = str(found.summary())
    assert max(map(len, text.splitlines())) <= WIDTH
    for part in ("fourier, 5 functions on a circle", "12,000", "fisher", "AIC", "BIC", "seed", "[0.025"):
        assert part.lower() in text.lower()
    rows = {row.name: row for row in found.report.estimates}
    assert set(rows) == {"b", "D_o", "D_f", "alpha"}
    assert rows["alpha"].std == pytest.approx(found.alpha_std)
    z = 1.959963984540054
    assert rows["D_o"].high == pytest.approx(rows["D_o"].mean + z * rows["D_o"].std)
    wide = found.summary(level=0.99).estimates[0]
    assert (wide.high - wide.mean) / wide.std == pytest.approx(2.5758293035489004)
    assert found.summary().plain()["nobs"] == 12_000
    assert f"{LOCATION}." in found.report.notes  # alpha < 1/2: steps have no mean


def test_a_long_name_takes_the_columns_that_numbers_leave(found):
    model = "polynomial, 21 functions on a line"
    long = replace(found.report, model=model, log_likelihood=-123456.78)
    lines = long.text().splitlines()
    assert f"{model} Pairs" in lines[1]
    assert {len(line) for line in lines[1:7]} == {WIDTH}
    narrow = replace(long, model="m" * 60, log_likelihood=-1234567890.12)
    assert {len(line) for line in narrow.text().splitlines()[1:7]} == {WIDTH}
    assert "-1,234,567,890." in narrow.text()


def test_criteria(found):
    k, n = found.theta.numel(), 12_000
    assert found.nobs == n
    assert found.aic == pytest.approx(2 * k - 2 * found.log_likelihood)
    assert found.bic == pytest.approx(k * math.log(n) - 2 * found.log_likelihood)


def test_html_is_sound_and_escaped(found):
    opened = []
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attrs: opened.append(tag)
    reader.feed(found._repr_html_())
    assert opened.count("table") == 2
    odd = Recovery(found.head, metrics=found.metrics | {"engine": "<script>"}, covariance=found.covariance)
    assert "<script>" not in odd._repr_html_()


def test_averages_are_those_of_the_observed_states(found, data, tmp_path):
    """print(found), its summary and the report of a run have the same numbers."""
    x = data.x
    b = float(found.b(x).mean())
    mean = found.report.metrics()["observed"]["b"]["mean"]
    assert mean == pytest.approx(b, abs=2e-3 * float(found.b(x).std()))
    assert f"b {mean:.4g}" in repr(found)
    assert "seed 3" in repr(found)
    found.save(tmp_path / "r.pt")
    assert str(Recovery.load(tmp_path / "r.pt").summary()) == str(found.summary())


def test_states_of_a_lattice_are_those_of_its_pairs(found, data):
    few = observed_states(found, data.lattice())
    np.testing.assert_allclose(few, observed_states(found, data), atol=0.05)


def test_intervals(found):
    x = torch.tensor([0.5, 3.0], dtype=torch.float64)
    ends = found.conf_int(x, level=0.9)
    assert ends.b.shape == (2, 2)
    std = found.std(x)[0]
    torch.testing.assert_close(ends.b[:, 1] - ends.b[:, 0], 2 * 1.6448536269514722 * std)
    assert bool((ends.D_f >= 0).all())
    with pytest.raises(InputError, match=r"level must lie in \(0, 1\), found 95"):
        found.conf_int(x, level=95)


def test_frames(found):
    frame = found.to_frame([0.5, 3.0])
    assert frame.columns[:5] == ["x", "b", "b_std", "b_low", "b_high"]
    np.testing.assert_allclose(frame["D_o"], found.D_o([0.5, 3.0]))
    assert len(found.to_frame(7, "dict")["x"]) == 7
    plane = recover(simulate(Dynamics(1.0, 2.0, 1.0, 0.4, dim=2), 40, 20, 0.05), alpha=0.4, n_basis=1, law="frozen")
    assert plane.to_frame([[0.0, 1.0]], "dict").keys() >= {"x1", "x2", "b1", "b2_low", "D_o"}
    assert {row.name for row in plane.report.estimates} == {"b_1", "b_2", "D_o", "D_f", "alpha"}


def test_plot(found, data):
    fig, axes = found.plot(truth=Dynamics.named("variable"), states=data.x)
    assert len(axes) == 3
    assert axes[0].figure is fig


def test_averages_are_taken_where_the_data_is():
    """The data sits near x = 1 of a cell of 100; the drift there is known in closed form, elsewhere it is not."""
    generator = torch.Generator().manual_seed(0)
    x = 1.0 + 0.1 * torch.randn(4000, generator=generator, dtype=torch.float64)
    dx = 0.5 + 0.2 * torch.randn(4000, generator=generator, dtype=torch.float64)
    found = recover(Transitions(x, dx, 0.1), alpha=0.3, n_basis=3, period=100.0, penalty="evidence")
    rows = found.report.metrics()["observed"]
    assert set(rows) == {"b", "D_o", "D_f"}
    assert "error" not in rows["b"]
    assert "error (L2)" not in str(found.report)
    assert abs(rows["b"]["mean"] - 5.0) < 5 * 0.2 / 0.1 / 4000**0.5
    truth = Dynamics(b=10.0, D_o=0.2, D_f=1.0, alpha=0.3, period=100.0)
    compared = FitReport.of(found, truth=truth)
    assert compared.metrics()["observed"]["b"]["error"] == pytest.approx(0.5, abs=0.02)
    assert "error (L2)" in str(compared)


def test_errors_of_a_fit_that_has_not_converged_are_in_brackets(found):
    stopped = replace(found.report, converged=False, not_converged="5 were not enough")
    for row, text in zip(stopped.estimates, stopped.groups()[0][1]):
        assert text[2] == f"({row.std:.3g})"
    assert "Converged      NO" in str(stopped)


def with_actions(labels):
    """b = -1 or 1 by the action, or in between."""
    generator = np.random.default_rng(0)
    push = generator.integers(0, 2, (40, 40)) if labels else generator.uniform(0, 1, (40, 40))
    dx = 0.05 * (2 * push - 1) + 0.1 * generator.normal(size=push.shape)
    x = np.cumsum(np.concatenate([np.zeros((40, 1)), dx], axis=1), axis=1)
    action = np.where(push == 1, "right", "left") if labels else push
    data = Trajectories.from_arrays(x, dt=0.05, action=action)
    return recover(data, alpha=0.7, n_basis=1, law="frozen", D_f=0.01 if labels else None)


@pytest.mark.long
@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.filterwarnings("ignore::levytorch.errors.LevytorchWarning")
def test_recoveries_with_actions(labels):
    found = with_actions(labels)
    report, k = found.summary(), found.n_parameters
    text = str(report)
    assert max(map(len, text.splitlines())) <= WIDTH
    names = ["left", "right"] if labels else list(found.held_actions())
    assert list(dict.fromkeys(row.action for row in report.estimates)) == [*names, ""]
    assert found.nobs == report.nobs == 1600
    assert found.aic == pytest.approx(2 * k - 2 * found.log_likelihood)
    assert found.bic == pytest.approx(k * math.log(1600) - 2 * found.log_likelihood)
    rows = report.metrics()["by_action"]
    for name, action in found.held_actions().items():
        assert rows[name]["b"]["mean"] == pytest.approx(float(found.b(0.1, action)))
        assert rows[name]["b"]["std"] == pytest.approx(float(found.std([0.1], action)[0]))
        assert ("pairs" in rows[name]) is labels
    if labels:
        assert f"-- action left ({rows['left']['pairs']:,} pairs)" in text
        assert rows["left"]["pairs"] + rows["right"]["pairs"] == 1600
    assert "engine" not in text.split("Engine")[0]
    assert report.engine != "unknown"
    assert found._repr_html_().count("</table>") == 2
