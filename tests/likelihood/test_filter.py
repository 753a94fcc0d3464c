"""The filter of noisy observations against a Kalman filter, integration over a grid of states, and differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from levytorch import Transitions, log_density
from levytorch.coefficients import LinearHead
from levytorch.coefficients.build import build_head
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.filter import Chains, NoisyLikelihood
from levytorch.likelihood.frozen import FrozenLaw

D, B, DT, S = 0.3, 0.4, 0.05, 0.15


def head(**options: object) -> LinearHead:
    made = build_head({"name": "fourier", "n_basis": 5, "alpha": 0.6, "alpha_mode": "fixed", **options})
    assert isinstance(made, LinearHead)
    return made


def constants(**options: object) -> LinearHead:
    made = head(n_basis=1, D_f=0.0, **options)
    made.set_constants(B, D, 0.0)
    return made


def varied(**options: object) -> LinearHead:
    """Coefficients that depend on the state."""
    made = head(**options)
    made.set_constants(0.3, 0.4, 0.2)
    made.set_flat(made.flat() + 0.25 * torch.sin(torch.arange(len(made.flat()), dtype=torch.float64)))
    return made


def random_walks(n: int = 12, steps: int = 40, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    dx = B * DT + math.sqrt(2 * D * DT) * rng.standard_normal((n, steps))
    x = np.cumsum(np.concatenate([rng.uniform(0, 6, (n, 1)), dx], axis=1), axis=1)
    return x + S * rng.standard_normal(x.shape)


def pairs(y: np.ndarray, dt: float | np.ndarray = DT) -> Transitions:
    n, m = y.shape[0], y.shape[1] - 1
    each = dt if isinstance(dt, float) else dt.reshape(-1)
    return Transitions(y[:, :-1].reshape(-1), np.diff(y).reshape(-1), each, trajectory=np.repeat(np.arange(n), m))


def kalman(y: np.ndarray, b: float, D_o: float, s: float) -> np.ndarray:
    """log p of every observation given those before, (n, m); the first state has a flat prior."""
    out = np.empty((len(y), y.shape[1] - 1))
    for row, values in zip(y, out):
        mean, variance = row[0], s * s
        for i, seen in enumerate(row[1:]):
            mean, variance = mean + b * DT, variance + 2 * D_o * DT
            total = variance + s * s
            values[i] = -0.5 * math.log(2 * math.pi * total) - 0.5 * (seen - mean) ** 2 / total
            gain = variance / total
            mean, variance = mean + gain * (seen - mean), (1 - gain) * variance
    return out


def likelihood(own: LinearHead, data: Transitions, law: FrozenLaw | ExactLaw | None = None) -> NoisyLikelihood:
    return NoisyLikelihood(own, law or FrozenLaw("contour"), Chains.of(data, own.period), 1.0)


@pytest.mark.parametrize("s", [0.02, 0.15, 0.5])
def test_without_jumps_it_is_a_kalman_filter(s: float) -> None:
    y = random_walks()
    found = likelihood(constants(), pairs(y)).steps(s)
    # the table is interpolated
    assert float((found - torch.from_numpy(kalman(y, B, D, s).reshape(-1))).abs().max()) < 2e-4


def test_slopes_and_information_are_those_of_a_kalman_filter() -> None:
    y, own, h = random_walks(), constants(), 1e-5
    filtered = likelihood(own, pairs(y))
    changes = {"b": (h, 0.0, 1.0), "D_o": (0.0, h, 1.0), "s": (0.0, 0.0, math.exp(h))}
    rows = []
    for b, D_o, factor in changes.values():
        up, down = kalman(y, B + b, D + D_o, S * factor), kalman(y, B - b, D - D_o, S / factor)
        rows.append((up - down).reshape(-1) / (2 * h))
    J_b, J_D_o = (float(J[0, k]) for k, J in enumerate(own.jacobian(torch.zeros(1, dtype=torch.float64))[:2]))
    scores = torch.from_numpy(np.stack([J_b * rows[0], J_D_o * rows[1], rows[2]]))
    slopes = filtered.evaluate(S).slopes
    torch.testing.assert_close(slopes, scores.sum(1), rtol=2e-3, atol=2e-2)
    outer, total = filtered.information(S)
    torch.testing.assert_close(outer, scores @ scores.T, rtol=2e-2, atol=0.5)
    torch.testing.assert_close(total, slopes, rtol=1e-2, atol=0.2)


def by_grid(own: LinearHead, y: np.ndarray, dt: np.ndarray, s: float) -> float:
    """The states integrated over one even grid, with the law itself."""
    states = torch.linspace(float(y.min()) - 1.5, float(y.max()) + 1.5, 401, dtype=torch.float64)
    h, c = states[1] - states[0], own(states)

    def seen(value: float) -> Tensor:
        return torch.exp(-0.5 * ((value - states) / s) ** 2) / (s * math.sqrt(2 * math.pi))

    a = seen(y[0])  # times a flat prior
    for value, step in zip(y[1:], dt):
        apart = states[None, :] - states[:, None]
        columns = (v.reshape(-1, 1) if v.dim() else v for v in c[:4])
        p = log_density(apart, *columns, torch.tensor(step), method="contour").exp()
        a = h * (a @ p) * seen(value)
    return float((h * a.sum()).log())


def test_few_points_are_integrated_over_a_grid() -> None:
    own, y = varied(), np.array([[0.4, 0.65, 2.4, 2.3]])
    for s in (0.1, 0.3):
        with torch.no_grad():
            expected = by_grid(own, y[0], np.full(3, DT), s)
        assert likelihood(own, pairs(y)).value(s) == pytest.approx(expected, abs=1e-4)


def test_times_of_any_length() -> None:
    """Many lengths of a step are interpolated."""
    own, rng = varied(), np.random.default_rng(3)
    dt = rng.uniform(0.03, 0.12, (16, 3))
    y = 1.0 + np.cumsum(0.3 * rng.standard_normal((16, 4)), axis=1)
    with torch.no_grad():
        expected = sum(by_grid(own, row, own_dt, 0.2) for row, own_dt in zip(y[:3], dt))
    some = likelihood(own, pairs(y, dt))
    assert len(some.times) > 12
    assert float(some.steps(0.2)[:9].sum()) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("law", ["frozen", pytest.param("exact", marks=pytest.mark.long)])
def test_slopes_are_differences_of_the_likelihood(law: str) -> None:
    own, data = varied(alpha_mode="constant"), pairs(random_walks(4, 20))
    kind = FrozenLaw("contour") if law == "frozen" else ExactLaw(1e-6).fixed(own, torch.tensor([DT]))
    filtered, theta, h = likelihood(own, data, kind), own.flat(), 1e-5
    slopes = filtered.evaluate(S).slopes
    for i in range(0, len(theta), 3):
        values = []
        for sign in (1.0, -1.0):
            moved = theta.clone()
            moved[i] += sign * h
            own.set_flat(moved)
            values.append(filtered.value(S))
        own.set_flat(theta)
        assert float(slopes[i]) == pytest.approx((values[0] - values[1]) / (2 * h), rel=1e-4, abs=1e-4)
    by_s = (filtered.value(S * math.exp(h)) - filtered.value(S * math.exp(-h))) / (2 * h)
    assert float(slopes[-1]) == pytest.approx(by_s, rel=1e-3, abs=2e-2)  # nodes move with s, and so does what they read


def test_wrapped_angles_are_the_same_data() -> None:
    own, y = varied(), random_walks(3, 30)
    turned = pairs(y)
    wrapped = Transitions(torch.remainder(turned.x, 2 * math.pi), turned.dx, DT, trajectory=turned.trajectory.numpy())
    assert len(Chains.of(wrapped, 2 * math.pi).begins) == 3
    assert likelihood(own, wrapped).value(S) == pytest.approx(likelihood(own, turned).value(S), abs=1e-6)


def test_a_gap_ends_a_chain() -> None:
    own, data = varied(), pairs(random_walks(1, 30))
    kept = torch.ones(30, dtype=torch.bool)
    kept[12] = False
    broken = data[kept]
    assert len(Chains.of(broken, 2 * math.pi).begins) == 2
    parts = sum(likelihood(own, part).value(S) for part in (data[:12], data[13:]))
    assert likelihood(own, broken).value(S) == pytest.approx(parts, abs=1e-3)


def test_without_noise_it_is_the_likelihood_of_the_pairs() -> None:
    own, data = varied(), pairs(random_walks(3, 30))
    with torch.no_grad():
        expected = FrozenLaw("contour").log_prob(own, data.x, data.dx, data.dt)
    assert float((likelihood(own, data).steps(0.0) - expected).abs().max()) < 1e-4


def test_drawn_states_have_the_mean_and_the_variance_of_a_smoother() -> None:
    """One state between two observed ones, many times; the bound is four standard errors."""
    n, y = 4000, np.array([0.0, 0.5, 0.2])
    repeated = likelihood(constants(), pairs(np.tile(y, (n, 1))))
    x = repeated.drawn(S, 1)[0].reshape(n, 2)[:, 1]
    # the joint normal density of three states given three observations
    step, noise = 1 / (2 * D * DT), 1 / S**2
    precision = np.diag([step, 2 * step, step]) - step * (np.eye(3, k=1) + np.eye(3, k=-1)) + noise * np.eye(3)
    shift = noise * y + step * B * DT * np.array([-1.0, 0.0, 1.0])
    covariance = np.linalg.inv(precision)
    mean, variance = float((covariance @ shift)[1]), float(covariance[1, 1])
    assert abs(float(x.mean()) - mean) < 4 * math.sqrt(variance / n)
    assert abs(float(x.var()) / variance - 1) < 4 * math.sqrt(2 / n) + 0.01  # and what the nodes leave
