"""Figures of the training part: accuracy over seeds, speed and memory, paper-literal adam beside the default engine.

python benchmarks/recovery.py                    everything (about an hour on 2 cores)
python benchmarks/recovery.py censored alpha     some of: censored unbiased speed memory parquet adam alpha coverage
                                                 lattice scan selection bootstrap robust
python benchmarks/recovery.py censored --seeds 4
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings

import numpy as np
import torch
from large_data import memory, parquet

import levytorch
import levytorch.training.selection as cross_validation
from levytorch import Dynamics, Transitions, simulate
from levytorch.errors import LevytorchWarning

ALPHA, PAPER = 0.3, {"CT": 8.0, "TRT": 20.0}


def recover(data, **options):
    """Under the frozen law throughout: what the exact one gains and costs is benchmarks/exact_fit.py's."""
    return levytorch.recover(data, **{"law": "frozen", **options})


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
    """Fisher scoring, K = 21, on 16 million transitions against one Gaussian pass: plain, and with the TCF."""
    data = large()
    for tail in (None, PAPER):
        recover(data[:400_000], alpha=ALPHA, tail=tail)  # compile and build tables first
    yardstick = gaussian(data.dx)
    start = time.perf_counter()
    data.lattice()
    once = time.perf_counter() - start
    for name, tail in (("plain", None), ("tcf", PAPER)):
        start = time.perf_counter()
        found = recover(data, alpha=ALPHA, n_basis=21, tail=tail, engine="fisher")
        seconds = time.perf_counter() - start
        print(
            f"fisher on {len(data)} transitions, {name}: {seconds:.2f} s = {seconds / yardstick:.1f} Gaussian passes "
            f"of {yardstick:.2f} s ({found.metrics['steps']} steps; the lattice alone {once:.2f} s)",
            flush=True,
        )


def lattice(seeds: int) -> None:
    """Largest difference between the fits to the lattice and to the samples, in standard errors."""
    variable = Dynamics.named("variable", alpha=ALPHA)
    data = {
        "constant": (constant(0), 1, None),
        "variable": (simulate(variable, 10_000, 40, 1 / 40, seed=0).transitions(), 21, None),
        "censored": (constant(0).censor(seed=10_000), 1, PAPER),
        "censored variable": (simulate(variable, 10_000, 40, 1 / 40, seed=0).transitions().censor(), 21, PAPER),
    }
    for name, (pairs, K, tail) in data.items():
        for a in (ALPHA, "learn"):
            method = None if tail is None else {**tail, "method": "tcf" if a == ALPHA else "conditional"}
            options = {"alpha": a, "n_basis": K, "tail": method, "engine": "fisher"}
            by_samples = recover(pairs, **options, lattice="never")
            by_lattice = recover(pairs, **options, lattice="always")
            apart = (by_lattice.theta - by_samples.theta).abs() / by_samples.covariance.diagonal().sqrt()
            print(
                f"  {name:18} alpha {a}: {float(apart.max()):.4f} standard errors, log-likelihood "
                f"{by_lattice.log_likelihood - by_samples.log_likelihood:+.1e}",
                flush=True,
            )


def scan(seeds: int) -> None:
    """Held-out likelihood of all of 20 numbers of functions, five folds, on 4 million transitions, against one fit."""
    data = simulate(Dynamics.named("variable", alpha=ALPHA), 100_000, 40, 1 / 40, seed=0).transitions()
    recover(data[:400_000], alpha=ALPHA, n_basis="auto")

    def fit(**options):
        """A recovery, and the middle one of the seconds of three."""
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            found = recover(data, alpha=ALPHA, engine="fisher", **options)
            seconds.append(time.perf_counter() - start)
        return found, sorted(seconds)[1]

    _, one = fit()
    found, usual = fit(n_basis="auto")
    looked = found.metrics["selection"]["candidates"]
    stops = (cross_validation.CANDIDATES, cross_validation.Selection.turned)
    cross_validation.CANDIDATES, cross_validation.Selection.turned = tuple(range(1, 41, 2)), False
    found, full = fit(n_basis="auto")
    cross_validation.CANDIDATES, cross_validation.Selection.turned = stops
    print(
        f"scan: one fit {one:.1f} s; n_basis=auto {usual:.1f} s = {usual / one:.1f} fits ({len(looked)} candidates); "
        f"all of {len(found.metrics['selection']['candidates'])} candidates {full:.1f} s = {full / one:.1f} fits"
    )


def selection(seeds: int) -> None:
    """Errors of n_basis="auto" against those of every K of a scan, with and without shrinking of harmonics."""
    variable = Dynamics.named("variable", alpha=ALPHA)
    x = torch.linspace(0, 2 * math.pi, 1025, dtype=torch.float64)[:-1]

    def errors(fitted) -> np.ndarray:
        pairs = ((fitted.b, variable.b), (fitted.D_o, variable.D_o), (fitted.D_f, variable.D_f))
        return np.array([float(((g(x) - t(x)).square().sum() / t(x).square().sum()).sqrt()) for g, t in pairs])

    for n in (10_000, 100_000):
        count = seeds if n == 10_000 else max(1, seeds // 3)
        rows, chosen = {"auto": [], "fisher": []}, []
        scans = []
        for seed in range(count):
            lattice = simulate(variable, n, 40, 1 / 400, seed=seed).transitions().lattice(n_blocks=60)
            scans.append([errors(recover(lattice, alpha=ALPHA, n_basis=K, engine="fisher")) for K in range(3, 28, 2)])
            for engine, found in rows.items():
                fitted = recover(lattice, alpha=ALPHA, n_basis="auto", engine=engine)
                found.append(errors(fitted))
            chosen.append(fitted.head.n_basis)
        scan_errors = np.array(scans)  # (seeds, K, 3)
        best = scan_errors.mean(0).min(0)  # of one K for all seeds, chosen knowing the truth, each coefficient its own
        hindsight = scan_errors.min(1)  # of the K that happens to be best for this data and this coefficient
        for engine, found in rows.items():
            table = np.array(found)
            print(
                f"selection, {n} trajectories, {count} seeds, engine {engine}: mean errors of b, D_o, D_f are "
                f"{np.round(table.mean(0) / best, 3)} times those of the best K for each; seed by seed, against the "
                f"best in hindsight, {np.round((table / hindsight).mean(0), 3)}, at most "
                f"{np.round((table / hindsight).max(0), 3)} (K = {chosen})",
                flush=True,
            )


def bootstrap(seeds: int) -> None:
    """1,000 refits of K = 21, and how far a few are from fits of their own."""
    found = recover(large(100_000), alpha=ALPHA, n_basis=21, engine="fisher")
    found.bootstrap(2)
    start = time.perf_counter()
    replicas = found.bootstrap(1000)
    print(
        f"bootstrap: {len(replicas)} refits of {found.theta.numel()} parameters in {time.perf_counter() - start:.1f} s"
    )
    ratio = torch.stack(found.std(replicas[0].head.grid(64), kind="robust")) / torch.stack(
        replicas.std(replicas[0].head.grid(64))[:3]
    )
    print(f"  robust / bootstrap standard errors: {float(ratio.min()):.3f} ... {float(ratio.max()):.3f}")


def robust(seeds: int) -> None:
    """Coverage of 95 % bands of each kind: independent steps, and a law with the wrong alpha (0.45 taken as 0.3)."""
    system = {alpha: Dynamics(5.0, 4.0, 3.0, alpha) for alpha in (ALPHA, 0.45)}
    for alpha, dynamics in system.items():
        truth = np.array([5.0, 4.0, 3.0])
        if alpha != ALPHA:
            truth = values(
                recover(simulate(dynamics, 100_000, 40, 1 / 40, seed=99).transitions(), alpha=ALPHA, n_basis=1)
            )
        hits = {kind: np.zeros(3) for kind in ("fisher", "robust", "bootstrap")}
        for seed in range(seeds):
            found = recover(simulate(dynamics, 500, 40, 1 / 40, seed=seed).transitions(), alpha=ALPHA, n_basis=1)
            for kind, hit in hits.items():
                hit += np.abs(values(found) - truth) < 1.96 * np.array([float(s) for s in found.std(0.0, kind=kind)])
        shares = {kind: (hit / seeds).tolist() for kind, hit in hits.items()}
        print(f"coverage over {seeds} seeds, alpha {alpha} taken as {ALPHA}: {json.dumps(shares)}", flush=True)


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


PARTS = {
    f.__name__: f
    for f in (
        *(censored, alpha, unbiased, speed, memory, parquet, adam, coverage),
        *(lattice, scan, selection, bootstrap, robust),
    )
}


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
