"""Decides whether a fit continues under the exact law of a step, and prepares it.

Under law "auto" it is the best that can be had in reasonable time. Where the exact law is available, and the frozen one
is not exact already (constant coefficients), the fit goes on from the frozen law's maximum: to the root of the centered
score (phase "corrected"), and, unless that shows that the frozen law was good enough, under the exact law. Where that
would take too long, it ends under the corrected one; and where even that would, or the exact law is not available, it
continues by simulation (phase "simulated").

The data of such a fit is a lattice; beyond one period log p carries the period of the coefficients, and pairs stay as
they are.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from levytorch.coefficients import Head, LinearHead
from levytorch.coefficients.padded import on_a_cell
from levytorch.coefficients.tangent import TangentHead
from levytorch.data import Pools
from levytorch.data.batches import FullBatch
from levytorch.data.lattice import Lattice, lattice_of
from levytorch.errors import LevytorchWarning
from levytorch.likelihood.corrected import Informations, Strata, informations
from levytorch.likelihood.exact import ExactLaw
from levytorch.likelihood.exact_rule import TOLERANCE
from levytorch.likelihood.frozen import FrozenLaw
from levytorch.likelihood.likelihood import Likelihood
from levytorch.likelihood.network import LayerPenalty, TangentPenalty
from levytorch.likelihood.objective import FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, symmetric_inverse
from levytorch.training.engines.base import Engine
from levytorch.training.phases.base import Course
from levytorch.training.problem import unavailable

SECONDS = 60.0  # that auto may take beyond the frozen fit
ROUNDS = 5  # on the centered score, at most
_EVALUATIONS = {True: 8, False: 80}  # that a linear head, and any other, is expected to take
_FORWARD, _GROWTH = 0.03, 2.5  # seconds of a forward evaluation on 65 points (two cores of 2026), and its power of n
_GRADIENT = 6.0  # what one with gradient costs, in forward evaluations as the corrected law takes them
_INFORMATION = 20.0  # and what the information costs
ACCURATE = 1e-4  # of log p; above it a fit is reported as inaccurate
# On a line the padding limits what far jumps are worth: a coarser grid will do, and accuracy is asked for where nearly
# all steps are
LINE_TOLERANCE, LINE_ACCURATE = 0.1, 1e-3
_FARTHEST = 2.5  # periods within which a lattice may stand for its pairs


def exact_setting(course: Course) -> ExactSetting | None:
    """What phases under the exact law work with; None where the answer under the frozen law stands.

    Decides once what law "auto" means for this fit.
    """
    if course.exact is not None or course.law in ("frozen", "simulated"):
        return course.exact
    maximum = course.end
    head = maximum.likelihood.head  # not the problem's where a coefficient has vanished
    if course.law == "auto" and head.is_constant:
        course.stay_frozen("constant coefficients, for which it is exact")
        return None
    if course.law == "auto" and head.columns > head.dim:
        course.law, course.reason = "simulated", "there is no exact law for covariates and actions on a scale"
        return None
    observed = course.data.observed
    lacking = unavailable(head, observed if isinstance(observed, Lattice) else observed.data)
    if lacking is not None:
        course.law, course.reason = "simulated", f"the exact law must have {lacking.needed}, found {lacking.found}"
        return None
    began = time.perf_counter()
    likelihood, prior = maximum.likelihood, None
    if not isinstance(head, LinearHead):
        objective = maximum.engine.objective(likelihood, maximum.done.optimizer, maximum.batch)
        prior = cast("LayerPenalty | None", objective.penalty)
    setting = ExactSetting(likelihood, course.engine, maximum.observed, began, prior)
    cell = setting.likelihood.head
    if course.law == "auto":
        law, reason = affordable(setting, cell)
        course.law, course.reason = law, reason
        if law == "simulated":
            return None
    course.exact = setting
    return setting


def affordable(setting: ExactSetting, head: Head) -> tuple[str, str]:
    """The law that auto can afford, and why.

    Times are nominal, from the size of the grid alone: the answer must not depend on the load of the machine, or on
    whether kernels were compiled before.
    """
    sizes = [setting.law.rule(head, dt).n for dt in setting.lattice.dt.tolist()]
    one = sum(_FORWARD * (n / 65) ** _GROWTH for n in sizes)
    linear = isinstance(head, LinearHead)
    corrected = one * (ROUNDS + 2 * _INFORMATION)
    exact = one * _GRADIENT * _EVALUATIONS[linear] + (corrected if linear else 0.0)
    if head.window is not None and corrected < SECONDS:
        # where a far jump lands the padding is wrong: the likelihood asks for it, the frozen law's score hardly does
        return "corrected", "a state on a line"
    if exact < SECONDS:
        return "exact", "available" if linear else "available; the bias of the frozen law was not computed"
    too_long = f"the exact law would take about {exact:.0f} s on a grid of {max(sizes)} points, more than {SECONDS:g} s"
    return ("corrected", too_long) if linear and corrected < SECONDS else ("simulated", too_long)


class ExactSetting:
    """The data of a fit as a lattice, the frozen law's likelihood of it, and the exact law for the head as it is."""

    def __init__(
        self,
        likelihood: Likelihood,
        engine: Engine,
        data: Pools | Lattice,
        began: float,
        prior: LayerPenalty | None = None,
    ) -> None:
        """likelihood: of the frozen law, whose head is the one that will move; began: by `time.perf_counter`.

        A head that is not linear moves along its tangent, and a phase is repeated from the next one where that turns;
        prior: that of its weights.
        """
        self.began, self.n_bins = began, engine.n_bins
        self.network = None if isinstance(likelihood.head, LinearHead) else likelihood.head
        self.prior = prior
        self.penalty: Any = None  # of the tangent, once there is one
        self.began_at = likelihood.head.flat()
        head = on_a_cell(likelihood.head)
        self.lattice = _lattice(data, head)
        self.likelihood = Likelihood(head, likelihood.law, likelihood.tail, likelihood.correction)
        self.likelihood.observe(self.lattice, engine.n_bins)
        if self.network is not None:
            self._take_tangent()
        self.strata = Strata.of(likelihood.tail, self.lattice)
        self.tolerance, self.accurate = (
            (TOLERANCE, ACCURATE) if head.window is None else (LINE_TOLERANCE, LINE_ACCURATE)
        )
        self.settle()

    # -- networks -----------------------------------------------------------------------------------------------------
    def _take_tangent(self) -> None:
        """The tangent of the network where it is becomes the head that moves."""
        assert self.network is not None
        at, prior = self.likelihood.bins.x, self.prior
        on_line = self.network.clamped(at)
        precision, center = (None, None) if prior is None else (prior.full_precision(), prior.center)
        tangent = cast(TangentHead, on_a_cell(TangentHead(self.network, on_line, precision, center)))
        self.likelihood.head = tangent
        if prior is not None:
            self.penalty = TangentPenalty(tangent, prior.strengths)

    def follow(self) -> None:
        """Give the network the parameters that its tangent has reached."""
        if self.network is not None:
            self.network.set_flat(self.tangent.parameters_of_head())

    def turn(self) -> None:
        """Continue along the tangent at the present network."""
        self.follow()
        self._take_tangent()
        self.settle()

    def leave(self) -> None:
        """Give the network the parameters it came with."""
        if self.network is not None:
            self.network.set_flat(self.began_at)

    @property
    def tangent(self) -> TangentHead:
        head = self.likelihood.head
        assert isinstance(head, TangentHead)
        return head

    @torch.no_grad()
    def turned(self, information: Tensor) -> float:
        """How far the network is from its tangent, in standard errors, where that is farthest; 0 for a linear head.

        information: of all pairs, in the coordinates of the tangent.
        """
        if self.network is None:
            return 0.0
        now = self.network.flat()
        self.follow()
        x = self.network.grid(128)
        covariance = symmetric_inverse(information + torch.diag(self.tangent.prior_precision))
        farthest = 0.0
        for one, other, J in zip(self.network(x)[:3], self.tangent(x)[:3], self.tangent.jacobian(x)[:3]):
            std = ((J @ covariance) * J).sum(-1).clamp(min=1e-300).sqrt()
            farthest = max(farthest, float(((one - other).abs() / std).max()))
        self.network.set_flat(now)
        return farthest

    @cached_property
    def batch(self) -> FullBatch:
        return self.lattice.full_batch()

    @property
    def frozen(self) -> FrozenLaw:
        return self.likelihood.frozen_law

    def around(self, penalty: RoughnessPenalty | None) -> FullBatchObjective:
        """The frozen law's objective, with a penalty that has been found already."""
        objective = self.likelihood.objective(self.batch)
        objective.penalty = penalty
        return objective

    def settle(self) -> None:
        """Choose the rules for the head as it now is."""
        self.law = ExactLaw(self.tolerance).fixed(self.likelihood.head, torch.from_numpy(self.lattice.dt))

    def error(self) -> float:
        """Of log p, against a finer rule."""
        return max(self.law.accuracy(self.likelihood.head, dt) for dt in self.lattice.dt.tolist())

    def informations(self, R_theta: float | None) -> Informations:
        return informations(self.likelihood.head, self.frozen, self.law, self.strata, R_theta)

    def exact_likelihood(self) -> Likelihood:
        """That of the exact law."""
        masses = self.likelihood.masses
        masses = None if masses is None else replace(masses, law=self.law)
        return replace(self.likelihood, law=self.law, masses=masses)

    def metrics(self, law: str, error: float, engine: Engine) -> dict[str, Any]:
        """What every such fit reports; warns of a rule that is not fine enough."""
        if not error < self.accurate:
            smoothing = ", or engine evidence" if getattr(engine, "penalty", None) == "none" else ""
            warnings.warn(
                f"log p must be accurate to {self.accurate:g} under the exact law, found {error:.1g} at the solution "
                f"against a finer grid; use fewer basis functions{smoothing}.",
                LevytorchWarning,
                stacklevel=3,
            )
        return {"law": law, "law/grid": max(r.n for r in self.law.rules.values()), "law/log_p_error": error}


def _lattice(data: Pools | Lattice, head: Head) -> Lattice:
    if isinstance(data, Pools):
        return lattice_of(data, head.period, head.origin, reach=head.period)
    if data.reach > _FARTHEST * head.period and (data.TRT > _FARTHEST * head.period).any():
        warnings.warn(
            f"a lattice for the exact law must keep pairs beyond a period of {head.period:g} as they are, found reach "
            f"{data.reach:g}, which may move coefficients by a standard error or so; make it with "
            f"reach={head.period:g}.",
            LevytorchWarning,
            stacklevel=3,
        )
    return data
