"""Which figure is made by which function from the runs of which experiments, and the sections of the results page."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from levytorch.errors import ConfigError

_HERE = "benchmarks.paper"


class Entry(NamedTuple):
    """A figure of the paper: number, the experiments whose runs it needs, `module:function` (runs -> figure, axes)."""

    number: int
    experiments: tuple[str, ...]
    function: str
    caption: str

    def load(self) -> Callable[..., Any]:
        return _load(self.function)


class Section(NamedTuple):
    """A part of the results page with a module of its own: `module:function` (root, page) -> Markdown or None."""

    title: str
    function: str

    def load(self) -> Callable[..., Any]:
        return _load(self.function)


FIGURES: dict[str, Entry] = {
    "comparison": Entry(
        1,
        ("censored_variable",),
        f"{_HERE}.comparison:comparison",
        "D_f recovered from all data, from censored data with the TCF, and from censored data without it; every "
        "replica is a line, the truth is dashed.",
    ),
    "landscape": Entry(
        2,
        ("censored_mcmc",),
        f"{_HERE}.landscape:landscape",
        "The objective in (D_o, D_f) for several values of the TCF, Metropolis data, b at its true value; white x: "
        "truth, red dot: minimiser.",
    ),
    "adaptive": Entry(
        3,
        ("censored_mcmc",),
        f"{_HERE}.adaptive:adaptive",
        "The fixed-point iteration of coefficients and TCF from TCF = 0, Metropolis data.",
    ),
    "unbiased_constant": Entry(
        4,
        ("unbiased_constant",),
        f"{_HERE}.unbiased_constant:unbiased_constant",
        "Relative errors against the number of trajectories, Example 4.1; deep: alpha = 0.3, light: alpha = 0.6.",
    ),
    "unbiased_variable": Entry(
        5,
        ("unbiased_variable",),
        f"{_HERE}.unbiased_variable:unbiased_variable",
        "Relative errors without outliers, and the recovered curves, Example 4.2.",
    ),
    "censored_variable": Entry(
        6,
        ("censored_variable",),
        f"{_HERE}.censored_variable:censored_variable",
        "Errors of D_f per arm, and the recovered curves at the largest size, Example 4.3.",
    ),
    "censored_constant": Entry(
        7,
        ("censored_constant", "censored_mcmc"),
        f"{_HERE}.censored_constant:censored_constant",
        "Errors of D_f with their sign, Example 4.4 (left) and Example 4.5 (right).",
    ),
    "policy_error": Entry(
        8,
        ("censored_variable",),
        f"{_HERE}.policy_error:policy_error",
        "Value functions of Example 4.3 beside the true one, their errors, and the error-bound study.",
    ),
    "learning_history": Entry(
        10,
        ("learning_history",),
        f"{_HERE}.learning_history:learning_history",
        "The paths of Algorithm B.1 and their moving averages, Example 4.5.",
    ),
}

SECTIONS: dict[str, Section] = {
    "btc": Section("Bitcoin (section 4.3, Figure 9)", f"{_HERE}.btc:section"),
}


def figure(name: str) -> Entry:
    """The entry of a figure, by name or by the paper's number."""
    by_number = {str(entry.number): entry for entry in FIGURES.values()}
    entry = FIGURES.get(name) or by_number.get(name)
    if entry is None:
        raise ConfigError(f"figure must be one of {', '.join(FIGURES)} or its number, found {name!r}; choose one.")
    return entry


def figures_of(experiments: list[str]) -> dict[str, Entry]:
    """The figures that can be made from runs of these experiments."""
    return {name: entry for name, entry in FIGURES.items() if set(entry.experiments) & set(experiments)}


def _load(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
