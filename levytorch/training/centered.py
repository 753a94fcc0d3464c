"""Standard errors from blocks for fits under the exact law of a step, corrected or exact.

The influence of a block is that of its centered scores (`likelihood.corrected`): the root of their sum is the corrected
fit itself, and they stand for the exact law's scores as well as the frozen law's can. Refits are of first order.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from levytorch.coefficients import LinearHead
from levytorch.likelihood.corrected import Strata, expected_by_state
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_information import informations
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.penalty import RoughnessPenalty, Strength, symmetric_inverse
from levytorch.training.blocks import Blocks
from levytorch.training.reweighting import Refitted, block_sandwich, block_scores


class Centered:
    """What `Reweighting` is for the frozen law. tcf: of the fit."""

    def __init__(self, likelihood: Likelihood, blocks: Blocks, strengths: Strength, tcf: float) -> None:
        head, law = likelihood.head, likelihood.law
        assert isinstance(head, LinearHead)
        assert isinstance(law, FrozenLaw)
        assert likelihood.bins is not None
        self.head, self.blocks, self.likelihood, self.tcf = copy.deepcopy(head), blocks, likelihood, tcf
        self.theta = head.flat()
        main = blocks.counts(likelihood.bins, "main")
        tail = blocks.counts(likelihood.bins, "tail") if blocks.tail is not None else torch.zeros_like(main)
        strata = Strata.on(likelihood.bins, likelihood.masses, likelihood.tail, main.sum(0), tail.sum(0))
        exact = ExactLaw()
        rates, R_theta = expected_by_state(head, law, exact, strata)
        scores = block_scores(head, law, blocks, blocks.main)
        if strata.split and blocks.tail is not None:
            beyond = block_scores(head, law, blocks, blocks.tail)
            parts = {"core": scores - beyond - (main - tail) @ rates["core"], "tail": beyond - tail @ rates["tail"]}
        else:
            parts = {"main": scores - main @ rates["main"]}
        u = sum((strata.scale(name, R_theta) * part for name, part in parts.items()), start=torch.zeros_like(scores))
        own = informations(head, law, exact, strata, R_theta).corrected
        turn = own.slope.T @ symmetric_inverse(own.variance)
        penalty = RoughnessPenalty(head, strengths)
        inverse = symmetric_inverse(strata.n * turn @ own.slope + torch.diag(penalty.precision()))
        share = blocks.pairs[0] / blocks.pairs[0].sum()
        self.influence: Tensor = (u - share[:, None] * u.sum(0)) @ turn.T @ inverse

    @property
    def covariance(self) -> Tensor:
        """(P, P) sandwich."""
        return block_sandwich(self.influence, self.blocks)

    def refit(self, times: Tensor) -> Refitted:
        """The fit in which block k counts times[k] times."""
        return Refitted(self.theta + (times - 1.0) @ self.influence, self.tcf, float(times @ self.blocks.pairs[0]))
