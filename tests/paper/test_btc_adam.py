"""Replicas side by side are the runs of `engine=adam`, seed by seed."""

import warnings

import pytest
import torch

from benchmarks.paper.btc_adam import adam_replicas
from levytorch import recover
from levytorch.errors import InputError, LevytorchWarning
from levytorch.training.settings import make_settings
from tests.training.problems import constant

TAIL = {"CT": 8.0, "TRT": 20.0, "start": 20, "learned_alpha": "allow"}
OPTIONS = {
    "n_basis": 3,
    "engine": {"name": "adam", "max_steps": 60, "window": 30, "stop_early": False},
    "init": "random",
    "mixing": "bernoulli",
}


@pytest.mark.parametrize(
    ("alpha", "tail", "positivity"),
    [
        ("learn", {**TAIL, "R_theta": "mean"}, "clamp"),
        ("learn", {**TAIL, "R_theta": "states"}, "softplus"),
        (0.3, None, "clamp"),
    ],
)
def test_every_replica_is_the_run_of_its_seed(alpha, tail, positivity):
    data = constant(4000)
    options = {**OPTIONS, "alpha": alpha, "tail": tail, "positivity": positivity}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        together = adam_replicas(data, make_settings(**options), [0, 3])
        for seed, found in zip((0, 3), together):
            alone = recover(data, **options, seed=seed)
            torch.testing.assert_close(found.theta, alone.theta, rtol=1e-9, atol=1e-12)
            assert found.tcf == pytest.approx(alone.tcf, rel=1e-6, abs=1e-12)
            assert found.metrics["tail_method"] == alone.metrics["tail_method"]
    assert not torch.allclose(together[0].theta, together[1].theta)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"engine": "fisher"}, "engine adam"),
        ({"mixing": "stratified"}, "bernoulli"),
        ({"alpha": "function"}, "constant alpha"),
        ({"tail": {"CT": 8.0, "TRT": 20.0, "method": "conditional"}}, "the TCF or none"),
    ],
)
def test_what_cannot_run_side_by_side_is_refused(change, what):
    options = {**OPTIONS, "alpha": 0.3, **change}
    if options["engine"] == "fisher":
        del options["mixing"]
    with pytest.raises(InputError, match=what):
        adam_replicas(constant(4000), make_settings(**options), [0, 1])
