"""Data with known answers, shared by the tests of training."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from levytorch import Recovery, recover
from levytorch.data import Transitions

B, D_O, D_F, ALPHA, DT = 5.0, 4.0, 3.0, 0.3, 1 / 40


def frozen_recover(data, **options) -> Recovery:
    """recover() under the law that `steps` are drawn from: coefficients frozen over a step."""
    return recover(data, **{"law": "frozen", **options})


def stable(index: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """Symmetric stable variables with characteristic function exp(-|k|^index), Chambers-Mallows-Stuck."""
    v, w = rng.uniform(-np.pi / 2, np.pi / 2, n), rng.exponential(size=n)
    return np.sin(index * v) / np.cos(v) ** (1 / index) * (np.cos((1 - index) * v) / w) ** ((1 - index) / index)


def steps(n: int, seed: int, b=B, D_o=D_O, D_f=D_F, alpha=ALPHA, dt=DT, x: np.ndarray | None = None) -> Transitions:
    """n independent steps from states uniform on (0, 2 pi); coefficients are numbers or functions of x."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 2 * np.pi, n) if x is None else x
    value = lambda c: c(x) if callable(c) else c  # noqa: E731
    dx = value(b) * dt + np.sqrt(2 * value(D_o) * dt) * rng.standard_normal(n)
    dx += (value(D_f) * dt) ** (1 / (2 * alpha)) * stable(2 * alpha, n, rng)
    return Transitions(x, dx, dt)


@cache
def constant(n: int = 40_000, seed: int = 0) -> Transitions:
    """The paper's (5, 4, 3)."""
    return steps(n, seed)


@cache
def variable(n: int = 60_000, seed: int = 0) -> Transitions:
    """One frozen step of a smooth system: the truth is the law of the test, no bias of freezing."""
    return steps(n, seed, b=lambda x: 3 * np.sin(x), D_o=lambda x: 2 + np.cos(x), D_f=lambda x: 2 + np.sin(2 * x))


def truth(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Coefficients of `variable`."""
    return 3 * torch.sin(x), 2 + torch.cos(x), 2 + torch.sin(2 * x)
