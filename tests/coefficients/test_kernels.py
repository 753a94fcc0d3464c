"""Sums of scores per bin."""

import torch

from levytorch.coefficients import kernels


def test_sums_per_bin_are_those_of_a_loop():
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn((20, 300), dtype=torch.float64, generator=draw)
    values = torch.randn((3, 300), dtype=torch.float64, generator=draw)
    index = torch.randint(0, 7, (300,), generator=draw)
    found = kernels.per_bin(weight, values, index, 9)
    assert found.shape == (20, 3, 9)
    for bin_ in range(9):
        there = index == bin_
        assert torch.allclose(found[..., bin_], weight[:, there] @ values[:, there].T, rtol=0, atol=1e-12)
