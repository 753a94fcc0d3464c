"""What may happen to a bad input: a right answer, or one sentence of a LevytorchError. Anything else is a defect."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

from levytorch.errors import LevytorchError

REFUSED = object()  # the answer of `judge` when the input was refused as it should be

_EXPECTED = re.compile(r"\bmust\b|could not be written")
_FOUND = re.compile(r", found |could not be written")
_REMEDY = re.compile(r"; .*[a-z].*\.$")


class Defect(AssertionError):
    """An input that was neither answered nor refused properly."""


def judge(call: Callable[[], Any], what: str) -> Any:
    """The answer of the call, or REFUSED; a Defect for a raw exception or a message that does not help."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except LevytorchError as error:
        check_message(str(error), what)
        return REFUSED
    except (MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise Defect(f"{what}: {type(error).__name__}: {str(error)[:300]}") from error


def check_message(message: str, what: str) -> None:
    """One sentence: what was expected, what was found, what to do."""
    lacks = [
        part
        for part, pattern in (("what was expected", _EXPECTED), ("what was found", _FOUND), ("what to do", _REMEDY))
        if not pattern.search(message)
    ]
    if "\n" in message:
        lacks.append("being one line")
    if len(message) > 1000:
        lacks.append("being short")
    if lacks:
        raise Defect(f"{what}: the message lacks {', '.join(lacks)}: {message[:300]}")
