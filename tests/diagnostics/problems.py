"""Data whose law is known, and fits to it."""

import warnings
from functools import cache

import torch

from levytorch import Dynamics, recover, simulate
from levytorch.diagnostics import diagnose
from levytorch.errors import LevytorchWarning
from tests.training.problems import ALPHA, DT, steps

TAILS = {
    "none": None,
    "tcf": {"CT": 8.0, "TRT": 20.0},
    "strata": {"CT": 8.0, "TRT": 20.0, "method": "conditional", "region": "strata", "min_tail": 10},
    "TRT": {"TRT": 20.0, "method": "conditional"},
}


def one(value):
    return torch.tensor([float(value)], dtype=torch.float64)


def quiet(call, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        return call(*arguments, **options)


def data_of(kind, n, seed):
    """The constant example, censored where `kind` says so."""
    data = steps(n, seed)
    if kind in ("tcf", "strata"):
        return data.censor(TRT=20.0, CT=8.0, drop_tail=0.5, seed=seed)
    return data.censor(TRT=20.0, CT=None, drop_tail=0.0) if kind == "TRT" else data


def p_value(kind, n, seed):
    data = data_of(kind, n, seed)
    found = quiet(recover, data, alpha=ALPHA, n_basis=1, tail=TAILS[kind])
    return quiet(diagnose, found, data, checks=("fit",)).fit.p_value


def paths(dynamics, n, dt, seed):
    return simulate(Dynamics.named(dynamics), n, 40, dt, seed=seed)


@cache
def walk():
    """The constant example as trajectories, and its fit."""
    data = paths("constant", 300, DT, 3).transitions()
    return data, recover(data, alpha=ALPHA, n_basis=1)
