"""Algorithm B.1 without Lightning is Algorithm B.1: the same steps as the library's own engine, on the same draws."""

import csv

import numpy as np
import pytest
import torch

from benchmarks.paper import literal
from levytorch.coefficients import AlphaSpec, FourierHead
from levytorch.coefficients.init import randomise
from levytorch.data import make_pools
from levytorch.data.drawing import Drawer
from levytorch.dynamics import Dynamics
from levytorch.law import log_density
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.likelihood import Likelihood
from levytorch.simulation import simulate
from levytorch.training.engines.adam import AdamEngine


@pytest.fixture(scope="module")
def pairs():
    return simulate(Dynamics.named("variable", alpha=0.3), 50, 40, 1 / 40, seed=4).transitions()


def test_steps_are_those_of_the_engine(pairs):
    """Two replicas side by side against the library's Algorithm B.1 (autograd, its own draws), one after the other."""
    steps, seeds = 40, (7, 8)
    data = [literal.draws(pairs, seed, steps) for seed in seeds]
    found, _ = literal.adam(data, seeds, "accurate", 1 / 40)
    for seed, one in zip(seeds, found):
        head = FourierHead(21, positivity_link="clamp", alpha=AlphaSpec("fixed", 0.3))
        randomise(head, torch.Generator().manual_seed(seed))
        likelihood = Likelihood(head, FrozenLaw("table"))
        engine = AdamEngine(max_steps=steps)
        optimizer = engine.optimizer(likelihood)
        drawer = Drawer(make_pools(pairs, None, None), 100, "bernoulli", seed)
        total = torch.zeros(63, dtype=torch.float64)
        for step in range(steps):
            engine.step(likelihood, optimizer, drawer.draw(step, 0.0), step)
            total += head.flat() if step >= steps // 2 else 0
        torch.testing.assert_close(one.flat(), total / (steps // 2), rtol=1e-9, atol=1e-9)


def test_both_densities_have_the_same_scores():
    """Also in the far tail, where the paper's quadrature rescales: there against derivatives by autograd of the contour
    integral. Its absolute tolerance leaves d_y 3e-3 and d_A as large an error as itself; both are tiny there."""
    dx = torch.tensor([0.3, -2.0, 15.0, -400.0, 3e4], dtype=torch.float64)
    b, D_o, D_f = (torch.full_like(dx, v).requires_grad_() for v in (1.0, 2.0, 3.0))
    log_density(dx, b, D_o, D_f, 0.3, 1 / 40, method="contour").sum().backward()
    expected = torch.stack([b.grad, D_o.grad, D_f.grad])
    expected = expected.unsqueeze(0)
    windowed = literal.Scores("windowed", 1 / 40, far=10.0)
    for scores in (literal.Scores("accurate", 1 / 40), windowed):
        found = scores(*(v.detach().unsqueeze(0) for v in (dx, b, D_o, D_f)))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)
    assert windowed.far == 3


def test_a_study_goes_on_where_it_stopped(tmp_path, monkeypatch):
    out = tmp_path / "literal.csv"
    small = {"trajectories": 20, "steps": 20, "out": out}
    monkeypatch.setattr(literal, "EXAMPLES", {"4.3": 1 / 40})
    monkeypatch.setattr(literal, "judged", lambda head: dict.fromkeys(("b", "D_o", "D_f", "V", "V_shape"), 0.1))
    literal.study(1, **small)
    before = out.read_text()
    assert [row["density"] for row in csv.DictReader(before.splitlines())] == list(literal.DENSITIES)
    literal.study(2, **small)
    after = out.read_text()
    assert after.startswith(before)
    assert [row["seed"] for row in literal.read_study(out)] == ["0", "0", "1", "1"]
    row = literal.read_study(out)[0]
    assert all(np.isfinite(float(row[name])) for name in literal.NUMBERS)


def test_errors_of_the_truth_are_its_truncation(pairs):
    """b has kinks: 21 functions leave 1.4 % of it; D_o is smooth; V of these coefficients is off by their errors."""
    head = FourierHead(21, positivity_link="clamp", alpha=AlphaSpec("fixed", 0.3))
    truth, x = Dynamics.named("variable", alpha=0.3), 2 * np.pi * torch.arange(512, dtype=torch.float64) / 512
    phi = head.basis.rows(x)
    curves = [getattr(truth, name)(x) for name in ("b", "D_o", "D_f")]
    head.set_flat(torch.cat([torch.linalg.lstsq(phi.T, curve[:, None]).solution[:, 0] for curve in curves]))
    found = literal.judged(head)
    assert found["b"] < 0.03
    assert found["D_o"] < 1e-6
    assert found["V_shape"] < 0.02


def test_the_section_and_its_claims_count_outliers(tmp_path):
    file = tmp_path / literal.RESULTS.name
    errors = [0.1, 0.11, 0.09, 0.1, 0.105, 0.9]
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, (*literal.KEY, *literal.NUMBERS))
        writer.writeheader()
        for density in literal.DENSITIES:
            for seed, e in enumerate(errors if density == "windowed" else errors[:-1]):
                numbers = dict.fromkeys(("b", "D_o", "D_f", "V", "V_shape"), e) | {"far": 2, "flagged": 1, "seconds": 3}
                writer.writerow(dict(zip(literal.KEY, ("4.3", density, 400, 512, seed))) | numbers)
    told = {(claim.where, claim.engine): (claim.measured, claim.holds) for claim in literal.claims(tmp_path)}
    assert told[("4.3", "Algorithm B.1, windowed density")] == ("1 of 6 at 400 trajectories", True)
    assert told[("4.2.1", "Algorithm B.1, accurate density")] == ("0 of 5 at 400", False)
    assert "| 4.3 | windowed | 6 | 400 | 512 | 10.2 % (90.0 %) |" in "\n".join(literal.section(tmp_path))
