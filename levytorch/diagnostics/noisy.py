"""The stable law with observation noise, for the table of laws: fitted to the same pairs by scoring on the filter."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.diagnostics.refit import Fitted
from levytorch.likelihood.filter import Chains, NoisyLikelihood, scan
from levytorch.likelihood.penalty import guarded_solve

NOISY = "stable, noise"
_FOLLOWING = 0.5  # of the pairs
_STEPS, _DONE, _HALVINGS, _FARTHEST = 10, 0.05, 5, 0.7


@dataclass
class NoisyFit:
    """A head and s at the maximum, under a prior of this precision; information: of theta and log s, with the prior."""

    filter: NoisyLikelihood
    s: float
    information: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, fitted: Fitted, pairs: Transitions) -> NoisyFit | None:
        """From the fit without noise; None where too few pairs have the one before them."""
        head, objective = copy.deepcopy(fitted.head), fitted.objective
        chains = Chains.of(pairs, head.period)
        if chains.neighbours < _FOLLOWING * len(chains):
            return None
        s = scan(head, objective.law, chains)
        found = NoisyLikelihood(head, objective.law, chains, 4.0 * max(s, chains.noise_of_steps()))
        prior = torch.cat([objective.precision(), torch.zeros(1, dtype=torch.float64)])
        information = torch.diag(prior)

        def value(log_p: float) -> float:
            return log_p - 0.5 * float((prior[:-1] * head.flat() ** 2).sum())

        for _ in range(_STEPS):
            theta, at = head.flat(), found.evaluate(s)
            information = found.information(s)[0] + torch.diag(prior)
            slope = at.slopes.clone()
            slope[:-1] -= prior[:-1] * theta
            step = guarded_solve(information, slope, "the law with noise")
            before = value(at.log_p)
            if float(slope @ step) < _DONE:
                break
            share = 1.0 / max(1.0, abs(float(step[-1])) / _FARTHEST)
            for _ in range(_HALVINGS):
                head.set_flat(theta + share * step[:-1])
                moved = s * math.exp(share * float(step[-1]))
                if value(found.value(moved)) > before:
                    break
                share *= 0.3
            else:
                head.set_flat(theta)
                break
            s = moved
        return cls(found, s, information)

    @property
    def theta(self) -> Tensor:
        """Parameters of the head, and log s."""
        return torch.cat([self.filter.head.flat(), torch.tensor([math.log(self.s)], dtype=torch.float64)])

    def log_p(self) -> Tensor:
        """Of every observation given those before, (n,)."""
        return self.filter.steps(self.s)

    def log_p_at(self, move: Tensor) -> Tensor:
        """The same after a move of the parameters; that of log s is limited, since noise near zero leaves it open."""
        head = self.filter.head
        theta = head.flat()
        head.set_flat(theta + move[:-1])
        factor = math.exp(min(max(float(move[-1]), -_FARTHEST), _FARTHEST))
        try:
            return self.filter.steps(min(self.s * factor, self.filter.reach))
        finally:
            head.set_flat(theta)

    def score_of(self, pairs: Tensor) -> Tensor:
        """(P + 1,): of the chains whose first pair is one of these."""
        chains = self.filter.chains
        chosen = np.flatnonzero(pairs.numpy()[chains.begins])
        some = copy.copy(self.filter)
        some.chains = Chains(chains.x, chains.dx, chains.dt, chains.begins[chosen], chains.ends[chosen])
        return some.evaluate(self.s).slopes
