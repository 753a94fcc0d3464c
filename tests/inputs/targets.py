"""Every public name of levytorch with arguments that work: what the tests break, one argument at a time."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import levytorch as lt
from levytorch.data import FullBatch, LevyDataModule, make_pools


@dataclass(frozen=True)
class Target:
    """A callable with good arguments.

    numbers: arguments that are numbers or arrays, for which anything else must be refused; functions: those that may
    be a function of x as well; optional: those for which None is a choice; choices: those that are names;
    switches: truth values.
    """

    name: str
    call: Callable[..., Any]
    good: dict[str, Any]
    numbers: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    optional: frozenset[str] = frozenset()
    choices: frozenset[str] = frozenset()
    finite: bool = True
    propagates: bool = False  # NaN for a state that is NaN or infinite, as torch functions do
    extra: dict[str, Any] = field(default_factory=dict)


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


@functools.cache
def system() -> lt.Dynamics:
    return lt.Dynamics(lambda x: torch.sin(x), 1.0, 0.5, 0.4)


@functools.cache
def transitions() -> lt.Transitions:
    return lt.simulate(lt.Dynamics.named("constant"), 40, 20, 0.025, seed=3).transitions()


@functools.cache
def plane_transitions() -> lt.Transitions:
    return lt.simulate(lt.Dynamics.named("plane"), 30, 20, 0.025, seed=3).transitions()


@functools.cache
def recovery() -> lt.Recovery:
    return lt.recover(transitions(), alpha=0.3, n_basis=3, max_steps=4, law="frozen")


@functools.cache
def plane_recovery() -> lt.Recovery:
    return lt.recover(plane_transitions(), alpha=0.3, n_basis=3, max_steps=3, law="frozen")


@functools.cache
def value() -> lt.ValueFunction:
    return lt.solve_value(recovery(), torch.cos, beta=0.5, n_modes=17)


@functools.cache
def plane_value() -> Any:
    return lt.solve_value(lt.Dynamics.named("plane"), lambda x: torch.cos(x[..., 0]), 1.0, n_modes=16)


@functools.cache
def directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="levytorch-inputs-"))


STEP = dict(displacement=0.5, b=5.0, D_o=4.0, D_f=3.0, alpha=0.3, dt=0.025)
LAW = {k: v for k, v in STEP.items() if k != "displacement"}
STEP_NUMBERS = names("displacement b D_o D_f alpha dt")
PAIRS = dict(x=np.linspace(0, 1, 30), dx=np.sin(np.arange(30.0)), dt=0.1)
PATHS = np.cumsum(np.sin(np.arange(24.0)).reshape(2, 12), axis=1)


def sampled(**arguments: Any) -> Any:
    shape = arguments.pop("sample_shape")
    torch.manual_seed(0)
    return lt.LevyStep(**arguments).sample(shape)


def recovered(**arguments: Any) -> Any:
    found = lt.recover(**arguments)
    return found.b(0.5), found.D_o(0.5), found.D_f(0.5)


def solved(**arguments: Any) -> Any:
    return lt.solve_value(**arguments)(torch.linspace(0.5, 1.0, 5, dtype=torch.float64))


def valued(**arguments: Any) -> Any:
    return lt.value_from_data(**arguments)(torch.linspace(0.5, 1.0, 5, dtype=torch.float64))


def solved_plane(**arguments: Any) -> Any:
    return lt.solve_value(**arguments)([[0.5, 1.0]])


def make_paths(**arguments: Any) -> Any:
    t = lt.Trajectories.from_arrays(**arguments)
    pairs = t.transitions()
    return t.x, pairs.x, pairs.dx, pairs.dt


def make_pairs(**arguments: Any) -> Any:
    t = lt.Transitions(**arguments)
    t.describe()
    return t.x, t.dx, t.dt, t.mu


def simulated(**arguments: Any) -> Any:
    return lt.simulate(**arguments).x


def pooled(**arguments: Any) -> Any:
    pools = make_pools(**arguments)
    return pools.main.x, pools.tail


def first_batch(**arguments: Any) -> Any:
    batch = LevyDataModule(**arguments).draw(0)
    first = next(batch.chunks()) if isinstance(batch, FullBatch) else batch
    return first.x, first.weight


def dynamics_values(**arguments: Any) -> Any:
    d = lt.Dynamics(**arguments)
    x = d.points(8)
    return d.b(x), d.D_o(x), d.D_f(x), d.alpha_at(x)


def dynamics_simulated(**arguments: Any) -> Any:
    return lt.simulate(lt.Dynamics(**arguments), 3, 3, 0.1, seed=0).x


@functools.cache
def sample_file() -> Path:
    path = directory() / "p.npy"
    np.save(path, PATHS)
    return path


def numbers_of(answer: Any) -> list[np.ndarray]:
    """All numbers of an answer, as float64 arrays."""
    if answer is None:
        return []
    if isinstance(answer, (tuple, list)):
        return [a for part in answer for a in numbers_of(part)]
    if isinstance(answer, (torch.Tensor, np.ndarray, float, int)):
        return [
            np.asarray(
                answer.detach().to(torch.float64) if isinstance(answer, torch.Tensor) else answer, dtype=np.float64
            )
        ]
    return []
