"""Run directories, their settings and their links."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir

from benchmarks.paper import collect, parts
from levytorch.errors import ConfigError, InputError, LevytorchError
from levytorch.files import replacing
from levytorch.runs import allow_list, resume
from levytorch.runs.reading import load_run
from levytorch.runs.settings import prepare_run
from levytorch.untrusted import read_json, read_yaml

ROOT = Path(__file__).parents[2]


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
    with pytest.raises(ConfigError, match=r"run\.json must hold settings of levytorch only"):
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
    with pytest.raises(ConfigError, match="must keep the settings it was started with, found seed=9"):
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
    with pytest.raises(ConfigError, match="resumed run must"):
        prepare_run(config, proof.parent, resumed=True)
    assert not proof.exists()


@pytest.mark.parametrize("name", sorted(allow_list.TARGETS))
def test_every_name_of_the_list_leads_to_levytorch(name):
    with pytest.raises((LevytorchError, TypeError)):
        allow_list.build({"_target_": name, "nonsense": 1})
    with pytest.raises(ConfigError, match="must build only"):
        allow_list.build({"_target_": name, "_partial_": True})


def test_what_is_built_without_hydra_is_what_hydra_builds(tmp_path):
    config = composed("data.n_trajectories=3", "dynamics.alpha=0.4", "data.censor=null")
    own = prepare_run(config, tmp_path).source
    again = prepare_run(config, tmp_path, resumed=True).source
    assert own.__class__ is again.__class__
    assert torch.equal(own().transitions.dx, again().transitions.dx)


def test_a_resumed_run_writes_its_cache_into_its_directory(tmp_path):
    run = tmp_path / "run"
    for outside in (tmp_path / "elsewhere", run / ".." / "elsewhere"):
        with pytest.raises(ConfigError, match="on_disk"):
            allow_list.check_resumed({"data": {"path": "x.csv", "on_disk": str(outside)}}, run)
    for fine in (True, None, str(run / "cache")):
        allow_list.check_resumed({"data": {"path": "x.csv", "on_disk": fine}}, run)


def test_what_a_resumed_run_reads_is_said(caplog, tmp_path):
    reward = {"name": "tabulated", "path": "r.csv"}
    with caplog.at_level("INFO"):
        allow_list.check_resumed({"data": {"path": "/somewhere/prices.csv"}, "reward": reward}, tmp_path)
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


@pytest.mark.long
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
    began = time.process_time()
    for read in (lambda: load_run(tmp_path), lambda: read_yaml(file)):
        with pytest.raises(InputError, match=rf"config\.yaml must .*{found}.*; restore it\."):
            read()
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a": ' * 100_000, f'{{"error_b": {10**400}}}', "1" * 5000, "{", "\xff"]
)
def test_hostile_records_of_experiments(text, tmp_path):
    for name in ("metrics.json", "sweep.json"):
        (tmp_path / name).write_text(text, encoding="latin-1")
        with pytest.raises(InputError, match=rf"{name} must be .*; restore it\."):
            read_json(tmp_path / name)
    runs = collect.Runs((collect.Record(tmp_path, {}),))
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
