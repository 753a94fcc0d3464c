"""Heads in two and three dimensions: the basis against products written out, derivatives against autograd."""

import math

import pytest
import torch

from levytorch.coefficients import AlphaSpec, FourierHead, MLPHead, TensorBasis, Units, build_head
from levytorch.coefficients.head import Head
from levytorch.errors import InputError

D = torch.float64


def states(dim, n=40, seed=0):
    return 9 * torch.rand(n, dim, generator=torch.Generator().manual_seed(seed), dtype=D) - 3


def test_box_holds_all_products_and_total_those_of_low_degree():
    box, total = (TensorBasis(2, 5, truncation=t) for t in ("box", "total"))
    assert (box.size, total.size) == (25, 13)
    assert TensorBasis(3, 3).size == 7
    assert TensorBasis(3, 3, truncation="box").size == 27
    assert float(total.harmonics.sum(1).max()) == 2
    assert total.harmonic_numbers()[0] == 0


def test_rows_are_products_in_every_period():
    period, origin = (2 * math.pi, 3.0), (0.5, -1.0)
    basis = TensorBasis(2, 3, period, origin, truncation="box")
    x = states(2)
    u, v = x[:, 0] - 0.5, 2 * math.pi * (x[:, 1] + 1.0) / 3.0
    line = [[torch.ones_like(s), s.cos(), s.sin()] for s in (u, v)]
    expected = {round(float((a * b).sum()), 9) for a in line[0] for b in line[1]}
    assert {round(float(row.sum()), 9) for row in basis.rows(x)} == expected
    assert torch.equal(basis.rows(x)[0], torch.ones(len(x), dtype=D))
    torch.testing.assert_close(basis.rows(x + torch.tensor(period, dtype=D)), basis.rows(x))


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("mode", ["fixed", "constant", "function"])
def test_jacobian_and_chain_are_those_of_autograd(dim, mode):
    head = FourierHead(3, alpha=AlphaSpec(mode, 0.4), units=Units(0.7, 0.1), dim=dim)
    with torch.no_grad():
        head.theta += 0.1 * torch.randn(head.theta.shape, generator=torch.Generator().manual_seed(1), dtype=D)
    x = states(dim, 11)
    for ours, theirs in zip(head.jacobian(x), Head.jacobian(head, x)):
        torch.testing.assert_close(ours, theirs)
    c, chain = head(x), head.chain(head.theta.detach(), head.design(x))
    for ours, theirs in zip(chain.coefficients, c):
        torch.testing.assert_close(ours, theirs.detach())
    assert c.b.shape == (11, dim)
    assert c.D_o.shape == (11,)


@pytest.mark.parametrize("name", ["fourier", "mlp"])
@pytest.mark.parametrize("dim", [2, 3])
def test_constants_and_configuration(name, dim):
    head = build_head({"name": name, "dim": dim, "alpha": 0.3, "length": 0.5, "time": 0.025, "period": [4.0] * dim})
    b = [5.0, -3.0, 1.0][:dim]
    head.set_constants(b, 4.0, 3.0)
    if name == "mlp":  # the output weights are small, not zero
        with torch.no_grad():
            for net in head.nets.values():
                net[-1].weight.zero_()
    c = head(states(dim, 5))
    torch.testing.assert_close(c.b, torch.tensor(b, dtype=D).expand(5, dim))
    torch.testing.assert_close(c.D_o, torch.full((5,), 4.0, dtype=D))
    torch.testing.assert_close(c.D_f, torch.full((5,), 3.0, dtype=D))
    again = build_head(head.config())
    again.set_flat(head.flat())
    assert torch.equal(again(states(dim)).b, head(states(dim)).b)
    assert head(torch.zeros(2, 3, dim, dtype=D)).b.shape == (2, 3, dim)


def test_mlp_is_periodic_in_every_coordinate():
    head = MLPHead(dim=2, period=(2.0, 5.0), alpha=AlphaSpec("function", 0.4))
    x = states(2)
    for shift in ((2.0, 0.0), (0.0, -10.0)):
        for here, there in zip(head(x), head(x + torch.tensor(shift, dtype=D))):
            torch.testing.assert_close(here, there)


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="truncation must be one of total, box"):
        TensorBasis(2, 3, truncation="triangle")
    with pytest.raises(InputError, match="odd integer"):
        TensorBasis(2, 4)
    with pytest.raises(InputError, match="period must be one number or 2, found 3"):
        TensorBasis(2, 3, period=(1.0, 2.0, 3.0))
    with pytest.raises(InputError, match="period must be a positive"):
        TensorBasis(2, 3, period=(1.0, -2.0))
    with pytest.raises(InputError, match="functions per coefficient"):
        TensorBasis(3, 21, truncation="box")
    with pytest.raises(InputError, match="at most 4000 functions per coefficient, found more with 21 in 4 dimensions"):
        build_head({"dim": 4})
    with pytest.raises(InputError, match="dim must be from 1 to 64"):
        build_head({"dim": 65})
    with pytest.raises(InputError, match="agree with the number of periods"):
        build_head({"dim": 2, "period": [1.0, 2.0, 3.0]})
    with pytest.raises(InputError, match="put the coordinates on the last axis"):
        FourierHead(3, dim=2)(torch.zeros(5, dtype=D))
