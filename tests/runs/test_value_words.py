"""How a run speaks of V: one error where the data determines it, level and shape apart where it does not."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir

from levytorch import Dynamics, recover, simulate
from levytorch.data import SourceData
from levytorch.policy.value import ValueFunction
from levytorch.runs.command_line import conf_directory
from levytorch.runs.report import Outcome
from levytorch.runs.terminal import closing, value_sentence
from levytorch.runs.value import add_value, level_and_shape
from levytorch.spaces import Circle
from levytorch.training.fit_report import FitReport


def test_level_and_shape_of_a_known_covariance():
    """V = 2 + cos x whose mean has a standard error of 0.5 and whose cosine one of 0.01, independently."""
    coefficients, factor = torch.zeros(3, dtype=torch.float64), torch.zeros((3, 2), dtype=torch.float64)
    V = ValueFunction(coefficients, Circle(), 0.1, covariance_factor=factor)
    x = torch.linspace(0, 2 * math.pi, 401, dtype=torch.float64)[:-1]
    rows = V.basis.matrix(x, 0)
    constant, cosine = (torch.linalg.lstsq(rows, f[:, None]).solution[:, 0] for f in (torch.ones_like(x), torch.cos(x)))
    V = ValueFunction(
        2 * constant + cosine, Circle(), 0.1, covariance_factor=torch.stack([0.5 * constant, 0.01 * cosine], 1)
    )
    curves = {"x": x.numpy(), "V": V(x).numpy(), "V_truth": V(x).numpy() - 0.3}
    found = level_and_shape(V, curves)
    size = math.sqrt(np.mean(curves["V_truth"] ** 2))
    assert found["level_std_V"] == pytest.approx(0.5 / size, rel=1e-9)
    assert found["shape_std_V"] == pytest.approx(0.01 * math.sqrt(0.5) / size, rel=1e-9)
    assert found["level_error_V"] == pytest.approx(0.3 / size, rel=1e-9)
    assert found["shape_error_V"] < 1e-12


def test_words_of_an_open_level():
    numbers = {"error_V": 0.4089, "std_V": 0.9289, "level_std_V": 0.93, "shape_std_V": 0.02}
    told = value_sentence(numbers | {"level_error_V": 0.41, "shape_error_V": 0.017})
    assert told is not None
    assert "does not determine its level" in told
    assert "1.70%" in told
    assert "40.89%" not in told
    settled = value_sentence(numbers | {"level_std_V": 0.02})
    assert settled == "Value function: the relative L2 error is 40.89% (standard error 92.89%)."
    assert value_sentence({}) is None


@pytest.mark.parametrize(
    ("overrides", "reward", "beta"),
    [
        ([], "cosine_power", 0.3),
        (["data=file", "data.path=x.csv"], "manufactured", 0.3),  # no V unless a reward is named
        (["data=file", "data.path=x.csv", "reward=cosine_power"], "cosine_power", 0.3),
        (["dynamics=double_well", "state=line"], "manufactured", 0.3),
        (["experiment=censored_variable"], "manufactured", 0.1),
        (["experiment=two_dimensions"], "manufactured", 1.0),
    ],
)
def test_default_rewards(overrides, reward, beta):
    with initialize_config_dir(conf_directory(), version_base="1.3"):
        config = compose("train", overrides)
    assert (config.reward.name, config.beta) == (reward, beta)


def test_what_V_warns_of_is_a_verdict_and_stands_in_the_metrics(tmp_path):
    """In the syntax of the command line, and not as a warning of Python between the lines of the run."""
    data = simulate(Dynamics(b=torch.sin, D_o=0.3, D_f=0.2, alpha=0.6), 20, 50, 0.05, seed=0).transitions()
    found = recover(data, alpha=0.6, n_basis=3, law="frozen")
    found.metrics |= {"law_judged": False, "law_reason": "give the fit law='exact'"}
    with initialize_config_dir(conf_directory(), version_base="1.3"):
        config = compose("train", ["reward=cosine_power", "beta=0.3"])
    report = FitReport.of(found)
    outcome = Outcome(found, SourceData(data), report, {"warnings": []}, tmp_path, formats=())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        add_value(outcome, config)
        add_value(outcome, config)
    (sentence,) = outcome.metrics["warnings"]
    assert "bias is not known (give the fit law=exact)" in sentence
    assert [one.verdict for one in outcome.verdicts] == ["look"]
    assert sentence in json.loads((tmp_path / "metrics.json").read_text())["warnings"]
    assert "V must come from a fit with valid standard errors" in " ".join(closing(outcome).split())
