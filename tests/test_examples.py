"""The scripts of examples/ run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*arguments: str | Path, cwd: Path) -> str:
    places = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    environment = {**os.environ, "PYTHONPATH": places, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_example_is_run_here():
    names = {"own_data.py", "own_head.py", "own_law.py", "own_network.py"}
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == names


@pytest.mark.slow
def test_own_data(tmp_path):
    """alpha = 0.5 and D_o = 2 are found within five of their own standard errors."""
    said = run(ROOT / "examples" / "own_data.py", cwd=tmp_path)
    alpha, error = map(float, re.search(r"^alpha +([\d.]+) +([\d.]+)", said, re.M).groups())  # type: ignore[union-attr]
    assert abs(alpha - 0.5) < 5 * error < 0.4
    D_o, error = map(float, re.search(r"^D_o +([\d.]+) +([\d.]+)", said, re.M).groups())  # type: ignore[union-attr]
    assert abs(D_o - 2.0) < 5 * error < 1.0
    assert re.search(r"V\([\d.]+\) = [\d.]+ \+- [\d.]+", said)
    assert [path.name for path in tmp_path.iterdir()] == ["track.csv"]  # which the quickstart reads


@pytest.mark.slow
def test_own_head_and_callback(tmp_path):
    """Four standard errors: of b over 400 units of time sqrt(4 D_o / 400) = 0.12, of D_o and D_f below 0.05."""
    said = run(ROOT / "examples" / "own_head.py", cwd=tmp_path)
    amplitude, D_o, D_f = map(float, re.findall(r" ([\d.]+) \(", said))
    assert abs(amplitude - 2.0) < 0.5
    assert abs(D_o - 1.5) < 0.2
    assert abs(D_f - 1.0) < 0.2
    quiet = ["debug=default", "trainer.progress=false", "diagnostics=none", "logger=none", "beta=null"]
    said = run(ROOT / "train.py", "+callbacks.watch._target_=own_head.Watch", *quiet, cwd=tmp_path)
    assert re.search(r"^pass 1: -?[\d.]+ per pair$", said, re.M)


@pytest.mark.slow
def test_own_law(tmp_path):
    """Steps of 0.3 bias the frozen law's drift by several standard errors; the law that follows the drift does not."""
    said = run(ROOT / "examples" / "own_law.py", cwd=tmp_path)
    true = float(re.search(r"([\d.]+) is true", said).group(1))  # type: ignore[union-attr]
    (frozen, frozen_std), (flow, flow_std) = (
        (float(a), float(b)) for a, b in re.findall(r"([\d.]+) \+- ([\d.]+)", said)
    )
    assert abs(frozen - true) > 5 * frozen_std
    assert abs(flow - true) < 4 * flow_std
    quiet = ["debug=default", "trainer.progress=false", "diagnostics=none", "logger=none", "beta=null", "tail=none"]
    run(ROOT / "train.py", "law._target_=own_law.FlowLaw", *quiet, "hydra.run.dir=out", cwd=tmp_path)
    assert '"law": "flow"' in (tmp_path / "out" / "metrics.json").read_text()


@pytest.mark.slow
def test_own_network(tmp_path):
    """D_o is found within four of its own standard errors, which are below a tenth of it where it is small too."""
    said = run(ROOT / "examples" / "own_network.py", cwd=tmp_path)
    rows = [tuple(map(float, row)) for row in re.findall(r"= ([\d.]+) \+- ([\d.]+) \(true: ([\d.]+)\)", said)]
    assert len(rows) == 4
    for value, std, true in rows:
        assert abs(value - true) < 4 * std < 0.4 * true
