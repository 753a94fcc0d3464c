"""Your own file: from a CSV to coefficients with errors, verdicts, and a value function.

    python examples/own_data.py [file.csv]

The file has columns `time` (hours) and `x`; without one, a file is made to show what it looks like.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from levytorch import Dynamics, Trajectories, diagnose, recover, simulate, solve_value


def make_file(path: Path) -> Path:
    """Something that is drawn back to x = 50 and jumps now and then, seen every quarter of an hour."""
    pull = lambda x: -16.0 * torch.sin(2 * torch.pi * (x - 50.0) / 1000.0)  # noqa: E731
    walk = Dynamics(b=pull, D_o=2.0, D_f=0.3, alpha=0.5, period=1000.0)
    x = simulate(walk, 1, 8000, 0.25, x0=50.0, seed=1).to_array()[0]
    rows = (f"{0.25 * k:.2f},{value:.4f}\n" for k, value in enumerate(x))
    path.write_text("time,x\n" + "".join(rows), encoding="utf-8")
    return path


def main(file: Path) -> None:
    trajectories = Trajectories.from_file(file, time="time", value="x")
    data = trajectories.transitions()
    print(data.describe())

    # period=None: a line; give a period where states repeat, such as angles
    found = recover(data, alpha="learn", period=None)

    at = torch.quantile(data.x, torch.linspace(0.1, 0.9, 5, dtype=torch.float64))
    b, D_o, D_f = found.std(at)
    print(f"alpha {found.alpha:.3f} +- {found.alpha_std:.3f}")
    for name, std in (("b", b), ("D_o", D_o), ("D_f", D_f)):
        told = (f"{v:.3f} +- {s:.3f}" for v, s in zip(getattr(found, name)(at), std))
        print(f"{name:4}" + "   ".join(told))

    print(diagnose(found, data))  # does the law fit, does the data need jumps, is the step short enough

    # one unit of reward per hour near the median of the data, less elsewhere
    middle = float(data.x.median())
    V = solve_value(found, lambda x: torch.exp(-(((x - middle) / 30.0) ** 2)), beta=0.5)
    print(f"V({middle:.2f}) = {float(V(middle)):.4f} +- {float(V.std(middle)):.4f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else make_file(Path(folder) / "track.csv"))
