"""The former name of `reading` and, for what is written, of `directory`."""

from levytorch.runs import reading
from levytorch.runs.reading import MARKER, find_runs, load_run, load_runs  # noqa: F401

SIMULATED = reading.SIMULATED[0]
