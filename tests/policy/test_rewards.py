from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from levytorch import Dynamics, Transitions, solve_value
from levytorch.errors import ConfigError, InputError
from levytorch.policy.rewards import CosinePower, Manufactured, RewardContext, Tabulated, build_reward
from tests.policy.problems import cos3, cos3_reward

X = torch.linspace(-4.0, 10.0, 200, dtype=torch.float64)
CONTEXT = RewardContext(period=2 * math.pi, origin=0.0, beta=0.1)


def test_cosine_power_is_the_papers() -> None:
    torch.testing.assert_close(CosinePower()(X), cos3(X))
    price = torch.linspace(15_000.0, 126_000.0, 50, dtype=torch.float64)
    paper = torch.cos(2 * math.pi * (price + 128_000) / 256_000) ** 3
    found = build_reward(
        {"name": "cosine_power", "frequency": 1, "shift": -128_000.0}, RewardContext(256_000.0, -128_000.0, 0.3)
    )
    torch.testing.assert_close(found(price), paper)


@pytest.mark.parametrize("system", ["constant", "variable", "asymptotic"])
def test_manufactured_is_beta_V_minus_L_V(system: str) -> None:
    d = Dynamics.named(system, alpha=0.4)
    torch.testing.assert_close(Manufactured(cos3, d, 0.1)(X), cos3_reward(d, 0.1, X), rtol=1e-10, atol=1e-10)
    found = build_reward({"name": "manufactured"}, RewardContext(2 * math.pi, 0.0, 0.1, truth=d))
    torch.testing.assert_close(found(X), cos3_reward(d, 0.1, X), rtol=1e-10, atol=1e-10)


def test_manufactured_needs_a_smooth_V_and_the_truth() -> None:
    with pytest.raises(InputError, match="smooth"):
        Manufactured(lambda x: torch.sin(x).abs(), Dynamics.named("constant"), 0.1)
    with pytest.raises(ConfigError, match="true coefficients"):
        build_reward({"name": "manufactured"}, CONTEXT)


def test_table_of_a_period_closes(tmp_path) -> None:
    x = torch.linspace(0.0, 2 * math.pi, 2001, dtype=torch.float64)[:-1]
    file = tmp_path / "reward.csv"
    file.write_text("r,x\n" + "\n".join(f"{math.cos(v)},{v}" for v in x.tolist()))
    found = build_reward({"name": "tabulated", "path": str(file), "period": None}, CONTEXT)
    torch.testing.assert_close(found(X), torch.cos(X), atol=2e-6, rtol=0)


def test_table_of_a_part_is_good_for_that_part() -> None:
    found = Tabulated([1.0, 2.0, 3.0], [0.0, 2.0, 0.0], period=2 * math.pi)
    assert found(torch.tensor([1.5, 2.5 + 2 * math.pi], dtype=torch.float64)).tolist() == pytest.approx([1.0, 1.0])
    with pytest.raises(InputError, match=r"within the reward table, \[1, 3\]"):
        found(torch.tensor([4.0]))


def test_bad_tables(tmp_path) -> None:
    file = tmp_path / "reward.csv"
    for content, message in (
        ("x,y\n1,2\n", "must have the columns x and r, found x, y"),
        ("x,r\n1,2\n2,b\n", "column 'r', row 2: there must be a number, found 'b'"),
        ("x,r\n1,2\n2,\n", "must be finite"),
        ("x,r\n1,2\n", "at least two pairs"),
        ("", "empty"),
    ):
        file.write_text(content)
        with pytest.raises(InputError, match=message) as caught:
            Tabulated.from_csv(file)
        assert str(caught.value).startswith(str(file))
    with pytest.raises(InputError, match="there is none"):
        Tabulated.from_csv(tmp_path / "nothing.csv")
    for x, r, message in (
        ([1.0], [1.0], "at least two pairs"),
        ([1.0, 1.0], [1.0, 2.0], "found 1 twice"),
        ([1.0, 2.0], [1.0, math.nan], "finite"),
        ([0.0, 9.0], [0.0, 1.0], "a span of 9"),
        (["a", "b"], [0.0, 1.0], "x must be numeric"),
    ):
        with pytest.raises(InputError, match=message):
            Tabulated(x, r, period=2 * math.pi)


def test_tables_may_use_other_separators(tmp_path) -> None:
    file = tmp_path / "reward.csv"
    file.write_text("x;r\n0;1\n2;5\n")
    assert Tabulated.from_csv(file)(torch.tensor([1.0])).tolist() == [3.0]


@pytest.mark.parametrize("value", ["three", math.nan, math.inf, True])
@pytest.mark.parametrize("name", ["power", "frequency", "shift", "amplitude", "period"])
def test_bad_cosines(name: str, value) -> None:
    with pytest.raises(InputError, match=f"{name} must be a finite number"):
        CosinePower(**{name: value})


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, lambda x: torch.tensor(x, dtype=torch.float64)])
def test_states_of_any_kind(kind) -> None:
    x = [0.5, 1.25]  # the same numbers in every precision
    for r in (CosinePower(), Manufactured(CosinePower(), Dynamics.named("constant"), 0.1), Tabulated([0, 2], [1, 4])):
        torch.testing.assert_close(r(kind(x)), torch.stack([r(0.5), r(1.25)]))
        assert r(kind(x)).dtype == torch.float64


def test_nothing_is_worth_nothing() -> None:
    r = Manufactured(CosinePower(amplitude=0.0), Dynamics.named("constant"), 0.1)
    assert torch.equal(r(X), torch.zeros_like(X))
    with pytest.raises(InputError, match="beta must be a positive number"):
        Manufactured(torch.cos, Dynamics.named("constant"), -1.0)


def test_regressed_from_a_logged_column() -> None:
    x = torch.linspace(0.0, 6.2, 400, dtype=torch.float64)
    noise = 0.1 * torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = Transitions(x, torch.ones(400), 0.1, reward=1 + torch.sin(x) + noise)
    context = RewardContext(2 * math.pi, 0.0, 0.1, transitions=data)
    found = build_reward({"name": "regressed", "n_basis": 3}, context)
    # a fit of 3 functions to 400 points with noise 0.1: sd 0.1 sqrt(3 / 400) on average, a little more at the ends
    torch.testing.assert_close(found(x), 1 + torch.sin(x), atol=5 * 0.1 * math.sqrt(3 / 400), rtol=0)
    bare = RewardContext(2 * math.pi, 0.0, 0.1, transitions=Transitions(x, torch.ones(400), 0.1))
    for context in (bare, CONTEXT):
        with pytest.raises(ConfigError, match="reward column"):
            build_reward({"name": "regressed"}, context)


@pytest.mark.parametrize("path", ["torch.cos", "torch:cos"])
def test_callable_by_dotted_path(path: str) -> None:
    assert build_reward({"name": "callable", "path": path}, CONTEXT) is torch.cos


@pytest.mark.parametrize(
    "path",
    [
        "cos",
        "torch.nothing",
        "no_such_package.f",
        "math.pi",
        "__import__('os').system",
        "lambda x: x",
        "os.system('ls').x",
    ],
)
def test_paths_are_imported_never_evaluated(path: str) -> None:
    with pytest.raises(ConfigError):
        build_reward({"name": "callable", "path": path}, CONTEXT)


def test_unknown_names_and_options_list_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="manufactured, cosine_power, tabulated, regressed, callable"):
        build_reward({"name": "sine"}, CONTEXT)
    with pytest.raises(ConfigError, match="power"):
        build_reward({"name": "cosine_power", "exponent": 3}, CONTEXT)
    with pytest.raises(ConfigError, match="path"):
        build_reward({"name": "tabulated"}, CONTEXT)
    with pytest.raises(InputError, match="whole numbers"):
        build_reward({"name": "cosine_power", "frequency": 1.5}, CONTEXT)


def test_a_table_is_measured_against_what_is_solved() -> None:
    table = Tabulated([95.0, 100.0, 105.0], [0.0, 1.0, 0.0], period=100.0)
    source = Dynamics(b=0.0, D_o=1.0, D_f=0.5, alpha=0.7, period=100.0, origin=50.0)
    with pytest.raises(
        InputError, match=r"cover the cell, \[50, 150\], found x from 95 to 105; .*window=\[low, high\]"
    ):
        solve_value(source, table, 1.0)
    with pytest.raises(InputError, match=r"cover the window, \[94, 104\], found x from 95 to 105"):
        solve_value(source, table, 1.0, window=(94.0, 104.0), n_modes=5)
    with pytest.raises(InputError, match=r"within the reward table, \[95, 105\], found 51;"):
        table([100.0, 51.0])
    for low in (95.0, -5.0, 95.0 - 1e-12):  # also a period away, and with rounding
        solve_value(source, table, 1.0, window=(low, low + 10.0), n_modes=5)
    solve_value(source, Tabulated([95.0, 105.0], [0.0, 1.0]), 1.0, window=(95.0, 105.0), n_modes=5)
