"""CT and TRT: distances from the center of dx, as numbers or as functions of dt (appendix E, uneven sampling)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from levytorch.convert import answer_of, number_within, positive_number, real_tensor, seed_of
from levytorch.errors import InputError

Threshold = float | Callable[[Tensor], Tensor]  # a number, or a function of dt
HALF_THE_INDEX = "pass half the stability index"


def threshold_at(threshold: Threshold, dt: Tensor) -> Tensor | float:
    """A threshold, which may depend on dt, at these dt."""
    if not callable(threshold):
        return float(threshold)
    answer = answer_of("threshold", threshold, dt, "dt")
    found = real_tensor("a threshold as a function of dt", answer, "return one number per dt")
    if found.ndim and found.shape != dt.shape:
        raise InputError(
            f"a threshold as a function of dt must return shape {tuple(dt.shape)}, found {tuple(found.shape)}; "
            "return one number per dt."
        )
    if not bool((found > 0).all()):
        raise InputError(
            f"a threshold as a function of dt must be positive, found {float(found.min())}; correct the function."
        )
    return found


@dataclass(frozen=True)
class ScaledCT:
    """CT(dt) of `ct_of_dt`, halved so many times; plain numbers, for files."""

    CT: float
    dt_ref: float
    alpha: float
    D_o: float
    widths: float
    halvings: float = 0.0

    def __call__(self, dt: Tensor) -> Tensor:
        jumps = self.CT * (dt / self.dt_ref) ** (1 / (2 * self.alpha))
        return torch.maximum(jumps, self.widths * torch.sqrt(2 * self.D_o * dt)) / 2**self.halvings


def ct_of_dt(CT: float, dt_ref: float, alpha: float, D_o: float = 0.0, widths: float = 3.0) -> ScaledCT:
    """CT(dt) for uneven sampling: CT (dt / dt_ref)^(1/(2 alpha)), as the stable part scales, but never below `widths`
    standard deviations sqrt(2 D_o dt) of the Gaussian part, which for short dt is the wider of the two."""
    return ScaledCT(
        positive_number("CT", CT, "pass a distance"),
        positive_number("dt_ref", dt_ref),
        number_within("alpha", alpha, "(0, 1)", HALF_THE_INDEX),
        number_within("D_o", D_o, "[0, inf)", "pass 0 or more"),
        number_within("widths", widths, "[0, inf)", "pass 0 or more"),
    )


def half(CT: Threshold) -> Threshold:
    """A threshold of half the size."""
    if isinstance(CT, ScaledCT):
        return replace(CT, halvings=CT.halvings + 1)
    return (lambda dt: CT(dt) / 2) if callable(CT) else float(CT) / 2


def in_units(threshold: Threshold | None, length: float, time: float) -> Threshold | None:
    """A threshold on displacements in units of `length` over times in units of `time`."""
    if threshold is None:
        return None
    if isinstance(threshold, ScaledCT):
        D_o = threshold.D_o * time / length**2
        return replace(threshold, CT=threshold.CT / length, dt_ref=threshold.dt_ref / time, D_o=D_o)
    if callable(threshold):
        return lambda dt: threshold_at(threshold, dt * time) / length  # type: ignore[return-value]
    return threshold / length


def threshold_settings(CT: Threshold | None) -> dict[str, float] | None:
    """The plain numbers behind a CT(dt) of `ct_of_dt`, for files; None for anything else."""
    return asdict(CT) if isinstance(CT, ScaledCT) else None


def threshold_from(settings: Mapping[str, float]) -> Threshold:
    """CT(dt) from its `threshold_settings`."""
    numbers = {name: settings[name] for name in ("CT", "dt_ref", "alpha", "D_o", "widths")}
    return replace(ct_of_dt(**numbers), halvings=settings["halvings"])


class Censoring(NamedTuple):
    """What `Transitions.censor` removes: pairs from TRT on, and of those beyond CT the share drop_tail at random."""

    TRT: Threshold | None
    CT: Threshold | None
    drop_tail: float
    seed: int


def check_censoring(
    TRT: Any = 20.0, CT: Any = 8.0, drop_tail: Any = 0.5, seed: Any = 0, *, dt: Tensor | None = None
) -> Censoring:
    """Refuses what no data, or no data of these dt, could be censored with."""
    drop_tail = number_within("drop_tail", drop_tail, "[0, 1]", "pass the fraction of the tail to drop")
    if drop_tail > 0 and CT is None:
        raise InputError("CT must be given when drop_tail > 0, found None; pass the cutting threshold.")
    CT, TRT = check_thresholds(CT, TRT, dt)
    return Censoring(TRT, CT, drop_tail, seed_of(seed))


def check_thresholds(CT: Any, TRT: Any, dt: Tensor | None) -> tuple[Threshold | None, Threshold | None]:
    """Both as floats or functions of dt; refuses what is not positive, and a CT that leaves no room below TRT.

    dt: of the data; None: not known yet, and functions of it are not asked.
    """
    CT, TRT = _threshold("CT", CT), _threshold("TRT", TRT)
    of_dt = callable(CT) or callable(TRT)
    if CT is None or TRT is None or (of_dt and dt is None):
        return CT, TRT
    ends = torch.stack([dt.min(), dt.max()]) if of_dt and dt is not None else torch.ones(1, dtype=torch.float64)
    low, high = (torch.as_tensor(threshold_at(v, ends), dtype=torch.float64).expand(len(ends)) for v in (CT, TRT))
    if bool((low >= high).all()):
        raise InputError(
            f"CT must be smaller than TRT, found CT = {float(low[0]):g} and TRT = {float(high[0]):g}; the tail pool "
            "lies between the two, so lower CT or raise TRT."
        )
    return CT, TRT


def _threshold(name: str, value: Any) -> Threshold | None:
    """A number of any kind (cutting_threshold gives a tensor) as a float; None and functions as they are."""
    if value is None or callable(value):
        return value
    return positive_number(name, value, "pass a distance from the median of dx")
