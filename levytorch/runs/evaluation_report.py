"""The former name of `evaluate` and, for directories, of `directory`."""

from levytorch.runs.directory import check_output, publish, write_marker  # noqa: F401
from levytorch.runs.evaluate import write_rates  # noqa: F401
