"""`empirical=...`: V of a run beside the values of its own file, whatever the file holds."""

import json
import warnings

import numpy as np
import polars as pl
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from levytorch.errors import ConfigError, InputError, LevytorchWarning
from levytorch.runs.training import train
from levytorch.runs.value import options_of
from tests.paper.conftest import ROOT

QUIET = ["logger=none", "trainer.progress=false", "callbacks.figures.files=[png]", "diagnostics=none"]
FIT = ["data=file", "alpha=0.6", "tail=none", "coefficients.n_basis=1", "coefficients.period=20", "beta=0.5"]
BASE = [*FIT, "reward=cosine_power", "reward.power=1", "reward.period=20"]


def settings(*overrides):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", overrides=[*QUIET, *overrides])


def go(directory, *overrides):
    """What train.py does, in this process."""
    config = settings(*overrides)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        train(config, directory)
    return json.loads((directory / "metrics.json").read_text())


@pytest.fixture(scope="module")
def tracks(tmp_path_factory):
    """Three tracks of a walk, the last with a gap in it."""
    rng = np.random.default_rng(1)
    t = 0.1 * np.arange(400)
    frames = []
    for name in ("a", "b", "c"):
        x = 10 + np.cumsum(0.1 * rng.standard_t(3, 400))
        times = np.where(t >= 20, t + 5, t) if name == "c" else t
        frames.append(pl.DataFrame({"name": [name] * 400, "time": times, "x": x}))
    file = tmp_path_factory.mktemp("data") / "tracks.csv"
    pl.concat(frames).write_csv(file)
    return [f"data.path={file}", "data.id=name", "data.time=time", "data.value=x", "data.max_dt=1"]


@pytest.mark.long
def test_several_trajectories_with_gaps(tracks, tmp_path):
    chosen = ["data.first=500", "empirical={n_terms: 60, n_basis: 3, bootstrap: {replicas: 2, block: 50}}"]
    numbers = go(tmp_path / "run", *BASE, *tracks, *chosen)["empirical"]
    # every trajectory, and every part of one, loses the 59 observations whose sums would reach beyond its end
    assert numbers["n_values"] == 2 * 341 + 2 * 141
    assert numbers["relative_l2"] < 0.2
    assert numbers["bootstrap"]["replicas"] == 2
    assert set(numbers["baselines"]) == {"trivial", "crl"}
    for name in ("value.pt", "value.csv", "empirical.npz", "figures/value.png"):
        assert (tmp_path / "run" / name).is_file(), name
    columns = {"x", "V", "V_std", "V_bootstrap_sd", "reference", "reference_exact", "crl", "trivial"}
    assert set(pl.read_csv(tmp_path / "run" / "value.csv").columns) == columns


def test_everything_has_a_default(tracks):
    options = options_of(OmegaConf.to_container(settings(*BASE, *tracks, "empirical={}"), resolve=True))
    assert options == {
        "n_terms": None,
        "horizon": None,
        "linear": False,
        "n_basis": 11,
        "n_modes": None,
        "window": "data",
        "gaps": "end",
        "bootstrap": {"replicas": 0, "block": 240},
    }
    assert options_of({"empirical": None}) is None


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("{n_terms: 0}", "n_terms"),
        ("{n_modes: eleven}", "n_modes"),
        ("{n_basis: 1.5}", "n_basis"),
        ("{linear: 3}", "linear"),
        ("{window: [3, 2]}", "window"),
        ("{window: here}", "window"),
        ("{bootstrap: {replicas: 1}}", "at least 2"),
        ("{bootstrap: {block: 0}}", "block"),
        ("{bootstrap: 40}", "group of settings"),
        ("{terms: 5}", "use n_terms"),
        ("5", "group of settings"),
        ("{n_terms: 5, horizon: 2.0}", "must not both be given"),
        ("{horizon: -1}", "horizon"),
        ("{n_terms: 100000}", "longer than the horizon"),
    ],
)
def test_bad_settings_are_refused_before_the_fit(tracks, tmp_path, given, what):
    with pytest.raises((ConfigError, InputError), match=what):
        go(tmp_path / "run", *BASE, *tracks, f"empirical={given}")
    assert not (tmp_path / "run" / "recovery.pt").exists()


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        ([*BASE, "beta=null"], "beta"),
        ([*FIT, "reward=manufactured"], "true coefficients"),
    ],
)
def test_what_V_needs_is_asked_for_before_the_fit(tracks, tmp_path, overrides, what):
    with pytest.raises((ConfigError, InputError), match=what):
        go(tmp_path / "run", *overrides, *tracks, "empirical={n_terms: 60}")
    assert not (tmp_path / "run" / "recovery.pt").exists()


@pytest.mark.long
def test_simulated_trajectories_have_values_too(tmp_path):
    small = [
        "data=unbiased",
        "data.n_trajectories=20",
        "data.n_steps=200",
        "coefficients.n_basis=3",
        "law=frozen",
        "beta=2.0",
    ]
    numbers = go(tmp_path / "run", *small, "empirical={n_terms: 40, n_basis: 5}")["empirical"]
    assert numbers["n_values"] == 20 * 162
    assert set(numbers["baselines"]) == {"trivial"}  # the fit has seen everything


def test_the_plane_has_no_empirical_values(tmp_path):
    with pytest.raises(ConfigError, match="one-dimensional"):
        go(tmp_path / "run", "dynamics=plane", "data=unbiased", "data.n_trajectories=5", "empirical={n_terms: 5}")
