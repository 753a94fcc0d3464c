"""Tables of pages are those of the rows in benchmarks/results."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("name", "function", "page", "lines"),
    [("real_data", "tables", "real_data.md", 20), ("boundary", "table", "method.md", 2)],
)
def test_the_tables_are_those_of_the_rows(capsys, monkeypatch, name, function, page, lines):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    getattr(module, function)()
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    written = (ROOT / "docs" / page).read_text().splitlines()
    missing = [line for line in printed if line not in written]
    assert len(printed) > lines
    if missing:
        pytest.fail(f"run `python benchmarks/{name}.py {function}` and copy: " + "\n".join(missing))
