"""Lost tails: nothing done, the paper's tail correction factor (TCF), or the conditional likelihood."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from levytorch.convert import choice, known_keys, real_number, shown, whole_number
from levytorch.errors import InputError, LevytorchWarning

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
                "the conditional likelihood needs a threshold, found neither CT nor TRT; give tail.TRT, beyond which "
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
    if settings["method"] == "tcf" and settings.get("CT") is None:
        settings["CT"] = "auto"
    return TailSettings(**settings)


def check_alpha(settings: TailSettings, learns_alpha: bool, *, given: bool) -> TailSettings:
    """Learning alpha with the TCF has the wrong fixed point (0.49 for a true 0.30): refuse, or choose for "auto"."""
    if not (learns_alpha and settings.method == "tcf"):
        return settings
    if given and settings.learned_alpha == "allow":
        warnings.warn(
            "alpha is learned together with the tail correction factor, whose fixed point is then another alpha (0.49 "
            "where 0.30 is true): compare with the conditional likelihood.",
            LevytorchWarning,
            stacklevel=3,
        )
        return settings
    if given:
        raise InputError(
            "alpha cannot be learned together with the tail correction factor (its fixed point is another alpha: 0.49 "
            'where 0.30 is true), found method "tcf"; use tail=none or tail=conditional with a TRT, give alpha, or set '
            "tail.learned_alpha to allow."
        )
    warnings.warn(
        'alpha is learned, so tail="auto" uses the conditional likelihood: the tail correction factor would be biased.',
        LevytorchWarning,
        stacklevel=3,
    )
    return replace(settings, method="conditional")


def check_tempering(settings: TailSettings, learned: bool, *, given: bool) -> TailSettings:
    """A learned tempering is read off the very tails that the TCF weights by the model's own: as for alpha."""
    if not (learned and settings.method == "tcf"):
        return settings
    if given:
        raise InputError(
            'tempering cannot be learned together with the tail correction factor, found method "tcf"; use tail=none '
            "or tail=conditional with a TRT, or give tempering."
        )
    warnings.warn(
        'tempering is learned, so tail="auto" uses the conditional likelihood.', LevytorchWarning, stacklevel=3
    )
    return replace(settings, method="conditional")
