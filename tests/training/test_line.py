"""recover on a line: no cell is chosen by hand, and what lies far out does not disturb the middle."""

import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from levytorch import Dynamics, Lattice, Recovery, Transitions, diagnose, recover, simulate
from levytorch.errors import InputError, LevytorchWarning

SYSTEM = Dynamics(
    b=lambda x: -2 * x,
    D_o=lambda x: 0.5 + 0.3 * torch.tanh(x),
    D_f=lambda x: 0.6 + 0.2 * torch.cos(x),
    alpha=0.75,
    period=None,
    window=(-2, 2),
)
STEEP = Dynamics(b=lambda x: -20 * x, D_o=1.0, D_f=0.5, alpha=0.75, period=None, window=(-1, 1))
MIDDLE = torch.linspace(-1.2, 1.2, 25, dtype=torch.float64)
EVIDENCE = {"alpha": 0.75, "period": None, "engine": "evidence"}


@pytest.fixture(scope="module")
def data():
    return simulate(SYSTEM, 400, 50, 0.005, x0=np.random.default_rng(0).normal(size=400), seed=1).transitions()


@pytest.fixture(scope="module")
def found(data):
    return recover(data, **EVIDENCE)


@pytest.mark.long
def test_coefficients_come_out_within_their_errors(data, found):
    assert type(found.head).__name__ == "SplineHead"
    assert found.converged
    for name, std in zip(("b", "D_o", "D_f"), found.std(MIDDLE)):
        z = (getattr(found, name)(MIDDLE) - getattr(SYSTEM, name)(MIDDLE)) / std
        assert float(z.square().mean().sqrt()) < 2.5
        assert float(z.abs().max()) < 5
    low, high = found.support
    left_out = found.metrics["left_out"]["outside the window"]
    assert left_out == int(((data.x < low) | (data.x > high)).sum()) < 0.011 * len(data)
    assert found.head.window[0] < low
    assert found.head.window[1] > high
    assert float(found.b(1e6)) == float(found.b(found.head.window[1]))


@pytest.mark.slow
def test_what_starts_outside_changes_nothing(data, found):
    far = Transitions(F.pad(data.x, (0, 60), value=900.0), F.pad(data.dx, (0, 60), value=-899.0), 0.005, mu=data.mu)
    own = {**EVIDENCE, "coefficients": {"name": "spline", "window": found.head.window}}
    again, inside = recover(far, **own), recover(data, **own)
    assert torch.equal(again.theta, inside.theta)
    lost, before = (r.metrics["left_out"].get("outside the window", 0) for r in (again, inside))
    assert lost == before + 60


@pytest.mark.slow
def test_other_heads(data, found):
    straight = recover(data, **EVIDENCE, continuation="linear")
    assert torch.allclose(straight.b(MIDDLE), found.b(MIDDLE))
    assert float(straight.b(9.0)) < float(straight.b(5.0)) < float(found.b(5.0))
    quantiles = recover(data, **EVIDENCE, knots="quantiles", n_basis=9)
    polynomial = recover(data, **EVIDENCE, coefficients="polynomial", degree=1)
    assert polynomial.head.sizes == [2, 21, 21]
    for other in (quantiles, polynomial):
        assert float((other.b(MIDDLE) - SYSTEM.b(MIDDLE)).norm() / SYSTEM.b(MIDDLE).norm()) < 0.25
    constant = recover(data, alpha=0.75, period=None, n_basis=1)
    assert float(constant.D_o(-5.0)) == float(constant.D_o(5.0))


def test_a_recovery_on_a_line_is_saved_simulated_and_diagnosed(tmp_path, data, found):
    again = Recovery.load(found.save(tmp_path / "line.pt"))
    assert again.period is None
    assert again.support == found.support
    assert torch.equal(again.b(MIDDLE), found.b(MIDDLE))
    assert torch.equal(again.std(MIDDLE)[2], found.std(MIDDLE)[2])
    system = found.dynamics()
    assert not system.repeats
    assert system.window == found.head.window
    paths = simulate(system, 50, 5, 0.005, seed=2).to_array()
    assert np.isfinite(paths).all()
    diagnosis = diagnose(found, data)
    assert diagnosis.fit.p_value > 1e-4


@pytest.mark.long
def test_a_lattice_on_a_line(data, found):
    lattice = Lattice.from_transitions(data, period=None)
    # one law for both: here law auto keeps the frozen one for the pairs and goes on to the simulated one for a lattice
    options = {**EVIDENCE, "coefficients": {"name": "spline", "window": found.head.window}, "law": "frozen"}
    given, samples = recover(lattice, **options), recover(data, **options, lattice="never")
    for name, std in zip(("b", "D_o", "D_f"), samples.std(MIDDLE)):
        apart = (getattr(given, name)(MIDDLE) - getattr(samples, name)(MIDDLE)) / std
        assert float(apart.abs().max()) < 0.1
    with pytest.raises(InputError, match="on the cell of the lattice"):
        recover(lattice, alpha=0.75)


@pytest.mark.long
def test_a_long_step_is_followed():
    """Within a step of 0.02 the pull forgets a third of what comes in: the frozen law takes that for a smaller D_o."""
    pairs = simulate(STEEP, 300, 60, 0.02, x0=0.0, substeps=25, seed=3).transitions()
    own = {"alpha": 0.75, "period": None, "n_basis": 4}
    followed, frozen = recover(pairs, **own), recover(pairs, **own, law="frozen")
    assert followed.law == "corrected"
    assert followed.head.period is None
    x = torch.linspace(-0.4, 0.4, 9, dtype=torch.float64)
    for name, std in zip(("b", "D_o", "D_f"), followed.std(x)):
        z = (getattr(followed, name)(x) - getattr(STEEP, name)(x)) / std
        assert float(z.abs().max()) < 4
    assert float((frozen.D_o(x).mean() - 1) / frozen.std(x)[1].mean()) < -5
    assert followed.metrics["law/log_p_error"] < 1e-3


@pytest.mark.slow
def test_what_is_followed_is_checked_by_the_same_law():
    pairs = simulate(STEEP, 300, 60, 0.02, x0=0.0, substeps=50, seed=3).transitions()
    followed = recover(pairs, alpha=0.75, period=None, n_basis=4)
    x = torch.linspace(-0.4, 0.4, 9, dtype=torch.float64)
    assert float(followed.std(x, kind="robust")[1].mean() / followed.std(x)[1].mean()) == pytest.approx(1, abs=0.5)
    checked = diagnose(followed, pairs, checks=("fit", "step_size"))
    assert checked.fit.p_value > 1e-4
    assert checked.step_size.p_value > 1e-4
    exact = recover(pairs, alpha=0.75, period=None, n_basis=4, law="exact")
    assert exact.law == "exact"
    for name, std in zip(("b", "D_o", "D_f"), exact.std(x)):
        z = (getattr(exact, name)(x) - getattr(STEEP, name)(x)) / std
        assert float(z.abs().max()) < 4


@pytest.mark.long
def test_data_that_does_not_fit_its_cell_is_said_so(data):
    with pytest.warns(LevytorchWarning, match=r"farther than the period 1, .* use period=None \(a line\)"):
        recover(Transitions(data.x, data.dx, 0.005), alpha=0.75, n_basis=3, period=1.0)
    plane = Transitions(torch.stack([data.x, 1e-4 * data.x], 1), torch.stack([data.dx, 1e-4 * data.dx], 1), 0.005)
    with pytest.warns(LevytorchWarning, match=r"x_2 runs from .*, which is .* of the period 100"):
        recover(plane[:2000], alpha=0.75, n_basis=3, period=[100.0, 100.0], max_steps=2)
    ring = simulate(Dynamics.named("variable"), 20, 20, 0.1, seed=0).transitions()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*period.*")
        recover(ring, alpha=0.3, n_basis=3)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"coefficients": "fourier"}, "Fourier heads must have a period, found none"),
        ({"coefficients": "polynomial", "period": 3.0}, "period must be None for splines and polynomials, found 3.0"),
        ({"origin": 1.0}, "origin"),
        ({"knots": "quantiles", "n_basis": "auto"}, "knots must be even where n_basis is auto"),
        ({"window": (50.0, 60.0)}, "must hold states of the data"),
    ],
)
def test_refusals(data, options, match):
    with pytest.raises(InputError, match=match):
        recover(data, **{"alpha": 0.75, "period": None, **options})
