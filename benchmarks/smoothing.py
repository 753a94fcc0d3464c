"""How a Fourier series is best smoothed: `python benchmarks/smoothing.py`.

Errors of b, D_o and D_f (root mean square over data sets, relative L2) and the share of states within 95 % bands,
without a penalty, with one strength for each coefficient ("evidence") and harmonic by harmonic ("harmonics", the
default). Each observation is one Euler step, of which the frozen law is the exact one, so that nothing but smoothing is
compared.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import torch
from torch import Tensor

from levytorch import Dynamics, recover, simulate
from levytorch.policy.reference import relative_error

# system -> trajectories of 40 steps, their dt, functions per coefficient (in the plane: per coordinate)
SYSTEMS = {
    "variable": (10_000, 1 / 40, 21),
    "asymptotic": (10_000, 1 / 40, 21),
    "plane": (1_500, 1 / 100, 7),
}
PENALTIES = ("none", "evidence", "harmonics")
NAMES = ("b", "D_o", "D_f")


def states(dim: int) -> Tensor:
    """An even grid on the cell, (n,) or (n, 2)."""
    x = torch.linspace(0, 2 * math.pi, 257 if dim == 1 else 25, dtype=torch.float64)[:-1]
    return x if dim == 1 else torch.stack(torch.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=list(SYSTEMS))
    options = parser.parse_args()
    print("| system, trajectories, K | penalty | b | D_o | D_f | coverage of b, D_o, D_f | seconds |")
    print("|---|---|---|---|---|---|---|")
    for system in options.systems:
        (count, dt, K), truth = SYSTEMS[system], Dynamics.named(system, alpha=0.3)
        x, rows = states(truth.dim), {penalty: [] for penalty in PENALTIES}
        for seed in range(options.seeds):
            data = simulate(truth, count, 40, dt, substeps=1, seed=seed).transitions()
            for penalty, told in rows.items():
                start = time.perf_counter()
                found = recover(data, alpha=0.3, n_basis=K, penalty=penalty, law="frozen")
                row = [time.perf_counter() - start]
                for name, std in zip(NAMES, found.std(x)):
                    got, true = getattr(found, name)(x), torch.as_tensor(getattr(truth, name)(x))
                    row += [relative_error(got, true)]
                    row += [float(((got - true).abs() <= 1.96 * std).double().mean())]
                told.append(row)
        for penalty, told in rows.items():
            table = np.array(told)
            errors = " | ".join(f"{100 * e:.2f} %" for e in np.sqrt((table[:, 1::2] ** 2).mean(0)))
            inside = ", ".join(f"{100 * share:.0f}" for share in table[:, 2::2].mean(0))
            what, seconds = f"{system}, {count:,}, {K}", float(np.median(table[:, 0]))
            print(f"| {what} | {penalty} | {errors} | {inside} % | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
