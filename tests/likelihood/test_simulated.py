"""The simulated expectation of the frozen law's score: the exact law as oracle; zero at the truth."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from levytorch import Transitions
from levytorch.coefficients import AlphaSpec, FourierHead, SplineHead
from levytorch.coefficients.clock import Clock, ClockedHead, Covariate
from levytorch.coefficients.inputs import ActionHead
from levytorch.coefficients.links import TemperingSpec
from levytorch.data import make_pools
from levytorch.data.batches import Batch, full_batch
from levytorch.data.lattice import lattice_of
from levytorch.likelihood import simulated
from levytorch.likelihood.corrected import Strata, centered_score, informations
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.frozen import FrozenLaw, steady_method
from levytorch.likelihood.likelihood import Likelihood, make_objective
from levytorch.likelihood.penalty import symmetric_inverse
from levytorch.likelihood.simulated import SimulatedPairs, SimulatedScore
from levytorch.likelihood.tail import TailSettings

D = torch.float64
THRESHOLDS = {"CT": 3.0, "TRT": 12.0}
N = 30_000


def varied(head, seed: int = 0, size: float = 0.5):
    """A head whose coefficients vary along a step."""
    theta = head.flat()
    generator = torch.Generator().manual_seed(seed)
    head.set_flat(theta + size * torch.randn(theta.shape, generator=generator, dtype=D))
    return head


def fourier(**options):
    head = FourierHead(n_basis=3, alpha=options.pop("alpha", AlphaSpec("fixed", 0.5)), **options)
    head.set_constants([0.5] * head.dim, 1.0, 0.7)
    return varied(head)


def steps_of(head, dt, seed: int = 0, n: int = N) -> Transitions:
    """Pairs that follow the head's coefficients along a step; dt: a number, or one for each of some groups."""
    x = head.grid(n) if head.dim == 1 else head.grid(n)[torch.arange(n) % len(head.grid(n))]
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))]
    parts = []
    times = torch.as_tensor(dt, dtype=D).reshape(-1)
    for k, (part, h) in enumerate(zip(x.chunk(len(times)), times)):
        steps = simulated.coupled_steps(head, part, h, 64, dim=head.dim, seed=1000 + seed, first=n * k)
        parts.append((part, steps.fine, h.expand(len(part))))
    x, dx, dt = (torch.cat(values).detach() for values in zip(*parts))
    return Transitions(x, dx, dt if len(times) > 1 else float(times[0]))


@cache
def known_pairs() -> tuple[FourierHead, Transitions]:
    head = fourier()
    return head, steps_of(head, 0.1)


def posed(method: str):
    head, data = known_pairs()
    tail = TailSettings(method=method, **(THRESHOLDS if method != "none" else {}))
    pools = make_pools(data, CT=tail.CT, TRT=tail.TRT, min_tail=1)
    return head, pools, tail, make_objective(head, pools, tail, FrozenLaw("table"))


@pytest.mark.long
@pytest.mark.parametrize("method", ["none", "conditional", "tcf"])
def test_against_the_exact_law(method):
    head, pools, tail, objective = posed(method)
    score = SimulatedScore(objective, seed=1, n_simulated=200_000)
    U, ev = score.centered()
    lattice = lattice_of(pools, head.period, head.origin, reach=head.period)
    strata = Strata.of(tail, lattice)
    exact = ExactLaw().fixed(head, torch.from_numpy(lattice.dt))
    expected, there = centered_score(objective, exact, strata)
    assert score.noise is not None
    error = (score.noise.diagonal() / objective.n).sqrt()
    assert float(((U - expected) / error).abs().max()) < 4.5
    # the frozen law's own score is far from both, and simulations say so precisely
    plain = objective.gradient(ev) if method == "conditional" else None
    if plain is not None:
        assert float(((plain - expected) / error).abs().max()) > 10
    if method == "tcf":
        assert ev.R_theta == pytest.approx(there.R_theta, rel=0.03)
    found, want = score.information(ev), informations(head, objective.law, exact, strata, there.R_theta).corrected
    ratio = symmetric_inverse(found.godambe).diagonal() / symmetric_inverse(want.godambe).diagonal()
    # variances of 20,000 pairs, of which 60 and more per parameter lie in the tail
    assert float((ratio - 1).abs().max()) < (0.1 if method == "none" else 0.35)


def at_truth(head, data: Transitions, n_simulated: int = 20_000) -> float:
    """n U^T B^-1 U over its mean, the number of parameters."""
    objective = make_objective(
        head, make_pools(data, CT=None), TailSettings(), FrozenLaw(steady_method("auto", head), head.dim)
    )
    score = SimulatedScore(objective, seed=2, n_simulated=n_simulated)
    U, ev = score.centered()
    assert score.noise is not None
    B = objective.information(ev) + score.noise
    # what the frozen law's score is off by, and what is left of it
    biased = ev.main.gradient / objective.n
    before, after = (float(objective.n * v @ symmetric_inverse(B) @ v) / len(v) for v in (biased, U))
    assert before > 2 * after
    return after


CASES = {
    "many dt": lambda: (fourier(), torch.linspace(0.2, 0.4, 40, dtype=D)),
    "alpha(x)": lambda: (fourier(alpha=AlphaSpec("function", 0.5), n_basis_alpha=3), 0.3),
    "alpha learned": lambda: (fourier(alpha=AlphaSpec("constant", 0.5)), 0.3),
    "tempered": lambda: (fourier(tempering=TemperingSpec("fixed", 0.5)), 0.3),
    "line": lambda: (varied(SplineHead(n_basis=5, window=(-3.0, 3.0), alpha=AlphaSpec("fixed", 0.5))), 0.3),
    "plane": lambda: (fourier(dim=2), 0.3),
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_zero_at_the_truth(case):
    head, dt = CASES[case]()
    P = head.flat().numel()
    assert at_truth(head, steps_of(head, dt, n=5000)) < 1 + 4.5 * math.sqrt(2 / P)


def with_action():
    return varied(ActionHead(fourier(), 2, [(-1.0, 1.0)]), 1, 0.2), torch.linspace(-1, 1, 41, dtype=D)


def with_clock():
    hours = torch.linspace(0, 24, 49, dtype=D)[1:]
    clock = Clock.of([Covariate.periodic("hour", 24.0, 3)], hours[:, None])
    return varied(ClockedHead(fourier(), clock), 1, 0.4), hours


LOST = {
    "many dt": lambda: (fourier(), None, torch.linspace(0.2, 0.4, 20, dtype=D)),
    "alpha(x)": lambda: (fourier(alpha=AlphaSpec("function", 0.5), n_basis_alpha=3), None, 0.3),
    "tempered": lambda: (fourier(tempering=TemperingSpec("fixed", 0.5)), None, 0.3),
    "plane": lambda: (fourier(dim=2), None, 0.3),
    "action": lambda: (*with_action(), 0.3),
    "clock": lambda: (*with_clock(), 0.3),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "method"), [*((case, "conditional") for case in LOST), ("many dt", "tcf"), ("clock", "tcf")]
)
def test_zero_at_the_truth_with_lost_tails(case, method):
    """n U^T B^-1 U is about the number of parameters, where half of the pairs between CT and TRT are lost."""
    head, inputs, dt = LOST[case]()
    x, n = (head if inputs is None else head.of_states[0]).grid(N), N // 2
    generator = torch.Generator().manual_seed(6)
    x = x[torch.randint(len(x), (n,), generator=generator)]
    if inputs is not None:
        inputs = inputs[torch.randint(len(inputs), (n,), generator=generator)][:, None]
        x = torch.cat([x.reshape(n, -1), inputs], dim=1)
    times = torch.as_tensor(dt, dtype=D).reshape(-1)[torch.arange(n) % torch.as_tensor(dt).numel()]
    dx = simulated.coupled_steps(simulated.coefficient_field(head), x, times, 32, dim=head.dim, seed=7).fine.detach()
    states = x if inputs is None else x[:, 0] if head.dim == 1 else x[:, : head.dim]
    data = Transitions(states, dx, times if times.unique().numel() > 1 else float(times[0]))
    data = data if inputs is None else data.with_inputs(inputs)
    pools = make_pools(data.censor(**THRESHOLDS, seed=1), **THRESHOLDS, min_tail=1)
    tail = TailSettings(method=method, **THRESHOLDS)
    objective = make_objective(head, pools, tail, FrozenLaw(steady_method("auto", head), head.dim))
    score = SimulatedScore(objective, seed=8, n_simulated=50_000)
    U, ev = score.centered()
    B = score.information(ev).variance
    P = len(U)
    distance = float(objective.n * U @ symmetric_inverse(B) @ U) / P
    assert distance < 1 + 4.5 * math.sqrt(2 / P)
    if method == "conditional":
        frozen = objective.gradient(ev)
        assert float(objective.n * frozen @ symmetric_inverse(B) @ frozen) / P > 2 * distance


def test_simulated_pairs_in_a_batch_have_the_same_gradient():
    head, data = known_pairs()
    pools = make_pools(data, CT=None)
    objective = make_objective(head, pools, TailSettings(), FrozenLaw("table"))
    score = SimulatedScore(objective, seed=3, n_simulated=30_000)
    U, _ = score.centered()
    likelihood = Likelihood(head, FrozenLaw("table"))
    likelihood.observe(pools)
    batch = SimulatedPairs(likelihood, seed=3).full_batch(full_batch(pools), 30_000).main
    head.zero_grad()
    (batch.weight * likelihood.log_prob(batch.x, batch.dx, batch.dt)).sum().backward()
    assert torch.allclose(head.theta.grad / len(data), U, rtol=1e-5, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("method", ["none", "conditional", "tcf"])
def test_mini_batches_have_the_same_expectation(method):
    head, pools, tail, objective = posed(method)
    likelihood = Likelihood(head, FrozenLaw("table"), tail)
    likelihood.observe(pools)
    whole = full_batch(pools).main
    if method == "conditional":  # masses of every pair, which take their time
        whole = Batch(*(values[:2000] for values in whole))
    pairs = SimulatedPairs(likelihood, seed=4)
    batch = whole._replace(weight=torch.full((len(whole.x),), 1 / len(whole.x), dtype=D))
    found = []
    for step in range(4):
        more = pairs.append(batch, step)
        assert float(more.weight.sum()) == pytest.approx(1.0)
        head.zero_grad()
        (-likelihood.nll(more)).backward()
        found.append(head.theta.grad.clone())
    assert not torch.equal(found[0], found[1])
    if method == "none":
        score = SimulatedScore(objective, seed=5, n_simulated=200_000)
        expected, _ = score.centered()
        assert score.noise is not None
        error = (score.noise.diagonal() / objective.n * (200_000 / len(whole.x) / 4 + 1)).sqrt()
        assert float(((torch.stack(found).mean(0) - expected) / error).abs().max()) < 4.5


def test_the_states_of_a_sample_are_spread_over_the_pairs():
    states = simulated.States(
        torch.arange(4.0, dtype=D), torch.ones(4, dtype=D), torch.tensor([1.0, 0, 2, 1], dtype=D), 4.0
    )
    assert states.sample(8)[0].tolist() == [0, 0, 2, 2, 2, 2, 3, 3]


@pytest.mark.long
def test_how_many_simulations():
    _, _, _, objective = posed("none")
    score = SimulatedScore(objective, seed=1)
    _, ev = score.centered()
    precision = torch.zeros(len(ev.theta), dtype=D)
    share = score.share(score.information(ev), precision)
    score.n_simulated = enough = score.enough(share)
    assert enough >= simulated.FEWEST
    _, ev = score.centered()
    assert score.share(score.information(ev), precision) < 1.25 * simulated.SHARE


def test_a_system_on_a_line_is_held_beyond_its_window():
    head = SplineHead(n_basis=5, window=(-1.0, 1.0), alpha=AlphaSpec("fixed", 0.5))
    field = simulated.coefficient_field(varied(head))
    x = torch.tensor([1.0, 1e9, -1.0, -1e9], dtype=D)
    c = field(x)
    assert torch.allclose(c.D_o[1], c.D_o[0])
    assert torch.allclose(c.b[3], c.b[2])
    assert torch.allclose(c.b, head(head.clamped(x)).b, rtol=1e-3)
