"""Standard errors by simulation: estimate minus truth over standard error behaves as a standard normal."""

import pytest
import torch
from scipy.stats import binom

from levytorch import recover
from tests.training.problems import ALPHA, D_F, D_O, B, steps

PAPER = {"CT": 8.0, "TRT": 20.0}
TAILS = {"unbiased": None, "corrected": PAPER, "conditional": {**PAPER, "method": "conditional"}}
TRUTH = torch.tensor([B, D_O, D_F], dtype=torch.float64)
# where the estimators' population values lie: the TCF's fixed point is 0.3 % low in D_f by construction
TARGETS = {"unbiased": TRUTH, "corrected": torch.tensor([B, D_O, 2.992], dtype=torch.float64), "conditional": TRUTH}


def scores(kind, seeds, n, target):
    """(len(seeds), 3): (estimate - target) / standard error of b, D_o, D_f."""
    out = []
    for seed in seeds:
        data = steps(n, 10_000 + seed)
        if kind != "unbiased":
            data = data.censor(seed=seed)
        found = recover(data, alpha=ALPHA, n_basis=1, tail=TAILS[kind])
        value = torch.stack([found.b(0.0), found.D_o(0.0), found.D_f(0.0)])
        out.append((value - target) / torch.stack(found.std(0.0)))
    return torch.stack(out)


@pytest.mark.slow
@pytest.mark.parametrize("kind", TAILS)
def test_scatter_matches_standard_errors(kind):
    z = scores(kind, range(20), 40_000, TARGETS[kind])
    rms = z.square().mean(0).sqrt()
    # 20 squared normals: a root mean square outside (0.55, 1.55) has probability below 1e-3
    assert bool(((rms > 0.55) & (rms < 1.55)).all()), rms


@pytest.mark.slow
@pytest.mark.parametrize("kind", TAILS)
def test_bands_cover_the_truth(kind):
    """Against the truth itself, as a user sees it: the TCF's fixed point is a tenth of a standard error away."""
    n = 400
    covered = (scores(kind, range(n), 80_000, TRUTH).abs() < 1.96).sum(0)
    # nine counts, each binomial: one of them outside has probability below 1e-3
    low, high = binom.ppf([0.5e-4, 1 - 0.5e-4], n, 0.95)
    assert bool(((covered >= low) & (covered <= high)).all()), (covered, low, high)
