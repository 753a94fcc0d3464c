"""Tails that are lost at the same rate everywhere, and tails that are lost depending on the state."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from levytorch import Dynamics, recover, simulate
from levytorch.diagnostics import diagnose
from tests.diagnostics.problems import quiet

CT, TRT = 2.0, 20.0
SYSTEM = Dynamics(
    b=torch.sin, D_o=lambda x: 1.0 + 0.3 * torch.cos(x), D_f=lambda x: 1.2 + 0.4 * torch.sin(x), alpha=0.6
)


def lossy(seed, share, n=200):
    """Data of which steps beyond CT are lost with probability share(x)."""
    data = simulate(SYSTEM, n, 100, 1 / 20, seed=seed).transitions()
    draws = torch.rand(len(data), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    lost = (data.deviation > CT) & (draws < share(data.x))
    return data[~lost & (data.deviation < TRT)]


def alike(x):
    return torch.full_like(x, 0.5)


def by_state(x):
    return 0.5 + 0.45 * torch.sin(x)


def found(seed, share, **options):
    data = lossy(seed, share)
    settings = {"alpha": 0.6, "n_basis": 5, "law": "frozen", "tail": {"CT": CT, "TRT": TRT}} | options
    recovery = quiet(recover, data, **settings)
    return quiet(diagnose, recovery, data, checks=("tails",), seed=seed)


@pytest.mark.parametrize("law", ["frozen", pytest.param("exact", marks=pytest.mark.slow)])
def test_a_loss_that_depends_on_the_state_raises_an_alarm(law):
    checks = [found(seed, by_state, law=law) for seed in (1, 2, 3)]
    assert all('tail={"method": "conditional"}' in check.alarms["tail_shares"] for check in checks)
    assert checks[0].metrics()["tails_ratio"][0] < 0.7


def test_jumps_beyond_CT_count_as_jumps():
    """CT lies below six standard deviations of the Brownian part: the main pool has hardly a clear jump."""
    data = lossy(1, alike)
    recovery = quiet(recover, data, alpha=0.6, n_basis=1, law="frozen", tail={"CT": CT, "TRT": TRT})
    found = quiet(diagnose, recovery, data, checks=("fit",))
    width = (2 * recovery.D_o(data.x) * data.dt).sqrt()
    assert found.fit.jumps == int(((data.dx - recovery.b(data.x) * data.dt).abs() > 6 * width).sum()) > 30
    assert "few_jumps" not in found.alarms


@pytest.mark.slow
def test_p_values_are_not_extreme_when_tails_are_lost_alike():
    p = np.array([found(seed, alike).tails.p_value for seed in range(8)])
    assert kstest(p, "uniform").pvalue > 1e-3


@pytest.mark.long
def test_the_check_belongs_to_the_tcf():
    tail = {"CT": CT, "TRT": TRT, "method": "conditional", "region": "strata"}
    assert found(1, by_state, tail=tail).tails is None


@pytest.mark.slow
def test_p_values_are_uniform_when_tails_are_lost_alike():
    p = np.array([found(seed, alike).tails.p_value for seed in range(100, 220)])
    assert kstest(p, "uniform").pvalue > 1e-3
