"""Figures of the training part: accuracy over seeds, speed and memory, paper-literal adam beside the default engine.

python benchmarks/recovery.py                    everything (about an hour on 2 cores)
python benchmarks/recovery.py censored alpha     some of: censored unbiased speed memory adam alpha coverage
python benchmarks/recovery.py censored --seeds 4
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
import warnings

import numpy as np
import torch

from levytorch import Dynamics, Transitions, recover, simulate
from levytorch.errors import LevytorchWarning

ALPHA, PAPER = 0.3, {"CT": 8.0, "TRT": 20.0}


def constant(seed: int, n_trajectories: int = 10_000) -> Transitions:
    return simulate(Dynamics.named("constant", alpha=ALPHA), n_trajectories, 40, 1 / 40, seed=seed).transitions()


def values(found) -> np.ndarray:
    return np.array([float(found.b(0.0)), float(found.D_o(0.0)), float(found.D_f(0.0))])


def censored(seeds: int) -> None:
    """(5, 4, 3), the paper's censoring: signed relative errors without correction, with the TCF, conditional."""
    truth = np.array([5.0, 4.0, 3.0])
    arms = {"none": None, "tcf": PAPER, "conditional": {**PAPER, "method": "conditional"}}
    errors: dict[str, list[np.ndarray]] = {arm: [] for arm in arms}
    for seed in range(seeds):
        data = constant(seed).censor(seed=10_000)
        for arm, tail in arms.items():
            errors[arm].append(values(recover(data, alpha=ALPHA, n_basis=1, tail=tail)) / truth - 1)
    print(f"censored constants, {seeds} seeds: mean signed error (largest |error|) of b, D_o, D_f")
    for arm, rows in errors.items():
        e = np.array(rows)
        cells = "  ".join(f"{m:+.2%} ({w:.2%})" for m, w in zip(e.mean(0), np.abs(e).max(0)))
        print(f"  {arm:12} {cells}")


def unbiased(seeds: int) -> None:
    """Variable system, dt 1/400, 100,000 trajectories, K = 21, nothing removed: relative L2 errors."""
    dynamics = Dynamics.named("variable", alpha=ALPHA)
    x = torch.linspace(0, 2 * math.pi, 1025, dtype=torch.float64)[:-1]
    rows = []
    for seed in range(seeds):
        data = simulate(dynamics, 100_000, 40, 1 / 400, seed=seed).transitions()
        found = recover(data, alpha=ALPHA, n_basis=21)
        row = [
            float(((g(x) - t(x)).square().sum() / t(x).square().sum()).sqrt())
            for g, t in ((found.b, dynamics.b), (found.D_o, dynamics.D_o), (found.D_f, dynamics.D_f))
        ]
        rows.append(row)
        print(
            f"  seed {seed}: b {row[0]:.2%}  D_o {row[1]:.2%}  D_f {row[2]:.2%}  ({found.metrics['steps']} passes)",
            flush=True,
        )
    worst = np.max(rows, axis=0)
    print(f"unbiased variable, {seeds} seeds: worst b {worst[0]:.2%}, D_o {worst[1]:.2%}, D_f {worst[2]:.2%}")


def large(n_trajectories: int = 400_000) -> Transitions:
    return simulate(Dynamics.named("variable", alpha=ALPHA), n_trajectories, 40, 1 / 40, seed=0).transitions()


def gaussian(dx: torch.Tensor) -> float:
    """Best of three: torch.distributions.Normal, log_prob forward and backward."""
    best = math.inf
    for _ in range(3):
        mean = torch.zeros_like(dx).requires_grad_(True)
        width = torch.ones_like(dx).requires_grad_(True)
        start = time.perf_counter()
        torch.distributions.Normal(mean, width, validate_args=False).log_prob(dx).sum().backward()
        best = min(best, time.perf_counter() - start)
    return best


def speed(seeds: int) -> None:
    """Fisher scoring, K = 21, on 16 million transitions against one Gaussian pass."""
    data = large()
    recover(data[:100_000], alpha=ALPHA, tail=PAPER)  # compile and build tables first
    yardstick = gaussian(data.dx)
    start = time.perf_counter()
    found = recover(data, alpha=ALPHA, n_basis=21, tail=PAPER)
    seconds = time.perf_counter() - start
    passes = found.metrics["steps"]
    print(
        f"fisher on {len(data)} transitions: {passes} passes, {seconds:.1f} s = {seconds / yardstick:.1f} Gaussian "
        f"passes of {yardstick:.2f} s; {seconds / passes:.2f} s per pass all included"
    )


def memory(seeds: int) -> None:
    """Peak memory of the fit above what was resident with imports and data, in a process of its own."""
    code = (
        "import resource,sys,numpy as np;sys.path.insert(0,'.');"
        "from levytorch import Transitions,recover;rng=np.random.default_rng(0);"
        "small=Transitions(rng.uniform(0,6,50000),rng.standard_cauchy(50000),.1);recover(small,alpha=.3);"
        "peak=lambda:resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/1024;base=peak();n=16_000_000;"
        "t=Transitions(rng.uniform(0,6.28,n),.4*rng.standard_normal(n)+.001*rng.standard_cauchy(n),.1);"
        "recover(t,alpha=.3,max_steps=4);print((peak()-base)/(16*n/2**20))"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    print(
        f"memory: peak above the import baseline is {float(done.stdout):.2f} times the data (x and dx), data included"
    )


def adam(seeds: int) -> None:
    """Algorithm B.1 to the letter beside the default engine, same data."""
    data = constant(0).censor(seed=10_000)
    literal = {"init": "random", "units": "none", "positivity": "clamp", "mixing": "bernoulli"}
    runs = {
        "fisher": {"tail": PAPER},
        "adam": {"tail": PAPER, "engine": "adam"},
        "adam, literal": {"tail": {**PAPER, "R_theta": "mean"}, "engine": "adam", "stop_early": False, **literal},
    }
    for name, options in runs.items():
        start = time.perf_counter()
        found = recover(data, alpha=ALPHA, n_basis=1, **options)
        error = values(found) / np.array([5.0, 4.0, 3.0]) - 1
        seconds = time.perf_counter() - start
        print(
            f"  {name:14} {found.metrics['steps']:6} steps {seconds:7.1f} s  errors {np.round(100 * error, 2)} %",
            flush=True,
        )


def alpha(seeds: int) -> None:
    """alpha learned from unbiased constants."""
    found = [recover(constant(seed), alpha="learn", n_basis=1) for seed in range(seeds)]
    a = np.array([f.alpha for f in found])
    print(
        f"alpha learned, {seeds} seeds: mean {a.mean():.4f}, largest |error| {np.abs(a - ALPHA).max():.4f}, "
        f"scatter {a.std(ddof=1):.4f}, standard error {np.mean([f.alpha_std for f in found]):.4f}"
    )


def coverage(seeds: int) -> None:
    """Share of 95 % bands that cover the truth, over 100 seeds."""
    tails = {"unbiased": None, "tcf": PAPER, "conditional": {**PAPER, "method": "conditional"}}
    hits = {kind: np.zeros(3) for kind in tails}
    truth = np.array([5.0, 4.0, 3.0])
    for seed in range(100):
        full = constant(seed, 2000)
        for kind, tail in tails.items():
            found = recover(full if tail is None else full.censor(seed=seed), alpha=ALPHA, n_basis=1, tail=tail)
            hits[kind] += np.abs(values(found) - truth) < 1.96 * np.array([float(s) for s in found.std(0.0)])
    print("coverage over 100 seeds:", json.dumps({kind: list(h / 100) for kind, h in hits.items()}))


PARTS = {f.__name__: f for f in (censored, alpha, unbiased, speed, memory, adam, coverage)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--seeds", type=int, default=12)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", LevytorchWarning)
    for name in arguments.parts or PARTS:
        PARTS[name](arguments.seeds)


if __name__ == "__main__":
    main()
