"""V in more than three coordinates, against sums of V in one coordinate and eigenfunctions."""

import math

import pytest
import torch

from levytorch import Dynamics, recover, simulate, solve_value
from levytorch.errors import InputError, LevytorchWarning
from levytorch.policy import by_simulation
from levytorch.policy.by_simulation import SimulatedValue
from levytorch.spaces.basis import TensorBasis, products_kept

TURN = 2 * math.pi


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    monkeypatch.setattr(by_simulation, "_ROUNDS", 2)


def separate(place, drifts, d=4):
    """A system whose coordinates share the jumps only, a reward that is a sum over them, and its V."""
    D = torch.linspace(0.5, 1.0, d, dtype=torch.float64)
    several = Dynamics(
        lambda x: torch.stack([f(x[..., i]) for i, f in enumerate(drifts)], -1),
        torch.diag(D),
        0.4,
        0.7,
        dim=d,
        **{"window": [place["window"]] * d, "period": None} if "window" in place else place,
    )
    alone = [Dynamics(f, float(D[i]), 0.4, 0.7, **place) for i, f in enumerate(drifts)]
    rewards = [lambda u, i=i: (1 + 0.3 * i) * torch.cos(u) for i in range(d)]
    parts = [solve_value(one, r, 1.0) for one, r in zip(alone, rewards)]
    return (
        several,
        lambda x: sum(r(x[..., i]) for i, r in enumerate(rewards)),
        lambda x: sum(V(x[..., i]) for i, V in enumerate(parts)),
    )


def drawn(n, d, low, high):
    return low + (high - low) * torch.rand((n, d), generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "drifts", "share"),
    [
        ({"period": TURN}, [lambda x: -torch.sin(x)] + [lambda x: 0.5 * torch.cos(x)] * 3, 0.04),
        ({"period": None, "window": (-2.0, 2.0)}, [lambda x: -x] * 4, 0.015),
    ],
)
def test_coordinates_that_do_not_see_each_other(place, drifts, share):
    system, reward, truth = separate(place, drifts)
    V = solve_value(system, reward, 1.0)
    low, high = place.get("window", (0.0, TURN))
    x = drawn(300, 4, low, high)
    error = V(x) - truth(x)
    assert float((error / V.std(x)).square().mean().sqrt()) < 1.5
    assert float(error.abs().max()) < share * float(truth(x).abs().max())


@pytest.mark.long
def test_a_matrix_and_an_eigenfunction(tmp_path):
    root = torch.tensor([[1.0, 0, 0, 0], [0.4, 0.9, 0, 0], [0, -0.3, 0.8, 0], [0.2, 0, 0, 0.7]], dtype=torch.float64)
    D, k = root @ root.T, torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    system = Dynamics(torch.zeros(4, dtype=torch.float64), D, 0.5, 0.6, period=TURN, dim=4)
    V = solve_value(system, lambda x: torch.cos(x @ k), 0.8, n_modes=7)
    x = drawn(300, 4, 0.0, TURN)
    truth = torch.cos(x @ k) / (0.8 + k @ D @ k + 0.5 * float(k @ k) ** 0.6)
    assert float(((V(x) - truth) / V.std(x)).square().mean().sqrt()) < 1.5
    assert float(V.std(x).mean()) < 0.05 * float(truth.abs().max())
    h = 1e-5 * torch.eye(4, dtype=torch.float64)[1]
    slope = (V(x[:5] + h) - V(x[:5] - h)) / 2e-5
    torch.testing.assert_close(V.gradient(x[:5])[:, 1], slope, rtol=1e-6, atol=1e-8)
    again = SimulatedValue.load(V.save(tmp_path / "V.pt"))
    assert torch.equal(again(x), V(x))
    assert torch.equal(again.std(x), V.std(x))


def test_what_cannot_be_solved_is_refused():
    system = Dynamics(torch.zeros(4), 1.0, 0.5, 0.6, period=None, window=[(-1.0, 1.0)] * 4, dim=4)
    with pytest.raises(InputError, match="found absorb"):
        solve_value(system, 1.0, 1.0, exterior="absorb")
    with pytest.raises(InputError, match="at most 500 products in 4 dimensions, found 11"):
        solve_value(system, 1.0, 1.0, n_modes=11)
    with pytest.raises(InputError, match="one entry per coordinate"):
        solve_value(system, 1.0, 1.0, window=(-1.0, 1.0))


def test_functions_that_are_too_few_are_said_so():
    system = Dynamics(torch.zeros(4), 0.1, 0.1, 0.6, period=TURN, dim=4)
    with pytest.warns(LevytorchWarning, match="sum of smooth functions in 4 coordinates"):
        V = solve_value(system, lambda x: torch.cos(x[..., 0]) ** 2, 1.0, n_modes=5)
    assert not V.converged


@pytest.mark.parametrize(("dim", "n"), [(2, 7), (3, 5), (10, 5)])
def test_products_are_counted_as_they_are_made(dim, n):
    assert TensorBasis(dim, n).size == products_kept(dim, n, 10_000)
    assert products_kept(dim, n, 3) == 4


@pytest.mark.long
def test_five_coordinates_are_recovered():
    D = 0.5 * torch.eye(5, dtype=torch.float64) + 0.1
    system = Dynamics(torch.zeros(5, dtype=torch.float64), D, 0.3, 0.7, period=TURN, dim=5)
    paths = simulate(system, 60, 40, 1 / 40, seed=1)
    found = recover(paths, alpha=0.7, noise="matrix", law="frozen", n_basis=1)
    here = torch.zeros(5, dtype=torch.float64)
    assert float(((found.D_o(here) - D) / found.std(here)[1]).square().mean().sqrt()) < 1.5


@pytest.mark.long
def test_a_network_in_four_coordinates_is_trained_by_mini_batches():
    D = torch.tensor([0.4, 0.6, 0.8, 1.0], dtype=torch.float64)
    system = Dynamics(torch.zeros(4, dtype=torch.float64), torch.diag(D), 0.3, 0.7, period=TURN, dim=4)
    options = {"coefficients": "mlp", "width": 4, "depth": 1, "engine": "adam", "max_steps": 3, "noise": "diagonal"}
    found = recover(simulate(system, 20, 40, 1 / 40, seed=1), alpha=0.7, law="frozen", **options)
    here = torch.zeros(4, dtype=torch.float64)
    assert found.b(here).shape == (4,)
    error = (found.D_o(here) - torch.diag(D)).diagonal() / found.std(here)[1].diagonal()
    assert float(error.square().mean().sqrt()) < 2.0
