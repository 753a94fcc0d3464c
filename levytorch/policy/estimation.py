"""All estimates of one V from one data set: what they share, a pass over the pairs, a fitted model, is made once."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import FourierBasis
from levytorch.data import Transitions
from levytorch.data.thresholds import threshold_at, threshold_from
from levytorch.errors import InputError
from levytorch.policy.blocked import Equations, factor_of, resampled, shrink
from levytorch.policy.brownian import fit_brownian
from levytorch.policy.checks import Reward
from levytorch.policy.data_value import DataValue
from levytorch.policy.lstd import hybrid, lstd, residuals, rule_influence
from levytorch.policy.model_step import Model, ModelChange, ModelStep
from levytorch.policy.moments import WIDE, Moments, moments, n_blocks_of, series
from levytorch.policy.phibe import Displacements, displacements, phibe
from levytorch.policy.solver import solve_value
from levytorch.training import Recovery, recover
from levytorch.training.resampling import block_influence

LOST = ("beyond TRT", "tail dropped by censoring")  # reasons of Transitions.dropped
_MODES = 257  # of the V of a fit without jumps
TAILS_LOST = "The data has lost far jumps, and this estimate misses them."


@dataclass
class Estimation:
    """V of a reward and a discount rate, from the pairs of a state on a circle; see `value_from_data`.

    fit: options of `recover`, for a model that is fitted when it is first asked for and none is given.
    """

    transitions: Transitions
    reward: Reward
    beta: float
    recovery: Any = None
    n_basis: int = 21
    period: float = 2 * math.pi
    origin: float = 0.0
    order: int = 1
    CT: float | None = None
    n_bootstrap: int = 200
    seed: int = 0
    fit: dict[str, Any] = field(default_factory=dict)

    def value(self, method: str) -> DataValue:
        return {
            "lstd": self.lstd,
            "phibe": self.phibe,
            "brownian": self.brownian,
            "model": self.model_value,
            "hybrid": self.hybrid,
            "corrected": self.corrected,
        }[method]()

    # -- from the data alone ------------------------------------------------------------------------------------------
    def lstd(self) -> DataValue:
        equations = lstd(self.moments, self.r, self.beta)
        return self._solved("lstd", "LSTD (no model)", equations, TAILS_LOST if self.tails_lost else "")

    def phibe(self) -> DataValue:
        note = f"Moments are of displacements up to {self.cut:g}; of all they do not exist where jumps are stable."
        return self._solved("phibe", f"PhiBE, order {self.order}", phibe(self.displacements, self.r, self.beta), note)

    # -- from a model -------------------------------------------------------------------------------------------------
    def model_value(self) -> DataValue:
        recovery = self.model_recovery
        if self.n_bootstrap and self.parameter_influence is not None:
            B = len(self.parameter_influence)
            covariance = self.parameter_influence.T @ self.parameter_influence * (B / (B - 1))
            recovery = replace(recovery, covariance=covariance)
        return self._of_model("model", "model", recovery, "")

    def brownian(self) -> DataValue:
        found = fit_brownian(self.transitions, FourierBasis(self.n_basis, self.period, self.origin), self.cut)
        note = f"Fitted without jumps to displacements within {self.cut:g} of their median."
        # where there is no data D_o may be anything, which no number of modes resolves
        return self._of_model("brownian", "Brownian only", found, note, n_modes=_MODES)

    def _of_model(self, method: str, name: str, recovery: Any, note: str, n_modes: int | None = None) -> DataValue:
        V = solve_value(recovery, self.reward, self.beta, n_modes=n_modes)
        factor = V.covariance_factor if self.n_bootstrap else None
        out = self._made(method, name, V.coefficients, 0.0, note)
        checks = {"residual": V.residual, "condition": V.condition, "change": V.change, "converged": V.converged}
        return replace(out, covariance_factor=factor, **checks)

    # -- from both ----------------------------------------------------------------------------------------------------
    def hybrid(self) -> DataValue:
        equations = hybrid(self.core, self.model, self.steps)
        return self._solved("hybrid", "hybrid", equations, self._missed, self._rule(equations))

    def corrected(self) -> DataValue:
        K, own = self.n_basis, self.model_influence
        equations = residuals(self.core, self.model, self.steps)
        rule = self._rule(equations)
        found = shrink(equations, own[:, :K] - rule)
        c = self.model.V.clone()
        c[:K] += found.c
        out = replace(self._made("corrected", "model, corrected", c, found.strength, self._missed), share=found.share)
        if not self.n_bootstrap:
            return out
        times = resampled(equations.n_blocks, self.n_bootstrap, self.seed)
        replicas = (times - 1.0) @ own
        moved = replicas[:, :K] - (times - 1.0) @ rule
        replicas[:, :K] += found.keep * equations.solve(found.strength, times, moved)
        return self._with_errors(out, replicas)

    def _rule(self, equations: Equations) -> Tensor:
        """(B, K): what blocks do to the solution through the model's part in the equations."""
        if self.parameter_influence is None:
            return torch.zeros_like(equations.g)
        return rule_influence(self.core, self.model_change, self.steps, self.parameter_influence, equations)

    # -- what they share ----------------------------------------------------------------------------------------------
    @cached_property
    def basis(self) -> FourierBasis:
        """Of rewards and of what models expect of them."""
        return FourierBasis(max(WIDE, 2 * self.n_basis + 1), self.period, self.origin)

    @cached_property
    def r(self) -> Tensor:
        return series(self.basis, self.reward)

    @cached_property
    def moments(self) -> Moments:
        return moments(self.transitions, self.basis, self.n_basis)

    @cached_property
    def displacements(self) -> Displacements:
        return displacements(self.transitions, self.basis, self.n_basis, self.cut, self.order)

    @cached_property
    def core(self) -> Moments:
        """Of the pairs that a model need not add to: all, or those within the threshold of lost tails."""
        if self.threshold is None:
            return self.moments
        beyond = self.transitions.beyond(self.threshold)
        return self.moments.without(moments(self.transitions, self.basis, self.n_basis, beyond))

    @cached_property
    def model_recovery(self) -> Any:
        if self.recovery is not None:
            return self.recovery
        if "alpha" not in self.fit:
            raise InputError(
                'alpha must be given where a model is fitted, found none; add alpha=<number> or alpha="learn", or a '
                "recovery."
            )
        return recover(self.transitions, **(self.asked | {"actions": None} | self.fit))

    @property
    def asked(self) -> dict[str, Any]:
        """What a model that is fitted here is made of, unless the fit's own options say otherwise."""
        return {"n_basis": self.n_basis, "period": self.period, "origin": self.origin}

    @cached_property
    def parameter_influence(self) -> Tensor | None:
        """(B, P): what the model's parameters change by when a block counts once more; None where it is not known."""
        recovery = self.model_recovery
        if not isinstance(recovery, Recovery) or recovery.covariance is None:
            return None
        try:
            found = block_influence(recovery, None if recovery.blocks is not None else self.transitions)
        except InputError:  # a head or a law without
            return None
        return found if len(found) == self.moments.pairs.shape[1] else None

    @cached_property
    def model_influence(self) -> Tensor:
        """(B, n): the same of the model's V; zero for a model that is taken as it is."""
        if self.parameter_influence is None:
            return torch.zeros((self.moments.pairs.shape[1], self.basis.n_modes), dtype=torch.float64)
        return self.parameter_influence @ self.model_change.V.T

    @cached_property
    def model_change(self) -> ModelChange:
        return self.model.change(self.reward)

    @cached_property
    def model(self) -> Model:
        return Model.of(self.model_recovery, self.basis, self.r, self.beta)

    @cached_property
    def steps(self) -> list[ModelStep]:
        """Of the model, one per dt."""
        out = []
        for dt in self.moments.dt.tolist():
            ends = None
            if self.threshold is not None:
                center = float(self.transitions.mu) * (1.0 if self.transitions.uniform_dt else dt)
                far = float(threshold_at(self.threshold, torch.tensor([dt], dtype=torch.float64)))
                ends = (center - far, center + far)
            out.append(self.model.step(dt, ends))
        return out

    @cached_property
    def threshold(self) -> Any:
        """On |dx - mu|, beyond which the model's fit has taken steps to be lost; None: nowhere."""
        told = getattr(self.model_recovery, "metrics", {})
        if told.get("tail_method", "none") == "none":
            return None
        if told.get("CT_of_dt"):
            return threshold_from(told["CT_of_dt"])
        return told.get("TRT") if told.get("CT") is None else told["CT"]

    @property
    def cut(self) -> float:
        """Of moments: CT, or half a period, beyond which a displacement on a circle has no direction."""
        return self.period / 2 if self.CT is None else self.CT

    @property
    def tails_lost(self) -> bool:
        """Whether far jumps are known to be missing."""
        told = getattr(self.recovery, "metrics", {}).get("tail_method", "none") != "none"
        return told or any(reason in LOST for reason in self.transitions.dropped) or bool(self.fit.get("tail"))

    @property
    def _missed(self) -> str:
        return TAILS_LOST if self.tails_lost and self.threshold is None else ""

    def _solved(
        self, method: str, name: str, equations: Equations, note: str, influence: Tensor | None = None
    ) -> DataValue:
        """influence (B, K): of the blocks on the solution, other than by their own equations."""
        strength = equations.best_strength()
        out = self._made(method, name, equations.solve(strength), strength, note)
        if not self.n_bootstrap:
            return out
        times = resampled(equations.n_blocks, self.n_bootstrap, self.seed)
        moved = None if influence is None else -(times - 1.0) @ influence
        return self._with_errors(out, equations.solve(strength, times, moved))

    def _with_errors(self, V: DataValue, replicas: Tensor) -> DataValue:
        """replicas: (n, K) coefficients of resampled blocks."""
        return replace(V, covariance_factor=factor_of(replicas))

    def _made(self, method: str, name: str, c: Tensor, strength: float, note: str) -> DataValue:
        return DataValue(
            coefficients=c,
            period=self.period,
            origin=self.origin,
            beta=self.beta,
            method=method,
            name=name,
            note=note,
            strength=strength,
            n_pairs=len(self.transitions),
            n_blocks=n_blocks_of(self.transitions),
        )
