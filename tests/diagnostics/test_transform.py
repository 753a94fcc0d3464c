"""The probability integral transform and its components, against quadrature and sampling."""

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.stats import kstest

from levytorch import LevyStep, log_density
from levytorch.coefficients import Coefficients
from levytorch.diagnostics.components import Components, legendre
from levytorch.diagnostics.sample import Region, make_sample, transform
from tests.diagnostics.problems import one, walk
from tests.training.problems import ALPHA, DT


@pytest.mark.parametrize(("region", "label"), [(Region(), 0), (Region(inner=2.0), 0), (Region(0.1, 3.0), 1)])
@pytest.mark.parametrize("dx", [-1.7, -0.4, 0.3, 1.9])
def test_the_transform_is_the_conditional_distribution_function(region, label, dx):
    b, D_o, D_f, mu = 1.0, 2.0, 3.0, 0.1

    def mass(low, high):
        density = lambda y: math.exp(float(log_density(y, b, D_o, D_f, ALPHA, DT)))  # noqa: E731
        return quad(density, low, high, limit=400, epsabs=1e-11)[0] if low < high else 0.0

    if region.whole:
        expected = float(LevyStep(b, D_o, D_f, ALPHA, DT).cdf(one(dx)))
    elif label == 0:
        expected = mass(mu - 2.0, dx) / mass(mu - 2.0, mu + 2.0)
    else:
        left, right = mass(mu - 3.0, min(dx, mu - 0.1)), mass(mu + 0.1, dx)
        expected = (left + right) / (mass(mu - 3.0, mu - 0.1) + mass(mu + 0.1, mu + 3.0))
    c = Coefficients(one(b), one(D_o), one(D_f), torch.tensor(ALPHA, dtype=torch.float64))
    found = transform(c, one(dx), one(DT), one(mu), torch.tensor([label]), region)
    assert float(found.u) == pytest.approx(expected, abs=1e-8)
    assert float(found.upper) == pytest.approx(1 - expected, abs=1e-8)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize(("region", "label"), [(Region(), 0), (Region(inner=1.0), 0), (Region(1.0, 3.0), 1)])
def test_the_transform_of_vectors_is_uniform_on_every_ray(dim, region, label):
    n = 4000
    mu = torch.full((dim,), 0.3, dtype=torch.float64)
    law = LevyStep(torch.full((n, dim), 4.0, dtype=torch.float64), 2.0, 3.0, 0.4, DT, dim=dim)
    dx = law.sample(generator=torch.Generator().manual_seed(dim))
    label_of = region.labels((dx - mu).norm(dim=1), torch.full((n,), DT, dtype=torch.float64))
    dx = dx[label_of == label]
    m = len(dx)
    dt = torch.full((m,), DT, dtype=torch.float64)
    c = Coefficients(law.b[:m], law.D_o[:m], law.D_f[:m], torch.tensor(0.4, dtype=torch.float64))
    found = transform(c, dx, dt, mu.expand(m, dim), torch.full((m,), label), region)
    assert m > 200
    assert kstest(found.u.numpy(), "uniform").pvalue > 1e-3
    torch.testing.assert_close(found.u + found.upper, torch.ones(m, dtype=torch.float64))


def test_far_steps_keep_their_digits():
    c = Coefficients(one(0.0), one(4.0), one(3.0), torch.tensor(ALPHA, dtype=torch.float64))
    far = transform(c, one(1e12), one(DT), one(0.0), torch.tensor([0]), Region())
    near = transform(c, one(1e10), one(DT), one(0.0), torch.tensor([0]), Region())
    assert float(near.upper / far.upper) == pytest.approx(100 ** (2 * ALPHA), rel=1e-3)
    assert 0 < float(far.upper) < 1e-8


def test_components_have_the_variance_they_say():
    assert torch.allclose(
        legendre(torch.linspace(0, 1, 200_001, dtype=torch.float64), 6) @ torch.ones(200_001).double() / 200_001,
        torch.zeros(6, dtype=torch.float64),
        atol=1e-4,
    )
    data, found = walk()
    sample = make_sample(data, Region(), 10**6, 0)
    components = Components(found.head, sample)
    u = torch.rand(len(sample), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h = components.values(u, sample.x, sample.dt, None)
    known = components.variance(sample.x, sample.dt, None)
    seen = h @ h.T / h.shape[1]
    spread = ((h.unsqueeze(1) * h.unsqueeze(0)).var(-1) / h.shape[1]).sqrt()
    assert float(((seen - known).abs() / spread.clamp(min=1e-3)).max()) < 5
