"""Every plot: functions that return (fig, axes), accept axes and use no pyplot state."""

from levytorch.figures.base import new_axes, save

__all__ = ["new_axes", "save"]
