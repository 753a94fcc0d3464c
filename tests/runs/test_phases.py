"""Runs of train.py through every phase: killed in it and resumed; what TensorBoard, history.csv and the log say."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from levytorch import Recovery
from levytorch.runs.comparison import labels
from levytorch.runs.sweeps import contradiction
from levytorch.runs.tensorboard import TensorBoard
from levytorch.training.module import LevyModule
from tests.runs.test_train import train

ROOT = Path(__file__).parents[2]
THREE = [
    *("data=unbiased", "tail=none", "data.n_trajectories=60", "data.dt=0.1", "coefficients.n_basis=3", "law=exact"),
    *("beta=null", "diagnostics=none", "callbacks.figures.files=[]", "trainer.progress=false"),
]
SMALL = [option for option in THREE if not option.startswith(("coefficients", "law"))]
NETWORK = [
    *("coefficients=mlp", "coefficients.width=4", "coefficients.depth=1", "engine=adamw", "engine.max_steps=60"),
    *("engine.window=20", "trainer.log_every=5", "callbacks.checkpoints.every=10"),
]
RUNS = {
    "three": THREE,
    "chosen": [*SMALL, "coefficients.n_basis=auto", "law=frozen"],
    "simulated": [*SMALL, "coefficients.n_basis=3", "law=simulated"],
    "adam": [*SMALL, "coefficients.n_basis=3", "engine=adam", *NETWORK[4:]],
    "network": [*SMALL, *NETWORK, "law=frozen"],
}
KILLED = [
    *(("three", "frozen", 1), ("three", "corrected", 1), ("three", "exact", 1)),
    *(("chosen", "prepare", 1), ("chosen", "prepare", 3), ("simulated", "simulated", 1), ("simulated", "simulated", 3)),
    *(("adam", "frozen", 30), ("network", "frozen", 30), ("network", "last_layer", 1)),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of each of the runs, which is run when it is first asked for."""
    places: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in places:
            places[name] = tmp_path_factory.mktemp("phases") / name
            train(*RUNS[name], out=places[name])
        return places[name]

    return of


@pytest.fixture(scope="module")
def whole(finished):
    return finished("three")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "phase", "step"), KILLED)
def test_killed_in_a_phase_and_resumed_it_gives_the_same_numbers(name, phase, step, finished, tmp_path):
    whole, killed = finished(name), [phase, str(step), *RUNS[name], f"hydra.run.dir={tmp_path / 'killed'}"]
    command = [sys.executable, "-m", "tests.runs.killer", *killed]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert not (tmp_path / "killed" / "recovery.pt").exists()
    state = torch.load(tmp_path / "killed" / "checkpoints" / "last.ckpt", weights_only=True)["fit"]
    assert (state["phases"][-1]["name"], state["phases"][-1]["steps"]) == (phase, step)
    train(f"resume={tmp_path / 'killed'}", cwd=tmp_path)
    expected, found = Recovery.load(whole), Recovery.load(tmp_path / "killed")
    assert torch.equal(found.theta, expected.theta)
    assert torch.equal(found.covariance, expected.covariance)
    assert found.log_likelihood == expected.log_likelihood
    assert [entry["step"] for entry in found.history] == [entry["step"] for entry in expected.history]
    assert [entry["train/nll"] for entry in found.history] == [entry["train/nll"] for entry in expected.history]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chosen", "simulated", "network"])
def test_steps_of_other_phases_are_in_the_history_the_log_and_tensorboard(name, finished):
    """Every step of a full-batch phase, every fifth of mini-batches and their last one."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = finished(name)
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    metrics = json.loads((run / "metrics.json").read_text())
    rows = list(csv.DictReader((run / "history.csv").open()))
    steps = [int(float(row["step"])) for row in rows]
    drawn = metrics["steps_of"]["frozen"] if name == "network" else 0
    assert steps == [*range(5, drawn + 1, 5), *range(drawn + 1, metrics["steps"] + 1)]
    assert [event.step for event in events.Scalars("train/nll")] == steps
    assert [event.value for event in events.Scalars("fit/phase")] == [float(row["fit/phase"]) for row in rows]
    written = (run / "train.log").read_text() + (run / "report.html").read_text()
    assert {int(n) for n in re.findall(r"(?:, |after )(\d+) steps", written)} == {metrics["steps"]}
    assert sum(metrics["steps_of"].values()) == metrics["steps"]


@pytest.mark.slow
def test_every_step_of_every_phase_is_in_the_history_the_log_and_tensorboard(whole):
    run = whole
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"images": 0, "scalars": 0, "tensors": 0})
    events.Reload()
    rows = list(csv.DictReader((run / "history.csv").open()))
    metrics = json.loads((run / "metrics.json").read_text())
    steps = [float(row["step"]) for row in rows]
    assert steps == [1.0 + i for i in range(metrics["steps"])]
    assert [event.step for event in events.Scalars("train/nll")] == steps
    assert [event.value for event in events.Scalars("fit/phase")] == [float(row["fit/phase"]) for row in rows]
    assert {float(row["fit/phase"]) for row in rows} == {1.0, 2.0, 3.0}
    written = (run / "train.log").read_text() + (run / "report.html").read_text()
    assert {int(n) for n in re.findall(r"(?:, |after )(\d+) steps", written)} == {metrics["steps"]}
    scalars = events.Tags()["scalars"]
    assert {"optimizer/gradient_norm", "optimizer/damping", "mean/alpha", "time/samples_per_s"} <= set(scalars)
    assert not [tag for tag in scalars if len(events.Scalars(tag)) == 1]  # no page of single dots
    assert [event.step for event in events.Images("fit/coefficients")][:3] == [1, 2, 4]
    tensors = events.Tags()["tensors"]
    assert any("custom_scalars" in tag for tag in tensors)
    assert any("settings" in tag for tag in tensors)


@pytest.mark.slow
def test_the_last_checkpoint_has_the_reported_curves(whole):
    module = LevyModule.load_from_checkpoint(whole / "checkpoints" / "last.ckpt", weights_only=True)
    found = Recovery.load(whole)
    x = torch.linspace(0, 6, 101, dtype=torch.float64)
    with torch.no_grad():
        for mine, reported in zip(module.head(x)[:3], found.coefficients(x)[:3]):
            assert torch.equal(mine, reported)


@pytest.mark.slow
def test_a_sweep_ends_with_a_page_that_compares_its_runs(tmp_path):
    sweep = ["-m", "coefficients=fourier,mlp", *(o for o in THREE if "n_basis" not in o and "law=" not in o)]
    small = ["law=frozen", "engine.max_steps=5", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    train(*sweep, *small, cwd=tmp_path)
    rows = list(csv.DictReader((tmp_path / "sweep" / "comparison.csv").open()))
    assert {row["run"] for row in rows} == {"fourier", "mlp"}
    held_out = [float(row["held_out_per_pair"]) for row in rows]
    assert held_out == sorted(held_out, reverse=True)
    page = (tmp_path / "sweep" / "comparison.html").read_text()
    for told in ("error b", "error D_f", "held-out log p", "seconds", "data:image/"):
        assert told in page
    for row in rows:
        run = next(p for p in (tmp_path / "sweep").glob("[01]") if f"coefficients={row['run']}" in _overrides(p))
        metrics = json.loads((run / "metrics.json").read_text())
        assert float(row["error_b"]) == metrics["error_b"]
        assert float(row["held_out_per_pair"]) == metrics["held_out"]["per_pair"]


def _overrides(run: Path) -> str:
    return (run / ".hydra" / "overrides.yaml").read_text()


def test_steps_that_are_taken_again_are_not_drawn_twice(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for begin, end, last in ((1, 10, None), (6, 8, 5)):
        logger = TensorBoard(tmp_path)
        if last is not None:
            logger.go_on_after(last)
        for step in range(begin, end + 1):
            logger.log_metrics({"train/nll": float(begin)}, step=step)
        logger.experiment.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/nll")] == [
        *((step, 1.0) for step in range(1, 6)),
        *((step, 6.0) for step in range(6, 9)),
    ]


def test_what_tells_runs_apart():
    assert labels([["a=1", "seed=0"], ["a=1", "seed=1"]]) == ["0", "1"]
    assert labels([["a=1", "b=2"], ["a=2", "b=3"], ["a=2", "b=3"]]) == ["a=1, b=2", "a=2, b=3 (1)", "a=2, b=3 (2)"]


def test_alpha_for_data_of_every_alpha_is_refused():
    swept = ["dynamics.alpha", "seed"]
    told = contradiction("unbiased_constant", swept, ["experiment=unbiased_constant", "alpha=0.3"])
    assert "use dynamics.alpha=0.3" in told
    for allowed in (["alpha=learn"], ["alpha=0.3", "dynamics.alpha=0.3"], ["seed=1"]):
        assert contradiction("unbiased_constant", swept, allowed) is None
    assert contradiction(None, ["seed"], ["alpha=0.3"]) is None
