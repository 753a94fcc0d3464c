"""Every plot: functions that return (fig, axes), accept axes and use no pyplot state."""

from levytorch.figures.base import Units, new_axes, save

__all__ = ["Units", "new_axes", "save"]
