"""Recovery in two and three dimensions: sums against autograd, estimates against the truth in standard errors."""

import json
from functools import cache
from pathlib import Path

import pytest
import torch

from levytorch import Dynamics, InputError, Recovery, Trajectories, Transitions, recover, solve_value
from levytorch.coefficients import build_head
from levytorch.data.batches import Batch
from levytorch.law import LevyStep, cutting_threshold, log_density
from levytorch.likelihood.frozen import FrozenLaw, sweep
from levytorch.likelihood.sums import StateBins, assemble
from tests.processes import run

ROOT = Path(__file__).parents[2]
BUFFALO = ROOT.parent / "shared" / "data" / "buffalo.csv"
D, DT = torch.float64, 1 / 40
PAPER = {"CT": 8.0, "TRT": 20.0}


@cache
def steps(dim=2, n=40_000, seed=0, name=None, alpha=0.3) -> Transitions:
    """Independent steps whose law is exactly the frozen one, from states uniform on the cell."""
    drift = [5.0, -3.0, 1.0][:dim]
    dynamics = Dynamics(drift, 4.0, 3.0, alpha, dim=dim) if name is None else Dynamics.named(name, alpha)
    x = 6.283185307179586 * torch.rand(n, dim, generator=torch.Generator().manual_seed(seed), dtype=D)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        law = LevyStep(dynamics.b(x), dynamics.D_o(x), dynamics.D_f(x), alpha, DT, dim=dim)
        return Transitions(x, law.sample(), DT)


def deviations(found: Recovery, truth: list[float]) -> torch.Tensor:
    """(estimate - truth) / standard error of constants b_1, ..., D_o, D_f."""
    x = torch.zeros(found.dim, dtype=D)
    c = found.coefficients(x)
    b, D_o, D_f = found.std(x)
    estimate, error = torch.cat([c.b, c.D_o[None], c.D_f[None]]), torch.cat([b, D_o[None], D_f[None]])
    return (estimate - torch.tensor(truth, dtype=D)) / error


def test_sums_of_a_pass_are_those_of_autograd():
    data = steps(2, 500, 3, "plane")
    head = build_head({"name": "fourier", "n_basis": 3, "dim": 2, "alpha": 0.3, "length": 0.4, "time": DT})
    with torch.no_grad():
        head.theta += 0.1 * torch.randn(head.theta.shape, generator=torch.Generator().manual_seed(1), dtype=D)
    dt = data.dt[0]
    bins = StateBins(head, dt, 512)
    sums = sweep(
        head, FrozenLaw("contour", 2), Batch(data.x, data.dx, data.dt, torch.ones(len(data), dtype=torch.float64)), bins
    )

    def log_p():
        c = head(data.x)
        return log_density(data.dx, c.b, c.D_o, c.D_f, c.alpha, dt, dim=2, method="contour")

    (gradient,) = torch.autograd.grad(log_p().sum(), head.theta)
    torch.testing.assert_close(sums.gradient, gradient, rtol=1e-9, atol=1e-9)
    assert float(sums.log_p) == pytest.approx(float(log_p().detach().sum()), rel=1e-12)
    # scores per bin at the centers of the bins: the gradient again, up to the width of a bin
    assert sums.first.shape == (4, len(bins))
    assert int(bins.counts(data.x, dt).sum()) == 500


def all_of(data):
    return Batch(data.x, data.dx, data.dt, torch.ones(len(data), dtype=torch.float64))


@pytest.mark.parametrize("mode", ["fixed", "constant"])
def test_products_and_second_derivatives_of_constants(mode):
    data = steps(2, 300, 4)
    head = build_head(
        {"name": "fourier", "n_basis": 1, "dim": 2, "alpha": 0.35, "alpha_mode": mode, "length": 0.4, "time": DT}
    )
    head.set_constants([4.0, -2.0], 3.0, 2.0)
    dt = data.dt[0]
    bins = StateBins(head, dt)
    sums = sweep(
        head,
        FrozenLaw("contour", 2),
        Batch(data.x, data.dx, data.dt, torch.ones(len(data), dtype=torch.float64)),
        bins,
        hessian=True,
    )

    def log_p(theta):
        head_alpha = torch.func.functional_call(head, {"theta": theta}, (data.x,))
        return log_density(data.dx, *head_alpha, dt, dim=2, method="contour")

    theta = head.theta.detach()
    J = torch.autograd.functional.jacobian(log_p, theta)
    H = torch.autograd.functional.hessian(lambda t: log_p(t).sum(), theta)
    design = head.design(bins.x)
    torch.testing.assert_close(assemble(head, sums.second, design), J.T @ J, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(assemble(head, sums.hessian, design), H, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("dim", "alpha"), [(2, 0.3), (2, 0.6), (3, 0.4)])
def test_constants_within_their_standard_errors(dim, alpha):
    found = recover(steps(dim, 40_000, 1, None, alpha), alpha=alpha, n_basis=1)
    assert found.converged
    assert float(deviations(found, [*[5.0, -3.0, 1.0][:dim], 4.0, 3.0]).abs().max()) < 4
    _, D_o, D_f = found.std(torch.zeros(dim))
    assert float(D_o) < 0.06
    assert float(D_f) < 0.15


@pytest.mark.long
def test_lost_tails_are_corrected():
    full = steps(2, 60_000, 2)
    cut = full.censor(TRT=20.0, CT=8.0, drop_tail=0.5, seed=1)
    truth = [5.0, -3.0, 4.0, 3.0]
    uncorrected = recover(cut, alpha=0.3, n_basis=1)
    assert deviations(uncorrected, truth)[3] < -10
    for tail in (PAPER, {**PAPER, "method": "conditional"}):
        found = recover(cut, alpha=0.3, n_basis=1, tail=tail)
        assert float(deviations(found, truth).abs().max()) < 4
        assert (found.tcf > 0) == ("method" not in tail)
    automatic = recover(cut, alpha=0.3, n_basis=1, tail="auto")
    plain = uncorrected.coefficients([0.0, 0.0])
    CT = cutting_threshold(0.3, plain.D_f, DT, 0.98, D_o=plain.D_o, dim=2)
    assert automatic.metrics["CT"] == pytest.approx(float(CT), rel=1e-6)


@pytest.mark.long
def test_alpha_is_learned():
    found = recover(steps(2, 5_000, 5), alpha="learn", n_basis=1)
    assert abs(found.alpha - 0.3) < 4 * found.alpha_std
    assert found.alpha_std < 0.05


@cache
def field() -> Recovery:
    return recover(steps(2, 60_000, 6, "plane"), alpha=0.3, n_basis=5, law="frozen")


@pytest.mark.long
def test_fields_of_both_variables_with_honest_standard_errors():
    found, truth = field(), Dynamics.named("plane")
    x = found.head.grid(400)
    assert found.converged
    for name, std in zip(("b", "D_o", "D_f"), found.std(x)):
        error = getattr(found, name)(x) - getattr(truth, name)(x)
        assert error.shape == std.shape
        # the mean square of errors over their standard errors is near one (few independent directions: a wide band)
        assert 0.3 < float((error / std).square().mean()) < 3.0
    assert float((found.b(x) - truth.b(x)).norm() / truth.b(x).norm()) < 0.25


def test_recovery_is_saved_loaded_and_a_dynamics(tmp_path):
    found = field()
    again = Recovery.load(found.save(tmp_path / "recovery.pt"))
    x = torch.tensor([[0.1, 7.0], [1e6, -3.0]], dtype=D)
    assert torch.equal(again.b(x), found.b(x))
    assert torch.equal(again.std(x)[0], found.std(x)[0])
    dynamics = found.dynamics()
    assert (dynamics.dim, dynamics.period) == (2, found.period)
    torch.testing.assert_close(dynamics.b(x), found.b(x))
    assert "b (" in repr(found)
    assert found.b([0.1, 0.2]).shape == (2,)
    with pytest.raises(InputError, match="last axis"):
        found.b(0.5)


def test_value_of_a_recovery_covers_that_of_the_truth():
    found, truth = field(), Dynamics.named("plane")
    r = lambda x: torch.cos(x[..., 0]) * torch.sin(x[..., 1])  # noqa: E731
    ours, theirs = solve_value(found, r, 1.0, n_modes=24), solve_value(truth, r, 1.0, n_modes=48)
    x = found.head.grid(100)
    assert float(((ours(x) - theirs(x)) / ours.std(x)).square().mean()) < 6
    assert 0 < float(ours.std(x).mean()) < 0.1


@pytest.mark.slow
def test_lbfgs_finds_what_fisher_finds():
    data = steps(2, 8_000, 7, "plane").censor(TRT=20.0, CT=8.0, drop_tail=0.5, seed=1)
    fisher, lbfgs = (
        recover(data, alpha=0.3, n_basis=3, tail={**PAPER, "min_tail": 10}, engine=e) for e in ("fisher", "lbfgs")
    )
    x = fisher.head.grid(100)
    for ours, theirs, std in zip(fisher.coefficients(x)[:3], lbfgs.coefficients(x)[:3], fisher.std(x)):
        assert float(((ours - theirs).abs() / std).max()) < 0.3
    assert fisher.tcf == pytest.approx(lbfgs.tcf, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("tail", [PAPER, {**PAPER, "method": "conditional"}])
def test_networks_and_adam_take_vectors(tail):
    data = steps(2, 4_000, 8, "plane").censor(TRT=20.0, CT=8.0, drop_tail=0.5, seed=1)
    options = {"max_steps": 60, "window": 20, "batch_size": 50}
    found = recover(
        data, alpha=0.3, coefficients="mlp", engine="adam", tail={**tail, "start": 10, "min_tail": 10}, **options
    )
    assert found.b(torch.zeros(7, 2)).shape == (7, 2)
    assert torch.isfinite(found.theta).all()
    full = recover(data, alpha=0.3, coefficients={"name": "mlp", "width": 4, "depth": 1}, max_steps=3, tail=tail)
    assert full.history[-1]["train/nll"] < full.history[0]["train/nll"]


def test_uneven_steps():
    x = steps(2, 6_000, 9).x
    dt = DT * (1 + 2 * torch.rand(6_000, generator=torch.Generator().manual_seed(0), dtype=D))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        dx = LevyStep(torch.tensor([5.0, -3.0], dtype=D), 4.0, 3.0, 0.3, dt, dim=2).sample()
    data = Transitions(x, dx, dt)
    found = recover(data, alpha=0.3, n_basis=1, tail={"TRT": 1e4, "method": "conditional"})
    assert float(deviations(found, [5.0, -3.0, 4.0, 3.0]).abs().max()) < 4


@pytest.mark.slow
def test_roughness_penalty_smooths_a_plane():
    data = steps(2, 3_000, 10)
    rough, smooth = (recover(data, alpha=0.3, n_basis=5, penalty=p) for p in ("none", "evidence"))
    x = rough.head.grid(200)
    assert float(smooth.D_o(x).std()) < 0.5 * float(rough.D_o(x).std())


def test_bad_input_is_one_sentence():
    plane, line = steps(2, 500), Transitions(torch.rand(500, dtype=D), torch.randn(500, dtype=D), DT)
    for data, options in ((line, {"dim": 2}), (plane, {"dim": 1}), (plane, {"period": [1.0, 2.0, 3.0]})):
        with pytest.raises(InputError, match="the head must have the dimension of the data"):
            recover(data, alpha=0.3, n_basis=1, **options)
    with pytest.raises(InputError, match="dim must be 1 for density windowed"):
        recover(plane, alpha=0.3, n_basis=1, density="windowed")
    with pytest.raises(InputError, match="data must hold at least"):
        recover(plane, alpha=0.3, n_basis=21)
    with pytest.raises(InputError, match="must lie in the window"):
        recover(plane, alpha=0.3, coefficients="mlp", periodic=False, period=1.0)


@pytest.mark.skipif(not BUFFALO.is_file(), reason="needs the shared data")
def test_buffalo_tracks():
    """The example of docs/dimensions.md, with a given alpha."""
    options = {"value": ["x", "y"], "id": "id", "time": "t", "time_in": "s", "time_unit": "h", "max_dt": 2.0}
    data = Trajectories.from_file(BUFFALO, **options).transitions()
    assert (data.dim, len(data)) == (2, 16_796)
    low, high = data.x.min(0).values, data.x.max(0).values
    cell = {"period": (1.02 * (high - low)).tolist(), "origin": (low - 0.01 * (high - low)).tolist()}
    found = recover(data, alpha=0.3, n_basis=1, max_steps=12, **cell)
    # against the best law without jumps, which is known in closed form
    b = data.dx.sum(0) / data.dt.sum()
    D_o = float(((data.dx - b * data.dt[:, None]).square().sum(1) / data.dt).mean() / 4)
    spread = (data.dx - b * data.dt[:, None]).square().sum(1) / (4 * D_o * data.dt)
    gaussian = float((-torch.log(4 * torch.pi * D_o * data.dt) - spread).mean())
    assert found.log_likelihood / len(data) > gaussian + 1.0


@pytest.mark.parametrize("extra", [pytest.param([], marks=pytest.mark.slow), ["data.path=columns.csv"]])
def test_train_in_the_plane(extra, tmp_path):
    if extra:
        (tmp_path / "columns.csv").write_text("t,u,v\n0,1,2\n1,2,zebra\n2,3,4\n")
        arguments = ["data=file", f"data.path={tmp_path / 'columns.csv'}", "data.value=[u,v]", "alpha=0.3", "tail=none"]
    else:
        arguments = ["experiment=two_dimensions", "dynamics=plane", "coefficients.noise=isotropic"]
        arguments += ["data.n_trajectories=200", "coefficients.n_basis=3", "tail.CT=2.0"]
    place = tmp_path / "run"
    status, said = run("train.py", *arguments, "trainer.progress=false", f"hydra.run.dir={place}")
    if extra:
        assert status == 2
        assert "InputError" in said
        return
    assert status == 0, said[-3000:]
    metrics = json.loads((place / "metrics.json").read_text())
    assert {"mean_b_1", "mean_b_2", "error_b", "error_V", "mean_D_o"} <= set(metrics)
    assert metrics["error_D_o"] < 0.2
    for name in ("coefficients", "value", "history"):
        assert (place / "figures" / f"{name}.png").stat().st_size > 1000
    header = (place / "curves.csv").read_text().splitlines()[0]
    assert header.startswith("u,v,b_1,b_2,b_1_truth")
    assert Recovery.load(place).dim == 2
