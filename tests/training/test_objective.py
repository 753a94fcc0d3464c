"""The full-batch objective against autograd: gradient, second derivatives, conditional masses, the TCF's slope."""

import pytest
import torch

from levytorch.coefficients import AlphaSpec, FourierHead, Units
from levytorch.data import make_pools
from levytorch.law import log_density
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.likelihood import make_objective
from levytorch.likelihood.sums import assemble
from levytorch.likelihood.tail import parse_tail
from tests.training.problems import variable

ALPHAS = [AlphaSpec("fixed", 0.3), AlphaSpec("constant", 0.35), AlphaSpec("function", 0.35)]
TAILS = [None, {"CT": 4.0, "TRT": 20.0}, {"TRT": 20.0, "method": "conditional"}]
STRATA = {"CT": 4.0, "TRT": 20.0, "method": "conditional"}


def make(alpha, tail, n=3000, n_basis=5):
    data = variable()[:n].censor(CT=4.0)
    settings = parse_tail(tail)
    head = FourierHead(n_basis, alpha=alpha, units=Units(0.3, 1 / 40))
    head.set_constants(1.0, 2.0, 2.0)
    with torch.no_grad():
        head.theta += 0.05 * torch.randn(head.theta.shape, generator=torch.Generator().manual_seed(1)).double()
    pools = make_pools(data, settings.CT, settings.TRT, min_tail=5)
    return head, pools, make_objective(head, pools, settings, FrozenLaw("contour"))


def autograd_value(head, pools, objective, tcf):
    """The same objective written with autograd over the samples."""
    main = pools.main
    c = head(main.x)
    log_p = log_density(main.dx, c.b, c.D_o, c.D_f, c.alpha, main.dt, method="contour")
    if objective.method == "tcf":
        return (1 - tcf) * log_p.mean() + tcf * log_p[pools.tail].mean()
    if objective.method == "conditional":
        core, middle = objective.masses.log_kept(head)
        node = objective.bins.index(main.x, main.dt[0])
        log_p = log_p - torch.where(torch.isin(torch.arange(len(log_p)), pools.tail), middle[node], core[node])
    return log_p.mean()


@pytest.mark.parametrize("alpha", ALPHAS, ids=lambda a: a.mode)
@pytest.mark.parametrize("tail", [*TAILS, STRATA], ids=["none", "tcf", "conditional", "strata"])
def test_value_and_gradient_match_autograd(alpha, tail):
    head, pools, objective = make(alpha, tail)
    ev = objective.evaluate()
    if objective.method == "tcf":
        assert ev.tcf > 0
    value = autograd_value(head, pools, objective, ev.tcf)
    assert objective.value(ev) == pytest.approx(float(value.detach()), abs=1e-8)
    (gradient,) = torch.autograd.grad(value, head.theta)
    torch.testing.assert_close(objective.gradient(ev), gradient, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("alpha", ALPHAS, ids=lambda a: a.mode)
def test_second_derivatives_match_differences_of_the_gradient(alpha):
    head, _, objective = make(alpha, None, n=400)
    ev = objective.evaluate()
    objective.add_hessian(ev)
    found = assemble(head, ev.main.hessian, objective.design) / ev.main.n
    start = head.flat()
    for k in (0, 5, 6, 10, start.numel() - 1):
        gradients = []
        for sign in (1, -1):
            moved = start.clone()
            moved[k] += sign * 1e-4
            head.set_flat(moved)
            gradients.append(objective.gradient(objective.evaluate()))
        expected = (gradients[0] - gradients[1]) / 2e-4
        # bins of 1/512 of a cell stand for the states in them
        torch.testing.assert_close(found[k], expected, rtol=0.01, atol=2e-3)


def test_tcf_gradient_against_finite_difference():
    head, _, objective = make(ALPHAS[0], TAILS[1])
    ev = objective.evaluate()
    start = head.flat()
    for k in (0, 5, 10, 11):
        values = []
        for sign in (1, -1):
            moved = start.clone()
            moved[k] += sign * 1e-5
            head.set_flat(moved)
            values.append(objective.masses.R_theta(head) / (1 - objective.masses.R_sample))
        assert float(ev.tcf_gradient[k]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4, abs=1e-9)


def test_information_is_the_mean_outer_product_of_scores():
    head, pools, objective = make(ALPHAS[0], None, n=500)
    found = objective.information(objective.evaluate())
    expected = torch.zeros_like(found)
    for i in range(pools.n_main):
        one = slice(i, i + 1)
        c = head(pools.main.x[one])
        log_p = log_density(pools.main.dx[one], c.b, c.D_o, c.D_f, c.alpha, pools.main.dt[one], method="contour")
        (s,) = torch.autograd.grad(log_p.sum(), head.theta)
        expected += torch.outer(s, s) / pools.n_main
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.01 * float(expected.abs().max()))
