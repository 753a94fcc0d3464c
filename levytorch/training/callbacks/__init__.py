"""Callbacks, one concept per file: tail correction, moving average and its convergence, checkpoints, progress."""

from levytorch.training.callbacks.averaging import Convergence, MovingAverage
from levytorch.training.callbacks.checkpoints import Checkpoints
from levytorch.training.callbacks.progress import Progress
from levytorch.training.callbacks.tail_correction import UpdateTCF

__all__ = ["Checkpoints", "Convergence", "MovingAverage", "Progress", "UpdateTCF"]
