"""What docs/diagnostics.md says about the checks, measured:

python benchmarks/checks.py step      bias of the frozen law at dt, 2 dt, 4 dt, 8 dt on the variable example
python benchmarks/checks.py jumps     how often AIC and BIC find jumps in data that has none
"""

from __future__ import annotations

import argparse
import math
import warnings

import numpy as np
import torch

from levytorch import Dynamics, Trajectories, Transitions, recover, simulate
from levytorch.diagnostics import diagnose
from levytorch.errors import LevytorchWarning
from levytorch.policy.reference import relative_error

NAMES = ("b", "D_o", "D_f")
X = 2 * math.pi * (torch.arange(512, dtype=torch.float64) + 0.5) / 512


def step(options: argparse.Namespace) -> None:
    """One set of trajectories, fitted at every observation, at every second, fourth and eighth."""
    truth = Dynamics.named("variable", alpha=0.3)
    dt = 1 / 80
    x = simulate(truth, options.trajectories, 40, dt, seed=options.seed).to_array()
    curves = {}
    for stride in (1, 2, 4, 8):
        part = Trajectories.from_arrays(np.ascontiguousarray(x[:, ::stride]), dt=stride * dt).transitions()
        found = recover(part, alpha=0.3, engine="fisher", law="frozen")
        curves[stride] = {name: getattr(found, name)(X) for name in NAMES}
    true = {name: getattr(truth, name)(X) for name in NAMES}
    print("dt      " + "".join(f"  {name:>5s}: bias  growth at 2 dt  change / bias" for name in NAMES))
    for stride in (1, 2, 4):
        cells = []
        for name in NAMES:
            short, long_ = curves[stride][name], curves[2 * stride][name]
            bias, then = relative_error(short, true[name]), relative_error(long_, true[name])
            change = float((long_ - short).norm() / (short - true[name]).norm())
            cells.append(f"{bias:12.2%} {then / bias:15.2f} {change:14.2f}")
        print(f"1/{80 // stride:<6d}" + "".join(cells), flush=True)


def jumps(options: argparse.Namespace) -> None:
    """Brownian motion with constant drift: 2,000 pairs each."""
    for alpha in (0.5, "learn"):
        rows = []
        for seed in range(options.sets):
            noise = np.random.default_rng(seed).normal(size=2000)
            data = Transitions(np.zeros(2000), 0.1 + math.sqrt(0.2) * noise, 0.1)
            found = recover(data, alpha=alpha, n_basis=1)
            check = diagnose(found, data, checks=("jumps",)).jumps
            rows.append((check.gain, check.aic > 0, check.bic > 0))
        gain, aic, bic = np.array(rows, dtype=float).T
        zero = np.mean(gain < 1e-3)
        print(
            f"alpha {alpha}: gain 0 in {zero:.1%}, AIC finds jumps in {aic.mean():.1%}, BIC in {bic.mean():.1%} of "
            f"{options.sets}; mean gain {gain.mean():.3f}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("step", "jumps"))
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--sets", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore", LevytorchWarning)
    {"step": step, "jumps": jumps}[given.what](given)
