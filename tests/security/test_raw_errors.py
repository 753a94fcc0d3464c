"""Nonsense that ended in a traceback: each is refused in one sentence."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch

from levytorch import Trajectories, diagnose, improve, recover
from levytorch.errors import ConfigError, InputError
from levytorch.runs.settings import prepare_run
from tests.inputs.judge import REFUSED, judge
from tests.processes import run
from tests.security.test_run_directories import composed

NONSENSE = ["x", -1, 1.5, math.nan, 10**30, {}, object(), b"\xff", [1, "a"], {"a": 1}, np.zeros((2, 2)), print]


def points(**options):
    return Trajectories(np.zeros(6), np.array([0, 3, 6]), dt=0.1, **options)


@pytest.fixture(scope="module")
def calls(pairs):
    lattice, found = pairs.lattice(n_blocks=2), recover(pairs, alpha=0.3, n_basis=1, law="frozen")
    return {
        "typical_steps(n)": lambda value: lattice.typical_steps(value),
        "typical_steps(n_groups)": lambda value: lattice.typical_steps(100, n_groups=value),
        "batch": lambda value: lattice.batch(value),
        "counts_of_states": lambda value: lattice.counts_of_states(value),
        "counts_of_states(per_block)": lambda value: lattice.counts_of_states(per_block=value),
        "Trajectories(dropped)": lambda value: points(dropped=list(value) if isinstance(value, dict) else value),
        "diagnose(seed)": lambda value: diagnose(found, pairs, seed=value, checks=("fit",)),
        "recover(units)": lambda value: recover(pairs, alpha=0.3, n_basis=1, law="frozen", units=value),
        "improve": lambda value: improve(value, torch.cos, 1.0),
    }


@pytest.mark.parametrize(
    "name",
    [
        *("typical_steps(n)", "typical_steps(n_groups)", "batch", "counts_of_states", "counts_of_states(per_block)"),
        *("Trajectories(dropped)", "diagnose(seed)", "recover(units)", "improve"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(name, calls):
    for value in NONSENSE:
        assert judge(lambda value=value: calls[name](value), f"{name} {value!r}") is REFUSED


@pytest.mark.parametrize("name", ["actions", "ids"])
@pytest.mark.parametrize("value", ["x", b"x", 3, 1.5, object(), print])
def test_labels_are_lists(name, value):
    with pytest.raises(InputError, match=f"{name} must be a list of labels"):
        points(**{name: value})


def test_a_recovery_is_no_transitions(pairs):
    with pytest.raises(InputError, match="must be a system with actions"):
        improve(pairs, torch.cos, 1.0)


@pytest.mark.parametrize("override", ["+trainer.barebones=true", "+trainer.profiler={a: 1}"])
def test_flags_of_the_trainer_that_it_stumbles_over_later(override, tmp_path):
    for resumed in (False, True):
        with pytest.raises(ConfigError, match=r"trainer\.(barebones|profiler) must"):
            prepare_run(composed(override), tmp_path, resumed=resumed)


@pytest.mark.parametrize("argument", [b"hydra.run.dir=" + b"a" * 300, b"data.path=x\xff.csv", b"hydra.run.dir=r\xff"])
def test_arguments_that_can_name_no_file(argument, tmp_path):
    status, said = run("train.py", os.fsdecode(argument), cwd=tmp_path)
    assert status == 1
    assert said.startswith("an argument must be text that can name files, found ")
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.iterdir())
