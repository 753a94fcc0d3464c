"""Diagnostics with every engine, head, tail and dimension, and what a run leaves of them."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from levytorch import Dynamics, LevyStep, Recovery, Transitions, simulate
from levytorch.diagnostics import diagnose
from levytorch.diagnostics.brownian import fit_without_jumps
from levytorch.diagnostics.sample import Region, make_sample
from levytorch.errors import InputError, LevytorchWarning
from levytorch.figures.diagnostics import drawings, goodness
from tests.coefficients.own_head import Pull
from tests.diagnostics.problems import quiet, walk
from tests.training.problems import ALPHA, DT, steps
from tests.training.problems import frozen_recover as recover


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"coefficients": "mlp", "width": 4, "depth": 1, "max_steps": 6},
        {"n_basis": 3, "engine": "adam", "max_steps": 400, "window": 200, "lr": 0.02},
        {"n_basis": 3, "penalty": "evidence"},
        {"n_basis": 1, "alpha": "learn"},
    ],
    ids=["mlp", "adam", "penalty", "learned alpha"],
)
def test_every_engine_and_head(options):
    data = walk()[0]
    found = quiet(recover, data, **{"alpha": ALPHA, **options})
    diagnosis = quiet(diagnose, found, data)
    assert diagnosis.fit.p_value > 1e-3
    assert diagnosis.jumps.needed
    assert diagnosis.step_size.p_value > 1e-3
    assert set(drawings(diagnosis)) == {"diagnostics_fit", "diagnostics_step_size", "diagnostics_predictive"}


@pytest.mark.long
def test_a_head_of_ones_own():
    truth = Dynamics(b=lambda x: -2.0 * torch.sin(x - 0.7), D_o=0.5, D_f=0.3, alpha=0.85)
    data = simulate(truth, 200, 40, 0.02, seed=5).transitions()
    found = recover(data, alpha=0.85, coefficients=Pull(0.85))
    diagnosis = quiet(diagnose, found, data)
    assert diagnosis.fit.p_value > 1e-3
    assert diagnosis.jumps.needed
    assert diagnosis.step_size.p_value > 1e-3
    # without jumps the same b and D_o are a linear regression
    sample = make_sample(data, Region(), 10_000, 0)
    waves = 0.02 * torch.stack([torch.sin(data.x), torch.cos(data.x)], dim=1)
    left = data.dx - waves @ torch.linalg.lstsq(waves, data.dx[:, None]).solution[:, 0]
    best = -0.5 * len(data) * (1 + math.log(2 * math.pi * float((left**2).mean())))
    brownian = float(fit_without_jumps(found.head, Region(), sample).log_prob(sample).sum())
    assert best - 0.1 < brownian <= best + 1e-6


@pytest.mark.long
def test_uneven_sampling_with_lost_tails():
    short, long_ = steps(6000, 6), steps(6000, 7, dt=2 * DT)
    x, dx, dt = (torch.cat([getattr(p, k) for p in (short, long_)]) for k in ("x", "dx", "dt"))
    data = Transitions(x, dx, dt)
    found = quiet(recover, data, alpha=ALPHA, n_basis=1, tail={"CT": 8.0})
    assert found.metrics["CT"] is None
    assert found.metrics["CT_of_dt"]["CT"] == 8.0
    diagnosis = quiet(diagnose, found, data, checks=("fit", "jumps"))
    assert diagnosis.fit.p_value > 1e-3
    assert "time step" in diagnosis.fit.parts
    # the same pairs with the wrong clock: jumps and diffusion do not scale together
    wrong = Transitions(x, dx, torch.where(dt > 1.5 * DT, 4 * DT, DT))
    found = quiet(recover, wrong, alpha=ALPHA, n_basis=1)
    assert quiet(diagnose, found, wrong, checks=("fit",)).fit.parts["time step"][0] < 1e-6


@pytest.mark.long
def test_a_part_of_the_pairs_says_the_same_on_average():
    data = steps(40_000, 8)
    found = recover(data, alpha=ALPHA, n_basis=1)
    whole = quiet(diagnose, found, data, checks=("fit", "jumps"), seed=1)
    part = quiet(diagnose, found, data, checks=("fit", "jumps"), max_pairs=10_000, seed=1)
    assert part.fit.pairs == 10_000 // 32 * 32
    assert part.fit.p_value > 1e-3
    assert whole.fit.p_value > 1e-3
    again = quiet(diagnose, found, data, checks=("fit",), max_pairs=10_000, seed=1)
    assert again.fit.p_value == part.fit.p_value


@pytest.mark.long
def test_two_dimensions():
    n = 3000
    x = torch.rand((n, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 * math.pi
    law = LevyStep(torch.tensor([2.0, -1.0]).double().expand(n, 2), 2.0, 1.5, 0.4, DT, dim=2)
    data = Transitions(x, law.sample(generator=torch.Generator().manual_seed(1)), DT)
    for tail in (None, {"TRT": 3.0, "method": "conditional"}):
        found = quiet(recover, data, alpha=0.4, n_basis=1, tail=tail)
        diagnosis = quiet(diagnose, found, data, checks=("fit", "jumps"))
        assert diagnosis.fit.p_value > 1e-3
        assert diagnosis.jumps.needed


def test_few_jumps_are_reported():
    data = steps(400, 0, D_f=0.05)
    found = quiet(recover, data, alpha=ALPHA, n_basis=1)
    with pytest.warns(LevytorchWarning, match="clearly jumps"):
        diagnosis = diagnose(found, data, checks=("fit",))
    assert diagnosis.metrics()["clear_jumps"] < 30
    assert "few_jumps" in diagnosis.alarms
    assert "alpha" not in diagnosis.alarms["few_jumps"]  # it is given already
    learned = quiet(diagnose, quiet(recover, data, alpha="learn", n_basis=1), data, checks=("fit",))
    assert "or give alpha" in learned.alarms["few_jumps"]


@pytest.mark.long
def test_a_saved_recovery_can_be_diagnosed(tmp_path):
    data, found = walk()
    found.save(tmp_path / "recovery.pt")
    loaded = Recovery.load(tmp_path / "recovery.pt")
    assert diagnose(loaded, data, checks=("fit",)).fit.p_value == diagnose(found, data, checks=("fit",)).fit.p_value


def test_bad_arguments():
    data, found = walk()
    with pytest.raises(InputError, match="checks"):
        diagnose(found, data, checks=("speed",))
    with pytest.raises(InputError, match="max_pairs"):
        diagnose(found, data, max_pairs=10)
    with pytest.raises(InputError, match="Transitions"):
        diagnose(found, data.x)
    with pytest.raises(InputError, match="dimension"):
        diagnose(found, Transitions(torch.zeros((5, 2)), torch.rand((5, 2)), 1.0))
    with pytest.raises(InputError, match="Recovery"):
        diagnose(found.head, data)


@pytest.mark.long
def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "diagnostics.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert (tmp_path / "fit.png").stat().st_size > 1000


@pytest.mark.slow
def test_no_checks_leave_no_trace(tmp_path):
    config = {"coefficients.n_basis": 1, "data.n_trajectories": 100, "trainer.progress": "false", "beta": "null"}
    arguments = [f"{k}={v}" for k, v in config.items()]
    root = Path(__file__).parents[2]
    command = [sys.executable, root / "train.py", *arguments, "diagnostics=none", f"hydra.run.dir={tmp_path}"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "fit_p_value" not in json.loads((tmp_path / "metrics.json").read_text())
    assert not list((tmp_path / "figures").glob("diagnostics*"))


@pytest.mark.long
def test_words_of_rare_steps_and_of_laws():
    data, recovery = walk()
    found = quiet(diagnose, recovery, data, checks=("fit",))
    found.fit.rare = {0.01: 1.004}
    assert "the rarest 1 % of steps are as frequent as expected" in found.text()
    found.fit.rare = {0.003: 1.42}
    assert "the rarest 0.3 % of steps are 1.4 times as frequent as expected" in found.text()
    assert float(found.arrays["fit"]["period"]) == pytest.approx(2 * math.pi)
    assert goodness(found.arrays["fit"])[1][2].get_xlabel() == "x in one period"
    line = simulate(Dynamics(lambda x: -x, 0.5, 0.2, 0.6, None), 20, 60, 1 / 40, seed=1, x0=0.0).transitions()
    found = quiet(diagnose, quiet(recover, line, alpha=0.6, period=None, n_basis=4), line, checks=("fit",))
    assert goodness(found.arrays["fit"])[1][2].get_xlabel() == "x"
