"""train.py on lattices out of files: data=lattice; the curve of cross-validation in a run directory."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir

from levytorch import Lattice, Recovery, Transitions, recover
from levytorch.errors import ConfigError, InputError
from levytorch.runs.settings import prepare_run
from levytorch.runs.training import train
from levytorch.training.trainer import FitDataModule
from tests.training.problems import variable

ROOT = Path(__file__).parents[2]
BARE = ["callbacks.figures.files=[]", "logger=none", "trainer.progress=false", "law=frozen"]
PAPER = {"CT": 8.0, "TRT": 20.0}


def composed(*overrides):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", [*BARE, *overrides])


@pytest.fixture(scope="module")
def days(tmp_path_factory) -> list[Path]:
    """Two days on one grid, and a third on another."""
    pairs, place = variable(30_000, 1).censor(seed=1), tmp_path_factory.mktemp("days")
    first = pairs[:10_000].lattice(**PAPER, n_blocks=20)
    lattices = [first, pairs[10_000:].lattice(like=first), pairs.lattice(**PAPER, n_blocks=20, n_x=32)]
    paths = [place / f"day{k}.npz" for k in range(3)]
    for lattice, path in zip(lattices, paths):
        lattice.save(path)
    return paths


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [["coefficients.n_basis=3"], ["coefficients.n_basis=7"], ["coefficients.n_basis=3", "tail=conditional"]]
)
def test_a_run_is_the_fit_of_the_sum(tmp_path, days, options):
    config = composed("data=lattice", f"data.path=[{days[0]},{days[1]}]", "alpha=0.3", *options)
    outcome = train(config, tmp_path / "run")
    both = Lattice.load(days[0]) + Lattice.load(days[1])
    tail = {**PAPER, "method": "conditional" if "tail=conditional" in options else "tcf"}
    found = recover(both, alpha=0.3, n_basis=int(options[0][-1]), tail=tail, law="frozen")
    torch.testing.assert_close(outcome.recovery.theta, found.theta, rtol=1e-12, atol=1e-12)
    assert outcome.metrics["n_main"] == len(both)
    assert outcome.metrics["engine"] == found.metrics["engine"]
    assert outcome.metrics["engine_reason"].startswith("auto")
    assert not outcome.metrics["warnings"]
    assert torch.equal(Recovery.load(tmp_path / "run").theta, outcome.recovery.theta)


@pytest.mark.slow
def test_quasi_newton_and_the_exact_law_take_a_lattice_too(tmp_path, days):
    lattice = Lattice.load(days[1])
    shared = ["data=lattice", f"data.path={days[1]}", "alpha=0.3"]
    small = ["coefficients=mlp", "coefficients.width=4", "coefficients.depth=1", "engine.max_steps=3"]
    outcome = train(composed(*shared, *small), tmp_path / "mlp")
    assert outcome.metrics["engine"] == "lbfgs"
    assert np.isfinite(outcome.metrics["log_likelihood"])
    outcome = train(composed(*shared, "coefficients.n_basis=1", "law=exact"), tmp_path / "exact")
    found = recover(lattice, alpha=0.3, n_basis=1, tail=PAPER, law="exact")
    torch.testing.assert_close(outcome.recovery.theta, found.theta, rtol=1e-9, atol=1e-9)


@pytest.mark.long
def test_a_stopped_run_goes_on(tmp_path, days, monkeypatch):
    shared = ["data=lattice", f"data.path={days[0]}", "alpha=0.3", "coefficients.n_basis=7"]
    whole = train(composed(*shared), tmp_path / "whole")
    draw = FitDataModule.draw

    def failing(self, step):
        if step == 3:
            raise KeyError("stop here")
        return draw(self, step)

    monkeypatch.setattr(FitDataModule, "draw", failing)
    with pytest.raises(KeyError):
        train(composed(*shared), tmp_path / "run")
    monkeypatch.setattr(FitDataModule, "draw", draw)
    again = train(composed(*shared, f"resume={tmp_path / 'run'}"), tmp_path / "run")
    assert [e["step"] for e in again.recovery.history] == [e["step"] for e in whole.recovery.history]
    torch.testing.assert_close(again.recovery.theta, whole.recovery.theta, rtol=1e-10, atol=1e-10)
    config = composed(*shared[:1], f"data.path={days[1]}", *shared[2:], f"resume={tmp_path / 'run'}")
    with pytest.raises(InputError, match="the data it was started with"):
        train(config, tmp_path / "run")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.path=FIRST"], "alpha must be given"),
        (["data.path=[FIRST,THIRD]", "alpha=0.3"], "same grid"),
        (["data.path=nowhere.npz", "alpha=0.3"], "found no file"),
        (["data.path=[]", "alpha=0.3"], "a list of files"),
        (["data.path=FIRST", "alpha=0.3", "engine=adam"], "cannot be drawn from"),
        (["data.path=FIRST", "alpha=0.3", "batch.validation=0.1"], "must be the pairs themselves for validation"),
        (["data.path=FIRST", "alpha=0.3", "tail.CT=5"], "that of the lattice"),
        (["data.path=OPEN", "alpha=0.3"], "a tail pool"),
        (["data.path=OPEN", "alpha=0.3", "tail=conditional"], "must have a threshold"),
        (["data.path=FIRST", "alpha=0.3", "coefficients.period=3"], "cell of the lattice"),
        (["data.path=FIRST", "alpha=0.3", "reward=regressed"], "reward column"),
        (["data.path=FIRST", "alpha=0.3", "empirical={n_terms: 10}", "reward=cosine_power"], "trajectories"),
    ],
)
def test_refusals(tmp_path, days, overrides, words):
    variable(2000).lattice().save(tmp_path / "open.npz")
    places = {"FIRST": days[0], "THIRD": days[2], "OPEN": tmp_path / "open.npz"}
    named = [re.sub("[A-Z]{2,}", lambda m: str(places.get(m[0], m[0])), o) for o in overrides]
    with pytest.raises((ConfigError, InputError), match=words):
        train(composed("data=lattice", *named), tmp_path / "run")
    assert not (tmp_path / "run" / "recovery.pt").exists()


@pytest.mark.parametrize("engine", [pytest.param("auto", marks=pytest.mark.slow), "fisher", "evidence"])
def test_cross_validation_of_the_penalty_from_the_command_line(tmp_path, days, engine):
    chosen = [f"engine={engine}", "engine.penalty=cross_validation", "coefficients.n_basis=7"]
    assert prepare_run(composed(*chosen), tmp_path).fit.left_open == ("penalty",)
    if engine != "auto":
        return
    drawn = ["callbacks.figures.files=[png]", "logger=tensorboard"]
    config = composed("data=lattice", f"data.path={days[0]}", "alpha=0.3", *chosen, *drawn)
    train(config, tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["selection"]["of"] == "penalty"
    assert metrics["engine"] == "fisher"
    assert (tmp_path / "run" / "figures" / "selection.png").stat().st_size > 1000
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={"images": 0})
    events.Reload()
    assert "report/selection" in events.Tags()["images"]


@pytest.mark.long
def test_the_number_of_functions_is_chosen_in_a_run(tmp_path):
    pairs = variable(20_000, 3)
    data = Transitions(pairs.x, pairs.dx, pairs.dt, trajectory=np.arange(20_000) // 100).lattice(n_blocks=10)
    data.save(tmp_path / "days.npz")
    config = composed("data=lattice", f"data.path={tmp_path / 'days.npz'}", "alpha=0.3", "tail=none")
    config.coefficients.n_basis = "auto"
    outcome = train(config, tmp_path / "run")
    curve = outcome.metrics["selection"]
    assert curve["of"] == "n_basis"
    assert outcome.recovery.head.n_basis == curve["chosen"]
    assert len(curve["candidates"]) == len(curve["held_out"]) == len(curve["difference_std"])
    assert curve["n_pairs"] == 20_000
