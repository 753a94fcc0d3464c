"""Ctrl-C and SIGTERM as one exception, delivered where stopping loses nothing.

While `defer(True)` is in force (one step of a fit), the first signal only takes a note, and whoever is in charge asks
`requested()` at the end of the step; a second signal stops at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(SystemExit):
    """Someone wants the process to end; its exit status is that of a process ended by this signal."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum

    @property
    def name(self) -> str:
        return "Ctrl-C" if self.signum == signal.SIGINT else signal.Signals(self.signum).name


class _State:
    deferring = False
    requested: int | None = None


_state = _State()


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM raise Interrupted in this block (in the main thread: elsewhere signals cannot be caught)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # a process that was started with a signal ignored (nohup, a shell's background job) keeps ignoring it
    wanted = [signum for signum in _SIGNALS if signal.getsignal(signum) != signal.SIG_IGN]
    before = {signum: signal.signal(signum, _handle) for signum in wanted}
    _state.deferring, _state.requested = False, None
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        _state.deferring, _state.requested = False, None


def defer(on: bool) -> None:
    """Whether the first signal waits for `check()`."""
    _state.deferring = on


def requested() -> bool:
    return _state.requested is not None


def check() -> None:
    """Raise Interrupted if a signal came while it was deferred."""
    if _state.requested is not None:
        raise Interrupted(_state.requested)


def _handle(signum: int, frame: Any) -> None:
    if _state.deferring and _state.requested is None:
        _state.requested = signum
        # not print(): the signal may have come in the middle of one
        os.write(2, b"\nstopping after this step; once more: at once\n")
        return
    raise Interrupted(signum)
