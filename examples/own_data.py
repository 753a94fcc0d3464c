"""Your own file: from a CSV to coefficients with errors, verdicts, and a value function.

    python examples/own_data.py [file.csv]

The file has columns `time` (hours) and `x`; without one, track.csv is made in the current directory, to show what it
looks like.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from levytorch import Trajectories, diagnose, recover, solve_value
from levytorch.datasets import load_track


def make_file(path: Path) -> Path:
    """A position that is drawn back to x = 50 and jumps now and then, observed every quarter of an hour."""
    x = load_track().trajectories.x
    rows = (f"{0.25 * k:.2f},{value:.4f}\n" for k, value in enumerate(x))
    path.write_text("time,x\n" + "".join(rows), encoding="utf-8")
    return path


def main(file: Path) -> None:
    trajectories = Trajectories.from_file(file, time="time", value="x")
    data = trajectories.transitions()
    print(data.describe())

    # period=None: a line; give a period where states repeat, such as angles
    found = recover(data, alpha="learn", period=None)

    print(found.summary())

    print(diagnose(found, data))  # does the law fit, does the data need jumps, is the step short enough

    # one unit of reward per hour near the median of the data, less elsewhere
    middle = float(data.x.median())
    V = solve_value(found, lambda x: torch.exp(-(((x - middle) / 30.0) ** 2)), beta=0.5)
    print(f"V({middle:.2f}) = {float(V(middle)):.4f} +- {float(V.std(middle)):.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else make_file(Path("track.csv")))
