"""Fits with tempered jumps: known and learned, every engine, lattice and samples, lost tails, the boundary at zero."""

import math

import pytest
import torch

from levytorch import Dynamics, Recovery, recover, simulate
from levytorch.coefficients.links import tempering_of
from levytorch.errors import InputError, LevytorchWarning
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.training import report
from levytorch.training.settings import make_settings

TRUTH = Dynamics(1.0, 0.1, 1.0, 0.45, tempering=0.4)


@pytest.fixture(scope="module")
def data():
    return simulate(TRUTH, 2000, 20, 0.25, seed=11).transitions()


@pytest.fixture(scope="module")
def learned(data):
    return recover(data, alpha="learn", tempering="learn", n_basis=1, engine="fisher")


@pytest.mark.long
def test_learned(learned):
    """Each estimate within four of its standard errors of the truth, and the error bars are of use."""
    std = learned.std(0.0)
    found = [(learned.b(0.0), 1.0, std[0]), (learned.D_o(0.0), 0.1, std[1]), (learned.D_f(0.0), 1.0, std[2])]
    found += [(learned.alpha, 0.45, learned.alpha_std), (learned.tempering, 0.4, learned.tempering_std)]
    for value, truth, error in found:
        assert abs(float(value) - truth) < 4 * float(error)
    assert learned.converged
    assert learned.tempering_std < 0.05
    assert learned.metrics["tempering_told_from_zero"]
    assert learned.metrics["tempering_upper"] > learned.tempering


def test_maximum_by_autograd(data, learned):
    """The gradient of the log-likelihood of all pairs vanishes there, by autograd through the law."""
    x, dx, dt = data.x, data.dx, data.dt
    total = FrozenLaw("contour").log_prob(learned.head, x, dx, dt).sum()
    (gradient,) = torch.autograd.grad(total, [learned.head.theta])
    assert learned.covariance is not None
    assert float(gradient @ learned.covariance @ gradient) < 1e-4  # in squared standard errors
    assert float(total.detach()) == pytest.approx(learned.log_likelihood, rel=1e-9)


@pytest.mark.slow
def test_engines_and_batches_agree(data, learned):
    ways = [{"engine": "fisher", "lattice": "never"}, {"engine": "fisher", "lattice": "always"}, {"engine": "lbfgs"}]
    for way in ways:
        found = recover(data, alpha="learn", tempering="learn", n_basis=1, **way)
        assert found.tempering == pytest.approx(learned.tempering, abs=0.05 * learned.tempering_std)
        assert found.log_likelihood == pytest.approx(learned.log_likelihood, abs=0.02)


@pytest.mark.slow
def test_known(data):
    known = recover(data, alpha=0.45, tempering=0.4, n_basis=1, engine="fisher")
    assert known.tempering == 0.4
    assert known.tempering_std == 0.0
    plain = recover(data, alpha="learn", n_basis=1, engine="fisher")
    assert plain.tempering == 0.0
    assert known.log_likelihood > plain.log_likelihood + 10  # jumps have an end here


def test_conditional_likelihood_of_cut_tails(data):
    """Steps beyond TRT removed: the conditional likelihood finds the law that was cut."""
    cut = data.censor(TRT=3.0, CT=2.0, drop_tail=0.0, seed=1)
    tail = {"method": "conditional", "TRT": 3.0}
    found = recover(cut, alpha=0.45, tempering="learn", n_basis=1, engine="fisher", tail=tail)
    std = found.std(0.0)
    assert abs(float(found.D_f(0.0)) - 1.0) < 4 * float(std[2])
    assert abs(found.tempering - 0.4) < 4 * found.tempering_std


@pytest.mark.long
def test_tcf_with_known_tempering(data):
    cut = data.censor(TRT=5.0, CT=2.0, drop_tail=0.5, seed=1)
    tail = {"CT": 2.0, "TRT": 5.0, "method": "tcf"}
    found = recover(cut, alpha=0.45, tempering=0.4, n_basis=1, tail=tail)
    plain = recover(cut, alpha=0.45, tempering=0.4, n_basis=1)
    assert found.tcf > 0
    assert abs(float(found.D_f(0.0)) - 1.0) < 4 * float(found.std(0.0)[2])
    assert float(plain.D_f(0.0)) < float(found.D_f(0.0)) - 4 * float(found.std(0.0)[2])


def test_a_tempering_that_the_data_does_not_bound(tmp_path, monkeypatch):
    """With a small alpha the upper bound may be beyond the range of floating point numbers."""
    assert tempering_of(1e40, 0.03, 1.0) == math.inf
    monkeypatch.setattr(report, "tempering_of", lambda eta, *others: tempering_of(1e40 * eta, 0.03, 1.0))
    stable = simulate(Dynamics(1.0, 0.1, 1.0, 0.45), 20, 20, 0.25, seed=3).transitions()
    with pytest.warns(LevytorchWarning, match="they do not bound it.*unless the AIC of this fit is lower"):
        found = recover(stable, alpha="learn", tempering="learn", n_basis=1, law="frozen")
    assert found.metrics["tempering_upper"] == math.inf
    assert "does not bound the tempering" in " ".join(str(found.summary()).split())
    assert Recovery.load(found.save(tmp_path / "recovery.pt")).metrics["tempering_upper"] == math.inf


@pytest.mark.slow
def test_boundary():
    """Data without tempering: an upper bound instead of an error bar, and the other errors are not inflated."""
    stable = simulate(Dynamics(1.0, 0.1, 1.0, 0.45), 1500, 20, 0.25, seed=3).transitions()
    with pytest.warns(LevytorchWarning, match="distinguished from zero"):
        found = recover(stable, alpha="learn", tempering="learn", n_basis=1, engine="fisher")
    plain = recover(stable, alpha="learn", n_basis=1, engine="fisher")
    assert not found.metrics["tempering_told_from_zero"]
    assert 0 < found.metrics["tempering_upper"] < 0.1
    assert found.log_likelihood >= plain.log_likelihood - 0.01
    assert found.metrics["steps"] <= 30  # not a pass for every factor of e on the way to zero
    assert found.alpha == pytest.approx(plain.alpha, abs=2 * plain.alpha_std)


@pytest.mark.long
def test_functions_of_x_and_saving(tmp_path):
    truth = Dynamics(lambda x: torch.sin(x), 0.1, lambda x: 1 + 0.5 * torch.cos(x), 0.45, tempering=0.4)
    pairs = simulate(truth, 1000, 20, 0.05, seed=5).transitions()
    found = recover(pairs, alpha=0.45, tempering="learn", n_basis=3, engine="evidence", law="frozen")
    assert abs(found.tempering - 0.4) < 4 * found.tempering_std
    again = Recovery.load(found.save(tmp_path / "recovery.pt"))
    assert again.tempering == found.tempering
    assert again.tempering_std == found.tempering_std
    assert again.dynamics().tempering == found.tempering
    assert "tempering" in repr(again)
    x = torch.tensor([0.3, 2.0], dtype=torch.float64)
    torch.testing.assert_close(again.dynamics().D_f(x), found.D_f(x))


@pytest.mark.slow
def test_mlp_learns_it(data):
    head = {"name": "mlp", "width": 4, "depth": 1}
    found = recover(data, alpha=0.45, tempering="learn", coefficients=head, engine="lbfgs", max_steps=40)
    assert 0.3 < found.tempering < 0.5


def test_refusals(data):
    for bad in (-1.0, math.nan, "yes", None, True):
        with pytest.raises(InputError, match="tempering"):
            make_settings(alpha=0.4, tempering=bad)
    with pytest.raises(InputError, match="density must be auto or contour with tempering"):
        make_settings(alpha=0.4, tempering=1.0, density="table")
    with pytest.raises(InputError, match="tail correction factor"):
        make_settings(alpha=0.4, tempering="learn", tail={"method": "tcf", "CT": 8.0})
