"""The table for one shared alpha: accuracy against the quadrature, domain, growth."""

import numpy as np
import pytest
import torch

from levytorch import log_density, score
from levytorch.errors import InputError
from levytorch.law import quadrature
from levytorch.law.arguments import WORTH_A_TABLE
from levytorch.law.table import EMPTY, N_S, S_MIN, Z_SWITCH, Table, evaluate_table, table


def sample(alpha, n, seed, log_c=(-9.0, 6.0)):
    rng = np.random.default_rng(seed)
    A = 10 ** rng.uniform(-5, 5, n)
    z = np.where(rng.uniform(size=n) < 0.6, rng.uniform(0, 1.2 * Z_SWITCH, n), 10 ** rng.uniform(-2, 12, n))
    B = np.exp(rng.uniform(*log_c, n)) * A**alpha
    return torch.tensor(z * np.sqrt(A)), torch.tensor(A), torch.tensor(B)


def compiled(alpha, y, A, B, dim=1):
    """Rows log p, d/dy, d/dA, d/dB by the compiled pass."""
    x = y if dim == 1 else torch.nn.functional.pad(y[:, None], (0, dim - 1))
    s = score(x, 0.0, A, B, alpha, 1.0, dim=dim, method="table")
    return torch.stack([s.log_p, -(s.b if dim == 1 else s.b[:, 0]), s.D_o, s.D_f])


@pytest.mark.parametrize(
    ("alpha", "dim"), [(0.05, 1), (0.3, 1), (0.5, 1), (0.61, 1), (0.9, 1), (0.97, 1), (0.3, 2), (0.7, 3)]
)
@pytest.mark.parametrize("backend", ["compiled", "torch"])
def test_accuracy(alpha, dim, backend):
    y, A, B = sample(alpha, 4000, seed=int(100 * alpha), log_c=(-4.0, 2.0))
    a = torch.tensor([alpha], dtype=torch.float64)
    exact = quadrature.density(y, A, B, a, dim=dim, order=1)
    out = compiled(alpha, y, A, B, dim) if backend == "compiled" else evaluate_table(table(alpha, dim), y, A, B, 1)
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
    one = torch.ones(1, dtype=torch.float64)
    y, c = torch.linspace(0, 30, 500, dtype=torch.float64), torch.exp(torch.tensor([S_MIN + 38.3], dtype=torch.float64))
    assert torch.equal(evaluate_table(first, y, one, c, 1), evaluate_table(second, y, one, c, 1))


def test_outside_the_table_the_quadrature_answers():
    alpha = torch.tensor([0.3], dtype=torch.float64)
    y = torch.tensor([1.0, 1e30, 2.0, 0.5, 0.0], dtype=torch.float64)
    A = torch.tensor([0.0, 1.0, 1e-60, 1.0, 0.0], dtype=torch.float64)
    B = torch.tensor([1.0, 1.0, 1.0, 1e-40, 1.0], dtype=torch.float64)
    exact = quadrature.density(y, A, B, alpha, order=1)[:4]
    assert torch.equal(evaluate_table(table(0.3), y, A, B, 1)[:4], exact)
    assert torch.equal(compiled(0.3, y, A, B), exact)


def test_auto_changes_nothing_beyond_the_tolerance():
    x = torch.linspace(-30, 30, 60_000, dtype=torch.float64)
    auto = log_density(x, 1.0, 2.0, 3.0, 0.37, 0.1)
    exact = log_density(x, 1.0, 2.0, 3.0, 0.37, 0.1, method="contour")
    assert not torch.equal(auto, exact)  # a batch of this size is worth a table
    assert float((auto - exact).abs().max()) <= 1e-9


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("n", [WORTH_A_TABLE - 1, WORTH_A_TABLE])
def test_auto_is_a_function_of_its_arguments(n, dim):
    """Neither many calls before nor a table that is there already changes a bit; the number of samples decides."""
    x = torch.linspace(-3, 3, n * dim, dtype=torch.float64).reshape((n,) if dim == 1 else (n, dim))
    arguments = (x, 0.0, 2.0, 3.0, 0.43 + 0.01 * dim, 0.1)

    def values():
        return [log_density(*arguments, dim=dim), *score(*arguments, dim=dim)[:4]]

    first = values()
    log_density(*arguments, dim=dim, method="table")
    assert all(torch.equal(a, b) for a, b in zip(first, values()))
    named = log_density(*arguments, dim=dim, method="contour" if n < WORTH_A_TABLE else "table")
    assert torch.equal(first[0], named)


def test_one_alpha_per_sample_is_refused():
    with pytest.raises(InputError, match="alpha must be one number for method 'table', found 3"):
        log_density(0.1, 0.0, 1.0, 1.0, [0.3, 0.4, 0.5], 0.1, method="table")


@pytest.mark.parametrize("dim", [1, 2])
def test_columns_are_missing_only_when_they_can_be_built(dim):
    from levytorch.law.step_kernels import isotropic_table_step, table_step

    fresh, needed, one, out = Table(0.33), np.zeros(N_S, dtype=np.bool_), np.ones(1), (np.full(2, np.nan),)
    x, B = np.array([0.5, 0.5]), np.array([0.2, 1e-80])
    if dim == 1:
        code = table_step(0, 2, x, 0 * one, one, B, 0.33, one, *fresh.arrays, needed, out)
    else:
        x, b, by_b = np.stack([x, 0 * x], axis=1), np.zeros((1, 2)), np.empty((0, 2))
        code = isotropic_table_step(0, 2, x, b, one, B, 0.33, one, *fresh.arrays, needed, out, by_b)
    assert code == -1
    assert np.flatnonzero(needed).tolist() == [int(np.log(0.2) - S_MIN)]
    assert out[0][1] == pytest.approx(-(0.5**2) / 4 - dim / 2 * np.log(4 * np.pi), abs=1e-12)


def test_fused_step_is_the_table(monkeypatch):
    """The blockwise kernel of log_density against the samplewise one, over block borders, zones and missing columns."""
    from levytorch.law import autograd

    fresh = Table(0.35)
    monkeypatch.setattr(autograd, "table", lambda alpha, dim: fresh)
    rng = np.random.default_rng(5)
    n = 1000
    D_o, D_f = 10 ** rng.uniform(-3, 2, n), 10 ** rng.uniform(-4, 1, n)
    D_o[::97] = 0.0
    x = rng.normal(size=n) * np.sqrt(D_o) * 10 ** rng.uniform(-1, 6, n) + rng.normal(size=n)
    b, dt = rng.normal(size=n), rng.uniform(0.01, 1, n)
    s = score(x, b, D_o, D_f, 0.35, dt, method="table")
    y = torch.tensor(x - b * dt)
    exact = evaluate_table(fresh, y.abs(), torch.tensor(D_o * dt), torch.tensor(D_f * dt), 1)
    t = torch.tensor(dt)
    assert torch.allclose(s.log_p, exact[0], rtol=0, atol=1e-11)
    assert torch.allclose(s.b, -torch.sign(y) * exact[1] * t, rtol=1e-8, atol=1e-10)
    assert torch.allclose(s.D_o, exact[2] * t, rtol=1e-8, atol=1e-10)
    assert torch.allclose(s.D_f, exact[3] * t, rtol=1e-9, atol=1e-12)
