"""The first phase of a fit: what its settings leave to the data is settled.

Its first step chooses the window of a line, the thresholds, the units and the start. If the number of functions or the
penalty is to be chosen by cross-validation, every further step looks at one candidate. The state of the phase holds
what has been settled, so that a resumed fit does not settle it again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import Head
from levytorch.data import Transitions
from levytorch.data.batches import Batch, FullBatch
from levytorch.data.lattice import Lattice
from levytorch.errors import LevytorchWarning
from levytorch.likelihood.likelihood import Likelihood, mean_coefficients
from levytorch.training.engines.fisher import FisherEngine
from levytorch.training.phases.base import Phase, first_law
from levytorch.training.problem import Problem, all_data, problem_of, restored, settings_for
from levytorch.training.selection import MOST_CANDIDATES, CrossValidation, cross_validation
from levytorch.training.settings import FitSettings
from levytorch.training.start import Fitting

_NO_PAIRS = FullBatch(Batch(*(torch.empty(0, dtype=torch.float64),) * 4), None, 0, 0)


class Prepare(Phase):
    """Poses the problem that the other phases solve: `problem`, None before the first step.

    Args:
        data, settings: what was asked for; settings that cannot be used with the data are refused here.
        fit: for a preliminary fit of constants, if the threshold CT is left to the data.
        start: the parameters to start from.
        problem: one that is posed already; only a cross-validation is left.
    """

    name = "prepare"

    def __init__(
        self,
        data: Transitions | Lattice,
        settings: FitSettings,
        fit: Fitting,
        start: Tensor | None = None,
        problem: Problem | None = None,
    ) -> None:
        self.data, self.settings = data, settings_for(data, settings)
        self.fit, self.start, self.posed = fit, start, problem
        self.engine, self.batch, self.max_steps = FisherEngine(), _NO_PAIRS, MOST_CANDIDATES
        head = self.settings.head
        self.likelihood = Likelihood(head, first_law("frozen", settings.density, head), settings.tail)
        self.problem: Problem | None = None
        self.validation: CrossValidation | None = None
        self.doubts: list[str] = []

    @property
    def counted(self) -> bool:
        return self.problem is not None

    @property
    def finished(self) -> bool:
        return self.problem is not None and not self.problem.settings.left_open

    @property
    def label(self) -> str:
        return "cross-validation" if self.settings.left_open else "preparation"

    def step(self, batch: Batch | FullBatch, seed: int) -> float:
        nll = 0.0
        with self._noting_doubts():
            if self.problem is None:
                self.problem = self.posed or problem_of(self.data, self.settings, self.fit, self.start)
            else:
                nll = self._look_at_a_candidate(self.problem)
                self.steps += 1
            if self.finished:
                self.problem.check_law()
        if self.validation is None:
            self._show(self.problem.head)
        return nll

    def _look_at_a_candidate(self, problem: Problem) -> float:
        validation = self.validation = self.validation or self._next_validation(problem)
        nll = validation.step()
        self._show(validation.shown)
        if validation.finished:
            self.problem, self.validation = validation.chosen(), None
        return nll

    def _next_validation(self, problem: Problem) -> CrossValidation:
        if problem.batches is None:
            problem.batches = all_data(problem)
        return cross_validation(problem, problem.batches.blocks)

    def _show(self, head: Head) -> None:
        self.likelihood = replace(self.likelihood, head=head)

    def entry(self, nll: float) -> dict[str, float]:
        assert self.problem is not None
        validation = self.validation.selection if self.validation is not None else self.problem.selection
        assert validation is not None
        looked = {"prepare/candidate": float(validation.candidates[-1]), "prepare/held_out": validation.held_out(-1)}
        return {"train/nll": nll, **looked, **mean_coefficients(self.head)}

    def update_tcf(self) -> None:
        return

    @contextmanager
    def _noting_doubts(self) -> Iterator[None]:
        """Pass warnings on and keep their text: a resumed fit repeats them, though not the work that led to them."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", LevytorchWarning)
            yield
        for one in caught:
            if issubclass(one.category, LevytorchWarning):
                self.doubts.append(str(one.message))
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)

    def state_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "steps": self.steps,
            "settled": None if self.problem is None else self.problem.settled(),
            "validation": None if self.validation is None else self.validation.state_dict(),
            "doubts": list(self.doubts),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.doubts = int(state["steps"]), list(state["doubts"])
        for sentence in self.doubts:
            warnings.warn(sentence, LevytorchWarning, stacklevel=2)
        if state["settled"] is None:
            return
        self.problem = restored(self.data, self.settings, state["settled"])
        self._show(self.problem.head)
        if state["validation"] is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LevytorchWarning)  # which are among the doubts
                self.validation = self._next_validation(self.problem)
            self.validation.load_state_dict(state["validation"])
            self._show(self.validation.shown)
