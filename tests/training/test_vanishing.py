"""Coefficients that the data wants to be zero: the fit converges on the boundary and says so."""

import math
import warnings

import numpy as np
import pytest
import torch

from levytorch import Transitions, log_density
from levytorch.errors import InputError, LevytorchWarning
from levytorch.likelihood.penalty import symmetric_inverse
from levytorch.training.settings import make_settings
from tests.training.problems import ALPHA, steps
from tests.training.problems import frozen_recover as recover

PURE = {"b": 1.0, "D_o": 0.0, "D_f": 40.0, "alpha": 0.7}


@pytest.mark.long
@pytest.mark.parametrize("options", [{"n_basis": 1}, {"n_basis": 5, "penalty": "evidence"}])
def test_pure_jumps_converge_with_D_o_at_zero(options):
    data = steps(20_000, 2, **PURE)
    with pytest.warns(LevytorchWarning, match="D_o is estimated as zero"):
        found = recover(data, alpha="learn", max_steps=120, **options)
    assert found.converged
    assert found.metrics["vanishing"] == ["D_o"]
    assert abs(found.alpha - 0.7) < 4 * found.alpha_std
    assert found.alpha_std < 0.02


def test_nothing_is_left_to_gain_on_the_boundary():
    data = steps(20_000, 2, **PURE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        found = recover(data, alpha="learn", n_basis=1)
    b, D_f = float(found.b(0.0)), float(found.D_f(0.0))

    def total(b, D_o, D_f, alpha):
        return float(log_density(data.dx, b, D_o, D_f, alpha, data.dt, method="contour").sum())

    best = total(b, 0.0, D_f, found.alpha)
    assert found.log_likelihood == pytest.approx(best, abs=1e-3)
    for change in (0.98, 1.02):
        assert total(b, 0.0, D_f * change, found.alpha) < best
        assert total(b, 0.0, D_f, found.alpha * change) < best
    assert total(b, 0.02 * D_f, D_f, found.alpha) < best


@pytest.mark.long
def test_what_is_on_the_boundary_adds_its_own_share_to_the_other_errors():
    """Between those of the law without D_o and with a D_o of either sign: expected information by quadrature."""
    data = steps(20_000, 2, **PURE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        found = recover(data, alpha="learn", n_basis=1)
    assert 0 < found.metrics["at_zero"]["D_o"]["std"] < found.metrics["at_zero"]["D_o"]["upper"]
    assert float(found.std(0.0)[1]) == pytest.approx(found.metrics["at_zero"]["D_o"]["std"])
    b, D_f, alpha = float(found.b(0.0)), float(found.D_f(0.0)), found.alpha
    leaves = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (b, D_f, alpha, 0.0)]
    t = torch.linspace(-22, 22, 40_001, dtype=torch.float64)
    dx = b / 40 + torch.sinh(t)
    rows = []
    for part in leaves:
        value = leaves[:]
        ones = torch.ones_like(dx)
        spread = (part * ones).detach().requires_grad_(True)
        value[leaves.index(part)] = spread
        log_p = log_density(dx, value[0], value[3], value[1], value[2], 1 / 40, method="contour")
        rows.append(torch.autograd.grad(log_p.sum(), spread)[0])
    weight = log_p.detach().exp() * torch.cosh(t) * (t[1] - t[0])
    q = torch.stack(rows)
    information = len(data) * (q * weight) @ q.T
    least = torch.linalg.inv(information[:3, :3]).diagonal().sqrt()
    most = torch.linalg.inv(information).diagonal().sqrt()
    assert 0.9 * float(least[2]) < found.alpha_std < 1.1 * float(most[2])
    assert 0.9 * float(least[1]) < float(found.std(0.0)[2]) < 1.1 * float(most[1])
    assert float(found.std(0.0)[1]) < 1.1 * float(most[3])


def test_a_tiny_coefficient_that_the_data_needs_is_not_called_superfluous():
    """Nearly half of the steps in a narrow peak, the rest wide: without D_o there would be no such width."""
    rng = np.random.default_rng(5)
    n = 4000
    jumps = np.where(rng.uniform(size=n) < 0.55, rng.standard_cauchy(n), 0.0)
    data = Transitions(rng.uniform(0, 6, n), jumps + 2e-4 * rng.standard_normal(n), 1.0)
    with pytest.warns(LevytorchWarning, match="log-likelihood falls by"):
        found = recover(data, alpha=0.05, n_basis=1)
    b, D_o, D_f = (float(f(0.0)) for f in (found.b, found.D_o, found.D_f))
    assert D_o == pytest.approx(0.5 * 2e-4**2, rel=0.5)
    with_it, without = (
        float(log_density(data.dx, b, d, D_f, found.alpha, 1.0, method="contour").sum()) for d in (D_o, 0.0)
    )
    assert found.metrics["vanishing_loss"]["D_o"] == pytest.approx(with_it - without, rel=1e-6)


def test_a_coefficient_that_is_there_is_not_called_vanishing():
    found = recover(steps(20_000, 3), alpha=ALPHA, n_basis=1)
    assert found.metrics["vanishing"] == []


@pytest.mark.long
def test_evidence_settles_where_strengths_want_to_be_huge():
    """They end where the data no longer notices, instead of running to 1e12 and throwing the fit off."""
    rng = np.random.default_rng(0)
    data = steps(6000, 4, x=rng.uniform(1.0, 1.4, 6000), **PURE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        found = recover(data, alpha="learn", n_basis=11, penalty="evidence")
    assert found.converged
    strengths = found.metrics["penalty_strengths"]
    assert max(strengths) < 1e10


def test_symmetric_inverse_over_many_orders_of_magnitude():
    scale = torch.logspace(-8, 8, 9, dtype=torch.float64)
    core = torch.eye(9, dtype=torch.float64) + 0.3 * torch.ones(9, 9, dtype=torch.float64)
    matrix = scale[:, None] * core * scale
    expected = torch.linalg.inv(core) / scale[:, None] / scale
    torch.testing.assert_close(symmetric_inverse(matrix), expected, rtol=1e-10, atol=0)


def test_a_strength_for_each_coefficient():
    data = steps(20_000, 3, b=lambda x: 5 + 2 * np.sin(x), D_o=lambda x: 4 + 2 * np.cos(x))
    found = recover(data, alpha=ALPHA, n_basis=3, penalty=[1e12, 0.0, 1e12])
    x = torch.linspace(0, 2 * math.pi, 50, dtype=torch.float64)
    assert float(found.b(x).std()) < 1e-3
    assert float(found.D_f(x).std()) < 1e-3
    assert float(found.D_o(x).std()) > 1.0
    assert found.metrics["penalty_strengths"] == [1e12, 0.0, 1e12]


@pytest.mark.parametrize("penalty", [[1.0, 2.0], [1.0, -1.0, 0.0]])
def test_wrong_strengths_are_refused(penalty):
    with pytest.raises(InputError, match="penalty"):
        recover(steps(1000, 0), alpha=ALPHA, n_basis=3, penalty=penalty)


def test_the_tcf_with_a_learned_alpha_on_request_only():
    tail = {"CT": 8.0, "TRT": 20.0}
    with pytest.raises(InputError, match="learned_alpha"):
        make_settings(alpha="learn", tail=tail)
    with pytest.warns(LevytorchWarning, match="conditional likelihood"):
        settings = make_settings(alpha="learn", tail={**tail, "learned_alpha": "allow"})
    assert settings.tail.method == "tcf"
    with pytest.raises(InputError, match="refuse, allow"):
        make_settings(alpha="learn", tail={**tail, "learned_alpha": "yes"})


def test_a_random_start_is_of_order_one_in_the_units_in_use():
    data = steps(2000, 0)
    scaled = steps(2000, 0)
    scaled.x, scaled.dx = 1000 * scaled.x, 1000 * scaled.dx
    options = {"alpha": ALPHA, "engine": "adam", "max_steps": 1, "window": 1, "init": "random", "lr": 1e-12}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        one = recover(data, n_basis=1, **options)
        two = recover(scaled, n_basis=1, period=2000 * math.pi, **options)
    assert float(two.D_o(0.0)) == pytest.approx(1e6 * float(one.D_o(0.0)), rel=1e-6)
    assert float(two.b(0.0)) == pytest.approx(1e3 * float(one.b(0.0)), rel=1e-6)


def test_a_direction_without_information_has_a_huge_variance_not_an_infinite_one():
    found = symmetric_inverse(torch.diag(torch.tensor([4.0, 0.0], dtype=torch.float64)))
    assert bool(torch.isfinite(found).all())
    torch.testing.assert_close(found[0, 0], torch.tensor(0.25, dtype=torch.float64), rtol=1e-12, atol=0)
    assert float(found[1, 1]) > 1e100


@pytest.mark.long
def test_an_alpha_at_its_bound_is_told():
    """The true alpha is 0.7, and 0.6 the largest that is allowed: no estimate, and the fit says so."""
    data = steps(20_000, 2, **{**PURE, "D_o": 1.0})
    with pytest.warns(LevytorchWarning, match="learned alpha must lie within its bounds, found it at 0.6"):
        found = recover(data, alpha="learn", n_basis=1, alpha_bounds=[0.03, 0.6])
    assert found.metrics["alpha_at_bound"] == 0.6
    free = recover(data, alpha="learn", n_basis=1)
    assert "alpha_at_bound" not in free.metrics
    assert abs(free.alpha - 0.7) < 4 * free.alpha_std
