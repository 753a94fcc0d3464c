"""Real processes, killed at chosen moments, and what must hold afterwards. Used by the campaigns and by quick tests."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import yaml

from levytorch import Recovery, Trajectories, ValueFunction
from tests.faults import writers
from tests.processes import Process, start
from tests.sampling import dice

FAULTS = int(os.environ.get("LEVYTORCH_FAULTS", "3"))  # per kind
TINY = ["data.n_trajectories=60", "coefficients.n_basis=3", "law=frozen", "trainer.progress=false", "data.censor.CT=2"]
BARE = ["logger=none", "callbacks.figures.files=[]", "beta=null"]  # what takes most of the time of a small run
SURVIVED: Counter[str] = Counter()  # what the terminal summary shows


def run_quietly(script: str, *arguments: str) -> None:
    """To the end."""
    process = start(script, *arguments)
    process.join(900)
    assert process.exitcode == 0, f"{script} {' '.join(arguments)}: exit status {process.exitcode}"


def stop_when(process: Process, sign: Callable[[], bool], delay: float = 0.0, signum: int = signal.SIGKILL) -> bool:
    """Send a signal `delay` seconds after a sign; False when the process had ended by then."""
    assert process.pid is not None
    deadline = time.monotonic() + 300
    while not sign() and process.is_alive():
        assert time.monotonic() < deadline, "the sign never came"
        time.sleep(0.002)
    process.join(delay)
    alive = process.is_alive()
    if alive:
        os.kill(process.pid, signum)
    process.join(300)
    return alive and (process.exitcode == -signum if signum == signal.SIGKILL else process.exitcode != 0)


def check_whole(directory: Path) -> list[str]:
    """Load everything a run or an evaluation has left; returns the names. Temporary files are nobody's results."""
    seen = []
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if not path.is_file() or path.name.endswith(".tmp") or any(part.endswith(".tmp") for part in path.parts):
            continue
        seen.append(name)
        if path.name == "recovery.pt":
            Recovery.load(path)
        elif path.suffix == ".pt":
            ValueFunction.load(path)
        elif path.suffix == ".ckpt":
            assert "state_dict" in torch.load(path, weights_only=True)
        elif path.suffix == ".json":
            assert path.read_text().endswith("}\n")
            json.loads(path.read_text())
        elif path.suffix == ".csv":
            text = path.read_text()
            assert text.endswith("\n")
            rows = list(csv.reader(text.splitlines()))
            assert len({len(row) for row in rows}) == 1
            assert len(rows) > 1
        elif path.suffix == ".yaml" and path.name != "hparams.yaml":  # TensorBoard's own, which nothing reads
            assert yaml.safe_load(path.read_text()) is not None
        elif path.suffix == ".png":
            assert path.read_bytes()[-8:-4] == b"IEND"
        elif path.suffix == ".pdf":
            assert path.read_bytes().rstrip().endswith(b"%%EOF")
    return seen


def check_same(run_directory: Path, reference: Path, *, exact: bool) -> None:
    """The numbers of a run that was never stopped."""
    found, wanted = Recovery.load(run_directory), Recovery.load(reference)
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(found.theta, wanted.theta, **tolerance)
    torch.testing.assert_close(found.covariance, wanted.covariance, **({} if not exact else tolerance))
    pairs = [(found.tcf, wanted.tcf), (found.log_likelihood, wanted.log_likelihood)]
    pairs += [(a["train/nll"], b["train/nll"]) for a, b in zip(found.history, wanted.history, strict=True)]
    for a, b in pairs:
        assert a == b if exact else abs(a - b) <= 1e-10 * max(1.0, abs(b))
    assert found.metrics["steps"] == wanted.metrics["steps"]
    assert found.converged == wanted.converged
    metrics = [json.loads((d / "metrics.json").read_text()) for d in (run_directory, reference)]
    assert metrics[0].keys() == metrics[1].keys()
    assert metrics[0]["warnings"] == metrics[1]["warnings"]


def check_content(kind: str, target: Path, number: int | None = None) -> None:
    """That a file of `writers` is one of its two contents, from end to end."""
    if kind.startswith("simulation"):
        found = Trajectories.from_file(target)
        first = int(found.x[0])
        np.testing.assert_array_equal(found.x, writers.content(kind, first).x)
    elif kind == "recovery.pt":
        recovery = Recovery.load(target)
        first = int(recovery.theta[0])
        assert torch.equal(recovery.covariance.diagonal(), recovery.theta)
    else:
        value = ValueFunction.load(target)
        first = int(value.coefficients[0])
        assert bool((value.covariance_factor == first).all())
    assert number in (None, first)


def survived(kind: str, count: int = 1) -> None:
    """Told at once (with -s) and in the summary."""
    SURVIVED[kind] += count
    if count:
        print(f"{time.strftime('%H:%M:%S')} {SURVIVED[kind]:5d}  {kind}", flush=True)


def moments(kind: str, count: int = FAULTS) -> list[float]:
    """Seeded places in [0, 1) of a run at which to kill it."""
    source = dice(kind)
    return [source.random() for _ in range(count)]
