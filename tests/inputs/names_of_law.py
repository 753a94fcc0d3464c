"""Public names of the law, dynamics and simulation, each with arguments that work."""

from __future__ import annotations

import levytorch as lt
from tests.inputs.targets import (
    LAW,
    STEP,
    STEP_NUMBERS,
    Target,
    dynamics_simulated,
    dynamics_values,
    names,
    sampled,
    simulated,
    system,
)

TEMPERED = STEP | dict(tempering=0.2)


def targets() -> list[Target]:
    step = lt.LevyStep(**LAW)
    d = system()
    return [
        Target("log_density", lt.log_density, STEP | dict(dim=1, method="auto"), STEP_NUMBERS, choices=names("method")),
        Target(
            "log_density contour",
            lt.log_density,
            STEP | dict(method="contour"),
            STEP_NUMBERS,
            choices=names("method"),
        ),
        Target("log_density table", lt.log_density, STEP | dict(method="table"), STEP_NUMBERS, choices=names("method")),
        Target(
            "log_density windowed",
            lt.log_density,
            STEP | dict(method="windowed"),
            STEP_NUMBERS,
            choices=names("method"),
        ),
        Target("log_density tempered", lt.log_density, TEMPERED, STEP_NUMBERS | names("tempering")),
        Target(
            "log_density tempered 3",
            lt.log_density,
            TEMPERED | dict(displacement=[0.5, 0.1, 1.0], dim=3),
            STEP_NUMBERS | names("tempering"),
        ),
        Target("score tempered", lt.score, TEMPERED | dict(wrt_alpha=True), STEP_NUMBERS | names("tempering")),
        Target(
            "tail_probability tempered",
            lt.tail_probability,
            dict(threshold=8.0, center=0.125, **LAW, tempering=0.2),
            names("threshold center b D_o D_f alpha dt tempering"),
        ),
        Target(
            "LevyStep tempered",
            lambda **a: lt.LevyStep(**a).log_prob(0.5),
            LAW | dict(tempering=0.2),
            names("b D_o D_f alpha dt tempering"),
        ),
        Target(
            "LevyStep.sample tempered",
            sampled,
            LAW | dict(sample_shape=(3,), tempering=0.2),
            names("b D_o D_f alpha dt tempering"),
            finite=False,
        ),
        Target(
            "log_density 2", lt.log_density, STEP | dict(displacement=[0.5, 0.1], b=[1.0, 2.0], dim=2), STEP_NUMBERS
        ),
        Target("log_density 3", lt.log_density, STEP | dict(displacement=[0.5, 0.1, 1.0], dim=3), STEP_NUMBERS),
        Target(
            "score",
            lt.score,
            STEP | dict(dim=1, method="auto", wrt_alpha=True),
            STEP_NUMBERS,
            choices=names("method"),
        ),
        Target("score 2", lt.score, STEP | dict(displacement=[0.5, 0.1], dim=2), STEP_NUMBERS),
        Target(
            "tail_probability",
            lt.tail_probability,
            dict(threshold=8.0, center=0.125, **LAW, dim=1),
            names("threshold center b D_o D_f alpha dt"),
        ),
        Target(
            "tail_probability 2",
            lt.tail_probability,
            dict(threshold=8.0, center=[0.125, 0.0], **LAW, dim=2),
            names("threshold center b D_o D_f alpha dt"),
        ),
        Target(
            "cutting_threshold",
            lt.cutting_threshold,
            dict(alpha=0.3, D_f=3.0, dt=0.025, mass=0.98, D_o=4.0, dim=1),
            names("alpha D_f dt mass D_o"),
            optional=names("D_o"),
        ),
        Target("LevyStep", lambda **a: lt.LevyStep(**a).log_prob(0.5), LAW | dict(dim=1), names("b D_o D_f alpha dt")),
        Target("LevyStep.sample", sampled, LAW | dict(sample_shape=(3,)), names("b D_o D_f alpha dt"), finite=False),
        Target("LevyStep.log_prob", step.log_prob, dict(value=0.5), names("value")),
        Target("LevyStep.cdf", step.cdf, dict(value=0.5), names("value")),
        Target("LevyStep.expand", lambda batch_shape: step.expand(batch_shape).D_o, dict(batch_shape=(2,))),
        Target(
            "Dynamics",
            dynamics_values,
            dict(b=1.0, D_o=1.0, D_f=0.5, alpha=0.4, period=6.0, dim=1, origin=0.5, tempering=0.3),
            names("b D_o D_f alpha period origin tempering"),
            functions=names("b D_o D_f alpha"),
            optional=names("period"),
        ),
        Target(
            "Dynamics 2",
            dynamics_values,
            dict(b=[1.0, 2.0], D_o=1.0, D_f=0.5, alpha=0.4, period=[6.0, 5.0], dim=2, origin=0.5),
            names("b D_o D_f alpha period origin"),
            functions=names("b D_o D_f alpha"),
            optional=names("period"),
        ),
        Target(
            "Dynamics simulated",
            dynamics_simulated,
            dict(b=1.0, D_o=1.0, D_f=0.5, alpha=0.4),
            names("b D_o D_f alpha"),
            functions=names("b D_o D_f alpha"),
        ),
        Target(
            "Dynamics.named",
            lambda **a: lt.Dynamics.named(**a).b(0.5),
            dict(name="variable", alpha=0.3),
            names("alpha"),
            functions=names("alpha"),
            optional=names("alpha"),
            choices=names("name"),
        ),
        *[
            Target(f"Dynamics.{k}", getattr(d, k), dict(x=0.5), names("x"), propagates=True)
            for k in ("b", "D_o", "alpha_at", "wrap")
        ],
        Target("Dynamics.points", d.points, dict(n=8)),
        Target(
            "simulate",
            simulated,
            dict(
                dynamics=d,
                n_trajectories=3,
                n_steps=4,
                dt=0.1,
                substeps=2,
                x0=0.5,
                seed=0,
                sampler="euler",
                progress=False,
            ),
            names("dt x0"),
            optional=names("x0 progress"),
            choices=names("sampler"),
            finite=False,
        ),
    ]
