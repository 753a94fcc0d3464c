"""Lost tails: nothing done, the paper's tail correction factor (TCF), or the conditional likelihood.

`TailMasses`, tail and kept masses over the state bins and how they move with the parameters, is the model's side of
Algorithm E.6 (R_theta and the TCF) and of the conditional likelihood (log of the kept mass); both need P(|dx - mu| >
threshold) at every bin, never per sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from levytorch.coefficients import Coefficients, Head, LinearHead
from levytorch.convert import choice, known_keys, real_number, shown, whole_number
from levytorch.errors import InputError, LevytorchWarning
from levytorch.likelihood.frozen import FrozenLaw, to_predictors
from levytorch.likelihood.laws import Law
from levytorch.likelihood.sums import StateBins
from levytorch.spaces.states import lengths_of

METHODS = ("tcf", "conditional", "none")
REGIONS = ("auto", "CT", "TRT", "strata")


@dataclass(frozen=True)
class TailSettings:
    """How to treat tails that the data has lost.

    CT, TRT: the paper's cutting and removal thresholds on |dx - mu|; CT = "auto": Appendix A from a preliminary fit.
    method: "tcf" (Algorithm E.6), "conditional" (log p minus log of the kept mass), "none".
    R_theta: tail mass averaged over the observed "states", or at the "mean" coefficients (the paper).
    start: first step at which the TCF is updated (adam: 4000, the paper; full-batch engines: every pass).
    region: what the conditional likelihood conditions on: |dx - mu| < "CT", < "TRT", or "strata" (below CT and between
        CT and TRT each on their own, right whatever share of the second was dropped); "auto" looks at the counts.
    learned_alpha: "refuse" the TCF when alpha is learned, or "allow" it with a warning (the paper, section 4.3).
    """

    method: str = "none"
    CT: float | str | None = None
    TRT: float | None = None
    R_theta: str = "states"
    start: int = 4000
    region: str = "auto"
    min_tail: int = 100
    mass: float = 0.98
    learned_alpha: str = "refuse"

    def __post_init__(self) -> None:
        choice("tail.method", self.method, METHODS)
        choice("tail.R_theta", self.R_theta, ("states", "mean"))
        choice("tail.region", self.region, REGIONS)
        choice("tail.learned_alpha", self.learned_alpha, ("refuse", "allow"))
        whole_number("tail.start", self.start, 0)
        whole_number("tail.min_tail", self.min_tail, 1)
        for name in ("CT", "TRT"):
            value = getattr(self, name)
            if value is None or (name == "CT" and isinstance(value, str) and value == "auto"):
                continue
            number = real_number(f"tail.{name}", value, "pass a threshold on |dx - mu|")
            if number < 1e-150:
                raise InputError(
                    f"tail.{name} must be a positive number, found {value!r}; it is a threshold on |dx - mu|."
                )
            object.__setattr__(self, name, number)
        if isinstance(self.CT, (int, float)) and self.TRT is not None and self.CT >= self.TRT:
            raise InputError(
                f"CT must be below TRT, found CT {self.CT} and TRT {self.TRT}; the tail pool lies between."
            )
        object.__setattr__(self, "mass", real_number("tail.mass", self.mass, "the paper takes 0.98"))
        if not 0.5 < self.mass < 1:
            raise InputError(f"tail.mass must lie in (0.5, 1), found {self.mass}; the paper takes 0.98.")
        if self.method == "conditional" and self.CT is None and self.TRT is None:
            raise InputError(
                "CT or TRT must be given for the conditional likelihood, found neither; give tail.TRT, beyond which "
                "steps were removed, or tail.CT, beyond which some were lost."
            )

    @property
    def active(self) -> bool:
        return self.method != "none"

    @property
    def conditions_on(self) -> str:
        """What a conditional likelihood conditions on; "auto" starts from the strata, which are always right."""
        return "TRT" if self.CT is None or self.region == "TRT" else "strata"


class TailCorrection:
    """The tail correction factor of one fit (Algorithm E.6): one object, and nobody keeps a copy.

    The engine's loop or the Lightning callback updates it after a step, the data module mixes main and tail pool by it.
    """

    def __init__(self) -> None:
        self.tcf = 0.0
        self.R_theta = float("nan")

    def update(self, R_theta: float, R_sample: float) -> None:
        """Line 5 of Algorithm E.6: R_theta is the tail mass under the model, R_sample the share of the tail pool."""
        self.R_theta, self.tcf = R_theta, tail_correction_factor(R_theta, R_sample)

    def state_dict(self) -> dict[str, float]:
        return {"tcf": self.tcf, "R_theta": self.R_theta}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self.tcf, self.R_theta = float(state["tcf"]), float(state["R_theta"])


def tail_correction_factor(R_theta: float, R_sample: float) -> float:
    """Equation 3.7 solved for the TCF."""
    return max(0.0, (R_theta - R_sample) / (1.0 - R_sample))


_AUTO: dict[str, Any] = {"method": "tcf", "CT": "auto"}
_NAMED: dict[str, dict[str, Any]] = {"none": {}, "conditional": {"method": "conditional"}, "auto": _AUTO, "tcf": _AUTO}


def parse_tail(tail: object) -> TailSettings:
    """None, "auto", a mapping {"CT": ..., "TRT": ..., "method": ...} or settings already made."""
    if isinstance(tail, TailSettings):
        return tail
    if tail is None:
        return TailSettings()
    if isinstance(tail, str) and tail in _NAMED:
        return TailSettings(**_NAMED[tail])
    if not isinstance(tail, Mapping):
        raise InputError(
            f'tail must be None, "auto" or a mapping with CT, TRT, method, found {shown(tail)}; use one of these.'
        )
    known_keys("the options of tail", tail, {f.name for f in fields(TailSettings)})
    settings: dict[str, Any] = dict(tail)
    settings.setdefault("method", "tcf")
    if settings["method"] is None:
        settings["method"] = "none"
    if isinstance(settings["method"], str) and settings["method"] == "tcf" and settings.get("CT") is None:
        settings["CT"] = "auto"
    return TailSettings(**settings)


def check_learned(settings: TailSettings, *, alpha: bool, tempering: bool, given: bool) -> TailSettings:
    """Refuse to learn alpha or the tempering with the TCF, or choose for "auto" (given: False).

    Both are read off the very tails that the TCF weights by the model's own: its fixed point is another alpha (0.49 for
    a true 0.30).
    """
    if settings.method != "tcf" or not (alpha or tempering):
        return settings
    if not given:
        text = "alpha is learned, which would bias the tail correction factor" if alpha else "tempering is learned"
        warnings.warn(
            f'{text}, so tail="auto" uses the conditional likelihood; give {"alpha" if alpha else "tempering"} to use '
            "the factor.",
            LevytorchWarning,
            stacklevel=3,
        )
        return replace(settings, method="conditional")
    if alpha and settings.learned_alpha != "allow":
        raise InputError(
            "alpha must be given for the tail correction factor, found that it is learned (the factor then leads to a "
            'wrong alpha, such as 0.49 instead of 0.30); give it, use tail=None, or tail={"method": "conditional"} '
            "with a TRT, or set tail.learned_alpha to allow."
        )
    if alpha:
        warnings.warn(
            "alpha is learned together with the tail correction factor, which then leads to a wrong alpha (such as "
            "0.49 instead of 0.30); compare with the conditional likelihood.",
            LevytorchWarning,
            stacklevel=3,
        )
    if tempering:
        raise InputError(
            "tempering must be given for the tail correction factor, found that it is learned; give it, or use "
            'tail=None, or tail={"method": "conditional"} with a TRT.'
        )
    return settings


def center_of(mu: Tensor, dt: Tensor, *, uniform_dt: bool) -> Tensor:
    """The center of dx over each dt, which has d coordinates where mu has: mu, or mu dt where dt varies."""
    scale = torch.ones_like(dt) if uniform_dt else dt
    return mu * (scale if mu.dim() == 0 else scale.unsqueeze(-1))


@dataclass
class TailMasses:
    """Thresholds at every node of the state bins, and how many pairs of each pool lie there.

    mu: the center of dx, or of dx / dt when dt varies (`uneven`).
    """

    bins: StateBins
    mu: Tensor
    uneven: bool
    CT: Tensor | None
    TRT: Tensor | None
    counts: Tensor
    tail_counts: Tensor
    law: Law
    at_mean: bool = False

    def center(self, dt: Tensor) -> Tensor:
        """The center of dx over these dt (n,): (n,), or (n, d)."""
        return center_of(self.mu, dt, uniform_dt=not self.uneven)

    @property
    def share(self) -> Tensor:
        """Fraction of the pairs on each node."""
        return self.counts / self.counts.sum()

    @property
    def R_sample(self) -> float:
        """|P_tail| / |P_main|."""
        return float(self.tail_counts.sum() / self.counts.sum())

    def mean_log_kept(self, head: Head) -> Tensor:
        """log of the kept mass averaged over the pairs: what a conditional likelihood subtracts."""
        core, middle = self.log_kept(head)
        n = self.counts.sum()
        if self.CT is None:
            return (self.counts * core).sum() / n
        return ((self.counts - self.tail_counts) * core).sum() / n + (self.tail_counts * middle).sum() / n

    def log_kept_of(self, head: Head, x: Tensor, dx: Tensor, dt: Tensor) -> Tensor:
        """log of the mass of the region each pair lies in: for mini-batches (full batches sum over the nodes)."""
        node, center = self.bins.index(x, dt), self.center(dt)
        beyond_TRT = torch.zeros_like(dt)
        if self.TRT is not None:
            beyond_TRT = self.law.mass_beyond(head, self.TRT[node], center, x, dt)
        if self.CT is None:
            return torch.log1p(-beyond_TRT)
        CT = self.CT[node]
        beyond_CT = self.law.mass_beyond(head, CT, center, x, dt)
        core = lengths_of(dx - center) <= CT
        return torch.where(core, torch.log1p(-beyond_CT), torch.log((beyond_CT - beyond_TRT).clamp(min=1e-300)))

    def R_theta(self, head: Head) -> float:
        """Mass beyond CT under the model, over the observed states or at the mean coefficients (the paper)."""
        with torch.no_grad():
            return float(self.R_theta_differentiable(head))

    def exceedance(self, head: Head) -> Tensor:
        """P(|dx - mu| > CT) at every node (at the mean coefficients: the same number everywhere)."""
        assert self.CT is not None
        with torch.no_grad():
            if self.at_mean:
                return self._R_at_mean(head).expand(len(self.bins))
            return self._beyond(head)(self.CT)

    def R_theta_differentiable(self, head: Head) -> Tensor:
        """The same with a graph."""
        if self.at_mean:
            return self._R_at_mean(head)
        assert self.CT is not None
        used, share = self.share > 0, self.share  # only nodes that hold data take part in averages
        dt = self.bins.dt[used]
        p = self.law.mass_beyond(head, self.CT[used], self.center(dt), self.bins.x[used], dt)
        return (p * share[used]).sum() / share.sum()

    def R_theta_gradient(self, head: LinearHead) -> tuple[float, Tensor]:
        """R_theta and d R_theta / d theta (P,)."""
        return head.gradient_of(self.R_theta_differentiable)

    def log_kept(self, head: Head) -> tuple[Tensor, Tensor]:
        """log P(|dx - mu| < CT) and log P(CT < |dx - mu| < TRT) at every node, with a graph in the head."""
        return self._log_kept(self._beyond(head))

    def log_kept_scores(
        self, head: LinearHead, design: Sequence[Tensor], row: int | None = None, change: float = 0.0
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """log masses of core and middle (M,), and their derivatives in the predictors (C, M); of the frozen law.

        row, change: with this predictor larger by so much.
        """
        chain = head.chain(head.theta.detach(), design, row, change)
        core, middle, by_core, by_middle = self.log_kept_slopes(head, chain.coefficients)
        return core, middle, to_predictors(by_core, chain), to_predictors(by_middle, chain)

    def log_kept_slopes(self, head: Head, c: Coefficients) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same with derivatives in the coefficients, which are c at the nodes."""
        law, dt = self.law, self.bins.dt
        assert isinstance(law, FrozenLaw)

        def masses(c: Coefficients) -> tuple[Tensor, Tensor]:
            return self._log_kept(lambda threshold: law.exceedance(c, threshold, self.center(dt), dt))

        (core, by_core), (middle, by_middle) = head.layout.with_slopes(c, len(self.bins), masses)
        return core, middle, by_core, by_middle

    # -- private ------------------------------------------------------------------------------------------------------
    def _beyond(self, head: Head) -> Callable[[Tensor], Tensor]:
        """P(|dx - mu| > threshold) at every node, as a function of the thresholds there."""
        x, dt = self.bins.x, self.bins.dt
        return lambda threshold: self.law.mass_beyond(head, threshold, self.center(dt), x, dt)

    def _R_at_mean(self, head: Head) -> Tensor:
        """Constants, for which all laws are the frozen one."""
        assert self.CT is not None
        law = self.law if isinstance(self.law, FrozenLaw) else FrozenLaw()
        share, dt = self.share, self.bins.dt
        mean = lambda v: (share @ v) / share.sum()  # noqa: E731
        return law.exceedance(self._mean_coefficients(head), mean(self.CT), mean(self.center(dt)), mean(dt))

    def _mean_coefficients(self, head: Head) -> Coefficients:
        """Arithmetic means over one cell: theta_{1,1}, theta_{2,1}, theta_{3,1} for a Fourier head with clamp."""
        c = head(self.bins.x)
        mean: Coefficients = c.each(lambda v: v.mean(0) if v.dim() else v)
        return mean

    def _log_kept(self, beyond: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        zero = torch.zeros(len(self.bins), dtype=torch.float64)
        beyond_TRT = zero if self.TRT is None else beyond(self.TRT)
        if self.CT is None:
            return torch.log1p(-beyond_TRT), zero
        beyond_CT = beyond(self.CT)
        return torch.log1p(-beyond_CT), torch.log((beyond_CT - beyond_TRT).clamp(min=1e-300))


def tcf_gradient(masses: TailMasses, head: LinearHead) -> tuple[float, float, Tensor]:
    """R_theta, the TCF and its derivative in theta (zero where it is clipped at 0)."""
    R, gradient = masses.R_theta_gradient(head)
    tcf = tail_correction_factor(R, masses.R_sample)
    return R, tcf, gradient / (1.0 - masses.R_sample) if tcf > 0 else torch.zeros_like(gradient)
