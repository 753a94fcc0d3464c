"""Several processes that draw mini-batches: the numbers of one process, the same state in all, nobody left waiting."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from levytorch import Recovery, ranks
from levytorch.errors import ConfigError
from levytorch.runs import resume
from tests.runs.test_train import ADAM, SMALL, command

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
TAILS = ("none", "tcf", "conditional")


def work(directory, *cases, timeout=3000):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.training.ddp_worker", str(directory), *cases],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def compare(directory, case):
    """One process against two, and the two against each other."""
    first, second = (torch.load(directory / f"{case}.{rank}.pt") for rank in (0, 1))
    alone, both = first["alone"], first["both"]
    # both computed the start, mu and CT for themselves, and logged what they used at each step
    assert torch.equal(alone["theta"], second["alone"]["theta"])
    assert torch.equal(both["theta"], second["both"]["theta"])
    assert both["history"] == second["both"]["history"]
    assert len(both["history"]) >= 4
    assert both["steps"] == alone["steps"]
    # in standard errors where there are any: of an MLP only the last layer has them
    scale = torch.where(alone["std"] > 0, alone["std"], 1.0)
    assert float(((alone["theta"] - both["theta"]).abs() / scale).max()) < 1e-8
    assert abs(alone["tcf"] - both["tcf"]) < 1e-12
    assert abs(alone["log_likelihood"] - both["log_likelihood"]) < 1e-8
    for here, there in zip(alone["history"], both["history"]):
        assert here == pytest.approx(there, rel=1e-9, abs=1e-9)
    if case.endswith("tcf"):
        assert max(entry["tail/TCF"] for entry in both["history"]) > 0


@pytest.mark.long
def test_two_processes_give_the_numbers_of_one(tmp_path):
    case = "mlp-1-tcf"  # every other one below
    work(tmp_path, case)
    compare(tmp_path, case)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fourier-1", "fourier-2", "mlp-1", "mlp-2"])
def test_every_head_dimension_and_tail(tmp_path, start):
    cases = [f"{start}-{tail}" for tail in (TAILS if start != "mlp-2" else TAILS[:1])]
    work(tmp_path, *cases)
    for case in cases:
        compare(tmp_path, case)


@pytest.mark.slow
def test_numbers_that_fail_in_one_process_stop_all_of_them(tmp_path):
    work(tmp_path, "broken")
    told = [(tmp_path / f"broken.{rank}.txt").read_text() for rank in (0, 1)]
    assert "in every process, found that it is not in another one" in told[0]
    assert told[1] == "planted"


def test_engines_that_see_all_data_are_refused():
    with pytest.raises(ConfigError, match=r"must have an engine that draws mini-batches .* found 2 with fisher"):
        ranks.check_processes(2, "fisher", full_batch=True)
    ranks.check_processes(1, "fisher", full_batch=True)
    ranks.check_processes(2, "adam", full_batch=False)


# ---------------------------------------------------------------------------------------------------- train.py

DDP = ["trainer=ddp", *SMALL, *ADAM]


def train(*arguments, out=None, check=True):
    done = subprocess.run(
        command(*arguments, out=out), capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT, timeout=3000
    )
    if check:
        assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.slow
def test_a_run_of_two_processes_leaves_what_one_leaves(tmp_path):
    """One copy of every file and of every line: the second process writes nothing."""
    train(*SMALL, *ADAM, out=tmp_path / "one")
    done = train(*DDP, out=tmp_path / "two")
    files = [
        sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file() and "events" not in p.name)
        for run in (tmp_path / "one", tmp_path / "two")
    ]
    assert files[0] == files[1]
    log = (tmp_path / "two" / "train.log").read_text().splitlines()
    assert len([line for line in log if line.startswith("run directory")]) == 1
    assert done.stdout.count("run directory") == 1
    assert len([line for line in log if "CT was halved" in line]) <= 1
    assert "LevytorchWarning" not in done.stderr
    one, two = (Recovery.load(tmp_path / name) for name in ("one", "two"))
    assert one.metrics["CT"] == two.metrics["CT"]


def start(*arguments, out):
    """A run and, once it has written a checkpoint, its second process."""
    process = subprocess.Popen(
        command(*arguments, out=out), cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 600
    while not (out / "checkpoints" / "last.ckpt").exists():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    (child,) = [p for p in psutil.Process(process.pid).children() if "train.py" in " ".join(p.cmdline())]
    return process, child


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_takes_the_others_along_and_the_run_resumes(tmp_path, rank):
    train(*DDP, out=tmp_path / "whole")
    process, child = start(*DDP, out=tmp_path / "killed")
    os.kill(process.pid if rank == 0 else child.pid, signal.SIGKILL)
    assert process.wait(timeout=120) != 0
    psutil.wait_procs([child], timeout=120)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert not (tmp_path / "killed" / "recovery.pt").exists()
    torch.load(tmp_path / "killed" / "checkpoints" / "last.ckpt", weights_only=True)
    train(f"resume={tmp_path / 'killed'}", "trainer=ddp")
    whole, resumed = Recovery.load(tmp_path / "whole"), Recovery.load(tmp_path / "killed")
    assert torch.equal(whole.theta, resumed.theta)
    assert resumed.tcf == whole.tcf
    assert [e["train/nll"] for e in resumed.history] == [e["train/nll"] for e in whole.history]


def launched(launcher, arguments, out):
    """Two processes as two machines would start them, each with one of its own; what each said."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    own = [*arguments, "trainer=ddp", "trainer.devices=1", "trainer.num_nodes=2", f"hydra.run.dir={out}"]
    processes = []
    for node in ("0", "1"):
        line, environment = [sys.executable, str(ROOT / "train.py"), *own], dict(ENVIRONMENT)
        if launcher == "torchrun":
            options = f"--nnodes 2 --nproc-per-node 1 --node-rank {node} --master-addr 127.0.0.1 --master-port {port}"
            line = [sys.executable, "-m", "torch.distributed.run", *options.split(), *line[1:]]
        else:  # what srun sets for each of its tasks
            environment |= {
                "SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "fit", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1",
                "SLURM_NNODES": "2", "SLURM_NODELIST": "127.0.0.1", "SLURM_PROCID": node, "SLURM_NODEID": node,
                "SLURM_LOCALID": "0", "MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1",
            }  # fmt: skip
        processes.append(
            subprocess.Popen(
                line, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    said = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    return said


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "srun"])
def test_two_machines_give_the_numbers_of_two_processes(tmp_path, launcher):
    """The launchers of docs/scaling.md, both machines being this one."""
    train(*DDP, out=tmp_path / "one")
    said = launched(launcher, [*SMALL, *ADAM], tmp_path / "two")
    assert "run directory" in said[0]
    assert "run directory" not in said[1]
    one, two = (Recovery.load(tmp_path / name) for name in ("one", "two"))
    torch.testing.assert_close(two.theta, one.theta, rtol=1e-9, atol=1e-9)
    assert two.tcf == pytest.approx(one.tcf, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trainer=ddp", "engine=adam", "data=file", "data.path=/nowhere.csv", "alpha=0.3"], "/nowhere.csv"),
        (["-m", "trainer=ddp", "engine=adam", "seed=0,1"], "one process per job"),
        (["trainer=ddp", "trainer.devices=0"], "trainer.devices"),
        (["trainer=ddp"], "several processes must have an engine that draws mini-batches"),
    ],
)
def test_refusals(tmp_path, arguments, words):
    places = [f"hydra.run.dir={tmp_path / 'run'}", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    done = train(*arguments, *places, check=False)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr


def test_processes_of_a_configuration():
    assert ranks.processes({"devices": 1, "num_nodes": 1}) == {}
    assert ranks.processes({"devices": 2, "num_nodes": 3}) == {"strategy": "ddp", "devices": 2, "num_nodes": 3}
    with pytest.raises(ConfigError, match=r"trainer\.num_nodes"):
        ranks.processes({"devices": 2, "num_nodes": 0})


def test_only_the_first_process_keeps_a_log(monkeypatch):
    for name in ("RANK", "SLURM_PROCID", "NODE_RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert ranks.is_first()
    assert ranks.quiet_arguments(["trainer=ddp"]) == ["trainer=ddp"]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert not ranks.is_first()
    assert "hydra.job_logging.root.handlers=[console]" in ranks.quiet_arguments(["trainer=ddp"])
    assert ranks.quiet_arguments(["seed=1"]) == ["seed=1"]  # a process of its own, whatever the environment says


def test_a_resumed_command_line_is_expanded_once(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"overrides": ["trainer=ddp", "+note=1"]}))
    once = resume.expand([f"resume={tmp_path}", "trainer=ddp", "beta=3"])
    assert once.count("+note=1") == 1
    child = [*once, "hydra.job.name=second"]  # what Lightning makes of it for the second process
    assert resume.expand(child) == child
