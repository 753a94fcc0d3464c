"""The paper's experiments: every configuration composes as the paper says, and runs from data to figures."""

import json
from pathlib import Path

import pytest
import torch
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import InterpolationResolutionError

import levytorch.evaluate  # noqa: F401  (its resolver ${newest:...})
from benchmarks.paper.rates import study
from levytorch import Dynamics, simulate
from levytorch.coefficients.head import Units
from levytorch.coefficients.init import Guess
from levytorch.errors import ConfigError
from levytorch.runs.evaluate import run_evaluation
from levytorch.runs.evaluation_settings import newest
from levytorch.runs.settings import fit_settings, prepare_run
from levytorch.training.start import starting_head
from tests.paper.conftest import composed, train_run

SYNTHETIC = ["unbiased_constant", "unbiased_variable", "censored_variable", "censored_constant", "censored_mcmc"]


def jobs(experiment, *overrides):
    """The overrides of every run of an experiment's sweep, as hydra's sweeper forms them."""
    params = composed(f"experiment={experiment}", hydra=True).hydra.sweeper.params
    given = [f"{key}={value}" for key, value in params.items()] + list(overrides)
    return BasicSweeper.split_arguments(OverridesParser.create().parse_overrides(given), None)[0]


@pytest.mark.parametrize(
    ("experiment", "runs_each", "sizes", "system", "n_basis", "dt"),
    [
        ("unbiased_constant", 24, 5, "constant", 1, 1 / 40),
        ("unbiased_variable", 12, 4, "variable", 21, 1 / 400),
        ("censored_variable", 48, 4, "variable", 21, 1 / 40),
        ("censored_constant", 48, 5, "constant", 1, 1 / 40),
        ("censored_mcmc", 36, 5, "constant", 1, 1 / 40),
    ],
)
def test_a_sweep_is_the_papers_example(experiment, runs_each, sizes, system, n_basis, dt):
    every = jobs(experiment)
    assert len(every) == runs_each * sizes
    last = composed(f"experiment={experiment}", *every[-1], hydra=True)
    assert last.experiment == experiment
    assert last.dynamics.name == system
    assert last.coefficients.n_basis == n_basis
    assert last.data.dt == pytest.approx(dt)
    assert last.data.n_steps == 40
    assert last.seed == 11
    counts = {int(value.removeprefix("data.n_trajectories=")) for job in every for value in job if "n_traj" in value}
    assert len(counts) == sizes
    assert last.data.n_trajectories == max(counts)
    assert f"n{last.data.n_trajectories}/seed11" in last.hydra.sweep.subdir
    assert last.hydra.sweep.dir.startswith(f"multirun/{experiment}/")


@pytest.mark.long
def test_directories_of_arms_differ():
    for experiment in SYNTHETIC:
        few = jobs(experiment, "seed=0", "data.n_trajectories=10")
        places = [composed(f"experiment={experiment}", *job, hydra=True).hydra.sweep.subdir for job in few]
        assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("arm", "censored", "method"),
    [
        ("unbiased", False, "none"),
        ("censored", True, "none"),
        ("tcf", True, "tcf"),
        ("conditional", True, "conditional"),
    ],
)
def test_arms(arm, censored, method):
    config = composed("experiment=censored_variable", f"arm={arm}")
    assert config.arm == arm
    assert (config.data.censor is not None) == censored
    assert config.tail.method == method
    if censored:
        assert (config.data.censor.TRT, config.data.censor.CT, config.data.censor.drop_tail) == (20.0, 8.0, 0.5)
        assert config.data.censor.seed == config.data.n_trajectories == 400_000
    sampled = composed("experiment=censored_mcmc", f"arm={arm}")  # an arm does not take the sampler away
    assert (sampled.data.sampler, sampled.data.burn_in, sampled.tail.method) == ("metropolis", 5000, method)


@pytest.mark.parametrize("experiment", ["censored_variable", "censored_mcmc", None])
def test_the_papers_algorithm_is_one_override_away(experiment):
    base = ["experiment=paper_literal"] if experiment is None else [f"experiment={experiment}", "paper=literal"]
    for arm in ("censored", "tcf"):
        settings = fit_settings(OmegaConf.to_container(composed(*base, f"arm={arm}"), resolve=True))
        engine = settings.engine
        assert (engine.name, engine.max_steps, engine.window, engine.lr) == ("adam", 40_000, 20_000, 0.01)
        assert engine.stop_early is False
        assert settings.data == {"batch_size": 100, "mixing": "bernoulli", "validation": 0.0, "lattice": "auto"}
        assert (settings.init, settings.units, settings.plain["positivity"]) == ("random", "none", "clamp")
        assert settings.tail.R_theta == "mean"
        assert settings.tail.start == 4000
    if experiment is not None:
        assert f"{experiment}_literal/" in composed(*base, hydra=True).hydra.sweep.dir


@pytest.mark.parametrize("paper", ["literal", "prices"])
def test_all_that_the_papers_algorithm_learns_is_linear_in_theta(paper, prices):
    """theta -> (b, D_o, D_f, alpha) at a point inside of all bounds has no second derivatives, in any direction."""
    base = ["experiment=btc_first6000", f"data.path={prices}", f"paper={paper}", "tail=none", "coefficients.n_basis=3"]
    settings = fit_settings(OmegaConf.to_container(composed(*base), resolve=True))
    pairs = simulate(Dynamics.named("constant"), 2, 10, 1 / 40, seed=0).transitions()
    head = starting_head(settings, Guess(0.0, 4.0, 3.0, 0.6, Units()), pairs)
    assert head.alpha_spec.mode == "constant"
    x, theta = head.grid(5), head.flat()
    step = 0.01 * torch.randn(theta.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def at(size):
        head.set_flat(theta + size * step)
        c = head(x)
        # per unit of D_f, which depends on alpha in internal units
        return torch.stack([c.b, c.D_o, c.D_f / head.units.D_f(c.alpha), c.alpha.expand_as(c.b)]).detach()

    torch.testing.assert_close(at(1.0) + at(-1.0), 2 * at(0.0), rtol=1e-12, atol=1e-12)
    sigmoid = fit_settings(OmegaConf.to_container(composed(*base, "coefficients.alpha_link=sigmoid"), resolve=True))
    head = starting_head(sigmoid, Guess(0.0, 4.0, 3.0, 0.6, Units()), pairs)
    assert not torch.allclose((at(1.0) + at(-1.0))[3], 2 * at(0.0)[3], rtol=1e-8, atol=0)


def run_here(config, place):
    train_run(config, place)
    return json.loads((place / "metrics.json").read_text())


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Every run of a small sweep of Example 4.4."""
    base = tmp_path_factory.mktemp("sweep")
    for job in jobs("censored_constant", "data.n_trajectories=500", "seed=0,1"):
        config = composed("experiment=censored_constant", *job, hydra=True)
        place = base / config.hydra.sweep.subdir
        with open_dict(config):
            del config["hydra"]
        run_here(config, place)
    return base


@pytest.mark.long
def test_a_small_sweep_has_the_papers_result(sweep):
    found = {p.parent.relative_to(sweep).as_posix(): json.loads(p.read_text()) for p in sweep.rglob("metrics.json")}
    assert len(found) == 8
    for seed in range(2):
        without, corrected = (found[f"{arm}/n500/seed{seed}"] for arm in ("censored", "tcf"))
        # population values: -28 % without, -0.3 % with; standard errors at 20,000 pairs 3 % and 4.2 %
        assert without["mean_D_f"] == pytest.approx(0.716 * 3, abs=4 * 0.03 * 3)
        assert corrected["mean_D_f"] == pytest.approx(3, abs=4 * 0.042 * 3)
        assert corrected["tail_method"] == "tcf"
    files = {path.name for path in (sweep / "tcf/n500/seed0").iterdir()}
    assert {"recovery.pt", "metrics.json", "curves.csv", "value.csv", "history.csv", "value.pt"} <= files
    assert not files & {"figures", "tensorboard"}  # a sweep's figures are those of all its runs together


def test_value_error(sweep, tmp_path):
    overrides = ["of=censored_constant", f"sweep={sweep}", "size=500", f"out={tmp_path}/out", "tensorboard=false"]
    config = composed("experiment=value_error", *overrides, script="evaluate")
    out = run_evaluation(OmegaConf.to_container(config, resolve=True))
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["beta"] == 0.1
    assert {label: group["runs"] for label, group in metrics["groups"].items()} == {
        f"arm = {arm}": 2 for arm in ("unbiased", "censored", "tcf", "conditional")
    }
    errors = {label: group["relative_l2_mean"] for label, group in metrics["groups"].items()}
    assert errors["arm = tcf"] < errors["arm = censored"]


def test_value_error_takes_the_newest_sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = composed("experiment=value_error", script="evaluate")
    with pytest.raises(InterpolationResolutionError, match="run it first"):
        OmegaConf.to_container(config, resolve=True)
    for time in ("2026-01-31_12-00-00", "2026-02-01_08-00-00"):
        (tmp_path / "multirun" / "censored_variable" / time).mkdir(parents=True)
    assert config.run == "multirun/censored_variable/2026-02-01_08-00-00/*/n400000/*"
    with pytest.raises(ConfigError, match="found none"):
        newest("multirun/censored_constant")


def test_rate_study(tmp_path):
    out = study(tmp_path / "out", n_trials=20, n_modes=16, eps=[0.01, 0.001])
    slopes = json.loads((out / "rates.json").read_text())
    assert set(slopes) == {"noise", "gaussian", "wedge", "white"}
    for kind in ("noise", "gaussian", "wedge"):
        assert slopes[kind]["slope_C2"] == pytest.approx(1, abs=0.1)
    assert len((out / "rates.csv").read_text().splitlines()) == 1 + 4 * 2 * 2
    assert (out / "figures" / "rates.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("experiment", "overrides"),
    [
        ("unbiased_constant", ["dynamics.alpha=0.6", "data.n_trajectories=100"]),
        ("unbiased_variable", ["data.n_trajectories=1000"]),
        ("censored_variable", ["data.n_trajectories=500", "arm=conditional"]),
        ("censored_mcmc", ["data.n_trajectories=500", "data.burn_in=100"]),
    ],
)
def test_the_others_run(tmp_path, experiment, overrides):
    quiet = ["callbacks.figures.files=[]", "logger=none", "diagnostics=none", "trainer.progress=false"]
    config = composed(f"experiment={experiment}", *overrides, *quiet)
    metrics = run_here(config, tmp_path / "run")
    assert metrics["engine"] == "fisher"
    assert metrics["converged"]
    assert metrics["error_D_o"] < 0.5
    assert metrics["error_V"] > 0


@pytest.mark.long
def test_learning_history(tmp_path):
    small = ["data.n_trajectories=100", "data.burn_in=100", "engine.max_steps=60", "engine.window=20", "tail.start=30"]
    quiet = ["callbacks.figures.files=[png]", "logger=none", "diagnostics=none", "trainer.progress=false"]
    whole = composed("experiment=learning_history")
    assert (whole.engine.name, whole.engine.max_steps, whole.engine.window) == ("adam", 84_000, 20_000)
    metrics = run_here(composed("experiment=learning_history", *small, *quiet), tmp_path / "run")
    assert metrics["steps"] == 60
    header, *rows = (tmp_path / "run" / "history.csv").read_text().splitlines()
    assert {"step", "mean/b", "mean/D_o", "mean/D_f", "tail/TCF"} <= set(header.split(","))
    assert [float(row.split(",")[0]) for row in rows] == [10.0 * k for k in range(1, 7)]
    assert {path.suffix for path in (tmp_path / "run" / "figures").iterdir()} == {".png"}


def test_figures_of_an_unknown_kind_are_refused():
    config = composed("callbacks.figures.files=[gif]")
    with pytest.raises(ConfigError, match=r"callbacks\.figures\.files must be a list of png, pdf"):
        prepare_run(config, Path())
