"""The full-batch objective of a head that is not linear, seen from the tangent at every point that is evaluated.

Sums over the pairs are the same as for a linear head: they are made in the predictors. Gradients are kept in all
parameters of the head; values, gradients and matrices that an engine is given are in the coordinates of the tangent at
the evaluation they belong to (coefficients/tangent.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from levytorch.coefficients import Head, LinearHead
from levytorch.coefficients.network import parameters_of_features, penalty_groups
from levytorch.coefficients.tangent import TangentHead, predictors
from levytorch.errors import InputError
from levytorch.law.threads import one_thread
from levytorch.likelihood.objective import Evaluation, FullBatchObjective
from levytorch.likelihood.penalty import RoughnessPenalty, Strength, check_strength, symmetric_inverse

_START = 1.0  # weights of order one
_RANGE = (1e-4, 1e8)
_FASTEST = 5.0  # factor of a strength in one update


class Frame(TangentHead):
    """The tangent at one evaluation, whose gradients are those of the head in all of its parameters."""

    def most_states(self, numbers: int) -> int:
        """No design is made: `gathered` goes backward through the network."""
        return 1 << 14

    def gathered(self, per_state: Tensor, design: Any) -> Tensor:
        parameters = list(self.of.parameters())
        with one_thread(), torch.enable_grad():
            eta = predictors(self, design.x)
            found = torch.autograd.grad(eta, parameters, per_state.expand_as(eta), allow_unused=True)
        return _flat(parameters, found)

    def gradient_of(self, function: Callable[[Head], Tensor]) -> tuple[float, Tensor]:
        parameters = list(self.of.parameters())
        with torch.enable_grad():
            value = function(self.of)
            found = torch.autograd.grad(value, parameters, allow_unused=True)
        return float(value.detach()), _flat(parameters, found)

    def in_coordinates(self, gradient: Tensor) -> Tensor:
        return self.pulled(gradient)


def _flat(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if g is None else g).reshape(-1) for p, g in zip(parameters, gradients)])


def check_prior(head: Head, strength: Any) -> None:
    """Refuse a penalty that only the waves of a series have."""
    if strength == "harmonics":
        raise InputError(
            f'penalty "harmonics" must have a Fourier head, found a {type(head).__name__}; use "evidence".'
        )


class LayerPenalty:
    """A normal prior with mean zero on the weights of a network, one precision (strength) per layer.

    strength: "none", "evidence", a number for all layers, or one for each. By evidence (MacKay), with gamma the number
    of directions of a layer that the data determine,  strength = gamma / |weights|^2.
    """

    by_harmonic = False

    def __init__(self, head: Head, strength: Any = "none") -> None:
        strength = check_strength(strength)
        check_prior(head, strength)
        self.adaptive = strength == "evidence"
        names = [name for name, _ in head.named_parameters()]
        groups = [group for group in penalty_groups(head) if head.fixed.isdisjoint(group)]
        wanted = [] if isinstance(strength, str) else strength if isinstance(strength, list) else [strength]
        if len(wanted) not in (0, 1, len(groups)):
            raise InputError(
                f"penalty must be one number or {len(groups)}, one for each layer, found {len(wanted)}; give as many."
            )
        number = {name: k for k, group in enumerate(groups) for name in group}
        sizes = [p.numel() for p in head.parameters()]
        which = torch.tensor([number.get(name, -1) for name in names])
        self.group = which.repeat_interleave(torch.tensor(sizes))
        start = [_START if self.adaptive else 0.0] * len(groups)
        if wanted:
            start = wanted * (len(groups) if len(wanted) == 1 else 1)
        self.strengths = torch.tensor(start, dtype=torch.float64)
        self.first = self.strengths.clone()
        self.center = head.flat() if head.prior_center is None else head.prior_center
        self.frame: TangentHead | None = None

    @property
    def active(self) -> bool:
        return len(self.strengths) > 0 and (self.adaptive or bool((self.strengths > 0).any()))

    def full_precision(self) -> Tensor | None:
        """(P,) of the prior of all parameters of the head."""
        if not self.active:
            return None
        return torch.where(self.group >= 0, self.strengths[self.group.clamp(min=0)], 0.0)

    def precision(self) -> Tensor:
        """The same in the coordinates of the present tangent, (r,)."""
        assert self.frame is not None
        return self.frame.prior_precision

    def tighten(self) -> None:
        """Far from a solution strengths say nothing yet."""
        self.strengths = torch.maximum(self.strengths, self.first)

    def state(self) -> dict[str, Tensor]:
        return {"strengths": self.strengths.clone()}

    def restore(self, state: dict[str, Tensor]) -> None:
        self.strengths = state["strengths"].clone()

    def determined(self, information: Tensor) -> float:
        shrunk = self.precision() * symmetric_inverse(information).diagonal()
        return float(len(shrunk) - shrunk.clamp(max=1.0).sum())

    def widened(self, covariance: Tensor, theta: Tensor, information: Tensor) -> Tensor:
        return covariance

    def left_out(self) -> list[float]:
        assert self.frame is not None
        return [0.0] * self.frame.n_predictors

    def update(self, theta: Tensor, information: Tensor) -> float:
        """One step of the fixed point, with the data's information in the coordinates of the tangent at theta.

        Returns how far it is from one: the largest slope of twice the log evidence in the logarithm of a strength.
        """
        if not self.adaptive or not self.active:
            return 0.0
        frame = self.frame
        assert frame is not None
        prior = frame.prior_precision
        posterior = symmetric_inverse(information + torch.diag(prior))
        gained = torch.diag(prior) - posterior * prior.outer(prior)
        before = self.full_precision()
        assert before is not None
        determined = torch.zeros_like(before)
        for members, Q, part in frame.components:
            V = Q * before[members].sqrt().unsqueeze(1)
            determined[members] = ((V @ gained[part, part]) * V).sum(1)
        at, known = frame.parameters_of_head(theta) - self.center, self.group >= 0
        zero = torch.zeros_like(self.strengths)
        gamma = zero.index_add(0, self.group[known], determined[known]).clamp(min=1e-6)
        size = zero.index_add(0, self.group[known], at[known] ** 2).clamp(min=1e-30)
        old = self.strengths
        target = (gamma / size).clamp(*_RANGE)
        change = float((size * (target - old)).abs().max())
        self.strengths = torch.minimum(torch.maximum(target, old / _FASTEST), old * _FASTEST)
        return change


class TangentPenalty:
    """The prior of a network in the coordinates of a tangent at which it stays, its strengths as they were found."""

    adaptive, by_harmonic = False, False

    def __init__(self, head: TangentHead, strengths: Tensor) -> None:
        self.head, self.strengths = head, strengths

    @property
    def active(self) -> bool:
        return bool((self.head.prior_precision > 0).any())

    def precision(self) -> Tensor:
        return self.head.prior_precision

    def update(self, theta: Tensor, information: Tensor) -> float:
        return 0.0

    def state(self) -> dict[str, Tensor]:
        return {"strengths": self.strengths.clone()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Strengths do not change."""

    def tighten(self) -> None:
        """Strengths do not change."""

    def determined(self, information: Tensor) -> float:
        shrunk = self.precision() * symmetric_inverse(information).diagonal()
        return float(len(shrunk) - shrunk.clamp(max=1.0).sum())

    def widened(self, covariance: Tensor, theta: Tensor, information: Tensor) -> Tensor:
        return covariance

    def left_out(self) -> list[float]:
        return [0.0] * self.head.n_predictors


def prior_of(head: Head, strength: Strength) -> Any:
    """The penalty of a head: a roughness, a prior on the weights of a network, or that in the coordinates it has."""
    if isinstance(head, TangentHead):
        return TangentPenalty(head, torch.empty(0))
    return RoughnessPenalty(head, strength) if isinstance(head, LinearHead) else LayerPenalty(head, strength)


@dataclass
class NetworkObjective(FullBatchObjective):
    """`network` is what moves; `head` its tangent at the evaluation that was looked at last."""

    network: Any = None
    moving = True

    def __post_init__(self) -> None:
        self.network = self.head
        self._fixed = self.network.fixed
        self._frame(self._tangent())

    def hold_features(self, held: bool) -> None:
        """Whether tangents of later evaluations move the last layer alone."""
        self.network.fixed = self._fixed | parameters_of_features(self.network) if held else self._fixed

    @property
    def has_features(self) -> bool:
        """Whether there is a layer before the last one that moves."""
        return not parameters_of_features(self.network) <= self._fixed

    @property
    def prior(self) -> LayerPenalty | None:
        """The penalty, which is a prior on the weights of the network."""
        return cast("LayerPenalty | None", self.penalty)

    @property
    def tangent(self) -> Frame:
        """The head that the sums are made for."""
        return cast(Frame, self.head)

    def _tangent(self) -> Frame:
        precision = None if self.prior is None else self.prior.full_precision()
        center = None if self.prior is None else self.prior.center
        with one_thread():
            return Frame(self.network, self.bins.x, precision, center)

    def _frame(self, frame: TangentHead) -> None:
        self.head, self.design = frame, frame.design(self.bins.x)
        if self.prior is not None:
            self.prior.frame = frame

    def evaluate(self) -> Evaluation:
        """One pass at the parameters of the network, from its tangent there."""
        frame = self._tangent()
        self._frame(frame)
        ev = super().evaluate()
        ev.base, ev.frame = frame.base, frame
        return ev

    def look_from(self, ev: Evaluation) -> None:
        if ev.frame is None:  # of a checkpoint
            assert ev.base is not None
            now = self.network.flat()
            self.network.set_flat(ev.base)
            ev.frame = self._tangent()
            self.network.set_flat(now)
            ev.theta = ev.frame.z0.clone()
        if ev.frame is not self.head:
            self._frame(ev.frame)

    def secant(self, before: Evaluation, after: Evaluation) -> tuple[Tensor, Tensor]:
        """In all parameters of the network."""
        assert before.base is not None
        assert after.base is not None
        fallen = self._full_gradient(before, after.tcf) - self._full_gradient(after, after.tcf)
        return after.base - before.base, fallen

    def seen_from(self, ev: Evaluation, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        self.look_from(ev)
        step, fallen = pair
        return self.tangent.coordinates_of(step), self.tangent.in_coordinates(fallen)

    def _full_gradient(self, ev: Evaluation, tcf: float) -> Tensor:
        """(P,)."""
        self.look_from(ev)
        assert ev.base is not None
        g = torch.zeros_like(ev.base)
        for w, s in self._weighted_sums(ev, tcf):
            g += w * s.gradient
        for counts, _, q in self.subtracted(ev):
            g -= self.head.gathered(q * counts, self.design) / self.n
        prior, precision = self.prior, None if self.prior is None else self.prior.full_precision()
        return g if prior is None or precision is None else g - precision * (ev.base - prior.center) / self.n

    def is_at(self, ev: Evaluation) -> bool:
        return ev.base is not None and torch.equal(ev.base, self.network.flat())

    def place(self, ev: Evaluation, theta: Tensor) -> None:
        self.look_from(ev)
        self.network.set_flat(self.tangent.parameters_of_head(theta))

    def renewed(self, ev: Evaluation) -> None:
        """Where the strengths of the prior have changed: the tangent that belongs to them, at the same point."""
        assert ev.frame is not None
        precision = None if self.prior is None else self.prior.full_precision()
        ev.frame = ev.frame.with_precision(precision)
        ev.theta = ev.frame.z0.clone()
        self._frame(ev.frame)

    def precision(self) -> Tensor:
        return self.tangent.prior_precision
