"""Diagnostics of fits under the exact law of a step."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import binom, kstest

from levytorch import Dynamics, Transitions, compare, log_density, recover, simulate
from levytorch.coefficients import AlphaSpec, FourierHead
from levytorch.diagnostics import diagnose
from levytorch.diagnostics.exact_tangent import Edges, ExactTangent, edges_at, probability_nodes, rounded, steps_at
from levytorch.diagnostics.sample import Region
from levytorch.figures.diagnostics import drawings
from levytorch.law import score
from levytorch.likelihood.exact import ExactLaw
from tests.diagnostics.problems import quiet

STEEP = Dynamics(
    b=lambda x: 2 * torch.cos(x), D_o=lambda x: torch.exp(torch.sin(x)), D_f=lambda x: 1 + 0.5 * torch.cos(x), alpha=0.5
)
DT = 1 / 10
REGIONS = {"whole": Region(), "core": Region(inner=3.0), "strata": Region(inner=3.0, outer=8.0, removed=8.0)}


def steep(n: int, seed: int) -> Transitions:
    return simulate(STEEP, n, 20, DT, substeps=40, seed=seed).transitions()


@cache
def fits() -> tuple:
    data = steep(1000, 3)
    return data, *(recover(data, alpha=0.5, n_basis=5, law=law) for law in ("frozen", "exact"))


def constants() -> FourierHead:
    head = FourierHead(n_basis=1, alpha=AlphaSpec("fixed", 0.5))
    head.set_constants(1.0, 2.0, 1.5, 0.5)
    return head


@pytest.mark.long
@pytest.mark.parametrize("name", REGIONS)
def test_steps_at_given_probabilities(name):
    region, head = REGIONS[name], fits()[2].head
    step = ExactLaw().step(head, DT)
    v, w = probability_nodes()
    assert float(w.sum()) == pytest.approx(1.0, abs=1e-12)
    states = torch.linspace(0, 6, 20, dtype=torch.float64)
    edges = edges_at(step, region, states, torch.full_like(states, 0.1), torch.full_like(states, DT))
    x = states.repeat_interleave(len(v))
    center, dt = torch.full_like(x, 0.1), torch.full_like(x, DT)
    at, v_all = Edges(*(e.repeat_interleave(len(v)) for e in edges)), v.repeat(len(states))
    with torch.no_grad():
        for stratum in range(1 if region.outer is None else 2):
            dx = steps_at(step, states, v, edges, stratum).reshape(-1)
            assert bool((region.labels((dx - center).abs(), dt) == stratum).all())
            below, above = step.lower(x, dx), step.upper(x, dx)
            if stratum == 0:
                kept = 1 - at.left - at.right
                u = torch.where(v_all < 0.5, (below - at.left) / kept, 1 - (above - at.right) / kept)
            else:
                kept = at.left - at.far_left + at.right - at.far_right
                u = torch.where(dx < center, (below - at.far_left) / kept, 1 - (above - at.far_right) / kept)
            assert float((u - v_all).abs().max()) < 1e-6
            assert float((u / v_all - 1)[v_all < 0.01].abs().max()) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("name", REGIONS)
def test_information_of_constants_is_that_of_the_frozen_law(name):
    region, head = REGIONS[name], constants()
    tangent = ExactTangent(head, region, torch.tensor(0.1, dtype=torch.float64), uniform_dt=True)
    x = torch.linspace(0, 6, 50, dtype=torch.float64)
    share = {0: 0.7, 1: 0.3} if region.outer is not None else {0: 1.0}
    label = torch.tensor([0] * round(50 * share[0]) + [1] * (50 - round(50 * share[0])))
    nodes = tangent.nodes(x, label, DT)
    found = nodes.scores.T @ (nodes.weight[:, None] * nodes.scores)
    # the same by a fine rule in asinh(dx), with the derivatives of log_density
    t = torch.linspace(-28, 28, 400_001, dtype=torch.float64)
    dx = 0.1 * torch.sinh(t)
    step = score(dx, torch.tensor(1.0), torch.tensor(2.0), torch.tensor(1.5), torch.tensor(0.5), torch.tensor(DT))
    p = step.log_p.exp() * 0.1 * torch.cosh(t) * (t[1] - t[0])
    q = torch.stack([step.b, step.D_o, step.D_f])
    J = torch.stack([j[0].detach() for j in head.jacobian(torch.zeros(1, dtype=torch.float64))[:3]])
    expected = torch.zeros((3, 3), dtype=torch.float64)
    for stratum, part in share.items():
        inside = region.labels((dx - 0.1).abs(), torch.full_like(dx, DT)) == stratum
        weight = p * inside / (p * inside).sum()
        centered = q - (q * weight).sum(1, keepdim=True)
        expected += part * (centered * weight) @ centered.T
    expected = J.T @ expected @ J
    scale = expected.diagonal().rsqrt()
    # scores are computed on a coarse grid, to a percent or so
    assert float(((found - expected) * scale.outer(scale)).abs().max()) < 0.02


@pytest.mark.long
def test_the_exact_law_settles_what_the_frozen_one_does_not():
    data, frozen, exact = fits()
    before, after = quiet(diagnose, frozen, data), quiet(diagnose, exact, data)
    assert before.fit.p_value < 1e-6
    assert before.step_size.p_value < 1e-6
    assert after.ok
    assert after.fit.p_value > 1e-3
    assert after.jumps.needed
    assert after.step_size.p_value > 1e-3
    assert set(drawings(after)) == {"diagnostics_fit", "diagnostics_step_size", "diagnostics_predictive"}
    again = quiet(diagnose, exact, data)
    assert (again.fit.p_value, again.step_size.p_value) == (after.fit.p_value, after.step_size.p_value)


@pytest.mark.long
def test_laws_are_compared_on_new_data():
    _, frozen, exact = fits()
    new = steep(500, 4)
    found = compare({"frozen": frozen, "exact": exact}, new)
    assert found.preferred == "exact"
    assert [row.model for row in found.rows] == ["exact", "frozen", "without jumps"]
    dt = torch.tensor(DT, dtype=torch.float64)
    with torch.no_grad():
        log_p = ExactLaw().log_prob(exact.head, new.x, new.dx, dt)
    assert found.rows[0].log_likelihood == pytest.approx(float(log_p.mean()), rel=1e-9)
    held_out = compare({"frozen": frozen, "exact": exact})
    assert held_out.held_out
    assert held_out.preferred == "exact"
    assert held_out.rows[0].log_likelihood == pytest.approx(float(log_p.mean()), abs=5 * held_out.rows[0].std)


@pytest.mark.slow
def test_a_misfit_between_the_steps_is_seen_at_twice_their_length():
    """Noise of the observations: of every step it is a part, of two steps it is the same."""
    paths = simulate(STEEP, 600, 20, DT, substeps=10, seed=5).to_array()
    noise = 0.25 * np.random.default_rng(0).standard_normal(paths.shape)
    far = np.abs(paths) > 1e6  # where rounding is not small beside the noise
    data = simulate(STEEP, 600, 20, DT, substeps=10, seed=5).from_arrays(np.where(far, paths, paths + noise), dt=DT)
    data = data.transitions()
    found = recover(data, alpha=0.5, n_basis=5, law="exact")
    diagnosis = quiet(diagnose, found, data, checks=("step_size",))
    assert diagnosis.step_size.p_value < 1e-6
    assert diagnosis.step_size.law == "exact"
    # two steps have less than twice the spread of one
    assert float((diagnosis.step_size.curves["D_o_2dt"] / diagnosis.step_size.curves["D_o_dt"]).mean()) < 0.95


@pytest.mark.slow
def test_lost_tails_and_several_dt():
    data = steep(600, 6).censor(TRT=8.0, CT=3.0, drop_tail=0.5, seed=0)
    for method in ("tcf", "conditional"):
        found = quiet(recover, data, alpha=0.5, n_basis=5, law="exact", tail={"CT": 3.0, "TRT": 8.0, "method": method})
        diagnosis = quiet(diagnose, found, data)
        assert diagnosis.fit.p_value > 1e-3
        assert diagnosis.step_size.p_value > 1e-3
    short = simulate(STEEP, 300, 20, DT, substeps=40, seed=7).transitions()
    long_ = simulate(STEEP, 300, 20, 2 * DT, substeps=80, seed=8).transitions()
    x, dx, dt = (torch.cat([getattr(d, k) for d in (short, long_)]) for k in ("x", "dx", "dt"))
    ids = torch.cat([short.trajectory, long_.trajectory + 300])
    both = Transitions(x, dx, dt, trajectory=ids)
    found = recover(both, alpha=0.5, n_basis=5, law="exact")
    diagnosis = quiet(diagnose, found, both)
    assert diagnosis.fit.p_value > 1e-3
    assert "time step" in diagnosis.fit.parts
    assert diagnosis.step_size.p_value > 1e-3


def test_dt_that_differ_by_rounding_are_one():
    dt = torch.tensor([0.1, 0.1 + 1e-9, 0.2, 0.2 - 1e-9, 0.1], dtype=torch.float64)
    assert len(torch.unique(rounded(dt))) == 2
    assert float((rounded(dt) - dt).abs().max()) < 1e-8


def test_log_p_of_constants_agrees_with_the_frozen_law():
    head = constants()
    tangent = ExactTangent(head, Region(), torch.tensor(0.0, dtype=torch.float64), uniform_dt=True)
    x, dx = torch.tensor([1.0, 2.0]).double(), torch.tensor([0.3, -40.0]).double()
    log_p, total = tangent._likelihood(x, dx, DT, torch.zeros(2, dtype=torch.int64))
    assert torch.allclose(log_p, log_density(dx, 1.0, 2.0, 1.5, 0.5, DT), atol=1e-6)
    step = score(dx, torch.tensor(1.0), torch.tensor(2.0), torch.tensor(1.5), torch.tensor(0.5), torch.tensor(DT))
    J = [j[0].detach() for j in head.jacobian(torch.zeros(1, dtype=torch.float64))[:3]]
    expected = sum(float(part.sum()) * j for part, j in zip((step.b, step.D_o, step.D_f), J))
    assert torch.allclose(total, expected, rtol=1e-4)


@pytest.mark.slow
def test_p_values_are_uniform_under_the_exact_law():
    p = np.array([exact_p_values(seed) for seed in range(200)])
    for column in p.T:
        assert kstest(column, "uniform").pvalue > 1e-3
        assert (column < 0.01).sum() <= binom.ppf(0.999, len(column), 0.01)


def exact_p_values(seed: int) -> tuple[float, float]:
    """Goodness of fit, and dt against 2 dt."""
    data = steep(100, 1000 + seed)
    found = quiet(recover, data, alpha=0.5, n_basis=3, law="exact")
    diagnosis = quiet(diagnose, found, data, checks=("fit", "step_size"))
    assert math.isfinite(diagnosis.fit.p_value)
    return diagnosis.fit.p_value, diagnosis.step_size.p_value
