"""Going on in a run directory: its settings are read as data, and nothing outside levytorch is built from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from levytorch.errors import ConfigError
from levytorch.training.files import write_json

RECORD = "run.json"
# what a configuration may build: exact names, because a prefix would reach whatever those modules have imported
TARGETS = {
    "levytorch.simulation.source.Simulated",
    "levytorch.data.sources.FromFile",
    "levytorch.dynamics.Dynamics",
    "levytorch.dynamics.Dynamics.named",
}


def write_overrides(directory: Path, overrides: Sequence[str]) -> None:
    """What the run was started with; written once, whole."""
    if not (directory / RECORD).exists():
        write_json(directory / RECORD, {"overrides": [o for o in overrides if not o.startswith("resume=")]})


def expand(arguments: Sequence[str]) -> list[str]:
    """Command line with resume=<directory> replaced by the run's own overrides, the new ones after them."""
    named = [a for a in arguments if a.startswith("resume=")]
    if not named or named[-1] in ("resume=", "resume=null"):
        return list(arguments)
    directory = Path(named[-1].removeprefix("resume=").strip("'\""))
    record = directory / RECORD
    if not record.is_file():
        raise ConfigError(f"resume must name a run directory, found no {RECORD} in {directory}; check the path.")
    try:
        stored = json.loads(record.read_text(encoding="utf-8"))["overrides"]
        if not all(isinstance(o, str) for o in stored):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{record} must list the overrides of a run, found something else; start anew.") from error
    # hydra's own settings can name code to run: those of a run directory are never taken over
    safe = [o for o in stored if not o.lstrip("+~").startswith(("hydra", "resume"))]
    rest = [a for a in arguments if not a.startswith("resume=")]
    return [*safe, *rest, f"resume='{directory}'", f"hydra.run.dir='{directory}'"]


def checkpoint(directory: Path) -> Path | None:
    """Where to go on: the last state, or the one saved when something went wrong, whichever is newer."""
    found = [directory / "checkpoints" / name for name in ("last.ckpt", "exception.ckpt")]
    found = [path for path in found if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime) if found else None


def check_targets(config: Any) -> None:
    """Refuse a configuration from a run directory that would build anything but levytorch's data and dynamics."""
    if isinstance(config, Mapping):
        target = config.get("_target_")
        if target is not None and target not in TARGETS:
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
