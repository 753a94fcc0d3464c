"""kind="robust": nowhere narrower than the model's errors, and wider where trajectories differ."""

import math

import pytest
import torch
from scipy.special import stdtrit
from scipy.stats import chi2, norm

from levytorch import Dynamics, Transitions, recover, simulate
from levytorch.training.blocks import N_BLOCKS, trajectory_of_blocks
from levytorch.training.reweighting import block_sandwiches
from tests.diagnostics.problems import quiet

X = torch.linspace(0.0, 2 * math.pi, 21, dtype=torch.float64)[:-1]
CIRCLE = {"D_o": 0.5, "D_f": 0.3, "alpha": 0.6}


def walks(b, n, steps, seed):
    return simulate(Dynamics(b=b, **CIRCLE), n, steps, 0.05, seed=seed).transitions()


def fitted(data, **options):
    return quiet(recover, data, **{"alpha": 0.6, "n_basis": 7, "law": "frozen"} | options)


@pytest.mark.parametrize("n", [5, 100])
def test_where_the_model_is_right_it_is_a_little_wider(n):
    """A sandwich without the variance of smoothing was 0.6 of the model's error, and less from few data."""
    found = fitted(walks(torch.sin, n, 1000 // n, 100), penalty="evidence")
    for own, robust in zip(found.std(X), found.std(X, kind="robust")):
        assert bool((robust >= own * (1 - 1e-12)).all())
        B = min(n, N_BLOCKS)  # what chance makes of the scatter of so many, in one case of 10,000
        most = stdtrit(B - 1, 0.975) / norm.ppf(0.975) * math.sqrt(chi2.ppf(0.9999, B - 1) / (B - 1))
        assert float(robust.mean() / own.mean()) < most


def test_smoothing_and_few_blocks_widen_the_scatter():
    found = fitted(walks(torch.sin, 100, 10, 101), penalty=[50.0, 50.0, 50.0])
    made = found.std(X, kind="robust") and found.replicas["reweighting"]
    # a right model has the scatter of its information: with the smoothing that is the inverse of both together
    inverse = -made.inverse / made.objective.n
    scatter = inverse @ (torch.linalg.inv(inverse) - torch.diag(made.objective.precision())) @ inverse
    torch.testing.assert_close(scatter + made.smoothing, inverse, rtol=1e-6, atol=1e-9 * float(inverse.abs().max()))
    (plain,) = block_sandwiches(made.influence, made.blocks, 0.0)
    (corrected,) = block_sandwiches(made.influence, made.blocks, 100.0)
    torch.testing.assert_close(corrected, plain * 1000 / 900)
    scatter = made.influence.T @ made.influence
    torch.testing.assert_close(plain, scatter * (60 / 59) * (2.0009954 / 1.9599640) ** 2, rtol=1e-6, atol=0)


@pytest.mark.long
def test_trajectories_that_differ_are_clusters():
    """10 animals, each with a drift of its own: blocks of time do not see that they differ, trajectories do."""
    pulls = torch.linspace(-1.0, 1.0, 10, dtype=torch.float64)
    parts = [walks(lambda x, k=k: k + 0.0 * x, 1, 300, 100 + i) for i, k in enumerate(pulls)]
    ids = torch.arange(10).repeat_interleave(300)
    data = Transitions(torch.cat([p.x for p in parts]), torch.cat([p.dx for p in parts]), 0.05, trajectory=ids)
    assert trajectory_of_blocks(data, N_BLOCKS).tolist() == [k // 6 for k in range(60)]
    found = fitted(data, n_basis=1)
    own, robust = float(found.std(0.0)[0]), float(found.std(0.0, kind="robust")[0])
    between = float(pulls.std()) / math.sqrt(10)  # the error of the mean of ten drawn drifts
    assert own < 0.5 * between
    assert robust == pytest.approx(between * 2.262 / 1.96, rel=0.35)


@pytest.mark.long
def test_clusters_are_known_of_lattices_too():
    data = walks(torch.sin, 10, 120, 102)
    pairs, nodes = fitted(data, lattice="never"), fitted(data, lattice="always")
    assert nodes.blocks.clusters.tolist() == pairs.blocks.clusters.tolist()
    torch.testing.assert_close(
        torch.stack(nodes.std(X, kind="robust")), torch.stack(pairs.std(X, kind="robust")), rtol=0.05, atol=0
    )
