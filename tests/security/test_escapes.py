"""Text from someone else that would act on a terminal: it reaches neither the terminal nor a file as it is."""

from __future__ import annotations

import logging
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import polars as pl
import pytest

from levytorch import ControlledDynamics, ControlledRecovery, simulate
from levytorch.errors import InputError, LevytorchWarning, OutputError, printable
from levytorch.files import write_csv
from levytorch.runs import command_line

ROOT = Path(__file__).parents[2]
LABELS = ("\x1b[2J\x1b[31mred", "bell\x07\x9b5m", "a\rb\u202ec\u2066")
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
COMMON = ("data=file", "data.path=data.csv", "data.action=action", "data.value=x", "alpha=0.6", "law=frozen")
QUICK = ("coefficients.n_basis=1", "trainer.progress=false", "diagnostics=none", "logger=none")


def test_text_that_acts_is_spelt_out():
    assert printable("\x1b[31mup\n\tÄ🚀\u200d") == "\\x1b[31mup\n\tÄ🚀\u200d"
    assert printable("a\nb\u202e\udcff", lines=False) == "a\\nb\\u202e\\udcff"
    for label in LABELS:
        assert not ACTING.search(printable(label))


@pytest.mark.parametrize("cls", [InputError, OutputError])
def test_errors_and_warnings_quote_it_spelt_out(cls):
    error = cls("found \x1b[31m")
    assert str(error) == "found \\x1b[31m"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("\x1b]0;title\x07", LevytorchWarning, stacklevel=1)
    assert str(caught[0].message) == "\\x1b]0;title\\x07"


def test_tables_and_logs_hold_it_spelt_out(tmp_path):
    write_csv(tmp_path / "table.csv", {f"b of {label}": [label] for label in LABELS})
    assert not ACTING.search((tmp_path / "table.csv").read_text())
    handler, root = logging.FileHandler(tmp_path / "train.log"), logging.getLogger()
    root.addHandler(handler)
    try:
        command_line.guard_log()
        logging.getLogger("levytorch.train").error("action %s: %d %%", LABELS[0], 3)
    finally:
        root.removeHandler(handler)
    assert (tmp_path / "train.log").read_text() == "action \\x1b[2J\\x1b[31mred: 3 %\n"


@pytest.mark.slow
def test_a_run_and_its_evaluation(tmp_path):
    system = ControlledDynamics.named("pushes")
    simulate(system, "uniform", 60, 40, 0.025, substeps=1, seed=0).to_file(tmp_path / "numbers.csv")
    table = pl.read_csv(tmp_path / "numbers.csv")
    column = next(name for name in table.columns if name.startswith("action"))
    names = dict(zip(sorted(table[column].drop_nulls().unique().to_list()), LABELS))
    text = pl.Series("action", [names.get(value, LABELS[0]) for value in table[column].to_list()])
    table.drop(column).with_columns(text).write_csv(tmp_path / "data.csv")
    commands = [
        [str(ROOT / "train.py"), *COMMON, *QUICK, "reward=cosine_power", "beta=1", "hydra.run.dir=run"],
        [str(ROOT / "evaluate.py"), "run=run", "reward=cosine_power", "beta=1", "hydra.run.dir=evaluated"],
    ]
    for command in commands:
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, timeout=300)
        shown = (done.stdout + done.stderr).decode()
        assert done.returncode == 0, shown
        assert not ACTING.search(shown)
    assert ControlledRecovery.load(tmp_path / "run").actions == tuple(sorted(LABELS))
    assert not ACTING.search(repr(ControlledRecovery.load(tmp_path / "run")))
    written = [
        file
        for file in tmp_path.rglob("*")
        if file.name != "data.csv" and file.suffix in (".log", ".csv", ".html", ".json")
    ]
    spelt_out = [file for file in written if "\\x1b[2J" in file.read_text()]
    assert {"train.log", "curves.csv", "report.html"} <= {file.name for file in spelt_out}
    for file in written:
        assert not ACTING.search(file.read_text()), file
