"""train.py as a user runs it: files of a run, refusals, killing and resuming."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf

from levytorch import Recovery
from levytorch.coefficients import HEADS
from levytorch.errors import ConfigError
from levytorch.runs import resume
from levytorch.runs.settings import fit_settings, prepare_run
from levytorch.runs.value import check_value_data
from tests.processes import run

ROOT = Path(__file__).parents[2]
SMALL = ["data.n_trajectories=150", "coefficients.n_basis=3", "law=frozen", "trainer.progress=false", "beta=null"]
ADAM = ["engine=adam", "engine.max_steps=1200", "engine.window=400", "tail.start=100", "callbacks.checkpoints.every=50"]


def command(*arguments, out=None):
    place = [] if out is None else [f"hydra.run.dir={out}"]
    return [sys.executable, str(ROOT / "train.py"), *arguments, *place]


def train(*arguments, out=None, check=True, cwd=ROOT):
    done = subprocess.run(command(*arguments, out=out), capture_output=True, text=True, cwd=cwd, timeout=300)
    if check:
        assert done.returncode == 0, done.stderr[-3000:]
    return done


def kill_after_checkpoint(*arguments, out):
    """Start a run and kill -9 it as soon as it has written a checkpoint."""
    with subprocess.Popen(
        command(*arguments, out=out), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        deadline = time.monotonic() + 200
        while not (out / "checkpoints" / "last.ckpt").exists():
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    assert not (out / "recovery.pt").exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run directory, and what the run said."""
    place = tmp_path_factory.mktemp("finished") / "run"
    done = train(*SMALL, "coefficients.n_basis=5", "beta=0.1", "figures.format=pdf", out=place)
    return place, done.stdout


@pytest.mark.long
def test_a_memory_and_the_mean_of_a_step(tmp_path):
    """Settings of a run, to its report and to a recovery that simulates."""
    rng = np.random.default_rng(0)
    sizes = np.exp(np.convolve(rng.standard_normal(1700), 0.9 ** np.arange(100), "valid") / 3)
    x = np.concatenate([[0.0], np.cumsum(sizes * rng.standard_normal(len(sizes)))])
    rows = "\n".join(f"{t},{v}" for t, v in enumerate(x))
    (tmp_path / "x.csv").write_text(f"t,x\n{rows}\n")
    place = tmp_path / "run"
    settings = [
        "data=file",
        f"data.path={tmp_path / 'x.csv'}",
        "data.time=t",
        "data.value=x",
        "alpha=0.7",
        "tempering=1",
    ]
    head = ["coefficients=spline", "coefficients.n_basis=4", "tail=none", "trainer.progress=false", "beta=null"]
    train(*settings, *head, "memory=[5.0]", "drift=mean", out=place)
    metrics = json.loads((place / "metrics.json").read_text())
    assert metrics["drift"] == "mean"
    assert metrics["memory"]["f"][0] < 0.8 < 1.2 < metrics["memory"]["f"][1]
    assert "half-lives 5; f is" in (place / "report.html").read_text()
    assert Recovery.load(place / "recovery.pt").simulate(2, 3, x0=0.0).to_array().shape == (2, 4)


def test_a_run_leaves_everything(finished):
    place, said = finished
    for name in (
        "recovery.pt",
        "metrics.json",
        "curves.csv",
        "history.csv",
        "train.log",
        "run.json",
        "value.csv",
        "report.html",
        "checkpoints/last.ckpt",
        "checkpoints/best.ckpt",
        "figures/coefficients.png",
        "figures/coefficients.pdf",
        "figures/value.png",
        "figures/trajectories.png",
        "figures/diagnostics_fit.png",
        "figures/diagnostics_step_size.png",
        "figures/diagnostics_predictive.png",
        ".hydra/config.yaml",
    ):
        assert (place / name).is_file(), name
    assert list((place / "tensorboard").glob("events*"))
    metrics = json.loads((place / "metrics.json").read_text())
    assert metrics["converged"] is True
    assert metrics["engine"] == "fisher"
    assert 0 < metrics["error_D_f"] < 2
    assert str(place) in said
    data, model, fit, head = said.splitlines()[:4]
    assert re.match(r"Data   [\d,]+ pairs of 150 trajectories, dt = 0.025 \(\d+ left out\)", data)
    assert model == "Model  fourier, 5 functions per coefficient; alpha = 0.3"
    assert fit.startswith("Fit    law frozen; engine fisher; tail tcf")
    assert head == " levytorch fit ".center(80, "=")
    assert "std. error       [0.025       0.975]   error (L2)" in said
    assert max(len(line) for line in said.splitlines() if "run directory" not in line) <= 80
    for name in ("b", "D_o", "D_f"):
        assert {"mean", "std", "error"} == set(metrics["observed"][name])
    assert set(metrics["seconds_of"]) == {"data", "fit", "diagnostics", "figures", "value"}
    assert 0 <= metrics["fit_p_value"] <= 1
    assert metrics["jumps_bic"] > 0
    assert 0 <= metrics["step_size_p_value"] <= 1
    assert re.search(r"^(ok|look|bad) +Fit ", said, re.M)
    found = [metrics["alarms"][name] for name in ("misfit", "step_size", "few_jumps") if name in metrics["alarms"]]
    assert set(found) <= set(metrics["warnings"])
    assert all(sentence in (place / "train.log").read_text() for sentence in found)
    found = Recovery.load(place)
    assert found.metrics["CT"] == 8.0 or found.metrics["CT_halvings"] > 0


def test_tensorboard_holds_what_was_promised(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags = {"scalars": set(), "images": set()}
    events = EventAccumulator(str(finished[0] / "tensorboard"), size_guidance={"images": 0})
    events.Reload()
    for kind in tags:
        tags[kind] |= set(events.Tags()[kind])
    assert {"train/nll", "tail/TCF", "tail/R_theta", "tail/R_sample", "mean/D_f", "time/samples_per_s"} <= tags[
        "scalars"
    ]
    assert {"fit/coefficients", "report/history"} <= tags["images"]
    assert not any(len(events.Scalars(name)) == 1 for name in tags["scalars"])  # no page of single dots


@pytest.mark.slow
def test_killed_adam_run_resumes_to_the_same_numbers(tmp_path):
    train(*SMALL, *ADAM, out=tmp_path / "whole")
    kill_after_checkpoint(*SMALL, *ADAM, out=tmp_path / "killed")
    train(f"resume={tmp_path / 'killed'}")
    whole, resumed = Recovery.load(tmp_path / "whole"), Recovery.load(tmp_path / "killed")
    assert torch.equal(whole.theta, resumed.theta)
    assert whole.tcf == resumed.tcf
    assert [e["train/nll"] for e in whole.history] == [e["train/nll"] for e in resumed.history]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fisher", "lbfgs"])
def test_killed_full_batch_run_resumes_to_the_same_numbers(tmp_path, engine):
    # enough pairs for passes that take longer than it takes to notice the first checkpoint
    arguments = [*SMALL, "data.n_trajectories=8000", "coefficients.n_basis=21", f"engine={engine}"]
    if engine == "lbfgs":
        arguments += ["engine.max_steps=4", "engine.iterations=2"]
    train(*arguments, out=tmp_path / "whole")
    kill_after_checkpoint(*arguments, out=tmp_path / "killed")
    train(f"resume={tmp_path / 'killed'}")
    whole, resumed = Recovery.load(tmp_path / "whole"), Recovery.load(tmp_path / "killed")
    torch.testing.assert_close(resumed.theta, whole.theta, rtol=1e-10, atol=1e-10)
    assert abs(whole.tcf - resumed.tcf) < 1e-10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["engine=sgd"], ["sgd", "adam", "fisher"]),
        (["coefficients.n_basis=4"], ["n_basis", "odd"]),
        (["coefficients.period=-1"], ["period"]),
        (["engine.nonsense=3"], ["nonsense"]),
        (["+engine.nonsense=3"], ["nonsense", "tolerance"]),
        (["coefficients=mlp", "engine=fisher", "engine.penalty=harmonics"], ["harmonics", "Fourier head"]),
        (["alpha=learn"], ["conditional"]),
        (["alpha=1.7"], ["alpha", "(0, 1)"]),
        (["tail.method=magic"], ["tail.method", "tcf"]),
        (["tail.CT=30"], ["CT", "TRT"]),
        (["init=zeros"], ["init", "data, random"]),
        (["diagnostics.checks=[speed]"], ["checks", "step_size"]),
        (["diagnostics.max_pairs=3"], ["max_pairs", "1000"]),
        (["data=file", "data.path=x.csv", "alpha=0.5", "data.modulation=hour"], ["left to coefficients.modulation"]),
        (["coefficients.modulation=hour"], ["coefficients.modulation", "a column of data=file", "without a file"]),
    ],
)
def test_bad_configurations_name_the_key_and_the_choices(arguments, words):
    with pytest.raises((ConfigError, HydraException)) as error:
        fit_settings(composed(*arguments))
    for word in words:
        assert word in str(error.value)


@pytest.mark.long
def test_a_modulation_is_a_column_of_a_file():
    own = ["data=file", "data.path=prices.csv", "alpha=0.6", "tail=none"]
    config = composed(*own, "coefficients.modulation=hour", "coefficients.n_modulation=5")
    assert prepare_run(config, Path("run")).source.modulation == "hour"
    found = fit_settings(config).modulation
    assert (found.period, found.n_functions) == (24, 4)
    assert fit_settings(composed(*own)).modulation is None
    assert fit_settings(composed(*own, "coefficients=mlp")).modulation is None


def composed(*overrides):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return OmegaConf.to_container(compose("train", list(overrides)), resolve=True)


@pytest.mark.long
@pytest.mark.parametrize("group", ["coefficients", "engine", "tail", "density"])
def test_every_choice_of_a_group_is_valid(group):
    for path in sorted((ROOT / "conf" / group).glob("*.yaml")):
        head = ["coefficients=mlp"] if path.stem == "adamw" else []  # which is for networks only
        settings = fit_settings(composed(f"{group}={path.stem}", *head))
        assert settings.plain["name"] in HEADS


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["coefficients.n_basis=4"], "n_basis"), (["data=file", "data.path=x.csv"], "alpha=learn")],
)
def test_a_refusal_is_one_line_without_a_traceback(tmp_path, arguments, words):
    status, said = run("train.py", *arguments, "hydra.run.dir=outputs/day/run", cwd=tmp_path)
    assert status == 2
    assert words in said
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == []  # and leaves nothing behind


def test_resume_of_nothing():
    with pytest.raises(ConfigError, match="/nowhere"):
        resume.expand(["resume=/nowhere"])
    assert resume.expand(["seed=1"]) == ["seed=1"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_sweep_over_seeds(tmp_path, launcher):
    train("-m", "seed=0,1", f"hydra/launcher={launcher}", f"hydra.sweep.dir={tmp_path}", *SMALL)
    a, b = Recovery.load(tmp_path / "0"), Recovery.load(tmp_path / "1")
    assert not torch.equal(a.theta, b.theta)


def test_a_hostile_run_directory_is_not_obeyed(tmp_path):
    theirs, proof = tmp_path / "run", tmp_path / "executed"
    theirs.mkdir()
    overrides = ["+data.evil._target_=os.mkdir", f"+data.evil.path={proof}", f"hydra.run.dir={tmp_path / 'elsewhere'}"]
    (theirs / "run.json").write_text(json.dumps({"overrides": overrides}))
    status, said = run("train.py", f"resume={theirs}")
    assert status not in (0, None)
    assert "_target_" in said
    assert not proof.exists()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        (["data=file", "data.path=FILE", "alpha=0.3", "reward=regressed"], "reward column"),
        (["dynamics=plane", "coefficients.n_basis=3", "reward=cosine_power", "reward.period=100"], "reward.period"),
        (["dynamics=plane", "coefficients.n_basis=3", "reward=regressed"], "reward column"),
        (["coefficients=polynomial"], "coefficients must have a period for a system on a cell"),
        (["coefficients=spline", "coefficients.period=null"], "coefficients must have a period for a system on a cell"),
    ],
)
def test_a_reward_that_the_data_cannot_give_is_refused_before_the_fit(overrides, match, tmp_path, monkeypatch):
    file = tmp_path / "x.csv"
    rows = np.random.default_rng(0).normal(size=50).cumsum()
    file.write_text("time,x\n" + "".join(f"{k},{x}\n" for k, x in enumerate(rows)))
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        chosen = [o.replace("FILE", str(file)) for o in overrides]
        small = [] if "data=file" in overrides else ["data.n_trajectories=20", "data.n_steps=5"]
        config = compose("train", [*chosen, *small])
    prepared = prepare_run(config, tmp_path)
    with pytest.raises(ConfigError, match=match):
        check_value_data(prepared.config, prepared.source(), prepared.fit.head)
