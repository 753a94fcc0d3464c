"""What a run directory from someone else may say: its settings, what may be built from them, where it may write.

Settings are data. Every stored override is checked by itself (`objection`), then the whole configuration, resolved
once (`check_resumed`); what it names is built from a list (`build`), not by hydra, which would resolve strings and
import names once more. Names that are not on the list are built only where the user's own command line repeats them.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from levytorch.errors import ConfigError

log = logging.getLogger("levytorch.train")
# what a configuration may build and where it is: exact names, because a prefix would reach whatever those modules have
# imported
TARGETS = {
    "levytorch.simulation.Simulated": "levytorch.simulation:Simulated",
    "levytorch.simulation.source.Simulated": "levytorch.simulation:Simulated",  # its name in older run directories
    "levytorch.data.sources.FromFile": "levytorch.data.sources:FromFile",
    "levytorch.distributed.source.FromFiles": "levytorch.distributed.source:FromFiles",
    "levytorch.data.sources.FromLattice": "levytorch.data.sources:FromLattice",
    "levytorch.data.lattice_source.FromLattice": "levytorch.data.sources:FromLattice",  # likewise
    "levytorch.dynamics.Dynamics": "levytorch.dynamics:Dynamics",
    "levytorch.dynamics.Dynamics.named": "levytorch.dynamics:Dynamics.named",
    "levytorch.controlled.ControlledDynamics.named": "levytorch.controlled:ControlledDynamics.named",
    "levytorch.likelihood.frozen.FrozenLaw": "levytorch.likelihood.frozen:FrozenLaw",
    "levytorch.likelihood.exact.ExactLaw": "levytorch.likelihood.exact:ExactLaw",
    "levytorch.training.callbacks.Checkpoints": "levytorch.training.callbacks:Checkpoints",
    "levytorch.runs.tensorboard.CoefficientFigures": "levytorch.runs.tensorboard:CoefficientFigures",
    "levytorch.runs.tensorboard.TensorBoard": "levytorch.runs.tensorboard:TensorBoard",
    "lightning.pytorch.callbacks.EarlyStopping": "lightning.pytorch.callbacks:EarlyStopping",
}
# flags of the Trainer that are names; any other text could be a place to write to
_WORDS = ("accelerator", "precision", "gradient_clip_algorithm")
_KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_PLAIN = re.compile(r"(?<!\\)\$\{[A-Za-z_]\w*(\.\w+)*\}")  # the name of another setting


def objection(override: str) -> str | None:
    """Why a stored override is not taken over, or None. hydra's own settings, flags and paths to configuration files
    can name code to run; resolvers can read the environment.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if override.startswith("-"):
        return "a flag"
    if any(ord(c) < 32 for c in override):
        return "control characters"
    try:
        parsed = OverridesParser.create().parse_override(override)
    except (HydraException, RecursionError):
        return "no override"
    key = str(parsed.key_or_group)
    if parsed.package is not None or not _KEY.fullmatch(key):
        return "a group in another place"
    first, last = key.split(".")[0], key.split(".")[-1]
    if first in ("hydra", "resume"):
        return f"a setting of {first}"
    text = override.partition("=")[2]
    if "$" in _PLAIN.sub("", text):
        return "an interpolation that is more than the name of another setting"
    if last == "_target_" and text not in TARGETS:
        return "_target_ names something else"
    if "." not in key and ("/" in text or "\\" in text or ".." in text):
        return "a path to a configuration"
    return None


def own_targets(overrides: Iterable[str]) -> dict[str, str]:
    """Node -> name of the overrides `node._target_=name` that name what is not on the list.

    A stored override of this kind has an objection, so that among those of a resumed run they are the user's own.
    """
    named = (override.lstrip("+").partition("=") for override in overrides)
    return {
        key.removesuffix("._target_"): value
        for key, _, value in named
        if key.endswith("._target_") and value not in TARGETS
    }


def check_links(directory: Path) -> None:
    """Refuse a run directory in which something leads elsewhere: going on would write there."""

    def refuse(error: OSError) -> None:  # os.walk would pass over what it cannot look into
        raise ConfigError(
            f"a resumed run must lie in a directory that can be listed, found {error.filename} ({error.strerror}); "
            "change its permissions."
        )

    inside = os.path.realpath(directory)
    for place, directories, files in os.walk(directory, onerror=refuse):
        for name in (*directories, *files):
            path = os.path.join(place, name)
            status = os.lstat(path)
            mode = status.st_mode
            if stat.S_ISLNK(mode):
                if os.path.commonpath([inside, os.path.realpath(path)]) != inside:
                    raise ConfigError(
                        f"a resumed run must lie in its directory, found the link {path} to {os.path.realpath(path)}; "
                        "replace the link by what it points to."
                    )
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise ConfigError(f"a run directory must hold files and directories only, found {path}; remove it.")
            elif stat.S_ISREG(mode) and status.st_nlink > 1:
                raise ConfigError(
                    f"a file of a resumed run must have one name, found {path} with {status.st_nlink} (hard links); "
                    "copy the directory and resume the copy."
                )


def check_resumed(config: Any, directory: Path, own: Mapping[str, str] | None = None) -> None:
    """Refuse a configuration that would build anything but what is on the list, or write elsewhere.

    config: plain containers, resolved. What is left of an interpolation in them would be resolved again by whoever
    reads them next, after this check. own: the `own_targets` of the user's command line.
    """
    _check_node(config, "", own or {})
    for flag, value in (config.get("trainer") or {}).items():
        if isinstance(value, str) and flag not in (*_WORDS, "_target_"):  # which is checked like every other
            raise ConfigError(
                f"trainer.{flag} of a resumed run must be a number or a switch, found {value!r}; start a new run on "
                "your own command line."
            )
    _check_places(config, directory)


def _check_node(config: Any, where: str, own: Mapping[str, str]) -> None:
    if isinstance(config, Mapping):
        target = config.get("_target_")
        listed = isinstance(target, str) and (target in TARGETS or own.get(where) == target)
        if target is not None and not listed:
            raise ConfigError(
                f"_target_ of a resumed run must be one of {', '.join(sorted(TARGETS))}, found {target!r}; start it "
                f"anew on your own command line, or repeat {where}._target_ there."
            )
        if "callable" in (config.get("name"), config.get("kind")) and config.get("path") is not None:
            raise ConfigError(
                "a resumed run must not import a reward or a policy by path, found one; use evaluate.py for that."
            )
        for key, value in config.items():
            _check_node(key, "", {})
            _check_node(value, f"{where}.{key}" if where else str(key), own)
    elif isinstance(config, (list, tuple)):
        for value in config:
            _check_node(value, f"{where}[]", own)
    elif isinstance(config, str) and "${" in config:
        raise ConfigError(
            f"a resumed run must not hold settings that are still to be resolved, found {config!r}; start a new run on "
            "your own command line."
        )


def _check_places(config: Any, directory: Path) -> None:
    """Refuse settings that would write elsewhere, and say which files they read."""
    for name in ("on_disk", "checkpoint"):
        place = (config.get("data") or {}).get(name)
        inside = os.path.realpath(directory)
        if isinstance(place, str) and os.path.commonpath([inside, os.path.realpath(place)]) != inside:
            raise ConfigError(
                f"data.{name} of a resumed run must lie in its own directory, found {place}; start a new run on your "
                "own command line."
            )
    for part in ("data", "reward"):
        named = (config.get(part) or {}).get("path")
        for path in named if isinstance(named, (list, tuple)) else [named]:
            if path is not None:
                log.info(f"the resumed run reads {part}.path={os.path.abspath(str(path))}")


def build(config: Any, where: str = "", own: Mapping[str, str] | None = None) -> Any:
    """The object that checked settings name, without hydra: what is on the list, from plain values."""
    if isinstance(config, list):
        return [build(value, f"{where}[]", own) for value in config]
    if not isinstance(config, Mapping):
        return config
    values = {str(key): build(value, f"{where}.{key}" if where else str(key), own) for key, value in config.items()}
    name = values.pop("_target_", None)
    if name is None:
        return values
    odd = [key for key in values if key.startswith("_")]
    mine = own is not None and own.get(where) == name
    if (name not in TARGETS and not mine) or odd:
        raise ConfigError(f"a resumed run must build only what it names, found {odd or name}; start a new run.")
    try:
        return (imported(where, name) if mine else target_named(name))(**values)
    except TypeError as error:
        raise ConfigError(
            f"the settings of {name} must fit it, found that they do not ({error}); start a new run."
        ) from error


def target_named(name: str) -> Any:
    """What a name of the list stands for."""
    module, _, attribute = TARGETS[name].partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def imported(where: str, target: str) -> Any:
    """What a name of the user's own command line stands for."""
    from hydra.utils import get_object

    try:
        return get_object(target)
    except Exception as error:  # importing runs code that someone else wrote
        raise ConfigError(
            f"{where}._target_ must be importable, found {target!r} ({' '.join(str(error).split())[:300]}); check the "
            "name and that it is on PYTHONPATH."
        ) from error
