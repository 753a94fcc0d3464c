"""evaluate.py end to end: settings through hydra, results in files, refusals that overwrite nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

import levytorch.evaluate as script
from levytorch import Dynamics, Recovery, Trajectories, recover, simulate, value_from_data
from levytorch.coefficients import AlphaSpec, SplineHead
from levytorch.errors import ConfigError, InputError, LevytorchWarning
from levytorch.policy import ValueFunction
from levytorch.policy.rewards import CosinePower
from levytorch.runs import evaluate

ROOT = Path(__file__).parents[2]
CONFIG = """
data:
  _target_: levytorch.simulation.source.Simulated
  size: {size}
dynamics:
  name: constant
  alpha: 0.3
"""


def settings(*overrides: str) -> dict:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return OmegaConf.to_container(compose("evaluate", list(overrides)), resolve=True)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Four runs of the constant system on censored data: two with TCF, two without."""
    base = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        whole = simulate(Dynamics.named("constant"), 600, 40, 1 / 40, seed=seed).transitions()
        data = whole.censor(TRT=20.0, CT=8.0, drop_tail=0.5, seed=seed)
        for method in ("tcf", "none"):
            found = recover(data, alpha=0.3, n_basis=1, tail={"CT": 8.0, "TRT": 20.0, "method": method})
            path = base / f"{method}{seed}"
            found.save(path / "recovery.pt")
            (path / ".hydra").mkdir()
            (path / ".hydra" / "config.yaml").write_text(CONFIG.format(size=10 ** (seed + 1)))
    return base


PRICES = ["reward=callable", "reward.path=torch.sin", "beta=0.3", "n_modes=5", "tensorboard=false"]


def on_prices(tmp_path: Path) -> Path:
    """A run whose data came from a file and covers a small part of its cell."""
    x = 100 + 0.1 * np.cumsum(np.random.default_rng(0).standard_t(3, 2000))
    found = recover(Trajectories.from_arrays(x, dt=1.0).transitions(), alpha=0.7, n_basis=1, period=100.0, origin=50.0)
    path = tmp_path / "prices"
    found.save(path / "recovery.pt")
    (path / ".hydra").mkdir()
    (path / ".hydra" / "config.yaml").write_text("data:\n  _target_: levytorch.data.sources.FromFile\n")
    return path


@pytest.fixture(scope="module")
def many(runs, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("results") / "many"
    return evaluate.run_evaluation(settings(f"run={runs}/*", f"out={out}", "figures.format=pdf"))


def test_files_of_many_runs(many: Path) -> None:
    names = {str(p.relative_to(many)) for p in many.rglob("*") if p.is_file()}
    expected = {
        "metrics.json",
        "curves.csv",
        "evaluation.yaml",
        "report.html",
        *(f"values/run{i}.pt" for i in range(4)),
    }
    expected |= {f"figures/{name}.{kind}" for name in ("value", "errors") for kind in ("png", "pdf")}
    assert expected <= names
    assert any(name.startswith("tensorboard/events") for name in names)


def test_metrics_agree_with_curves(many: Path) -> None:
    metrics = json.loads((many / "metrics.json").read_text())
    curves = pl.read_csv(many / "curves.csv")
    assert list(metrics["groups"]) == ["with TCF", "without TCF"]
    reference = curves["reference"].to_numpy()
    np.testing.assert_allclose(reference, np.cos(2 * curves["x"].to_numpy()) ** 3, atol=1e-9)
    for number, run in enumerate(metrics["runs"]):
        V = curves[f"run{number}"].to_numpy()[:-1]  # the last point is the first one again
        error = np.linalg.norm(V - reference[:-1]) / np.linalg.norm(reference[:-1])
        assert run["relative_l2"] == pytest.approx(error, rel=1e-3)
        saved = ValueFunction.load(many / "values" / f"run{number}.pt")
        np.testing.assert_allclose(saved(torch.from_numpy(curves["x"].to_numpy())).numpy()[:-1], V)
    for label in metrics["groups"]:
        own = [curves[f"run{i}"].to_numpy() for i, run in enumerate(metrics["runs"]) if run["group"] == label]
        key = label.replace(" ", "_")
        np.testing.assert_allclose(curves[f"{key}_mean"].to_numpy(), np.mean(own, axis=0))
        np.testing.assert_allclose(curves[f"{key}_sd"].to_numpy(), np.std(own, axis=0, ddof=1))
        assert metrics["groups"][label]["coverage"] is None  # two runs make no band


def test_one_run_has_its_own_band(runs, tmp_path) -> None:
    out = evaluate.run_evaluation(settings(f"run={runs}/tcf0", f"out={tmp_path}/one", "tensorboard=false"))
    curves = pl.read_csv(out / "curves.csv")
    V = ValueFunction.load(out / "values" / "run0.pt")
    x = torch.from_numpy(curves["x"].to_numpy())
    np.testing.assert_allclose(curves["with_TCF_half_width_95"].to_numpy(), 1.96 * V.std(x).numpy())
    assert not (out / "tensorboard").exists()


def test_four_runs_are_a_band_with_a_coverage(runs, tmp_path) -> None:
    chosen = settings(f"run={runs}/*", f"out={tmp_path}/four", "group_by=dynamics.name", "tensorboard=false")
    out = evaluate.run_evaluation(chosen)
    (group,) = json.loads((out / "metrics.json").read_text())["groups"].values()
    curves = pl.read_csv(out / "curves.csv")
    own = [curves[f"run{i}"].to_numpy() for i in range(4)]
    inside = np.abs(curves["reference"].to_numpy() - np.mean(own, axis=0)) <= np.std(own, axis=0, ddof=1)
    assert group["coverage"] == pytest.approx(inside.mean())


def test_groups_by_a_setting(runs, tmp_path) -> None:
    chosen = settings(f"run={runs}/*", f"out={tmp_path}/groups", "group_by=data.size", "tensorboard=false")
    out = evaluate.run_evaluation(chosen)
    groups = json.loads((out / "metrics.json").read_text())["groups"]
    assert {label: group["runs"] for label, group in groups.items()} == {"data.size = 10": 2, "data.size = 100": 2}


@pytest.mark.long
def test_empirical_reference_on_a_window(runs, tmp_path) -> None:
    d = Dynamics.named("constant")
    slow = simulate(d, 1, 20_000, 0.001, substeps=1, x0=1.0, seed=0).x % (2 * np.pi)
    Trajectories.from_arrays(slow, dt=0.001).to_file(tmp_path / "path.npz")
    for path in runs.iterdir():  # the same recoveries without a truth
        (tmp_path / "runs" / path.name).mkdir(parents=True)
        (tmp_path / "runs" / path.name / "recovery.pt").write_bytes((path / "recovery.pt").read_bytes())
    overrides = [f"run={tmp_path}/runs/*", f"out={tmp_path}/out", "reward=cosine_power", "beta=40", "data.n_basis=7"]
    overrides += [f"data.path={tmp_path}/path.npz", "data.n_terms=500", "data.first=5000", "window=[1,5]", "n_modes=11"]
    metrics = json.loads((evaluate.run_evaluation(settings(*overrides)) / "metrics.json").read_text())
    assert metrics["reference"] == "empirical reference"
    assert set(metrics["baselines"]) == {"trivial", "CRL"}
    # exactly 30 % from r / beta to V here; the data are noisy and the Riemann sum is 2 % off, a model must do better
    assert metrics["baselines"]["trivial"] == pytest.approx(0.30, abs=0.08)
    assert metrics["groups"]["with TCF"]["relative_l2_mean"] < 0.12
    with pytest.raises(InputError, match="within the data"):
        evaluate.run_evaluation(settings(*overrides[:-2], "window=[-1,4]", "out=null"))


def test_on_a_window_the_truth_is_still_the_true_v(runs, tmp_path) -> None:
    out = evaluate.run_evaluation(settings(f"run={runs}/tcf*", f"out={tmp_path}/out", "window=[1,4]", "n_modes=11"))
    curves = pl.read_csv(out / "curves.csv")
    np.testing.assert_allclose(curves["reference"], np.cos(2 * curves["x"].to_numpy()) ** 3, atol=1e-9)


def test_a_reward_known_on_the_window_only(runs, tmp_path) -> None:
    (tmp_path / "r.csv").write_text("x,r\n0.5,1\n1.5,2\n2.5,3\n3.5,2\n4.5,1\n")
    overrides = [f"run={runs}/tcf0", f"out={tmp_path}/out", "window=[1,4]", "n_modes=9", "reward=tabulated"]
    out = evaluate.run_evaluation(settings(*overrides, f"reward.path={tmp_path}/r.csv"))
    assert json.loads((out / "metrics.json").read_text())["reference"] == "true system on the window"


def test_the_window_of_the_data_is_known_to_the_run(tmp_path) -> None:
    out = evaluate.run_evaluation(settings(f"run={on_prices(tmp_path)}", f"out={tmp_path}/out", *PRICES, "window=data"))
    low, high = json.loads((out / "metrics.json").read_text())["interval"]
    support = Recovery.load(tmp_path / "prices" / "recovery.pt").support
    assert (low, high) == support


@pytest.mark.parametrize("choice", [[], ["data.random=500"]])
def test_crl_is_there_only_when_it_sees_less_than_the_reference(tmp_path, choice: list[str]) -> None:
    run = on_prices(tmp_path)
    steps = np.random.default_rng(0).standard_t(3, 2000)
    Trajectories.from_arrays(100 + 0.1 * np.cumsum(steps), dt=1.0).to_file(tmp_path / "x.npz")
    given = [f"data.path={tmp_path}/x.npz", "data.linear=true", "data.n_basis=3", "window=data", *choice]
    out = evaluate.run_evaluation(settings(f"run={run}", f"out={tmp_path}/out", *PRICES, *given))
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["reference"] == "empirical reference"
    assert set(metrics["baselines"]) == ({"trivial", "CRL"} if choice else {"trivial"})
    assert ("CRL" in pl.read_csv(out / "curves.csv").columns) == bool(choice)


@pytest.fixture(scope="module")
def logged(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("logged") / "x.npz"
    simulate(Dynamics.named("constant"), 300, 40, 1 / 40, seed=9).to_file(path)
    return path


def test_what_one_would_use_instead_stands_beside_v(runs, logged, tmp_path, caplog) -> None:
    given = [f"data.path={logged}", "reward=cosine_power", "beta=1", "tensorboard=false"]
    with caplog.at_level("INFO"):
        out = evaluate.run_evaluation(settings(f"run={runs}/tcf0", f"out={tmp_path}/one", *given))
    metrics, curves = json.loads((out / "metrics.json").read_text()), pl.read_csv(out / "curves.csv")
    names = ["LSTD (no model)", "PhiBE, order 1", "Brownian only", "hybrid", "model, corrected"]
    assert list(metrics["from_data"]) == names
    page, x = (out / "report.html").read_text(), torch.tensor(curves["x"].to_numpy()[:-1])
    true = curves["reference"].to_numpy()[:-1]
    for name, found in metrics["from_data"].items():
        V, std = (curves[column].to_numpy()[:-1] for column in (name, f"{name} std"))
        assert found["relative_l2"] == pytest.approx(np.linalg.norm(V - true) / np.linalg.norm(true), rel=1e-3)
        assert found["coverage"] == pytest.approx(np.mean(np.abs(V - true) <= 1.96 * std), abs=0.006)
        told = next(line for record in caplog.records for line in record.getMessage().splitlines() if name in line)
        assert f"{100 * found['relative_l2']:.3g} %" in told
        assert name in page
    whole = Trajectories.from_file(logged).transitions()
    recovery, reward = Recovery.load(runs / "tcf0" / "recovery.pt"), CosinePower(power=3, frequency=1)
    V = value_from_data(whole, reward, 1.0, method="corrected", recovery=recovery)
    np.testing.assert_allclose(curves["model, corrected"].to_numpy()[:-1], V(x).numpy(), rtol=1e-9)
    assert (out / "figures" / "baselines.png").is_file()


@pytest.mark.long
def test_of_several_runs_the_data_alone_stands_beside_v(runs, logged, tmp_path) -> None:
    given = [f"run={runs}/tcf*", f"data.path={logged}", "reward=cosine_power", "beta=1", "tensorboard=false"]
    out = evaluate.run_evaluation(settings(*given, f"out={tmp_path}/two"))
    metrics = json.loads((out / "metrics.json").read_text())
    assert list(metrics["from_data"]) == ["LSTD (no model)", "PhiBE, order 1", "Brownian only"]
    out = evaluate.run_evaluation(settings(*given, f"out={tmp_path}/none", "baselines=false"))
    assert json.loads((out / "metrics.json").read_text())["from_data"] == {}
    assert not (out / "figures" / "baselines.png").exists()


def test_paths_too_short_for_empirical_values_still_stand_beside_v(runs, logged, tmp_path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recovery.pt").write_bytes((runs / "tcf0" / "recovery.pt").read_bytes())  # without a truth
    given = [f"run={tmp_path}/run", f"data.path={logged}", "reward=cosine_power", "beta=1", "tensorboard=false"]
    with pytest.warns(LevytorchWarning, match="no empirical values to compare with V: .* longer than the horizon"):
        out = evaluate.run_evaluation(settings(*given, f"out={tmp_path}/out"))
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["reference"] is None
    assert "model, corrected" in metrics["from_data"]
    for asked in ("data.horizon=20", "baselines=false"):  # what was asked for is not left out, and nothing is left
        with pytest.raises(InputError, match="longer than the horizon"):
            evaluate.run_evaluation(settings(*given, f"out={tmp_path}/refused", asked))


def test_on_a_line_too(tmp_path, caplog) -> None:
    head = SplineHead(5, (-2.0, 2.0), alpha=AlphaSpec("fixed", 0.7))
    head.set_constants(0.0, 0.5, 0.2)
    Recovery(head, metrics={"x_min": -2.0, "x_max": 2.0}).save(tmp_path / "run" / "recovery.pt")
    paths = simulate(Dynamics(lambda x: -x, 0.5, 0.2, 0.7, period=None), 300, 20, 1 / 40, seed=1, x0=0.0)
    paths.to_file(tmp_path / "x.npz")
    given = [f"run={tmp_path}/run", f"data.path={tmp_path}/x.npz", "reward=cosine_power", "beta=1", "tensorboard=false"]
    given += ["window=[-2,2]", "n_modes=64"]
    with caplog.at_level("INFO"):
        out = evaluate.run_evaluation(settings(*given, f"out={tmp_path}/out"))
    metrics, curves = json.loads((out / "metrics.json").read_text()), pl.read_csv(out / "curves.csv")
    assert metrics["reference"] is None
    names = ["LSTD (no model)", "PhiBE, order 1", "Brownian only", "hybrid", "model, corrected"]
    assert list(metrics["from_data"]) == names
    for name, found in metrics["from_data"].items():
        assert found["V"]["mean"] == pytest.approx(curves[name].mean(), abs=0.01)
        told = next(line for record in caplog.records for line in record.getMessage().splitlines() if name in line)
        assert f"{found['V']['mean']:.4g} ± {found['V']['std']:.2g}" in told
    with pytest.raises(ConfigError, match="must have a period"):
        evaluate.run_evaluation(settings(*given, f"out={tmp_path}/refused", "data.horizon=20"))


def test_a_reward_that_no_circle_has_leaves_the_baselines_out(runs, logged, tmp_path, caplog) -> None:
    (tmp_path / "r.csv").write_text("x,r\n0.5,1\n1.5,2\n2.5,3\n3.5,2\n4.5,1\n")
    given = [f"run={runs}/tcf0", f"data.path={logged}", "window=[1,4]", "n_modes=9", "reward=tabulated"]
    with caplog.at_level("INFO"):
        out = evaluate.run_evaluation(settings(*given, f"reward.path={tmp_path}/r.csv", f"out={tmp_path}/out"))
    assert json.loads((out / "metrics.json").read_text())["from_data"] == {}
    assert any("no baselines from the data" in record.getMessage() for record in caplog.records)


def test_warnings_are_sentences_of_the_log_each_once(caplog) -> None:
    with caplog.at_level("WARNING"), script.told_once():
        for told in ("One.", "One.", "Two."):
            warnings.warn(told, LevytorchWarning, stacklevel=1)
    assert [record.getMessage() for record in caplog.records] == ["One.", "Two."]


def test_ranges_of_several_runs_are_intersected() -> None:
    assert evaluate.data_window("data", None, [(1.0, 4.0), (2.0, 5.0)]) == (2.0, 4.0)
    with pytest.raises(ConfigError, match="must share a range for window=data, found none"):
        evaluate.data_window("data", None, [(1.0, 2.0), (3.0, 4.0)])
    with pytest.raises(ConfigError, match="every run must know the range of its data"):
        evaluate.data_window("data", None, [(1.0, 2.0), None])


def test_data_from_a_file_asks_for_a_reward(tmp_path) -> None:
    with pytest.raises(ConfigError, match="choose a reward: reward=cosine_power, reward=tabulated") as caught:
        evaluate.run_evaluation(settings(f"run={on_prices(tmp_path)}", f"out={tmp_path}/out"))
    assert "truth.name" not in str(caught.value)


def test_nothing_is_overwritten(many: Path, runs) -> None:
    before = {path: path.read_bytes() for path in many.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="new or empty"):
        evaluate.run_evaluation(settings(f"run={runs}/*", f"out={many}"))
    assert before == {path: path.read_bytes() for path in many.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        ([], ConfigError, "run must name"),
        (["run=nothing*"], InputError, "matches no run"),
        (["run=RUNS/*", "beta=0"], ConfigError, "beta"),
        (["run=RUNS/*", "truth.name=square"], ConfigError, "constant, variable, asymptotic"),
        (["run=RUNS/*", "reward=tabulated"], ConfigError, "path"),
        (["run=RUNS/*", "reward=regressed"], ConfigError, "data.path must be given for reward=regressed"),
        (["run=RUNS/*", "window=[3,2]"], ConfigError, "low < high"),
        (["run=RUNS/*", "group_by=data.colour"], InputError, "group_by"),
        (["run=RUNS/*", "reward=callable", "reward.path=math.pi"], ConfigError, "function"),
        (["run=RUNS/*", "data.path=nothing.csv"], InputError, "nothing.csv"),
        (
            ["run=RUNS/*", "n_modes=many"],
            ConfigError,
            "n_modes must be a positive integer .*, found 'many'",
        ),
        (["run=RUNS/*", "data.n_basis=null"], ConfigError, "data.n_basis must be a positive integer"),
        (["run=RUNS/*", "data.first=0"], ConfigError, "data.first must be a positive integer, found 0"),
        (["run=RUNS/*", "data.horizon=long"], ConfigError, "data.horizon must be a positive number, found 'long'"),
        (["run=RUNS/*", "tolerance=0"], ConfigError, "tolerance must be a positive number, found 0"),
        (["run=RUNS/*", "window=[1,b]"], ConfigError, "window must be two numbers"),
        (["run=5"], InputError, "run=5 must name finished runs"),
        (["run=[5,6]"], InputError, "run=5 must name finished runs"),
        (["run=RUNS/*", "reward.power=three"], ConfigError, "power must be a finite number"),
    ],
)
def test_refusals_write_nothing(runs, tmp_path, monkeypatch, overrides, error, message) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        evaluate.run_evaluation(settings(*(item.replace("RUNS", str(runs)) for item in overrides)))
    assert list(tmp_path.iterdir()) == []


def test_a_directory_may_be_called_by_a_number(runs, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = evaluate.run_evaluation(settings(f"run={runs}/tcf0", "n_modes=33", "out=5", "tensorboard=false"))
    assert (tmp_path / "5" / "metrics.json").is_file()
    assert str(out) == "5"


def test_default_output_directories_are_new(runs, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = settings(f"run={runs}/tcf0", "tensorboard=false", "n_modes=33")
    first, second = evaluate.run_evaluation(chosen), evaluate.run_evaluation(chosen)
    assert first != second
    assert (first / "metrics.json").read_text() == (second / "metrics.json").read_text()


@pytest.mark.long
def test_command_line_tells_doubts_in_one_line(runs, tmp_path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").symlink_to(runs / "tcf0")
    (tmp_path / "runs" / "b" / ".hydra").mkdir(parents=True)
    call = [sys.executable, str(ROOT / "evaluate.py"), "run=runs/*", "out=out", "n_modes=33", "tensorboard=false"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    doubt = "run=runs/* also matches directories that are not finished runs and are skipped: runs/b: "
    doubt += "the run is not finished"
    assert [line for line in done.stdout.splitlines() if doubt in line] == [
        f"{doubt} (no recovery.pt); finish these runs, or narrow the pattern."
    ]
    assert "LevytorchWarning" not in done.stdout + done.stderr


@pytest.mark.long
def test_command_line(runs, tmp_path) -> None:
    """One sentence and a failing status for bad input; hydra leaves nothing behind."""
    call = [sys.executable, str(ROOT / "evaluate.py"), f"run={runs}/tcf0", "beta=-1"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert done.stderr.strip() == "evaluate: beta must be a positive number, found -1; give one, for example beta=0.1."
    assert list(tmp_path.iterdir()) == []


def test_crl_sees_the_points_its_transitions_begin_at(tmp_path) -> None:
    paths = Trajectories.from_arrays([np.arange(5.0) ** 2 + 10 * k for k in range(4)], dt=1.0)
    pairs = paths.transitions()
    none = {"first": None, "random": None, "seed": 0}
    first = evaluate.observed_points({**none, "first": 12}, paths, pairs)
    np.testing.assert_array_equal(paths.x[first], pairs.x[:12])
    some = evaluate.observed_points({**none, "random": 16}, paths, pairs)
    assert sorted(paths.x[some]) == sorted(pairs.x.tolist())
    assert evaluate.observed_points(none, paths, pairs) is None


FILE = "data:\n  _target_: levytorch.data.sources.FromFile\n  time_unit: {}\n  log: {}\n"


def test_runs_in_other_units_are_not_mixed(runs, tmp_path) -> None:
    for name, text in (("h", FILE.format("h", "false")), ("min", FILE.format("min", "false"))):
        (tmp_path / name / ".hydra").mkdir(parents=True)
        (tmp_path / name / "recovery.pt").write_bytes((runs / "tcf0" / "recovery.pt").read_bytes())
        (tmp_path / name / ".hydra" / "config.yaml").write_text(text)
    chosen = ["reward=cosine_power", "tensorboard=false"]
    with pytest.raises(InputError, match=r"must measure x and t in the same units, found .*'h'.*'min'"):
        evaluate.run_evaluation(settings(f"run={tmp_path}/*", f"out={tmp_path}/out", *chosen))
    Trajectories.from_arrays(np.linspace(0.1, 6, 50) ** 1.1, dt=0.1).to_file(tmp_path / "path.npz")
    data = [f"run={tmp_path}/h", f"data.path={tmp_path}/path.npz", "data.options.time_unit=day", *chosen]
    with pytest.raises(ConfigError, match=r"data\.options\.time_unit must be that of the runs, h, found day"):
        evaluate.run_evaluation(settings(*data, f"out={tmp_path}/out"))


def test_groups_follow_references(runs, tmp_path) -> None:
    for alpha in (0.3, 0.4):
        (tmp_path / f"{alpha}" / ".hydra").mkdir(parents=True)
        (tmp_path / f"{alpha}" / "recovery.pt").write_bytes((runs / "tcf0" / "recovery.pt").read_bytes())
        text = f"alpha: ${{dynamics.alpha}}\ndynamics:\n  alpha: {alpha}\n"
        (tmp_path / f"{alpha}" / ".hydra" / "config.yaml").write_text(text)
    chosen = settings(f"run={tmp_path}/0*", f"out={tmp_path}/out", "group_by=alpha", "reward=cosine_power")
    groups = json.loads((evaluate.run_evaluation(chosen) / "metrics.json").read_text())["groups"]
    assert set(groups) == {"alpha = 0.3", "alpha = 0.4"}


def test_runs_on_a_line_are_evaluated_where_all_of_them_have_data(tmp_path) -> None:
    for number, scale in enumerate((0.1, 0.2)):
        x = 50 + scale * np.cumsum(np.random.default_rng(number).standard_t(3, 1500))
        data = Trajectories.from_arrays(x, dt=1.0).transitions()
        recover(data, alpha=0.7, n_basis=1, coefficients="spline", period=None, law="frozen").save(
            tmp_path / f"run{number}" / "recovery.pt"
        )
    found = settings(
        f"run={tmp_path}/run*", f"out={tmp_path}/out", "reward=cosine_power", "reward.period=100", "beta=0.5"
    )
    out = evaluate.run_evaluation(found | {"tensorboard": False})
    supports = [Recovery.load(tmp_path / f"run{number}").support for number in (0, 1)]
    low, high = json.loads((out / "metrics.json").read_text())["interval"]
    assert (low, high) == (max(s[0] for s in supports), min(s[1] for s in supports))
    assert "levytorch evaluation" in (out / "report.html").read_text()
