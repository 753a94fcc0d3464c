"""A process that ends when the one that started it is gone, from its first line on.

Lightning starts the further processes of a fit itself. Until they have met, nothing would end them if the first one was
killed. They watch it before they import anything that takes time; which process it is stands in their environment,
because by then it may be gone already.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import NoReturn

PARENT = "LEVYTORCH_PARENT"
EVERY = 0.5  # seconds between two looks
_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def announce() -> None:
    """To the processes that this one is about to start: whom to follow."""
    os.environ[PARENT] = str(os.getpid())


def follow() -> None:
    """End this process within a second of its parent's end, if the parent has announced itself."""
    announced = os.environ.get(PARENT, "")
    if not announced.isdigit() or int(announced) == os.getpid():
        return
    parent = int(announced)
    if sys.platform == "linux":  # also while an import holds the interpreter's lock for seconds
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        _end()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(EVERY)
        _end()

    threading.Thread(target=watch, daemon=True, name="follow-parent").start()


def _end() -> NoReturn:
    os._exit(1)  # whatever the main thread is doing: importing, or waiting for the others
