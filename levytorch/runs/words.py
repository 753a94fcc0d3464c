"""Messages in the syntax of the command line.

Messages of the library are written for Python: "pass missing='drop'". A user who wrote data.missing=error in a
shell reads data.missing=drop instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import fields

from levytorch.coefficients.build import OPTIONS as HEAD_OPTIONS
from levytorch.data.options import FileOptions

_GROUPS = {
    **{name: f"coefficients.{name}" for options in HEAD_OPTIONS.values() for name in options},
    **{name: f"engine.{name}" for name in ("max_steps", "tolerance", "penalty", "damping", "n_bins", "lr")},
    **{field.name: f"data.{field.name}" for field in fields(FileOptions)},
    **{name: f"data.{name}" for name in ("linear", "across", "bad_files")},
    **{name: name for name in ("alpha", "tempering", "law", "engine", "tail", "coefficients", "seed", "init", "units")},
}
_VALUE = r"'[^'\n]*'|\"[^\"\n]*\"|True|False|None|\[[^\]\n]*\]|<[^>\n]*>|\.\.\.|[\w.%+-]*\w"
_OPTION = re.compile(rf"(?<![\w.])([A-Za-z_]\w*)=({_VALUE})")
_METHOD = re.compile(r"""tail=\{["']method["']: ["'](\w+)["']\}""")
_BARE = re.compile(r"(?<![\w.])(max_steps)(?![\w=])")
_WORDS = {"True": "true", "False": "false", "None": "null"}


def for_command_line(text: str) -> str:
    """The text with options as they are written in a shell.

    >>> for_command_line("fill the cell, or pass missing='drop'.")
    'fill the cell, or add data.missing=drop.'
    """
    said = _METHOD.sub(r"tail=\1", text).replace("tail=None", "tail=none")
    said = _OPTION.sub(_written, said)
    said = _BARE.sub(lambda found: _GROUPS[found[1]], said)
    return re.sub(r"\bpass (?=[\w.]+=)", "add ", said)


def for_check(text: str, flags: Collection[str]) -> str:
    """The text with the options of `levytorch check` as flags.

    >>> for_check("fill the cell, or pass missing='drop'; pass dt=... or time='...'.", {"dt", "time"})
    'fill the cell, or pass --drop-missing; pass --dt ... or --time ....'
    """

    def written(found: re.Match[str]) -> str:
        name, value = found[1], found[2].strip("'\"")
        if name not in flags:
            return found[0]
        return _flag(name) + ("" if value == "True" else f" {value}")

    said = _OPTION.sub(written, re.sub(r"missing=(['\"])drop\1", "--drop-missing", text))
    bare = "|".join(sorted(name for name in flags if "_" in name))
    return re.sub(rf"(?<![\w.=-])({bare})(?![\w=])", lambda found: _flag(found[1]), said) if bare else said


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _written(found: re.Match[str]) -> str:
    name, value = found[1], found[2]
    if name not in _GROUPS:
        return found[0]
    plain = _WORDS.get(value, value)
    if re.fullmatch(r"""['"]([\w.%:/-]+|\.\.\.)['"]""", plain):
        plain = plain[1:-1]
    return f"{_GROUPS[name]}={plain}"
