"""Pools: thresholds, halving, uneven sampling."""

import math
import warnings

import numpy as np
import pytest
import torch

from levytorch import Dynamics, Transitions, cutting_threshold, simulate, tail_probability
from levytorch.data import ct_of_dt, make_pools
from levytorch.data.batches import PoolFacts, central_D_o, full_batch
from levytorch.errors import InputError, LevytorchWarning

DT = 1 / 40


@pytest.fixture(scope="module")
def paper():
    return simulate(Dynamics.named("constant"), 5000, 40, DT, seed=2).transitions()


def test_main_and_tail(paper):
    pools = make_pools(paper, 8.0, 20.0)
    deviation = (paper.dx - paper.mu).abs()
    assert pools.n_main == int((deviation < 20).sum())
    assert pools.n_tail == int(((deviation > 8) & (deviation < 20)).sum())
    assert pools.R_sample == pools.n_tail / pools.n_main
    assert len(pools.tail.unique()) == pools.n_tail
    assert bool(((pools.main.dx[pools.tail] - pools.mu).abs() > 8).all())
    assert float(pools.mu) == float(paper.mu)  # of the data before TRT
    assert pools.CT == 8.0


def test_the_tail_share_of_unbiased_data_is_the_laws(paper):
    pools = make_pools(paper, 8.0)
    exact = float(tail_probability(8.0, 5 * DT, 5.0, 4.0, 3.0, 0.3, DT))
    assert pools.R_sample == pytest.approx(exact, abs=4 * math.sqrt(exact / len(paper)))
    assert pools.main is paper  # nothing removed, nothing copied


def test_no_ct_no_tail(paper):
    pools = make_pools(paper, None)
    assert (pools.n_tail, pools.R_sample, pools.CT) == (0, 0.0, None)


def test_mu_survives_an_earlier_censoring(paper):
    assert float(make_pools(paper.censor(seed=1), 8.0, 20.0).mu) == float(paper.mu)


def test_ct_is_halved_until_the_tail_fills_a_batch(paper):
    few = paper[:4000]
    hundredth = float(few.deviation.topk(100).values[-1])
    with pytest.warns(LevytorchWarning, match="CT was halved 3 times, from .* the tail pool holds .* needs 100"):
        pools = make_pools(few, 7.99 * hundredth, min_tail=100)
    assert pools.halvings == 3
    assert pools.n_tail == 100
    assert pools.CT == pytest.approx(7.99 / 8 * hundredth)
    np.testing.assert_array_equal(pools.tail, np.flatnonzero(few.deviation > pools.CT))


def test_enough_tail_is_no_reason_to_warn(paper):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_pools(paper, 8.0, 20.0, min_tail=100)


def test_ct_scales_with_dt_and_stays_above_the_gaussian():
    CT = ct_of_dt(8.0, DT, alpha=0.3, D_o=4.0)
    dt = torch.tensor([DT, 2 * DT, DT / 10, DT / 1000], dtype=torch.float64)
    found = CT(dt)
    assert float(found[0]) == pytest.approx(8.0)
    assert float(found[1]) == pytest.approx(8.0 * 2 ** (1 / 0.6))
    assert bool((found >= torch.sqrt(2 * 4.0 * dt)).all())
    assert float(found[3]) == pytest.approx(3 * math.sqrt(2 * 4.0 * DT / 1000))


def test_uneven_sampling_has_a_threshold_per_pair():
    # increments of a pure 2 alpha-stable law over steps of two lengths: with CT(dt) both have the same tail share
    alpha, n = 0.6, 100_000
    rng = np.random.default_rng(3)
    dt = rng.choice([0.5, 2.0], n)
    jump = simulate(Dynamics(0.0, 0.0, 1.0, alpha), n, 1, 1.0, substeps=1, x0=0.0, seed=1).transitions().dx.numpy()
    t = Transitions(np.zeros(n), dt ** (1 / (2 * alpha)) * jump, dt)
    pools = make_pools(t, 10.0, alpha=alpha, D_o=0.0)
    assert pools.threshold_of(slice(0, n)).shape == (n,)
    is_tail = torch.isin(torch.arange(n), pools.tail)
    share = [float(is_tail[t.dt == step].double().mean()) for step in (0.5, 2.0)]
    assert share[0] == pytest.approx(share[1], abs=4 * math.sqrt(share[1] / n * 4))
    reference = float(np.median(dt))
    np.testing.assert_allclose(
        pools.threshold_of(slice(0, n)), 10.0 * (dt / reference) ** (1 / (2 * alpha)), rtol=1e-12
    )


def test_uneven_sampling_without_alpha_is_doubtful():
    t = Transitions(np.zeros(500), np.random.default_rng(0).standard_cauchy(500), np.linspace(1, 2, 500))
    with pytest.warns(LevytorchWarning, match="pass alpha to scale it with dt"):
        assert float(make_pools(t, 1.0).CT) == 1.0


def test_halving_a_function_of_dt():
    t = Transitions(np.zeros(500), np.random.default_rng(0).standard_cauchy(500), np.linspace(1, 2, 500))
    with pytest.warns(LevytorchWarning, match="of its value"):
        pools = make_pools(t, lambda dt: 100 * dt, min_tail=100)
    np.testing.assert_allclose(pools.threshold_of(slice(0, len(t))), 100 * t.dt / 2**pools.halvings)
    np.testing.assert_array_equal(pools.tail, np.flatnonzero(t.deviation > pools.threshold_of(slice(0, len(t)))))


def test_the_central_width_gives_a_gaussians_d_o():
    rng, D_o = np.random.default_rng(0), 0.7
    dt = rng.uniform(0.5, 2.0, 40_000)
    t = Transitions(np.zeros(40_000), np.sqrt(2 * D_o * dt) * rng.standard_normal(40_000), dt)
    assert central_D_o(t) == pytest.approx(D_o, rel=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(CT=20.0, TRT=8.0), "CT must be smaller than TRT"),
        (dict(CT=0.0), "CT must be a positive number"),
        (dict(CT=8.0, TRT=1e-12), "CT must be smaller than TRT"),
        (dict(CT=1e-13, TRT=1e-12), "TRT must leave some"),
        (dict(CT=1.0, min_tail=10_000_000), "at least 10000000 pairs, found 200000 pairs in all"),
    ],
)
def test_bad_input(paper, arguments, message):
    with pytest.raises(InputError, match=message):
        make_pools(paper, **arguments)


def test_increments_without_spread_have_no_tail():
    t = Transitions(np.zeros(200), np.ones(200), 1.0)
    with pytest.raises(InputError, match="the increments hardly vary"):
        make_pools(t, 8.0, min_tail=100)


def test_bad_scaling():
    with pytest.raises(InputError, match="alpha must lie in"):
        ct_of_dt(8.0, 1.0, alpha=1.0)
    with pytest.raises(InputError, match="must be a positive number"):
        ct_of_dt(8.0, 0.0, alpha=0.5)


def test_thresholds_of_the_law_make_pools(paper):
    CT = cutting_threshold(0.3, 3.0, 1 / 40)
    pools, same = make_pools(paper, CT, np.float32(20)), make_pools(paper, float(CT), 20.0)
    assert (type(pools.CT), type(pools.TRT), pools.CT) == (float, float, float(CT))
    assert torch.equal(pools.tail, same.tail)


def test_pairs_without_a_copy_are_the_same_pairs():
    rng = np.random.default_rng(5)
    t = Transitions(rng.uniform(0, 6, 5000), rng.standard_cauchy(5000), 0.1)
    pools = make_pools(t, CT=2.0, TRT=15.0)
    assert "main" not in vars(pools)  # nothing has been copied
    whole = full_batch(pools, chunk=300, copied=False)
    assert whole.main.x.untyped_storage().data_ptr() == t.x.untyped_storage().data_ptr()
    assert "main" not in vars(pools)
    assert len(pools.removed) == int((t.deviation >= 15.0).sum()) > 50
    assert (pools.n_main, pools.dropped) == (len(pools.main), pools.main.dropped)
    for name in ("x", "dx", "dt"):
        assert torch.equal(getattr(whole.main, name)[whole.main.weight > 0], getattr(pools.main, name))
        assert torch.equal(getattr(whole.tail, name), getattr(pools.main, name)[pools.tail])
    total = sum(float(chunk.weight.sum()) for chunk in whole._replace(tcf=0.3).chunks())
    assert total == pytest.approx(1.0, rel=1e-12)
    assert PoolFacts.of(pools).x_range == (float(pools.main.x.min()), float(pools.main.x.max()))


def test_what_trt_removes_never_counts_as_tail():
    t = Transitions(np.arange(6.0), [0.0, 3.0, 50.0, 0.1, 4.0, -60.0], 0.1, mu=0.0)
    pools = make_pools(t, CT=2.0, TRT=20.0, min_tail=1)
    assert pools.removed.tolist() == [2, 5]
    assert pools.tail.tolist() == [1, 3]
    assert pools.tail_of_data.tolist() == [1, 4]
    assert pools.kept(slice(1, 4)).tolist() == [True, False, True]
    assert pools.main.dx[pools.tail].tolist() == [3.0, 4.0]
