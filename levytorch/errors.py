"""What levytorch raises and warns with.

Every message says what was expected, what was found and what to do about it. The classes inherit the builtin ones, so
`except ValueError` keeps working for people who do not know levytorch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# control characters but for tabs and the ends of lines, marks that turn the direction of text, broken UTF-16
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, lines: bool = True) -> str:
    """Text that may come from someone else, safe for a terminal and a file: what could act on them is spelt out.

    lines: whether it may have several.

    >>> printable("up\\x1b[31m")
    'up\\\\x1b[31m'
    """
    safe = _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return safe if lines else safe.replace("\n", "\\n").replace("\t", "\\t")


def plain_sentence(sentence: str) -> str:
    """What is wrong and what to do about it, without what stands in brackets or between the two."""
    text = " ".join(sentence.split())
    while (bare := re.sub(r" ?\([^()]*\)", "", text)) != text:
        text = bare
    what, *rest = text.rstrip(".").split("; ")
    if len(what) > 120:
        what = what.split(": ")[0]
    parts = [what, *rest[-1:]]
    return " ".join(part[:1].upper() + part[1:] + "." for part in parts if part)


class _Printable:
    """Messages quote labels, names and paths that may come from someone else."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*(printable(a) if isinstance(a, str) else a for a in arguments))


class LevytorchError(_Printable, Exception):
    """Base of every error that levytorch raises on purpose.

    The message says what must be, what was found, and what to do. All subclasses also inherit from the builtin class
    that fits, such as ValueError.

    Example:
        >>> issubclass(InputError, LevytorchError), issubclass(InputError, ValueError)
        (True, True)
    """


class InputError(LevytorchError, ValueError):
    """An argument, a file or a data set cannot be used as it is. It is refused before any work.

    Example:
        >>> from levytorch import Dynamics
        >>> try:
        ...     Dynamics(b=0.0, D_o=1.0, D_f=1.0, alpha=1.5)
        ... except ValueError as error:
        ...     print(type(error).__name__)
        InputError
    """


class ConfigError(LevytorchError, ValueError):
    """A configuration names something that does not exist or does not go together."""


class NumericalError(LevytorchError, ArithmeticError):
    """A computation left the finite numbers or a system could not be solved; the message says where."""


class OutputError(LevytorchError, OSError):
    """A result could not be written: no space, no permission, or another process has the place."""


class LevytorchWarning(_Printable, UserWarning):
    """A legal but doubtful choice, or a result that deserves a second look.

    Example:
        >>> import warnings
        >>> warnings.simplefilter("error", LevytorchWarning)  # turn every doubt into an error
        >>> warnings.simplefilter("default", LevytorchWarning)
    """


def reason(error: Exception) -> str:
    """What is wrong, in one line for another sentence: without the remedy, where the error is one of ours."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, LevytorchError):
        return text.rpartition("; ")[0] or text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def within_configuration(prefix: str = "") -> Iterator[None]:
    """What is refused in the block as input is refused as a part of a configuration."""
    try:
        yield
    except InputError as error:
        raise ConfigError(f"{prefix}{error}") from error
