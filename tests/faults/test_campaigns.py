"""Campaigns of kills: LEVYTORCH_FAULTS=20 python -m pytest tests/faults -m slow -s (the default is 3 of each kind).

Every kill is SIGKILL at a seeded place of the run. After it everything that exists loads whole, and `resume=` (after
one kill or several in a row) ends with the numbers of a run that was never stopped.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import writers
from tests.faults.processes import (
    BARE,
    FAULTS,
    SURVIVED,
    TINY,
    check_content,
    check_same,
    check_whole,
    moments,
    run_quietly,
    start,
    stop_when,
    survived,
)

pytestmark = pytest.mark.slow
RUNS = {
    "fisher": ["engine=fisher", "engine.tolerance=1e-13"],
    "lbfgs": ["engine=lbfgs", "engine.iterations=1", "engine.tolerance=1e-9"],
    "adam": ["engine=adam", "engine.max_steps=600", "engine.window=200", "tail.start=100"],
}
EVERY = {"adam": ["callbacks.checkpoints.every=50"]}


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """Runs that nobody stops, made when they are first asked for, and the seconds from the first sign to the end."""
    base, known = tmp_path_factory.mktemp("references"), {}

    def reference(kind: str, *more: str) -> tuple[Path, float]:
        key = "-".join([kind, *more])
        if key not in known:
            place = base / str(len(known))
            process = start("train.py", *TINY, *BARE, *RUNS[kind], *more, f"hydra.run.dir={place}")
            while not (place / "run.json").exists() and process.is_alive():
                time.sleep(0.001)
            began = time.monotonic()
            process.join(600)
            assert process.exitcode == 0
            known[key] = place, time.monotonic() - began
        return known[key]

    return reference


def attempts(kind: str) -> Iterator[tuple[int, Path]]:
    """Numbers and fresh names until enough faults of this kind have been survived."""
    for number in range(20 + 5 * FAULTS):
        if SURVIVED[kind] >= FAULTS:
            return
        with tempfile.TemporaryDirectory() as place:
            yield number, Path(place) / "run"
    pytest.fail(f"{kind}: the process ended before it could be killed, again and again")


def chain(places: list[float], directory: Path, settings: list[str], length: float) -> int:
    """Start, kill, resume, kill, ... at the given places, then resume to the end. Returns the number of kills."""
    kills, arguments = 0, [*settings, f"hydra.run.dir={directory}"]
    for place in places:
        lock = directory / ".lock"  # written by every process that has made the directory its own
        before = lock.read_text() if lock.exists() else ""

        def claimed(lock: Path = lock, before: str = before) -> bool:
            return lock.exists() and lock.read_text() not in ("", before)

        kills += stop_when(start("train.py", *arguments), claimed, place * length)
        check_whole(directory)
        if (directory / "run.json").exists():
            arguments = [f"resume={directory}"]
    run_quietly("train.py", *arguments)
    return kills


@pytest.mark.parametrize("engine", RUNS)
def test_training_killed_anywhere(engine, references):
    """From the moment the process has its directory (data, fit, report) to its end; up to four kills in one run."""
    kind, settings = f"training, {engine}, killed at any moment", EVERY.get(engine, [])
    reference, length = references(engine, *settings)
    for number, directory in attempts(kind):
        places = moments(f"{engine}{number}", 1 + number % 4)
        kills = chain(places, directory, [*TINY, *BARE, *RUNS[engine], *settings], length)
        check_same(directory, reference, exact=engine == "adam")
        check_whole(directory)
        survived(kind, kills)


@pytest.mark.parametrize("engine", RUNS)
def test_killed_while_a_checkpoint_is_written(engine, references):
    """The sign is the temporary file itself."""
    kind = f"training, {engine}, killed while a checkpoint is written"
    settings = ["callbacks.checkpoints.every=1", "engine.max_steps=100"] if engine == "adam" else []
    reference, _ = references(engine, *settings)
    for number, directory in attempts(kind):
        arguments = [*TINY, *BARE, *RUNS[engine], *settings, f"hydra.run.dir={directory}"]
        kills = 0
        for place in moments(f"writing {engine}{number}", 3):
            old = {p.name for p in (directory / "checkpoints").glob("*.tmp")}
            process = start("train.py", *arguments)
            kills += stop_when(process, lambda: writing(directory, old, int(place * 4)), place * 0.002)  # noqa: B023
            check_whole(directory)
            arguments = [f"resume={directory}"]
        run_quietly("train.py", *arguments)
        check_same(directory, reference, exact=engine == "adam")
        assert not [p for p in (directory / "checkpoints").iterdir() if p.name.endswith(".tmp")]
        survived(kind, kills)


def writing(directory: Path, seen: set[str], skip: int) -> bool:
    """Whether a temporary checkpoint is there, after `skip` others."""
    names = os.listdir(directory / "checkpoints") if (directory / "checkpoints").exists() else []
    fresh = {name for name in names if name.endswith(".tmp")} - seen
    seen |= fresh if len(seen) < skip else set()
    return bool(fresh - seen)


def test_killed_during_the_report(references):
    """After the fit: tables, figures and the value function are written then."""
    kind, drawn = "training, killed during the report", ["callbacks.figures.files=[png]"]
    reference, length = references("fisher", *drawn, "beta=0.1")
    for number, directory in attempts(kind):
        process = start("train.py", *TINY, *BARE, *RUNS["fisher"], *drawn, "beta=0.1", f"hydra.run.dir={directory}")
        place = moments(f"report{number}", 1)[0]
        killed = stop_when(process, (directory / "recovery.pt").exists, place * length)
        check_whole(directory)
        run_quietly("train.py", f"resume={directory}")
        check_same(directory, reference, exact=False)
        assert set(check_whole(reference)) <= set(check_whole(directory))
        survived(kind, killed)


def test_killed_before_the_first_checkpoint(references):
    kind = "training, killed before the first checkpoint"
    reference, _ = references("lbfgs")
    for number, directory in attempts(kind):
        process = start("train.py", *TINY, *BARE, *RUNS["lbfgs"], f"hydra.run.dir={directory}")
        killed = stop_when(process, (directory / "run.json").exists, moments(f"early{number}", 1)[0])
        check_whole(directory)
        early = not (directory / "checkpoints" / "last.ckpt").exists()
        run_quietly("train.py", f"resume={directory}")
        check_same(directory, reference, exact=False)
        survived(kind, killed and early)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("engine", ["fisher", "adam"])
def test_asked_to_stop(engine, signum, references):
    kind, settings = f"training, {engine}, {signal.Signals(signum).name}", EVERY.get(engine, [])
    reference, length = references(engine, *settings)
    for number, directory in attempts(kind):
        process = start("train.py", *TINY, *BARE, *RUNS[engine], *settings, f"hydra.run.dir={directory}")
        place = moments(f"{kind}{number}", 1)[0]
        stopped = stop_when(process, (directory / "run.json").exists, place * length, signum)
        if stopped:
            assert process.exitcode == 128 + signum
            assert f"resume={directory}" in (directory / "train.log").read_text()
        check_whole(directory)
        run_quietly("train.py", f"resume={directory}")
        check_same(directory, reference, exact=engine == "adam")
        survived(kind, stopped)


@pytest.mark.parametrize("kind", writers.KINDS)
def test_killed_while_writing_a_file(kind, tmp_path):
    """to_file, Recovery.save and ValueFunction.save in a loop: what is there is one of the two contents."""
    target = tmp_path / kind
    for place in moments(f"writer {kind}"):
        target.unlink(missing_ok=True)
        (tmp_path / "ready").unlink(missing_ok=True)
        process = start("tests/faults/writers.py", kind, str(target))
        assert stop_when(process, (tmp_path / "ready").exists, 0.3 * place)
        if target.exists():
            check_content(kind, target)
        survived(f"killed while writing {kind}")


def test_killed_during_evaluation(references, tmp_path):
    """The directory of results is complete or not there, and the same command then works."""
    kind, (trained, _) = "evaluation, killed at any moment", references("fisher")
    whole, out, plain = tmp_path / "whole", tmp_path / "out", ["tensorboard=false", "n_modes=33"]
    began = time.monotonic()
    run_quietly("evaluate.py", f"run={trained}", f"out={whole}", *plain)
    length = time.monotonic() - began
    wanted = {name: (whole / name).read_bytes() for name in check_whole(whole) if not name.endswith("pdf")}
    for number, _ in attempts(kind):
        process = start("evaluate.py", f"run={trained}", f"out={out}", *plain)
        # every other one while the files are written
        sign = (lambda: True) if number % 2 else (lambda: bool(list(tmp_path.glob(".out*.tmp"))))
        killed = stop_when(process, sign, moments(f"evaluation{number}", 1)[0] * length)
        if number % 5 == 0 and not out.exists():
            run_quietly("evaluate.py", f"run={trained}", f"out={out}", *plain)
        if out.exists():
            names = [name for name in check_whole(out) if not name.endswith(("pdf", "yaml"))]
            assert names == [name for name in wanted if not name.endswith("yaml")]
            for name in (name for name in names if not name.endswith("pt")):
                # the page tells the command, which names its directory
                found = (out / name).read_bytes().replace(f"out={out}".encode(), f"out={whole}".encode())
                assert found == wanted[name], name
            shutil.rmtree(out)
        for rest in tmp_path.glob(".out*.tmp"):
            shutil.rmtree(rest)
        survived(kind, killed)
