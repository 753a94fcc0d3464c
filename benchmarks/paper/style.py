"""What all figures of the experiments share: the arms' names and colours, boxes per size, bands of replicas; and small
PNGs of them beside the page.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from levytorch.figures.base import TRUTH
from levytorch.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]
# Okabe and Ito's palette, distinguishable with any colour vision; red with TCF and blue without, as in the paper
ARMS = {
    "unbiased": ("unbiased data", "#666666"),
    "none": ("without TCF", "#0072B2"),
    "tcf": ("with TCF", "#D55E00"),
    "conditional": ("conditional", "#009E73"),
}
BOX_WIDTH = 0.8  # all boxes of one size together
LARGEST = 100_000  # bytes of a committed picture
DEEP, LIGHT = 0.65, 0.25  # how strongly boxes are filled


class Group(NamedTuple):
    """The boxes of one arm or coefficient: its errors at every size."""

    label: str
    color: str
    errors: Mapping[int, Array]
    light: bool = False


def arm_label(arm: str) -> str:
    return ARMS.get(arm, (arm, ""))[0]


def arm_color(arm: str) -> str:
    return ARMS.get(arm, ("", "#CC79A7"))[1]


def arm_order(arms: Sequence[str]) -> list[str]:
    """Each once, known ones first and in the order of `ARMS`."""
    return sorted(set(arms), key=lambda arm: (list(ARMS).index(arm) if arm in ARMS else len(ARMS), arm))


def finish(ax: Axes, title: str, xlabel: str | None = None, size: str = "medium", **legend: Any) -> None:
    """Title and legend; `xlabel` is for curves over an axis without margins."""
    ax.set_title(title, fontsize=size)
    if xlabel is not None:
        ax.set_xlabel(xlabel)
        ax.margins(x=0)
    ax.legend(frameon=False, fontsize="small", **legend)


def size_boxes(ax: Axes, groups: Sequence[Group], *, log: bool = True) -> None:
    """Box plots side by side at every number of trajectories, in per cent; all replicas as points."""
    sizes = sorted({n for group in groups for n in group.errors})
    width = BOX_WIDTH / max(1, len(groups))
    generator = np.random.default_rng(0)  # the points' sideways shift, the same in every figure
    for number, group in enumerate(groups):
        shift = (number - (len(groups) - 1) / 2) * width
        own = [n for n in sizes if n in group.errors and len(group.errors[n])]
        values = [100 * np.asarray(group.errors[n], dtype=float) for n in own]
        if not values:
            continue
        strength = LIGHT if group.light else DEEP
        positions = [sizes.index(n) + shift for n in own]
        boxes = ax.boxplot(
            values, positions=positions, widths=0.85 * width, showfliers=False, patch_artist=True, manage_ticks=False
        )
        for box in boxes["boxes"]:
            box.set(facecolor=group.color, alpha=strength, linewidth=0.6)
        for part in ("medians", "whiskers", "caps"):
            for line in boxes[part]:
                line.set(color="black", linewidth=1.0 if part == "medians" else 0.6)
        for position, v in zip(positions, values):
            x = position + width * generator.uniform(-0.2, 0.2, len(v))
            ax.plot(x, v, ".", color=group.color, markersize=2.5, alpha=0.35 if group.light else 0.8, zorder=3)
        ax.fill([], [], color=group.color, alpha=strength, label=group.label)
    ax.set_xticks(range(len(sizes)), [f"{n:,}" if n < 1000 else f"{n / 1000:g}k" for n in sizes])
    ax.set_xlim(-0.6, len(sizes) - 0.4)
    ax.set_xlabel("number of trajectories")
    if log:
        log_scale(ax)
    ax.grid(axis="y", alpha=0.3, linewidth=0.5)


def log_scale(ax: Axes) -> None:
    """A logarithmic axis for percentages: 1, 2 and 5 times powers of ten written out, more of them on a short axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_yscale("log")
    low, high = ax.get_ylim()
    subs = (1.0, 2.0, 5.0) if high > 8 * low else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    ax.yaxis.set_major_locator(LogLocator(subs=subs))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def replica_band(ax: Axes, x: Array, curves: Array, far: Array, color: str, label: str) -> None:
    """Mean +- one sd of the replicas that are no outliers, and the outliers as dotted lines of their own."""
    kept = curves[~far]
    if len(kept):
        mean, sd = kept.mean(0), kept.std(0, ddof=1) if len(kept) > 1 else np.zeros_like(x)
        ax.fill_between(x, mean - sd, mean + sd, color=color, alpha=0.3, linewidth=0)
        ax.plot(x, mean, color=color, linewidth=1.5, label=label)
    for number, curve in enumerate(curves[far]):
        name = f"{int(far.sum())} outlier{'s' if far.sum() > 1 else ''}" if number == 0 else None
        ax.plot(x, curve, color=color, linewidth=0.9, alpha=0.45, linestyle=":", label=name)


def truth_line(
    ax: Axes, x: Array, truth: Array | None, *, floor: float | None = None, room: float | None = None
) -> None:
    """The truth, if it is known; with `room` the axis shows it and this much around it, so outliers may leave it."""
    if truth is None:
        return
    ax.plot(x, truth, **{**TRUTH, "linestyle": "--", "zorder": 4})
    if room is not None:
        low, high = float(np.min(truth)), float(np.max(truth))
        extra = room * max(high - low, 0.1 * max(abs(low), abs(high)), 1e-12)
        ax.set_ylim(low - extra if floor is None else max(floor, low - extra), high + extra)


def picture(fig: Figure, name: str, caption: str, out: Path, before: str = "") -> list[str]:
    """Writes <out>/figures/results_<name>.png; returns the image and its caption, as Markdown."""
    target = out / "figures" / f"results_{name}.png"
    with replacing(target) as temporary:
        temporary.write_bytes(small_png(fig))
    return [f"![{before.strip(' .') or name}](figures/{target.name})", f"*{before}{caption}*"]


def small_png(fig: Figure) -> bytes:
    """The figure as a PNG of at most `LARGEST` bytes: a palette first, then fewer colours, then fewer pixels."""
    from PIL import Image

    content = b""
    for dpi, colors in ((115, 256), (115, 96), (100, 96), (85, 64), (70, 48)):
        raw, packed = io.BytesIO(), io.BytesIO()
        fig.savefig(raw, dpi=dpi, format="png")
        image = Image.open(raw).convert("RGB")
        image = image.quantize(colors, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        image.save(packed, format="png", optimize=True)
        content = packed.getvalue()
        if len(content) <= LARGEST:
            break
    return content
