"""The table for one shared alpha: accuracy against the quadrature, domain, growth."""

import numpy as np
import pytest
import torch

from levytorch import log_density, score
from levytorch.errors import InputError
from levytorch.law import quadrature
from levytorch.law.arguments import WORTH_A_TABLE
from levytorch.law.table import EMPTY, N_S, S_MIN, Z_SWITCH, Table


def sample(alpha, n, seed, log_c=(-9.0, 6.0)):
    rng = np.random.default_rng(seed)
    A = 10 ** rng.uniform(-5, 5, n)
    z = np.where(rng.uniform(size=n) < 0.6, rng.uniform(0, 1.2 * Z_SWITCH, n), 10 ** rng.uniform(-2, 12, n))
    B = np.exp(rng.uniform(*log_c, n)) * A**alpha
    return torch.tensor(z * np.sqrt(A)), torch.tensor(A), torch.tensor(B)


def compiled(alpha, y, A, B):
    """Rows log p, d/dy, d/dA, d/dB by the compiled pass."""
    s = score(y, 0.0, A, B, alpha, 1.0, method="table")
    return torch.stack([s.log_p, -s.b, s.D_o, s.D_f])


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.5, 0.61, 0.9, 0.97])
def test_accuracy(alpha):
    y, A, B = sample(alpha, 4000, seed=int(100 * alpha), log_c=(-4.0, 2.0))
    a = torch.tensor([alpha], dtype=torch.float64)
    exact = quadrature.density(y, A, B, a, order=1)
    out = compiled(alpha, y, A, B)
    assert float((out[0] - exact[0]).abs().max()) <= 1e-9
    # D_o's score is compared with 1 / A near the center and with 1 / y^2 in the tail, where it decays
    L2 = torch.where(y / A.sqrt() < Z_SWITCH, A, y * y)
    scale = torch.maximum(torch.stack([1 / torch.sqrt(y * y + 4 * A), 1 / L2, 1 / B]), exact[1:4].abs())
    assert float(((out[1:4] - exact[1:4]).abs() / scale).max()) <= 1e-7


def test_continuous_across_cells_and_zones():
    alpha = 0.3
    rng = np.random.default_rng(0)
    edges = np.r_[np.arange(1, 24) / 2, Z_SWITCH, Z_SWITCH * np.exp(np.arange(1, 6))]
    z = torch.tensor(np.repeat(edges, 20))
    c = torch.tensor(np.exp(rng.integers(-4, 2, len(z)) + rng.choice([0.0, 0.37], len(z))))
    one = torch.ones(1, dtype=torch.float64)
    low, high = (compiled(alpha, z * (1 + e), one, c * (1 + e)) for e in (-1e-14, 1e-14))
    assert float((low[0] - high[0]).abs().max()) <= 1e-9
    assert float(((low[1:4] - high[1:4]).abs() / torch.maximum(high[1:4].abs(), 1 / (1 + z * z))).max()) <= 1e-6


def test_columns_are_built_on_demand_and_do_not_depend_on_their_order():
    first, second = Table(0.41), Table(0.41)
    first.build([38, 40])
    second.build([40])
    assert second.words[38, 0] == EMPTY
    second.build([38])
    for column in (38, 40):
        cells = [(t.words[column] >> 8, t.words[column] & 255, t.coefficients.reshape(-1, 64)) for t in (first, second)]
        (at, levels, polynomials), (other, same, others) = cells
        assert np.array_equal(levels, same)
        assert np.array_equal(polynomials[at[at >= 0]], others[other[other >= 0]])


def test_outside_the_table_the_quadrature_answers():
    alpha = torch.tensor([0.3], dtype=torch.float64)
    y = torch.tensor([1.0, 1e30, 2.0, 0.5, 0.0], dtype=torch.float64)
    A = torch.tensor([0.0, 1.0, 1e-60, 1.0, 0.0], dtype=torch.float64)
    B = torch.tensor([1.0, 1.0, 1.0, 1e-40, 1.0], dtype=torch.float64)
    exact = quadrature.density(y, A, B, alpha, order=1)[:4]
    assert torch.equal(compiled(0.3, y, A, B), exact)


def test_auto_changes_nothing_beyond_the_tolerance():
    x = torch.linspace(-30, 30, 60_000, dtype=torch.float64)
    auto = log_density(x, 1.0, 2.0, 3.0, 0.37, 0.1)
    exact = log_density(x, 1.0, 2.0, 3.0, 0.37, 0.1, method="contour")
    assert not torch.equal(auto, exact)  # a batch of this size is worth a table
    assert float((auto - exact).abs().max()) <= 1e-9


@pytest.mark.parametrize("n", [WORTH_A_TABLE - 1, WORTH_A_TABLE])
def test_auto_is_a_function_of_its_arguments(n):
    """Neither many calls before nor a table that is there already changes a bit; the number of samples decides."""
    x = torch.linspace(-3, 3, n, dtype=torch.float64)
    arguments = (x, 0.0, 2.0, 3.0, 0.44, 0.1)

    def values():
        return [log_density(*arguments), *score(*arguments)[:4]]

    first = values()
    log_density(*arguments, method="table")
    assert all(torch.equal(a, b) for a, b in zip(first, values()))
    named = log_density(*arguments, method="contour" if n < WORTH_A_TABLE else "table")
    assert torch.equal(first[0], named)


def test_one_alpha_per_sample_is_refused():
    with pytest.raises(InputError, match="alpha must be one number for method 'table', found 3"):
        log_density(0.1, 0.0, 1.0, 1.0, [0.3, 0.4, 0.5], 0.1, method="table")


def test_columns_are_missing_only_when_they_can_be_built():
    from levytorch.law.step_kernels import table_step

    fresh, needed, one, out = Table(0.33), np.zeros(N_S, dtype=np.bool_), np.ones(1), (np.full(2, np.nan),)
    x, B = np.array([0.5, 0.5]), np.array([0.2, 1e-80])
    code = table_step(0, 2, x, 0 * one, one, B, 0.33, one, *fresh.arrays, needed, out)
    assert code == -1
    assert np.flatnonzero(needed).tolist() == [int(np.log(0.2) - S_MIN)]
    assert out[0][1] == pytest.approx(-(0.5**2) / 4 - 0.5 * np.log(4 * np.pi), abs=1e-12)


@pytest.mark.long
def test_blocks_zones_and_missing_columns():
    """The blockwise kernel of log_density over block borders, zones and missing columns, beside the quadrature."""
    rng = np.random.default_rng(5)
    n = 1000
    D_o, D_f = 10 ** rng.uniform(-3, 2, n), 10 ** rng.uniform(-4, 1, n)
    D_o[::97] = 0.0
    x = rng.normal(size=n) * np.sqrt(D_o) * 10 ** rng.uniform(-1, 6, n) + rng.normal(size=n)
    b, dt = rng.normal(size=n), rng.uniform(0.01, 1, n)
    found, exact = (score(x, b, D_o, D_f, 0.35, dt, method=method) for method in ("table", "contour"))
    for a, c in zip(found[:4], exact[:4]):
        assert torch.allclose(a, c, rtol=1e-6, atol=1e-8)
