"""The former name of `training`, `report` and `settings`."""

from levytorch.runs.report import Outcome, summary, table, write_report  # noqa: F401
from levytorch.runs.settings import fit_settings as settings_of  # noqa: F401
