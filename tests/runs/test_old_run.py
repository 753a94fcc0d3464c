"""A run directory made before loggers and callbacks were built by name (0.1.0): it is read and evaluated, not resumed.

Its overrides hold logger.tensorboard=false, callbacks.figures.files=[], trainer.devices=1 and engine.max_steps=20.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from levytorch import Recovery
from levytorch.runs.evaluate import run_evaluation
from levytorch.runs.reading import load_run
from tests.runs.test_train import train

OLD = Path(__file__).parent / "old_run"
ROOT = Path(__file__).parents[2]


def test_it_is_read():
    found, run = Recovery.load(OLD), load_run(OLD)
    assert torch.equal(found.theta, run.recovery.theta)
    assert found.covariance.shape == (9, 9)
    assert run.truth().alpha == 0.3
    assert run.tail_label == "with TCF"
    assert run.choices["engine"] == "fisher"
    assert run.number("steps") == found.metrics["steps"] == len(run.history["step"])
    assert run.metrics["mean_D_f"] == pytest.approx(float(found.D_f(found.head.grid(1024)).mean()), rel=1e-9)


def test_it_is_evaluated(tmp_path):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("evaluate", [f"run={OLD}", f"out={tmp_path / 'out'}", "tensorboard=false"])
    out = run_evaluation(OmegaConf.to_container(config, resolve=True))
    (run,) = json.loads((out / "metrics.json").read_text())["runs"]
    told = json.loads((OLD / "metrics.json").read_text())["error_V"]  # on another grid
    assert run["relative_l2"] == pytest.approx(told, rel=0.01)


@pytest.mark.long
def test_resuming_it_is_refused_in_a_sentence(tmp_path):
    """Its checkpoint does not hold the state of a fit."""
    run = tmp_path / "run"
    shutil.copytree(OLD, run)
    (run / "recovery.pt").unlink()
    done = train(f"resume={run}", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "must be resumed with the version of levytorch that started it" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_from_its_start(tmp_path):
    """The same numbers without its checkpoint: the settings of then mean what they meant."""
    run = tmp_path / "run"
    shutil.copytree(OLD, run, ignore=shutil.ignore_patterns("*.ckpt", "recovery.pt"))
    train(f"resume={run}", cwd=tmp_path)
    old, new = Recovery.load(OLD), Recovery.load(run)
    torch.testing.assert_close(new.theta, old.theta, rtol=1e-8, atol=1e-8)
