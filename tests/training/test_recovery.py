"""Recovery: saving, loading, refusing foreign files, derivatives."""

import pickle

import pytest
import torch

from levytorch import Recovery
from levytorch.errors import InputError
from tests.training.problems import ALPHA, constant
from tests.training.problems import frozen_recover as recover


@pytest.fixture(scope="module")
def found():
    return recover(constant(5000, 1), alpha=ALPHA, n_basis=3)


def test_round_trip(found, tmp_path):
    again = Recovery.load(found.save(tmp_path / "recovery.pt"))
    x = torch.linspace(0, 6, 9, dtype=torch.float64)
    for name in ("b", "D_o", "D_f"):
        assert torch.equal(getattr(found, name)(x), getattr(again, name)(x))
    for a, b in zip(found.std(x), again.std(x)):
        assert torch.equal(a, b)
    assert (again.tcf, again.log_likelihood, again.converged) == (found.tcf, found.log_likelihood, found.converged)
    assert [p.name for p in tmp_path.iterdir()] == ["recovery.pt"]


def test_floats_arrays_and_shapes(found):
    assert found.b(0.3).shape == ()
    assert found.D_o([[0.1, 0.2, 0.3]]).shape == (1, 3)
    assert found.std(torch.zeros(2, 2))[0].shape == (2, 2)


def test_dynamics_has_the_same_coefficients(found):
    x = torch.linspace(-9, 9, 7, dtype=torch.float64)
    torch.testing.assert_close(found.dynamics().D_f(x), found.D_f(x))
    assert found.dynamics().alpha == ALPHA


def test_jacobian_against_differences(found):
    x = torch.tensor([0.2, 3.0], dtype=torch.float64)
    J = found.jacobian(x)
    theta = found.theta
    for k in range(theta.numel()):
        values = []
        for sign in (1, -1):
            moved = theta.clone()
            moved[k] += sign * 1e-6
            found.head.set_flat(moved)
            values.append(torch.stack([found.b(x), found.D_o(x), found.D_f(x)]))
        found.head.set_flat(theta)
        numeric = (values[0] - values[1]) / 2e-6
        for row in range(3):
            torch.testing.assert_close(J[row][:, k], numeric[row], rtol=1e-5, atol=1e-6)


class _Hostile:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def test_a_hostile_file_is_not_executed(tmp_path):
    path = tmp_path / "recovery.pt"
    path.write_bytes(pickle.dumps(_Hostile()))
    with pytest.raises(InputError, match="does not load safely"):
        Recovery.load(path)
    torch.save({"format": 1, "head": _Hostile()}, path)
    with pytest.raises(InputError, match="does not load safely"):
        Recovery.load(path)


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(InputError, match="nothing at"):
        Recovery.load(tmp_path / "none.pt")
    torch.save({"weights": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(InputError, match="format"):
        Recovery.load(tmp_path / "other.pt")


def test_a_window_outside_the_observed_states_is_refused(tmp_path):
    """The observed range travels with a Recovery, through files too."""
    from levytorch import Trajectories, solve_value

    rng = torch.Generator().manual_seed(0)
    x = 3.0 + 0.01 * torch.randn(40, 50, generator=rng, dtype=torch.float64).cumsum(1)
    found = recover(Trajectories.from_arrays(x, dt=0.1).transitions(), alpha=0.6, n_basis=1)
    low, high = Recovery.load(found.save(tmp_path / "recovery.pt")).support
    assert low == x[:, :-1].min()
    assert high == x[:, :-1].max()
    solve_value(found, torch.cos, 0.5, n_modes=5, window=(low, high))
    with pytest.raises(InputError, match="window"):
        solve_value(found, torch.cos, 0.5, n_modes=5, window=(low - 1.0, high))
