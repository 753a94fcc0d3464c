"""Callbacks, one concept per file: tail correction, moving average, convergence, checkpoints, progress."""

from levytorch.training.callbacks.averaging import MovingAverage
from levytorch.training.callbacks.checkpoints import Checkpoints
from levytorch.training.callbacks.convergence import Convergence
from levytorch.training.callbacks.progress import Progress
from levytorch.training.callbacks.tail_correction import UpdateTCF

__all__ = ["Checkpoints", "Convergence", "MovingAverage", "Progress", "UpdateTCF"]
