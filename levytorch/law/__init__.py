"""The law of one step: density, derivatives, tail mass, sampling. Knows tensors only."""

from levytorch.law.autograd import StepScore, log_density, score
from levytorch.law.step import LevyStep
from levytorch.law.tails import cutting_threshold, tail_probability

__all__ = ["LevyStep", "StepScore", "cutting_threshold", "log_density", "score", "tail_probability"]
