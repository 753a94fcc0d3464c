"""Numerical honesty: does the model fit, does the data need jumps, is the step short enough."""

from levytorch.diagnostics.checks import CHECKS, MAX_PAIRS, diagnose
from levytorch.diagnostics.diagnosis import Diagnosis

__all__ = ["CHECKS", "MAX_PAIRS", "Diagnosis", "diagnose"]
