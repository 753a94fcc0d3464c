"""log_density under the transforms of torch.func."""

import pytest
import torch
from torch.func import grad, hessian, jacrev, vmap

from levytorch import log_density

DX = torch.tensor([0.3, -1.2, 4.0], dtype=torch.float64)
AT = torch.tensor([0.5, 0.8, 0.6, 0.4], dtype=torch.float64)


def log_p(theta, dx, **options):
    return log_density(dx, theta[0], theta[1], theta[2], theta[3], 0.1, **options)


@pytest.mark.parametrize("options", [{}, {"tempering": 0.7}], ids=str)
def test_derivatives_are_those_of_autograd(options):
    theta = AT.clone().requires_grad_(True)
    slopes = torch.stack([torch.autograd.grad(log_p(theta, dx, **options), theta)[0] for dx in DX])
    torch.testing.assert_close(jacrev(lambda t: log_p(t, DX, **options))(AT), slopes)
    torch.testing.assert_close(vmap(grad(lambda t, dx: log_p(t, dx, **options)), (None, 0))(AT, DX), slopes)
    bends = torch.autograd.functional.hessian(lambda t: log_p(t, DX, **options).sum(), AT)
    torch.testing.assert_close(hessian(lambda t: log_p(t, DX, **options).sum())(AT), bends)
    twice = jacrev(jacrev(lambda t: log_p(t, DX, **options).sum()))(AT)
    torch.testing.assert_close(twice, bends)


def test_vmap_over_any_argument():
    many = AT + 0.01 * torch.arange(8, dtype=torch.float64).reshape(2, 4)
    found = vmap(lambda t: log_p(t, DX))(many)
    torch.testing.assert_close(found, torch.stack([log_p(t, DX) for t in many]))
    both = vmap(lambda dx: vmap(lambda t: log_p(t, dx))(many))(DX)
    torch.testing.assert_close(both, found.T)


def test_in_the_plane():
    dx = torch.tensor([[0.3, -0.2], [1.0, 2.0]], dtype=torch.float64)
    mine = vmap(grad(lambda t, step: log_p(t, step, dim=2)), (None, 0))(AT, dx)
    theta = AT.clone().requires_grad_(True)
    other = torch.stack([torch.autograd.grad(log_p(theta, step, dim=2), theta)[0] for step in dx])
    torch.testing.assert_close(mine, other)


def test_single_precision_stays():
    assert log_p(AT.float(), DX.float()).dtype == torch.float32
    assert grad(lambda t: log_p(t, DX.float()).sum())(AT.float()).dtype == torch.float32
