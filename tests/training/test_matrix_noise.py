"""recover(noise=...): matrices from data, their errors, tables, files, tails and refusals."""

import math

import numpy as np
import pytest
import torch

from levytorch import Dynamics, Recovery, recover, simulate
from levytorch.errors import InputError

MATRIX = np.array([[1.0, 0.6], [0.6, 0.8]])
TRUTH = Dynamics((0.5, -0.3), MATRIX, 0.4, 0.6, dim=2)


@pytest.fixture(scope="module")
def data():
    return simulate(TRUTH, 300, 20, 0.1, seed=4).transitions()


@pytest.fixture(scope="module")
def found(data):
    return recover(data, alpha=0.6, n_basis=1, noise="matrix", law="frozen")


def test_the_truth_is_within_its_errors(found):
    x = torch.zeros((1, 2), dtype=torch.float64)
    b, D_o, D_f = found.std(x)
    assert D_o.shape == (1, 2, 2)
    assert bool(((found.D_o(x)[0] - torch.tensor(MATRIX)).abs() < 3.5 * D_o[0]).all())
    assert bool(((found.b(x) - TRUTH.b(x)).abs() < 3.5 * b).all())
    assert abs(float(found.D_f(x) - 0.4)) < 3.5 * float(D_f)
    assert bool((D_o < 0.1).all())


def test_intervals_frame_and_summary(found):
    intervals = found.conf_int(np.zeros((3, 2)))
    assert intervals.D_o.shape == (3, 2, 2, 2)
    assert bool((intervals.D_o[..., 0] < intervals.D_o[..., 1]).all())
    frame = found.to_frame(4)
    assert {"D_o11", "D_o12", "D_o22", "D_o12_low", "D_o12_std", "b1"} <= set(frame.columns)
    text = str(found.summary())
    assert all(name in text for name in ("D_o_11", "D_o_12", "D_o_22"))


def test_saved_and_loaded(found, tmp_path):
    again = Recovery.load(found.save(tmp_path / "recovery.pt"))
    x = np.ones((2, 2))
    torch.testing.assert_close(again.D_o(x), found.D_o(x))
    torch.testing.assert_close(again.std(x)[1], found.std(x)[1])
    assert again.dynamics().has_matrix
    assert np.isfinite(again.simulate(2, 3, 0.1).to_array()).all()


def test_likelihoods_of_nested_forms(data, found):
    one, diagonal = (recover(data, alpha=0.6, n_basis=1, noise=n, law="frozen") for n in ("isotropic", "diagonal"))
    assert one.log_likelihood < diagonal.log_likelihood < found.log_likelihood - 100
    assert (one.n_parameters, diagonal.n_parameters, found.n_parameters) == (4, 5, 6)
    assert float(diagonal.D_o([0.0, 0.0])[0, 1]) == 0.0


@pytest.mark.parametrize("method", ["conditional", "tcf"])
def test_lost_tails(method):
    censored = simulate(TRUTH, 300, 20, 0.1, seed=5).transitions().censor(TRT=4.0, CT=2.0, drop_tail=0.5, seed=0)
    tail = {"method": method, "CT": 2.0, "TRT": 4.0}
    found = recover(censored, alpha=0.6, n_basis=1, noise="matrix", law="frozen", tail=tail)
    x = [0.0, 0.0]
    assert bool(((found.D_o(x) - torch.tensor(MATRIX)).abs() < 4 * found.std(x)[1]).all())


@pytest.mark.long
def test_alpha_is_learned_and_seen_in_the_start(data):
    found = recover(data, alpha="learn", n_basis=1, noise="matrix", law="frozen")
    assert found.converged
    assert abs(found.alpha - 0.6) < 4 * found.alpha_std
    assert abs(found.D_o([0.0, 0.0])[0, 1] - 0.6) < 0.15


def test_refused(data):
    line = simulate(Dynamics.named("constant"), 20, 20, 0.1).transitions()
    with pytest.raises(InputError, match="noise must be isotropic for one coordinate"):
        recover(line, alpha=0.3, noise="matrix")
    with pytest.raises(InputError, match="noise must be one of"):
        recover(data, alpha=0.3, noise="full")
    with pytest.raises(InputError, match='noise must be "isotropic" where D_o is a known constant'):
        recover(data, alpha=0.3, noise="matrix", D_o=1.0)


@pytest.mark.slow
def test_a_field_of_matrices_under_the_simulated_law():
    """The rotating system: the truth within its bands at nine of ten states or more."""
    truth = Dynamics.named("rotor", alpha=0.5)
    found = recover(
        simulate(truth, 1000, 40, 1 / 40, seed=1, order=2).transitions(), alpha=0.5, n_basis=7, noise="matrix"
    )
    x = truth.points(500)
    error, std = found.D_o(x) - truth.D_o(x), found.std(x)[1]
    assert float((error.abs() < 1.96 * std).double().mean()) > 0.8
    assert float(error.norm() / truth.D_o(x).norm()) < 0.12
    assert math.isfinite(found.log_likelihood)
