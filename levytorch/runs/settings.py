"""The settings of train.py: one schema, checked once, before any data is made; what they name with `_target_`, built.

A command line can put any kind of value anywhere. What it names is built by hydra, from the allow-list where the
settings come out of a run directory that may be someone else's: who builds is handed in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from levytorch.coefficients import Head
from levytorch.coefficients.build import OPTIONS
from levytorch.convert import choice, known_keys, shown, whole_number
from levytorch.diagnostics.checks import check_options
from levytorch.errors import ConfigError, LevytorchError, within_configuration
from levytorch.likelihood.laws import Law
from levytorch.policy.named import check_policies
from levytorch.policy.rewards import check_reward
from levytorch.ranks import processes
from levytorch.runs import allow_list
from levytorch.runs.evaluation_settings import FORMATS
from levytorch.runs.reading import FROM_FILE, FROM_LATTICE
from levytorch.runs.tensorboard import CoefficientFigures
from levytorch.runs.value import options_of
from levytorch.training.engines.base import ENGINES, Engine, engine_options
from levytorch.training.settings import FitSettings, make_settings
from levytorch.training.trainer import TRAINER, quiet_lightning

SECTIONS = (
    *("data", "coefficients", "density", "engine", "law", "tail", "reward", "batch"),
    *("trainer", "callbacks", "logger", "diagnostics", "figures"),
)
KEYS = (
    *SECTIONS,
    *("dynamics", "seed", "alpha", "tempering", "memory", "drift", "observation_noise", "init", "units"),
    *("beta", "empirical"),
    *("policy", "actions", "shared", "n_action"),
    *("resume", "directory", "cluster", "experiment", "arm", "variant"),
)
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
    "barebones": "the groups callbacks and logger",
}
CHECKPOINTS = "levytorch.training.callbacks.Checkpoints"
TENSORBOARD = "levytorch.runs.tensorboard.TensorBoard"
Build = Callable[[str, Any], Any]  # (where it stands, a node of the configuration) -> what it names


@dataclass(frozen=True)
class Prepared:
    """A checked configuration (plain and resolved), and everything that it names."""

    config: dict[str, Any]
    fit: FitSettings
    source: Callable[[], Any]
    callbacks: list[Any]
    loggers: list[Any]
    trainer: dict[str, Any]  # flags of lightning.Trainer
    rebuild: Callable[[Path], tuple[list[Any], list[Any]]]  # callbacks and loggers that write into another directory
    trainer_class: Any = None  # the user's own

    @property
    def figure_formats(self) -> tuple[str, ...]:
        """What figures are written as: nothing without the callback that draws them."""
        formats = next((c.files for c in self.callbacks if isinstance(c, CoefficientFigures)), ())
        pdf = formats and self.config["figures"]["format"] == "pdf"
        return tuple(dict.fromkeys((*formats, "pdf"))) if pdf else tuple(formats)


def prepare_run(
    config: Any, directory: Path, *, resumed: bool = False, own_targets: Mapping[str, str] | None = None
) -> Prepared:
    """Everything that can be refused is, and everything that is named is built; no data is made yet.

    resumed: the settings come out of a run directory, which may be someone else's; own_targets: what the command line
    of this run names itself (`allow_list.own_targets`).
    """
    unresolved = OmegaConf.merge(OmegaConf.create(config), {"directory": str(directory)})
    settings: dict[str, Any] = OmegaConf.to_container(unresolved, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    build: Build = build_with_hydra
    if resumed:
        allow_list.check_resumed(settings, directory, own_targets)  # before anything that it names is looked at

        def build(where: str, node: Any) -> Any:
            return allow_list.build(node, where, own_targets)

    if "group_by" in settings:
        raise ConfigError(
            f"experiment={settings['experiment']} must be run by evaluate.py, found train.py; use the other."
        )
    check_sections(settings)
    fit = fit_settings(settings, build)
    callbacks = entries("callbacks", settings, build, directory)
    loggers = entries("logger", settings, build, directory)
    trainer, trainer_class = trainer_of(settings["trainer"], build)
    options_of(settings)
    if settings["beta"] is not None:
        check_reward(settings["reward"], settings["beta"])
    with_actions(settings)

    def rebuild(place: Path) -> tuple[list[Any], list[Any]]:
        return entries("callbacks", settings, build, place), entries("logger", settings, build, place)

    source = data_source(unresolved, settings, build, directory)
    return Prepared(settings, fit, source, callbacks, loggers, trainer, rebuild, trainer_class)


def with_actions(settings: Mapping[str, Any]) -> None:
    """Refuse what the settings say of data with actions, before it is known whether the data has some."""
    with within_configuration():
        if settings["actions"] is not None:
            choice("actions", settings["actions"], ("auto",), "give null to ignore the actions")
        shared = settings["shared"]
        if not isinstance(shared, list) or not set(shared) <= {"b", "D_o", "D_f"}:
            raise ConfigError(f"shared must list some of b, D_o and D_f, found {shown(shared)}; give shared=[D_o,D_f].")
        whole_number("n_action", settings["n_action"], 2, 12, "3 is a parabola")
        check_policies(settings.get("policy"))


def check_sections(config: Mapping[str, Any]) -> None:
    """Refuse groups that are none, and keys that nothing reads: a misspelt one would be a setting that does nothing."""
    for name in SECTIONS:
        if not isinstance(config.get(name), Mapping):
            raise ConfigError(
                f"{name} must be a group of settings, found {shown(config.get(name))}; choose an option with "
                f"{name}=<name>."
            )
    known_keys("settings", config, KEYS, ConfigError)
    known_keys("the settings of density", config["density"], ("method",), ConfigError)
    known_keys("the settings of figures", config["figures"], ("format",), ConfigError)
    with within_configuration():
        choice("figures.format", config["figures"].get("format"), FORMATS)


def fit_settings(config: Mapping[str, Any], build: Build | None = None) -> FitSettings:
    """The part of a configuration that `recover` would take as arguments."""
    build = build or build_with_hydra
    coefficients, engine, tail = (dict(config[name]) for name in ("coefficients", "engine", "tail"))
    if "period" not in coefficients or "method" not in config["density"]:
        raise ConfigError("coefficients.period and density.method must be given, found one missing; add it.")
    if tail.get("method") == "auto":
        # data=file leaves thresholds open, which is no setting of theirs
        given = [key for key, value in tail.items() if value is not None]
        known_keys("the settings of tail=auto", given, ("method",), ConfigError)
    if (
        tail.get("method") == "conditional"
        and config["data"].get("_target_") in FROM_LATTICE
        and tail.get("CT") is None
    ):
        tail["CT"] = "auto"  # that of the lattice
    head: dict[str, Any] = _modulation(coefficients, config["data"])
    if coefficients.get("_target_") is not None:
        head["coefficients"] = own_part("coefficients", coefficients, Head, build)
    else:
        coefficients.pop("_target_", None)
        head["period"], head["n_basis"] = coefficients.pop("period"), coefficients.pop("n_basis", 1)
        head["coefficients"] = coefficients
    own = engine.get("_target_") is not None
    maximiser = own_part("engine", engine, Engine, build) if own else {k: engine[k] for k in engine if k != "_target_"}
    with within_configuration():
        _check_diagnostics(config["diagnostics"])
        return make_settings(
            alpha=config["alpha"],
            tempering=config.get("tempering", 0.0),
            memory=config.get("memory"),
            drift=config.get("drift", "location"),
            observation_noise=config.get("observation_noise"),
            **head,
            tail="auto" if tail.get("method") == "auto" else tail,
            engine=maximiser,
            seed=config["seed"],
            density=config["density"]["method"],
            init=config["init"],
            units=config["units"],
            log_every=config["trainer"].get("log_every", 50),
            progress=config["trainer"].get("progress", True),
            law=_law(config.get("law", "frozen"), build),
            **{str(key): value for key, value in config["batch"].items()},
        )


def _law(node: Any, build: Build) -> Any:
    """The name of a law, or one of the user's own; older run directories hold the name itself."""
    if not isinstance(node, Mapping):
        return node
    if node.get("_target_") is None:
        known_keys("the settings of law", node, ("name", "_target_"), ConfigError)
        return node.get("name")
    return own_part("law", node, Law, build)


def _modulation(coefficients: dict[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Takes the settings of a modulation out of those of the head."""
    keys = ("modulation", "modulation_period", "n_modulation")
    column, period, n = (coefficients.pop(key, default) for key, default in zip(keys, (None, None, 9)))
    if column is None:
        if data.get("modulation") is not None:
            raise ConfigError(
                f"data.modulation must be left to coefficients.modulation, found {shown(data['modulation'])}; give it "
                "there."
            )
        return {}
    if data.get("_target_") not in FROM_FILE:
        raise ConfigError(
            f"coefficients.modulation must name a column of data=file, found {shown(column)} without a file; leave it "
            "out, or use recover(..., modulation=period)."
        )
    return {"modulation": period, "n_modulation": n}


def diagnostics_options(options: Mapping[str, Any], *, truth_known: bool) -> dict[str, Any]:
    """Arguments of `diagnose`: laws are compared where they are asked for, or where the truth is not known (auto)."""
    chosen = dict(options)
    laws = chosen.pop("laws", False)
    if laws not in ("auto", True, False):
        raise ConfigError(f"diagnostics.laws must be auto, true or false, found {shown(laws)}; leave it out for auto.")
    check_options(**chosen)
    if chosen["checks"] and (laws is True or (laws == "auto" and not truth_known)) and "laws" not in chosen["checks"]:
        chosen["checks"] = [*chosen["checks"], "laws"]
    return chosen


def _check_diagnostics(options: Mapping[str, Any]) -> None:
    """Refuse what `diagnose` would stumble over after the fit."""
    if not {"checks", "max_pairs"} <= set(options) <= {"checks", "max_pairs", "laws"}:
        raise ConfigError(
            f"diagnostics must have checks, max_pairs and laws, found {', '.join(map(str, options)) or 'none'}; use "
            "diagnostics=default or diagnostics=none."
        )
    diagnostics_options(options, truth_known=True)


# -- what _target_ names ----------------------------------------------------------------------------------------------
def own_part(group: str, node: Mapping[str, Any], kind: type, build: Build) -> Any:
    """A head, an engine or a law of the user's own: given those settings of ours that it names, and all others."""
    _check_target(group, node)
    target = allow_list.imported(group, node["_target_"])
    if not callable(target) or (isinstance(target, type) and not _is_kind(target, kind)):
        raise _no_part(group, kind, target)  # before anything is made: the name may be someone else's
    heads = {key for options in OPTIONS.values() for key in options}
    ours = {"_target_", "name"}
    if kind is Head:
        ours |= heads
    elif kind is Engine:
        ours |= {key for name in ENGINES for key in engine_options(name)}
    try:
        named = inspect.signature(target).parameters
    except (ValueError, TypeError):  # of what is not written in Python
        raise _no_part(group, kind, target) from None
    given = {
        key: value
        for key, value in node.items()
        # null leaves a setting out, but that a period of null is a line
        if (key in named or key not in ours) and (value is not None or key == "period" or key not in ours)
    }
    if all(one.kind is not one.VAR_KEYWORD for one in named.values()):
        known_keys(f"the settings of {group}", given, named, ConfigError)
    made = build(group, {"_target_": node["_target_"], **given})
    if not isinstance(made, kind):
        raise _no_part(group, kind, made)
    return made


def _is_kind(target: type, kind: type) -> bool:
    """Whether a class is of a kind; a law need only have its attributes and methods."""
    if kind is Law:
        return all(hasattr(target, name) for name in ("name", "supports", "log_prob", "mass_beyond"))
    return issubclass(target, kind)


def _no_part(group: str, kind: type, found: Any) -> ConfigError:
    name = kind.__name__
    an = "an" if name[0] in "AEIOU" else "a"
    return ConfigError(f"{group}._target_ must name {an} {name}, found {shown(found)}; derive it from {name}.")


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
                if node.get("every") is not None:
                    whole_number(f"{where}.every", node["every"], 1)
            node = {**node, "directory": str(places[target])} if target in places else node
        made.append(build(where, node))
        if not isinstance(made[-1], kind):
            raise ConfigError(f"{where} must be a Lightning {kind.__name__}, found {shown(made[-1])}; name one.")
    return made


def trainer_of(trainer: Mapping[str, Any], build: Build) -> tuple[dict[str, Any], Any]:
    """The flags of the Trainer beside what the fit decides, and its class where that is the user's own."""
    if not {"devices", "num_nodes"} <= set(trainer):
        raise ConfigError("trainer must have devices and num_nodes, found one missing; use trainer=default.")
    several = processes(trainer)
    flags = {key: value for key, value in trainer.items() if key not in OWN_FLAGS}
    if not flags:
        return several, None
    import lightning as L
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    target = flags.pop("_target_", None)
    own = None if target is None else allow_list.imported("trainer", target)
    if own is not None and not (isinstance(own, type) and issubclass(own, L.Trainer)):
        raise _no_part("trainer", L.Trainer, own)
    for flag in DECIDED.keys() & flags.keys():
        raise ConfigError(f"trainer.{flag} must be left to {DECIDED[flag]}, found {shown(flags[flag])}; set it there.")
    accepted = {*inspect.signature(L.Trainer).parameters, *(() if own is None else inspect.signature(own).parameters)}
    known_keys("the settings of trainer", flags, accepted - set(DECIDED) | set(OWN_FLAGS), ConfigError)
    made: dict[str, Any] = build("trainer", flags)
    if isinstance(made.get("profiler"), Mapping):
        raise ConfigError(f"trainer.profiler must be a name, found {shown(made['profiler'])}; leave it out.")
    try:
        with quiet_lightning():
            (own or L.Trainer)(**TRAINER | several | made)  # which looks at every flag
    except (MisconfigurationException, ValueError, TypeError) as error:
        text = " ".join(str(error).split())[:500]
        raise ConfigError(
            f"trainer must hold settings that Lightning accepts, found others ({text}); change them."
        ) from error
    return several | made, own


def build_with_hydra(where: str, node: Any) -> Any:
    """What a node names, and in it what its parts name: settings of the user's own command line."""
    import hydra
    from hydra.errors import InstantiationException

    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, LevytorchError):
            raise error.__cause__ from None
        text = " ".join(str(error).split())[:500]
        raise ConfigError(
            f"{where} must name a class and its arguments, found that it cannot be built ({text}); check its keys."
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
