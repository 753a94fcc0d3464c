"""Heads: units, links, alpha, and the derivatives Fisher scoring relies on against autograd."""

import math

import pytest
import torch

from levytorch.coefficients import AlphaSpec, FourierHead, MLPHead, Units, build_head
from levytorch.coefficients.links import FLOOR_D_F, AlphaLink, Link, positivity
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


def test_a_clamped_alpha_is_linear_in_theta():
    """The paper's expansion alpha(x) = sum_k theta_4k phi_4k(x); the gradient passes straight through the bounds."""
    spec = AlphaSpec("function", 0.5, AlphaLink("clamp", 0.1, 0.9))
    head = FourierHead(3, alpha=spec, positivity_link="clamp")
    x = torch.linspace(0, 6, 7, dtype=torch.float64)
    theta = torch.tensor([0.6, 0.2, -0.5], dtype=torch.float64)
    with torch.no_grad():
        head.theta[9:] = theta
    plain = theta[0] + theta[1] * x.cos() + theta[2] * x.sin()
    assert float(plain.min()) < 0.1
    assert float(plain.max()) > 0.9
    torch.testing.assert_close(head(x).alpha, plain.clamp(0.1, 0.9))
    (gradient,) = torch.autograd.grad(head(x).alpha.sum(), head.theta)
    torch.testing.assert_close(gradient[9:], torch.stack([torch.ones_like(x), x.cos(), x.sin()]).sum(1))
    torch.testing.assert_close(head.jacobian(x)[3][:, 9:].sum(0), gradient[9:])


@pytest.mark.parametrize("kind", [FourierHead, MLPHead])
def test_the_link_of_alpha_is_kept_by_settings(kind):
    head = kind(alpha=AlphaSpec("constant", 0.97, AlphaLink("clamp", 0.2, 0.95)))
    assert float(head(torch.zeros(1, dtype=torch.float64)).alpha) == 0.95  # a start beyond the bound is moved to it
    again = build_head(head.config())
    assert again.alpha_spec == head.alpha_spec
    assert "alpha_link" not in kind().config()  # the default is that of files which know of no other


@pytest.mark.parametrize("bounds", [(0.03, 0.98), (0.2, 0.7)])
def test_sigmoid_of_alpha(bounds):
    link = AlphaLink("sigmoid", *bounds)
    eta = torch.tensor([-3.0, 0.0, 4.0], dtype=torch.float64, requires_grad=True)
    value, slope, curvature = link.derivatives(eta)
    (first,) = torch.autograd.grad(link(eta).sum(), eta, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), eta)
    torch.testing.assert_close(link(eta), value)
    torch.testing.assert_close(slope, first)
    torch.testing.assert_close(curvature, second)
    assert bounds[0] < float(value.min()) < float(value.max()) < bounds[1]
    assert link.inverse(float(value[1])) == pytest.approx(0.0, abs=1e-12)


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
        ({"name": "wavelet"}, "fourier, spline, periodic_spline, polynomial, product, mlp"),
        ({"name": "fourier", "widht": 3}, "widht"),
        ({"name": "mlp", "width": 0}, "width"),
        ({"name": "fourier", "positivity": "relu"}, "softplus, clamp"),
        ({"name": "fourier", "alpha_mode": "free"}, "alpha_mode"),
        ({"name": "fourier", "n_basis": 4}, "odd"),
        ({"name": "fourier", "alpha_link": "tanh"}, "sigmoid, clamp"),
        ({"name": "fourier", "alpha_bounds": [0.5, 0.2]}, "0 < low < high < 1"),
        ({"name": "mlp", "alpha_bounds": [0.0, 0.9]}, "0 < low < high < 1"),
        ({"name": "mlp", "alpha_bounds": 0.9}, "0 < low < high < 1"),
        ({"name": "fourier", "alpha_bounds": "wide"}, "alpha_bounds"),
    ],
)
def test_bad_heads_name_the_choices(config, match):
    with pytest.raises(InputError, match=match):
        build_head(config)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.2, 1.6, math.nan, "free", None])
def test_bad_alpha_is_refused(alpha):
    with pytest.raises(InputError, match="alpha"):
        AlphaSpec.parse(alpha)
