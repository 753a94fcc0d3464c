"""Shared by all figures: the visual language, panels without pyplot, and files whose pixels are drawn once.

A colour means one thing everywhere: purple is what was recovered, black (dashed) the truth or a reference, grey the
data, amber what chance alone would do; the arms of an experiment have the colours of the paper's figures.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from levytorch.errors import printable
from levytorch.files import replacing
from levytorch.working_directory import MATPLOTLIB_SETTINGS, ignoring

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RECOVERED = "#6A3D9A"
DATA = "#8C8C8C"
CHANCE = {"color": "#E69F00", "alpha": 0.25, "linewidth": 0}
ZERO = {"color": "black", "linewidth": 0.8, "linestyle": "--"}
TRUTH = {"color": "black", "linewidth": 1.2, "label": "truth"}
ARMS = {"with TCF": "#D55E00", "without TCF": "#0072B2", "conditional": "#009E73"}
OTHERS = ("#CC79A7", "#56B4E9", "#A6761D", "#66A61E", "#1B4F72", "#E7298A")  # groups that are none of these
COLORS = {"b": "tab:blue", "D_o": "tab:orange", "D_f": "tab:green", "alpha": "tab:purple"}  # where all share a panel
SYMBOLS = {"b": r"$b(x)$", "D_o": r"$D_o(x)$"}
SYMBOLS |= {f"D_o_{i}{j}": rf"$D_{{o,{i}{j}}}(x)$" for i, j in ((1, 1), (1, 2), (2, 2))}  # of a matrix in the plane
SYMBOLS |= {"D_f": r"$D_f(x)$", "alpha": r"$\alpha(x)$"}
DPI = 130
SMALL = 8  # size of numbers, legends
_MARGINS = {"left": 0.72, "right": 0.12, "bottom": 0.5, "top": 0.42}  # inches around the panels, and between them:
_GAPS = (0.78, 0.72)
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class AxisNames(NamedTuple):
    """Names for the axes of a figure.

    Args:
        state: the name of the state, with its unit.
        time: the unit of time.

    Example:
        >>> AxisNames("x (km)", "h").of("b")
        '$b(x)$  (x (km) per h)'
    """

    state: str = ""
    time: str = ""

    @property
    def x(self) -> str:
        return plain(self.state) if self.state else "x"

    def of(self, name: str) -> str:
        """The symbol of a coefficient with its unit, as far as that is known."""
        if name == "alpha" or not (self.state or self.time):
            return SYMBOLS[name]
        power = {"b": "", "D_o": "$^2$", "D_f": r"$^{2\alpha}$"}[name]
        state = f"{plain(self.state)}{power}" if self.state else f"x{power}"
        return f"{SYMBOLS[name]}  ({state} per {plain(self.time) or 'unit of time'})"


def plain(text: str, most: int = 40) -> str:
    """Text of someone else's as matplotlib would write it, not as a formula."""
    short = printable(" ".join(text.split()))
    return (short if len(short) <= most else f"{short[: most - 1]}…").replace("\\", "\\\\").replace("$", r"\$")


def new_axes(
    rows: int, columns: int, *, width: float = 4.0, height: float = 3.0, margins: dict[str, float] | None = None
) -> tuple[Figure, np.ndarray[Any, Any]]:
    """A figure of rows x columns panels without global state; axes is always a 2-d array.

    margins: inches that differ from the usual ones. Panels then lie where they are put, which is drawn twice as fast as
    a layout that measures every text first; without them (None) the layout is measured.
    """
    with ignoring(MATPLOTLIB_SETTINGS):  # unless matplotlib is there already, with whatever settings
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    size = (width * columns, height * rows)
    fig = Figure(figsize=size, layout="constrained" if margins is None else None, dpi=DPI)
    FigureCanvasAgg(fig)
    axes = fig.subplots(rows, columns, squeeze=False)
    if margins is not None:
        around = _MARGINS | margins
        gaps = around.pop("gap_x", _GAPS[0]), around.pop("gap_y", _GAPS[1])
        inner = size[0] - around["left"] - around["right"], size[1] - around["bottom"] - around["top"]
        each = [(inner[k] - (n - 1) * gaps[k]) / n for k, n in enumerate((columns, rows))]
        fig.subplots_adjust(
            left=around["left"] / size[0],
            right=1 - around["right"] / size[0],
            bottom=around["bottom"] / size[1],
            top=1 - around["top"] / size[1],
            wspace=gaps[0] / each[0],
            hspace=gaps[1] / each[1],
        )
    return fig, axes


def panels(axes: Any, count: int, **size: Any) -> tuple[Figure, list[Axes]]:
    """Given axes (one or many), or a new row of `count` panels."""
    if axes is None:
        fig, grid = new_axes(1, count, **size)
        return fig, list(grid[0])
    flat = [axes] if not np.iterable(axes) else list(np.asarray(axes, dtype=object).ravel())
    return flat[0].figure, flat


def tidy(ax: Axes) -> None:
    """Small numbers, few of them, without an offset that would be overlooked; a power of ten stands at the axis."""
    from matplotlib.ticker import LogFormatterSciNotation, MaxNLocator, ScalarFormatter

    ax.tick_params(which="both", labelsize=SMALL)
    for axis in (ax.xaxis, ax.yaxis):
        axis.get_offset_text().set_fontsize(SMALL)
        if isinstance(axis.get_major_formatter(), LogFormatterSciNotation):
            axis.set_major_formatter(_powers())
        if isinstance(axis.get_minor_formatter(), LogFormatterSciNotation):
            axis.set_minor_formatter(_powers())
        if axis.get_scale() == "linear":
            axis.set_major_locator(MaxNLocator(5))
            formatter = ScalarFormatter(useOffset=False, useMathText=False)  # a formula takes 10 ms, each
            formatter.set_powerlimits((-3, 5))
            axis.set_major_formatter(formatter)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def angles(ax: Axes, period: Any) -> None:
    """The x axis in multiples of pi where the state is an angle: a period of 2 pi, or a simple fraction or multiple."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    turns = float(period) / np.pi if isinstance(period, int | float) else 0.0
    if min(abs(turns - whole) for whole in (1.0, 2.0, 4.0)) > 1e-9:
        return
    low, high = ax.get_xlim()
    quarter = next((q for q in (0.25, 0.5, 1.0, 2.0) if (high - low) / (q * np.pi) <= 5), None)
    if quarter is None or (high - low) / (quarter * np.pi) < 2:  # a small part of the circle, which has plain numbers
        return
    ax.xaxis.set_major_locator(MultipleLocator(quarter * np.pi))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: pi_text(x)))


def pi_text(x: float) -> str:
    """A multiple of a quarter of pi in words of pi: 0, π/2, −3π/4, 2π."""
    quarters = round(4 * x / np.pi)
    if quarters == 0:
        return "0"
    divisor = 4 // math.gcd(abs(quarters), 4)
    number = abs(quarters) * divisor // 4
    sign = "−" if quarters < 0 else ""
    return f"{sign}{'' if number == 1 else number}π" + (f"/{divisor}" if divisor > 1 else "")


def _powers() -> Any:
    """Labels of a logarithmic axis without formulas, each of which would take 10 ms."""
    from matplotlib.ticker import LogFormatter

    class Powers(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return power_text(x) if super().__call__(x, pos) else ""  # which decides whether there is a label

    return Powers()


def power_text(x: float) -> str:
    """A number as one writes it by hand: 0.01, 10⁻⁵, 2×10⁶."""
    if x == 0 or 1e-2 <= abs(x) < 1e4:
        return f"{x:g}".replace("-", "−")
    mantissa, _, exponent = f"{abs(x):.0e}".partition("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    return ("−" if x < 0 else "") + (power if mantissa == "1" else f"{mantissa}×{power}")


def legend_above(ax: Axes, columns: int = 6, **more: Any) -> None:
    """In rows above the panel, as wide as it is: no curve runs behind it."""
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        width = ax.get_position().width * ax.get_figure().get_size_inches()[0]
        columns = next((n for n in range(min(columns, len(labels)), 1, -1) if _legend_width(labels, n) <= width), 1)
        place = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2} | more
        ax.legend(handles, labels, frameon=False, fontsize=SMALL, ncols=columns, columnspacing=1.2, **place)


def _legend_width(labels: Sequence[str], columns: int) -> float:
    """Inches, about: letters, and a handle and a gap per column."""
    rows = -(-len(labels) // columns)
    parts = [labels[k : k + rows] for k in range(0, len(labels), rows)]
    return sum(0.066 * max(len(label) for label in part) + 0.55 for part in parts)


class Drawn(NamedTuple):
    """A figure as it is seen: a PNG file, and the size of its image."""

    png: bytes
    width: int
    height: int


def draw(fig: Figure) -> Drawn:
    """Laid out and drawn once, for callers that need the pixels."""
    from PIL import Image

    fig.canvas.draw()
    image = Image.frombuffer("RGBA", fig.canvas.get_width_height(), fig.canvas.buffer_rgba(), "raw", "RGBA", 0, 1)
    stream = io.BytesIO()
    image.convert("RGB").save(stream, "png", compress_level=3)
    return Drawn(stream.getvalue(), *image.size)


def svg_parts(fig: Figure) -> list[bytes]:
    """The panels of a figure as SVG images of their own, from left to right and top to bottom, so that a page can put
    them side by side or below each other; a figure with colour bars, whose panels belong together, as one.

    The same figure gives the same bytes.
    """
    fig.canvas.draw()
    axes = [ax for ax in fig.axes if ax.get_visible()]
    if len(axes) < 2 or any(ax.get_label() == "<colorbar>" for ax in axes):
        return [_svg(fig, None)]
    out = []
    boxes = [ax.get_tightbbox() for ax in axes]  # which an invisible panel has none of
    top, bottom = max(box.y1 for box in boxes), min(box.y0 for box in boxes)
    widest = max(box.width for box in boxes)
    one_row = len({round(ax.get_position().y0, 3) for ax in axes}) == 1
    for ax, box in zip(axes, boxes):
        for other in axes:
            other.set_visible(other is ax)
        if one_row:  # panels that stand side by side have one size
            box = type(box).from_extents(box.x0, bottom, box.x0 + widest, top)
        out.append(_svg(fig, box.padded(0.06 * fig.dpi).transformed(fig.dpi_scale_trans.inverted())))
    for ax in axes:
        ax.set_visible(True)
    return out


def _svg(fig: Figure, box: Any) -> bytes:
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "levytorch", "svg.fonttype": "path"}):
        fig.savefig(stream, format="svg", bbox_inches=box, metadata={"Date": None, "Creator": "levytorch"})
    return stream.getvalue()


def save(
    fig: Figure, path: str | os.PathLike[str], *, dpi: int = DPI, formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """Write a figure to files; each appears complete or absent.

    Args:
        fig: the figure.
        path: the path of the files without a suffix.
        dpi: pixels per inch of a PNG file.
        formats: the suffixes, "png", "pdf" or both.

    Returns:
        The paths that were written.

    Example:
        >>> import tempfile
        >>> fig, axes = new_axes(1, 1)
        >>> [file.name for file in save(fig, Path(tempfile.mkdtemp()) / "empty", formats=["pdf"])]
        ['empty.pdf']
    """
    fig.set_dpi(dpi)
    return write(draw(fig) if "png" in formats else None, fig, path, formats)


def write(drawn: Drawn | None, fig: Figure, path: str | os.PathLike[str], formats: Sequence[str]) -> list[Path]:
    """The files of a figure whose pixels are there already."""
    stem = Path(path)
    written = []
    for suffix in formats:
        target = stem.with_name(f"{stem.name}.{suffix}")
        with replacing(target) as temporary:
            if suffix == "png":
                assert drawn is not None
                temporary.write_bytes(drawn.png)
            else:
                fig.savefig(temporary, format=suffix)
        written.append(target)
    return written
