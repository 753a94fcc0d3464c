"""After mini-batches: Fisher scoring of the last layer of a network, which makes its standard errors.

What the last layer is given is a basis, in which coefficients are linear up to their links. All other layers stay as
mini-batches have left them, and everything that holds for a series holds for the last layer: the evidence of the data
sets the strength of its prior, Fisher scoring converges, later phases follow the exact or the simulated law, and error
bars are those of a series whose functions are given.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from levytorch.coefficients import Head, LinearHead
from levytorch.coefficients.network import parameters_of_features, penalty_groups
from levytorch.likelihood.likelihood import N_BINS
from levytorch.training.engines.base import PASSES, Engine
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.phases.base import Course, Phase
from levytorch.training.phases.maximise import Frozen, Maximise
from levytorch.training.report import Maximum


class LastLayer(Frozen):
    """Fisher scoring under the frozen law, of the parameters of the last layer and of those without a layer."""

    name = "last_layer"

    def __init__(self, course: Course, before: Maximum) -> None:
        self.course, likelihood = course, replace(before.likelihood)
        head = likelihood.head
        for one in (course.problem.head, head):  # they share their parameters
            hold_features(one)
        likelihood.observe(course.data.observed, N_BINS)
        course.engine = FisherEngine(max_steps=PASSES, penalty="evidence" if penalty_groups(head) else "none")
        Maximise.__init__(self, self.name, course.engine, likelihood, before.batch)

    @classmethod
    def begin(cls, course: Course) -> Phase | None:
        head = course.end.likelihood.head
        if not course.engine.last_layer or isinstance(head, LinearHead) or head.columns > 1:
            return None
        return cls(course, course.end)

    @classmethod
    def most_steps(cls, engine: Engine) -> int:
        return PASSES if engine.last_layer else 0


def hold_features(head: Head) -> None:
    """Leave Fisher scoring the last layer of a head, with a prior about zero."""
    head.fixed = parameters_of_features(head)
    layers = {name for group in penalty_groups(head) for name in group}
    head.prior_center = torch.cat(
        [
            torch.zeros(p.numel(), dtype=torch.float64) if name in layers else p.detach().reshape(-1)
            for name, p in head.named_parameters()
        ]
    )
