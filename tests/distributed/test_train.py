"""train.py data=files: here and on a cluster, with files that are missing, added or damaged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from levytorch import Lattice, Recovery
from levytorch.distributed.source import FromFiles
from levytorch.errors import ConfigError, InputError
from levytorch.runs import resume
from levytorch.runs.directory import remove_unused
from tests.distributed.test_lattice import same

from .conftest import write_files

ROOT = Path(__file__).parents[2]


def test_here_and_on_a_cluster_the_same_lattice(files, cluster, tmp_path):
    options = {"period": None, "n_blocks": 3, "CT": 2.0}
    here = FromFiles(str(tmp_path / "*.parquet"), **options)()
    there = FromFiles(files, cluster={"name": "dask", "address": cluster.scheduler_address}, **options)()
    assert isinstance(here.transitions, Lattice)
    assert same(here.transitions, there.transitions)
    assert here.facts["reading"]["files_read"] == there.facts["reading"]["files_read"] == 6
    assert there.facts["reading"]["cluster"] == "dask"
    assert here.sample is None
    assert len(FromFiles(files, sample=600, **options)().sample) == 600


def test_settings_of_a_cluster_are_checked(files):
    with pytest.raises(ConfigError, match="cluster must be a group"):
        FromFiles(files, cluster=5)
    with pytest.raises(InputError, match=r"cluster\.name"):
        FromFiles(files, cluster={"name": "x"})
    with pytest.raises(ConfigError, match="colour"):
        FromFiles(files, cluster={"name": "dask", "colour": 1})
    with pytest.raises(ConfigError, match=r"cluster\.address must be that of a Dask scheduler, found 'nonsense://x'"):
        FromFiles(files, cluster={"name": "dask", "address": "nonsense://x"})()


def test_a_cluster_without_dask_is_refused_in_one_sentence(files, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match=r"Dask must be installed .*; pip install levytorch\[dask\]"):
        FromFiles(files, cluster={"name": "dask"})()
    with pytest.raises(InputError, match="Dask must be installed"):
        FromFiles(files, cluster={"name": "dask", "address": "tcp://127.0.0.1:1"})()


@pytest.mark.parametrize(
    "override",
    ["cluster=dask", "cluster.address=tcp://evil:8786", "+data.cluster={name: dask, address: 'tcp://evil:1'}"],
)
def test_a_run_directory_cannot_name_a_cluster(override, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"overrides": ["data=files", override], "defaults": 2}))
    with pytest.raises(ConfigError, match="must be requested on your own command line"):
        resume.expand([f"resume={tmp_path}"])


@pytest.mark.parametrize("kept", [None, "files/x.safetensors", "checkpoints/last.ckpt"])
def test_a_refused_run_keeps_what_it_has_read(kept, tmp_path):
    run = tmp_path / "day" / "time"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")
    if kept is not None:
        (run / kept).parent.mkdir()
        (run / kept).touch()
    remove_unused(run, resumed=False)
    assert (run / "run.json").is_file() == (kept is not None)
    assert run.is_dir() == (kept is not None)


def train(*arguments, cwd):
    settings = ["alpha=0.3", "law=frozen", "coefficients.n_basis=1", "logger=none", "callbacks.figures.files=[]"]
    settings += ["coefficients.period=6.283185307179586"]
    if arguments[0].startswith("resume"):
        settings = []
    return subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *arguments, *settings],
        cwd=cwd, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_reads_files_on_a_cluster_and_goes_on(tmp_path):
    (tmp_path / "data").mkdir()
    names = write_files(tmp_path / "data")
    where = ["data=files", f"data.path={tmp_path}/data/*.parquet"]
    here = train(*where, "hydra.run.dir=here", cwd=tmp_path)
    assert here.returncode == 0, here.stdout + here.stderr
    content = Path(names[1]).read_bytes()
    Path(names[1]).write_bytes(content[:500])
    bad = train(*where, "cluster=dask", "cluster.n_workers=2", "hydra.run.dir=there", cwd=tmp_path)
    assert bad.returncode == 2
    assert "all 6 files must be usable, found 1 that are not" in bad.stdout
    assert "Dask dashboard: http://" in bad.stdout
    assert "Register worker" not in bad.stdout  # nor anything else that Dask tells of itself
    assert "Traceback" not in bad.stdout + bad.stderr
    assert "correct this, and continue with: python train.py resume=" in bad.stdout
    assert "data.bad_files=skip" in bad.stdout
    Path(names[1]).write_bytes(content)
    again = train("resume=there", "cluster=dask", "cluster.n_workers=2", cwd=tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    reading = json.loads((tmp_path / "there" / "metrics.json").read_text())["reading"]
    assert (reading["files_read"], reading["files_from_checkpoint"], reading["failures"]) == (1, 5, {})
    assert json.loads((tmp_path / "there" / "metrics.json").read_text())["diagnosis"]
    one, other = Recovery.load(tmp_path / "here"), Recovery.load(tmp_path / "there")
    assert torch.equal(one.theta, other.theta)
