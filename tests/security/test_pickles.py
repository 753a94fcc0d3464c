"""Checkpoints, recoveries and value functions that carry code, or more than they say."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from levytorch import Recovery, ValueFunction, recover
from levytorch.archives import check_tensors
from levytorch.errors import ConfigError, InputError
from levytorch.runs import resume
from levytorch.runs.reading import load_run
from levytorch.training.trainer import train as fit
from tests.security.conftest import SETTINGS
from tests.security.hostile import Hostile

ROOT = Path(__file__).parents[2]


def test_the_hostile_pickle_is_one(proof):
    """Otherwise the tests below could not fail."""
    pickle.loads(pickle.dumps(Hostile(proof)))
    assert proof.is_dir()


@pytest.mark.parametrize(
    "position",
    [
        "",
        "state_dict",
        "callbacks",
        "optimizer_states",
        "loops",
        "hyper_parameters",
        "FitDataModule",
        "fit",
        "global_step",
        "pytorch-lightning_version",
        "lr_schedulers",
        "extra",
    ],
)
def test_hostile_checkpoints(position, honest, pairs, proof, tmp_path):
    content = torch.load(honest / "checkpoints" / "last.ckpt", weights_only=True)
    assert position in ("", "extra", *content), "the position must be one that Lightning reads"
    if not position:
        content = Hostile(proof)
    elif isinstance(content.get(position), dict):
        content[position]["evil"] = Hostile(proof)
    elif isinstance(content.get(position), list):
        content[position].append(Hostile(proof))
    else:
        content[position] = Hostile(proof)
    path = tmp_path / "checkpoints" / "last.ckpt"
    path.parent.mkdir()
    torch.save(content, path)
    with pytest.raises(ConfigError, match="does not load safely"):
        resume.checkpoint(tmp_path)
    with pytest.raises((InputError, pickle.UnpicklingError)):
        fit(pairs, SETTINGS, trainer={"enable_progress_bar": False}, resume=str(path))
    assert not proof.exists()


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("position", ["", "head", "theta", "metrics", "history", "covariance"])
def test_hostile_recoveries(position, legacy, honest, proof, tmp_path):
    content = torch.load(honest / "recovery.pt", weights_only=True)
    content = {**content, position: Hostile(proof)} if position else Hostile(proof)
    torch.save(content, tmp_path / "recovery.pt", _use_new_zipfile_serialization=not legacy)
    for load in (Recovery.load, load_run):
        with pytest.raises(InputError, match="safely"):
            load(tmp_path)
    assert not proof.exists()


def test_numbers_of_a_recovery_that_are_none(honest, tmp_path):
    content = torch.load(honest / "recovery.pt", weights_only=True)
    torch.save({**content, "log_likelihood": 10**400}, tmp_path / "recovery.pt")
    for load in (Recovery.load, load_run):
        with pytest.raises(InputError, match="a number of 1329 bits"):
            load(tmp_path)


def packed(source: Path, target: Path, extra: int) -> None:
    """The same archive compressed, with tensors of `extra` zeros in it."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member.filename, old.read(member))
        new.writestr(f"{old.namelist()[0].split('/')[0]}/data/99", bytes(extra))


def test_saved_tensors_that_unpack_to_more_than_they_hold(honest, tmp_path, monkeypatch):
    file = tmp_path / "recovery.pt"
    packed(honest / "recovery.pt", file, 10_000_000)
    assert file.stat().st_size < 50_000
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("nothing may be unpacked"))
    for load in (Recovery.load, load_run, lambda _: ValueFunction.load(file)):
        with pytest.raises(InputError, match="must be"):
            load(tmp_path)
    with pytest.raises(ValueError, match="when unpacked"):
        check_tensors(file)
    check_tensors(honest / "recovery.pt")
    check_tensors(honest / "checkpoints" / "last.ckpt")


def test_hostile_value_functions(proof, tmp_path):
    torch.save({"format": "levytorch.value.1", "coefficients": Hostile(proof)}, tmp_path / "value.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Hostile(proof)))
    for name in ("value.pt", "plain.pt"):
        with pytest.raises(InputError):
            ValueFunction.load(tmp_path / name)
    assert not proof.exists()


def test_torch_is_not_told_otherwise_by_the_environment(monkeypatch, proof, tmp_path):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    torch.save(Hostile(proof), tmp_path / "recovery.pt")
    with pytest.raises(InputError):
        Recovery.load(tmp_path)
    assert not proof.exists()


@pytest.mark.parametrize(
    "part",
    [
        {"state_dict": {}},
        {"fit": {"evil": 1}},
        {"fit": {"phases": [{"evil": 1}]}},
        {"loops": {}},
        {"optimizer_states": [{"evil": 1}]},
    ],
)
def test_checkpoints_of_something_else_are_refused_in_a_sentence(part, honest, pairs, tmp_path):
    content = torch.load(honest / "checkpoints" / "last.ckpt", weights_only=True) | part
    torch.save(content, tmp_path / "other.ckpt")
    with pytest.raises(InputError, match="must be a checkpoint of a run with these settings"):
        fit(pairs, SETTINGS, trainer={"enable_progress_bar": False}, resume=str(tmp_path / "other.ckpt"))


def test_a_truncated_checkpoint_is_refused_in_a_sentence(honest, tmp_path):
    whole = (honest / "checkpoints" / "last.ckpt").read_bytes()
    (tmp_path / "checkpoints").mkdir()
    for content in (b"", whole[: len(whole) // 2], b"\0" * len(whole)):
        (tmp_path / "checkpoints" / "last.ckpt").write_bytes(content)
        with pytest.raises(ConfigError, match="remove it"):
            resume.checkpoint(tmp_path)


SAFE = ("weights_only=True", "allow_pickle=False", "safe_load", "SafeLoader")
LOADERS = (
    "torch.load(",
    "np.load(",
    "pickle.load",
    "yaml.load",
    "joblib.load",
    "load_from_checkpoint(",
    "eval(",
    "exec(",
)


def test_nothing_unpickles_elsewhere():
    """Every loader of the package says what it allows; a new one has to be thought about here."""
    found = []
    for path in [*(ROOT / "levytorch").rglob("*.py"), ROOT / "train.py", ROOT / "evaluate.py"]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("#")[0]
            if any(word in code for word in LOADERS) and not any(word in code for word in SAFE):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found


def test_recover_is_not_in_the_way(pairs):
    """The checks above let an honest fit through."""
    assert recover(pairs, alpha=0.3, n_basis=1).converged
