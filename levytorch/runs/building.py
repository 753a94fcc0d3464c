"""What the groups callbacks, logger, data, coefficients, engine and trainer name with `_target_`, built.

By hydra for one's own command line, from the allow-list for a run directory that may be someone else's: who builds is
handed in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from levytorch.coefficients import Head
from levytorch.coefficients.build import OPTIONS
from levytorch.coefficients.head import KNOWABLE
from levytorch.convert import known_keys, shown, whole_number
from levytorch.errors import ConfigError, LevytorchError, within_configuration
from levytorch.ranks import processes
from levytorch.runs import allow_list
from levytorch.runs.reading import FROM_FILE, FROM_LATTICE
from levytorch.training.engines.base import ENGINES, Engine, engine_options
from levytorch.training.fit import TRAINER, quiet_lightning

OWN_FLAGS = ("progress", "log_every", "devices", "num_nodes")  # of the trainer group; the others are Lightning's
# flags of lightning.Trainer that other settings decide -> where
DECIDED = {
    "callbacks": "the group callbacks",
    "logger": "the group logger",
    "max_steps": "engine.max_steps",
    "max_epochs": "engine.max_steps",
    "enable_progress_bar": "trainer.progress",
    "log_every_n_steps": "trainer.log_every",
    "default_root_dir": "hydra.run.dir",
    "enable_checkpointing": "callbacks.checkpoints",
    "use_distributed_sampler": "trainer.devices",
}
CHECKPOINTS = "levytorch.training.callbacks.Checkpoints"
TENSORBOARD = "levytorch.runs.tensorboard.TensorBoard"
Build = Callable[[str, Any], Any]  # (where it stands, a node of the configuration) -> what it names


def own_head(node: Mapping[str, Any], build: Build) -> Head:
    """A head of the user's own, given what it names of the settings that our heads have, and all others."""
    _check_target("coefficients", node)
    target = allow_list.imported("coefficients", node["_target_"])
    if not callable(target):
        raise ConfigError(f"coefficients._target_ must name a Head, found {shown(target)}; derive it from Head.")
    named = inspect.signature(target).parameters
    shared = {"name", *(key for options in OPTIONS.values() for key in options)}
    taken = {key: value for key, value in node.items() if key in named or key not in shared}
    head = build(
        "coefficients", {key: value for key, value in taken.items() if key not in KNOWABLE or value is not None}
    )
    if not isinstance(head, Head):
        raise ConfigError(f"coefficients._target_ must name a Head, found {shown(head)}; derive it from Head.")
    return head


def own_engine(node: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an engine of the user's own, which is known by its dotted name from now on."""
    _check_target("engine", node)
    name = node["_target_"]
    found = allow_list.imported("engine", name)
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise ConfigError(f"engine._target_ must name an Engine, found {shown(found)}; derive it from Engine.")
    shared = {"_target_", "name", *(key for engine in ENGINES for key in engine_options(engine))}
    ENGINES[name] = f"{found.__module__}:{found.__qualname__}"
    return {"name": name} | {k: v for k, v in node.items() if k in engine_options(name) or k not in shared}


def entries(group: str, config: Mapping[str, Any], build: Build, directory: Path) -> list[Any]:
    """What a group of named callbacks or loggers holds, built; entries that are null or false are left out."""
    from lightning.pytorch import Callback
    from lightning.pytorch.loggers import Logger

    kind = {"callbacks": Callback, "logger": Logger}[group]
    # ours write into the run directory, whatever the settings say
    places = {CHECKPOINTS: directory / "checkpoints", TENSORBOARD: directory}
    made = []
    for name, node in config[group].items():
        where = f"{group}.{name}"
        if node is None or node is False:
            continue
        if where == "logger.tensorboard" and node is True:
            node = {"_target_": TENSORBOARD}  # as runs of older versions say
        _check_target(where, node)
        target = node["_target_"]
        if target in allow_list.TARGETS:
            named = set(inspect.signature(allow_list.target_named(target)).parameters) - {"directory"}
            known_keys(f"the settings of {where}", set(node) - {"_target_"}, named, ConfigError)
            with within_configuration():
                whole_number(f"{where}.every", node.get("every", 1), 1)
            node = {**node, "directory": str(places[target])} if target in places else node
        made.append(build(where, node))
        if not isinstance(made[-1], kind):
            raise ConfigError(f"{where} must be a Lightning {kind.__name__}, found {shown(made[-1])}; name one.")
    return made


def trainer_flags(trainer: Mapping[str, Any], build: Build) -> dict[str, Any]:
    """What lightning.Trainer is given beside what the fit decides."""
    if not {"devices", "num_nodes"} <= set(trainer):
        raise ConfigError("trainer must have devices and num_nodes, found one missing; use trainer=default.")
    several = processes(trainer)
    flags = {key: value for key, value in trainer.items() if key not in OWN_FLAGS}
    if not flags:
        return several
    import lightning as L
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    for flag in DECIDED.keys() & flags.keys():
        raise ConfigError(f"trainer.{flag} must be left to {DECIDED[flag]}, found {shown(flags[flag])}; set it there.")
    known = set(inspect.signature(L.Trainer).parameters) - set(DECIDED)
    known_keys("the settings of trainer", flags, known | set(OWN_FLAGS), ConfigError)
    made: dict[str, Any] = build("trainer", flags)
    try:
        with quiet_lightning():
            L.Trainer(**TRAINER | several | made)  # which looks at every flag
    except (MisconfigurationException, ValueError, TypeError) as error:
        told = " ".join(str(error).split())[:500]
        raise ConfigError(
            f"trainer must be what Lightning accepts, found what it does not ({told}); change it."
        ) from error
    return several | made


def build_with_hydra(where: str, node: Any) -> Any:
    """What a node names, and in it what its parts name: settings of one's own command line."""
    import hydra
    from hydra.errors import InstantiationException

    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, LevytorchError):
            raise error.__cause__ from None
        told = " ".join(str(error).split())[:500]
        raise ConfigError(
            f"{where} must name what can be built, found what cannot ({told}); check its keys."
        ) from error


def data_source(unresolved: Any, settings: Mapping[str, Any], build: Build, directory: Path) -> Callable[[], Any]:
    """The source of the data: a callable."""
    data = dict(settings["data"])
    if data.get("_target_") in (*FROM_FILE, *FROM_LATTICE) and OmegaConf.is_interpolation(unresolved, "alpha"):
        raise ConfigError("alpha must be given for data from a file, found none; add alpha=learn or alpha=<number>.")
    column = settings["coefficients"].get("modulation")
    if column is not None:
        data["modulation"] = column
    if data.get("on_disk") is True:
        # pairs that do not fit into memory lie in the run directory, where a resumed run finds them
        data["on_disk"] = str(directory / "cache")
    source = build("data", data)
    if not callable(source):
        raise ConfigError(f"data must be a callable source, found {source!r:.60}; choose one with data=<name>.")
    return source


def _check_target(where: str, node: Any) -> None:
    if not isinstance(node, Mapping) or not isinstance(node.get("_target_"), str) or not node["_target_"]:
        found = node.get("_target_") if isinstance(node, Mapping) else node
        raise ConfigError(f"{where} must be a group whose _target_ names a class, found {shown(found)}; name one.")
