"""A head on a line as one on a cell: the same on its window, smooth where one end goes over into the other."""

import pytest
import torch

from levytorch.coefficients import FourierHead, PolynomialHead, SplineHead
from levytorch.coefficients.padded import PaddedHead, on_a_cell
from levytorch.errors import InputError

WINDOW = (-2.0, 3.0)


def line(kind, **options):
    head = kind(window=WINDOW, n_basis=9, **options)
    generator = torch.Generator().manual_seed(1)
    head.set_flat(0.3 * torch.randn(head.flat().numel(), generator=generator, dtype=torch.float64))
    return head


@pytest.mark.parametrize(
    ("kind", "options"), [(SplineHead, {}), (SplineHead, {"continuation": "linear"}), (PolynomialHead, {"degree": 3})]
)
def test_the_same_on_the_window_and_smooth_everywhere(kind, options):
    head = line(kind, **options)
    padded = on_a_cell(head)
    x = torch.linspace(*WINDOW, 101, dtype=torch.float64)
    with torch.no_grad():
        for own, other in zip(head(x)[:3], padded(x)[:3]):
            assert torch.allclose(own, other, rtol=1e-13, atol=1e-13)
        around = torch.linspace(padded.origin, padded.origin + padded.period, 4001, dtype=torch.float64)
        for values in padded(around)[:3]:
            slope = values.diff() / around.diff()
            # of a function with a bounded second derivative, the slope changes by little from one step to the next
            assert float(slope.diff().abs().max()) < 0.02 * float(slope.abs().max())
            assert float((values[0] - values[-1]).abs()) < 1e-12 * float(values.abs().max())
        assert torch.equal(padded(around + 3 * padded.period).b.round(decimals=9), padded(around).b.round(decimals=9))


def test_the_parameters_are_those_of_the_line():
    head = line(SplineHead)
    padded = on_a_cell(head)
    padded.set_flat(2 * head.flat())
    assert torch.equal(head.flat(), padded.flat())
    x = torch.tensor([-1.0, 0.5, 2.9], dtype=torch.float64)
    for own, other in zip(head.jacobian(x), padded.jacobian(x)):
        assert torch.allclose(own, other)
    assert padded.bounds == head.bounds
    with pytest.raises(InputError, match="must not be padded, found one that stands for a head on a line"):
        padded.config()


def test_heads_with_a_period_are_left_alone():
    head = FourierHead(5)
    assert on_a_cell(head) is head
    padded = on_a_cell(line(SplineHead))
    assert isinstance(padded, PaddedHead)
    assert on_a_cell(padded) is padded
