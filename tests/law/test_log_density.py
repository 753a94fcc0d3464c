"""The public function: derivatives, shapes, dtypes, modes, refusals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from levytorch import log_density, score
from levytorch.errors import LevytorchError, LevytorchWarning

D = torch.float64


def leaf(*values):
    return torch.tensor(values if len(values) > 1 else values[0], dtype=D, requires_grad=True)


def arguments():
    return (
        leaf(-0.3, 0.0, 0.7, 6.0),
        leaf(1.0),
        leaf(4.0),
        leaf(3.0, 1.0, 0.5, 2.0),
        leaf(0.3, 0.45, 0.6, 0.8),
        leaf(0.025),
    )


def test_gradcheck_and_gradgradcheck():
    def function(*a):
        return log_density(*a, method="contour")

    assert torch.autograd.gradcheck(function, arguments())
    assert torch.autograd.gradgradcheck(function, arguments())


def test_gradcheck_table():
    x, b, D_o, D_f, _, dt = arguments()
    assert torch.autograd.gradcheck(lambda *a: log_density(*a[:4], 0.3, a[4], method="table"), (x, b, D_o, D_f, dt))


def test_second_derivatives_at_zero_displacement():
    """The radius has a kink at zero, the law has none."""
    for dim in (1, 2, 3):
        x = torch.zeros(dim, dtype=D) if dim > 1 else torch.tensor(0.0, dtype=D)

        def f(v, dim=dim):
            return log_density(v, 0.0, 4.0, 3.0, 0.3, 0.025, dim=dim, method="contour")

        H = torch.autograd.functional.hessian(f, x)
        h = 1e-3
        step = torch.full((), h, dtype=D) if dim == 1 else torch.eye(dim, dtype=D)[0] * h
        numeric = (f(x + step) - 2 * f(x) + f(x - step)) / h**2
        first = H if dim == 1 else H[0, 0]
        assert torch.isclose(first, numeric, rtol=1e-4)
        if dim > 1:
            assert torch.allclose(H, first * torch.eye(dim, dtype=D), atol=1e-9 * float(first.abs()))


@pytest.mark.parametrize(("dim", "method"), [(1, "contour"), (2, "contour"), (1, "table"), (2, "table")])
def test_hessian_when_arguments_depend_on_each_other(dim, method):
    """D_f may be a function of alpha, and the drift of D_f."""
    x = torch.tensor([0.3, -1.2], dtype=D)

    def f(v):
        D_f = torch.exp(v[1] * v[0])
        alpha = torch.sigmoid(v[1]) if method == "contour" else 0.4
        return log_density(x, D_f.sin(), v[2].exp() * D_f, D_f, alpha, 0.1, dim=dim, method=method).sum()

    v = torch.tensor([0.4, -0.3, 0.2], dtype=D)
    H = torch.autograd.functional.hessian(f, v)
    h = 1e-5
    numeric = torch.stack(
        [
            (torch.autograd.functional.jacobian(f, v + h * e) - torch.autograd.functional.jacobian(f, v - h * e))
            / (2 * h)
            for e in torch.eye(3, dtype=D)
        ]
    )
    assert torch.allclose(H, H.T, rtol=1e-9, atol=1e-9)
    assert torch.allclose(H, numeric, rtol=1e-6, atol=1e-6)


def test_third_derivatives_are_refused():
    x = leaf(0.4)
    (g,) = torch.autograd.grad(log_density(x, 0.0, 1.0, 1.0, 0.3, 0.1), x, create_graph=True)
    (h,) = torch.autograd.grad(g, x, create_graph=True)
    with pytest.raises(LevytorchError, match="found a third derivative asked for"):
        torch.autograd.grad(h, x)


@pytest.mark.parametrize("method", ["contour", "table"])
def test_score_is_the_gradient(method):
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(50, generator=gen, dtype=D)
    b, D_o, D_f = (torch.rand(50, generator=gen, dtype=D).add(0.5).requires_grad_() for _ in range(3))
    log_p = log_density(x, b, D_o, D_f, 0.4, 0.1, method=method)
    grads = torch.autograd.grad(log_p.sum(), (b, D_o, D_f))
    s = score(x, b, D_o, D_f, 0.4, 0.1, method=method)
    assert torch.equal(s.log_p, log_p.detach())
    for ours, theirs in zip((s.b, s.D_o, s.D_f), grads):
        assert torch.allclose(ours, theirs, rtol=1e-14, atol=0)
    assert s.alpha is None


@pytest.mark.parametrize("dim", [2, 3])
def test_score_in_more_dimensions(dim):
    gen = torch.Generator().manual_seed(0)
    x = torch.randn(7, dim, generator=gen, dtype=D)
    b = torch.zeros(7, dim, dtype=D, requires_grad=True)
    alpha = torch.full((7,), 0.4, dtype=D, requires_grad=True)
    grads = torch.autograd.grad(log_density(x, b, 1.0, 2.0, alpha, 0.1, dim=dim).sum(), (b, alpha))
    s = score(x, torch.zeros(dim, dtype=D), 1.0, 2.0, 0.4, 0.1, dim=dim, wrt_alpha=True)
    assert s.b.shape == (7, dim)
    assert torch.allclose(s.b, grads[0])
    assert torch.allclose(s.alpha, grads[1])


def test_symmetric_about_the_drift():
    x = torch.logspace(-6, 11, 40, dtype=D)
    for method in ("contour", "table"):
        plus = log_density(x, 0.0, 4.0, 3.0, 0.3, 0.025, method=method)
        assert torch.equal(plus, log_density(-x, 0.0, 4.0, 3.0, 0.3, 0.025, method=method))
    assert torch.allclose(
        log_density(x + 0.125, 5.0, 4.0, 3.0, 0.3, 0.025), log_density(x, 0.0, 4.0, 3.0, 0.3, 0.025), atol=1e-9
    )


def test_broadcasting_and_dtype():
    x = torch.zeros(3, 1, 5)
    assert log_density(x, 0.0, 1.0, torch.ones(4, 1), 0.3, 0.1).shape == (3, 4, 5)
    assert log_density(x, 0.0, 1.0, 1.0, 0.3, 0.1).dtype == torch.float32
    assert log_density(np.zeros(3), 0.0, 1.0, 1.0, 0.3, 0.1).dtype == D
    assert log_density(0.0, 0, 1, 1, 0.3, 1).dtype == D
    assert log_density(torch.zeros(0), 0.0, 1.0, 1.0, 0.3, 0.1).shape == (0,)
    exact = log_density(np.float32(0.3).astype(float), 0.0, 1.0, 1.0, 0.3, 0.1)
    single = log_density(torch.tensor([0.3]), 0.0, 1.0, 1.0, 0.3, 0.1)
    assert float(single) == float(exact.to(torch.float32))  # float64 inside


def test_gradients_come_back_in_the_shape_and_dtype_of_the_inputs():
    D_f = torch.ones(4, 1, requires_grad=True)
    b = torch.zeros((), requires_grad=True)
    log_density(torch.zeros(3, 1, 5), b, 1.0, D_f, 0.3, 0.1).sum().backward()
    assert D_f.grad.shape == (4, 1)
    assert D_f.grad.dtype == torch.float32
    assert b.grad.shape == ()


def test_no_derivative_work_without_grad(monkeypatch):
    from levytorch.law import autograd

    orders = []
    original = autograd._compiled_pass

    def watched(step, method, order, with_alpha):
        orders.append(order)
        return original(step, method, order, with_alpha)

    monkeypatch.setattr(autograd, "_compiled_pass", watched)
    D_f = torch.tensor(1.0, dtype=D, requires_grad=True)
    with torch.no_grad():
        log_density(0.1, 0.0, 1.0, D_f, 0.3, 0.1)
    log_density(0.1, 0.0, 1.0, D_f, 0.3, 0.1)
    log_density(0.1, 0.0, 1.0, D_f.detach(), 0.3, 0.1)
    assert orders == [0, 1, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"alpha": 1.0}, r"alpha must lie in \(0, 1\), found 1.0"),
        ({"alpha": [0.3, 0.0]}, r"alpha must lie in \(0, 1\), found 0.0 at index 1"),
        ({"D_o": -1.0}, "D_o must be finite and >= 0, found -1.0"),
        ({"D_f": [1.0, 0.0]}, "D_f must be finite and > 0, found 0.0 at index 1"),
        ({"dt": 0.0}, "dt must be finite and > 0"),
        ({"displacement": [0.0, float("nan")]}, "displacement must be finite, found nan at index 1"),
        (
            {"displacement": [[0.0, 1.0], [float("inf"), 1.0]]},
            r"displacement must be finite, found inf at index \(1, 0\)",
        ),
        ({"displacement": np.zeros(3), "D_o": np.ones(4)}, r"must broadcast .*displacement \(3,\).*D_o \(4,\)"),
        ({"method": "magic"}, "method must be one of auto, table, contour, windowed, found 'magic'"),
        ({"dim": 0}, "dim must be an integer from 1 to 64, found 0"),
        ({"dim": 2}, "displacement must have 2 components"),
        ({"b": "fast"}, "b must be numeric, found str"),
        ({"D_o": torch.tensor(1j)}, "D_o must be numeric, found a tensor of torch.complex"),
        ({"displacement": 1e300, "b": -1e308, "dt": 1e10}, "leaves the range of float64"),
    ],
)
def test_bad_input(change, message):
    given_ = dict(displacement=0.1, b=0.0, D_o=1.0, D_f=1.0, alpha=0.3, dt=0.1) | change
    with pytest.raises(ValueError, match=message) as caught:
        log_density(**given_)
    assert isinstance(caught.value, LevytorchError)


positive = st.floats(-12, 12).map(lambda e: 10.0**e)


@settings(max_examples=400, deadline=None)
@given(
    y=st.one_of(st.just(0.0), st.floats(-1e12, 1e12), st.floats(-10, 10)),
    D_o=st.one_of(st.just(0.0), positive),
    D_f=positive,
    alpha=st.floats(0.02, 0.985),
    dt=st.floats(1e-6, 1e3),
    dim=st.sampled_from([1, 2, 3]),
)
def test_never_a_nan_out_of_finite_input(y, D_o, D_f, alpha, dt, dim):
    x = torch.full((dim,) if dim > 1 else (), y, dtype=D, requires_grad=True)
    leaves = [x, *(torch.tensor(v, dtype=D, requires_grad=True) for v in (D_o, D_f, alpha))]
    # the random times of the mixture spread over some 80 powers of ten around B^(1/alpha): all must be numbers
    assume(dim == 1 or abs(math.log10(D_f * dt)) / alpha < 200)
    log_p = log_density(x, 0.0, *leaves[1:], dt, dim=dim, method="contour")
    assert torch.isfinite(log_p)
    for g in torch.autograd.grad(log_p, leaves):
        assert not torch.isnan(g).any()


@settings(max_examples=60, deadline=None)
@given(
    alpha=st.floats(0.05, 0.95),
    D_o=st.floats(0.0, 5.0),
    D_f=st.floats(0.01, 5.0),
    x=st.floats(0.01, 1e4),
    scale=st.floats(0.1, 10.0),
)
def test_scaling_law(alpha, D_o, D_f, x, scale):
    """X -> s X sends (b, D_o, D_f) to (s b, s^2 D_o, s^(2 alpha) D_f) and p to p / s."""
    here = log_density(x, 0.7, D_o, D_f, alpha, 0.3, method="contour")
    there = log_density(
        scale * x, scale * 0.7, scale**2 * D_o, scale ** (2 * alpha) * D_f, alpha, 0.3, method="contour"
    )
    assert abs(float(here - there) - np.log(scale)) <= 1e-10


def test_windowed_warns_where_it_does_not_converge():
    with pytest.warns(LevytorchWarning, match="did not reach its tolerance for 1 of 1"):
        log_density(9.0, 0.0, 0.1, 1e-15, 0.4, 1.0, method="windowed")


def test_windowed_has_no_alpha_derivative():
    with pytest.raises(ValueError, match="alpha must be held fixed for method 'windowed'"):
        log_density(0.1, 0.0, 1.0, 1.0, leaf(0.3), 0.1, method="windowed")
