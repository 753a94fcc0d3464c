"""Every plot: functions that return (fig, axes), accept axes and use no pyplot state."""

from levytorch.figures.base import AxisNames, new_axes, save

__all__ = ["AxisNames", "new_axes", "save"]
