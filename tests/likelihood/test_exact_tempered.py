"""The exact law with tempered jumps: against the law of constants, finer rules, integrals and differences; in fits."""

import math

import pytest
import torch

from levytorch import Dynamics, log_density, recover, simulate, tail_probability, transition_density
from levytorch.coefficients import build_head
from levytorch.errors import InputError
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_scores import expected_scores
from tests.likelihood.expected_batch import scores

D = torch.float64
DT = 0.1
DATA = Dynamics(
    lambda x: 2 * torch.sin(x),
    lambda x: 0.5 * torch.exp(torch.sin(x + 1)),
    lambda x: 1 + 0.5 * torch.cos(x),
    0.4,
    tempering=0.5,
)


def constants(alpha, lam):
    head = build_head({"name": "fourier", "n_basis": 1, "alpha": alpha, "tempering": lam, "period": 2 * math.pi})
    head.set_constants(0.8, 0.5, 1.0)
    return head


def wavy(alpha, lam):
    """Coefficients with two harmonics on a period of 6; alpha and tempering are parameters."""
    plain = {"name": "fourier", "n_basis": 5, "period": 6.0, "length": 0.5, "time": DT, "alpha": alpha}
    head = build_head(plain | {"alpha_mode": "constant", "tempering_mode": "learn", "tempering": lam})
    head.set_constants(1.0, 1.0, 1.0, alpha, lam)
    theta = head.flat()
    for first in (1, 6, 11):
        theta[first : first + 4] += torch.tensor([0.3, -0.2, 0.15, 0.1], dtype=D)
    head.set_flat(theta)
    return head


@pytest.mark.parametrize(("alpha", "lam"), [(0.1, 1e-3), (0.3, 0.4), (0.7, 3.0), (0.9, 1.0)])
def test_constants(alpha, lam):
    """log p and masses on both sides of the seam, into the exponential tail (log p about -120)."""
    head, law, dt = constants(alpha, lam), ExactLaw(), torch.tensor(0.05, dtype=D)
    seam = law.step(head, 0.05).seam
    size = torch.cat([torch.linspace(0.01, seam, 30, dtype=D), seam * torch.logspace(0.01, 3, 30, dtype=D)])
    dx = size[lam * size < 130.0]
    dx = torch.cat([dx, -dx])
    x = torch.linspace(0, 6, len(dx), dtype=D)
    with torch.no_grad():
        got = law.log_prob(head, x, dx, dt)
        want = log_density(dx, 0.8, 0.5, 1.0, alpha, 0.05, tempering=lam)
        assert float((got - want).abs().max()) < 1e-6
        assert lam < 0.1 or float(want.min()) < -110
        threshold = torch.tensor([1.0, 2 * seam], dtype=D)
        beyond = law.mass_beyond(head, threshold, torch.full((2,), 0.04, dtype=D), x[:2], dt)
        mass = tail_probability(threshold, 0.04, 0.8, 0.5, 1.0, alpha, 0.05, tempering=lam)
        torch.testing.assert_close(beyond, mass, rtol=1e-6, atol=0)


@pytest.mark.long
def test_joins_the_law_without_tempering():
    x, dx = torch.tensor([0.3, 2.0, 5.0, 1.0], dtype=D), torch.tensor([0.2, -3.0, 9.0, -40.0], dtype=D)
    system = {"b": DATA.b, "D_o": DATA.D_o, "D_f": DATA.D_f, "alpha": 0.4}
    plain = transition_density(Dynamics(**system), x, dx, DT)
    # density is moved in from beyond 1 / lam: a factor e^(D_f dt lam^(2 alpha)) or so
    tempered = transition_density(Dynamics(**system, tempering=1e-9), x, dx, DT)
    torch.testing.assert_close(tempered, plain, rtol=1e-6, atol=0)


@pytest.mark.long
def test_gradient_masses_and_scores():
    head, law = wavy(0.3, 0.4), ExactLaw()
    law = law.fixed(head, torch.tensor(DT))
    assert law.accuracy(head, DT) < 1e-4
    x = torch.linspace(0, 6, 14, dtype=D)
    dx = torch.tensor([-4, -2, -1, -0.3, 0.1, 0.5, 1, 3, 5, 9, -9, 20, -30, 50], dtype=D)
    time = torch.tensor(DT, dtype=D)
    (gradient,) = torch.autograd.grad(law.log_prob(head, x, dx, time).sum(), head.theta)
    theta = head.flat()
    with torch.no_grad():
        for i in (0, 7, 12, 15, 16):  # of b, D_o, D_f, alpha and tempering
            values = []
            for sign in (1, -1):
                moved = theta.clone()
                moved[i] += sign * 1e-5
                head.set_flat(moved)
                values.append(float(law.log_prob(head, x, dx, time).sum()))
            head.set_flat(theta)
            assert float(gradient[i]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5, abs=1e-6)
        each = scores(law, head, x, dx, DT)
        torch.testing.assert_close(each.sum(0), gradient, rtol=1e-6, atol=1e-6 * float(gradient.abs().max()))
        size = each.square().mean(0).sqrt()
        assert float(((law.scores(head, x, dx, DT) - each).abs() / size).max()) < 5e-3  # read to three digits
        # the mass beyond a is the integral of p
        a, u = 3.0, torch.linspace(0, 1, 20001, dtype=D)[1:]
        y = a + 120 * u**4
        p = law.log_prob(head, torch.full_like(y, 1.3), y, time).exp()
        integral = float((p * 480 * u**3).sum() / 20000)
        mass = law.step(head, DT).upper(torch.tensor([1.3], dtype=D), torch.tensor([a], dtype=D))
        assert float(mass) == pytest.approx(integral, rel=1e-4)


def test_expected_scores():
    """Rows that stand for the law: probabilities sum to one, scores average to zero beside their size."""
    head, law = wavy(0.3, 0.4), ExactLaw()
    rows = expected_scores(law, head, DT)
    S = len(rows.states)
    assert float(rows.p.sum()) == pytest.approx(S, rel=1e-9)
    mean = (rows.scores * rows.p[:, None]).sum(0) / S
    size = ((rows.scores**2 * rows.p[:, None]).sum(0) / S).sqrt()
    assert float((mean.abs() / size).max()) < 3e-3


def test_too_steep():
    with pytest.raises(InputError, match="tempering must be at most"):
        transition_density(Dynamics(0.0, 0.5, 1.0, 0.4, tempering=50.0), 0.0, 0.1, 0.05)


@pytest.mark.slow
def test_against_simulation():
    """Numbers of steps in eleven bins, within 4 standard deviations of what the law expects; 400 Euler substeps."""
    n = 200_000
    x0 = torch.full((n,), 1.0, dtype=D)
    walks = simulate(DATA, n, 1, DT, substeps=400, x0=x0.numpy(), seed=3).to_array()
    dx = walks[:, 1] - walks[:, 0]
    edges = torch.tensor([-4.0, -2, -1, -0.5, 0.0, 0.3, 0.6, 1.0, 2.0, 5.0], dtype=D)
    law = ExactLaw()

    class System(torch.nn.Module):
        period, origin = 2 * math.pi, 0.0

        def forward(self, x):
            return DATA_HEAD(x)

    below = law.step(System(), DT).lower(torch.full_like(edges, 1.0), edges)
    p = torch.diff(torch.cat([torch.zeros(1, dtype=D), below, torch.ones(1, dtype=D)]))
    counts = torch.histogram(
        torch.from_numpy(dx), torch.cat([torch.tensor([-1e9], dtype=D), edges, torch.tensor([1e9])])
    )
    z = (counts.hist - n * p) / (n * p * (1 - p)).sqrt()
    assert float(z.abs().max()) < 4


def DATA_HEAD(x):
    from levytorch.coefficients import Coefficients

    alpha, lam = (torch.tensor(v, dtype=D) for v in (0.4, 0.5))
    return Coefficients(DATA.b(x), DATA.D_o(x), DATA.D_f(x), alpha, lam)


@pytest.mark.slow
def test_fits():
    """A long step: the frozen law is off by many standard errors, the corrected and the exact one are not."""
    data = simulate(DATA, 2000, 20, 0.2, substeps=60, seed=1).transitions()
    x = torch.linspace(0, 2 * math.pi, 65, dtype=D)[:-1]
    off = {}
    for law in ("frozen", "corrected", "exact"):
        found = recover(data, alpha=0.4, tempering="learn", n_basis=5, engine="evidence", law=law)
        assert found.law == law
        z = (found.D_o(x) - DATA.D_o(x)) / found.std(x)[1]
        off[law] = float(z.square().mean().sqrt())
        assert law == "frozen" or abs(found.tempering - 0.5) < 4 * found.tempering_std
    assert off["frozen"] > 4
    assert off["exact"] < 2
    assert off["corrected"] < 3
