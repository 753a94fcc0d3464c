"""Scripts in processes of their own, which start within a second: forked from a server that has done the imports."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from multiprocessing.process import BaseProcess as Process
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    [
        "levytorch.runs.training",
        "levytorch.runs.evaluate",
        "levytorch.simulation",
        "lightning",
        "hydra.main",
        "torch.utils.tensorboard",
        "matplotlib.backends.backend_agg",
        "matplotlib.backends.backend_pdf",
        "polars",
        __name__,
    ]
)


def start(script: str, *arguments: str, cwd: Path = ROOT, said: str | os.PathLike[str] = os.devnull) -> Process:
    """A process of its own that runs a script as `python script arguments` would.

    What it says, on either stream, goes to the file `said`.
    """
    os.environ.update(ENVIRONMENT)  # inherited by the server when it starts
    process = _server.Process(target=_run, args=(str(ROOT / script), list(arguments), str(cwd), str(said)))
    process.start()
    return process


def _run(script: str, arguments: list[str], cwd: str, said: str) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also when the campaign runs in the background
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def run(script: str, *arguments: str, cwd: Path = ROOT) -> tuple[int | None, str]:
    """To whatever end: the exit status, and what was said."""
    with tempfile.TemporaryDirectory() as place:
        said = Path(place) / "said"
        process = start(script, *arguments, cwd=cwd, said=said)
        process.join(900)
        return process.exitcode, said.read_text(errors="surrogateescape")
