"""The tables of docs/real_data.md are those of the rows in benchmarks/results/real_data.csv."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_tables_are_those_of_the_rows(capsys, monkeypatch):
    spec = importlib.util.spec_from_file_location("real_data", ROOT / "benchmarks" / "real_data.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "real_data", module)
    spec.loader.exec_module(module)
    module.tables()
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    page = (ROOT / "docs" / "real_data.md").read_text().splitlines()
    missing = [line for line in printed if line not in page]
    assert len(printed) > 20
    if missing:
        pytest.fail("run `python benchmarks/real_data.py tables` and copy: " + "\n".join(missing))
