"""Heads by name, from plain constructor arguments (what configurations, checkpoints and saved recoveries hold)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levytorch.coefficients.clock import Clock, ClockedHead
from levytorch.coefficients.fourier import FourierHead, LinearHead
from levytorch.coefficients.head import KNOWABLE, Head, Units, known_constants
from levytorch.coefficients.links import ALPHA_MAX, ALPHA_MIN, MODES, AlphaLink, AlphaSpec, TemperingSpec
from levytorch.coefficients.mlp import MLPHead
from levytorch.coefficients.periodic_spline import PeriodicSplineHead
from levytorch.coefficients.product import ProductHead
from levytorch.coefficients.spline import PolynomialHead, SplineHead
from levytorch.convert import choice, known_keys, shown
from levytorch.errors import InputError
from levytorch.law.arguments import MOST_COORDINATES
from levytorch.spaces.basis import TRUNCATIONS, check_basis
from levytorch.spaces.splines import check_n_basis

HEADS: dict[str, type[Head]] = {
    "fourier": FourierHead,
    "spline": SplineHead,
    "periodic_spline": PeriodicSplineHead,
    "polynomial": PolynomialHead,
    "product": ProductHead,
    "mlp": MLPHead,
}

_SHARED = {
    "positivity",
    "alpha_mode",
    "alpha",
    "length",
    "time",
    "dim",
    "tempering_mode",
    "tempering",
    "noise",
    *KNOWABLE,
}
_SHARED |= {"alpha_link", "alpha_bounds"}
_CELL, _LINE = {"period", "origin"}, {"window"}
_NETWORK = {"width", "depth", "periodic", "n_features", "activation", "shared_trunk", "residual", "trained"}
_SPLINE = _SHARED | _LINE | {"n_basis", "n_basis_alpha", "knots"}
OPTIONS = {
    "fourier": _SHARED | _CELL | {"n_basis", "n_basis_alpha", "truncation"},
    "spline": _SPLINE | {"continuation", "free", "truncation"},
    "periodic_spline": _SHARED | _CELL | {"n_basis", "n_basis_alpha", "truncation"},
    "polynomial": _SPLINE | {"degree"},
    "product": _SHARED | _CELL | _LINE | {"n_basis", "n_basis_alpha", "truncation"},
    "mlp": _SHARED | _CELL | _LINE | _NETWORK,
}
LINEAR = ("fourier", "spline", "periodic_spline", "polynomial", "product")  # heads of engine fisher
ON_A_LINE = ("spline", "polynomial")  # heads that have no period
SPLINES = ("spline", "periodic_spline", "polynomial", "product")  # 1 function, or at least 4


def head_dim(config: Mapping[str, Any]) -> int | None:
    """The dimension a head's settings speak of: `dim`, or the number of periods or origins; None when they do not."""
    said = {"dim": config.get("dim")}
    window = config.get("window")
    if isinstance(window, Sequence) and all(
        w is None or (isinstance(w, Sequence) and not isinstance(w, str)) for w in window
    ):
        said["window"] = len(window)
    for name in ("period", "origin"):
        value = config.get(name)
        if isinstance(value, Sequence) and not isinstance(value, str):
            said[name] = len(value)
    found = [v for v in said.values() if v is not None]
    if not found:
        return None
    sound = all(isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= MOST_COORDINATES for v in found)
    if not sound or len(set(found)) > 1:
        raise InputError(
            f"dim must be from 1 to {MOST_COORDINATES} and agree with the number of periods and origins, found "
            f"{shown(said)}; give one each."
        )
    return int(found[0])


def build_head(config: Mapping[str, Any]) -> Head:
    """A head from {"name": one of HEADS, ...}; unknown names and keys are refused with the choices."""
    settings = dict(config)
    name = settings.pop("name", "fourier")
    choice("coefficients", name, tuple(HEADS))
    clock = settings.pop("clock", None)
    known_keys(f"the options of a {name} head", settings, OPTIONS[name])
    mode = settings.pop("alpha_mode", "fixed")
    choice("alpha_mode", mode, MODES)
    if "n_basis_alpha" in settings:
        if name in SPLINES:
            check_n_basis(settings["n_basis_alpha"])
        else:
            check_basis(settings["n_basis_alpha"], 1.0)
    if "truncation" in settings:
        choice("truncation", settings["truncation"], TRUNCATIONS)
    link = AlphaLink.build(settings.pop("alpha_link", "sigmoid"), settings.pop("alpha_bounds", (ALPHA_MIN, ALPHA_MAX)))
    alpha = AlphaSpec(mode, float(settings.pop("alpha", 0.5)), link)
    tempering = TemperingSpec.build(settings.pop("tempering_mode", "fixed"), settings.pop("tempering", 0.0))
    units = Units(float(settings.pop("length", 1.0)), float(settings.pop("time", 1.0)))
    known = known_constants({key: settings.pop(key, None) for key in KNOWABLE})
    settings["dim"] = head_dim(settings) or 1
    if "positivity" in settings:
        settings["positivity_link"] = settings.pop("positivity")
    head = HEADS[name](alpha=alpha, units=units, tempering=tempering, known=known, **settings)
    if clock is None:
        return head
    if not isinstance(head, LinearHead):
        raise InputError(f"a head with covariates must be one of {', '.join(LINEAR)}, found {name}; use one of these.")
    return ClockedHead(head, Clock.from_plain(clock))
