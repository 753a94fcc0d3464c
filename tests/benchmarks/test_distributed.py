"""The benchmark of files on Dask, in its small version."""

from __future__ import annotations

import csv

import pytest

from benchmarks import distributed


@pytest.mark.slow
def test_a_small_version(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "PAGE", tmp_path / "page.md")
    (tmp_path / "page.md").write_text(f"before\n{distributed.BEGIN}\nold\n{distributed.END}\nafter\n")
    size = ["--pairs", "16000", "--files", "4", "--kills", "1", "--directory", str(tmp_path / "files")]
    results = ["--results", str(tmp_path / "rows.csv")]
    distributed.main(["times", "equality", "kills", "added", "sizes", "fits", *size, *results])
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["what"] for row in rows[:4]] == ["one process", "one process", "Dask", "Dask"]
    notes = [row["note"] for row in rows[4:]]
    assert notes[0] == "same bits: True"
    assert notes[1] == "largest relative difference: 0.0e+00"
    assert "same bits: True" in notes[3]
    assert notes[4:6] == ["read 3, from the checkpoint 0", "read 1, from the checkpoint 3"]
    assert float(notes[6].removesuffix(" MB")) < 1  # the lattice of a file
    distributed.main(["summary", *results])
    page = (tmp_path / "page.md").read_text()
    assert page.startswith("before")
    assert page.endswith("after\n")
    assert "old" not in page
    assert page.count("| one process |") == 2


def test_rows_that_differ_in_numbers_are_one():
    kills = ["killed after 38 files", "killed after 4 files", "killed after 9 files"]
    assert distributed.ranges(kills) == "killed after 4 to 38 files"
    assert distributed.ranges(["3.1", "2.50"]) == "2.50 to 3.1"
    assert distributed.ranges(["same bits: True", "same bits: True"]) == "same bits: True"
    assert distributed.ranges(["same bits: True", "same bits: False"]) == "same bits: True; same bits: False"
