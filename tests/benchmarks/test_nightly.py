"""The run of all slow tests goes on after failures and tells them; skips that nobody allowed are failures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.nightly import FileResult, page, run_file
from tests import sampling, skips

ROOT = Path(__file__).parents[2]
SLOW = """
import os, pytest
pytestmark = pytest.mark.slow
def test_good(): pass
def test_bad(): assert 1 == 2, "one is not | two"
@pytest.mark.skip(reason="not today")
def test_skipped(): pass
"""


@pytest.mark.long
def test_results_of_a_file_are_kept_and_told(tmp_path):
    file = tmp_path / "test_some.py"
    file.write_text(SLOW)
    found = run_file(str(file), tmp_path)
    assert (found.passed, found.skipped, [test for test, _ in found.failures]) == (1, 1, [f"{file}::test_bad"])
    file.write_text("")  # the results are read, not made again
    assert run_file(str(file), tmp_path) == found
    text = page([found, FileResult("other.py", passed=3)], {}, {"commit": "abc"})
    assert "- 6 tests: 4 passed, 1 skipped; **1 failed, 1 without a remark**" in text
    assert "one is not \\| two" in text
    assert "1 failed, 0 without a remark" in page([found], {f"{file}::test_bad": "arithmetic"}, {})


@pytest.mark.long
def test_a_process_that_dies_or_hangs_is_one_line_of_the_page(tmp_path):
    file = tmp_path / "test_dies.py"
    file.write_text("import os, pytest\n@pytest.mark.slow\ndef test_it(): os._exit(3)\n")
    assert "the process died" in run_file(str(file), tmp_path).failures[0][1]
    file.write_text("import time, pytest\n@pytest.mark.slow\ndef test_it(): time.sleep(60)\n")
    assert run_file(str(file), tmp_path, limit=2.0).failures == [(str(file), "did not end within 2 s")]


def run_with_our_conftest(file: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider", *options, str(file)],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout


@pytest.mark.long
def test_a_skip_that_is_not_listed_fails(tmp_path):
    file = tmp_path / "test_some.py"
    file.write_text(
        "import pytest\n@pytest.mark.skip(reason='no table')\ndef test_a(): pass\n"
        "def test_b(): pytest.importorskip('no_such_module')\n"
        "@pytest.mark.xfail\ndef test_c(): assert False\n"
    )
    said = run_with_our_conftest(file)
    assert "1 failed, 1 xfailed, 1 error" in said
    assert "must not be skipped unless tests/skips.py lists it, found Skipped: no table" in said
    file.write_text("import pytest\npytest.importorskip('no_such_module')\n")
    assert "1 error" in run_with_our_conftest(file)


def test_listed_skips_are_tests_of_ours():
    for nodeid in skips.ALLOWED:
        file, _, name = nodeid.partition("::")
        assert f"def {name}" in (ROOT / file).read_text()
        assert skips.may_skip(f"{nodeid}[1]")


@pytest.mark.long
def test_a_sample_is_another_one_for_every_commit(tmp_path, monkeypatch):
    orders = []
    for commit in ("a", "a", "b"):
        monkeypatch.setattr(sampling, "SAMPLE", commit)
        orders.append((sorted("abcdefgh", key=sampling.order), sampling.dice("kind").random(), sampling.seed(1)))
    assert orders[0] == orders[1] != orders[2]
    monkeypatch.setattr(sampling, "SAMPLE", "")
    assert sampling.seed(7) == 7
    file = tmp_path / "test_some.py"
    file.write_text("import time\n" + "".join(f"def test_{k}(): time.sleep(0.3)\n" for k in range(5)))
    assert "1 passed" in run_with_our_conftest(file, "--sample", "0.1")
