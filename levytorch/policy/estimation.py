"""V that was estimated from pairs, and knows how; all estimates of one V from one data set.

What the estimates share, a pass over the pairs, a fitted model, is made once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from levytorch.data import Transitions
from levytorch.data.thresholds import threshold_at, threshold_from
from levytorch.errors import InputError
from levytorch.policy.bases import Functions
from levytorch.policy.blocked import Equations, factor_of, n_blocks_of, resampled, shrink
from levytorch.policy.checks import Reward
from levytorch.policy.diffusions import Displacements, displacements, fit_brownian, phibe
from levytorch.policy.lstd import Moments, hybrid, lstd, moments, residuals, rule_influence
from levytorch.policy.model_step import Model, ModelChange, ModelStep
from levytorch.policy.solver import solve_value
from levytorch.policy.value import ValueFunction
from levytorch.training import Recovery, recover
from levytorch.training.resampling import block_influence

LOST = ("beyond TRT", "tail dropped by censoring")  # reasons of Transitions.dropped
TAILS_LOST = "Large jumps are missing from the data, and this estimate does not correct for them."


@dataclass(frozen=True, repr=False)
class DataValue(ValueFunction):
    """V(x) from pairs by `method`, and what it says of itself; `name` is what it is called in tables, `note` what must
    be known to read it.

    strength: of the ridge that blocks left out have asked for; share: of the correction that is kept, of its level and
    of the rest (method "corrected"); n_pairs, n_blocks: the data behind it.
    """

    _format = "levytorch.data_value.2"
    _no_errors = (
        "V.std must have resampled blocks of data, and a model a covariance, found none; estimate V with "
        "n_bootstrap=200."
    )

    method: str = "lstd"
    name: str = "LSTD"
    note: str = ""
    strength: float = 0.0
    share: tuple[float, float] | None = None
    n_pairs: int = 0
    n_blocks: int = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.n_pairs} pairs, n_modes={self.n_modes}, beta={self.beta:g})"

    def describe(self) -> str:
        """What this V is made of, in a few sentences."""
        lines = [f"{self.name}: V from {self.n_pairs:,} pairs in {self.n_blocks} blocks, beta = {self.beta:g}."]
        if self.share is not None:
            lines.append("The correction is shrunk to {:.0%} of its level and {:.0%} of the rest.".format(*self.share))
        if self.method in ("lstd", "phibe", "hybrid", "corrected"):
            lines.append(f"Ridge {self.strength:.2g}, chosen by leaving out blocks.")
        return " ".join(lines + ([self.note] if self.note else []))

    @classmethod
    def _is_sound(cls, content: Mapping[str, Any]) -> bool:
        share = content["share"]
        return (
            super()._is_sound(content)
            and all(isinstance(content[name], str) for name in ("method", "name", "note"))
            and all(type(content[name]) is int for name in ("n_pairs", "n_blocks"))
            and isinstance(content["strength"], float)
            and (share is None or (isinstance(share, tuple) and [type(v) for v in share] == [float, float]))
        )


@dataclass
class Estimation:
    """V of a reward and a discount rate, from pairs, as a sum of `functions`; see `value_from_data`.

    fit: options of `recover`, for a model that is fitted when it is first asked for and none is given.
    """

    transitions: Transitions
    reward: Reward
    beta: float
    functions: Functions
    recovery: Any = None
    order: int = 1
    CT: float | None = None
    n_bootstrap: int = 200
    seed: int = 0
    fit: dict[str, Any] = field(default_factory=dict)

    def value(self, method: str) -> DataValue:
        terminal = self.transitions.terminal
        if method != "lstd" and terminal is not None and not bool(terminal.isnan().all()):
            raise InputError(
                f"method must be 'lstd' for episodes that end in a terminal state, found {method!r}; use it, or "
                "solve_value(..., window=..., exterior=...) with the region in which episodes go on."
            )
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
        note = f"Moments use displacements up to {self.cut:g}; without this limit they do not exist for stable jumps."
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
        found = fit_brownian(self.transitions, self.functions, self.cut)
        note = f"Fitted without jumps to displacements within {self.cut:g} of their median."
        # where there is no data D_o may be anything, which no number of modes resolves
        return self._of_model("brownian", "Brownian only", found, note, n_modes=self.functions.n_modes_of_V)

    def _of_model(self, method: str, name: str, recovery: Any, note: str, n_modes: int | None = None) -> DataValue:
        V = solve_value(recovery, self.reward, self.beta, n_modes=n_modes, **self.functions.solver_options)
        return self._told(V if self.n_bootstrap else replace(V, covariance_factor=None), method, name, note)

    # -- from both ----------------------------------------------------------------------------------------------------
    def hybrid(self) -> DataValue:
        equations = hybrid(self.core, self.model, self.steps)
        return self._solved("hybrid", "hybrid", equations, self._missed, self._rule(equations))

    def corrected(self) -> DataValue:
        K, own = self.functions.n_modes, self.model_influence
        equations = residuals(self.core, self.model, self.steps)
        rule = self._rule(equations)
        found = shrink(equations, own[:, :K] - rule)
        c = self.model.V.clone()
        c[:K] += found.c
        V = self.basis.value(c, self.beta)
        out = self._told(V, "corrected", "model, corrected", self._missed, found.strength, found.share)
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
    def basis(self) -> Functions:
        """Of rewards and of what models expect of them."""
        return self.functions.wider()

    @cached_property
    def r(self) -> Tensor:
        return self.basis.series(self.reward)

    @cached_property
    def moments(self) -> Moments:
        return moments(self.transitions, self.basis, self.functions.n_modes)

    @cached_property
    def displacements(self) -> Displacements:
        return displacements(self.transitions, self.basis, self.functions.n_modes, self.cut, self.order)

    @cached_property
    def core(self) -> Moments:
        """Of the pairs that a model need not add to: all, or those within the threshold of lost tails."""
        if self.threshold is None:
            return self.moments
        beyond = self.transitions.beyond(self.threshold)
        return self.moments.without(moments(self.transitions, self.basis, self.functions.n_modes, beyond))

    @cached_property
    def model_recovery(self) -> Any:
        if self.recovery is not None:
            return self.recovery
        if "alpha" not in self.fit:
            raise InputError(
                'alpha must be given where a model is fitted, found none; add alpha=<number> or alpha="learn", or a '
                "recovery."
            )
        return recover(self.transitions, **(self.functions.fit_options | {"actions": None} | self.fit))

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
        return self.model.change()

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
                far = float(threshold_at(self.threshold, torch.tensor([dt], dtype=torch.float64)))
                center = self._center(dt)
                ends = (center - far, center + far)
            out.append(self.model.step(dt, ends))
        return out

    def _center(self, dt: float) -> float:
        """Of the steps that are taken from the data where tails are lost; in a plane it is the drift of their state."""
        if self.functions.dim > 1:
            return 0.0
        return float(self.transitions.mu) * (1.0 if self.transitions.uniform_dt else dt)

    @cached_property
    def threshold(self) -> Any:
        """On |dx - mu|, beyond which the model's fit has taken steps to be lost; None: nowhere."""
        metrics = getattr(self.model_recovery, "metrics", {})
        if metrics.get("tail_method", "none") == "none":
            return None
        if not self.functions.space.repeats or self.functions.dim > 2:
            raise InputError(
                "the data must be complete for hybrid and corrected on a line and in three dimensions, found a "
                'model that corrects for lost ones; use method="model".'
            )
        if metrics.get("CT_of_dt"):
            return threshold_from(metrics["CT_of_dt"])
        return metrics.get("TRT") if metrics.get("CT") is None else metrics["CT"]

    @property
    def cut(self) -> float:
        """Of moments: CT, or half a period (half the window of a line)."""
        return self.functions.reach if self.CT is None else self.CT

    @property
    def tails_lost(self) -> bool:
        """Whether far jumps are known to be missing."""
        corrected = getattr(self.recovery, "metrics", {}).get("tail_method", "none") != "none"
        return corrected or any(reason in LOST for reason in self.transitions.dropped) or bool(self.fit.get("tail"))

    @property
    def _missed(self) -> str:
        return TAILS_LOST if self.tails_lost and self.threshold is None else ""

    def _solved(
        self, method: str, name: str, equations: Equations, note: str, influence: Tensor | None = None
    ) -> DataValue:
        """influence (B, K): of the blocks on the solution, other than by their own equations."""
        strength = equations.best_strength()
        V = self.basis.value(equations.solve(strength), self.beta)
        out = self._told(V, method, name, note, strength)
        if not self.n_bootstrap:
            return out
        times = resampled(equations.n_blocks, self.n_bootstrap, self.seed)
        moved = None if influence is None else -(times - 1.0) @ influence
        return self._with_errors(out, equations.solve(strength, times, moved))

    def _with_errors(self, V: DataValue, replicas: Tensor) -> DataValue:
        """replicas: (n, K) coefficients of resampled blocks."""
        return replace(V, covariance_factor=self.basis.factor(factor_of(replicas)))

    def _told(
        self,
        V: Any,
        method: str,
        name: str,
        note: str,
        strength: float = 0.0,
        share: tuple[float, float] | None = None,
    ) -> DataValue:
        """V with what is to be said of it."""
        values: dict[str, Any] = {f.name: getattr(V, f.name) for f in fields(V)}
        values |= {"method": method, "name": name, "note": note, "strength": strength, "share": share}
        values |= {"n_pairs": len(self.transitions), "n_blocks": n_blocks_of(self.transitions)}
        return DataValue(**values)
