"""Figures as committed pictures: small PNGs beside the page, and the Markdown that shows them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from levytorch.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 100_000  # bytes of a committed picture


def shown(fig: Figure, name: str, caption: str, out: Path, before: str = "") -> list[str]:
    """Writes <out>/figures/results_<name>.png; returns what shows it on the page."""
    target = out / "figures" / f"results_{name}.png"
    with replacing(target) as temporary:
        temporary.write_bytes(small_png(fig))
    return [f"![{caption}](figures/{target.name})", f"*{before}{caption}*"]


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
