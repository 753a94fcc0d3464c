"""Going on in a run directory: its settings are read as data, and nothing outside levytorch is built from them.

A run directory may come from someone else. Its overrides are taken over one by one, each looked at first; its
checkpoints load with weights-only semantics; and nothing is written through links that lead out of it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from levytorch.errors import ConfigError
from levytorch.training.files import write_json, write_text

log = logging.getLogger("levytorch.train")
RECORD = "run.json"
# what a configuration may build: exact names, because a prefix would reach whatever those modules have imported
TARGETS = {
    "levytorch.simulation.source.Simulated",
    "levytorch.data.sources.FromFile",
    "levytorch.dynamics.Dynamics",
    "levytorch.dynamics.Dynamics.named",
}
_KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
_RESUME = re.compile(r"\+{0,2}resume=")
# what Lightning reads from a checkpoint, and of what kind
_PARTS = {"state_dict": dict, "callbacks": dict, "loops": dict, "optimizer_states": list, "global_step": int}


def write_record(directory: Path, config: Any, overrides: Sequence[str], *, again: bool) -> None:
    """What the run was started with: run.json for going on, .hydra/ for reading. Each whole or not at all."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    own = [o for o in overrides if not _RESUME.match(o)]
    hydra = OmegaConf.masked_copy(HydraConfig.instance().cfg, ["hydra"])
    for name, content in (("config", config), ("hydra", hydra), ("overrides", OmegaConf.create(list(own)))):
        write_text(directory / ".hydra" / f"{name}.yaml", OmegaConf.to_yaml(content))
    if not again:
        write_json(directory / RECORD, {"overrides": own})


def expand(arguments: Sequence[str]) -> list[str]:
    """Command line with resume=<directory> replaced by the run's own overrides, the new ones after them."""
    named = [_RESUME.sub("", a, count=1).strip("'\"") for a in arguments if _RESUME.match(a)]
    if not named or named[-1] in ("", "null"):
        return list(arguments)
    if {"-m", "--multirun"} & set(arguments):
        raise ConfigError("resume goes on with one run, found it in a multirun; resume the runs one by one.")
    directory = Path(named[-1])
    if any(mark in str(directory) for mark in ("'", "\\", "${")):
        raise ConfigError(f"resume must name a directory without quotes, \\ and ${{, found {directory}; rename it.")
    check_links(directory)
    safe = read_overrides(directory)
    end = [f"resume='{directory}'", f"hydra.run.dir='{directory}'"]
    if any(list(arguments[k : k + 2]) == end for k in range(len(arguments))):
        return list(arguments)  # done already: a process that a resumed run has started has its command line
    rest = [a for a in arguments if not _RESUME.match(a)]
    return [*safe, *rest, *end]


def read_overrides(directory: Path) -> list[str]:
    """The overrides of a run directory, every one of them checked."""
    record = directory / RECORD
    if not record.is_file():
        raise ConfigError(f"resume must name a run directory, found no {RECORD} in {directory}; check the path.")
    try:
        stored = json.loads(record.read_text(encoding="utf-8"))["overrides"]
        if not isinstance(stored, list) or not all(isinstance(o, str) for o in stored):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{record} must list the overrides of a run, found something else; start anew.") from error
    for override in stored:
        reason = objection(override)
        if reason is not None:
            raise ConfigError(
                f"{record} may only hold settings of levytorch, found {override!r} ({reason}); start the run anew on "
                "your own command line."
            )
    return stored


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
    if re.search(r"\$\{[^}]*:", text):
        return "a resolver"
    if last == "_target_" and text not in TARGETS:
        return "_target_ names something else"
    if "." not in key and ("/" in text or "\\" in text or ".." in text):
        return "a path to a configuration"
    return None


def check_places(config: Any, directory: Path) -> None:
    """Refuse settings of a run directory that would write elsewhere, and say which files they read."""
    cache = (config.get("data") or {}).get("on_disk")
    if isinstance(cache, str):
        inside = os.path.realpath(directory)
        if os.path.commonpath([inside, os.path.realpath(cache)]) != inside:
            raise ConfigError(
                f"a resumed run may keep its data in its own directory only, found data.on_disk={cache}; start it anew "
                "on your own command line."
            )
    for part in ("data", "reward"):
        path = (config.get(part) or {}).get("path")
        if path is not None:
            log.info(f"the resumed run reads {part}.path={os.path.abspath(str(path))}")


def check_links(directory: Path) -> None:
    """Refuse a run directory in which something leads elsewhere: going on would write there."""
    inside = os.path.realpath(directory)
    for place, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = os.path.join(place, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                if os.path.commonpath([inside, os.path.realpath(path)]) != inside:
                    raise ConfigError(
                        f"a resumed run must lie in its directory, found the link {path} to {os.path.realpath(path)}; "
                        "replace the link by what it points to."
                    )
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise ConfigError(f"a run directory holds files and directories, found {path}; remove it.")


def checkpoint(directory: Path) -> Path | None:
    """Where to go on: the last state, or the one saved when something went wrong, whichever has more steps."""
    found = [directory / "checkpoints" / name for name in ("last.ckpt", "exception.ckpt")]
    # not by their dates, which a copy of the directory does not keep
    return max((path for path in found if path.is_file()), key=_steps, default=None)


def _steps(path: Path) -> int:
    import torch

    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip, torch and I/O errors of foreign files have no common base
        raise ConfigError(
            f"{path} must be a checkpoint of levytorch, found a file that does not load safely "
            f"({type(error).__name__}); remove it to go on from another checkpoint or from the start."
        ) from error
    if not isinstance(content, dict) or not all(isinstance(content.get(k), kind) for k, kind in _PARTS.items()):
        raise ConfigError(
            f"{path} must be a checkpoint of levytorch, found other content; remove it to go on from another "
            "checkpoint or from the start."
        )
    return int(content["global_step"])


def check_targets(config: Any) -> None:
    """Refuse a configuration from a run directory that would build anything but levytorch's data and dynamics."""
    if isinstance(config, Mapping):
        target = config.get("_target_")
        if target is not None and not (isinstance(target, str) and target in TARGETS):
            raise ConfigError(
                f"a resumed run may only build {', '.join(sorted(TARGETS))}, found _target_ {target!r}; start it anew "
                "on your own command line."
            )
        if config.get("name") == "callable" and config.get("path") is not None:
            raise ConfigError("a resumed run may not import a reward by path, found one; use evaluate.py for that.")
        for value in config.values():
            check_targets(value)
    elif isinstance(config, (list, tuple)):
        for value in config:
            check_targets(value)
