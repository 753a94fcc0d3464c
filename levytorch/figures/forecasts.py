"""The fan of a forecast: quantiles of the state over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from levytorch.figures.base import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from levytorch.training.recovery import Forecast


def fan(
    forecast: Forecast, *, observed: tuple[Any, Any] | None = None, axes: Sequence[Axes] | None = None
) -> tuple[Figure, list[Axes]]:
    """Bands between pairs of quantiles of a forecast, such as 5 % and 95 %, one panel per coordinate.

    Args:
        forecast: what `Recovery.forecast` returned.
        observed: the times and states of an observed path, drawn on top.
        axes: axes to draw on; None makes a figure.

    Returns:
        (fig, axes).

    Example:
        >>> from levytorch import Dynamics, recover, simulate
        >>> data = simulate(Dynamics.named("constant"), 100, 40, 1 / 40).transitions()
        >>> found = recover(data, alpha=0.3, n_basis=1, law="frozen")
        >>> fig, axes = fan(found.forecast(0.0, horizon=0.1, n_paths=100))
        >>> len(axes)
        1
    """
    q = forecast.quantiles if forecast.quantiles.ndim == 3 else forecast.quantiles[..., None]
    fig, axs = panels(axes, q.shape[2], width=5.0, height=3.4)
    order = np.argsort(forecast.levels)
    levels, q = forecast.levels[order], q[:, order]
    for i, ax in enumerate(axs[: q.shape[2]]):
        for low in range(len(levels) // 2):
            high = len(levels) - 1 - low
            label = f"{levels[low]:.3g} to {levels[high]:.3g}"
            ax.fill_between(
                forecast.times, q[:, low, i], q[:, high, i], color="tab:blue", alpha=0.2, linewidth=0, label=label
            )
        if len(levels) % 2:
            middle = len(levels) // 2
            ax.plot(forecast.times, q[:, middle, i], color="tab:blue", linewidth=1.4, label=f"{levels[middle]:.3g}")
        if observed is not None:
            states = np.asarray(observed[1])
            states = states if states.ndim == 1 else states[:, i]
            ax.plot(observed[0], states, color="black", linewidth=1.0, label="observed")
        ax.set_xlabel("time")
        ax.set_ylabel("x" if q.shape[2] == 1 else f"x_{i + 1}")
        ax.margins(x=0)
        ax.legend(frameon=False, fontsize="x-small", loc="upper left")
    return fig, axs
