"""What is said to a misspelt override, before a fit, and by python -m levytorch; what a command imports.

Commands import Lightning without torch's compiler; who wants the compiler has it all the same. Imports are not searched
for garbage, and whoever has switched the search off or on finds it so.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from omegaconf import OmegaConf

from levytorch import Dynamics, Transitions, recover, simulate
from levytorch.runs import command_line, report, terminal
from levytorch.runs.settings import fit_settings
from tests.inputs.configs import ROOT
from tests.inputs.configs import composed as composed_


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
    done = subprocess.run(
        [sys.executable, ROOT / "train.py", "coeficients.n_basis=3"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("did you mean coefficients.n_basis?")
    assert not list(tmp_path.iterdir())


def test_python_m_levytorch(tmp_path):
    done = subprocess.run([sys.executable, "-m", "levytorch"], capture_output=True, text=True, cwd=tmp_path, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) <= 10
    for word in ("levytorch", "cores", f"torch {torch.__version__.split('+')[0]}", "kernels: ", "docs"):
        assert word in done.stdout


def test_the_line_before_a_fit():
    data = simulate(Dynamics.named("constant"), 20, 10, 1 / 40, seed=1).transitions().censor(TRT=20.0, CT=8.0)
    config = composed("train", "engine=adam", "coefficients=mlp", "tail=conditional")
    line = terminal.opening(data, fit_settings(config), config)
    assert f"fitting {len(data)} pairs of 20 trajectories at dt = 0.025" in line
    for part in ("law ", "head mlp", "engine adam", "tail conditional (", "alpha = 0.3"):
        assert part in line
    config = composed("train", "alpha=learn", "tail=none", "coefficients.n_basis=auto")
    line = terminal.opening(Transitions([0.0, 1.0], [0.1, 0.2], [0.5, 1.0]), fit_settings(config), config)
    for part in (
        "2 pairs of 1 trajectory",
        "varies",
        "by cross-validation",
        "(auto: ",
        "tail none",
        "alpha learn",
    ):
        assert part in line
    assert "\n" not in line


def test_averages_are_taken_where_the_data_is():
    """The data sits near x = 1 of a cell of 100; the drift there is known in closed form, elsewhere it is not."""
    generator = torch.Generator().manual_seed(0)
    x = 1.0 + 0.1 * torch.randn(4000, generator=generator, dtype=torch.float64)
    dx = 0.5 + 0.2 * torch.randn(4000, generator=generator, dtype=torch.float64)
    data = Transitions(x, dx, 0.1)
    found = recover(data, alpha=0.3, n_basis=3, period=100.0, penalty="evidence")
    rows = report.at_the_data(found, None, data)
    assert set(rows) == {"b", "D_o", "D_f"}
    assert "error" not in rows["b"]
    se = 0.2 / 0.1 / 4000**0.5
    assert abs(rows["b"]["mean"] - 5.0) < 5 * se
    truth = Dynamics(b=10.0, D_o=0.2, D_f=1.0, alpha=0.3, period=100.0)
    assert report.at_the_data(found, truth, data)["b"]["error"] == pytest.approx(0.5, abs=0.02)


def test_the_table_has_errors_only_where_a_truth_is_known():
    base = {
        "engine": "fisher", "steps": 3, "seconds": 0.1, "converged": True, "n_main": 10, "tail_method": "none",
        "tcf": 0.0, "log_likelihood": -1.0, "observed": {"b": {"mean": 1.0, "std": 0.5}},
        "alpha": 0.3, "alpha_std": 0.0,
    }  # fmt: skip
    assert "rel. L2 error" not in terminal.coefficient_table(base)
    base["observed"]["b"]["error"] = 0.25
    assert "25.00%" in terminal.coefficient_table(base)
    assert "(0.5)" not in terminal.coefficient_table(base)
    stopped = terminal.coefficient_table(
        base | {"converged": False, "alpha_std": 0.01, "not_converged": "5 were not enough"}
    )
    assert "(0.5)" in stopped
    assert "(0.01)" in stopped
    assert "errors in brackets are those of a maximum that was not reached: 5 were not enough" in stopped
    assert terminal.alarms(base) == []
    doubtful = base | {"alarms": {"few_jumps": "only 3 jumps;\n bring more data."}, "warnings": ["odd", "only"]}
    lines = terminal.alarms(doubtful)
    assert re.match(r"3 alarms \(.*docs/diagnostics.md\):", lines[0])
    assert lines[1] == "  few jumps: only 3 jumps; bring more data."
    assert lines[2] == "  warning: odd"


@pytest.mark.parametrize(
    ("sentence", "line"),
    [
        ("it is so (p < 1e-12 (by far)); and odd; do this.", "it is so; do this."),
        (f"a thing: {'very ' * 40}long; do this.", "a thing; do this."),
        ("short: and good.", "short: and good."),
    ],
)
def test_alarms_are_cut_to_what_is_wrong_and_what_to_do(sentence, line):
    assert terminal.short(sentence) == line
    assert len(terminal.short(f"{'word ' * 100}")) <= terminal.LONGEST
