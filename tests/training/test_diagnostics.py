"""Diagnostics: p-values that are uniform when the model is true, alarms when it is not."""

import copy
import json
import math
import re
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import binom, kstest

from levytorch import Dynamics, LevyStep, Recovery, Trajectories, Transitions, log_density, recover, simulate
from levytorch.coefficients import Coefficients
from levytorch.errors import InputError, LevytorchWarning
from levytorch.training.diagnostics import Diagnosis, checks, diagnose, step_size
from levytorch.training.diagnostics.components import Components, legendre
from levytorch.training.diagnostics.region import Region
from levytorch.training.diagnostics.sample import make_sample
from levytorch.training.diagnostics.step_size import Skipped, StepCheck, check_step_size
from levytorch.training.diagnostics.transform import transform
from levytorch.training.diagnostics.two_steps import block_starts, two_steps
from tests.training.problems import ALPHA, DT, stable, steps

TAILS = {
    "none": None,
    "tcf": {"CT": 8.0, "TRT": 20.0},
    "strata": {"CT": 8.0, "TRT": 20.0, "method": "conditional", "region": "strata", "min_tail": 10},
    "TRT": {"TRT": 20.0, "method": "conditional"},
}


def one(value):
    return torch.tensor([float(value)], dtype=torch.float64)


def quiet(call, *arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        return call(*arguments, **options)


def data_of(kind, n, seed):
    """The constant example, censored where `kind` says so."""
    data = steps(n, seed)
    if kind in ("tcf", "strata"):
        return data.censor(TRT=20.0, CT=8.0, drop_tail=0.5, seed=seed)
    return data.censor(TRT=20.0, CT=None, drop_tail=0.0) if kind == "TRT" else data


def p_value(kind, n, seed):
    data = data_of(kind, n, seed)
    found = quiet(recover, data, alpha=ALPHA, n_basis=1, tail=TAILS[kind])
    return quiet(found.diagnose, data, checks=("fit",)).fit.p_value


def paths(dynamics, n, dt, seed):
    return simulate(Dynamics.named(dynamics), n, 40, dt, seed=seed)


@cache
def walk():
    """The constant example as trajectories, and its fit."""
    data = paths("constant", 300, DT, 3).transitions()
    return data, recover(data, alpha=ALPHA, n_basis=1)


# ------------------------------------------------------------------------------------------------------------ transform


@pytest.mark.parametrize(("region", "label"), [(Region(), 0), (Region(inner=2.0), 0), (Region(0.1, 3.0), 1)])
@pytest.mark.parametrize("dx", [-1.7, -0.4, 0.3, 1.9])
def test_the_transform_is_the_conditional_distribution_function(region, label, dx):
    b, D_o, D_f, mu = 1.0, 2.0, 3.0, 0.1

    def mass(low, high):
        density = lambda y: math.exp(float(log_density(y, b, D_o, D_f, ALPHA, DT)))  # noqa: E731
        return quad(density, low, high, limit=400, epsabs=1e-11)[0] if low < high else 0.0

    if region.whole:
        expected = float(LevyStep(b, D_o, D_f, ALPHA, DT).cdf(one(dx)))
    elif label == 0:
        expected = mass(mu - 2.0, dx) / mass(mu - 2.0, mu + 2.0)
    else:
        left, right = mass(mu - 3.0, min(dx, mu - 0.1)), mass(mu + 0.1, dx)
        expected = (left + right) / (mass(mu - 3.0, mu - 0.1) + mass(mu + 0.1, mu + 3.0))
    c = Coefficients(one(b), one(D_o), one(D_f), torch.tensor(ALPHA, dtype=torch.float64))
    found = transform(c, one(dx), one(DT), one(mu), torch.tensor([label]), region)
    assert float(found.u) == pytest.approx(expected, abs=1e-8)
    assert float(found.upper) == pytest.approx(1 - expected, abs=1e-8)


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize(("region", "label"), [(Region(), 0), (Region(inner=1.0), 0), (Region(1.0, 3.0), 1)])
def test_the_transform_of_vectors_is_uniform_on_every_ray(dim, region, label):
    n = 4000
    mu = torch.full((dim,), 0.3, dtype=torch.float64)
    law = LevyStep(torch.full((n, dim), 4.0, dtype=torch.float64), 2.0, 3.0, 0.4, DT, dim=dim)
    dx = law.sample(generator=torch.Generator().manual_seed(dim))
    label_of = region.labels((dx - mu).norm(dim=1), torch.full((n,), DT, dtype=torch.float64))
    dx = dx[label_of == label]
    m = len(dx)
    dt = torch.full((m,), DT, dtype=torch.float64)
    c = Coefficients(law.b[:m], law.D_o[:m], law.D_f[:m], torch.tensor(0.4, dtype=torch.float64))
    found = transform(c, dx, dt, mu.expand(m, dim), torch.full((m,), label), region)
    assert m > 200
    assert kstest(found.u.numpy(), "uniform").pvalue > 1e-3
    torch.testing.assert_close(found.u + found.upper, torch.ones(m, dtype=torch.float64))


def test_far_steps_keep_their_digits():
    c = Coefficients(one(0.0), one(4.0), one(3.0), torch.tensor(ALPHA, dtype=torch.float64))
    far = transform(c, one(1e12), one(DT), one(0.0), torch.tensor([0]), Region())
    near = transform(c, one(1e10), one(DT), one(0.0), torch.tensor([0]), Region())
    assert float(near.upper / far.upper) == pytest.approx(100 ** (2 * ALPHA), rel=1e-3)
    assert 0 < float(far.upper) < 1e-8


def test_components_have_the_variance_they_say():
    assert torch.allclose(
        legendre(torch.linspace(0, 1, 200_001, dtype=torch.float64), 6) @ torch.ones(200_001).double() / 200_001,
        torch.zeros(6, dtype=torch.float64),
        atol=1e-4,
    )
    data, found = walk()
    sample = make_sample(data, Region(), 10**6, 0)
    components = Components(found.head, sample)
    u = torch.rand(len(sample), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h = components.values(u, sample.x, sample.dt, None)
    known = components.variance(sample.x, sample.dt, None)
    seen = h @ h.T / h.shape[1]
    spread = ((h.unsqueeze(1) * h.unsqueeze(0)).var(-1) / h.shape[1]).sqrt()
    assert float(((seen - known).abs() / spread.clamp(min=1e-3)).max()) < 5


# ---------------------------------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize("kind", ["none", "tcf", "strata"])
def test_p_values_are_not_extreme_when_the_model_is_true(kind):
    p = np.array([p_value(kind, 3000, seed) for seed in range(8)])
    assert kstest(p, "uniform").pvalue > 1e-3
    assert (p < 0.05).sum() <= binom.ppf(0.999, len(p), 0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "n"), [("none", 2000), ("tcf", 8000), ("strata", 8000), ("TRT", 4000)])
def test_p_values_are_uniform_when_the_model_is_true(kind, n):
    p = np.array([p_value(kind, n, seed) for seed in range(1000, 1200)])
    assert kstest(p, "uniform").pvalue > 1e-3
    assert (p < 0.01).sum() <= binom.ppf(0.999, len(p), 0.01)


@pytest.mark.slow
def test_step_size_p_values_are_uniform_when_coefficients_do_not_change():
    p = []
    for seed in range(200):
        data = paths("constant", 50, DT, 5000 + seed).transitions()
        found = recover(data, alpha=ALPHA, n_basis=1)
        p.append(quiet(found.diagnose, data, checks=("step_size",)).step_size.p_value)
    assert kstest(p, "uniform").pvalue > 1e-3
    assert (np.array(p) < 0.01).sum() <= binom.ppf(0.999, len(p), 0.01)


def test_without_the_correction_the_test_would_sleep():
    """Squared means of the polynomials at the fitted law, as if it had been given: the fit has made them small."""
    statistics = []
    for seed in range(8):
        data = steps(1500, seed)
        found = recover(data, alpha=ALPHA, n_basis=1)
        u = quiet(found.diagnose, data, checks=("fit",)).fit.u.u
        statistics.append(float((legendre(u, 6).mean(1) ** 2).sum()) * len(u))
    # six of mean one each, of which three parameters take about three
    assert np.mean(statistics) < 6 - 2 * math.sqrt(12 / len(statistics))


# ---------------------------------------------------------------------------------------------------------------- power


def test_a_wrong_alpha_is_noticed():
    data = steps(30_000, 1)
    with pytest.warns(LevytorchWarning, match="large steps"):
        diagnosis = recover(data, alpha=0.45, n_basis=1).diagnose(data, checks=("fit",))
    assert diagnosis.fit.p_value < 1e-6
    assert "misfit" in diagnosis.alarms
    assert not diagnosis.ok


def test_lost_tails_that_nobody_mentioned_are_noticed():
    data = data_of("tcf", 30_000, 2)
    assert quiet(recover(data, alpha=ALPHA, n_basis=1).diagnose, data, checks=("fit",)).fit.p_value < 1e-6


def test_asymmetric_jumps_are_noticed():
    rng = np.random.default_rng(0)
    n = 20_000
    jumps = stable(2 * ALPHA, n, rng)
    jumps = np.where((jumps < 0) & (rng.uniform(size=n) < 0.6), -jumps, jumps)  # four of five go up
    dx = 5 * DT + np.sqrt(8 * DT) * rng.standard_normal(n) + (3 * DT) ** (1 / (2 * ALPHA)) * jumps
    data = Transitions(rng.uniform(0, 2 * np.pi, n), dx, DT)
    diagnosis = quiet(recover(data, alpha=ALPHA, n_basis=1).diagnose, data, checks=("fit",))
    assert diagnosis.fit.p_value < 1e-6
    assert diagnosis.fit.parts["tails"][0] < 1e-6


def test_coefficients_that_depend_on_x_are_noticed_by_a_constant_fit():
    data = steps(5000, 3, D_o=lambda x: 4 + np.cos(2 * x))
    diagnosis = quiet(recover(data, alpha=ALPHA, n_basis=1).diagnose, data, checks=("fit",))
    assert diagnosis.fit.parts["state"][0] < 1e-4


def test_steps_with_a_memory_are_noticed():
    rng = np.random.default_rng(1)
    quiet_or_wild = np.repeat(rng.choice([1.0, 16.0], 200), 50)  # volatility that stays for a while
    dx = np.sqrt(2 * quiet_or_wild * DT) * rng.standard_normal(10_000)
    data = Trajectories.from_arrays(np.concatenate([[0.0], np.cumsum(dx)]), dt=DT).transitions()
    found = quiet(recover, data, alpha=0.8, n_basis=1)
    assert quiet(found.diagnose, data, checks=("fit",)).fit.parts["memory"][0] < 1e-6


def test_anisotropic_steps_are_noticed():
    rng = np.random.default_rng(2)
    n = 4000
    dx = rng.standard_normal((n, 2)) * [0.6, 0.4] + 0.02 * stable(1.2, n, rng)[:, None]
    data = Transitions(rng.uniform(0, 2 * np.pi, (n, 2)), dx, DT)
    found = quiet(recover, data, alpha=0.6, n_basis=1)
    assert quiet(found.diagnose, data, checks=("fit",)).fit.parts["direction"][0] < 1e-6


# ---------------------------------------------------------------------------------------------------------------- jumps


def test_gaussian_data_need_no_jumps():
    rng = np.random.default_rng(4)
    x = rng.uniform(0, 2 * np.pi, 8000)
    data = Transitions(x, np.sin(x) * DT + np.sqrt(2 * (2 + np.cos(x)) * DT) * rng.standard_normal(8000), DT)
    found = quiet(recover, data, alpha=0.5, n_basis=3)
    with pytest.warns(LevytorchWarning, match="without jumps"):
        diagnosis = found.diagnose(data, checks=("jumps",))
    assert not diagnosis.jumps.needed
    assert -1 < diagnosis.jumps.gain < 10  # nested laws, but for the floor of D_f
    assert diagnosis.jumps.bic < 0


@pytest.mark.parametrize("kind", ["none", "tcf", "TRT"])
def test_jumps_are_needed_where_there_are_any(kind):
    data = data_of(kind, 5000, 5)
    found = quiet(recover, data, alpha=ALPHA, n_basis=1, tail=TAILS[kind])
    jumps = quiet(found.diagnose, data, checks=("jumps",)).jumps
    assert jumps.needed
    assert jumps.bic > 50
    if kind == "none":
        # the Gaussian's own maximum in closed form, however huge its width
        variance = float(data.dx.var(unbiased=False))
        expected = found.log_likelihood + 0.5 * len(data) * (math.log(2 * math.pi * variance) + 1)
        assert jumps.gain == pytest.approx(expected, rel=1e-6)


# ------------------------------------------------------------------------------------------------------------ step size


def test_every_second_observation():
    x = [np.arange(6.0), np.array([10.0, 11.0, 13.0, 16.0])]
    data = Trajectories.from_arrays(x, dt=0.5).transitions()
    first = block_starts(data)
    long_ = two_steps(data, first)
    assert long_.x.tolist() == [0.0, 2.0, 10.0]
    assert long_.dx.tolist() == [2.0, 2.0, 3.0]
    assert long_.dt.tolist() == [1.0, 1.0, 1.0]
    mask = torch.tensor([True, False, True, True, True, True, True, True])
    assert two_steps(data[mask], block_starts(data[mask])).x.tolist() == [2.0, 10.0]


def test_constant_coefficients_do_not_change_with_dt():
    data, found = walk()
    diagnosis = found.diagnose(data)
    assert diagnosis.ok
    assert diagnosis.step_size.p_value > 1e-3
    assert diagnosis.step_size.max_z < 4
    assert diagnosis.step_size.pairs == (len(data), len(data) // 2)


def test_long_steps_through_changing_coefficients_are_noticed():
    data = paths("variable", 500, DT, 1).transitions()
    with pytest.warns(LevytorchWarning, match="every second observation"):
        diagnosis = recover(data, alpha=ALPHA, n_basis=7).diagnose(data, checks=("step_size",))
    assert diagnosis.step_size.p_value < 1e-4
    assert diagnosis.step_size.change["D_o"] > 0.05


def test_the_covariance_of_the_change_agrees_with_hausman():
    """At the maximum of the whole likelihood the estimates differ by var(2 dt) - var(dt)."""
    data, found = walk()
    step = found.diagnose(data, checks=("step_size",)).step_size
    long_ = two_steps(data, block_starts(data))
    again = recover(long_, alpha=ALPHA, n_basis=1)
    for name, index in (("D_o", 1), ("D_f", 2)):
        wide, narrow = float(again.std(0.0)[index]), float(found.std(0.0)[index])
        assert float(step.curves[f"{name}_std"][0]) == pytest.approx(math.sqrt(wide**2 - narrow**2), rel=0.15)
        assert float(step.curves[f"{name}_2dt"][0]) == pytest.approx(float(getattr(again, name)(0.0)), rel=1e-4)


def test_pairs_without_successors_are_not_compared():
    data = steps(3000, 0)
    diagnosis = recover(data, alpha=ALPHA, n_basis=1).diagnose(data, checks=("step_size",))
    assert isinstance(diagnosis.step_size, Skipped)
    assert "successor" in diagnosis.metrics()["step_size_skipped"]


def test_parameters_that_a_strong_penalty_spares_are_still_compared():
    data, _ = walk()
    found = quiet(recover, data, alpha=ALPHA, n_basis=3)
    step = check_step_size(found.head, data, Region(), strengths=[1e16] * 3)
    assert step.df == 3
    assert 1e-3 < step.p_value < 1
    assert step.p_value == pytest.approx(check_step_size(walk()[1].head, data, Region()).p_value, rel=0.05)


def test_nothing_to_compare_is_said_with_a_remedy(monkeypatch):
    data, found = walk()
    monkeypatch.setattr(step_size, "_quadratic", lambda *_: (0.0, 0))
    diagnosis = found.diagnose(data, checks=("step_size",))
    assert diagnosis.text().startswith("step size: not checked, nothing is left to compare")
    assert "use fewer basis functions" in diagnosis.metrics()["step_size_skipped"]
    assert "step_size_p_value" not in diagnosis.metrics()


def test_equations_without_a_solution_are_said_in_our_words(monkeypatch):
    def fails(*_, **__):
        raise torch.linalg.LinAlgError("linalg.eigh: The algorithm failed to converge (error code: 20).")

    data, found = walk()
    monkeypatch.setattr(checks, "check_step_size", fails)
    said = found.diagnose(data, checks=("step_size",)).text()
    assert "not checked" in said
    assert "linalg" not in said
    assert "n_basis" in said


@pytest.mark.parametrize("p", [0.557, 1e-5])
def test_the_line_of_the_step_size_does_not_mislead(p):
    change, chance = {"b": 1.873, "D_o": 0.053, "D_f": 0.068}, {"b": 1.7, "D_o": 0.388, "D_f": 0.057}
    step = StepCheck(p, 60.8, 63, 37.1, ("D_f", 3.4), change, (2000, 1000), True, chance=chance)
    said = Diagnosis(step_size=step).text()
    assert "D_o 5.3% (chance alone 38.8%), D_f 6.8% (chance alone 5.7%), b n.s." in said
    assert "187" not in said
    assert ("37.1 standard errors" in said) == (p < 1e-3)
    assert ("no clear change" in said) == (p > 1e-3)
    metrics = Diagnosis(step_size=step).metrics()
    assert (metrics["step_size_max_z"], metrics["step_size_change_b"], metrics["step_size_chance_b"]) == (
        37.1,
        1.873,
        1.7,
    )


def test_a_coefficient_that_vanishes_at_two_steps_has_not_changed_by_many_standard_errors():
    data, found = walk()
    one, two = copy.deepcopy(found.head), copy.deepcopy(found.head)
    two.set_constants([5.0], 4.0, 1e-9, ALPHA)
    spread = torch.eye(found.theta.numel(), dtype=torch.float64)
    curves = step_size._curves(one, two, [spread, spread], SimpleNamespace(kept=data))
    alone = step_size._curves(one, one, [spread, spread], SimpleNamespace(kept=data))
    assert bool((curves["D_f_std"] >= alone["D_f_std"]).all())
    assert step_size._largest(curves, 1)[0] < 10


# ------------------------------------------------------------------------------------------------------- other settings


@pytest.mark.parametrize(
    "options",
    [
        {"coefficients": "mlp", "width": 4, "depth": 1, "max_steps": 6},
        {"n_basis": 3, "engine": "adam", "max_steps": 400, "window": 200, "lr": 0.02},
        {"n_basis": 3, "penalty": "evidence"},
        {"n_basis": 1, "alpha": "learn"},
    ],
    ids=["mlp", "adam", "penalty", "learned alpha"],
)
def test_every_engine_and_head(options):
    data = walk()[0]
    found = quiet(recover, data, **{"alpha": ALPHA, **options})
    diagnosis = quiet(found.diagnose, data)
    assert diagnosis.fit.p_value > 1e-3
    assert diagnosis.jumps.needed
    assert diagnosis.step_size.p_value > 1e-3
    assert set(diagnosis.figures()) == {"diagnostics_fit", "diagnostics_step_size"}


def test_uneven_sampling_with_lost_tails():
    short, long_ = steps(6000, 6), steps(6000, 7, dt=2 * DT)
    x, dx, dt = (torch.cat([getattr(p, k) for p in (short, long_)]) for k in ("x", "dx", "dt"))
    data = Transitions(x, dx, dt)
    found = quiet(recover, data, alpha=ALPHA, n_basis=1, tail={"CT": 8.0})
    assert found.metrics["CT"] is None
    assert found.metrics["CT_of_dt"]["CT"] == 8.0
    diagnosis = quiet(found.diagnose, data, checks=("fit", "jumps"))
    assert diagnosis.fit.p_value > 1e-3
    assert "time step" in diagnosis.fit.parts
    # the same pairs with the wrong clock: jumps and diffusion do not scale together
    wrong = Transitions(x, dx, torch.where(dt > 1.5 * DT, 4 * DT, DT))
    found = quiet(recover, wrong, alpha=ALPHA, n_basis=1)
    assert quiet(found.diagnose, wrong, checks=("fit",)).fit.parts["time step"][0] < 1e-6


def test_a_part_of_the_pairs_says_the_same_on_average():
    data = steps(40_000, 8)
    found = recover(data, alpha=ALPHA, n_basis=1)
    whole = quiet(found.diagnose, data, checks=("fit", "jumps"), seed=1)
    part = quiet(found.diagnose, data, checks=("fit", "jumps"), max_pairs=10_000, seed=1)
    assert part.fit.pairs == 10_000 // 32 * 32
    assert part.fit.p_value > 1e-3
    assert whole.fit.p_value > 1e-3
    again = quiet(found.diagnose, data, checks=("fit",), max_pairs=10_000, seed=1)
    assert again.fit.p_value == part.fit.p_value


def test_two_dimensions():
    n = 3000
    x = torch.rand((n, 2), generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 * math.pi
    law = LevyStep(torch.tensor([2.0, -1.0]).double().expand(n, 2), 2.0, 1.5, 0.4, DT, dim=2)
    data = Transitions(x, law.sample(generator=torch.Generator().manual_seed(1)), DT)
    for tail in (None, {"TRT": 3.0, "method": "conditional"}):
        found = quiet(recover, data, alpha=0.4, n_basis=1, tail=tail)
        diagnosis = quiet(found.diagnose, data, checks=("fit", "jumps"))
        assert diagnosis.fit.p_value > 1e-3
        assert diagnosis.jumps.needed


def test_few_jumps_are_reported():
    data = steps(400, 0, D_f=0.05)
    found = quiet(recover, data, alpha=ALPHA, n_basis=1)
    with pytest.warns(LevytorchWarning, match="clearly jumps"):
        diagnosis = found.diagnose(data, checks=("fit",))
    assert diagnosis.metrics()["clear_jumps"] < 30
    assert "few_jumps" in diagnosis.alarms


def test_a_saved_recovery_can_be_diagnosed(tmp_path):
    data, found = walk()
    found.save(tmp_path / "recovery.pt")
    loaded = Recovery.load(tmp_path / "recovery.pt")
    assert loaded.diagnose(data, checks=("fit",)).fit.p_value == found.diagnose(data, checks=("fit",)).fit.p_value


def test_bad_arguments():
    data, found = walk()
    with pytest.raises(InputError, match="checks"):
        found.diagnose(data, checks=("speed",))
    with pytest.raises(InputError, match="max_pairs"):
        found.diagnose(data, max_pairs=10)
    with pytest.raises(InputError, match="Transitions"):
        found.diagnose(data.x)
    with pytest.raises(InputError, match="dimension"):
        found.diagnose(Transitions(torch.zeros((5, 2)), torch.rand((5, 2)), 1.0))
    with pytest.raises(InputError, match="Recovery"):
        diagnose(found.head, data)


def test_the_example_of_the_documentation(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "diagnostics.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.M | re.S)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert (tmp_path / "fit.png").stat().st_size > 1000


def test_no_checks_leave_no_trace(tmp_path):
    config = {"coefficients.n_basis": 1, "data.n_trajectories": 100, "trainer.progress": "false", "beta": "null"}
    arguments = [f"{k}={v}" for k, v in config.items()]
    root = Path(__file__).parents[2]
    command = [sys.executable, root / "train.py", *arguments, "diagnostics=none", f"hydra.run.dir={tmp_path}"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "fit_p_value" not in json.loads((tmp_path / "metrics.json").read_text())
    assert not list((tmp_path / "figures").glob("diagnostics*"))
