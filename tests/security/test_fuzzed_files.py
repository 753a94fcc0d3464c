"""Valid files with a few numbers changed: they are refused, or load and can be worked with. Nothing else may happen.

What comes out of loading, fitting and evaluating is a result or one of levytorch's own errors, within a limit on memory
and time that an honest file of the size stays far below.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from levytorch import Dynamics, Lattice, Recovery, recover, simulate, solve_value
from levytorch.errors import InputError, LevytorchError
from tests import sampling

NUMBERS = [0, -1, 1, 2**31, 2**60, -(2**63), 0.0, -0.0, 0.5, 1e-300, 1e300, -1e300, math.nan, math.inf, -math.inf]
VALUES = [*NUMBERS, True, None, "", "x", "\x1b[31m", [], [1.0], [None], {}, {"a": 1}, (), torch.zeros(2), [[1.0]] * 3]
SECONDS = 60.0  # of the processor


@pytest.fixture(scope="module")
def arrays(tmp_path_factory) -> dict[str, np.ndarray]:
    file = tmp_path_factory.mktemp("lattice") / "honest.npz"
    data = simulate(Dynamics.named("constant"), 20, 20, 1 / 20, seed=1).transitions()
    data.lattice(CT=3.0, TRT=20.0, n_blocks=2, reach=15.0).save(file)
    with np.load(file, allow_pickle=False) as loaded:
        return dict(loaded)


@pytest.fixture(scope="module")
def contents(tmp_path_factory) -> list[dict]:
    """Of recoveries: a Fourier head with smoothing, a spline, an MLP, a learned alpha and tempering."""
    place = tmp_path_factory.mktemp("recoveries")
    cell = simulate(Dynamics.named("constant"), 40, 20, 1 / 20, seed=2).transitions()
    settings = [
        {"n_basis": 5, "law": "frozen"},
        {"n_basis": 1, "tempering": "learn", "law": "frozen"},
        {"coefficients": "spline", "n_basis": 5, "period": None, "law": "frozen"},
        {"coefficients": {"name": "mlp", "width": 3}, "engine": "adam", "max_steps": 3, "law": "frozen"},
    ]
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k, options in enumerate(settings):
            file = recover(cell, alpha=0.3, **options).save(place / f"{k}.pt")
            found.append(torch.load(file, weights_only=True))
    return found


# -- mutations ---------------------------------------------------------------------------------------------------------


def changed_array(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The same with one thing different."""
    array = array.copy()
    kind = rng.integers(8)
    with np.errstate(all="ignore"):
        if kind == 0 and array.size and array.dtype.kind in "fi":
            value = NUMBERS[rng.integers(len(NUMBERS))]
            if array.dtype.kind == "i":
                value = int(value) if math.isfinite(value) and abs(value) < 2**63 else 2**60
            array.reshape(-1)[rng.integers(array.size)] = value
        elif kind == 1 and array.dtype.kind in "fi":
            array = array * array.dtype.type([-1, 1000, 2][rng.integers(3)])
        elif kind == 2 and array.ndim:
            array = array[::-1].copy()
        elif kind == 3 and array.ndim:
            array = array[: rng.integers(len(array) + 1)]
        elif kind == 4 and array.dtype.kind in "fi":
            array = array.astype([np.float32, np.int32, np.complex128, "<U4", bool][rng.integers(5)])
        elif kind == 5 and array.dtype.kind == "f":
            array = array * 10.0 ** rng.integers(-12, 12)
        elif kind == 6 and array.ndim:
            array = np.concatenate([array, array])
        else:
            array = np.zeros_like(array)
    return array


def leaves(content, path=()):
    """The paths of all parts of nested containers."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, (dict, list)) and len(path) < 4:
            yield from leaves(value, (*path, key))


def changed_content(content: dict, rng: np.random.Generator) -> tuple[dict, tuple]:
    """A copy of a recovery with one leaf replaced, removed, or with one number of a tensor changed."""
    content = copy.deepcopy(content)
    paths = [path for path in leaves(content) if path[0] != "history" or rng.random() < 0.02]
    path = paths[rng.integers(len(paths))]
    parent = content
    for key in path[:-1]:
        parent = parent[key]
    old, kind = parent[path[-1]], rng.integers(4)
    if isinstance(old, torch.Tensor) and kind:
        new = old.clone()
        if kind == 1:
            new.view(-1)[rng.integers(new.numel())] = float(NUMBERS[rng.integers(len(NUMBERS))])
        else:
            new = [-new, new * 1e200, new[:-1], new.to(torch.int32), new.to(torch.complex128)][rng.integers(5)]
        parent[path[-1]] = new
    elif kind == 0 and isinstance(parent, dict):
        del parent[path[-1]]
    else:
        parent[path[-1]] = VALUES[rng.integers(len(VALUES))]
    return content, path


# -- use ---------------------------------------------------------------------------------------------------------------


def use_lattice(file: Path) -> None:
    lattice = Lattice.load(file)
    repr(lattice), lattice.facts(), lattice.counts_of_states(), lattice.typical_steps(100), lattice.batch_of_blocks()
    lattice + lattice
    recover(lattice, alpha=0.3, n_basis=1, law="frozen", max_steps=4, tail={"CT": "auto"})


def use_recovery(file: Path) -> None:
    found = Recovery.load(file)
    x = torch.linspace(-1.0, 1.0, 5)
    uses = [
        lambda: (found.law, found.support, found.modulation, found.alpha, found.tempering),
        lambda: found.to_frame(5),
        lambda: found.std(x),
        lambda: (found.alpha_std, found.tempering_std),
        lambda: found.simulate(2, 2, 0.1, substeps=2),
        lambda: solve_value(found, torch.cos, 1.0, n_modes=9)(x),
        lambda: found.save(file.with_name("again.pt")),
    ]
    for use in uses:  # what is refused in one way may still be used in another
        try:
            use()
        except LevytorchError:
            continue
    for text in (repr(found), str(found.summary())):
        assert "\x1b" not in text


def judged(use, file: Path) -> str | None:
    """What came out that must not."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            use(file)
        except LevytorchError as error:
            text = str(error)
            if "\x1b" in text or text.count("save it again") > 1:
                return f"a message {text!r}"
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
    seconds = time.process_time() - began
    return f"{seconds:.0f} seconds" if seconds > SECONDS else None


COUNTS = [pytest.param(1, 60, id="some"), pytest.param(3, 600, id="many", marks=pytest.mark.slow)]


@pytest.mark.long
@pytest.mark.parametrize(("seed", "n"), COUNTS)
def test_lattices_with_a_few_things_changed(seed, n, arrays, tmp_path, record_property):
    rng, failures, file = np.random.default_rng(sampling.seed(seed)), [], tmp_path / "lattice.npz"
    names = sorted(arrays)
    for k in range(n):
        chosen = rng.choice(names, size=rng.integers(1, 3), replace=False)
        np.savez(file, **(arrays | {name: changed_array(arrays[name], rng) for name in chosen}))
        if (found := judged(use_lattice, file)) is not None:
            failures.append((k, *chosen, found))
    record_property("inputs lattices", n)
    assert not failures, "\n".join(map(str, failures))


@pytest.mark.long
@pytest.mark.parametrize(("seed", "n"), COUNTS)
def test_recoveries_with_a_few_things_changed(seed, n, contents, tmp_path, record_property):
    rng, failures, file = np.random.default_rng(sampling.seed(seed)), [], tmp_path / "recovery.pt"
    for content in contents:  # unchanged; kernels are compiled here, where nobody looks at the time
        torch.save(content, file)
        use_recovery(file)
    for k in range(n):
        content, path = changed_content(contents[k % len(contents)], rng)
        torch.save(content, file)
        if (found := judged(use_recovery, file)) is not None:
            failures.append((k, path, found))
    record_property("inputs recoveries", n)
    assert not failures, "\n".join(map(str, failures))


# -- what was found by hand --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("weights_values", lambda a: 1e6 * a, "weights that do not add up to the pairs"),
        ("weights_values", lambda a: -a, "weights that do not add up to the pairs"),
        ("states_values", lambda a: a * 2.0**60, "pairs"),
        ("dropped", lambda a: a - 2**60, "counts of dropped pairs"),
        ("x_range", lambda a: a[::-1].copy(), "an x_range in reverse"),
    ],
)
def test_lattices_that_loaded_and_then_broke(name, change, found, arrays, tmp_path):
    np.savez(tmp_path / "lattice.npz", **(arrays | {name: change(arrays[name])}))
    with pytest.raises(InputError, match=rf"found .*{found}.*; save it again\.$"):
        Lattice.load(tmp_path / "lattice.npz")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda c: c | {"covariance": -c["covariance"]}, "no negative variances"),
        (lambda c: c | {"covariance": c["covariance"] * math.nan}, "a finite row and column"),
        (lambda c: c | {"covariance": c["covariance"].triu()}, "symmetric"),
        (lambda c: c | {"metrics": c["metrics"] | {"left_out_of_series": 3}}, "left_out_of_series"),
        (lambda c: c | {"metrics": c["metrics"] | {"left_out_of_series": [None]}}, "left_out_of_series"),
        (lambda c: c | {"metrics": c["metrics"] | {"x_min": 2.0, "x_max": 1.0}}, "x_min"),
        *(
            (lambda c, key=key, value=value: c | {"metrics": c["metrics"] | {key: value}}, key)
            for key, value in (
                *(("steps", "many"), ("steps", None), ("left_out", 3), ("vanishing", 3), ("vanishing", ["V"])),
                *(("law", None), ("states", None), ("n_main", None), ("seed", "\x1b[31m"), ("at_zero", {"D_f": {}})),
                ("at_zero", {"D_f": {"std": 0.1, "upper": 0.2, "moves": [0.0]}}),
            )
        ),
    ],
)
def test_recoveries_that_loaded_and_then_broke(change, found, contents, tmp_path):
    torch.save(change(contents[0]), tmp_path / "recovery.pt")
    with pytest.raises(InputError, match=rf"must hold a complete recovery, .*{found}.*\); save it again\.$"):
        Recovery.load(tmp_path)
