"""Public names of recover, Recovery, value functions and rewards, each with arguments that work."""

from __future__ import annotations

import torch

import levytorch as lt
from levytorch.coefficients.basis import FourierBasis
from levytorch.policy.rewards import CosinePower, Tabulated
from tests.inputs.targets import (
    PATHS,
    Target,
    directory,
    names,
    plane_recovery,
    plane_value,
    recovered,
    recovery,
    sample_file,
    solved,
    solved_plane,
    system,
    transitions,
    value,
)


def targets() -> list[Target]:
    d, found, V = system(), recovery(), value()
    return [
        Target(
            "recover",
            recovered,
            dict(
                transitions=transitions(),
                alpha=0.3,
                coefficients="fourier",
                n_basis=1,
                period=6.0,
                tail=None,
                engine="fisher",
                seed=0,
                max_steps=2,
                origin=0.0,
                positivity="softplus",
                init="data",
                units="data",
                density="auto",
                law="frozen",
                std="frozen",
                penalty="none",
                damping=0.01,
                tolerance=1e-6,
                n_bins=64,
                validation=0.0,
                chunk_size=4096,
                log_every=50,
                progress=False,
                n_basis_alpha=3,
                truncation="total",
                batch_size=100,
                mixing="stratified",
                dim=1,
                D_o=0.5,
                D_f=0.5,
            ),
            names("alpha period origin damping tolerance validation D_o D_f"),
            optional=names("tail dim penalty D_o D_f"),
            choices=names("coefficients engine positivity init units density law std penalty truncation mixing"),
        ),
        Target(
            "recover tail",
            lambda **a: recovered(transitions=transitions(), alpha=0.3, n_basis=1, max_steps=2, tail=a),
            dict(CT=1.0, TRT=20.0, method="tcf", R_theta="states", start=1, region="auto", min_tail=5, mass=0.98),
            names("CT TRT mass"),
            optional=names("CT TRT"),
            choices=names("method R_theta region"),
        ),
        Target(
            "recover conditional",
            lambda **a: recovered(transitions=transitions(), alpha=0.3, n_basis=1, max_steps=2, tail=a),
            dict(CT=1.0, TRT=20.0, method="conditional", region="strata", min_tail=5),
            names("CT TRT"),
            optional=names("CT TRT"),
            choices=names("method region"),
        ),
        Target(
            "recover adam",
            recovered,
            dict(
                transitions=transitions(),
                alpha=0.3,
                n_basis=1,
                engine="adam",
                max_steps=3,
                lr=0.01,
                beta1=0.9,
                beta2=0.999,
                eps=1e-8,
                gradient="direct",
                mixture=0.5,
                n_components=3,
                window=2,
                stop_early=True,
                tolerance=0.002,
                batch_size=10,
                mixing="bernoulli",
            ),
            names("alpha lr beta1 beta2 eps mixture tolerance"),
            choices=names("engine gradient mixing"),
        ),
        Target(
            "recover lbfgs mlp",
            recovered,
            dict(
                transitions=transitions(),
                alpha=0.3,
                coefficients="mlp",
                engine="lbfgs",
                max_steps=1,
                iterations=1,
                history=2,
                tolerance=0.01,
                width=2,
                depth=1,
                n_features=1,
                periodic=True,
                period=6.0,
                origin=0.0,
            ),
            names("alpha tolerance period origin"),
            choices=names("engine coefficients"),
        ),
        *[
            Target(f"Recovery.{k}", getattr(found, k), dict(x=0.5), names("x"), propagates=True)
            for k in ("b", "D_o", "D_f", "alpha_at", "std", "jacobian", "coefficients")
        ],
        *[
            Target(f"Recovery 2.{k}", getattr(plane_recovery(), k), dict(x=[0.5, 0.1]), names("x"), propagates=True)
            for k in ("b", "D_o", "std")
        ],
        Target("Recovery.save", found.save, dict(path=directory() / "a.pt"), finite=False),
        Target(
            "Recovery.load", lambda path: lt.Recovery.load(path).b(0.5), dict(path=found.save(directory() / "b.pt"))
        ),
        Target(
            "solve_value",
            solved,
            dict(
                dynamics_or_recovery=d,
                reward=torch.cos,
                beta=0.5,
                n_modes=17,
                window=None,
                tolerance=1e-6,
                max_modes=65,
            ),
            names("beta tolerance reward"),
            functions=names("reward"),
            optional=names("n_modes window"),
        ),
        Target(
            "solve_value recovery",
            solved,
            dict(dynamics_or_recovery=found, reward=torch.cos, beta=0.5, n_modes=9),
            names("beta reward"),
            functions=names("reward"),
            optional=names("n_modes"),
        ),
        Target(
            "solve_value window",
            solved,
            dict(dynamics_or_recovery=d, reward=torch.cos, beta=0.5, n_modes=5, window=(0.1, 2.0)),
            names("beta reward"),
            functions=names("reward"),
            optional=names("n_modes window"),
        ),
        Target(
            "solve_value 2",
            solved_plane,
            dict(
                dynamics_or_recovery=lt.Dynamics.named("plane"),
                reward=lambda x: torch.cos(x[..., 0]),
                beta=1.0,
                n_modes=8,
                tolerance=1e-3,
                max_modes=16,
            ),
            names("beta tolerance reward"),
            functions=names("reward"),
            optional=names("n_modes"),
        ),
        Target("ValueFunction", V, dict(x=0.5), names("x"), propagates=True),
        Target("ValueFunction.derivative", V.derivative, dict(x=0.5, order=1), names("x"), propagates=True),
        Target("ValueFunction.std", V.std, dict(x=0.5, order=0), names("x"), propagates=True),
        Target(
            "ValueFunction.fractional_laplacian",
            V.fractional_laplacian,
            dict(x=0.5, alpha=0.3),
            names("x alpha"),
            propagates=True,
        ),
        Target("ValueFunction.save", V.save, dict(path=directory() / "v.pt"), finite=False),
        Target(
            "ValueFunction.load", lambda path: lt.ValueFunction.load(path)(0.5), dict(path=V.save(directory() / "w.pt"))
        ),
        Target("PlaneValue", plane_value(), dict(x=[0.5, 0.1]), names("x"), propagates=True),
        Target(
            "CosinePower",
            lambda **a: CosinePower(**a)(0.5),
            dict(power=3, frequency=2, shift=0.0, period=6.0, amplitude=1.0),
            names("shift period amplitude power frequency"),
        ),
        Target("CosinePower(x)", CosinePower(), dict(x=0.5), names("x"), propagates=True),
        Target(
            "Tabulated",
            lambda **a: Tabulated(**a)(0.5),
            dict(x=[0.0, 1.0], r=[1.0, 2.0], period=4.0),
            names("x r period"),
            optional=names("period"),
        ),
        Target("Tabulated(x)", Tabulated([0.0, 1.0], [1.0, 2.0]), dict(x=0.5), names("x"), propagates=True),
        Target(
            "FourierBasis",
            lambda **a: FourierBasis(**a).points(),
            dict(n_modes=5, period=6.0, origin=0.0),
            names("period origin"),
        ),
        Target(
            "Trajectories.from_file", lambda path: lt.Trajectories.from_file(path, dt=1.0).x, dict(path=sample_file())
        ),
        Target(
            "Trajectories.to_file",
            lambda path: lt.Trajectories.from_arrays(PATHS, dt=0.5).to_file(path),
            dict(path=directory() / "t.csv"),
            finite=False,
        ),
    ]
