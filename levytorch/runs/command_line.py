"""What train.py and evaluate.py, and their installed twins, do around their work; before it: `levytorch.startup`.

hydra refuses an override that names nothing, in words of its own; what was probably meant is added here.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from levytorch.errors import printable

_LONGEST_NAME = 255  # bytes
_PACKAGE = Path(__file__).parents[1]


class _PrintableRecords(logging.Filter):
    """Labels, names and paths in messages may come from someone else."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = printable(record.getMessage()), ()
        return True


def guard_log() -> None:
    """Nothing that a terminal would act on reaches it, or a log file, through the handlers that there are now."""
    for handler in logging.getLogger().handlers:
        if not any(isinstance(known, _PrintableRecords) for known in handler.filters):
            handler.addFilter(_PrintableRecords())


def conf_directory() -> str:
    """The configuration: inside the package when it was installed from a wheel, beside it in a clone."""
    return str(_PACKAGE.parent / "conf" if is_clone() else _PACKAGE / "conf")


def is_clone() -> bool:
    """Whether the package lies in its repository, with train.py beside it."""
    return (_PACKAGE.parent / "conf").is_dir() and (_PACKAGE.parent / "train.py").is_file()


def run_main(main: Callable[[], Any], name: str) -> None:
    """A function made by hydra.main; overrides that it refuses are followed by the nearest ones that exist."""
    check_arguments(sys.argv[1:])
    try:
        main()
    except SystemExit as end:
        if end.code == 1:  # hydra's own refusals
            for line in suggestions(name, sys.argv[1:]):
                print(line, file=sys.stderr)
        raise


def check_arguments(arguments: Sequence[str]) -> None:
    """End with one sentence where hydra would with a traceback: text that is not UTF-8, names too long for a file."""
    for argument in arguments:
        parts = argument.partition("=")[2].strip("'\"").split(os.sep) if argument.startswith("hydra.") else []
        found = None
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            found = "bytes that are not UTF-8"
        elif any(len(part.encode()) > _LONGEST_NAME for part in parts):
            found = f"a name of more than {_LONGEST_NAME} bytes"
        if found is not None:
            short = printable(argument if len(argument) <= 80 else f"{argument[:77]}...", lines=False)
            sys.exit(f"an argument must be text that can name files, found {found} in {short}; rename the file.")


def suggestions(name: str, arguments: Sequence[str]) -> list[str]:
    """One line per override of conf/<name>.yaml whose key, or whose option of a group, does not exist."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    GlobalHydra.instance().clear()
    given = []
    for argument in arguments:
        try:
            given += OverridesParser.create().parse_overrides([argument])
        except HydraException:  # a flag, or no override at all
            continue
    found = []
    with initialize_config_dir(conf_directory(), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        groups = {group: loader.get_group_options(group) for group in loader.list_groups("") if group != "hydra"}
        chosen, values = [], []
        for one in given:
            key = one.get_key_element()
            if key.startswith(("+", "~", "hydra")):
                continue
            if key not in groups:
                values.append(key)
                continue
            named = list(one.sweep_string_iterator()) if one.is_choice_sweep() else [one.value()]
            for option in named:
                near = [] if option in groups[key] else difflib.get_close_matches(str(option), groups[key], 1)
                found += [f"{key}={option} names no option; did you mean {key}={known}?" for known in near]
            if named[0] in groups[key]:
                chosen.append(f"{key}={named[0]}")
        try:
            config = OmegaConf.to_container(compose(name, chosen), resolve=False)
        except HydraException:  # these options do not go together
            config = OmegaConf.to_container(compose(name), resolve=False)
    assert isinstance(config, dict)
    keys = [*_keys(config), *groups]
    for key in values:
        if key == "gamma":
            found.append("gamma names no setting; use beta, the discount rate: a factor gamma per step of dt is "
                         "beta = -log(gamma) / dt.")  # fmt: skip
        elif key not in keys and (near_key := nearest(key, keys)) is not None:
            found.append(f"{key} names no setting; did you mean {near_key}?")
    return found


def nearest(key: str, keys: Iterable[str]) -> str | None:
    """The setting that a misspelt one, or one without its group, most probably means."""
    keys = list(keys)
    leaf = key.rpartition(".")[2]
    same = [known for known in keys if known.rpartition(".")[2] == leaf]
    if same:
        return difflib.get_close_matches(key, same, 1, cutoff=0.0)[0]
    letters = {known.lower(): known for known in reversed(keys)}
    near = [letters[found] for found in difflib.get_close_matches(key.lower(), letters, 1, cutoff=0.75)]
    if not near:
        leaves = {known.rpartition(".")[2].lower(): known for known in reversed(keys)}
        near = [leaves[found] for found in difflib.get_close_matches(leaf.lower(), leaves, 1, cutoff=0.75)]
    return near[0] if near else None


def _keys(config: Mapping[Any, Any], above: str = "") -> Iterator[str]:
    """Every dotted key of a composed configuration, groups included."""
    for name, value in config.items():
        yield f"{above}{name}"
        if isinstance(value, Mapping):
            yield from _keys(value, f"{above}{name}.")
