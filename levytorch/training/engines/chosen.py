"""Which engine "auto" is for a head, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levytorch.coefficients import FourierHead, Head
from levytorch.training.engines.base import Engine, resolve_engine

FEW = 5  # functions per coefficient (in d > 1 dimensions: per coordinate) that wiggle little without a penalty
PASSES = 200  # strengths and coefficients settle together, in more passes than coefficients alone


def chosen_engine(
    name: str, given: Mapping[str, Any], head: str | Head, n_basis: Any, units: Any = "data"
) -> tuple[dict[str, Any], str]:
    """Settings of an engine with its name, and the reason for it.

    given: options of the engine; None stands for one that is left to "auto". head, n_basis: the name of a head, and
    what it was asked for; or a Head. An unpenalised fit of many functions wiggles where there is little data, so that
    "auto" smooths those of a Fourier head as much as the evidence of the data says.
    """
    options = dict(given)
    if name == "evidence":
        return {"name": "fisher", "penalty": "evidence", "max_steps": PASSES, **options}, "as asked"
    if name != "auto":
        return {"name": resolve_engine(name, head), **options}, "as asked"
    options = {key: value for key, value in options.items() if value is not None}
    engine = resolve_engine(name, head)
    if engine != "fisher":
        return {"name": engine, **options}, "auto: any head that is not a Fourier head"
    K = head.n_basis if isinstance(head, FourierHead) else n_basis
    if "penalty" in options:
        reason = "auto: a Fourier head, with the penalty that was given"
    elif K == "auto":
        reason = "auto: a Fourier head with as many functions as cross-validation chooses, which needs no penalty"
    elif not isinstance(K, int) or K <= FEW:
        reason = f"auto: a Fourier head with at most {FEW} functions per coefficient, which needs no penalty"
    elif units == "none":
        reason = "auto: strengths of a penalty are found in internal units, which units=none does without"
    else:
        reason = f"auto: a Fourier head with {K} functions per coefficient, smoothed as the evidence of the data says"
        options["penalty"] = "evidence"
    if options.get("penalty") == "evidence":
        options.setdefault("max_steps", PASSES)
    return {"name": engine, **options}, reason


def engine_facts(engine: Engine, reason: str) -> dict[str, str]:
    """What metrics say of the engine; Fisher scoring with the penalty of the evidence goes by the name of that."""
    smoothed = engine.name == "fisher" and getattr(engine, "penalty", None) == "evidence"
    return {"engine": "evidence" if smoothed else engine.name, "engine_reason": reason}
