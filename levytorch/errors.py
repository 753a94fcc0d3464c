"""What levytorch raises and warns with.

Every message says what was expected, what was found and what to do about it. The classes inherit the builtin ones, so
`except ValueError` keeps working for people who do not know levytorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class LevytorchError(Exception):
    """Base of every error that levytorch raises on purpose."""


class InputError(LevytorchError, ValueError):
    """An argument, a file or a data set is not usable as it is; refused before any work."""


class ConfigError(LevytorchError, ValueError):
    """A configuration names something that does not exist or does not go together."""


class NumericalError(LevytorchError, ArithmeticError):
    """A computation left the finite numbers or a system could not be solved; the message says where."""


class OutputError(LevytorchError, OSError):
    """A result could not be written: no space, no permission, or another process has the place."""


class LevytorchWarning(UserWarning):
    """A doubtful but legal choice, or a result that deserves a second look."""


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
