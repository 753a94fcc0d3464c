"""The benchmark of files on Dask, in its small version."""

from __future__ import annotations

import csv

import pytest

from benchmarks.distributed import main


@pytest.mark.slow
def test_a_small_version(tmp_path):
    small = ["--pairs", "16000", "--files", "4", "--kills", "1"]
    main([*small, "--directory", str(tmp_path / "files"), "--results", str(tmp_path / "rows.csv")])
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["what"] for row in rows[:4]] == ["one process", "one process", "Dask", "Dask"]
    assert rows[3]["note"] == "same bits as one worker: True"
    assert "same bits: True" in rows[4]["note"]
    assert rows[-1]["note"] == "read 1, from the checkpoint 3"
