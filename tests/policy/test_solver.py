from __future__ import annotations

import math
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from levytorch import Dynamics, solve_value
from levytorch.errors import InputError, LevytorchWarning, NumericalError
from levytorch.policy import ValueFunction
from tests.policy.problems import cos3, cos3_reward, smooth, smooth_reward

X = torch.linspace(-3.0, 12.0, 500, dtype=torch.float64)


@pytest.mark.parametrize("system", ["constant", "variable"])
@pytest.mark.parametrize("n_modes", [None, 16, 33, 64, 257])
def test_manufactured_solution_to_rounding(system: str, n_modes: int | None) -> None:
    d = Dynamics.named(system)
    V = solve_value(d, lambda x: cos3_reward(d, 0.1, x), 0.1, n_modes=n_modes)
    assert float((V(X) - cos3(X)).abs().max()) < 1e-10
    torch.testing.assert_close(V.derivative(X, 2), -(3 * torch.cos(2 * X) + 9 * torch.cos(6 * X)), atol=1e-8, rtol=0)
    assert V.residual < 1e-12


def test_manufactured_solution_with_alpha_of_x() -> None:
    d = Dynamics(b=1.0, D_o=1.0, D_f=2.0, alpha=lambda x: 0.5 + 0.3 * torch.sin(x))
    V = solve_value(d, lambda x: cos3_reward(d, 0.1, x), 0.1)
    assert float((V(X) - cos3(X)).abs().max()) < 1e-10


def test_converges_spectrally() -> None:
    d = smooth()
    exact = solve_value(d, smooth_reward, 1.0, n_modes=257)
    errors = [float((solve_value(d, smooth_reward, 1.0, n_modes=n)(X) - exact(X)).abs().max()) for n in (9, 17, 33, 65)]
    # geometric: the exponent doubles with n, down to rounding; an algebraic method gains a fixed factor
    assert errors[1] < 1e-1 * errors[0]
    assert errors[2] < 1e-2 * errors[1]
    assert errors[3] < 1e-12


def test_resolution_is_found_and_reported() -> None:
    V = solve_value(smooth(), smooth_reward, 1.0)
    assert V.converged
    assert V.change is not None
    assert V.change < 1e-6
    exact = solve_value(smooth(), smooth_reward, 1.0, n_modes=257)
    assert float((V(X) - exact(X)).abs().max()) < 1e-8


def test_an_aliased_reward_is_not_mistaken_for_a_resolved_one() -> None:
    # cos(132 x) looks like a constant on grids of 33 and 66 points
    V = solve_value(Dynamics(b=0.0, D_o=1.0, D_f=1.0, alpha=0.5), lambda x: torch.cos(132 * x), 1.0)
    torch.testing.assert_close(V(X), torch.cos(132 * X) / (1 + 132**2 + 132), atol=1e-12, rtol=0)


def test_what_does_not_converge_says_so() -> None:
    with pytest.warns(LevytorchWarning, match="still changes"):
        V = solve_value(Dynamics.named("variable"), smooth_reward, 0.1, max_modes=65, tolerance=1e-12)
    assert not V.converged


def test_any_period_and_origin() -> None:
    """y = origin + x period / (2 pi) maps one problem into the other."""
    d, s, o = smooth(), 40.0, -300.0
    scaled = Dynamics(
        b=lambda y: s * d.b((y - o) / s),
        D_o=lambda y: s**2 * d.D_o((y - o) / s),
        D_f=lambda y: s**0.6 * d.D_f((y - o) / s),
        alpha=0.3,
        period=2 * math.pi * s,
        origin=o,
    )
    V = solve_value(d, smooth_reward, 1.0, n_modes=65)
    W = solve_value(scaled, lambda y: smooth_reward((y - o) / s), 1.0, n_modes=65)
    torch.testing.assert_close(W(o + s * X), V(X), rtol=1e-10, atol=0)
    torch.testing.assert_close(W.derivative(o + s * X), V.derivative(X) / s, rtol=1e-8, atol=1e-12)


def test_full_window_is_the_collocation_solution() -> None:
    d = smooth()
    V = solve_value(d, smooth_reward, 1.0, n_modes=33)
    W = solve_value(d, smooth_reward, 1.0, n_modes=33, window=(0.0, 2 * math.pi))
    torch.testing.assert_close(W(X), V(X), atol=1e-8, rtol=0)


def test_window_recovers_a_manufactured_solution() -> None:
    d = Dynamics.named("variable")

    def r(x: torch.Tensor) -> torch.Tensor:
        return cos3_reward(d, 0.1, x)

    x = torch.linspace(1.0, 5.0, 300, dtype=torch.float64)
    V = solve_value(d, r, 0.1, window=(1.0, 5.0), n_modes=21)
    assert float((V(x) - cos3(x)).abs().max()) < 1e-7


def test_window_minimises_the_residual_when_modes_are_few() -> None:
    d = smooth()

    def r(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(torch.sin(3 * x))

    few = solve_value(d, r, 0.1, window=(1.0, 5.0), n_modes=9)

    def residual(V: ValueFunction) -> float:
        nodes, weights = np.polynomial.legendre.leggauss(400)
        t = 3.0 + 2.0 * torch.from_numpy(nodes)
        symbol = V.basis.wavenumbers**0.6  # of (-Lap)^alpha
        jumps = (V.basis.matrix(t) * symbol * V.coefficients).sum(-1)
        L = d.b(t) * V.derivative(t) + d.D_o(t) * V.derivative(t, 2) - d.D_f(t) * jumps
        return float(torch.from_numpy(weights) @ (0.1 * V(t) - L - r(t)) ** 2)

    best = residual(few)
    assert best > 1e-6
    for m in range(9):
        for step in (-1e-3, 1e-3):
            c = few.coefficients.clone()
            c[m] += step
            assert residual(ValueFunction(c, few.space, 0.1)) >= best


def test_numbers_arrays_and_constants_are_accepted() -> None:
    V = solve_value(Dynamics.named("constant"), 2.0, 0.5)
    assert float(V(1.0)) == pytest.approx(4.0)
    assert V(np.zeros((2, 3))).shape == (2, 3)
    assert V(torch.tensor(1e10)).shape == ()


def test_save_and_load(tmp_path) -> None:
    V = solve_value(smooth(), smooth_reward, 1.0, window=(1.0, 4.0), n_modes=9)
    W = ValueFunction.load(V.save(tmp_path / "deep" / "V.pt"))
    assert torch.equal(V(X), W(X))
    assert (W.window, W.beta, W.residual) == ((1.0, 4.0), 1.0, V.residual)
    with pytest.raises(InputError, match="no such file"):
        ValueFunction.load(tmp_path / "nothing.pt")
    foreign = tmp_path / "foreign.pt"
    torch.save({"coefficients": torch.zeros(3)}, foreign)
    with pytest.raises(InputError, match="must be a value function"):
        ValueFunction.load(foreign)


class _Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


def test_load_executes_nothing(tmp_path) -> None:
    content = {"format": "levytorch.value.1", "coefficients": _Bomb(tmp_path / "mark")}
    torch.save(content, tmp_path / "bomb.pt")
    with pytest.raises(InputError, match="must be a value function"):
        ValueFunction.load(tmp_path / "bomb.pt")
    assert not (tmp_path / "mark").exists()
    torch.load(tmp_path / "bomb.pt", weights_only=False)  # the bomb is live: only the loader did not set it off
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize("beta", [0.0, -1.0, math.nan, math.inf, "fast", None])
def test_beta_must_be_positive(beta) -> None:
    with pytest.raises(InputError, match="beta must be a positive number"):
        solve_value(smooth(), smooth_reward, beta)


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda x: x, "period"),
        (lambda x: torch.sin(0.5 * x), "period"),
        (lambda x: 1 / (torch.sin(x) * 0), "finite"),
        (lambda x: torch.where(torch.cos(x) > 0.9, math.nan, 1.0), "finite"),
        (lambda x: torch.zeros(3), "shape"),
        (lambda x: "high", "must be numeric, found str"),
        ("cos(x)", "function of x or a number"),
    ],
)
def test_bad_rewards(reward, message: str) -> None:
    with pytest.raises(InputError, match=message):
        solve_value(smooth(), reward, 1.0)


@pytest.mark.parametrize("two", [2, np.float32(2), np.int64(2), np.array(2.0), torch.tensor(2.0)])
def test_a_constant_reward_is_a_number_of_any_kind(two) -> None:
    assert float(solve_value(smooth(), two, 0.5)(1.0)) == pytest.approx(4.0, rel=1e-12)


def test_on_a_window_the_steadiest_resolution_is_taken() -> None:
    """Kinks keep V from standing still, and at 161 modes, which are well-conditioned, nine tenths of it are lost."""
    d, beta, window = Dynamics.named("variable"), 0.1, (0.1, 6.0)
    x = torch.linspace(*window, 200, dtype=torch.float64)
    truth = solve_value(d, smooth_reward, beta, tolerance=1e-4)(x)
    fine = solve_value(d, smooth_reward, beta, window=window, n_modes=161)(x)
    assert float((fine - truth).norm() / truth.norm()) > 0.5
    with pytest.warns(LevytorchWarning, match="would be ill-conditioned on this window"):
        V = solve_value(d, smooth_reward, beta, window=window)
    assert not V.converged
    assert float((V(x) - truth).norm() / truth.norm()) < 0.02


def test_narrow_windows_are_refined_in_small_steps() -> None:
    """The eigenfunction cos needs 3 modes; doubling would run into the condition number before it could compare."""
    V = solve_value(Dynamics(b=0.0, D_o=1.0, D_f=1.0, alpha=0.5), torch.cos, 0.5, window=(1.0, 2.0))
    assert V.converged
    assert float(V(1.5)) == pytest.approx(0.4 * math.cos(1.5), rel=1e-6)


def test_a_reward_without_period_is_fine_on_a_window() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        V = solve_value(Dynamics(b=0.5, D_o=0.01, D_f=0.01, alpha=0.3), lambda x: x, 5.0, window=(1.0, 4.0), n_modes=15)
    assert V.residual < 1e-2


@pytest.mark.parametrize("window", [(2.0, 1.0), (1.0, 1.0), (0.0, 7.0), (math.nan, 1.0), (1.0, 2.0, 3.0), 4.0])
def test_bad_windows(window) -> None:
    with pytest.raises(InputError, match="window"):
        solve_value(smooth(), smooth_reward, 1.0, window=window)


def test_window_outside_the_data() -> None:
    d = smooth()
    d.support = (1.0, 3.0)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"within the data, \[1, 3\]"):
        solve_value(d, smooth_reward, 1.0, window=(2.0, 3.5))


def test_ill_conditioned_systems_name_their_condition_number() -> None:
    with pytest.raises(NumericalError, match=r"condition number [0-9.e+]+ with n_modes = 65"):
        solve_value(smooth(), smooth_reward, 1.0, window=(1.0, 1.2), n_modes=65)
    # transport so fast that the two rows where b vanishes are the same to rounding
    stiff = Dynamics(b=lambda x: 1e20 * torch.sin(x), D_o=1e-30, D_f=1e-30, alpha=0.5)
    with pytest.raises(NumericalError, match=r"condition number [0-9.e+]+ with n_modes = 16"):
        solve_value(stiff, smooth_reward, 1.0, n_modes=16)


def test_small_beta_is_well_conditioned() -> None:
    """beta V tends to the mean reward under the stationary law: no digits are lost on the way."""
    limits = [float(beta * solve_value(smooth(), smooth_reward, beta, n_modes=65)(1.0)) for beta in (1e-6, 1e-12)]
    assert limits[0] == pytest.approx(limits[1], rel=1e-5)


def test_other_bad_input() -> None:
    with pytest.raises(InputError, match="at most 500 products in 4 dimensions, found 12"):
        solve_value(Dynamics(b=torch.zeros(4), D_o=1.0, D_f=1.0, alpha=0.5, dim=4), 1.0, 1.0, n_modes=12)
    with pytest.raises(InputError, match="window must be given for a state on a line"):
        solve_value(Dynamics(b=0.0, D_o=1.0, D_f=1.0, alpha=0.5, period=math.inf), 1.0, 1.0)
    with pytest.raises(InputError, match="Dynamics or a Recovery"):
        solve_value("constant", 1.0, 1.0)
    with pytest.raises(InputError, match=r"V\.std must have the covariance"):
        solve_value(smooth(), 1.0, 1.0).std(0.0)
    for n_modes in (0, 16.0, "many", math.nan):
        with pytest.raises(InputError, match="n_modes must be a positive integer"):
            solve_value(smooth(), 1.0, 1.0, n_modes=n_modes)  # type: ignore[arg-type]
    assert solve_value(smooth(), 1.0, 1.0, n_modes=np.int64(17)).n_modes == 17  # type: ignore[arg-type]


def test_a_value_function_is_shown_in_one_line() -> None:
    source = Dynamics(b=0.0, D_o=1.0, D_f=1.0, alpha=0.5)
    whole = solve_value(source, torch.cos, 0.5, n_modes=64)
    assert re.fullmatch(
        r"ValueFunction\(n_modes=64, period=6.28319, beta=0.5, residual=\S+, converged=True\)", repr(whole)
    )
    part = solve_value(source, torch.cos, 0.5, n_modes=5, window=(1.0, 4.0))
    assert "n_modes=5, window=(1, 4), beta=0.5" in repr(part)


def test_a_window_that_does_not_determine_v_says_so() -> None:
    """No expected discounted reward exceeds max |r| / beta = 2; least squares on this window finds -5.6."""
    d = Dynamics(b=lambda x: -2 * torch.sin(x), D_o=0.2, D_f=0.05, alpha=0.7)
    for n_modes in (7, 11, 17, 25):
        with pytest.warns(LevytorchWarning, match=r"must not exceed max \|r\| / beta, .* a wider window"):
            V = solve_value(d, torch.cos, 0.5, window=(0.5, 3.0), n_modes=n_modes)
        assert not V.converged
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = solve_value(d, torch.cos, 0.5)
        wide = solve_value(d, torch.cos, 0.5, window=(0.0, 6.28), n_modes=41)
    assert wide.converged
    assert float((wide(X) - whole(X)).abs().max()) < 0.05
