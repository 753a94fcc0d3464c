"""A covariate that multiplies D_o and D_f: fitted with the coefficients, with errors, and taken back."""

import math

import numpy as np
import pytest
import torch

from levytorch import LevyStep, Recovery, Trajectories, Transitions, diagnose, log_density, recover
from levytorch.errors import InputError
from levytorch.training.inputs import without_covariates

HOURS = torch.linspace(0, 24, 25, dtype=torch.float64)
B, D_O, D_F, ALPHA, DT = 3.0, 1.0, 0.8, 0.6, 0.05
SETTINGS = {"alpha": ALPHA, "n_basis": 1, "modulation": 24.0, "n_modulation": 5}


def shape(c):
    """Fourfold over the day; its mean is that of exp(0.7 sin)."""
    return torch.exp(0.7 * torch.sin(2 * math.pi * c / 24)) / float(torch.special.i0(torch.tensor(0.7).double()))


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    c = 24 * torch.rand(12_000, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        dx = LevyStep(B, D_O * shape(c), D_F * shape(c), ALPHA, DT).sample()
    return Transitions(torch.zeros_like(dx), dx, DT, action=c)


@pytest.fixture(scope="module")
def found(data):
    return recover(data, **SETTINGS)


def test_it_comes_out_within_its_errors(data, found):
    m = found.modulation
    z = (m(HOURS) - shape(HOURS)) / m.std(HOURS)
    assert float(z.abs().max()) < 4
    assert 0.01 < float(m.std(HOURS).max()) < 0.2
    assert float(m(data.action).mean()) == pytest.approx(1.0, abs=1e-12)
    for name, std, truth in zip(("b", "D_o", "D_f"), found.std(0.0), (B, D_O, D_F)):
        assert abs(float(getattr(found, name)(0.0)) - truth) < 4 * float(std)
    plain = recover(data, alpha=ALPHA, n_basis=1, actions=None)
    assert found.log_likelihood > plain.log_likelihood + 100
    assert found.converged


@pytest.mark.long
def test_errors_are_those_of_repetitions(found):
    """The scatter of estimates over replicas of the data, each a tenth of it, beside the errors they state."""
    generator = torch.Generator().manual_seed(5)
    estimates, stated = [], []
    for _ in range(12):
        c = 24 * torch.rand(3000, generator=generator, dtype=torch.float64)
        dx = LevyStep(B, D_O * shape(c), D_F * shape(c), ALPHA, DT).sample()
        one = recover(Transitions(torch.zeros_like(dx), dx, DT, action=c), **SETTINGS)
        estimates.append(torch.cat([one.modulation(HOURS[:-1:4]), one.D_o(0.0).reshape(1)]))
        stated.append(torch.cat([one.modulation.std(HOURS[:-1:4]), one.std(0.0)[1].reshape(1)]))
    truth = torch.cat([shape(HOURS[:-1:4]), torch.tensor([D_O]).double()])
    z = (torch.stack(estimates) - truth) / torch.stack(stated)
    # 12 x 7 values, those of one replica correlated: the mean square of as many as 12 independent ones is 1 +- 0.41
    assert 0.3 < float(z.square().mean()) < 2.3


@pytest.mark.long
def test_pairs_freed_of_it_have_the_same_likelihood(data, found):
    plain, free = without_covariates(found, data)
    m = found.modulation(data.action)
    own = [float(getattr(found, name)(0.0)) for name in ("b", "D_o", "D_f")]
    at_one = [float(getattr(plain, name)(0.0)) for name in ("b", "D_o", "D_f")]
    direct = log_density(data.dx, own[0], own[1] * m, own[2] * m, ALPHA, DT).sum()
    taken_back = log_density(free.dx, *at_one, ALPHA, free.dt).sum()
    assert float(direct) == pytest.approx(float(taken_back), rel=1e-10)
    assert found.log_likelihood == pytest.approx(float(direct), rel=1e-6)
    assert diagnose(found, data, checks=("fit",)).fit.p_value > 1e-4
    assert float(found.std(0.0, kind="robust")[1] / found.std(0.0)[1]) == pytest.approx(1.0, abs=0.6)


def test_it_is_saved(tmp_path, found):
    again = Recovery.load(found.save(tmp_path / "modulated.pt"))
    assert torch.equal(again.modulation(HOURS), found.modulation(HOURS))
    assert torch.equal(again.modulation.std(HOURS), found.modulation.std(HOURS))


@pytest.mark.long
def test_on_a_line_with_splines():
    rng = np.random.default_rng(2)
    x, c, steps = [0.0], rng.uniform(0, 24, 3000), []
    for k in range(3000):
        dx = -2 * x[-1] * DT + rng.normal() * math.sqrt(2 * 0.5 * float(shape(torch.tensor(c[k]))) * DT)
        steps.append(dx)
        x.append(x[-1] + dx)
    data = Trajectories.from_arrays(np.array(x), dt=DT, action=c).transitions()
    found = recover(data, alpha=0.7, period=None, n_basis=5, modulation=24.0, n_modulation=3, law="frozen")
    z = (found.modulation(HOURS) - shape(HOURS)) / found.modulation.std(HOURS)
    assert float(z.abs().max()) < 5
    slope = (float(found.b(0.5)) - float(found.b(-0.5))) / 1.0
    assert slope == pytest.approx(-2.0, abs=1.5)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"modulation": "hour"},
            "modulation must be a positive number, found 'hour'; give the period of the covariate",
        ),
        ({"modulation": -1.0}, "modulation must be a positive number"),
        ({"n_modulation": 1}, "n_modulation must be"),
        ({"law": "exact"}, "found law exact"),
        ({"law": "corrected"}, "found law corrected"),
        ({"coefficients": "mlp", "n_basis": 21}, "found a MLPHead"),
    ],
)
def test_refusals(data, options, match):
    with pytest.raises(InputError, match=match):
        recover(data, **{**SETTINGS, **options})


def test_pairs_without_a_covariate_are_refused(data):
    with pytest.raises(InputError, match="one number per pair, found none"):
        recover(Transitions(data.x, data.dx, DT), **SETTINGS)


def test_tempering_is_learned_beside_it():
    generator = torch.Generator().manual_seed(3)
    c = 24 * torch.rand(12_000, generator=generator, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        dx = LevyStep(B, 0.2 * shape(c), D_F * shape(c), ALPHA, DT, tempering=1.0).sample()
    found = recover(Transitions(torch.zeros_like(dx), dx, DT, action=c), **SETTINGS, tempering="learn")
    assert found.converged
    assert abs(float(found.tempering) - 1.0) < 4 * float(found.tempering_std)
    for name, std, truth in zip(("b", "D_o", "D_f"), found.std(0.0), (B, 0.2, D_F)):
        assert abs(float(getattr(found, name)(0.0)) - truth) < 4 * float(std)
    z = (found.modulation(HOURS) - shape(HOURS)) / found.modulation.std(HOURS)
    assert float(z.abs().max()) < 4
