"""Directions of steps: uniform ones raise nothing, ellipses are found and the remedy is named."""

import numpy as np
import pytest
import torch

from levytorch import Dynamics, diagnose, recover, simulate
from levytorch.coefficients import FourierHead
from levytorch.coefficients.links import AlphaSpec
from levytorch.diagnostics.checks import Skipped
from levytorch.diagnostics.isotropy import _tensor, check_isotropy
from levytorch.diagnostics.sample import Region, make_sample
from levytorch.errors import LevytorchWarning


def turning(x):
    """A correlation that has mean zero over the states."""
    c, one = 0.5 * torch.sin(x[..., 0]), torch.ones_like(x[..., 0])
    return torch.stack([one, c, c, one], -1).unflatten(-1, (2, 2))


def fitted(D_o, seed, **options):
    data = simulate(Dynamics((0.5, -0.3), D_o, 0.4, 0.6, dim=2), 200, 20, 0.05, seed=seed).transitions()
    return recover(data, alpha=0.6, n_basis=1, law="frozen", **options), data


def checked(D_o, seed):
    """Of pairs under a head that knows the drift."""
    data = simulate(Dynamics((0.5, -0.3), D_o, 0.4, 0.6, dim=2), 200, 20, 0.05, seed=seed, substeps=2).transitions()
    head = FourierHead(1, dim=2, alpha=AlphaSpec("fixed", 0.6))
    head.set_constants([0.5, -0.3], 1.0, 0.4)
    return check_isotropy(head, make_sample(data, Region(), 10_000, 0))


def test_p_values_of_isotropic_data_are_uniform():
    p = np.sort([checked(1.0, seed).p_value for seed in range(12)])
    # Kolmogorov's distance of twelve uniform numbers exceeds 0.45 with probability 0.01
    assert np.abs(p - (np.arange(12) + 0.5) / 12).max() < 0.45


@pytest.mark.parametrize("D_o", [np.diag([1.0, 2.0]), turning])
def test_ellipses_are_found(D_o):
    found = checked(D_o, 1)
    assert found.is_large
    assert found.p_value < 1e-6
    assert 1.5 < found.ratio < 5


@pytest.mark.parametrize("d", [2, 3, 5])
def test_coordinates_of_directions(d):
    y = torch.randn((4000, d), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = _tensor(y / y.norm(dim=1, keepdim=True))
    assert values.shape[1] == (d + 2) * (d - 1) // 2
    torch.testing.assert_close(values.norm(dim=1), torch.ones(4000, dtype=torch.float64))
    assert float(values.mean(0).norm()) < 5 / 4000**0.5


def test_the_alarm_names_the_remedy_and_matrices_say_what_is_not_checked():
    found, data = fitted(turning, 2)
    with pytest.warns(LevytorchWarning, match='noise="matrix"'):
        told = diagnose(found, data, checks=["fit"])
    assert "anisotropic" in told.alarms
    assert told.metrics()["isotropy_ratio"] > 1.5
    other, _ = fitted(turning, 2, noise="matrix")
    told = diagnose(other, data, checks=["fit", "predictive"])
    assert isinstance(told.fit, Skipped)
    assert told.predictive.p_value > 1e-4
