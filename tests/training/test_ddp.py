"""Several processes on one fit: the numbers of one process, the same state on all ranks, nobody left waiting."""

import itertools
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
EVERYTHING = [
    *(f"{engine}-{head}-{dim}-{tail}" for engine, head, dim, tail in itertools.product(
        ("fisher", "lbfgs", "adam"), ("fourier", "mlp"), (1, 2), TAILS
    ) if (engine, head) != ("fisher", "mlp")),
    *("fisher-fourier-1-learn", "fisher-fourier-1-halved", "fisher-fourier-1-auto"),
]  # fmt: skip


def work(directory, *cases, timeout=3000):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.training.ddp_worker", str(directory), *cases],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def compare(directory, case):
    """One process against two, and the two ranks against each other."""
    first, second = (torch.load(directory / f"{case}.{rank}.pt") for rank in (0, 1))
    alone, both = first["alone"], first["both"]
    # every rank computed the start, mu, CT and preliminary fits for itself, and logged what it used at each step
    assert torch.equal(alone["theta"], second["alone"]["theta"])
    assert torch.equal(both["theta"], second["both"]["theta"])
    assert both["history"] == second["both"]["history"]
    assert len(both["history"]) >= 4
    assert both["steps"] == alone["steps"]
    # relative to the standard error where there is one (Fourier heads), absolute otherwise
    scale = torch.ones(()) if alone["std"] is None else alone["std"].clamp(min=1e-12)
    assert float(((alone["theta"] - both["theta"]).abs() / scale).max()) < 1e-8
    assert abs(alone["tcf"] - both["tcf"]) < 1e-12
    assert abs(alone["log_likelihood"] - both["log_likelihood"]) < 1e-8
    for here, there in zip(alone["history"], both["history"]):
        assert here == pytest.approx(there, rel=1e-9, abs=1e-9)
    if case.endswith("tcf"):
        assert max(entry["tail/TCF"] for entry in both["history"]) > 0


@pytest.mark.long
def test_two_processes_give_the_numbers_of_one(tmp_path):
    case = "fisher-fourier-1-tcf"  # every other one below
    work(tmp_path, case)
    compare(tmp_path, case)


@pytest.mark.slow
@pytest.mark.parametrize("start", [case.rsplit("-", 1)[0] for case in EVERYTHING[:: len(TAILS)]][:10])
def test_every_engine_head_dimension_and_tail(tmp_path, start):
    cases = [case for case in EVERYTHING if case.rsplit("-", 1)[0] == start]
    work(tmp_path, *cases)
    for case in cases:
        compare(tmp_path, case)


@pytest.mark.slow
@pytest.mark.parametrize("tail", TAILS)
def test_lattices_and_smoothing_of_two_processes_are_those_of_one(tmp_path, tail):
    """A lattice that two ranks add up is that of one process but for the order of its sums: to 1e-10."""
    cases = [f"{kind}-fourier-1-{tail}" for kind in ("lattice", "given", "auto")]
    work(tmp_path, *cases)
    for case in cases:
        compare(tmp_path, case)
    for case in cases[:2]:
        found = torch.load(tmp_path / f"{case}.0.pt")
        alone, both = found["alone"], found["both"]
        assert float((alone["theta"] - both["theta"]).abs().max()) < 1e-10
        assert float((alone["std"] - both["std"]).abs().max()) < 1e-10
        assert abs(alone["log_likelihood"] / both["log_likelihood"] - 1) < 1e-10
        assert abs(alone["tcf"] - both["tcf"]) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fisher", "lbfgs", "adam"])
def test_numbers_that_fail_on_one_rank_stop_all_of_them(tmp_path, engine):
    work(tmp_path, f"broken-{engine}")
    told = [(tmp_path / f"broken-{engine}.{rank}.txt").read_text() for rank in (0, 1)]
    assert told[0] == told[1] == "SharedError: planted (rank 1 of 2)"


# ---------------------------------------------------------------------------------------------------- train.py

DDP = ["trainer=ddp", *SMALL]
ENGINES = {
    "fisher": ["engine=fisher", "engine.tolerance=1e-13"],
    "lbfgs": ["engine=lbfgs", "engine.iterations=1", "engine.tolerance=1e-9"],
    "adam": ADAM,
}


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
    train(*SMALL, out=tmp_path / "one")
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
    torch.testing.assert_close(two.theta, one.theta, rtol=1e-9, atol=1e-9)
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
@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_rank_takes_the_others_along_and_the_run_resumes(tmp_path, engine, rank):
    arguments = [*DDP, *ENGINES[engine]]
    train(*arguments, out=tmp_path / "whole")
    process, child = start(*arguments, out=tmp_path / "killed")
    os.kill(process.pid if rank == 0 else child.pid, signal.SIGKILL)
    assert process.wait(timeout=120) != 0
    psutil.wait_procs([child], timeout=120)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert not (tmp_path / "killed" / "recovery.pt").exists()
    torch.load(tmp_path / "killed" / "checkpoints" / "last.ckpt", weights_only=True)
    train(f"resume={tmp_path / 'killed'}", "trainer=ddp")
    whole, resumed = Recovery.load(tmp_path / "whole"), Recovery.load(tmp_path / "killed")
    if engine == "adam":
        assert torch.equal(whole.theta, resumed.theta)
    torch.testing.assert_close(resumed.theta, whole.theta, rtol=1e-10, atol=1e-10)
    assert resumed.tcf == pytest.approx(whole.tcf, abs=1e-12)
    assert [e["train/nll"] for e in resumed.history] == pytest.approx(
        [e["train/nll"] for e in whole.history], rel=0 if engine == "adam" else 1e-10, abs=0
    )


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
def test_two_machines_give_the_numbers_of_one(tmp_path, launcher):
    """The launchers of docs/scaling.md, both machines being this one."""
    train(*SMALL, out=tmp_path / "one")
    said = launched(launcher, SMALL, tmp_path / "two")
    assert "run directory" in said[0]
    assert "run directory" not in said[1]
    one, two = (Recovery.load(tmp_path / name) for name in ("one", "two"))
    assert float(((two.theta - one.theta).abs() / one.covariance.diagonal().sqrt()).max()) < 1e-8
    assert two.tcf == pytest.approx(one.tcf, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trainer=ddp", "data=file", "data.path=/nowhere.csv", "alpha=0.3"], "/nowhere.csv"),
        (["-m", "trainer=ddp", "seed=0,1"], "one process per job"),
        (["trainer=ddp", "trainer.devices=0"], "trainer.devices"),
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


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_shards_cover_everything_once(world):
    rows = [row for rank in range(world) for row in range(100)[ranks.Ranks(rank, world).shard(100)]]
    assert rows == list(range(100))


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
