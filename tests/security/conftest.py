"""Files from someone else: nothing in them is executed, nothing is written outside, nothing is read silently.

Every hostile pickle here would make a directory called `executed` where it is loaded.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from levytorch import Dynamics, simulate
from levytorch.training.callbacks import Checkpoints
from levytorch.training.settings import make_settings
from levytorch.training.trainer import train as fit


@pytest.fixture
def proof(tmp_path) -> Path:
    return tmp_path / "executed"


@pytest.fixture(scope="module")
def pairs():
    return simulate(Dynamics.named("constant"), 50, 40, 1 / 40).transitions()


SETTINGS = make_settings(alpha=0.3, n_basis=3, tail=None, engine={"name": "fisher"})


@pytest.fixture(scope="module")
def honest(pairs, tmp_path_factory) -> Path:
    """A run directory with a checkpoint."""
    directory = tmp_path_factory.mktemp("honest")
    trainer = {"enable_checkpointing": True, "enable_progress_bar": False}
    found = fit(pairs, SETTINGS, callbacks=[Checkpoints(directory / "checkpoints")], trainer=trainer)
    found.recovery.save(directory / "recovery.pt")
    (directory / "run.json").write_text('{"overrides": ["seed=1"]}')
    return directory
