"""Going on in a run directory, which may come from someone else (`allow_list.py` says what it may hold).

Its overrides are checked and taken over one by one, and its checkpoints load with weights-only semantics.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from levytorch.errors import ConfigError
from levytorch.runs.allow_list import check_links, objection, own_targets
from levytorch.runs.reading import DEFAULTS, RECORD
from levytorch.untrusted import load_tensors, read_json

# what may be given beside resume=: it changes nothing in the numbers of the fit (data.path: the file has moved)
CHANGEABLE = (
    "data.path",
    "beta",
    "reward",
    "policy",
    "diagnostics",
    "figures",
    "callbacks",
    "logger",
    "trainer.progress",
)
_RESUME = re.compile(r"\+{0,2}resume=")
# what Lightning reads from a checkpoint, and of what kind
_PARTS = {"state_dict": dict, "callbacks": dict, "loops": dict, "optimizer_states": list, "global_step": int}


def without_resume(overrides: Sequence[str]) -> list[str]:
    """The settings among overrides, which is what run.json holds."""
    return [override for override in overrides if not _RESUME.match(override)]


def expand(arguments: Sequence[str]) -> list[str]:
    """Command line with resume=<directory> replaced by the run's own overrides, the new ones after them.

    An override of the run that is repeated on the command line is the user's own, whatever it names.
    """
    named = [_RESUME.sub("", a, count=1).strip("'\"") for a in arguments if _RESUME.match(a)]
    if not named or named[-1] in ("", "null"):
        return list(arguments)
    if {"-m", "--multirun"} & set(arguments):
        raise ConfigError("resume must continue one run, found a multirun; resume the runs one by one.")
    directory = Path(named[-1])
    if any(mark in str(directory) for mark in ("'", "\\", "${")):
        raise ConfigError(f"resume must name a directory without quotes, \\ and ${{, found {directory}; rename it.")
    check_links(directory)
    end = [f"resume='{directory}'", f"hydra.run.dir='{directory}'"]
    if any(list(arguments[k : k + 2]) == end for k in range(len(arguments))):
        return list(arguments)  # done already: a process that a resumed run has started has its command line
    own, stored = without_resume(arguments), read_overrides(directory)
    for argument in own:
        if argument not in stored and not argument.lstrip("+~").startswith(CHANGEABLE):
            raise ConfigError(
                f"a resumed run must keep the settings it was started with, found {argument}; start a new run with it "
                f"(only {', '.join(CHANGEABLE)} may be changed)."
            )
    kept = [override for override in stored if override not in own]
    for override in kept:
        if asks_for_processes(override):
            raise ConfigError(
                f"processes of a resumed run must be requested on your own command line, found {override} in "
                f"{directory / RECORD}; repeat it there: resume={directory} {override}."
            )
    _check_overrides(kept, own, directory / RECORD)
    return [*kept, *own, *_defaults_of_then(directory, stored), *end]


def asks_for_processes(override: str) -> bool:
    """Whether an override is about several processes: a run directory from someone else must not start them."""
    key, _, value = override.lstrip("+~").partition("=")
    if "cluster" in key or ("{" in value and ("cluster" in value or "address" in value)):
        return override != "cluster=here"  # who answers at an address can run code here
    if key == "trainer":
        return value != "default"
    named = any(word in override for word in ("devices", "num_nodes", "strategy"))
    return key.startswith("trainer.") and named and value != "1"


def command(directory: Path) -> str:
    """What to type to go on with a run of one's own."""
    stored = read_overrides(directory) if (directory / RECORD).is_file() else []
    return " ".join([f"python train.py resume={directory}", *filter(asks_for_processes, stored)])


def read_overrides(directory: Path) -> list[str]:
    """The overrides of a run directory, as they stand there."""
    record = directory / RECORD
    if not record.is_file():
        raise ConfigError(f"resume must name a run directory, found no {RECORD} in {directory}; check the path.")
    try:
        stored = read_json(record)["overrides"]
        if not isinstance(stored, list) or not all(isinstance(o, str) for o in stored):
            raise TypeError
    except (ValueError, KeyError, TypeError) as error:  # read_json's own refusal is a ValueError
        raise ConfigError(
            f"{record} must list the overrides of a run, found something else; start a new run."
        ) from error
    return stored


def _defaults_of_then(directory: Path, stored: Sequence[str]) -> list[str]:
    """What the defaults were when the run was started, where they have changed since and it has not chosen itself.

    Runs whose record does not tell them are of the time of law=frozen, when engine=auto was fisher for Fourier heads.
    """
    if read_json(directory / RECORD).get("defaults", 1) == DEFAULTS:
        return []
    chosen = {override.lstrip("+~").partition("=")[0] for override in stored}
    out = [] if "law" in chosen else ["law=frozen"]
    if not chosen & {"engine", "coefficients", "coefficients._target_", "experiment", "paper"}:
        out.append("engine=fisher")
    return out


def _check_overrides(stored: Sequence[str], own: Sequence[str], record: Path) -> None:
    """Refuse what someone else's run may not set; also the arguments of what the user's own command line builds."""
    built = own_targets(own)
    for override in stored:
        reason, (key, _, text) = objection(override), override.lstrip("+~").partition("=")
        if any(key.startswith(f"{node}.") or (node.startswith(key) and "{" in text) for node in built):
            reason = "an argument of what your command line builds"
        if reason is not None:
            raise ConfigError(
                f"{record} must hold settings of levytorch only, found {override!r} ({reason}); start a new run on "
                "your own command line, or repeat it there if it is your own."
            )


def checkpoint(directory: Path) -> Path | None:
    """Where to go on: the last state, or the one saved when something went wrong, whichever has more steps."""
    found = [directory / "checkpoints" / name for name in ("last.ckpt", "exception.ckpt")]
    # not by their dates, which a copy of the directory does not keep
    return max((path for path in found if path.is_file()), key=_steps, default=None)


def _steps(path: Path) -> int:
    try:
        content = load_tensors(path)
    except Exception as error:  # pickle, zip, torch and I/O errors of foreign files have no common base
        raise _no_checkpoint(path, f"a file that does not load safely ({type(error).__name__})") from error
    if not isinstance(content, dict) or not all(isinstance(content.get(k), kind) for k, kind in _PARTS.items()):
        raise _no_checkpoint(path, "other content")
    return int(content["global_step"])


def _no_checkpoint(path: Path, found: str) -> ConfigError:
    return ConfigError(
        f"{path} must be a checkpoint of levytorch, found {found}; remove it to continue from another checkpoint or "
        "from the start."
    )
