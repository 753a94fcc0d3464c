"""What is said to a misspelt override, before a fit, and by python -m levytorch; what a command imports.

Commands import Lightning without torch's compiler; who wants the compiler has it all the same. Imports are not searched
for garbage, and whoever has switched the search off or on finds it so.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from levytorch import Dynamics, Transitions, simulate
from levytorch.diagnostics.verdicts import Verdict
from levytorch.runs import command_line, report, terminal
from levytorch.runs.settings import fit_settings
from levytorch.training.fit_report import Estimate, FitReport, law_sentence
from tests.inputs.configs import composed as composed_
from tests.processes import run


def composed(name: str, *overrides: str) -> dict:
    return OmegaConf.to_container(composed_(name, *overrides), resolve=True)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["engine.max_step=3"], ["engine.max_steps"]),
        (["max_steps=3"], ["engine.max_steps"]),
        (["n_basis=3", "sed=1"], ["coefficients.n_basis", "seed"]),
        (["engine=fishr"], ["engine=fisher"]),
        (["engine=adam", "engine.windw=3"], ["engine.window"]),  # a key that only this option has
        (["-m", "engine=fisher,adm"], ["engine=adam"]),
        (["data=fil", "data.path=x.csv"], ["data=file", ""]),
        (["seed=1", "engine=adam", "+engine.new=3", "hydra.run.dir=x"], []),
        (["zzz_qqq=1"], []),
        (["seed"], []),
    ],
)
def test_the_nearest_override(arguments, meant):
    lines = command_line.suggestions("train", arguments)
    assert len(lines) == len([m for m in meant if m]) or meant[-1] == ""
    for line, name in zip(lines, meant):
        assert f"did you mean {name}" in line


def test_a_misspelt_setting_ends_in_a_suggestion(tmp_path):
    status, said = run("train.py", "coeficients.n_basis=3", cwd=tmp_path)
    assert status == 1
    assert said.splitlines()[-1].endswith("did you mean coefficients.n_basis?")
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_python_m_levytorch(tmp_path):
    done = subprocess.run([sys.executable, "-m", "levytorch"], capture_output=True, text=True, cwd=tmp_path, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) <= 10
    for word in ("levytorch", "cores", f"torch {torch.__version__.split('+')[0]}", "kernels: ", "docs"):
        assert word in done.stdout


def test_what_is_said_before_a_fit():
    data = simulate(Dynamics.named("constant"), 20, 10, 1 / 40, seed=1).transitions().censor(TRT=20.0, CT=8.0)
    config = composed("train", "engine=adam", "coefficients=mlp", "tail=conditional")
    lines = terminal.opening(data, fit_settings(config), config).splitlines()
    assert lines[0] == f"Data   {len(data)} pairs of 20 trajectories, dt = 0.025 ({200 - len(data)} left out)"
    assert lines[1] == "Model  mlp; alpha = 0.3"
    assert lines[2].startswith("Fit    law auto; engine adam; tail conditional (CT 8, TRT 20); seed 0")
    config = composed("train", "alpha=learn", "tail=none", "coefficients.n_basis=auto", "tempering=learn")
    text = terminal.opening(Transitions([0.0, 1.0], [0.1, 0.2], [0.5, 1.0]), fit_settings(config), config)
    for part in (
        "2 pairs of 1 trajectory, dt around 0.75 (varies)",
        "by cross-validation",
        "alpha learn; tempering learn",
    ):
        assert part in text
    assert all(len(line) <= terminal.WIDTH for line in [*lines, *text.splitlines()])


def test_notes_are_wrapped_after_their_options_have_the_names_of_the_shell():
    long = "The fit did not converge: max_steps = 40 were not enough. Errors in brackets belong to a point elsewhere."
    ended = outcome()
    ended.report = replace(ended.report, notes=(long,))
    lines = terminal.closing(ended).splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("[1]"))
    assert "engine.max_steps" in lines[first]
    assert lines[first + 1].startswith("    ")
    assert not lines[first + 2 :]


def outcome(**changes):
    reason = "the exact law must have a dt that is long enough for its grid, found a shorter one (1e-4; use frozen.)"
    row = Estimate("b", 1.0, 0.5, 0.0, 2.0)
    note = law_sentence({"law": "frozen", "law_reason": reason})
    fields = {"model": "fourier", "law": "frozen", "engine": "fisher", "steps": 3, "converged": True, "nobs": 10}
    fields |= {"log_likelihood": -1.0, "parameters": 1.0, "aic": 4.0, "bic": 5.0, "tail": "none", "tcf": 0.0, "seed": 0}
    found = FitReport(**fields, estimates=(row,), notes=(note, 'use tempering="learn".'), doubts=("D_f is zero.",))
    return report.Outcome(None, None, found, {}, Path(), **changes)


def test_the_table_after_a_fit_has_80_columns_and_one_sentence_per_check():
    found = [
        Verdict("Fit", "ok", "The model's step probabilities match the data within 0.7 percentage points."),
        Verdict("Time step", "look", "A long sentence. " * 9, "p = 0.3"),
        Verdict("Jumps", "-", "Not checked: \x1b[31mtoo few pairs."),
    ]
    text = terminal.closing(outcome(verdicts=found))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line[:4].strip() for line in lines if line[:4].strip() in ("ok", "look", "bad", "-")] == ["ok", "look", "-"]
    assert "\x1b" not in text
    assert "p = 0.3" not in text
    assert "The exact likelihood was skipped: it must have a dt that is long enough for its grid." in " ".join(
        text.split()
    )
    assert "use tempering=learn." in text
    assert "D_f is zero" not in text  # a verdict says it
    assert "\x1b[1;32mok" in terminal.closing(outcome(verdicts=found[:1]), 100, color=True)
