"""Public names of trajectories, transitions and pools, each with arguments that work."""

from __future__ import annotations

import numpy as np
import torch

import levytorch as lt
from levytorch.data import ct_of_dt
from tests.inputs.targets import (
    PAIRS,
    PATHS,
    Target,
    first_batch,
    make_pairs,
    make_paths,
    names,
    pooled,
    transitions,
)


def targets() -> list[Target]:
    return [
        Target(
            "Trajectories.from_arrays dt",
            make_paths,
            dict(x=PATHS, dt=0.5, max_dt=1.0, ids=["a", "b"], reward=PATHS),
            names("x dt max_dt reward"),
            optional=names("max_dt ids reward"),
        ),
        Target("Trajectories.from_arrays times", make_paths, dict(x=PATHS, times=np.arange(12.0)), names("x times")),
        Target("Trajectories.from_arrays list", make_paths, dict(x=[PATHS[0], PATHS[1, :5]], dt=0.5), names("x dt")),
        Target(
            "Trajectories.transitions",
            lambda **a: lt.Trajectories.from_arrays(PATHS, dt=0.5).transitions(**a).dx,
            dict(max_dt=1.0),
            names("max_dt"),
            optional=names("max_dt"),
        ),
        Target(
            "Transitions",
            make_pairs,
            PAIRS | dict(trajectory=np.zeros(30, int), reward=np.zeros(30), mu=0.0),
            names("x dx dt reward mu trajectory"),
            optional=names("trajectory reward mu"),
        ),
        Target(
            "Transitions.censor",
            lambda **a: transitions().censor(**a).dx,
            dict(TRT=20.0, CT=2.0, drop_tail=0.5, seed=0),
            names("TRT CT drop_tail"),
            functions=names("TRT CT"),
            optional=names("TRT CT"),
        ),
        Target("Transitions[...]", lambda which: transitions()[which].x, dict(which=slice(0, 5))),
        Target(
            "make_pools",
            pooled,
            dict(transitions=transitions(), CT=1.0, TRT=20.0, min_tail=5, alpha=0.3, D_o=4.0),
            names("CT TRT alpha D_o"),
            functions=names("CT TRT"),
            optional=names("CT TRT alpha D_o"),
        ),
        Target(
            "ct_of_dt",
            lambda **a: ct_of_dt(**a)(torch.tensor([0.1], dtype=torch.float64)),
            dict(CT=1.0, dt_ref=0.1, alpha=0.3, D_o=1.0, widths=3.0),
            names("CT dt_ref alpha D_o widths"),
            finite=False,
        ),
        Target(
            "LevyDataModule",
            first_batch,
            dict(
                transitions=transitions(),
                CT=1.0,
                TRT=20.0,
                batch_size=10,
                mixing="stratified",
                full_batch=False,
                chunk_size=100,
                validation=0.2,
                seed=0,
                max_steps=10,
                tail_share=0.1,
                alpha=0.3,
            ),
            names("CT TRT validation tail_share alpha"),
            functions=names("CT TRT"),
            optional=names("CT TRT alpha"),
            choices=names("mixing"),
        ),
    ]
