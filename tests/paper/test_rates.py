from __future__ import annotations

import pytest
import torch

from benchmarks.paper.rates import CORRELATION, PERTURBATIONS, fit_slope, rate_study
from levytorch import Dynamics
from levytorch.coefficients import FourierBasis
from levytorch.errors import InputError, LevytorchWarning
from tests.policy.problems import cos3

EPS = [0.01, 0.003, 0.001]


@pytest.mark.parametrize("perturbation", ["noise", "gaussian", "wedge", "white"])
def test_error_is_linear_in_the_perturbation(perturbation: str) -> None:
    d = Dynamics.named("asymptotic")
    study = rate_study(d, EPS, n_trials=1000, n_modes=64, perturbation=perturbation)
    # independent draws per eps: the mean of 1000 errors with a relative spread of about 0.7 is good to 2 %, and over a
    # factor of ten in eps (log 2.3) the slope to about 0.015
    assert study.slope_c0 == pytest.approx(1.0, abs=0.06)
    assert study.slope_c2 == pytest.approx(1.0, abs=0.04)
    assert study.error_c0.shape == (3, 1000)
    assert bool((study.error_c2 > study.error_c0).all())


def test_trials_are_solutions_of_perturbed_problems() -> None:
    """The same draw, solved by hand with dense matrices of another construction: collocation values, numpy only."""
    import math

    import numpy as np

    d = Dynamics.named("asymptotic")
    n, beta, eps = 15, 0.1, [0.02, 0.01]
    study = rate_study(d, eps, n_trials=2, n_modes=n, perturbation="white", seed=5)
    generator = torch.Generator().manual_seed(5)
    noise = [torch.randn((2, n), generator=generator, dtype=torch.float64).numpy() for _ in range(3)]
    x = 2 * math.pi * np.arange(n) / n
    k = np.fft.fftfreq(n, 1 / n)
    F = np.fft.fft(np.eye(n), axis=0)
    D1, D2, Df = (np.real(np.fft.ifft(s[:, None] * F, axis=0)) for s in (1j * k, -(k**2), np.abs(k) ** 0.6))
    exact = [np.asarray(f(torch.from_numpy(x))) for f in (d.b, d.D_o, d.D_f)]

    def L(b: np.ndarray, D_o: np.ndarray, D_f: np.ndarray) -> np.ndarray:
        return b[:, None] * D1 + D_o[:, None] * D2 - D_f[:, None] * Df

    V = cos3(torch.from_numpy(x)).numpy()
    r = beta * V - L(*exact) @ V
    for trial in range(2):
        moved = [f + eps[0] * z[trial] for f, z in zip(exact, noise)]
        error = np.linalg.solve(beta * np.eye(n) - L(*moved), r) - V
        assert float(study.error_c0[0, trial]) == pytest.approx(np.abs(error).max(), rel=1e-8)
        c2 = sum(np.abs(M @ error).max() for M in (np.eye(n), D1, D2))
        assert float(study.error_c2[0, trial]) == pytest.approx(c2, rel=1e-8)


def test_the_noise_is_the_process_it_says() -> None:
    """Variance one and covariance exp(-d^2 / (2 l^2)) over 20,000 draws; standard errors of products are below 0.01."""
    basis = FourierBasis(24, 3.0, 0.5)
    z = PERTURBATIONS["noise"](basis, 20_000, torch.Generator().manual_seed(0))
    found = (z.T @ z / len(z))[0]
    distance = (basis.points() - basis.origin).clone()
    distance = torch.minimum(distance, basis.period - distance)
    expected = torch.exp(-0.5 * (distance / (CORRELATION * basis.period)) ** 2)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.04)


def test_the_level_does_not_depend_on_the_grid() -> None:
    """The same functions on two grids: what differs is the resolution of V, and of the maximum of its error, which the
    coarser grid looks for at half as many points. White noise averages out on the finer one, by about sqrt(2)."""
    d = Dynamics.named("asymptotic")
    levels = {}
    for kind in ("noise", "white"):
        coarse, fine = (rate_study(d, EPS, n_trials=400, n_modes=n, perturbation=kind, seed=2) for n in (64, 128))
        for norm in ("error_c0", "error_c2"):
            a, b = (getattr(study, norm).mean(-1) for study in (coarse, fine))
            levels[kind, norm] = float((b / a).mean())
    assert levels["noise", "error_c0"] == pytest.approx(1.0, abs=0.01)
    assert levels["noise", "error_c2"] == pytest.approx(1.0, abs=0.05)
    assert levels["white", "error_c0"] < 0.85


def test_the_seed_decides() -> None:
    d = Dynamics.named("asymptotic")
    one, same, other = (rate_study(d, EPS, n_trials=5, n_modes=16, seed=s) for s in (0, 0, 1))
    assert torch.equal(one.error_c0, same.error_c0)
    assert not torch.equal(one.error_c0, other.error_c0)


def test_perturbations_that_leave_the_theorem_warn() -> None:
    with pytest.warns(LevytorchWarning, match="not positive"):
        rate_study(Dynamics.named("asymptotic"), [1.0, 0.01, 0.001], n_trials=20, n_modes=16)


def test_fit_slope() -> None:
    eps = torch.tensor([1e-3, 1e-2, 1e-1], dtype=torch.float64)
    assert fit_slope(eps, 5 * eps**2) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eps": [0.01]}, "two or more positive numbers"),
        ({"eps": 0.01}, "two or more positive numbers, found 0.01"),
        ({"eps": ["a", "b"]}, "two or more positive numbers"),
        ({"eps": [0.01, -0.1]}, "two or more positive numbers"),
        ({"eps": [0.3, 0.1]}, "two different sizes of at most"),
        ({"eps": [0.01, 0.01]}, "two different sizes of at most"),
        ({"eps": EPS, "perturbation": "square"}, "noise, gaussian, wedge"),
        ({"eps": EPS, "n_trials": 0}, "n_trials"),
        ({"eps": EPS, "beta": 0.0}, "beta"),
    ],
)
def test_refuses(arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rate_study(Dynamics.named("asymptotic"), **{"n_trials": 2, "n_modes": 8, **arguments})
