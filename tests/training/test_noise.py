"""Fits with observation noise: what is found, what is dropped, refused, simulated, and told about it."""

from __future__ import annotations

import math
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from levytorch import Dynamics, Recovery, Trajectories, Transitions, compare, diagnose, recover, simulate
from levytorch.diagnostics.compare import Comparison, Row
from levytorch.diagnostics.diagnosis import Diagnosis, raise_alarms
from levytorch.errors import InputError, LevytorchWarning, NumericalError
from levytorch.likelihood.filter import NoisyLikelihood
from levytorch.training.fit import Fit
from levytorch.training.settings import make_settings

TRUTH = Dynamics(b=0.5, D_o=0.5, D_f=0.2, alpha=0.5)
DT = 0.05
PLAIN: dict[str, Any] = {"alpha": 0.5, "n_basis": 1}


@cache
def paths(noise: float, seed: int = 1, n: int = 40, steps: int = 150) -> Trajectories:
    x = simulate(TRUTH, n, steps, DT, seed=seed).to_array()
    return Trajectories.from_arrays(x + noise * np.random.default_rng(seed).standard_normal(x.shape), dt=DT)


@cache
def fitted(noise: float = 0.15) -> Recovery:
    return recover(paths(noise), observation_noise="learn", **PLAIN)


def test_noise_and_coefficients_are_found() -> None:
    found, plain = fitted(), recover(paths(0.15), **PLAIN)
    assert found.converged
    assert abs(found.observation_noise - 0.15) < 4 * found.observation_noise_std < 0.06
    for name, true, std in zip(("b", "D_o", "D_f"), (0.5, 0.5, 0.2), found.std(0.0)):
        assert abs(float(getattr(found, name)(0.0)) - true) < 4 * float(std)
    assert float(plain.D_o(0.0)) - 0.5 > 8 * float(plain.std(0.0)[1])  # which takes the noise for diffusion
    assert found.aic < plain.aic - 20
    assert found.n_parameters == plain.n_parameters + 1


def test_standard_errors_are_those_of_many_fits() -> None:
    """Twelve data sets: the mean squared error in standard errors is chi-squared with as many degrees of freedom."""
    z = []
    for seed in range(12):
        found = recover(paths(0.2, seed, 20, 100), observation_noise="learn", **PLAIN)
        z.append([(found.observation_noise - 0.2) / found.observation_noise_std])
        stds = found.std(0.0)
        z[-1] += [
            (float(getattr(found, n)(0.0)) - t) / float(s)
            for n, t, s in zip(("b", "D_o", "D_f"), (0.5, 0.5, 0.2), stds)
        ]
    squares = torch.tensor(z).square().sum(0)
    assert bool((squares < 32.9).all())  # exceeded with probability 0.001
    assert bool((squares > 2.2).all())  # and this in 999 of 1000


def test_no_noise_is_dropped() -> None:
    """Nothing else moves then."""
    found, plain = recover(paths(0.0), observation_noise="learn", **PLAIN), recover(paths(0.0), **PLAIN)
    assert found.observation_noise == 0.0
    assert 0.0 < found.observation_noise_std < 0.1
    torch.testing.assert_close(found.theta, plain.theta, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.covariance, plain.covariance, rtol=1e-9, atol=1e-15)
    assert found.aic == pytest.approx(plain.aic)
    assert "not above 0" in str(found.summary())


def test_a_given_noise_stays() -> None:
    found = recover(paths(0.15), observation_noise=0.15, **PLAIN)
    assert (found.observation_noise, found.observation_noise_std) == (pytest.approx(0.15), 0.0)
    assert abs(float(found.D_o(0.0)) - 0.5) < 4 * float(found.std(0.0)[1])
    assert found.n_parameters == 3
    assert found.log_likelihood < fitted().log_likelihood + 1e-3


def test_units_of_the_data_do_not_matter() -> None:
    y = paths(0.15).to_array()
    far = recover(
        Trajectories.from_arrays(100 * y, dt=DT / 10), observation_noise="learn", period=200 * math.pi, **PLAIN
    )
    assert far.observation_noise == pytest.approx(100 * fitted().observation_noise, rel=1e-5)
    assert float(far.D_o(0.0)) == pytest.approx(1e5 * float(fitted().D_o(0.0)), rel=1e-4)


def test_what_is_reported_and_saved(tmp_path: Path) -> None:
    found = fitted()
    assert "obs. noise" in str(found.summary())
    loaded = Recovery.load(found.save(tmp_path / "fit.pt"))
    assert loaded.observation_noise == found.observation_noise
    assert loaded.aic == pytest.approx(found.aic)


def test_simulations_and_forecasts_have_the_noise() -> None:
    found = fitted()
    options: dict[str, Any] = {"x0": 0.0, "seed": 3}
    seen = found.simulate(200, 5, DT, **options).to_array()
    states = found.simulate(200, 5, DT, observed=False, **options).to_array()
    errors = (seen - states) / found.observation_noise
    assert abs(errors.mean()) < 4 / math.sqrt(errors.size)
    assert abs(errors.var() - 1) < 4 * math.sqrt(2 / errors.size)
    fans = [found.forecast(0.0, 1e-3, n_steps=1, n_paths=4000, observed=one).quantiles[-1] for one in (True, False)]
    middle = (fans[0][4] - fans[0][2]) / 1.349  # of the quartiles, in standard deviations
    assert middle == pytest.approx(math.hypot(found.observation_noise, math.sqrt(1e-3)), rel=0.08)
    assert fans[1][4] - fans[1][2] < 0.5 * (fans[0][4] - fans[0][2])


def test_checks_find_noise_and_accept_the_fit_with_it() -> None:
    data = paths(0.15).transitions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        plain, right = recover(data, **PLAIN), diagnose(fitted(), data, checks=["fit", "step_size"])
        wrong = diagnose(plain, data, checks=["fit", "step_size"])
    assert 'observation_noise="learn"' in wrong.alarms["observation_noise"]
    assert set(right.alarms) <= {"few_jumps"}
    assert right.p_values["fit"] > 0.001
    rows = compare({"plain": plain, "noise": fitted()}, data)
    assert rows.preferred == "noise"
    own = next(row for row in rows.rows if row.model == "noise")
    assert own.log_likelihood * len(data) == pytest.approx(fitted().log_likelihood, abs=1e-3)


@pytest.mark.long
def test_table_of_laws_has_a_row_with_noise() -> None:
    data = paths(0.15).transitions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        found = diagnose(recover(data, **PLAIN), data, checks=["laws"])
    assert found.laws is not None
    assert found.laws.preferred == "stable, noise"  # type: ignore[union-attr]
    assert "observation_noise" in found.alarms


def test_the_alarm_of_noise_asks_for_a_gain_that_its_parameter_is_worth() -> None:
    """A held-out gain beside hardly any gain in AIC is none."""

    def row(name: str, difference: float, aic: float) -> Row:
        return Row(name, -0.94, 0.04, difference, 0.001, aic, 16.0)

    recovery = fitted()
    for gain, raised in ((2.0, False), (20.0, True)):
        rows = [row("stable, noise", 0.0, 3771.3), row("stable", -0.0058, 3771.3 + gain)]
        rows += [row("tempered", -0.0061, 3775.2 + gain)]
        laws = Comparison(rows, True, 2000, "")
        assert ("observation_noise" in raise_alarms(Diagnosis(laws=laws), recovery, 1.0)) == raised


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "lbfgs"},
        {"engine": "adam"},
        {"law": "corrected"},
        {"law": "simulated"},
        {"tail": {"CT": 2.0, "TRT": 5.0}},
        {"memory": 1.0},
        {"validation": 0.2},
        {"lattice": "always"},
        {"observation_noise": 0.0},
        {"observation_noise": "known"},
    ],
)
def test_what_it_cannot_be_used_with(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="observation_noise must be"):
        recover(paths(0.0), **{"observation_noise": "learn", **PLAIN, **options})


def test_pairs_without_their_neighbours_are_refused() -> None:
    pairs = paths(0.15).transitions()
    lonely = pairs[torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0))]
    for data in (lonely, pairs.lattice(), Transitions(torch.zeros(50, 2), torch.ones(50, 2), DT)):
        with pytest.raises(InputError, match="pairs of whole trajectories in one dimension"):
            recover(data, observation_noise="learn", **PLAIN)
    with pytest.raises(InputError, match="fit without observation noise"):
        fitted().std(0.0, kind="bootstrap")


def test_a_resumed_fit_gives_the_same_numbers() -> None:
    settings = make_settings(observation_noise="learn", **PLAIN)
    whole = Fit.of(paths(0.15).transitions(), settings)
    states = []
    while not whole.done:
        whole.step(whole.batch())
        whole.update_tcf()
        whole.advance()
        states.append(whole.state_dict())
    for state in (states[-3], states[-1]):
        resumed = Fit.of(paths(0.15).transitions(), make_settings(observation_noise="learn", **PLAIN))
        resumed.load_state_dict(state)
        found = resumed.run()
        assert torch.equal(found.theta, whole.recovery().theta)
        assert found.observation_noise == whole.recovery().observation_noise


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"alpha": "learn"},
        {"alpha": 0.5, "tempering": 0.3},
        {"n_basis": 7, "law": "frozen"},
        {"n_basis": 7, "law": "exact"},
        {"coefficients": "mlp", "width": 8, "depth": 1},
        {"period": None, "n_basis": 6, "law": "frozen"},
    ],
)
def test_heads_laws_and_spaces(options: dict[str, Any]) -> None:
    """Noise is within four standard errors of the truth whatever the coefficients are."""
    found = recover(paths(0.2), **{**PLAIN, "observation_noise": "learn", **options})
    assert found.converged
    assert abs(found.observation_noise - 0.2) < 4 * found.observation_noise_std


@pytest.mark.long
def test_where_the_exact_law_cannot_follow_the_frozen_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    true, calls = NoisyLikelihood._exact, []

    def failing(self: NoisyLikelihood, rows: Any) -> torch.Tensor:
        calls.append(rows)
        if len(calls) > 1:
            raise NumericalError("its grid does not resolve the coefficients")
        return true(self, rows)

    monkeypatch.setattr(NoisyLikelihood, "_exact", failing)
    found = recover(paths(0.2), alpha=0.5, n_basis=5, observation_noise="learn")
    assert len(calls) == 2
    assert (found.law, found.converged) == ("frozen", True)
    assert "does not resolve" in found.metrics["law_reason"]
    assert abs(found.observation_noise - 0.2) < 4 * found.observation_noise_std


@pytest.mark.long
def test_times_of_any_length() -> None:
    """A third of the points is left out."""
    x, times, rng = paths(0.15).to_array(), DT * np.arange(151), np.random.default_rng(0)
    kept = [np.sort(rng.choice(151, 100, replace=False)) for _ in x]
    uneven = Trajectories.from_arrays([row[k] for row, k in zip(x, kept)], times=[times[k] for k in kept])
    found = recover(uneven, observation_noise="learn", **PLAIN)
    assert abs(found.observation_noise - 0.15) < 4 * found.observation_noise_std
    assert abs(float(found.D_o(0.0)) - 0.5) < 4 * float(found.std(0.0)[1])


@pytest.mark.long
def test_train_py_gives_the_numbers_of_recover(tmp_path: Path) -> None:
    from hydra import compose, initialize_config_dir

    from levytorch.runs.training import train

    x = paths(0.15).to_array()
    rows = [f"{i},{DT * j!r},{float(v)!r}" for i, row in enumerate(x) for j, v in enumerate(row)]
    (tmp_path / "x.csv").write_text("\n".join(["id,time,x", *rows]) + "\n")
    given = ["data=file", f"data.path={tmp_path / 'x.csv'}", "data.id=id", "data.time=time", "data.value=x"]
    given += [
        "alpha=0.5",
        "coefficients.period=6.283185307179586",
        "coefficients.n_basis=1",
        "tail=none",
        "observation_noise=learn",
        "beta=null",
    ]
    given += ["diagnostics=none", "logger=none", "callbacks.figures.files=[]", "trainer.progress=false", "law=auto"]
    with initialize_config_dir(str(Path(__file__).parents[2] / "conf"), version_base="1.3"):
        outcome = train(compose("train", given), tmp_path / "run")
    found = recover(outcome.source.transitions, observation_noise="learn", **PLAIN)
    assert outcome.recovery.observation_noise == pytest.approx(found.observation_noise, rel=1e-9)
    torch.testing.assert_close(outcome.recovery.theta, found.theta, rtol=1e-9, atol=1e-12)
    assert (outcome.recovery.observation_noise, outcome.recovery.log_likelihood) == pytest.approx(
        (fitted().observation_noise, fitted().log_likelihood), rel=1e-6
    )
