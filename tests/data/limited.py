"""A fit under a hard limit on the process's own memory, run as a script:

    python -m tests.data.limited <file> <on_disk directory> <engine> <MiB> <result>

The limit (RLIMIT_DATA, kept by the kernel) is on private memory beyond what the libraries take; mapped files do not
count. Under it the fit is tried in memory, then on disk; then, without it, in memory again. The result is a JSON file.
"""

from __future__ import annotations

import gc
import json
import resource
import sys
import threading
import time
from pathlib import Path

import torch

from levytorch import Dynamics, simulate
from levytorch.data import FromFile
from levytorch.errors import LevytorchError
from tests.training.problems import frozen_recover as recover

OPTIONS = {
    "fisher": {"tail": {"CT": 8.0, "TRT": 20.0}},
    "adam": {"engine": "adam", "max_steps": 300, "window": 200, "tail": {"CT": 8.0, "TRT": 20.0, "start": 50}},
}


def status(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return 1024 * int(line.split()[1])


class Peak(threading.Thread):
    """The most private memory (resident, not of files) and the most resident memory seen while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before, self.anonymous, self.resident, self.stop = status("RssAnon"), 0, 0, False

    def run(self) -> None:
        while not self.stop:
            self.anonymous = max(self.anonymous, status("RssAnon"))
            self.resident = max(self.resident, status("VmRSS"))
            time.sleep(0.005)


def warm_up(directory: Path) -> None:
    """Libraries, compiled kernels and pools of threads are not what the limit is about."""
    small = simulate(Dynamics.named("constant"), 200, 40, 1 / 40)
    for suffix in (".npz", ".parquet"):
        small.to_file(directory / f"small{suffix}")
        source = FromFile(directory / f"small{suffix}", on_disk=directory / "small")()
    for options in OPTIONS.values():
        recover(source.transitions, alpha=0.3, n_basis=3, **{**options, "max_steps": 3})


def attempt(file: str, engine: str, on_disk: str | None) -> dict[str, object]:
    """One reading and one fit, with what they gave and took."""
    peak = Peak()
    peak.start()
    began = time.perf_counter()
    source = FromFile(file, dt=None if file.endswith(".parquet") else 1 / 40, on_disk=on_disk)()
    built = time.perf_counter()
    found = recover(source.transitions, alpha=0.3, n_basis=3, **OPTIONS[engine])
    fitted = time.perf_counter()
    facts = {"theta": found.theta.tolist(), "tcf": found.tcf, "log_likelihood": found.log_likelihood}
    facts |= {"steps": found.metrics["steps"], "converged": found.converged, "mu": float(source.transitions.mu)}
    facts |= {"seconds_read": built - began, "seconds_fit": fitted - built}
    facts |= {"describe": source.transitions.describe(), "seconds_describe": time.perf_counter() - fitted}
    peak.stop = True
    peak.join()
    return facts | {"anonymous": peak.anonymous - peak.before, "resident": peak.resident}


def main(file: str, on_disk: str, engine: str, limit: str, result: str) -> None:
    warm_up(Path(result).parent)
    facts: dict[str, object] = {}
    whole = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (status("VmData") + int(limit) * 2**20, whole[1]))
    try:
        attempt(file, engine, None)
    except LevytorchError as error:
        facts["refusal"] = f"{type(error).__name__}: {error}"
    gc.collect()
    facts["disk"] = attempt(file, engine, on_disk)
    resource.setrlimit(resource.RLIMIT_DATA, whole)
    facts["memory"] = attempt(file, engine, None)
    Path(result).write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
