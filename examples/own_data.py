"""Your own file: from a CSV to coefficients with errors, verdicts, and a value function.

    python examples/own_data.py [file.csv]

The file has columns `time` (hours) and `x`; without one, a file is made to show what it looks like.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from levytorch import Dynamics, Trajectories, diagnose, recover, simulate, solve_value


def make_file(path: Path) -> Path:
    """Something that is drawn back to x = 50 and jumps now and then, seen every quarter of an hour."""
    walk = Dynamics(b=lambda x: -4.0 * torch.sin((x - 50.0) / 40.0), D_o=2.0, D_f=0.3, alpha=0.5, period=80 * np.pi)
    x = simulate(walk, 1, 8000, 0.25, x0=50.0, seed=1).to_array()[0]
    rows = (f"{0.25 * k:.2f},{value:.4f}\n" for k, value in enumerate(x))
    path.write_text("time,x\n" + "".join(rows), encoding="utf-8")
    return path


def main(file: Path) -> None:
    trajectories = Trajectories.from_file(file, time="time", value="x")
    data = trajectories.transitions()
    print(data.describe())

    # the cell has room to spare on both sides; engine="evidence" lets the data choose how smooth the curves are
    low, high = float(data.x.min()), float(data.x.max())
    room = 0.5 * (high - low)
    found = recover(data, alpha="learn", n_basis=7, period=high - low + 2 * room, origin=low - room, engine="evidence")

    at = torch.quantile(data.x, torch.linspace(0.1, 0.9, 5, dtype=torch.float64))
    b, D_o, D_f = found.std(at)
    print(f"alpha {found.alpha:.3f} +- {found.alpha_std:.3f}")
    for name, std in (("b", b), ("D_o", D_o), ("D_f", D_f)):
        told = (f"{v:.3f} +- {s:.3f}" for v, s in zip(getattr(found, name)(at), std))
        print(f"{name:4}" + "   ".join(told))

    print(diagnose(found, data))  # does the law fit, does the data need jumps, is the step short enough

    # one unit of reward per hour in the middle of the cell, none at its ends
    middle = float(found.origin + found.period / 2)
    V = solve_value(found, lambda x: torch.cos(torch.pi * (x - middle) / found.period) ** 2, beta=0.5)
    print(f"V({middle:.2f}) = {float(V(middle)):.4f} +- {float(V.std(middle)):.4f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else make_file(Path(folder) / "track.csv"))
