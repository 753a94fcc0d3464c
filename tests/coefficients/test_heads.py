"""Heads: units, links, alpha, and the derivatives Fisher scoring relies on against autograd."""

import math

import pytest
import torch

from levytorch.coefficients import AlphaSpec, FourierHead, MLPHead, Units, build_head
from levytorch.coefficients.links import FLOOR_D_F, Link, positivity
from levytorch.errors import InputError

ALPHAS = [AlphaSpec("fixed", 0.3), AlphaSpec("constant", 0.4), AlphaSpec("function", 0.6)]
UNITS = [Units(), Units(0.4, 0.025), Units(3e4, 180.0)]


def wiggly(alpha, units, n_basis=5):
    head = FourierHead(n_basis, 3.0, 0.5, alpha=alpha, units=units)
    noise = torch.randn(head.theta.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        head.theta += 0.3 * noise
    return head


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("kind", [FourierHead, MLPHead])
def test_constants_in_physical_units(kind, alpha, units):
    head = kind(alpha=alpha, units=units)
    head.set_constants(5.0, 4.0, 3.0)
    if kind is MLPHead:
        with torch.no_grad():
            for net in head.nets.values():
                net[-1].weight.zero_()
    c = head(torch.tensor([0.1, 2.0, 1e6], dtype=torch.float64))
    for value, expected in zip(c[:3], (5.0, 4.0, 3.0)):
        torch.testing.assert_close(value, torch.full((3,), expected, dtype=torch.float64), rtol=1e-9, atol=0)
    torch.testing.assert_close(c.alpha.expand(3), torch.full((3,), alpha.value, dtype=torch.float64))


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("units", UNITS)
def test_chain_and_jacobian_against_autograd(alpha, units):
    head = wiggly(alpha, units)
    x = torch.linspace(-2, 5, 9, dtype=torch.float64)
    chain = head.chain(head.theta.detach(), head.design(x))
    for got, expected in zip(chain.coefficients, head(x)):
        torch.testing.assert_close(got, expected.detach(), rtol=1e-12, atol=0)
    analytic = head.jacobian(x)
    for row, name in enumerate(("b", "D_o", "D_f", "alpha")):
        for i in range(x.numel()):
            value = getattr(head(x), name).expand(9)[i]
            if not value.requires_grad:
                assert not analytic[row][i].any()
                continue
            (gradient,) = torch.autograd.grad(value, head.theta)
            torch.testing.assert_close(analytic[row][i], gradient, rtol=1e-10, atol=1e-12 * float(gradient.abs().max()))


def test_clamp_keeps_the_gradient_where_it_clamps():
    link = positivity("clamp", FLOOR_D_F)
    eta = torch.tensor([-1.0, 0.5], dtype=torch.float64, requires_grad=True)
    value = link(eta)
    value.sum().backward()
    assert value.tolist() == [FLOOR_D_F, 0.5]
    assert eta.grad.tolist() == [1.0, 1.0]


def test_softplus_derivatives_and_inverse():
    link = Link("softplus", 1e-12)
    eta = torch.tensor([-20.0, -2.0, 0.0, 3.0, 50.0], dtype=torch.float64, requires_grad=True)
    value, slope, curvature = link.derivatives(eta)
    (first,) = torch.autograd.grad(link(eta).sum(), eta, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), eta)
    torch.testing.assert_close(slope, first)
    torch.testing.assert_close(curvature, second, rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(link.inverse(value.detach()), eta.detach(), rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("kind", [FourierHead, MLPHead])
def test_config_rebuilds_the_head(kind):
    head = kind(period=7.0, origin=-1.0, alpha=AlphaSpec("constant", 0.35), units=Units(2.0, 0.5))
    again = build_head(head.config())
    again.set_flat(head.flat())
    x = torch.linspace(-1, 6, 5, dtype=torch.float64)
    for a, b in zip(head(x), again(x)):
        assert torch.equal(a, b)


def test_mlp_is_periodic():
    head = MLPHead(period=2.0, origin=0.3)
    x = torch.tensor([0.4, 1.9], dtype=torch.float64)
    torch.testing.assert_close(head(x + 2.0).b, head(x).b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"name": "wavelet"}, "fourier, spline, polynomial, mlp"),
        ({"name": "fourier", "widht": 3}, "widht"),
        ({"name": "mlp", "width": 0}, "width"),
        ({"name": "fourier", "positivity": "relu"}, "softplus, clamp"),
        ({"name": "fourier", "alpha_mode": "free"}, "alpha_mode"),
        ({"name": "fourier", "n_basis": 4}, "odd"),
    ],
)
def test_bad_heads_name_the_choices(config, match):
    with pytest.raises(InputError, match=match):
        build_head(config)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.2, 1.6, math.nan, "free", None])
def test_bad_alpha_is_refused(alpha):
    with pytest.raises(InputError, match="alpha"):
        AlphaSpec.parse(alpha)
