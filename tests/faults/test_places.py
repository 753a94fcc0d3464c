"""Who may write where: runs started at the same instant, full and read-only disks (LEVYTORCH_FAULTS of each kind)."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.processes import (
    BARE,
    FAULTS,
    TINY,
    check_same,
    check_whole,
    run_quietly,
    survived,
)
from tests.processes import run, start

pytestmark = pytest.mark.slow
FISHER = [*TINY, *BARE, "engine=fisher"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("reference") / "run"
    run_quietly("train.py", *FISHER, f"hydra.run.dir={place}")
    return place


def both(*arguments: str) -> list[int | None]:
    """Two processes with one command line, started at the same instant; their exit statuses."""
    processes = [start("train.py", *arguments) for _ in range(2)]
    for process in processes:
        process.join(600)
    return sorted(process.exitcode for process in processes)


def test_two_runs_at_the_same_instant_have_a_directory_each(reference, tmp_path):
    for number in range(FAULTS):
        pattern = f"{tmp_path}/{number}/${{now:%H-%M-%S-%f}}"  # as in conf/train.yaml
        assert both(*FISHER, f"hydra.run.dir='{pattern}'") == [0, 0]
        directories = list((tmp_path / str(number)).iterdir())
        assert len(directories) == 2
        for directory in directories:
            check_same(directory, reference, exact=True)
        survived("two runs at the same instant")


def test_of_two_runs_in_one_directory_one_is_refused(reference, tmp_path):
    for number in range(FAULTS):
        directory = tmp_path / str(number)
        assert both(*FISHER, f"hydra.run.dir={directory}") == [0, 1]
        check_same(directory, reference, exact=True)
        check_whole(directory)
        assert (directory / "train.log").read_text().count("run directory:") == 1
        survived("two runs in one directory, one refused")


def test_of_two_resumes_of_one_run_one_is_refused(reference, tmp_path):
    directory = tmp_path / "run"
    run_quietly("train.py", *FISHER, f"hydra.run.dir={directory}")
    for _ in range(FAULTS):
        first = start("train.py", f"resume={directory}")
        before = (directory / ".lock").read_text()
        while (directory / ".lock").read_text() in ("", before) and first.is_alive():
            time.sleep(0.002)
        second = start("train.py", f"resume={directory}")
        for process in (first, second):
            process.join(600)
        # the second may have come when the first had ended
        assert (first.exitcode, second.exitcode) in ((0, 1), (0, 0))
        check_same(directory, reference, exact=False)
        survived("two resumes of one run, one refused", second.exitcode == 1)


def test_two_evaluations_with_one_name(reference, tmp_path):
    for number in range(FAULTS):
        out = tmp_path / str(number) / "out"
        arguments = [f"run={reference}", f"out={out}", "tensorboard=false", "n_modes=33"]
        processes = [start("evaluate.py", *arguments) for _ in range(2)]
        for process in processes:
            process.join(600)
        kept = sorted(out.parent.iterdir())
        assert len(kept) == sum(process.exitcode == 0 for process in processes) >= 1
        for directory in kept:
            assert "metrics.json" in check_whole(directory)
        survived("two evaluations with one name")


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A file system of its own, with room for a run (0.4 MB with the temporary files)."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)


def fill(disk: Path, free: int) -> Path:
    """Leave so many bytes; returns the file to delete to have the room back."""
    room, ballast = os.statvfs(disk), disk / "ballast"
    ballast.write_bytes(b"\0" * max(0, room.f_bavail * room.f_frsize - free))
    return ballast


def check_refusal(status: int | None, said: str) -> None:
    assert status not in (0, None)
    assert "No space left on device" in said
    assert "Traceback" not in said


def test_a_full_disk(reference, disk, tmp_path):
    """At any amount of free space: one sentence, nothing half written, and the run goes on when there is room."""
    for free in range(0, 340_000, 340_000 // FAULTS + 1):
        directory, ballast = disk / f"run{free}", fill(disk, free)
        check_refusal(*run("train.py", *FISHER, f"hydra.run.dir={directory}"))
        check_whole(directory)
        ballast.unlink()
        again = (directory / "run.json").exists()
        run_quietly("train.py", *([f"resume={directory}"] if again else [*FISHER, f"hydra.run.dir={directory}"]))
        check_same(directory, reference, exact=False)
        check_whole(directory)
        subprocess.run(["rm", "-r", str(directory)], check=True)
        survived("disk full during a run")


def test_a_full_disk_leaves_earlier_results(reference, disk, tmp_path):
    """A finished run resumed, and an evaluation, where nothing more can be written."""
    directory, out = disk / "run", disk / "out"
    run_quietly("train.py", *FISHER, f"hydra.run.dir={directory}")
    before, curves = check_whole(directory), (directory / "curves.csv").read_bytes()
    for free in range(0, 70_000, 70_000 // FAULTS + 1):
        ballast = fill(disk, free)
        check_refusal(*run("train.py", f"resume={directory}"))
        assert set(before) <= set(check_whole(directory))
        check_same(directory, reference, exact=False)
        assert (directory / "curves.csv").read_bytes() == curves
        survived("disk full when a finished run is resumed")
        check_refusal(*run("evaluate.py", f"run={reference}", f"out={out}", "n_modes=33"))
        assert not out.exists()
        survived("disk full during an evaluation")
        ballast.unlink()
        for rest in disk.glob(".out*.tmp"):
            shutil.rmtree(rest)


def test_a_read_only_disk(reference, disk, tmp_path):
    remount(disk, "ro")
    refused = [
        run("train.py", *FISHER, f"hydra.run.dir={disk}/run"),
        run("train.py", "-m", "seed=0,1", *FISHER, f"hydra.sweep.dir={disk}/sweep"),
        run("evaluate.py", f"run={reference}", f"out={disk}/out"),
    ]
    remount(disk, "rw")
    for status, sentence in refused:
        assert status != 0
        assert "read-only" in sentence
        assert len(sentence.strip().splitlines()) == 1
        survived("read-only directory")
    assert list(disk.iterdir()) == []
