"""The TCF's iteration: what a round does to the distance from its fixed point, measured and derived."""

import numpy as np
import pytest
import torch

from benchmarks.paper.contraction import (
    TRUTH,
    Setting,
    contraction,
    derived,
    fitted,
    measured,
    nodes,
    read_study,
    study,
)
from levytorch.coefficients import AlphaSpec, FourierHead
from levytorch.data import make_pools
from levytorch.dynamics import Dynamics
from levytorch.law import score, tail_probability
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.likelihood import make_objective
from levytorch.likelihood.tail import TailCorrection, TailSettings
from levytorch.simulation import simulate


@pytest.mark.parametrize("setting", [Setting(), Setting(alpha=0.6, CT=2.0), Setting(dt=0.1, TRT=np.inf, learned=True)])
def test_the_nodes_are_the_law(setting):
    y, weight, beyond = nodes(setting)

    def mass(threshold):
        return float(tail_probability(threshold, 0.0, 0.0, *TRUTH[1:], setting.alpha, setting.dt))

    R, above = mass(setting.CT), 0.0 if np.isinf(setting.TRT) else mass(setting.TRT)
    assert float(weight[~beyond].sum()) == pytest.approx(1 - R, abs=1e-9)
    # beyond 1e25 lies 1e25^(-2 alpha) of the tail, which is what the last node leaves out
    assert float(weight[beyond].sum()) == pytest.approx(R - above, rel=1e-6)
    assert bool((y[beyond] > setting.CT).all())


@pytest.mark.parametrize(
    "setting",
    [Setting(), *(pytest.param(s, marks=pytest.mark.slow) for s in (Setting(alpha=0.6, CT=4.0), Setting(dt=0.1)))],
)
def test_measured_and_derived_agree(setting):
    """Ratios of successive changes are off by the relative size of the last of them (1e-6 of the TCF, times a factor
    of order one), the formula by the central differences of its second derivatives (1e-4 squared): 1e-5 in all."""
    found = contraction(setting, until=1e-8)
    assert found.measured == pytest.approx(found.derived, rel=1e-5)
    assert 0 < found.derived < 1


@pytest.mark.slow
def test_the_share_that_was_dropped_does_not_matter():
    """Only where the iteration begins depends on it."""
    few, many = (contraction(Setting(dropped=share)) for share in (0.2, 0.8))
    assert few.measured == pytest.approx(many.measured, rel=1e-6)
    assert few.D_f == pytest.approx(many.D_f, rel=1e-9)
    assert few.tcf < many.tcf


def squared_correlation(setting: Setting) -> float:
    """What kappa is where nothing was removed: the squared correlation of the tail's indicator with the scores."""
    y, weight, beyond = nodes(setting)
    free = 3 if setting.learned else 2
    s = score(y, 0.0, *TRUTH[1:], setting.alpha, setting.dt, method="contour", wrt_alpha=True)
    assert s.alpha is not None
    rows = torch.stack([s.D_o, s.D_f, s.alpha])[:free]
    R = float(weight[beyond].sum())
    slope = (rows * weight)[:, beyond].sum(1)  # grad R
    return float(slope @ torch.linalg.solve((rows * weight) @ rows.T, slope)) / (R * (1 - R))


def test_without_a_loss_kappa_is_a_squared_correlation():
    """Nothing removed: the formula, which knows no Fisher matrix, against the correlation, which is made of one."""
    setting = Setting(TRT=np.inf)
    kappa = derived(setting, (*TRUTH[1:], setting.alpha))
    assert kappa == pytest.approx(squared_correlation(setting), rel=1e-5)
    assert kappa < 1


@pytest.mark.slow
def test_simulated_pairs_contract_as_the_law_says():
    """The library's objective of 80,000 simulated, censored pairs: the ratio of the rounds is that of the population up
    to the scatter of the sample. kappa is a smooth function of means over 300 tail pairs: 1 / sqrt(300) = 6 %."""
    setting = Setting()
    pairs = simulate(Dynamics.named("constant", alpha=0.3), 2000, 40, setting.dt, substeps=1, seed=3).transitions()
    kept = pairs.censor(TRT=setting.TRT, CT=setting.CT, drop_tail=setting.dropped, seed=0)
    tail = TailSettings(method="tcf", CT=setting.CT, TRT=setting.TRT)
    head = FourierHead(1, alpha=AlphaSpec("fixed", 0.3))
    head.set_constants(*TRUTH)
    objective = make_objective(head, make_pools(kept, setting.CT, setting.TRT), tail, FrozenLaw("table"))
    masses, correction, values = objective.masses, TailCorrection(), [0.0]
    for _ in range(6):
        fitted(objective, values[-1])
        correction.update(masses.R_theta(head), masses.R_sample)
        values.append(correction.tcf)
    ratios = np.diff(values)[1:] / np.diff(values)[:-1]
    truth = derived(setting, (*TRUTH[1:], 0.3))
    assert ratios[-1] == pytest.approx(truth, rel=4 * 0.06)
    assert torch.isfinite(head.theta).all()


@pytest.mark.slow
def test_a_study_is_written_and_read(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.paper.contraction.settings", lambda: [Setting(CT=4.0)])
    (row,) = read_study(study(tmp_path / "c.csv"))
    assert (row["CT"], row["learned"]) == (4.0, 0.0)
    assert row["measured"] == pytest.approx(measured(Setting(CT=4.0))[0])
