"""Configurations with one bad leaf, in process: hydra composes, the checks of train.py or evaluate.py judge."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from levytorch import Trajectories

ROOT = Path(__file__).parents[2]
BAD: tuple[Any, ...] = (
    None,
    "abc",
    "",
    "1e400",
    True,
    False,
    -1,
    0,
    1,
    0.5,
    -0.5,
    1.5,
    math.nan,
    math.inf,
    -math.inf,
    1e308,
    -1e308,
    10**30,
    [],
    [1, 2],
    ["a"],
    {},
    {"a": 1},
)
SMALL = ("debug=default", "data.n_trajectories=30", "data.n_steps=5", "data.substeps=1", "trainer.progress=false")
GROUPS = (
    *("data", "dynamics", "coefficients", "density", "engine", "tail", "reward"),
    *("trainer", "callbacks", "diagnostics", "logger"),
)


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml"))


@cache
def composed(name: str, *overrides: str) -> DictConfig:
    """A configuration, which whoever asks for it leaves as it is."""
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(name, list(overrides))


def small(*choices: str) -> list[str]:
    """Overrides that keep a run small; a file has no size."""
    sized = [
        o
        for o in SMALL
        if not (any(c.startswith(("data=file", "data=lattice")) for c in choices) and o.startswith("d"))
    ]
    return [*choices, *sized]


def leaves(config: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys of all values that are no groups."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def changed(config: DictConfig, key: str, value: Any) -> DictConfig:
    """The same configuration with another value at a key, of whatever kind."""
    plain: Any = OmegaConf.to_container(config, resolve=False)
    *groups, last = key.split(".")
    place = plain
    for group in groups:
        place = place[group]
    place[last] = value
    return OmegaConf.create(plain)


def train_cases(file: Path) -> Iterator[tuple[str, DictConfig]]:
    """Every leaf of train.yaml with the default groups, then every leaf of every other option."""
    extra = {
        "data=file": [f"data.path={file}", "alpha=0.3", "reward=cosine_power"],
        "data=lattice": [f"data.path={_lattice(file)}", "alpha=0.3"],
        "coefficients=mlp": ["engine=lbfgs"],
        "reward=tabulated": [f"reward.path={file}"],
        "reward=callable": ["reward.path=torch.cos"],
        "dynamics=plane": ["coefficients.n_basis=3"],
    }
    base = composed("train", *small())
    plain: Any = OmegaConf.to_container(base, resolve=False)
    for key in leaves(plain):
        for value in BAD:
            yield f"{key}={value!r}", changed(base, key, value)
    for group in GROUPS:
        for option in options(group):
            choice = f"{group}={option}"
            config = composed("train", *small(choice, *extra.get(choice, [])))
            section: Any = OmegaConf.to_container(config[group], resolve=False)
            for key in leaves(section):
                for value in BAD:
                    yield f"{choice} {group}.{key}={value!r}", changed(config, f"{group}.{key}", value)
            for value in BAD:
                yield f"{choice} {group}={value!r}", changed(config, group, value)
            yield f"{choice} {group}.colour=red", changed(config, f"{group}.colour", "red")


def _lattice(file: Path) -> Path:
    """A lattice of the file's data, saved beside it."""
    path = file.with_suffix(".npz")
    Trajectories.from_file(file, value="x", reward="r").transitions().lattice(CT=0.05, TRT=5.0).save(path)
    return path


def evaluate_cases() -> Iterator[tuple[str, DictConfig]]:
    """Every leaf of evaluate.yaml and of every reward."""
    for option in options("reward"):
        config = composed("evaluate", f"reward={option}")
        plain: Any = OmegaConf.to_container(config, resolve=False)
        for key in leaves(plain) if option == "manufactured" else [f"reward.{k}" for k in leaves(plain["reward"])]:
            for value in BAD:
                yield f"reward={option} {key}={value!r}", changed(config, key, value)
