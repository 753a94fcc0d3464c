"""Mini-batches on an accelerator: a step reads no value and leaves no tensor on the CPU."""

import subprocess
import sys

import pytest

from tests.training.fake_gpu import HEADS


@pytest.mark.long
def test_a_step_on_a_fake_gpu_leaves_nothing_on_the_cpu():
    # in a process of its own: torch knows one device of that kind, for good
    found = subprocess.run(
        [sys.executable, "-m", "tests.training.fake_gpu"], capture_output=True, text=True, check=False, timeout=600
    )
    assert found.returncode == 0, found.stderr
    lines = [line.split("|") for line in found.stdout.splitlines()]
    assert lines == [[name, step, "gpu:0", "True", "[]"] for name in HEADS for step in "01"]
