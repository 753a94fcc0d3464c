"""Heads by name, from plain constructor arguments (what configurations, checkpoints and saved recoveries hold)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levytorch.coefficients.basis import TRUNCATIONS, check_basis
from levytorch.coefficients.fourier import FourierHead
from levytorch.coefficients.head import MODES, AlphaSpec, Head, Units
from levytorch.coefficients.mlp import MLPHead
from levytorch.convert import choice, known_keys, shown
from levytorch.errors import InputError

HEADS: dict[str, type[Head]] = {"fourier": FourierHead, "mlp": MLPHead}

_SHARED = {"period", "origin", "positivity", "alpha_mode", "alpha", "length", "time", "dim"}
OPTIONS = {
    "fourier": _SHARED | {"n_basis", "n_basis_alpha", "truncation"},
    "mlp": _SHARED | {"width", "depth", "periodic", "n_features"},
}


def head_dim(config: Mapping[str, Any]) -> int | None:
    """The dimension a head's settings speak of: `dim`, or the number of periods or origins; None when they do not."""
    said = {"dim": config.get("dim")}
    for name in ("period", "origin"):
        value = config.get(name)
        if isinstance(value, Sequence) and not isinstance(value, str):
            said[name] = len(value)
    found = [v for v in said.values() if v is not None]
    if not found:
        return None
    sound = all(isinstance(v, int) and not isinstance(v, bool) and v in (1, 2, 3) for v in found)
    if not sound or len(set(found)) > 1:
        raise InputError(
            f"dim must be 1, 2 or 3 and agree with the number of periods and origins, found {shown(said)}; give "
            "one each."
        )
    return int(found[0])


def build_head(config: Mapping[str, Any]) -> Head:
    """A head from {"name": "fourier" | "mlp", ...}; unknown names and keys are refused with the choices."""
    settings = dict(config)
    name = settings.pop("name", "fourier")
    choice("coefficients", name, tuple(HEADS))
    known_keys(f"the options of a {name} head", settings, OPTIONS[name])
    mode = settings.pop("alpha_mode", "fixed")
    choice("alpha_mode", mode, MODES)
    if "n_basis_alpha" in settings:
        check_basis(settings["n_basis_alpha"], 1.0)
    if "truncation" in settings:
        choice("truncation", settings["truncation"], TRUNCATIONS)
    alpha = AlphaSpec(mode, float(settings.pop("alpha", 0.5)))
    units = Units(float(settings.pop("length", 1.0)), float(settings.pop("time", 1.0)))
    settings["dim"] = head_dim(settings) or 1
    if "positivity" in settings:
        settings["positivity_link"] = settings.pop("positivity")
    return HEADS[name](alpha=alpha, units=units, **settings)
