"""The exact law against the frozen law where that is exact, closed forms, composition and finite differences."""

import csv
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from levytorch import Dynamics, InputError, log_density, score, tail_probability, transition_density
from levytorch.coefficients import AlphaSpec, FourierHead
from levytorch.likelihood import exact_kernels
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_rule import SIZES
from tests.likelihood import transition_oracle
from tests.likelihood.expected_batch import expected_batch, information, scores

from .systems import Functions, constant, of_parameters, restoring, restoring_density, smooth

D = torch.float64
DT = torch.tensor(1 / 40, dtype=D)
LAW = ExactLaw()


def uniform(n, low, high, seed):
    return low + (high - low) * torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=D)


def either_sign(size):
    return torch.where(torch.arange(size.shape[0]) % 2 == 0, size, -size)


# ---------------------------------------------------------------------------------------------------- known densities


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_constant_coefficients_give_the_frozen_law(alpha):
    head, x = constant(5.0, 4.0, 3.0, alpha), uniform(600, -20.0, 20.0, 0)
    core = uniform(600, -3.0, 3.0, 1)
    tail = either_sign(10 ** uniform(600, math.log10(3.0), 12.0, 2))
    for dx, tolerance in ((core, 1e-9), (tail, 1e-6)):
        expected = log_density(dx, 5.0, 4.0, 3.0, alpha, DT, method="contour")
        assert float((LAW.log_prob(head, x, dx, DT) - expected).abs().max()) < tolerance


@pytest.mark.parametrize("alpha", [0.03, 0.15, 0.21, 0.23, 0.45, 0.55, 0.98])
def test_every_alpha_has_nodes_that_suit_it(alpha):
    dx = either_sign(10 ** uniform(400, -2.0, 12.0, 3))
    expected = log_density(dx, -2.0, 4.0, 3.0, alpha, 4 * DT, method="contour")
    error = LAW.log_prob(constant(-2.0, 4.0, 3.0, alpha), torch.zeros(400, dtype=D), dx, 4 * DT) - expected
    assert float(error.abs().max()) < 2e-6


def test_reference_of_varying_coefficients():
    """Against the Galerkin oracle, whose table is right to 1e-10."""
    with transition_oracle.TABLE.open() as file:
        rows = torch.tensor([[float(v) for v in row] for row in list(csv.reader(file))[1:]], dtype=D)
    system = Dynamics(
        b=lambda x: 4 * torch.cos(x) + 2 * torch.sin(2 * x),
        D_o=lambda x: torch.exp(torch.sin(x + 1) + 0.5),
        D_f=lambda x: 2 + torch.exp(torch.sin(2 * x) * torch.cos(3 * x)),
        alpha=0.3,
    )
    p = transition_density(system, rows[:, 0], rows[:, 1], 1 / 40)
    assert float((p / rows[:, 2] - 1).abs().max()) < 1e-7


@pytest.mark.long
@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_restoring_drift_has_a_closed_form(alpha):
    rate, D_o, D_f, dt = 8.0, 0.25, 0.1, 1 / 40
    x = np.repeat(np.linspace(-0.12, 0.12, 5), 9)
    landing = np.tile(np.linspace(-0.24, 0.24, 9), 5)
    p = transition_density_of(restoring(rate, D_o, D_f, alpha), x, landing - x, dt)
    expected = restoring_density(x, landing - x, rate, D_o, D_f, alpha, dt)
    frozen = log_density(landing - x, -rate * x, D_o, D_f, alpha, dt).exp().numpy()
    assert np.abs(p / expected - 1).max() < 1e-6
    assert np.abs(frozen / expected - 1).max() > 0.1  # the coefficients do vary within the step


def transition_density_of(head, x, dx, dt):
    with torch.no_grad():
        return LAW.log_prob(head, torch.as_tensor(x), torch.as_tensor(dx), torch.tensor(dt, dtype=D)).exp().numpy()


# ------------------------------------------------------------------------------------------------------ what must hold


def test_two_half_steps_compose_to_one():
    head, spacing = smooth(0.4), 2 * math.pi / 150
    start, middle = 1.0, spacing * torch.arange(-30_000, 30_001, dtype=D)
    first = LAW.log_prob(head, torch.full_like(middle, start), middle, 2 * DT)
    half = LAW.step(head, float(2 * DT))
    for dx in (-30.0, -0.4, 0.0, 1.1, 5.0):
        composed = torch.exp(first + half.log_density(start + middle, dx - middle)).sum() * spacing
        whole = LAW.log_prob(head, torch.tensor([start], dtype=D), torch.tensor([dx], dtype=D), 4 * DT).exp()
        assert float(composed / whole - 1) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("alpha", [0.2, 0.7])
def test_integrates_to_one_and_the_masses_are_its_integrals(alpha):
    step = LAW.step(smooth(alpha), 0.1)
    spacing = 2 * math.pi / 300
    for x in (0.3, 4.0):
        dx = spacing * torch.arange(-6000, 6001, dtype=D)
        p = step.log_density(torch.full_like(dx, x), dx).exp()
        ends = torch.tensor([dx[-1], dx[0]]) + torch.tensor([0.5, -0.5]) * spacing
        here = torch.full((2,), x, dtype=D)
        beyond = step.upper(here, ends)[0] + step.lower(here, ends)[1]
        assert float(p.sum() * spacing + beyond) == pytest.approx(1.0, abs=2e-9)
        for cut in (-40.25, -3.25, 0.25, 2.25, 11.25):  # the rule is spectrally accurate between two cuts
            nodes, weights = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(60))
            inside = cut + 0.5 * (nodes + 1)
            mass = float((step.log_density(torch.full_like(inside, x), inside).exp() * weights).sum() / 2)
            a = torch.tensor([cut, cut + 1.0], dtype=D)
            lower, upper = step.lower(here, a), step.upper(here, a)
            smaller = lower if cut < 0 else -upper
            assert float(smaller[1] - smaller[0]) == pytest.approx(mass, rel=1e-6)
            assert torch.allclose(lower + upper, torch.ones(2, dtype=D), atol=1e-9)


@pytest.mark.parametrize("alpha", [0.1, 0.4, 0.9])
def test_masses_of_constant_coefficients(alpha):
    head, x = constant(5.0, 4.0, 3.0, alpha), uniform(300, -20.0, 20.0, 0)
    threshold, center = 10 ** torch.linspace(-2, 11, 300, dtype=D), uniform(300, -2.0, 2.0, 1)
    expected = tail_probability(threshold, center, 5.0, 4.0, 3.0, alpha, DT)
    assert float((LAW.mass_beyond(head, threshold, center, x, DT) / expected - 1).abs().max()) < 1e-6
    below = LAW.step(head, float(DT)).lower(x, center)
    assert float((below + LAW.step(head, float(DT)).upper(x, center) - 1).abs().max()) < 1e-9


@pytest.mark.parametrize("alpha", [0.1, 0.3, 0.6, 0.9])
def test_core_meets_tail(alpha):
    """On either side of the seam the two computations have nothing but the coefficients in common."""
    head = smooth(alpha)
    rule = LAW.rule(head, 0.1)
    later = ExactLaw(rules={0.1: replace(rule, seam=1.3 * rule.seam, core=rule.core + 6)})
    x, dx = uniform(500, 0.0, 7.0, 4), either_sign(rule.seam * uniform(500, 1.0, 1.29, 5))
    gap = LAW.log_prob(head, x, dx, torch.tensor(0.1)) - later.log_prob(head, x, dx, torch.tensor(0.1))
    assert float(gap.abs().max()) < 1e-6


def test_chosen_rule_agrees_with_a_finer_one():
    for dt in (1 / 40, 1 / 4):
        assert LAW.accuracy(smooth(0.3), dt) < 1e-5
    assert ExactLaw(tolerance=1e-9).accuracy(smooth(0.3), 1 / 10) < 1e-7


@pytest.mark.long
def test_accuracy_without_jumps_is_that_of_steps_a_gaussian_law_makes():
    head = FourierHead(n_basis=5, alpha=AlphaSpec("fixed", 0.5), known={"D_f": 0.0})
    head.set_constants(0.3, 0.5, 0.2)
    assert LAW.accuracy(head, 0.1) < 1e-3


def test_units_do_not_matter():
    """The same system with a period of 5 that begins at -1."""
    length = 5 / (2 * math.pi)
    inner = smooth(0.3)

    def stretched(x):
        c = inner((x + 1) / length)
        return length * c.b, length**2 * c.D_o, length**0.6 * c.D_f, 0.3

    x, dx = uniform(200, 0.0, 60.0, 6), either_sign(10 ** uniform(200, -1.0, 9.0, 7))
    here = LAW.log_prob(inner, x, dx, DT) - math.log(length)
    there = LAW.log_prob(Functions(stretched, 5.0, -1.0), length * x - 1, length * dx, DT)
    near = dx.abs() < 1e5  # beyond, rounding moves the landing point
    assert float((here - there)[near].abs().max()) < 1e-9
    assert float((here - there).abs().max()) < 1e-5


def test_several_dt_in_one_batch():
    head, x, dx = smooth(0.3), uniform(90, 0.0, 7.0, 8), either_sign(10 ** uniform(90, -1.0, 3.0, 9))
    dt = torch.tensor([0.05, 0.1, 0.2], dtype=D).repeat(30)
    together = LAW.log_prob(head, x, dx, dt)
    for value in (0.05, 0.1, 0.2):
        alone = LAW.log_prob(head, x[dt == value], dx[dt == value], torch.tensor(value, dtype=D))
        assert torch.equal(together[dt == value], alone)
    with pytest.raises(InputError, match="at most 12 distinct values for the exact law, found 90"):
        LAW.log_prob(head, x, dx, torch.linspace(0.1, 0.2, 90, dtype=D))


# --------------------------------------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("alpha", [*(pytest.param(a, marks=pytest.mark.slow) for a in (0.12, 0.35)), 0.8])
def test_gradient_is_that_of_finite_differences(alpha):
    generator = torch.Generator().manual_seed(3)
    theta = torch.cat([0.4 * torch.randn(15, generator=generator, dtype=D), torch.tensor([alpha], dtype=D)])
    dt = torch.tensor(0.1, dtype=D)
    law = LAW.fixed(of_parameters(theta), dt)
    x, weight = uniform(300, 0.0, 7.0, 10), uniform(300, -0.5, 1.0, 11)
    dx = torch.cat([uniform(100, -2.0, 2.0, 12), either_sign(10 ** uniform(200, 0.5, 9.0, 13))])

    def log_likelihood(theta):
        return (weight * law.log_prob(of_parameters(theta), x, dx, dt)).sum()

    def log_masses(theta):
        return (weight * law.mass_beyond(of_parameters(theta), dx.abs(), torch.zeros(()), x, dt).log()).sum()

    for function in (log_likelihood, log_masses):
        free = theta.clone().requires_grad_()
        gradient = torch.autograd.grad(function(free), free)[0]
        with torch.no_grad():
            for i in (0, 2, 4, 5, 8, 10, 14, 15):
                e = torch.zeros(16, dtype=D)
                e[i] = 2e-4
                central = (8 * (function(theta + e) - function(theta - e)) - function(theta + 2 * e)) / 12
                central = (central + function(theta - 2 * e) / 12) / 2e-4
                assert float(gradient[i] - central) == pytest.approx(0.0, abs=2e-6 * float(gradient.abs().max()))


@pytest.mark.parametrize("alpha", [0.3, "learn"])
def test_scores_are_the_gradient_of_each_transition(alpha):
    head = FourierHead(n_basis=5, period=5.0, origin=-0.5, alpha=AlphaSpec.parse(alpha))
    head.set_flat(head.flat() + 0.1 * torch.sin(torch.arange(head.flat().shape[0], dtype=D)))
    x, weight = uniform(200, -3.0, 3.0, 18), uniform(200, 0.0, 1.0, 19)
    dx = torch.cat([uniform(100, -2.0, 2.0, 20), either_sign(10 ** uniform(100, 0.5, 9.0, 21))])
    value = (weight * LAW.log_prob(head, x, dx, torch.tensor(0.1, dtype=D))).sum()
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, list(head.parameters()))])
    each = scores(LAW, head, x, dx, 0.1)
    assert torch.allclose(weight @ each, gradient, rtol=1e-7, atol=1e-6)
    # those of Duhamel's formula are read to three digits
    size = each.square().mean(0).sqrt()
    assert float(((LAW.scores(head, x, dx, 0.1) - each).abs() / size).max()) < 5e-3


@pytest.mark.parametrize("alpha", [*(pytest.param(a, marks=pytest.mark.slow) for a in (0.15, 0.4)), 0.8])
def test_expected_batch_is_the_law(alpha):
    """Probabilities add up to one, scores to zero, and the information is that of a closed form."""
    head = FourierHead(n_basis=3, alpha=AlphaSpec("constant", alpha))
    states = head.grid(256)
    batch = expected_batch(LAW, head, states, torch.full_like(states, 1 / 256), 0.1)
    assert float(batch.weight.min()) >= 0
    assert float(batch.weight.sum()) == pytest.approx(1.0, abs=1e-5)
    for threshold in (0.5, 3.0, 50.0):
        mass = batch.weight[batch.dx.abs() > threshold].sum()
        expected = tail_probability(threshold, 0.0, 0.0, *(c.detach().mean() for c in head(states)[1:]), 0.1)
        assert float(mass) == pytest.approx(float(expected), rel=0.2)  # cells are not cut at the threshold
    found = information(LAW, head, states, torch.full_like(states, 1 / 256), 0.1)
    mean = batch.weight @ scores(LAW, head, batch.x, batch.dx, 0.1)
    assert float((mean / found.diagonal().sqrt()).abs().max()) < 2e-3
    # constant coefficients: the frozen law is exact, and has the same information in the means and in alpha
    c = [v.detach().mean().requires_grad_() for v in head(states)]
    u = torch.linspace(-1.0, 1.0, 20_001, dtype=D)
    dx = torch.sinh(70 * u)
    step = score(dx, *(v.detach() for v in c), 0.1, wrt_alpha=True, method="contour")
    weight = step.log_p.exp() * 70 * torch.cosh(70 * u) * (2.0 / 20_000)
    means = torch.stack([step.b, step.D_o, step.D_f, step.alpha])
    truth = (means * weight) @ means.T
    chain = torch.stack([r.mean(0) for r in head.jacobian(states)])  # (4, P)
    constants = [0, 3, 6, 9]
    truth = chain[:, constants].T @ truth @ chain[:, constants]
    scale = truth.diagonal().sqrt()
    assert float(((found[constants][:, constants] - truth) / torch.outer(scale, scale)).abs().max()) < 5e-3


def test_tables_are_kept_while_the_coefficients_are():
    head = FourierHead(n_basis=3, alpha=AlphaSpec.parse(0.3))
    law, x, dx, dt = ExactLaw(), torch.zeros(3, dtype=D), torch.ones(3, dtype=D), torch.tensor(0.1, dtype=D)
    with torch.no_grad():
        first = law.log_prob(head, x, dx, dt)
        assert law.step(head, 0.1) is law.step(head, 0.1)
        head.set_flat(head.flat() + 0.1)
        assert not torch.equal(law.log_prob(head, x, dx, dt), first)
    assert law.log_prob(head, x, dx, dt).requires_grad


def test_gradient_does_not_depend_on_what_is_kept(monkeypatch):
    from levytorch.likelihood import propagator

    theta = torch.linspace(-0.3, 0.3, 16, dtype=D).requires_grad_()
    with torch.no_grad():
        theta[15] = 0.4
    x, dx = uniform(50, 0.0, 7.0, 14), either_sign(10 ** uniform(50, -1.0, 3.0, 15))
    gradients = []
    for bytes_kept in (600_000_000, 0):
        monkeypatch.setattr(propagator, "_KEPT", bytes_kept)
        value = LAW.log_prob(of_parameters(theta), x, dx, torch.tensor(0.2)).sum()
        gradients.append(torch.autograd.grad(value, theta)[0])
    assert torch.equal(*gradients)


def test_local_polynomials_are_exact_for_polynomials():
    """Tables of a polynomial give it back, and their adjoints are those of autograd through a dense interpolation."""
    x, y = uniform(300, 10.0, 20.0, 16), uniform(300, 12.0, 28.0, 17)
    i, j = torch.arange(32, dtype=D)[:, None], torch.arange(40, dtype=D)
    table = ((i / 10) ** 3 * (j / 10) ** 4).requires_grad_()
    value = exact_kernels.core_values(table, x, y)
    torch.testing.assert_close(value.detach(), (x / 10) ** 3 * (y / 10) ** 4, rtol=1e-11, atol=0)
    (adjoint,) = torch.autograd.grad((value * torch.cos(x)).sum(), table)
    # the adjoint of an interpolation has its moments
    for p, q in ((0, 0), (3, 1), (7, 9)):
        moment = (adjoint * (i / 10) ** p * (j / 10) ** q).sum()
        torch.testing.assert_close(moment, (torch.cos(x) * (x / 10) ** p * (y / 10) ** q).sum(), rtol=1e-9, atol=1e-9)
    cube = ((i / 10)[:, :, None] ** 2 * (i.T / 10)[:, :, None] ** 3 * torch.arange(1, 4, dtype=D)).requires_grad_()
    weights = (torch.arange(20, dtype=D)[:, None] ** 2 * torch.tensor([1.0, -1.0, 0.5], dtype=D)).requires_grad_()
    z, rung = uniform(300, 10.0, 20.0, 18), uniform(300, 5.0, 14.0, 19)
    value = exact_kernels.tail_values(cube, weights, x, z, rung)
    torch.testing.assert_close(value.detach(), (x / 10) ** 2 * (z / 10) ** 3 * rung**2 * 0.5, rtol=1e-10, atol=0)
    by_cube, by_weights = torch.autograd.grad((value * torch.cos(x)).sum(), (cube, weights))
    total = (value.detach() * torch.cos(x)).sum()  # linear in each of them
    torch.testing.assert_close((by_cube * cube.detach()).sum(), total, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close((by_weights * weights.detach()).sum(), total, rtol=1e-10, atol=1e-10)


# ------------------------------------------------------------------------------------------------------------ the door


def test_transition_density_broadcasts_and_takes_arrays():
    system = Dynamics(lambda x: 4 * torch.cos(x), lambda x: 3 + torch.sin(x), lambda x: 2 + torch.cos(x), 0.3)
    x, dx = np.array([[0.0], [1.0]]), np.array([-1e6, 0.2, 7.0])
    p = transition_density(system, x, dx, 1 / 10)
    assert p.shape == (2, 3)
    again = transition_density(system, torch.tensor(1.0), 7.0, 1 / 10)
    assert again.shape == ()
    assert float(again) == pytest.approx(float(p[1, 2]), rel=1e-12)
    assert transition_density(system, [], dx[:0], 1 / 10).shape == (0,)
    shifted = transition_density(system, x + 2e4 * math.pi, dx, 1 / 10)
    assert torch.allclose(shifted, p, rtol=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dynamics": 3.0}, "dynamics must be a Dynamics or a Recovery, found a float"),
        ({"dynamics": Dynamics.named("plane")}, "dim = 1 for the exact law, found dim = 2"),
        ({"dynamics": Dynamics(0.0, 1.0, 1.0, 0.5, period=math.inf)}, "must have a period"),
        ({"dynamics": Dynamics(0.0, 1.0, 1.0, lambda x: 0.5 + 0.1 * torch.cos(x))}, "alpha must be one number"),
        ({"dynamics": Dynamics(0.0, 0.0, 1.0, 0.5)}, "D_o dt must be at least"),
        ({"dt": 1e-5}, "D_o dt must be at least .* use the frozen law"),
        ({"dt": 100.0}, "must stay within 20 periods .* use shorter steps"),
        ({"dt": -0.1}, "dt must be positive, found -0.1"),
        ({"dt": math.nan}, "dt must be a finite number"),
        ({"x": math.inf}, "x must be finite"),
        ({"dx": [0.0, math.nan]}, "dx must be finite"),
        ({"dx": "1"}, "dx must be numeric"),
        ({"x": [0.0, 1.0], "dx": [0.0, 1.0, 2.0]}, "x and dx must broadcast"),
    ],
)
def test_bad_input_is_refused(change, message):
    given = {"dynamics": Dynamics.named("constant"), "x": 0.0, "dx": 0.1, "dt": 0.025} | change
    with pytest.raises(InputError, match=message):
        transition_density(**given)


def test_grid_follows_the_step():
    sizes = [LAW.rule(smooth(0.3), dt).n for dt in (1.0, 0.1, 0.025, 0.0025)]
    assert sizes == sorted(sizes)
    assert set(sizes) <= set(SIZES)
    kept = LAW.fixed(smooth(0.3), torch.tensor([0.1, 0.2, 0.1], dtype=D))
    assert kept.rule(constant(0.0, 1e-9, 1.0, 0.5), 0.1).n == LAW.rule(smooth(0.3), 0.1).n
