"""`recover` and train.py give the same numbers, to rounding, whatever two options are combined."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from levytorch import recover
from levytorch.errors import LevytorchError, LevytorchWarning
from levytorch.runs.training import train
from tests.golden.cases import Case, _file, data, grid, numbers, pairwise, settings

ROOT = Path(__file__).parents[2]
BARE = [
    *("beta=null", "diagnostics=none", "logger=none", "callbacks.figures.files=[]", "callbacks.checkpoints=null"),
    *("trainer.progress=false", "coefficients=auto"),
]
CASES = [case for case in grid() if (case.data, case.space) != ("lattice", "torus")]  # there is no such lattice
QUICK = [
    Case("file", "circle", "frozen", "none", "labels"),
    Case("file", "line", "frozen", "none", "numbers"),
    Case("file", "line", "frozen", "none", "covariate"),
    Case("lattice", "circle", "frozen", "tcf", "none"),
    Case("lattice", "line", "frozen", "none", "none"),
    Case("on_disk", "circle", "frozen", "none", "none"),
    Case("on_disk", "torus", "frozen", "none", "none"),
]


def overrides(case: Case, directory: Path) -> list[str]:
    """The command line of a case. Arrays are written into a file: train.py reads nothing else."""
    asked = settings(case)
    out = [f"alpha={asked['alpha']}", f"law={case.law}", f"coefficients.n_basis={asked['n_basis']}"]
    out += [f"tail={case.tail}"]
    if case.tail != "none":
        out += ["tail.CT=1.0", "tail.TRT=4.0"]
    if case.data == "lattice":
        data(case, directory).save(directory / "lattice.npz")
        out += ["data=lattice", f"data.path={directory / 'lattice.npz'}"]
    else:
        value = "[x1,x2]" if case.space == "torus" else "x1"
        out += [
            "data=file",
            f"data.path={_file(case, directory)}",
            "data.id=id",
            "data.time=time",
            f"data.value={value}",
        ]
        if case.inputs in ("labels", "numbers"):
            out.append("data.action=action")
        elif case.inputs == "covariate":
            out += [
                "coefficients.modulation=action",
                "coefficients.modulation_period=24",
                "coefficients.n_modulation=3",
            ]
        if case.data == "on_disk":
            out.append(f"data.on_disk={directory / 'cache'}")
    return [*out, f"coefficients.period={'null' if asked['period'] is None else asked['period']}"]


def agree(case: Case, directory: Path) -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("train", [*BARE, *overrides(case, directory)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        try:
            outcome = train(config, directory / "run")
        except LevytorchError:
            outcome = None
        if outcome is None:
            with pytest.raises(LevytorchError):  # both refuse
                recover(data(case, directory), **settings(case))
            return
        found = recover(outcome.source.transitions, **settings(case))
    expected, mine = numbers(found, case), numbers(outcome.recovery, case)
    for name in ("estimate", "std", "log_likelihood"):
        np.testing.assert_allclose(mine[name], expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_a_subset(case, tmp_path):
    agree(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", pairwise([case for case in CASES if case not in QUICK]), ids=lambda case: case.name)
def test_every_pair_of_options(case, tmp_path):
    agree(case, tmp_path)
