"""Processes that a run starts: none outlives the first one, and a foreign run directory cannot ask for any."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from levytorch.errors import ConfigError
from levytorch.runs import resume

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
# the first process starts a second one as Lightning does, and says its number
FIRST = """
import os, subprocess, sys, time
from levytorch import parent
parent.announce()
code = "import time; {before}; from levytorch import startup; startup.prepare_process(); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ, LOCAL_RANK="1"))
print(child.pid, flush=True)
time.sleep(60)
"""


def gone_within(processes: list[psutil.Process], seconds: float) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return all(p.status() == psutil.STATUS_ZOMBIE for p in alive if p.is_running())


@pytest.mark.long
@pytest.mark.parametrize("before", ["pass", "time.sleep(1.0)"])
def test_a_second_process_ends_with_the_first(before):
    """Also where the first one is gone before the second one has looked for it."""
    first = subprocess.Popen(
        [sys.executable, "-c", FIRST.format(before=before)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    child = psutil.Process(int(first.stdout.readline()))
    time.sleep(0.3)
    assert child.is_running()
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert gone_within([child], 5.0)
    first.stdout.close()


@pytest.mark.long
def test_a_process_without_such_a_parent_goes_on():
    code = "from levytorch import startup; startup.prepare_process(); import time; time.sleep(0.8)"
    for more in ({}, {"LOCAL_RANK": "1"}, {"LEVYTORCH_PARENT": "1"}):
        assert subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT | more).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.0, 0.5, 1.0, 3.0])
def test_no_process_is_left_when_the_first_one_is_killed_during_the_start(after, tmp_path):
    """kill -9, so many seconds after the second process has appeared."""
    command = [sys.executable, str(ROOT / "train.py"), "trainer=ddp", "engine=adam", "engine.max_steps=100000"]
    command += ["data.n_trajectories=50", "coefficients.n_basis=3", "logger=none", f"hydra.run.dir={tmp_path}/run"]
    first = subprocess.Popen(
        command, env=ENVIRONMENT, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    family: list[psutil.Process] = []
    deadline = time.monotonic() + 300
    while not family:
        assert first.poll() is None, "the run ended before it had a second process"
        assert time.monotonic() < deadline
        family = [p for p in psutil.Process(first.pid).children(recursive=True) if "train.py" in " ".join(p.cmdline())]
        time.sleep(0.02)
    time.sleep(after)
    family = psutil.Process(first.pid).children(recursive=True)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert gone_within(family, 5.0)


@pytest.mark.parametrize(
    "override",
    ["trainer.devices=64", "++trainer.devices=64", "trainer=ddp", "trainer.num_nodes=2", "+trainer.strategy=ddp"],
)
def test_a_run_directory_cannot_ask_for_processes(override, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"overrides": [override, "seed=1"], "defaults": 2}))
    with pytest.raises(ConfigError, match=r"must be requested on your own command line, found .*; repeat it there"):
        resume.expand([f"resume={tmp_path}"])
    if override != "+trainer.strategy=ddp":  # which a run directory may not name at all
        assert override in resume.expand([f"resume={tmp_path}", override])
    (tmp_path / "run.json").write_text('{"overrides": ["trainer.devices=1", "trainer=default"], "defaults": 2}')
    assert "trainer.devices=1" in resume.expand([f"resume={tmp_path}"])
