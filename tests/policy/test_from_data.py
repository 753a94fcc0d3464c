"""V from pairs: every method against equations that are written out here, known answers, and its own error bars."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from levytorch import (
    ControlledDynamics,
    Dynamics,
    Transitions,
    log_density,
    recover,
    simulate,
    solve_value,
    tail_probability,
)
from levytorch import value_from_data as public
from levytorch.errors import InputError, LevytorchWarning
from levytorch.policy import ValueFunction
from levytorch.policy.bases import CircleBasis
from levytorch.policy.blocked import SHARES, STRENGTHS, Equations, block_rows, resampled, shrink
from levytorch.policy.diffusions import displacements, fit_brownian, phibe
from levytorch.policy.estimation import DataValue, Estimation
from levytorch.policy.from_data import METHODS, value_from_data
from levytorch.policy.lstd import Moments, hybrid, lstd, moments, residuals, reward_weights
from levytorch.policy.model_step import Model, within
from tests.policy.problems import LinearRecovery, smooth, smooth_reward

X = torch.linspace(0, 2 * math.pi, 101, dtype=torch.float64)[:-1]
WIDE = CircleBasis(15)


def reward(x):
    return torch.cos(x) + 0.5 * torch.sin(2 * x) if isinstance(x, torch.Tensor) else np.cos(x) + 0.5 * np.sin(2 * x)


def functions(x: np.ndarray, K: int) -> np.ndarray:
    """(n, K): 1, cos x, sin x, ... as one writes them."""
    waves = [np.cos((k + 1) // 2 * x) if k % 2 else np.sin(k // 2 * x) for k in range(1, K)]
    return np.stack([np.ones_like(x), *waves], axis=1)


def weights(beta: float, dt: float) -> tuple[float, float]:
    """Integrals over a step of e^{-beta s} (1 - s / dt) and of e^{-beta s} s / dt."""
    early = quad(lambda s: math.exp(-beta * s) * (1 - s / dt), 0, dt)[0]
    return early, quad(lambda s: math.exp(-beta * s) * s / dt, 0, dt)[0]


@pytest.fixture(scope="module")
def pairs() -> Transitions:
    return simulate(smooth(), 90, 20, 0.1, seed=3).transitions()


@pytest.fixture(scope="module")
def two_steps(pairs) -> Transitions:
    dt = torch.where(torch.arange(len(pairs)) % 3 == 0, 0.1, 0.25)
    return Transitions(pairs.x, pairs.dx, dt, trajectory=pairs.trajectory)


# -- the equations ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("data", ["pairs", "two_steps"])
def test_lstd_solves_the_equations_of_all_pairs(data, request) -> None:
    data, K, beta = request.getfixturevalue(data), 5, 0.7
    x, y, dt = data.x.numpy(), (data.x + data.dx).numpy(), data.dt.numpy()
    phi, then = functions(x, K), functions(y, K)
    A = phi.T @ (phi - np.exp(-beta * dt)[:, None] * then)
    of_step = {step: weights(beta, step) for step in np.unique(dt)}
    early, late = np.array([of_step[step] for step in dt]).T
    g = phi.T @ (early * reward(x) + late * reward(y))
    equations = lstd(moments(data, WIDE, K), WIDE.series(reward), beta)
    np.testing.assert_allclose(equations.solve(0.0), np.linalg.solve(A, g), rtol=1e-9)
    ridge = 0.01 * np.diag(np.abs(np.diag(A)) * np.array([0, 1, 1, 2, 2]) ** 4)
    np.testing.assert_allclose(equations.solve(0.01), np.linalg.solve(A + ridge, g), rtol=1e-9)


def test_weights_of_the_reward_for_steps_of_any_length() -> None:
    for beta, dt in ((1e-9, 0.1), (0.1, 1 / 40), (10.0, 2.0)):
        assert reward_weights(beta, dt) == pytest.approx(weights(beta, dt), rel=1e-7)


def test_the_strength_is_the_one_that_predicts_blocks_left_out(pairs) -> None:
    K, beta = 9, 1.0
    equations = lstd(moments(pairs, WIDE, K), WIDE.series(reward), beta)
    A, g = equations.A.numpy(), equations.g.numpy()
    B, whole = len(A), A.sum(0)
    P = np.diag(np.abs(np.diag(whole)) * (np.arange(1, K + 1) // 2) ** 4.0)
    gram = sum(
        functions(pairs.x.numpy()[rows], K).T @ functions(pairs.x.numpy()[rows], K) for rows in block_rows(pairs)
    )
    metric, losses = gram / len(pairs), []
    for s in STRENGTHS:
        loss = 0.0
        for b in range(B):
            c = np.linalg.solve(whole - A[b] + s * (B - 1) / B * P, g.sum(0) - g[b])
            e = B * np.linalg.solve(whole + STRENGTHS[1] * P, A[b] @ c - g[b])
            loss += (e @ metric @ e - (e @ metric[0]) ** 2) / B  # the variance of e over the states of the data
        losses.append(loss)
    found = [float(equations.errors(equations.held_out(s))[0].mean()) for s in STRENGTHS]
    np.testing.assert_allclose(found, losses, rtol=1e-8)
    assert equations.best_strength() == STRENGTHS[int(np.argmin(losses))]


def test_a_replica_is_the_solution_of_the_blocks_that_were_drawn(pairs) -> None:
    equations = lstd(moments(pairs, WIDE, 5), WIDE.series(reward), 1.0)
    times = resampled(equations.n_blocks, 3, seed=1)
    assert bool((times.sum(1) == equations.n_blocks).all())
    for c, row in zip(equations.solve(0.0, times), times):
        drawn = torch.cat([torch.full((int(n),), k) for k, n in enumerate(row)])
        A, g = equations.A[drawn].sum(0), equations.g[drawn].sum(0)
        torch.testing.assert_close(c, torch.linalg.solve(A, g), rtol=1e-9, atol=0)


@pytest.mark.parametrize("order", [1, 2])
def test_phibe_solves_its_equations(pairs, order) -> None:
    K, beta, CT, dt = 5, 0.7, 0.9, 0.1
    x, dx = pairs.x.numpy().reshape(90, 20), pairs.dx.numpy().reshape(90, 20)
    once = np.where(np.abs(dx) <= CT, dx, 0.0)
    b, s = once / dt, once**2 / dt
    if order == 2:
        twice = dx[:, :-1] + dx[:, 1:]
        twice = np.where(np.abs(twice) <= CT, twice, 0.0)
        x, once = x[:, :-1], once[:, :-1]
        b, s = (2 * once - twice / 2) / dt, (2 * once**2 - twice**2 / 2) / dt
    x, b, s = x.ravel(), b.ravel(), s.ravel()
    phi = functions(x, K)
    first = np.stack([0 * x, -np.sin(x), np.cos(x), -2 * np.sin(2 * x), 2 * np.cos(2 * x)], axis=1)
    second = -phi * np.array([0, 1, 1, 4, 4])
    A = phi.T @ (beta * phi - b[:, None] * first - s[:, None] * second / 2)
    expected = np.linalg.solve(A, phi.T @ reward(x))
    equations = phibe(displacements(pairs, WIDE, K, CT, order), WIDE.series(reward), beta)
    np.testing.assert_allclose(equations.solve(0.0), expected, rtol=1e-8)


def test_a_gap_in_a_trajectory_ends_what_follows_each_other(pairs) -> None:
    kept = pairs[torch.arange(len(pairs)) % 5 != 2]
    found = displacements(kept, WIDE, 3, 9.0, 2)
    assert found.pairs == 90 * sum(1 for i in range(19) if i % 5 != 2 and (i + 1) % 5 != 2)


def test_the_brownian_fit_is_the_maximum_of_the_likelihood_of_the_pairs() -> None:
    system = Dynamics(b=torch.sin, D_o=lambda x: 0.6 + 0.3 * torch.cos(x), D_f=0.0, alpha=0.5)
    data = simulate(system, 200, 40, 0.02, seed=0).transitions()
    found = fit_brownian(data, CircleBasis(3), math.inf)
    theta = found.theta.clone().requires_grad_(True)
    phi = torch.from_numpy(functions(data.x.numpy(), 3))
    b, D = phi @ theta[:3], (phi @ theta[3:]).exp()
    log_p = -0.5 * torch.log(4 * math.pi * D * 0.02) - (data.dx - b * 0.02) ** 2 / (4 * D * 0.02)
    (score,) = torch.autograd.grad(log_p.sum(), theta)
    std = found.covariance.diagonal().sqrt()
    assert float((score * std).abs().max()) < 0.05  # bins of x move the maximum by this part of a standard error
    expected = torch.autograd.functional.hessian(
        lambda t: (-0.5 * (phi @ t[3:]) - (data.dx - phi @ t[:3] * 0.02) ** 2 / (0.08 * (phi @ t[3:]).exp())).sum(),
        found.theta,
    )
    fisher = torch.linalg.inv(-expected).diagonal().sqrt()
    assert float((std / fisher - 1).abs().max()) < 0.45  # from 60 blocks: 4 / sqrt(2 * 59) = 0.37, and 6 of them


# -- model and data ---------------------------------------------------------------------------------------------------
def infinite(model: Model, core: tuple[float, float] | None, K: int) -> tuple[Moments, list]:
    """Moments of endless data of the model itself: what lands is what the model expects."""
    step = model.step(0.1, core)
    x = torch.linspace(0, 2 * math.pi, 1201, dtype=torch.float64)[:-1]
    density = 1 + 0.3 * torch.cos(x)  # of starting states
    Phi = model.basis.matrix(x)
    start = torch.einsum("p,pk,pn->kn", density, Phi[:, :K], Phi)
    start = torch.stack([0.4 * start, 0.6 * start])[None]
    return Moments(model.basis, torch.tensor([0.1]), torch.full((1, 2), 600.0), start, start @ step.C), [step]


@pytest.mark.parametrize("core", [None, (-1.4, 1.6)])
def test_on_its_own_endless_data_a_model_needs_no_correction(core) -> None:
    basis = CircleBasis(61)
    r = basis.series(smooth_reward)
    model = Model.of(smooth(), basis, r, 0.5)
    found, steps = infinite(model, core, 25)
    torch.testing.assert_close(
        model.V @ basis.matrix(X).T, solve_value(smooth(), smooth_reward, 0.5)(X), rtol=1e-7, atol=0
    )
    left = residuals(found, model, steps)
    assert float(left.g.abs().max()) < 1e-10 * float(found.start.abs().max())
    assert float(shrink(left).c.abs().max()) < 1e-8
    c = hybrid(found, model, steps).solve(0.0)
    torch.testing.assert_close(basis.matrix(X)[:, :25] @ c, basis.matrix(X) @ model.V, rtol=1e-6, atol=0)


def test_a_wrong_model_is_corrected_by_endless_data() -> None:
    """Whatever the model, reward by reward: the data knows the law, and with it V up to the reward within a step."""
    basis = CircleBasis(61)
    r = basis.series(smooth_reward)
    truth = Model.of(smooth(), basis, r, 0.5)
    found, _ = infinite(truth, None, 25)
    wrong = Model.of(Dynamics(b=0.5, D_o=0.4, D_f=0.3, alpha=0.3), basis, r, 0.5)
    before = float((basis.matrix(X) @ (wrong.V - truth.V)).norm() / (basis.matrix(X) @ truth.V).norm())
    got = wrong.V.clone()
    got[:25] += residuals(found, wrong, [wrong.step(0.1)]).solve(0.0)
    after = float((basis.matrix(X) @ (got - truth.V)).norm() / (basis.matrix(X) @ truth.V).norm())
    assert before > 0.1
    assert after < 2e-3  # the rule for the reward within a step is of second order, dt = 0.1


@pytest.mark.parametrize("core", [None, pytest.param((-3.0, 3.4), marks=pytest.mark.slow)])
def test_what_a_model_adds_moves_with_its_parameters(core) -> None:
    """Against differences of the equations themselves, one parameter after the other."""
    source, basis, dt, beta, h = LinearRecovery(sd=0.01), CircleBasis(61), 0.05, 0.5, 1e-4
    r = basis.series(smooth_reward)
    late = reward_weights(beta, dt)[1]
    model = Model.of(source, basis, r, beta)
    step, Phi = model.step(dt, core), basis.matrix(basis.points())

    def added(p: int, size: float) -> torch.Tensor:
        """R + decay T V + ... at the V of the unmoved model: what is left to the data is C V, unmoved."""
        theta = source.theta.clone()
        theta[p] += size
        other = Model.of(source.moved(theta), basis, r, beta)
        of = other.step(dt, core)
        if core is None:
            return of.reward - late * of.C @ r
        F, R = of.equation(basis, basis.n_modes)
        return R - F @ model.V - late * of.C @ r

    found = model.change().rule(dt, late, step)
    expected = {p: Phi @ (added(p, h) - added(p, -h)) / (2 * h) for p in (0, 2, 4, 6, 7)}  # b, D_o, D_f
    largest = max(float(e.abs().max()) for e in expected.values())
    for p, e in expected.items():
        # lost tails: proportional to D_f up to what else happens in a step
        size = float(e.abs().max()) if core is None else largest
        assert float((Phi @ found[:, p] - e).abs().max()) < (1e-5 if core is None else 0.1) * size


def test_the_core_of_a_step_with_constant_coefficients() -> None:
    b, D_o, D_f, alpha, dt, low, high = 1.0, 0.8, 0.6, 0.4, 0.1, -1.5, 1.9
    C, lost = within(Dynamics(b=b, D_o=D_o, D_f=D_f, alpha=alpha), CircleBasis(33), dt, low, high)
    beyond = float(tail_probability(1.7, 0.2, b, D_o, D_f, alpha, dt))
    assert float((lost - beyond).abs().max()) < 1e-5 * beyond + 1e-6

    def mean(f) -> float:
        return quad(lambda y: f(y) * math.exp(float(log_density(y, b, D_o, D_f, alpha, dt))), low, high, epsabs=1e-10)[
            0
        ]

    for k in (1, 3, 7):
        cos, sin = (mean(lambda y, k=k, f=f: f(k * y)) / (1 - beyond) for f in (math.cos, math.sin))
        # E cos(k (x + y)) = cos(k x) E cos(k y) - sin(k x) E sin(k y)
        assert float(C[2 * k - 1, 2 * k - 1]) == pytest.approx(cos, abs=2e-6)
        assert float(C[2 * k, 2 * k - 1]) == pytest.approx(-sin, abs=2e-6)


def test_without_shrinkage_the_correction_ends_at_the_hybrid(pairs) -> None:
    """V_m + (hybrid's solution for its residual) = hybrid, for a V_m that the functions can write and r = 0 within."""
    K, basis = 15, CircleBasis(41)
    r = basis.series(lambda x: torch.zeros_like(x))
    model = Model.of(smooth(), basis, r, 0.5)
    V = torch.zeros(41, dtype=torch.float64)
    V[:7] = torch.randn(7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = Model(basis, model.generator, V, r, 0.5, model.system)
    found, steps = moments(pairs, basis, K), [model.step(0.1)]
    both = V[:K] + residuals(found, model, steps).solve(0.0)
    torch.testing.assert_close(both, hybrid(found, model, steps).solve(0.0), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("size", [0.0, 0.3])
def test_a_correction_is_kept_as_far_as_blocks_left_out_confirm_it(pairs, size) -> None:
    """Against the whole procedure repeated without every block, the model's own fit included, loop by loop."""
    equations = residuals_of(pairs, size)
    A, g, gram, K = equations.A.numpy(), equations.g.numpy(), equations.metric.numpy(), len(equations.wave)
    B, whole = len(A), A.sum(0)
    P = np.diag(np.abs(np.diag(whole)) * (np.arange(1, K + 1) // 2) ** 4.0)
    influence = 0.01 * np.random.default_rng(1).standard_normal((B, K))

    def errors(level: float, rest: float, s: float) -> tuple[float, float]:
        shape = mean = 0.0
        for b in range(B):
            A_b, g_b = whole - A[b], g.sum(0) - g[b]
            start = -influence[b]  # the model without the block, counted from the one with it
            c = np.linalg.solve(A_b + s * (B - 1) / B * P, g_b - A_b @ start)
            V = start + np.array([level] + [rest] * (K - 1)) * c
            e = B * np.linalg.solve(whole + STRENGTHS[1] * P, A[b] @ V - g[b])
            mean += (e @ gram[0]) ** 2
            shape += e @ gram @ e - (e @ gram[0]) ** 2
        return shape, mean

    tried = {(rest, s): errors(1.0, rest, s)[0] for rest in SHARES for s in STRENGTHS[1::4]}
    found = shrink(equations, torch.from_numpy(influence))
    least = errors(1.0, found.share[1], found.strength)[0]
    assert least <= min(tried.values()) * (1 + 1e-9)
    levels = [errors(level, found.share[1], found.strength)[1] for level in SHARES]
    assert found.share[0] == SHARES[int(np.argmin(levels))]
    expected = np.linalg.solve(whole + found.strength * P, g.sum(0))
    keep = np.array([found.share[0]] + [found.share[1]] * (K - 1))
    np.testing.assert_allclose(found.c, keep * expected, rtol=1e-8, atol=1e-10)
    assert found.share == ((1.0, 1.0) if size else found.share)


def residuals_of(pairs: Transitions, size: float) -> Equations:
    """Equations of the pairs whose solution is noise (size 0) or far from it."""
    found = lstd(moments(pairs, WIDE, 5), WIDE.series(reward), 1.0)
    c = found.solve(0.0)
    noise = found.g - torch.einsum("bij,j->bi", found.A, c)
    far = torch.einsum("bij,j->bi", found.A, torch.full((5,), 100.0 * size, dtype=torch.float64))
    return Equations(found.A, noise + far, found.metric, found.wave)


# -- known answers and error bars -------------------------------------------------------------------------------------
def truth_of_cosine(beta: float, b: float = 5.0, D_o: float = 4.0, D_f: float = 3.0) -> torch.Tensor:
    """V of cos on a circle with constant coefficients: Re e^{ix} / (beta - i b + D_o + D_f)."""
    return (torch.exp(1j * X) / (beta - 1j * b + D_o + D_f)).real


@pytest.fixture(scope="module")
def constant():
    data = simulate(Dynamics.named("constant"), 600, 40, 1 / 40, seed=5).transitions()
    return data, recover(data, alpha=0.3, n_basis=1)


@pytest.mark.parametrize("method", ["lstd", "hybrid", "model", "corrected"])
def test_known_v_lies_within_the_errors(constant, method) -> None:
    data, recovery = constant
    V = value_from_data(data, torch.cos, 1.0, method=method, recovery=recovery, n_basis=3)
    z = (V(X) - truth_of_cosine(1.0)) / V.std(X)
    # three functions: the square of the distance is at most chi^2 of 3, whose 1e-4 quantile is 4.6^2
    assert float(z.abs().max()) < 4.6
    assert 0.003 < float(V.std(X).norm() / truth_of_cosine(1.0).norm()) < 0.3


@pytest.mark.slow
def test_lost_tails_bias_lstd_and_not_the_hybrid() -> None:
    truth, beta = Dynamics.named("constant"), 1.0
    whole = simulate(truth, 6000, 40, 1 / 40, seed=2).transitions()
    data = whole.censor(CT=1.5, TRT=3.0, drop_tail=0.5)
    recovery = recover(data, alpha=0.3, n_basis=1, tail={"CT": 1.5, "TRT": 3.0, "method": "conditional"})
    given = {"recovery": recovery, "n_basis": 3}
    with pytest.warns(LevytorchWarning, match="large jumps were removed"):
        lost = value_from_data(data, torch.cos, beta, method="lstd", **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = value_from_data(data, torch.cos, beta, method="hybrid", **given)
    z = [float(((V(X) - truth_of_cosine(beta)) / V.std(X)).abs().max()) for V in (lost, kept)]
    assert z[0] > 6
    assert z[1] < 4.6
    assert "Large jumps are missing" in lost.describe()
    assert "Large jumps are missing" not in kept.describe()


def test_diffusions_are_what_phibe_and_a_brownian_fit_are_right_about() -> None:
    system = Dynamics(b=1.0, D_o=0.8, D_f=0.0, alpha=0.5)
    data = simulate(system, 600, 40, 0.02, seed=1).transitions()
    true = truth_of_cosine(0.5, 1.0, 0.8, 0.0)
    bias = {("phibe", 1): 0.5 * 0.02 * (1.0 + 0.8) ** 2 / 0.8}  # of moments of first order, relative and at most
    for method, order in (("phibe", 1), ("phibe", 2), ("brownian", 1)):
        V = value_from_data(data, torch.cos, 0.5, method=method, order=order, n_basis=3)
        assert float(((V(X) - true).abs() - bias.get((method, order), 0.0) * true.abs().max()).max()) < 4.6 * float(
            V.std(X).max()
        )
        assert float(V.std(X).max()) < 0.2 * float(true.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lstd", "hybrid", "phibe", "brownian", "corrected"])
def test_errors_from_blocks_are_those_over_data_sets(method) -> None:
    n, values, stds = 40, [], []
    for seed in range(n):
        data = simulate(Dynamics.named("constant"), 400, 40, 1 / 40, seed=100 + seed).transitions()
        V = value_from_data(data, torch.cos, 1.0, method=method, n_basis=3, recovery=None, alpha=0.3)
        values.append(V(X))
        stds.append(V.std(X))
    spread, told = torch.stack(values).std(0), torch.stack(stds).pow(2).mean(0).sqrt()
    # a standard deviation from 40 data sets has a relative error of 1 / sqrt(78) = 11 %
    ratio = float(told.norm() / spread.norm())
    assert 1 - 3 * 0.113 < ratio < 1 + 3 * 0.113


# -- the door ---------------------------------------------------------------------------------------------------------
def test_what_comes_back_says_what_it_is_and_can_be_kept(constant, tmp_path) -> None:
    data, recovery = constant
    assert public is value_from_data
    for method in METHODS:
        V = value_from_data(data, torch.cos, 1.0, method=method, recovery=recovery, n_basis=3, n_bootstrap=20)
        assert isinstance(V, ValueFunction)
        assert V.name in repr(V)
        assert V.name in V.describe()
        assert V.method == method
        W = DataValue.load(V.save(tmp_path / f"{method}.pt"))
        assert W.describe() == V.describe()
        assert torch.equal(W(X), V(X))
        assert torch.equal(W.std(X), V.std(X))
        assert torch.equal(W.derivative(X), V.derivative(X))
    with pytest.raises(InputError, match="saved by levytorch"):
        ValueFunction.load(tmp_path / "lstd.pt")


def test_the_same_seed_gives_the_same_errors(constant) -> None:
    data, _ = constant
    one, two, other = (
        value_from_data(data, torch.cos, 1.0, method="lstd", n_basis=3, seed=seed).std(X) for seed in (0, 0, 1)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    bare = value_from_data(data, torch.cos, 1.0, method="lstd", n_basis=3, n_bootstrap=0)
    with pytest.raises(InputError, match="n_bootstrap=200"):
        bare.std(X)


def test_a_circle_of_another_length_and_origin_is_the_same_circle(pairs) -> None:
    scale, shift = 3.0, 1.7
    other = Transitions(pairs.x * scale + shift, pairs.dx * scale, pairs.dt, trajectory=pairs.trajectory)
    circle = {"period": 2 * math.pi * scale, "origin": shift, "n_basis": 7}
    for method in ("lstd", "phibe", "brownian"):
        V = value_from_data(pairs, reward, 0.7, method=method, n_basis=7)
        W = value_from_data(other, lambda x: reward((x - shift) / scale), 0.7, method=method, **circle)
        torch.testing.assert_close(W(X * scale + shift), V(X), rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(W.std(X * scale + shift), V.std(X), rtol=1e-5, atol=1e-9)


REFUSALS = [
    ({"method": "td"}, "one of lstd"),
    ({"method": "model"}, "alpha must be given"),
    ({"order": 3}, "at most 2"),
    ({"CT": -1.0}, "positive number"),
    ({"n_bootstrap": 1}, "0 or at least 2"),
    ({"n_basis": 0}, "positive integer"),
    ({"beta": -1.0}, "beta must be a positive number"),
    ({"reward": lambda x: x}, "period 6.28"),
    ({"recovery": Dynamics.named("constant"), "alpha": 0.3}, "left out with a recovery"),
    ({"recovery": ControlledDynamics.named("pushes").under(0)}, "found one under a policy"),
    ({"transitions": [1.0, 2.0]}, "must be Transitions, found list"),
    ({"transitions": Transitions(np.zeros((4, 4)), np.ones((4, 4)), 0.1)}, "at most three coordinates here, found 4"),
    ({"transitions": Transitions(np.zeros(40), np.ones(40), np.linspace(0.1, 0.2, 40))}, "at most 12 distinct dt"),
    ({"transitions": Transitions([0.0, 9.0], [1.0, 1.0], 0.1), "method": "phibe", "order": 2}, "follow each other"),
    ({"transitions": Transitions([0.0], [1.0], 0.1), "n_basis": 1}, "at least two blocks"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSALS)
def test_what_cannot_be_done_is_refused_in_a_sentence(pairs, change, sentence) -> None:
    given = {"transitions": pairs, "reward": torch.cos, "beta": 1.0, "method": "lstd"} | change
    with pytest.raises(InputError, match=sentence) as refusal:
        value_from_data(given.pop("transitions"), given.pop("reward"), given.pop("beta"), **given)
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
def test_one_pass_serves_all_methods_and_rewards(constant) -> None:
    data, recovery = constant
    shared = Estimation(data, torch.cos, 1.0, CircleBasis(3), recovery)
    for method in METHODS:
        alone = value_from_data(data, torch.cos, 1.0, method=method, recovery=recovery, n_basis=3)
        assert torch.equal(shared.value(method)(X), alone(X))
