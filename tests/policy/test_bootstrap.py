"""The block bootstrap against standard errors that are known."""

import types

import numpy as np
import pytest
import torch

from levytorch.data import Transitions
from levytorch.errors import InputError, LevytorchWarning, NumericalError
from levytorch.policy.reference import block_bootstrap, drawn_blocks


def mean_of(data):
    return types.SimpleNamespace(mean=float(data.dx.mean()), converged=True)


def flat(found):
    return lambda x: torch.full_like(x, found.mean)


def series(dx):
    return Transitions(np.zeros(len(dx)), dx, 0.1)


def test_rows_are_blocks_of_neighbours():
    rows = drawn_blocks(100, 20, torch.Generator().manual_seed(0)).reshape(5, 20)
    assert ((rows[:, 1:] - rows[:, :-1]) % 100 == 1).all()


def test_a_last_block_is_cut_to_fit():
    assert len(drawn_blocks(101, 20, torch.Generator().manual_seed(0))) == 101


def test_every_transition_is_drawn_equally_often():
    generator = torch.Generator().manual_seed(0)
    n, times = 40, 4000
    counts = torch.bincount(torch.cat([drawn_blocks(n, 10, generator) for _ in range(times)]), minlength=n)
    # each of the 4 blocks of a draw holds a given row with probability 1 / 4
    z = (counts - times) / (times * 4 * 0.25 * 0.75) ** 0.5
    assert float(z.abs().max()) < 4.5


def test_independent_steps_give_the_textbook_error():
    dx = np.random.default_rng(0).standard_normal(4000)
    found = block_bootstrap(series(dx), mean_of, flat, replicas=400, block=10)
    sd = float(found.std(torch.zeros(1, dtype=torch.float64)))
    assert sd == pytest.approx(dx.std() / 4000**0.5, rel=4 / 800**0.5)


@pytest.mark.long
def test_blocks_see_what_single_draws_do_not():
    rng = np.random.default_rng(1)
    rho, n = 0.9, 20_000
    dx = np.empty(n)
    dx[0] = rng.standard_normal()
    for k in range(1, n):
        dx[k] = rho * dx[k - 1] + (1 - rho**2) ** 0.5 * rng.standard_normal()
    truth = ((1 + rho) / (1 - rho) / n) ** 0.5
    at = torch.zeros(1, dtype=torch.float64)
    blocks = float(block_bootstrap(series(dx), mean_of, flat, replicas=300, block=300).std(at))
    singles = float(block_bootstrap(series(dx), mean_of, flat, replicas=300, block=1).std(at))
    assert blocks == pytest.approx(truth, rel=0.3)
    assert singles < 0.4 * truth


def test_the_same_seed_gives_the_same_band():
    dx = np.random.default_rng(0).standard_normal(500)
    at = torch.zeros(1, dtype=torch.float64)
    one, two, other = (
        block_bootstrap(series(dx), mean_of, flat, replicas=5, block=50, seed=s).std(at) for s in (0, 0, 1)
    )
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_refits_that_break_down_are_counted():
    calls = iter(range(10))

    def refit(data):
        if next(calls) % 2:
            raise NumericalError("log p must be finite.")
        return types.SimpleNamespace(mean=float(data.dx.mean()), converged=False)

    with pytest.warns(LevytorchWarning, match="5 failed and 5 had not converged"):
        found = block_bootstrap(series(np.arange(30.0)), refit, flat, replicas=10, block=5)
    assert (len(found.values), found.failed, found.unconverged) == (5, 5, 5)


def test_no_band_from_one_refit():
    def refit(data):
        raise NumericalError("log p must be finite.")

    with pytest.raises(NumericalError, match="0 of 4"):
        block_bootstrap(series(np.arange(30.0)), refit, flat, replicas=4, block=5)


@pytest.mark.parametrize("options", [{"block": 0}, {"block": 31}, {"block": 2.5}, {"replicas": 1}, {"replicas": True}])
def test_bad_settings_are_refused(options):
    with pytest.raises(InputError):
        block_bootstrap(series(np.arange(30.0)), mean_of, flat, **{"replicas": 4, "block": 5, **options})
