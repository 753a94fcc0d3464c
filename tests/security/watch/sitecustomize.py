"""On PYTHONPATH of a process under test: writes down every file below $WATCHED that the process opens."""

import os
import sys

_TOP, _LOG = os.environ["WATCHED"], os.open(os.environ["WATCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _note(event, arguments):
    if event == "open" and isinstance(arguments[0], str | bytes):
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if path.startswith(_TOP + os.sep):
            os.write(_LOG, os.fsencode(os.path.relpath(path, _TOP)) + b"\n")


sys.addaudithook(_note)
