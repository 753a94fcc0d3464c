"""LevyStep as a distribution: inverse, entropy, differentiable samples, dtypes, unchecked arguments, repr, Pyro."""

import math

import pytest
import torch

from levytorch import LevyStep
from levytorch.errors import InputError

D = torch.float64
LAWS = [
    {"b": 5.0, "D_o": 4.0, "D_f": 3.0, "alpha": 0.3, "dt": 1 / 40},
    {"b": -1.0, "D_o": 0.0, "D_f": 0.5, "alpha": 0.8, "dt": 0.1},
    {"b": 0.0, "D_o": 1.0, "D_f": 1.0, "alpha": 0.5, "dt": 1.0, "tempering": 0.7},
]


def given(**changes):
    """Parameters that need a gradient."""
    law = {"b": 0.3, "D_o": 0.7, "D_f": 1.1, "alpha": 0.6, "dt": 0.5} | changes
    return {name: torch.tensor(value, dtype=D, requires_grad=True) for name, value in law.items()}


@pytest.mark.parametrize("law", LAWS)
def test_the_inverse_inverts(law):
    step = LevyStep(**law)
    p = torch.tensor([1e-12, 1e-3, 0.2, 0.49999, 0.5, 0.7, 1 - 1e-3], dtype=D)
    torch.testing.assert_close(step.cdf(step.icdf(p)), p, rtol=1e-10, atol=0)
    assert bool((step.icdf(p).diff() > 0).all())
    assert step.icdf(torch.tensor([0.0, 1.0], dtype=D)).tolist() == [-math.inf, math.inf]
    with pytest.raises(InputError, match=r"value must lie in \[0, 1\] for icdf"):
        step.icdf(1.5)


def test_the_inverse_of_a_cauchy_law_and_its_derivatives():
    """alpha = 1/2 without diffusion: b dt + D_f dt tan(pi (p - 1/2))."""
    p = torch.tensor([0.03, 0.4, 0.9], dtype=D, requires_grad=True)
    law = given(alpha=0.5, D_o=0.0)
    found = LevyStep(**law).icdf(p)
    exact = law["b"] * law["dt"] + law["D_f"] * law["dt"] * torch.tan(math.pi * (p - 0.5))
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)
    for wrt in (p, law["b"], law["D_f"], law["dt"]):
        mine, true = (torch.autograd.grad(x.sum(), wrt, retain_graph=True)[0] for x in (found, exact))
        torch.testing.assert_close(mine, true, rtol=1e-7, atol=1e-9)


def test_entropies_in_closed_form():
    """Cauchy's is log(4 pi scale); with hardly any jumps it is that of the Gaussian."""
    cauchy = LevyStep(3.0, 0.0, torch.tensor([0.2, 5.0], dtype=D), 0.5, 0.5).entropy()
    torch.testing.assert_close(cauchy, torch.log(4 * math.pi * 0.5 * torch.tensor([0.2, 5.0], dtype=D)))
    gauss = LevyStep(0.0, 2.0, 1e-13, 0.9, 0.25).entropy()
    assert float(gauss) == pytest.approx(0.5 * math.log(2 * math.pi * math.e * 1.0), abs=1e-8)
    in_three = LevyStep(0.0, 2.0, 1e-13, 0.9, 0.25, dim=3).entropy()
    assert float(in_three) == pytest.approx(1.5 * math.log(2 * math.pi * math.e * 1.0), abs=1e-7)


@pytest.mark.parametrize("law", [*LAWS, {"b": 0.0, "D_o": 1.0, "D_f": 1.0, "alpha": 0.4, "dt": 1.0, "dim": 2}])
def test_entropy_against_samples(law):
    step, n = LevyStep(**law), 20_000
    log_p = step.log_prob(step.sample((n,), generator=torch.Generator().manual_seed(0)))
    assert abs(float(step.entropy() + log_p.mean())) < 4 * float(log_p.std()) / math.sqrt(n)


def test_entropy_is_differentiable():
    """Scaling: x -> c x turns D_f into c D_f at alpha = 1/2, and adds log c to the entropy."""
    D_f = torch.tensor(0.7, dtype=D, requires_grad=True)
    (slope,) = torch.autograd.grad(LevyStep(0.0, 0.0, D_f, 0.5, 1.0).entropy(), D_f)
    assert float(slope) == pytest.approx(1 / 0.7, rel=1e-8)


@pytest.mark.parametrize("dim", [1, 2])
def test_samples_can_be_differentiated(dim):
    """The derivative of a sample with fixed random numbers is that of finite differences."""

    def draw(**law):
        return LevyStep(**law, dim=dim).rsample((50,), generator=torch.Generator().manual_seed(3)).clamp(-1e3, 1e3)

    law = given()
    step = LevyStep(**law, dim=dim)
    assert step.has_rsample
    plain = step.sample((50,), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(draw(**law).detach(), plain.clamp(-1e3, 1e3), rtol=0, atol=0)
    total = draw(**law).sin().sum()
    for name, grad in zip(law, torch.autograd.grad(total, list(law.values()))):
        h = 1e-6
        ends = [float(draw(**law | {name: law[name].detach() + s * h}).detach().sin().sum()) for s in (1, -1)]
        assert float(grad) == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-4, abs=1e-4)


def test_the_gradient_of_an_expectation():
    """d E f / d theta of samples, f(x) = exp(-x^2 / 2), whose mean is an integral of the characteristic function."""
    law, n = given(), 40_000
    x = LevyStep(**law).rsample((n,), generator=torch.Generator().manual_seed(0))
    k = torch.linspace(-9.0, 9.0, 2001, dtype=D)
    decay = (law["D_o"] * k**2 + law["D_f"] * k.abs() ** (2 * law["alpha"])) * law["dt"]
    exact = torch.trapezoid(torch.exp(-0.5 * k**2 - decay) * torch.cos(k * law["b"] * law["dt"]), k) / math.sqrt(
        2 * math.pi
    )
    f = torch.exp(-0.5 * x**2)
    for name in ("b", "D_o", "D_f"):
        (each,) = torch.autograd.grad(f, x, torch.ones_like(x), retain_graph=True)
        (mine,) = torch.autograd.grad(f.mean(), law[name], retain_graph=True)
        (true,) = torch.autograd.grad(exact, law[name], retain_graph=True)
        # the derivative of one sample is f' times at most |x| + 1 over the parameter
        spread = float((each.abs() * (x.abs() + 1)).std()) / math.sqrt(n) / 0.3
        assert abs(float(mine - true)) < 4 * spread


def test_tempered_jumps_can_be_differentiated_in_part():
    b = torch.tensor(0.5, dtype=D, requires_grad=True)
    step = LevyStep(b, 1.0, 1.0, 0.5, 0.5, tempering=1.0)
    assert step.has_rsample
    (slope,) = torch.autograd.grad(step.rsample((7,)).sum(), b)
    assert float(slope) == pytest.approx(3.5)
    step = LevyStep(0.5, 1.0, torch.tensor(1.0, dtype=D, requires_grad=True), 0.5, 0.5, tempering=1.0)
    assert not step.has_rsample
    with pytest.raises(InputError, match="the parameters of tempered jumps must not need a gradient for rsample"):
        step.rsample()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_out_is_dtype_in(dtype):
    at = torch.tensor(0.3, dtype=dtype)
    for step in (LevyStep(torch.tensor(0.0, dtype=dtype), 1.0, 1.0, 0.5, 1.0), LevyStep(0.0, 1.0, 1.0, 0.5, 1.0)):
        assert {x.dtype for x in (step.log_prob(at), step.cdf(at), step.icdf(at))} == {dtype}
    step = LevyStep(torch.tensor(0.0, dtype=dtype), 1.0, 1.0, 0.5, 1.0).expand((2,))
    assert {x.dtype for x in (step.sample(), step.rsample(), step.mean, step.variance, step.entropy())} == {dtype}
    assert LevyStep(0.0, 1.0, 1.0, 0.5, 1.0).sample().dtype == D


def test_unchecked_arguments_give_nan_where_they_make_no_sense():
    D_o = torch.tensor([1.0, -1.0], dtype=D)
    with pytest.raises(InputError, match="D_o must be finite and >= 0"):
        LevyStep(0.0, D_o, 1.0, 0.5, 1.0)
    step = LevyStep(0.0, D_o, 1.0, 0.5, 1.0, validate_args=False)
    expected = float(LevyStep(0.0, 1.0, 1.0, 0.5, 1.0).log_prob(0.3))
    log_p = step.log_prob(torch.tensor(0.3, dtype=D))
    assert float(log_p[0]) == pytest.approx(expected)
    assert log_p.isnan().tolist() == [False, True]
    assert step.cdf(torch.tensor(0.3, dtype=D)).isnan().tolist() == [False, True]
    assert step.icdf(torch.tensor(0.3, dtype=D)).isnan().tolist() == [False, True]


def test_repr():
    assert repr(LevyStep(5.0, 4.0, 3.0, 0.3, 0.5)) == "LevyStep(b=5, D_o=4, D_f=3, alpha=0.3, dt=0.5)"
    many = LevyStep(torch.zeros(3, dtype=D), torch.arange(3.0), 3.0, 0.3, 0.5, tempering=2.0, method="contour")
    assert repr(many) == (
        "LevyStep(b=0, D_o=tensor(3,), D_f=3, alpha=0.3, dt=0.5, tempering=2, method='contour', batch_shape=(3,))"
    )


def test_in_pyro():
    """The drift of a model is found by stochastic variational inference; its posterior is a Gaussian to the eye."""
    pyro = pytest.importorskip("pyro")
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide import AutoNormal

    from levytorch.pyro import LevyStep as Step

    dx = Step(2.0, 0.5, 0.3, 0.6, 0.5).sample((150,), generator=torch.Generator().manual_seed(0))

    def model():
        b = pyro.sample("b", pyro.distributions.Normal(torch.zeros((), dtype=D), 10.0))
        with pyro.plate("pairs", len(dx)):
            return pyro.sample("dx", Step(b, 0.5, 0.3, 0.6, 0.5), obs=dx)

    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    guide = AutoNormal(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), Trace_ELBO())
    for _ in range(80):
        svi.step()
    found, grid = guide.median()["b"], torch.linspace(1.0, 3.0, 401, dtype=D)
    likelihood = Step(grid[:, None], 0.5, 0.3, 0.6, 0.5).log_prob(dx).sum(1)
    assert abs(float(found - grid[likelihood.argmax()])) < 0.1
    drawn = pyro.sample("x", Step(2.0, 0.5, 0.3, 0.6, 0.5).expand([4]).to_event(1))
    assert drawn.shape == (4,)
