"""Files from someone else: nothing in them is executed, nothing is written outside, nothing is read silently.

Every hostile pickle here would make a file called `executed` where it is loaded.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hydra import compose, initialize_config_dir

import train
from levytorch import Dynamics, Recovery, Trajectories, ValueFunction, recover, simulate
from levytorch.atomic import replacing
from levytorch.data import declared
from levytorch.errors import ConfigError, InputError, LevytorchError
from levytorch.experiments import collect, parts, plain
from levytorch.plain_files import check_packed, read_json
from levytorch.policy.plane_value import PlaneValue
from levytorch.policy.runs import load_run
from levytorch.training import foreign, resume
from levytorch.training.callbacks import Checkpoints
from levytorch.training.fit import fit
from levytorch.training.settings import make_settings

ROOT = Path(__file__).parent.parent


class Hostile:
    """Unpickled by an unguarded loader, it makes a directory."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self):
        return os.mkdir, (str(self.proof),)


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


def test_the_hostile_pickle_is_one(proof):
    """Otherwise the tests below could not fail."""
    pickle.loads(pickle.dumps(Hostile(proof)))
    assert proof.is_dir()


# ------------------------------------------------------------------------------------------------------------- pickles


@pytest.mark.parametrize(
    "position",
    [
        "",
        "state_dict",
        "callbacks",
        "optimizer_states",
        "loops",
        "hyper_parameters",
        "LevyDataModule",
        "history",
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
        with pytest.raises(InputError, match="complete recovery"):
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
    for load in (Recovery.load, load_run, lambda _: ValueFunction.load(file), lambda _: PlaneValue.load(file)):
        with pytest.raises(InputError, match="must be"):
            load(tmp_path)
    with pytest.raises(ValueError, match="when unpacked"):
        check_packed(file)
    check_packed(honest / "recovery.pt")
    check_packed(honest / "checkpoints" / "last.ckpt")


@pytest.mark.parametrize("cls", [ValueFunction, PlaneValue])
def test_hostile_value_functions(cls, proof, tmp_path):
    torch.save({"format": "levytorch.value.1", "coefficients": Hostile(proof)}, tmp_path / "value.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Hostile(proof)))
    for name in ("value.pt", "plain.pt"):
        with pytest.raises(InputError):
            cls.load(tmp_path / name)
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
        {"callbacks": {"TailCorrection": {"evil": 1}}},
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


# ------------------------------------------------------------------------------------------------------ run directories


def run_directory(path: Path, *overrides: str) -> Path:
    path.mkdir(exist_ok=True)
    (path / "run.json").write_text(json.dumps({"overrides": list(overrides)}))
    return path


@pytest.mark.parametrize(
    "override",
    [
        "+x._target_=os.system",
        "data._target_=os.mkdir",
        "+data.evil._target_=subprocess.run",
        "++data._target_=levytorch.simulation.source.hydra",
        "hydra.callbacks.x._target_=os.system",
        "+hydra.callbacks.x._target_=os.system",
        "++hydra.run.dir=/tmp/elsewhere",
        "~hydra.job",
        "hydra/launcher=joblib",
        "+hydra/launcher=joblib",
        "hydra.searchpath=[file:///tmp]",
        "data@hydra=unbiased",
        "+data@hydra.callbacks=unbiased",
        "+experiment@_global_=paper_literal",
        "--config-dir=/tmp",
        "--config-path",
        "-cp=/tmp",
        "--multirun",
        "-m",
        "--cfg=job",
        "--experimental-rerun=/tmp/x.pickle",
        "experiment=../../../tmp/evil",
        "+experiment=/tmp/evil",
        "+a/b=c",
        "+/tmp/evil=c",
        "seed=${oc.env:HOME}",
        "data.path='${oc.env:SECRET}'",
        "seed=${oc.decode:${oc.env:SEED}}",
        "+x=[1,'${hydra:runtime.cwd}']",
        "+x={a: ${oc.env:HOME}}",
        "resume=/tmp",
        "+resume=/tmp",
        "seed=1\nhydra.run.dir=/tmp",
        "seed=1\r",
        "seed",
        "",
        "=",
        "data.path='${${c}:HOME}.csv'",
        r"+data.evil='\${\${c}:{_target_: os.mkdir, path: executed}}'",
        r"data.on_disk='${resume}/\${esc.up}'",
        "data.path='${oc.env:HOME}'",
        "data.path=${now:%Y}",
        "+p='$'",
        "data.path='${data[path]}'",
        "data.path='${.value}'",
    ],
)
def test_settings_of_a_run_directory_that_are_not_taken_over(override, tmp_path):
    run = run_directory(tmp_path / "run", "seed=1", override)
    with pytest.raises(ConfigError, match=r"run\.json may only hold settings of levytorch"):
        resume.expand([f"resume={run}"])


@pytest.mark.parametrize(
    "override",
    [
        "seed=3",
        "data=file",
        "data.path=../prices.csv",
        "data.path='/a b/x=1.csv'",
        "+data.first=10",
        "~tail",
        "beta=null",
        "alpha=learn",
        "data.seed=${seed}",
        "coefficients.period=6.28",
        "callbacks.figures.files=[]",
        "data.dt=1e-3",
        "+dynamics={_target_: levytorch.dynamics.Dynamics, b: 1}",
        "data._target_=levytorch.data.sources.FromFile",
    ],
)
def test_settings_of_a_run_directory_that_are(override, tmp_path):
    run = run_directory(tmp_path / "run", override)
    assert resume.expand([f"resume={run}", "beta=2"])[:2] == [override, "beta=2"]
    with pytest.raises(ConfigError, match="keeps the settings it was started with, found seed=9"):
        resume.expand([f"resume={run}", "seed=9"])


@pytest.mark.parametrize("content", ["[]", "{}", '{"overrides": 3}', '{"overrides": [3]}', "x", "[" * 100_000, ""])
def test_records_of_something_else(content, tmp_path):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(ConfigError, match="must list the overrides"):
        resume.expand([f"resume={tmp_path}"])


def composed(*overrides: str):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose("train", list(overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["+data.evil={_target_: os.mkdir, path: PROOF}"],
        ["+data.evil=[{_target_: os.mkdir, path: PROOF}]"],
        ["+data.evil=[[{a: {_target_: os.mkdir, path: PROOF}}]]"],
        ["data._target_=os.mkdir", "+data.path=PROOF"],
        ["++dynamics._target_=os.mkdir", "+dynamics.path=PROOF"],
        ["+data.evil={_target_: {_target_: os.mkdir}}"],
        ["+c=oc.create", r"+data.evil='\${\${c}:{_target_: os.mkdir, path: PROOF}}'"],
        ["+p='$'", "+q='{oc.env:HOME}'", "+data.evil='${p}${q}'"],
        ["+up='../outside'", r"+data.cache='\${up}'"],
        ["+a=os.mkdir", "+data.evil={_target_: '${a}', path: PROOF}"],
        ["reward=callable", "reward.path=os.mkdir"],
        ["+a=callable", "reward.name=${a}", "+reward.path=os.mkdir"],
    ],
)
def test_configurations_that_name_code_build_nothing(overrides, proof):
    """What gets past the single overrides is met by the check of the whole configuration."""
    config = composed(*(o.replace("PROOF", str(proof)) for o in overrides))
    with pytest.raises(ConfigError, match="resumed run may"):
        train.prepare(config, proof.parent, again=True)
    assert not proof.exists()


@pytest.mark.parametrize("name", sorted(foreign.TARGETS))
def test_every_name_of_the_list_leads_to_levytorch(name):
    with pytest.raises((LevytorchError, TypeError)):
        foreign.build({"_target_": name, "nonsense": 1})
    with pytest.raises(ConfigError, match="may only build"):
        foreign.build({"_target_": name, "_partial_": True})


def test_what_is_built_without_hydra_is_what_hydra_builds(tmp_path):
    config = composed("data.n_trajectories=3", "dynamics.alpha=0.4", "data.censor=null")
    _, own = train.prepare(config, tmp_path)
    _, again = train.prepare(config, tmp_path, again=True)
    assert own.__class__ is again.__class__
    assert torch.equal(own().transitions.dx, again().transitions.dx)


def test_a_resumed_run_writes_its_cache_into_its_directory(tmp_path):
    run = tmp_path / "run"
    for outside in (tmp_path / "elsewhere", run / ".." / "elsewhere"):
        with pytest.raises(ConfigError, match="on_disk"):
            foreign.check_settings({"data": {"path": "x.csv", "on_disk": str(outside)}}, run)
    for fine in (True, None, str(run / "cache")):
        foreign.check_settings({"data": {"path": "x.csv", "on_disk": fine}}, run)


def test_what_a_resumed_run_reads_is_said(caplog, tmp_path):
    reward = {"name": "tabulated", "path": "r.csv"}
    with caplog.at_level("INFO"):
        foreign.check_settings({"data": {"path": "/somewhere/prices.csv"}, "reward": reward}, tmp_path)
    assert "/somewhere/prices.csv" in caplog.text
    assert "r.csv" in caplog.text


def test_hard_links_and_places_that_cannot_be_listed(monkeypatch, tmp_path):
    run = run_directory(tmp_path / "run", "seed=1")
    (tmp_path / "victim").write_text("kept")
    os.link(tmp_path / "victim", run / "train.log")
    with pytest.raises(ConfigError, match="one name"):
        resume.expand([f"resume={run}"])
    (run / "train.log").unlink()

    def scandir(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", scandir)  # root may list everything
    with pytest.raises(ConfigError, match="can be listed"):
        resume.expand([f"resume={run}"])


@pytest.mark.parametrize("name", ["train.log", "figures", "checkpoints", ".hydra", "tensorboard/hparams.yaml", ".lock"])
def test_links_out_of_a_run_directory_are_refused(name, tmp_path):
    run, outside = run_directory(tmp_path / "run"), tmp_path / "outside"
    outside.mkdir()
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(outside)
    with pytest.raises(ConfigError, match="link"):
        resume.expand([f"resume={run}"])
    (run / name).unlink()
    (run / name).symlink_to(run / "run.json")
    resume.expand([f"resume={run}"])
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(ConfigError, match="files and directories"):
        resume.expand([f"resume={run}"])


def test_a_directory_that_is_a_link_is_fine(tmp_path):
    run = run_directory(tmp_path / "run", "seed=1")
    (tmp_path / "latest").symlink_to(run)
    assert resume.expand([f"resume={tmp_path / 'latest'}"])[0] == "seed=1"


def test_a_file_is_never_written_through_a_link(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "recovery.pt").symlink_to(tmp_path / "precious")
    with replacing(tmp_path / "recovery.pt") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "recovery.pt").read_text() == "new"


@pytest.mark.parametrize(
    "text",
    ["!!python/object/apply:os.mkdir ['PROOF']", "a: !!python/name:os.system", "- 1", "", "[" * 1500, "a: [\n"],
)
def test_hostile_configurations_of_evaluated_runs(text, honest, proof, tmp_path):
    (tmp_path / "recovery.pt").write_bytes((honest / "recovery.pt").read_bytes())
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(text.replace("PROOF", str(proof)))
    with pytest.raises(InputError, match=r"config\.yaml must"):
        load_run(tmp_path)
    assert not proof.exists()


def nested(levels: int) -> str:
    """Each level merges ten of the one below."""
    lines = [f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 10)}]}}\n" for a, b in zip("abcdefgh"[:levels], "bcdefghi")]
    return "a: &a {k: 1}\n" + "".join(lines)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (nested(8), "a reference"),
        ("a: &a [1]\nb: [*a, *a]", "a reference"),
        ("&a [*a]", "a reference"),
        ("a: {<<: {b: 1}}", "a merge key"),
        ("a: " + "x" * (1 << 20), "more"),
        ("[" * 1_000_000, "levels"),
        ("a: " + "{a: " * 200_000, "levels"),
        ("a: [" + "1," * 300_000, "values"),
        ("a: 2020-13-45", "month"),
        ("a: " + "1" * 5000, "5000 characters"),
        ("a: " + "1" * 400, "400 characters"),
        ("a: 0x" + "f" * 400_000, "characters"),
        ("a: 1" + ":1" * 400_000, "characters"),
        ("a: 1" + ":1" * 300 + ".0", "characters"),
        ("a: !!bool x", "KeyError"),
        ("a: !!timestamp x", "AttributeError"),
    ],
)
def test_configurations_that_would_cost_or_crash(text, found, honest, tmp_path):
    (tmp_path / "recovery.pt").write_bytes((honest / "recovery.pt").read_bytes())
    file = tmp_path / ".hydra" / "config.yaml"
    file.parent.mkdir()
    file.write_text(text)
    began = time.perf_counter()
    for read in (lambda: load_run(tmp_path), lambda: plain.read_yaml(file)):
        with pytest.raises(InputError, match=rf"config\.yaml must .*{found}.*; restore it\."):
            read()
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a": ' * 100_000, f'{{"error_b": {10**400}}}', "1" * 5000, "{", "\xff"]
)
def test_hostile_records_of_experiments(text, tmp_path):
    for name in ("metrics.json", "sweep.json"):
        (tmp_path / name).write_text(text, encoding="latin-1")
        with pytest.raises(InputError, match=rf"{name} must be .*; restore it\."):
            read_json(tmp_path / name)
    runs = collect.Runs((collect.Record(tmp_path, {}, {}, {}),))
    assert parts.sweep_record(runs, [tmp_path]) == {}
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text("seed: 1")
    for name in ("recovery.pt", "curves.csv"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"metrics\.json must"):
        collect.read(tmp_path)


def test_the_truth_of_an_evaluated_run_is_a_name_or_nothing(honest, proof, tmp_path):
    (tmp_path / "recovery.pt").write_bytes((honest / "recovery.pt").read_bytes())
    (tmp_path / ".hydra").mkdir()
    for name in ("os.mkdir", "${oc.env:HOME}", "__class__"):
        config = {
            "data": {"_target_": "os.mkdir", "path": str(proof)},
            "dynamics": {"name": name, "_target_": "os.mkdir"},
        }
        (tmp_path / ".hydra" / "config.yaml").write_text(json.dumps(config))
        assert load_run(tmp_path).truth() is None
    assert not proof.exists()


# ----------------------------------------------------------------------------------------------------------- data files


def npy(shape: str, descr: str = "'<f8'", data: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


ROUND = {
    "x": npy("(4, 8)", data=np.random.default_rng(0).normal(size=32).tobytes()),
    "dt": npy("()", data=np.float64(0.1).tobytes()),
}
ARRAYS = {
    "terabytes": npy("(1000000000000, 1000)", data=bytes(64)),
    "more than there is": npy("(100,)", data=bytes(64)),
    "less than there is": npy("(4,)", data=bytes(64)),
    "negative": npy("(-1,)", data=bytes(64)),
    "an overflow": npy("(4611686018427387904, 4)", data=bytes(64)),
    "no shape": npy("'x'", data=bytes(64)),
    "code as a shape": npy("__import__('os').mkdir('executed')", data=bytes(64)),
    "code as a type": npy("(8,)", "__import__('os').mkdir('executed')", data=bytes(64)),
    "a truncated header": npy("(8,)")[:20],
    "entries without size": npy("(100000000000,)", "'<U0'"),
    "negative twice": npy("(-1, -8)", data=bytes(64)),
    "a header nested deeply": npy("-" * 9000 + "1", data=bytes(64)),
    "a header of gigabytes": b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + b" " * 20000,
}


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("kind", [*ARRAYS, "objects"])
@pytest.mark.parametrize("on_disk", [{}, {"on_disk": "cache"}])
def test_hostile_arrays(kind, suffix, on_disk, proof, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = ARRAYS.get(kind) or npy("(1,)", "'|O'", pickle.dumps(np.array([Hostile(proof)], dtype=object)))
    file = tmp_path / f"data{suffix}"
    file.write_bytes(content if suffix == ".npy" else zipped(x=content))
    with pytest.raises(InputError, match="plain arrays was expected"):
        Trajectories.from_file(file, dt=0.1, **on_disk)
    assert not proof.exists()


def encrypted(whole: bytes) -> bytes:
    """Every member marked as encrypted."""
    content = bytearray(whole)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(signature)
        while place >= 0:
            content[place + offset] |= 1
            place = content.find(signature, place + 4)
    return bytes(content)


def garbled(whole: bytes) -> bytes:
    """The compressed bytes of the first member replaced."""
    start = whole.index(b"PK\x03\x04") + 55
    return whole[:start] + b"\xff" * 30 + whole[start + 30 :]


@pytest.mark.parametrize("on_disk", [{}, {"on_disk": "cache"}])
@pytest.mark.parametrize("damage", [encrypted, garbled, lambda whole: whole[:60] + whole[90:]])
def test_damaged_archives(damage, on_disk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.npz").write_bytes(zipped(**ROUND))
    Trajectories.from_file("x.npz")
    Path("x.npz").write_bytes(damage(zipped(**ROUND)))
    with pytest.raises(InputError, match="plain arrays was expected"):
        Trajectories.from_file("x.npz", **on_disk)


@pytest.mark.parametrize("on_disk", [{}, {"on_disk": "cache"}])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ids", npy("(100000000000,)", "'<U0'")),
        ("ids", npy("(1000000,)", "'|u1'", bytes(1_000_000))),
        ("ids", npy("(2, 2)", "'<i8'", bytes(32))),
        ("ids", npy("()", "'<i8'", bytes(8))),
        ("dt", npy("(1000000,)", "'|u1'", bytes(1_000_000))),
        ("offsets", npy("(1000000,)", "'<i8'", bytes(8_000_000))),
    ],
)
def test_small_arrays_that_are_large(name, content, on_disk, tmp_path, monkeypatch):
    """A file of kilobytes does not become megabytes of Python objects before it is refused."""
    monkeypatch.chdir(tmp_path)
    Path("x.npz").write_bytes(zipped(**{**ROUND, name: content}))
    with pytest.raises(InputError, match=r"x\.npz: "):
        Trajectories.from_file("x.npz", **on_disk)


@pytest.mark.parametrize("kind", ["<M8[s]", "|S3", "<c16", "|V8", "<m8[s]"])
def test_ids_that_a_record_cannot_hold(kind, tmp_path):
    file = tmp_path / "x.npz"
    size = 4 * np.dtype(kind).itemsize
    file.write_bytes(zipped(**ROUND, ids=npy("(4,)", f"'{kind}'", bytes(range(size)))))
    with pytest.raises(InputError, match="ids must be numbers or text on disk"):
        Trajectories.from_file(file, on_disk=tmp_path / "cache")


IDS = {
    "list": pl.Series([[1.0]] * 6),
    "array": pl.Series([[1.0]] * 6, dtype=pl.Array(pl.Float64, 1)),
    "struct": pl.Series([{"a": 1.0}] * 6),
    "binary": pl.Series([b"x"] * 6),
    "date": pl.Series([0] * 6).cast(pl.Date),
    "datetime": pl.Series([0] * 6).cast(pl.Datetime("us")),
    "decimal": pl.Series(["1.5"] * 6).cast(pl.Decimal(10, 2)),
    "duration": pl.Series([1] * 6).cast(pl.Duration("us")),
    "time": pl.Series([1] * 6).cast(pl.Time),
    "null": pl.Series([None] * 6),
}


@pytest.mark.parametrize("kind", IDS)
def test_columns_that_name_no_trajectories(kind, tmp_path):
    file = tmp_path / "x.parquet"
    columns = {"x": [0.1, 0.3, 0.2, 0.5, 0.4, 0.9], "time": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "id": IDS[kind]}
    pl.DataFrame(columns).write_parquet(file)
    with pytest.raises(InputError, match=r"column 'id'.*: (convert|fill)"):
        Trajectories.from_file(file, on_disk=tmp_path / "cache")
    if kind in ("list", "array", "struct", "null"):
        with pytest.raises(InputError, match=r"column 'id'.*: (convert|fill)"):
            Trajectories.from_file(file)
    else:  # told apart and printed, which is all that names are for
        assert len(Trajectories.from_file(file)) == 1


@pytest.mark.parametrize(
    "values", [[1] * 6, ["a"] * 6, [1.5] * 6, [True] * 6, pl.Series(["a"] * 6, dtype=pl.Categorical)]
)
def test_columns_that_do(values, tmp_path):
    file = tmp_path / "x.parquet"
    columns = {"x": [0.1, 0.3, 0.2, 0.5, 0.4, 0.9], "time": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "id": values}
    pl.DataFrame(columns).write_parquet(file)
    assert Trajectories.from_file(file).ids == Trajectories.from_file(file, on_disk=tmp_path / "cache").ids


def test_an_archive_that_unpacks_to_more_than_the_memory(tmp_path, monkeypatch):
    file = tmp_path / "bomb.npz"
    file.write_bytes(zipped(x=npy("(1000000,)", data=bytes(8_000_000))))
    assert file.stat().st_size < 20_000
    monkeypatch.setattr(declared, "memory", lambda: 4_000_000)
    with pytest.raises(InputError, match="more than"):
        Trajectories.from_file(file, dt=0.1)


def test_an_archive_that_lies_about_its_sizes(tmp_path):
    whole = bytearray(zipped(x=npy("(1000,)", data=bytes(8000))))
    place = whole.index(b"PK\x01\x02") + 24  # the uncompressed size in the central directory
    whole[place : place + 4] = struct.pack("<I", 200)
    (tmp_path / "lies.npz").write_bytes(whole)
    with pytest.raises(InputError, match="plain arrays was expected"):
        Trajectories.from_file(tmp_path / "lies.npz", dt=0.1)


def test_parquet_files_that_lie(tmp_path):
    """Every byte of the footer damaged in turn: refused or read, but never a crash of the parser."""
    good = tmp_path / "good.parquet"
    simulate(Dynamics.named("constant"), 3, 4, 0.1).to_file(good)
    whole = good.read_bytes()
    for place in range(len(whole) - 1, max(4, len(whole) - 400), -13):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        file = tmp_path / "bad.parquet"
        file.write_bytes(damaged)
        try:
            Trajectories.from_file(file)
        except InputError:
            continue


def test_csv_files_are_text_only(tmp_path):
    for number, text in enumerate(["=cmd|' /C calc'!A0,1\n", "x,time\n=1+1,0\n", "x,time\n__import__('os'),0\n"]):
        file = tmp_path / f"{number}.csv"
        file.write_text(text)
        with pytest.raises(InputError):
            Trajectories.from_file(file)


def test_nothing_unpickles_elsewhere():
    """Every loader of the package says what it allows; a new one has to be thought about here."""
    found = []
    for path in [*(ROOT / "levytorch").rglob("*.py"), ROOT / "train.py", ROOT / "evaluate.py"]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.split("#")[0]
            safe = (
                "weights_only=True" in code
                or "allow_pickle=False" in code
                or "safe_load" in code
                or "SafeLoader" in code
            )
            if any(word in code for word in LOADERS) and not safe:
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert not found


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


def test_recover_is_not_in_the_way(pairs):
    """The checks above let an honest fit through."""
    assert recover(pairs, alpha=0.3, n_basis=1).converged
