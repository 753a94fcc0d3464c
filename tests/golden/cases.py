"""Small fits of every supported combination of data, space, law, tail treatment and inputs, and their numbers.

`python -m tests.golden.cases` adds cases that numbers.json lacks, `--anew` fits all of them again. A commit that only
moves code must reproduce that file. A commit that changes iterations, units or densities writes it again, and says how
far estimates have moved in standard errors (`--compare` prints that without writing).
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import tempfile
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
import torch

from levytorch import Dynamics, Trajectories, recover, simulate
from levytorch.errors import LevytorchError, LevytorchWarning

NUMBERS = Path(__file__).with_name("numbers.json")
DATA = ("arrays", "file", "lattice", "on_disk")
SPACES = ("circle", "line", "torus")
LAWS = ("frozen", "corrected", "exact", "auto")
TAILS = ("none", "tcf", "conditional")
INPUTS = ("none", "labels", "numbers", "covariate")
STATES = (-0.8, -0.3, 0.1, 0.5, 1.0)


class Case(NamedTuple):
    """One combination; its name is the key of its numbers."""

    data: str
    space: str
    law: str
    tail: str
    inputs: str

    @property
    def name(self) -> str:
        return "-".join(self)


def grid() -> list[Case]:
    """Every combination of arrays; of other kinds of data those that reach other code: each space, law and input."""
    cases = [Case(*parts) for parts in itertools.product(DATA, SPACES, LAWS, TAILS, INPUTS)]
    return [case for case in cases if _is_quick(case) and (case.data == "arrays" or _reads_differently(case))]


def _is_quick(case: Case) -> bool:
    """On a line the exact law with a treatment of tails takes minutes."""
    return case.space != "line" or case.law == "frozen" or case.tail == "none"


def _reads_differently(case: Case) -> bool:
    laws = ("frozen",) if case.space == "line" else ("frozen", "auto")
    kept = case.data != "lattice" or case.inputs == "none"  # a lattice has no inputs
    return kept and case.law in laws and case.tail != "conditional"


T = TypeVar("T", bound=tuple[Any, ...])


def pairwise(cases: Sequence[T]) -> list[T]:
    """A few cases that contain every pair of values which occurs among the given ones."""

    def pairs(case: T) -> set[tuple[int, Any, int, Any]]:
        return {(i, case[i], j, case[j]) for i, j in itertools.combinations(range(len(case)), 2)}

    missing = set().union(*(pairs(case) for case in cases))
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(pairs(case) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


@cache
def _simulated(space: str) -> Any:
    if space == "circle":
        system = Dynamics(lambda x: torch.cos(x), lambda x: 0.5 + 0.2 * torch.sin(x), lambda x: 0.3 + 0.0 * x, 0.6)
        return simulate(system, 120, 25, 0.05, seed=3)
    if space == "line":
        system = Dynamics(lambda x: -x, lambda x: 0.3 + 0.0 * x, lambda x: 0.2 + 0.0 * x, 0.75, period=None)
        return simulate(system, 120, 25, 0.05, x0=0.0, seed=4)
    plane = Dynamics(
        lambda x: torch.stack([torch.cos(x[..., 0]), torch.sin(x[..., 1])], -1),
        lambda x: 0.5 + 0.1 * torch.sin(x[..., 0]),
        lambda x: 0.3 + 0.0 * x[..., 0],
        0.6,
        dim=2,
    )
    return simulate(plane, 120, 25, 0.05, seed=5)


def _action(kind: str, trajectories: int, steps: int) -> np.ndarray | None:
    """One per observation, (trajectories, steps); the last of a trajectory is not used."""
    n = np.arange(trajectories * steps).reshape(trajectories, steps)
    if kind == "none":
        return None
    if kind == "labels":
        return np.where(n % 2 == 0, "left", "right")
    return 0.5 + 0.5 * np.sin(n) if kind == "numbers" else (n % 24).astype(float)


def _file(case: Case, directory: Path) -> Path:
    """The trajectories of a case as a long table."""
    path = directory / f"{case.space}-{case.inputs}.csv"
    simulated = _simulated(case.space)
    n = len(simulated)
    x = np.asarray(simulated.x).reshape(n, -1, 2 if case.space == "torus" else 1)
    action = _action(case.inputs, *x.shape[:2])
    columns = [f"x{i + 1}" for i in range(x.shape[2])]
    with path.open("w") as file:
        file.write(",".join(["id", "time", *columns, *(["action"] if action is not None else [])]) + "\n")
        for i, j in itertools.product(range(n), range(x.shape[1])):
            row = [str(i), repr(0.05 * j), *(repr(float(value)) for value in x[i, j])]
            row += [str(action[i, j])] if action is not None else []
            file.write(",".join(row) + "\n")
    if case.data == "on_disk":
        pl.read_csv(path).write_parquet(path.with_suffix(".parquet"))
        return path.with_suffix(".parquet")
    return path


def data(case: Case, directory: Path) -> Any:
    if case.data in ("file", "on_disk"):
        value = ["x1", "x2"] if case.space == "torus" else "x1"
        options: dict[str, Any] = {"id": "id", "time": "time", "value": value}
        if case.inputs != "none":
            options["action"] = "action"
        if case.data == "on_disk":
            options["on_disk"] = directory / "cache"
        trajectories = Trajectories.from_file(_file(case, directory), **options)
    else:
        simulated = _simulated(case.space)
        n = len(simulated)
        x = np.asarray(simulated.x).reshape(n, -1, *simulated.x.shape[1:])
        trajectories = Trajectories.from_arrays(x, dt=0.05, action=_action(case.inputs, *x.shape[:2]))
    pairs = trajectories.transitions()
    if case.tail != "none":
        pairs = pairs.censor(TRT=4.0, CT=1.0, drop_tail=0.5, seed=1)
    if case.data != "lattice":
        return pairs
    thresholds = {"CT": 1.0, "TRT": 4.0} if case.tail != "none" else {}
    return pairs.lattice(period=None if case.space == "line" else 2 * math.pi, **thresholds)


def settings(case: Case) -> dict[str, Any]:
    """The keywords of `recover`."""
    out: dict[str, Any] = {"alpha": 0.75 if case.space == "line" else 0.6, "law": case.law}
    out["n_basis"] = {"circle": 5, "line": 6, "torus": 3}[case.space]
    out["period"] = None if case.space == "line" else 2 * math.pi
    if case.tail != "none":
        out["tail"] = {"method": case.tail, "CT": 1.0, "TRT": 4.0}
    if case.inputs == "covariate":
        out |= {"modulation": 24.0, "n_modulation": 3}
    return out


def fitted(case: Case, directory: Path) -> Any:
    """The recovery of a case."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LevytorchWarning)
        return recover(data(case, directory), **settings(case))


def numbers(found: Any, case: Case) -> dict[str, list[float]]:
    """What a fit found at a few states, with its standard errors."""
    x = torch.tensor(STATES, dtype=torch.float64)
    x = torch.stack([x, x.flip(0)], -1) if case.space == "torus" else x
    action: dict[str, tuple[Any, ...]] = {"labels": ("left",), "numbers": (0.4,)}
    given = action.get(case.inputs, ())
    curves = [getattr(found, name)(x, *given) for name in ("b", "D_o", "D_f")]
    errors = found.std(x, *given)
    return {
        "estimate": torch.cat([curve.reshape(-1) for curve in curves]).tolist(),
        "std": torch.cat([error.reshape(-1) for error in list(errors)[:3]]).tolist(),
        "log_likelihood": [float(found.log_likelihood)],
    }


def result(case: Case, directory: Path) -> dict[str, Any]:
    """Numbers of a fit, or the reason why this combination is refused."""
    try:
        return numbers(fitted(case, directory), case)
    except LevytorchError as error:
        return {"refused": type(error).__name__}


def stored() -> dict[str, dict[str, Any]]:
    """The committed numbers."""
    return json.loads(NUMBERS.read_text())


def moved(before: dict[str, Any], after: dict[str, Any]) -> float:
    """The largest change of an estimate, in its standard errors."""
    if "refused" in before or "refused" in after:
        return 0.0 if before == after else math.inf
    old, new = np.array(before["estimate"]), np.array(after["estimate"])
    return float(np.max(np.abs(new - old) / np.maximum(np.array(before["std"]), 1e-300)))


def main() -> None:
    before = stored() if NUMBERS.exists() else {}
    out = {} if "--compare" in sys.argv or "--anew" in sys.argv else dict(before)
    with tempfile.TemporaryDirectory() as directory:
        for case in grid():
            if case.name in out:
                continue
            out[case.name] = result(case, Path(directory))
            change = moved(before[case.name], out[case.name]) if case.name in before else math.nan
            print(case.name, "refused" if "refused" in out[case.name] else f"moved by {change:.2g} s.e.", flush=True)
            if "--compare" not in sys.argv:
                lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in out.items()]
                NUMBERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
