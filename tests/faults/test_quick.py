"""Representatives of the campaigns for every day: each kind of fault once, small and mostly in this process."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import warnings
from contextlib import contextmanager
from functools import cache

import lightning as L
import pytest
import torch

from levytorch import Dynamics, simulate
from levytorch.errors import ConfigError, NumericalError, OutputError
from levytorch.files import (
    check_place,
    remove_leftovers,
    replacing,
    temporary_directory,
    write_csv,
    write_json,
)
from levytorch.interrupts import Interrupted, interruptible
from levytorch.runs import directory as place
from levytorch.runs import resume
from levytorch.training.callbacks import Checkpoints
from levytorch.training.settings import make_settings
from levytorch.training.trainer import train as fit
from tests.faults import writers
from tests.faults.processes import check_content

ENGINES = {
    "fisher": {"name": "fisher", "tolerance": 1e-13},
    "lbfgs": {"name": "lbfgs", "iterations": 1},
    "adam": {"name": "adam", "max_steps": 60, "window": 20},
    # stops by itself, at a step that no checkpoint was due at
    "settled": {"name": "adam", "max_steps": 80, "window": 20, "tolerance": 10.0},
}
TAIL = {"CT": 2.0, "TRT": 20.0, "start": 5}


@pytest.fixture(scope="module")
def pairs():
    return simulate(Dynamics.named("constant"), 50, 40, 1 / 40).transitions().censor(TRT=20.0, CT=2.0, drop_tail=0.5)


def fitted(pairs, engine, *callbacks, checkpoint=None):
    settings = make_settings(alpha=0.3, n_basis=3, tail=TAIL, engine=dict(ENGINES[engine]), law="frozen", log_every=1)
    # without a callback of ours Lightning would put its own checkpoints into the working directory
    trainer = {"enable_checkpointing": any(isinstance(c, Checkpoints) for c in callbacks), "enable_progress_bar": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit(pairs, settings, callbacks=callbacks, trainer=trainer, resume=checkpoint).recovery


@pytest.fixture(scope="module")
def uninterrupted(pairs):
    """The recovery of a run with an engine that nothing stopped."""
    return cache(lambda engine: fitted(pairs, engine))


class Keep(Checkpoints):
    """Keeps a copy of every state that was the last one for a while: what a kill could have left."""

    def _write(self, trainer, name):
        super()._write(trainer, name)
        kept = self.directory / "kept"
        kept.mkdir(exist_ok=True)
        shutil.copy(self.directory / name, kept / f"{len(list(kept.iterdir())):03d}.ckpt")


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_every_checkpoint_leads_to_the_numbers_of_a_run_that_never_stopped(engine, pairs, tmp_path):
    whole = fitted(pairs, engine, Keep(tmp_path, every=7))
    kept = sorted((tmp_path / "kept").iterdir())
    assert len(kept) > 3
    for checkpoint in (kept[0], kept[len(kept) // 2], *kept[-2:]):
        found = fitted(pairs, engine, checkpoint=str(checkpoint))
        assert found.metrics["steps"] == whole.metrics["steps"], checkpoint
        assert found.converged == whole.converged
        assert torch.equal(found.theta, whole.theta)
        assert found.tcf == whole.tcf
        assert [e["train/nll"] for e in found.history] == [e["train/nll"] for e in whole.history]


class At(L.Callback):
    """Does something in the middle of a step."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            self.action()


@pytest.fixture
def heeded():
    """Ctrl-C as in a terminal, also when the tests themselves run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("engine", ["fisher", "adam"])
def test_asked_to_stop_it_ends_the_step_and_can_go_on(engine, signum, pairs, uninterrupted, tmp_path, capfd, heeded):
    whole = uninterrupted(engine)
    stop = At(4, lambda: os.kill(os.getpid(), signum))
    with pytest.raises(Interrupted) as raised, interruptible():
        fitted(pairs, engine, stop, Checkpoints(tmp_path / "checkpoints", every=1000))
    assert raised.value.code == 128 + signum
    assert "stopping after this step" in capfd.readouterr().err
    checkpoint = resume.checkpoint(tmp_path)
    assert torch.load(checkpoint, weights_only=True)["global_step"] == 5
    assert torch.equal(fitted(pairs, engine, checkpoint=str(checkpoint)).theta, whole.theta)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_signals_stay_ignored(heeded):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_asked_twice_it_stops_at_once(pairs, tmp_path, heeded):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted), interruptible():
        fitted(pairs, "adam", At(4, twice), Checkpoints(tmp_path / "checkpoints", every=2))
    # nothing of the step that was under way
    assert torch.load(resume.checkpoint(tmp_path), weights_only=True)["global_step"] == 4
    assert not (tmp_path / "checkpoints" / "exception.ckpt").exists()


def test_the_checkpoint_with_more_steps_is_gone_on_with(pairs, tmp_path):
    def fail():
        raise NumericalError("a loss that is not finite")

    with pytest.raises(NumericalError):
        fitted(pairs, "adam", At(9, fail), Checkpoints(tmp_path / "checkpoints", every=4))
    assert resume.checkpoint(tmp_path).name == "exception.ckpt"
    os.utime(tmp_path / "checkpoints" / "exception.ckpt", (0, 0))  # a copy without dates
    assert resume.checkpoint(tmp_path).name == "exception.ckpt"


@contextmanager
def files_no_larger_than(size: int):
    """A disk that is full, for this process: EFBIG instead of ENOSPC."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("kind", writers.KINDS)
def test_a_full_disk_leaves_the_earlier_file(kind, tmp_path):
    target = tmp_path / kind
    writers.write(kind, 1, target)
    with pytest.raises(OutputError, match="could not be written") as error, files_no_larger_than(5000):
        writers.write(kind, 2, target)
    assert str(target) in str(error.value)
    check_content(kind, target, 1)
    assert os.listdir(tmp_path) == [kind]


def test_a_full_disk_leaves_the_earlier_tables(tmp_path):
    write_csv(tmp_path / "t.csv", {"x": [1.0]})
    write_json(tmp_path / "t.json", {"x": 1})
    with files_no_larger_than(100):
        with pytest.raises(OutputError):
            write_csv(tmp_path / "t.csv", {"x": [1.0] * 1000})
        with pytest.raises(OutputError):
            write_json(tmp_path / "t.json", {"x": "y" * 1000})
    assert (tmp_path / "t.csv").read_text() == "x\n1.0\n"
    assert json.loads((tmp_path / "t.json").read_text()) == {"x": 1}


def test_a_disk_that_fills_up_during_a_fit(pairs, uninterrupted, tmp_path):
    whole = uninterrupted("fisher")
    full = files_no_larger_than(1000)
    try:
        with pytest.raises(OutputError, match=r"last\.ckpt"):
            fitted(pairs, "fisher", At(3, full.__enter__), Checkpoints(tmp_path / "checkpoints"))
    finally:
        full.__exit__(None, None, None)
    checkpoint = resume.checkpoint(tmp_path)
    assert torch.load(checkpoint, weights_only=True)["global_step"] == 3
    assert torch.equal(fitted(pairs, "fisher", checkpoint=str(checkpoint)).theta, whole.theta)


def test_places_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    for target in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match="found the file"):
            check_place(target)
        with pytest.raises(OutputError), place.claimed(target):
            pass
    check_place(tmp_path / "new" / "deep")
    assert os.listdir(tmp_path) == ["file"]
    with pytest.raises(OutputError), replacing(tmp_path / "file" / "x"):
        pass
    with pytest.raises(OutputError), temporary_directory(tmp_path / "file" / "x"):
        pass


HOLD = "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.flock(f, fcntl.LOCK_EX); "
HOLD += "os.write(f, b'%d' % os.getpid()); print('held', flush=True); sys.stdin.read()"


def test_one_process_per_directory_and_a_killed_one_holds_nothing(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / place.LOCK)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(OutputError, match=f"process {other.pid} is working in it"), place.claimed(tmp_path):
            pass
        other.kill()
        other.wait()
        left = tmp_path / ".metrics.json.123-0a1b2c3d.tmp"
        left.touch()
        with place.claimed(tmp_path):
            assert (tmp_path / place.LOCK).read_text() == f"{os.getpid()}\n"
            assert not left.exists()
    with place.claimed(tmp_path):
        pass


def test_only_its_own_leftovers_are_removed(tmp_path):
    mine = [".a.tmp", "b.1-0a1b2c3d.tmp", ".c.txt"]
    for name in mine:
        (tmp_path / name).touch()
    (tmp_path / ".d.pt.77-0a1b2c3d.tmp").touch()
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(mine)


def test_a_new_run_does_not_write_over_an_old_one(tmp_path):
    place.check_unused(tmp_path)
    (tmp_path / "run.json").touch()
    place.check_unused(tmp_path)  # it never came to a result
    for name in ("recovery.pt", "checkpoints/last.ckpt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        with pytest.raises(ConfigError, match=f"resume={tmp_path}"):
            place.check_unused(tmp_path)
        (tmp_path / name).unlink()


def test_two_evaluations_with_one_name_are_both_kept(tmp_path):
    wanted = tmp_path / "out"
    wanted.mkdir()
    places = []
    for number in range(3):
        with temporary_directory(wanted) as written:
            (written / "metrics.json").write_text(str(number))
            places.append(place.publish(written, wanted))
    assert [p.name for p in places] == ["out", "out-1", "out-2"]
    assert [(p / "metrics.json").read_text() for p in places] == ["0", "1", "2"]
    assert sorted(os.listdir(tmp_path)) == ["out", "out-1", "out-2"]


def test_an_evaluation_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(OutputError), temporary_directory(tmp_path / "out") as written:
        place.write_marker(written / "nowhere", {})
    assert os.listdir(tmp_path) == []
