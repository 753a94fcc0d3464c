"""simulate: the law of the increments, reproducibility, and what is refused."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import levytorch.simulation.euler as euler
from levytorch import Dynamics, simulate, tail_probability
from levytorch.errors import InputError, NumericalError
from levytorch.simulation import kernels
from levytorch.simulation.substeps import effective_drift

CONSTANT = Dynamics.named("constant")
VARIABLE = Dynamics.named("variable")
DT = 1 / 40


def characteristic_function_error(dx, k, exponent):
    """|empirical - exact| of E exp(i k.dx) in standard errors, for each row of k."""
    dx = dx.reshape(len(dx), -1)
    phase = dx @ np.atleast_2d(k).T  # (n, number of k)
    found, n = np.exp(1j * phase).mean(axis=0), len(dx)
    return np.abs(found - np.exp(exponent)) * math.sqrt(n)  # |exp(i .)| = 1: the deviation is at most one


@pytest.mark.parametrize("alpha", [0.15, 0.3, 0.5, 0.6, 0.95])
@pytest.mark.parametrize("substeps", [1, 4])
def test_increments_have_the_characteristic_function_of_the_step(alpha, substeps):
    system = Dynamics(5.0, 4.0, 3.0, alpha)
    dx = simulate(system, 40_000, 5, DT, substeps=substeps, seed=11).transitions().dx.numpy()
    k = np.array([[0.3], [1.0], [3.0], [8.0]])
    exponent = ((-(4 * k**2 + 3 * k ** (2 * alpha)) + 5j * k) * DT)[:, 0]
    assert characteristic_function_error(dx, k, exponent).max() < 4.5


@pytest.mark.parametrize("dim", [2, 3])
def test_isotropic_increments_in_several_dimensions(dim):
    system = Dynamics([1.0, -2.0, 3.0][:dim], 0.5, 2.0, 0.4, dim=dim)
    paths = simulate(system, 40_000, 3, 0.1, substeps=2, seed=5)
    assert paths.to_array().shape == (40_000, 4, dim)
    dx = paths.transitions().dx.numpy()
    k = np.array([[0.7, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, -1.0, 0.5], [-3.0, 2.0, 1.0]])[:, :dim]
    norm = np.linalg.norm(k, axis=1)
    exponent = (-(0.5 * norm**2 + 2 * norm**0.8) + 1j * (k @ np.array([1.0, -2.0, 3.0])[:dim])) * 0.1
    assert characteristic_function_error(dx, k, exponent).max() < 4.5


def test_one_step_uses_the_coefficients_at_its_start():
    x0 = 1.234
    dx = simulate(VARIABLE, 200_000, 1, DT, substeps=1, x0=x0, seed=2).transitions().dx.numpy()
    b, D_o, D_f = (float(c(x0)) for c in (VARIABLE.b, VARIABLE.D_o, VARIABLE.D_f))
    k = np.array([[0.5], [2.0], [5.0]])
    exponent = ((-(D_o * k**2 + D_f * k**0.6) + 1j * b * k) * DT)[:, 0]
    assert characteristic_function_error(dx, k, exponent).max() < 4.5


def test_alpha_may_depend_on_the_state():
    system = Dynamics(0.0, 0.01, 1.0, lambda x: torch.where(x < math.pi, 0.3, 0.8))
    for x0, alpha in ((1.0, 0.3), (5.0, 0.8)):
        dx = simulate(system, 100_000, 1, DT, substeps=1, x0=x0, seed=3).transitions().dx.numpy()
        k = np.array([[1.0], [6.0]])
        exponent = (-(0.01 * k**2 + k ** (2 * alpha)) * DT)[:, 0]
        assert characteristic_function_error(dx, k, exponent).max() < 4.5


def test_tail_mass_of_the_papers_example():
    t = simulate(CONSTANT, 25_000, 40, DT, seed=7).transitions()
    exact = float(tail_probability(8.0, 5 * DT, 5.0, 4.0, 3.0, 0.3, DT))
    assert exact == pytest.approx(0.0164, abs=5e-5)
    beyond = float(((t.dx - 5 * DT).abs() > 8).double().mean())
    assert beyond == pytest.approx(exact, abs=4 * math.sqrt(exact / len(t)))
    assert float(t.mu) == pytest.approx(5 * DT, abs=4 * 1.25 * 0.5 / math.sqrt(len(t)))


def test_substeps_follow_eulers_recursion():
    # dX = -X dt + sqrt(2) dW: under Euler with step h the variance obeys v -> (1 - h)^2 v + 2 h
    h, n = 0.1, 100_000
    x = simulate(
        Dynamics(lambda x: -x, 1.0, 0.0, 0.5, period=math.inf), n, 2, 0.5, substeps=5, x0=2.0, seed=4
    ).to_array()
    mean, variance = 2.0, 0.0
    for _ in range(10):
        mean, variance = mean * (1 - h), variance * (1 - h) ** 2 + 2 * h
    assert x[:, -1].mean() == pytest.approx(mean, abs=4 * math.sqrt(variance / n))
    assert x[:, -1].var() == pytest.approx(variance, rel=4 * math.sqrt(2 / n))
    assert stats.kstest(x[:, -1], "norm", args=(mean, math.sqrt(variance))).pvalue > 1e-3


@pytest.mark.parametrize("system", [CONSTANT, VARIABLE], ids=["constant", "variable"])
def test_neither_chunks_nor_threads_nor_company_matter(system, monkeypatch):
    expected = simulate(system, 300, 4, DT, seed=9).to_array()
    threads = torch.get_num_threads()
    try:
        for chunk, count in ((7, 1), (64, 2), (1000, 1), (8192, 3)):
            monkeypatch.setattr(euler, "CHUNK", chunk)
            torch.set_num_threads(count)
            np.testing.assert_array_equal(simulate(system, 300, 4, DT, seed=9).to_array(), expected)
    finally:
        torch.set_num_threads(threads)
    np.testing.assert_array_equal(simulate(system, 41, 4, DT, seed=9).to_array(), expected[:41])
    np.testing.assert_array_equal(simulate(system, 300, 2, DT, seed=9).to_array(), expected[:, :3])
    assert (simulate(system, 300, 4, DT, seed=10).to_array() != expected).all()


def test_constant_functions_draw_the_noise_of_constants():
    same = Dynamics(lambda x: 5 + 0 * x, 4.0, lambda x: 3 + 0 * x, 0.3)
    np.testing.assert_array_equal(
        simulate(same, 100, 5, DT, seed=1).to_array(), simulate(CONSTANT, 100, 5, DT, seed=1).to_array()
    )


def test_streams_are_uniform_and_independent():
    u = np.empty((2, 50_000))
    kernels.uniforms(kernels.stream_keys(123, 0, 0, 50_000), 0, u)
    assert stats.kstest(u[0], "uniform").pvalue > 1e-3
    grid, _, _ = np.histogram2d(u[0], u[1], bins=16, range=[[0, 1], [0, 1]])
    assert stats.chisquare(grid.ravel()).pvalue > 1e-3  # neighbours within a stream
    grid, _, _ = np.histogram2d(u[0, :-1], u[0, 1:], bins=16, range=[[0, 1], [0, 1]])
    assert stats.chisquare(grid.ravel()).pvalue > 1e-3  # neighbouring trajectories
    longer = np.empty((1, 50_000))
    kernels.uniforms(kernels.stream_keys(124, 0, 0, 50_000), 0, longer)
    assert abs(np.corrcoef(u[0], longer[0])[0, 1]) < 4 / math.sqrt(50_000)  # neighbouring seeds


def test_initial_states():
    system = Dynamics(1.0, 1.0, 1.0, 0.5, period=4.0, origin=-3.0)
    start = simulate(system, 5000, 1, DT, seed=1).to_array()[:, 0]
    assert stats.kstest(start, "uniform", args=(-3.0, 4.0)).pvalue > 1e-3
    assert (simulate(system, 4, 1, DT, x0=2.5).to_array()[:, 0] == 2.5).all()
    assert simulate(system, 3, 1, DT, x0=torch.tensor([1.0, 2.0, 3.0])).to_array()[:, 0].tolist() == [1.0, 2.0, 3.0]
    plane = Dynamics(0.0, 1.0, 1.0, 0.5, dim=2)
    assert simulate(plane, 3, 1, DT, x0=[1.0, 2.0]).to_array()[:, 0].tolist() == [[1.0, 2.0]] * 3


def test_shapes_and_dt():
    paths = simulate(CONSTANT, 3, 40, DT)
    assert paths.to_array().shape == (3, 41)
    assert paths.dt == DT
    assert paths.to_array().dtype == np.float64


def test_progress_is_shown_when_asked_for(capsys):
    simulate(CONSTANT, 10, 1, DT, progress=True)
    assert "simulate" in capsys.readouterr().err
    simulate(CONSTANT, 10, 1, DT)
    assert capsys.readouterr().err == ""


def test_leaving_float64_is_an_error():
    with pytest.raises(NumericalError, match="alpha is too small"):
        simulate(Dynamics(0.0, 1.0, 1e3, 0.003), 2000, 10, 10.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(n_trajectories=0), "n_trajectories must be a positive integer, found 0"),
        (dict(n_steps=1.5), "n_steps must be a positive integer, found 1.5"),
        (dict(substeps=0), "substeps must be a positive integer"),
        (dict(dt=-1.0), "dt must be a positive number, found -1.0"),
        (dict(dt=None), "dt must be a positive number, found None"),
        (dict(seed=-1), "seed must be an integer"),
        (dict(seed=0.5), "seed must be an integer"),
        (dict(sampler="milstein"), "sampler must be one of euler, found 'milstein'"),
        (dict(x0=[1.0, 2.0]), r"x0 must be a number or of shape \(4,\), found shape \(2,\)"),
        (dict(x0=[1.0, math.nan, 0.0, 0.0]), "x0 must be finite, found nan for trajectory 1"),
        (dict(x0="left"), "x0 must be numeric"),
        (dict(dynamics="constant"), "dynamics must be a Dynamics, found str"),
        (dict(dynamics=Dynamics(0.0, 1.0, 1.0, 0.5, period=math.inf)), "x0 must be given for a system on a line"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        simulate(**{**dict(dynamics=CONSTANT, n_trajectories=4, n_steps=2, dt=DT), **arguments})


def test_a_drift_too_steep_for_a_step_is_followed():
    """b = x - x^3 has the flow x e^t / sqrt(1 + x^2 (e^2t - 1)); an explicit step from 300 would end at -27,000."""
    x = torch.tensor([-1e8, -300.0, -8.0, -1.0, 0.0, 0.01, 1.5, 60.0], dtype=torch.float64)
    for h in (1e-3, 1e-2):
        there = x + h * effective_drift(lambda y: y - y**3, x, x - x**3, h)
        flow = x * math.exp(h) / torch.sqrt(1 + x**2 * math.expm1(2 * h))
        assert torch.allclose(there, flow, rtol=0.06, atol=1e-12)
        assert torch.allclose(there[3:7], flow[3:7], rtol=1e-3)


def test_the_double_well_stays_together():
    paths = simulate(Dynamics.named("double_well"), 200, 100, 0.01, seed=1).to_array()
    assert np.abs(paths[:, 0]).max() < 2
    assert 0.8 < np.quantile(np.abs(paths[:, 50:]), 0.5) < 1.4
    assert np.isfinite(paths).all()
    far = simulate(Dynamics.named("double_well"), 50, 1, 0.01, x0=50.0, seed=1).to_array()
    assert 4 < np.median(far[:, 1]) < 10  # the flow alone reaches 7.1 in that time, whatever it comes from
